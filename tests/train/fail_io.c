/* Preloaded into a program, makes calls fail on files and folders whose path begins with FAIL_UNDER: FAIL_FOR calls (1) from the FAIL_AT-th
 * on. FAIL_AS is the error: EIO, ENOSPC, EACCES, EINTR; short: a write takes half of its bytes; kill: the process is killed before the
 * call. FAIL_CALLS names the functions that are counted and fail, such as "stat opendir"; unset: all functions below.
 * Other values of FAIL_AS concern the FAIL_AT-th call of logf, which training makes in each step. nan: it returns NaN; hang: it never
 * returns; slow: from then on one in 256 calls of its thread takes 30 ms.
 * FAIL_BYTES: each malloc and calloc of exactly this number of bytes fails.
 * At the end, the numbers of both kinds of calls are written to the file FAIL_COUNT. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long          num_calls, num_logs;
static __thread long slow_calls; /* calls since it became slow, from 1 */

enum { PASS, SHORT };

static int is_watched(const char *path)
{
    const char *under = getenv("FAIL_UNDER");
    return under && strncmp(path, under, strlen(under)) == 0;
}

static const char *path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
    return path;
}

static int is_counted(const char *function)
{
    const char *calls = getenv("FAIL_CALLS");
    size_t      len = strlen(function);
    for (const char *at = calls; at && (at = strstr(at, function)); at += len)
        if ((at == calls || at[-1] == ' ') && (!at[len] || at[len] == ' ')) return 1;
    return !calls;
}

/* PASS, SHORT, or -1 with errno set. */
static int fate(const char *path, const char *function)
{
    static const struct {
        const char *name;
        int         number;
    } errors[] = {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EACCES", EACCES}, {"EINTR", EINTR}};
    const char *at = getenv("FAIL_AT"), *as = getenv("FAIL_AS"), *times = getenv("FAIL_FOR");
    if (!is_watched(path) || !is_counted(function)) return PASS;
    long call = __atomic_add_fetch(&num_calls, 1, __ATOMIC_RELAXED), first = at ? atol(at) : 0;
    if (!first || !as || call < first || call >= first + (times ? atol(times) : 1)) return PASS;
    if (strcmp(as, "kill") == 0) raise(SIGKILL);
    if (strcmp(as, "short") == 0) return SHORT;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (strcmp(as, errors[i].name) != 0) continue;
        errno = errors[i].number;
        return -1;
    }
    return PASS;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_BY_PATH(path, ...) \
    do { \
        if (fate(path, __func__) < 0) return -1; \
        return __VA_ARGS__; \
    } while (0)
#define FAIL_BY_FD(fd, ...) \
    do { \
        char path[PATH_MAX]; \
        FAIL_BY_PATH(path_of(fd, path), __VA_ARGS__); \
    } while (0)

ssize_t write(int fd, const void *data, size_t size)
{
    char path[PATH_MAX];
    int  how = fate(path_of(fd, path), __func__);
    return how < 0 ? -1 : REAL(write)(fd, data, how == SHORT && size > 1 ? size / 2 : size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    char path[PATH_MAX];
    int  how = fate(path_of(fd, path), __func__);
    return how < 0 ? -1 : REAL(pwrite)(fd, data, how == SHORT && size > 1 ? size / 2 : size, at);
}

ssize_t read(int fd, void *data, size_t size)
{
    FAIL_BY_FD(fd, REAL(read)(fd, data, size));
}
ssize_t pread(int fd, void *data, size_t size, off_t at)
{
    FAIL_BY_FD(fd, REAL(pread)(fd, data, size, at));
}
int fsync(int fd)
{
    FAIL_BY_FD(fd, REAL(fsync)(fd));
}
int fdatasync(int fd)
{
    FAIL_BY_FD(fd, REAL(fdatasync)(fd));
}
int ftruncate(int fd, off_t size)
{
    FAIL_BY_FD(fd, REAL(ftruncate)(fd, size));
}
int mkdir(const char *path, mode_t mode)
{
    FAIL_BY_PATH(path, REAL(mkdir)(path, mode));
}
int rename(const char *from, const char *to)
{
    FAIL_BY_PATH(to, REAL(rename)(from, to));
}
int unlink(const char *path)
{
    FAIL_BY_PATH(path, REAL(unlink)(path));
}
int rmdir(const char *path)
{
    FAIL_BY_PATH(path, REAL(rmdir)(path));
}

int stat(const char *path, struct stat *out)
{
    FAIL_BY_PATH(path, REAL(stat)(path, out));
}
int lstat(const char *path, struct stat *out)
{
    FAIL_BY_PATH(path, REAL(lstat)(path, out));
}
int access(const char *path, int mode)
{
    FAIL_BY_PATH(path, REAL(access)(path, mode));
}
DIR *opendir(const char *path)
{
    return fate(path, __func__) < 0 ? NULL : REAL(opendir)(path);
}
struct dirent *readdir(DIR *dir)
{
    char path[PATH_MAX];
    return fate(path_of(dirfd(dir), path), __func__) < 0 ? NULL : REAL(readdir)(dir);
}

/* A network file system may report a failed write at close; the file is closed all the same. */
int close(int fd)
{
    char path[PATH_MAX];
    int  how = fate(path_of(fd, path), __func__), error = errno, result = REAL(close)(fd);
    if (how >= 0) return result;
    errno = error;
    return -1;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    FAIL_BY_PATH(path, REAL(open)(path, flags, mode));
}

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);

static size_t failing_bytes;

__attribute__((constructor)) static void read_bytes(void)
{
    const char *bytes = getenv("FAIL_BYTES");
    failing_bytes = bytes ? (size_t)atol(bytes) : 0;
}

void *malloc(size_t bytes)
{
    return failing_bytes && bytes == failing_bytes ? NULL : __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
    return failing_bytes && count * bytes == failing_bytes ? NULL : __libc_calloc(count, bytes);
}

float logf(float x)
{
    static float (*real)(float);
    const char *at = getenv("FAIL_AT"), *as = getenv("FAIL_AS");
    long        call = __atomic_add_fetch(&num_logs, 1, __ATOMIC_RELAXED);
    int         is_it = at && as && call == atol(at);
    if (!real) real = REAL(logf);
    if (is_it && strcmp(as, "nan") == 0) return 0.0f / 0.0f;
    while (is_it && strcmp(as, "hang") == 0) pause();
    if (is_it && strcmp(as, "slow") == 0) slow_calls = 1;
    if (slow_calls && slow_calls++ % 256 == 0) usleep(30000);
    return real(x);
}

__attribute__((destructor)) static void tell(void)
{
    const char *name = getenv("FAIL_COUNT");
    FILE       *file = name ? fopen(name, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld %ld\n", num_calls, num_logs);
    fclose(file);
}
