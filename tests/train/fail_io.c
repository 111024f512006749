/* Preloaded into a program, lets calls on files and folders whose path begins with FAIL_UNDER fail: those from the FAIL_AT-th on, FAIL_FOR
 * of them (1), as FAIL_AS says: EIO, ENOSPC, or short: a write takes half of its bytes.
 * Or the FAIL_AT-th call of logf, which training makes in each step: nan: it gives NaN; hang: it never returns; slow: this and later ones
 * of its thread take a third of a millisecond.
 * The numbers of both calls there were are written to the file FAIL_COUNT at the end. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long          num_calls, num_logs;
static __thread char is_slow;

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

/* PASS, SHORT, or -1 with errno. */
static int fate(const char *path)
{
    const char *at = getenv("FAIL_AT"), *as = getenv("FAIL_AS"), *times = getenv("FAIL_FOR");
    if (!is_watched(path)) return PASS;
    long call = __atomic_add_fetch(&num_calls, 1, __ATOMIC_RELAXED), first = at ? atol(at) : 0;
    if (!first || !as || call < first || call >= first + (times ? atol(times) : 1)) return PASS;
    if (strcmp(as, "short") == 0) return SHORT;
    if (as[0] != 'E') return PASS;
    errno = strcmp(as, "ENOSPC") == 0 ? ENOSPC : EIO;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_BY_PATH(path, ...) \
    do { \
        if (fate(path) < 0) return -1; \
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
    int  how = fate(path_of(fd, path));
    return how < 0 ? -1 : REAL(write)(fd, data, how == SHORT && size > 1 ? size / 2 : size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    char path[PATH_MAX];
    int  how = fate(path_of(fd, path));
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

/* A network file system reports a failed write here; the file is closed all the same. */
int close(int fd)
{
    char path[PATH_MAX];
    int  how = fate(path_of(fd, path)), error = errno, result = REAL(close)(fd);
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

float logf(float x)
{
    static float (*real)(float);
    const char *at = getenv("FAIL_AT"), *as = getenv("FAIL_AS");
    long        call = __atomic_add_fetch(&num_logs, 1, __ATOMIC_RELAXED);
    int         is_it = at && as && call == atol(at);
    if (!real) real = REAL(logf);
    if (is_it && strcmp(as, "nan") == 0) return 0.0f / 0.0f;
    while (is_it && strcmp(as, "hang") == 0) pause();
    if (is_it && strcmp(as, "slow") == 0) is_slow = 1;
    if (is_slow) usleep(300);
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
