/* The kernel's file calls, with messages that name the file, and writes that are whole or not at all. */
#include "files/file.h"

#include "base/compare.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/scoped.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* xxhash is compiled in: only XXH3 is used, and inlining it needs no library. */
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { COPY_BYTES = 1 << 20, PATH_MOST = PATH_MAX };

static Status status_of(int error)
{
    if (error == ENOENT || error == ENOTDIR) return ERR_NOT_FOUND;
    if (error == EACCES || error == EPERM || error == EROFS) return ERR_INVALID; /* the path can't be used */
    return error == ENOSPC || error == EDQUOT ? ERR_NO_FIT : ERR_IO;
}

Status file_fail(const char *what, const char *path)
{
    int error = errno;
    FAIL(status_of(error), "cannot %s %s: %s", what, path, strerror(error));
}

int file_open(const char *path, int flags)
{
    int fd;
    do fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int file_fsync(int fd)
{
    int failed;
    do failed = fsync(fd);
    while (failed && errno == EINTR);
    return failed;
}

int file_truncate(int fd, int64_t size)
{
    int failed;
    do failed = ftruncate(fd, size);
    while (failed && errno == EINTR);
    return failed;
}

int file_close(int fd)
{
    return close(fd) != 0 && errno != EINTR ? -1 : 0;
}

void file_close_at(int *fd)
{
    if (*fd >= 0) close(*fd);
}

static const char *kind_name(mode_t mode)
{
    return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

/* Opening a socket fails with "no such device or address"; this says instead what the path is. */
static Status fail_open(const char *path)
{
    int         error = errno;
    struct stat info;
    FAIL_IF(error == ENXIO && stat(path, &info) == 0, ERR_INVALID, "%s is %s, expected a file", path, kind_name(info.st_mode));
    errno = error;
    return file_fail("open", path);
}

/* Opens a regular file; doesn't block if path is a pipe that nobody writes to. On failure *out_fd is -1 or still open. */
static Status open_regular(const char *path, int *out_fd, int64_t *out_size)
{
    struct stat info;
    *out_fd = file_open(path, O_RDONLY | O_NONBLOCK);
    if (*out_fd < 0) return fail_open(path);
    if (fstat(*out_fd, &info) != 0) return file_fail("read", path);
    FAIL_IF(!S_ISREG(info.st_mode), ERR_INVALID, "%s is %s, expected a file", path, kind_name(info.st_mode));
    *out_size = info.st_size;
    return OK;
}

/* Refuses a git-LFS pointer: a clone made without git-LFS has this short text in place of the file. */
static Status check_no_pointer(const char *path, const char *data, size_t size)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    enum { POINTER_BYTES = 1024 }; /* by LFS's specification a pointer is shorter */
    FAIL_IF(size < POINTER_BYTES && size >= sizeof start && memcmp(data, start, sizeof start - 1) == 0, ERR_INVALID,
            "%s is a git-LFS pointer, not the file itself: run `git lfs install` and `git lfs pull` in its folder, or download it again",
            path);
    return OK;
}

Status file_map(const char *path, FileMap *out)
{
    SCOPED(file_close_at) int fd = -1;
    int64_t                   size;
    TRY(open_regular(path, &fd, &size));
    *out = (FileMap){"", 0};
    if (size == 0) return OK;
    void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return file_fail("map", path);
    *out = (FileMap){data, (size_t)size};
    Status status = check_no_pointer(path, data, out->size);
    if (status != OK) file_unmap(out);
    return status;
}

void file_unmap(FileMap *map)
{
    if (map->size > 0) munmap((void *)map->data, map->size);
    *map = (FileMap){"", 0};
}

static Status read_whole(Arena *arena, int fd, const char *path, size_t max_bytes, Str *out)
{
    SCOPED_STRBUF(text);
    for (;;) {
        FAIL_IF(text.len > max_bytes, ERR_INVALID, "%s is larger than %zu bytes, the most that is read of such a file", path, max_bytes);
        strbuf_reserve(&text, 1 << 16);
        ssize_t n = read(fd, text.data + text.len, text.capacity - text.len - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_fail("read", path);
        if (n <= 0) break;
        text.len += (size_t)n;
    }
    *out = (Str){arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    return OK;
}

Status file_read_as_is(Arena *arena, const char *path, size_t max_bytes, Str *out)
{
    SCOPED(file_close_at) int fd = -1;
    int64_t                   size;
    TRY(open_regular(path, &fd, &size));
    return read_whole(arena, fd, path, max_bytes, out);
}

Status file_read_stream(Arena *arena, const char *path, size_t max_bytes, Str *out)
{
    SCOPED(file_close_at) int fd = file_open(path, O_RDONLY);
    if (fd < 0) return fail_open(path);
    TRY(read_whole(arena, fd, path, max_bytes, out));
    return check_no_pointer(path, out->data, out->len);
}

Status file_read(Arena *arena, const char *path, size_t max_bytes, Str *out)
{
    TRY(file_read_as_is(arena, path, max_bytes, out));
    return check_no_pointer(path, out->data, out->len);
}

/* *out_there: whether `path` exists; if so, *out describes it. */
static Status look(const char *path, struct stat *out, bool *out_there)
{
    *out_there = stat(path, out) == 0;
    return *out_there || errno == ENOENT || errno == ENOTDIR ? OK : file_fail("look at", path);
}

Status file_exists(const char *path, bool *out)
{
    struct stat info;
    return look(path, &info, out);
}

Status file_is_same(const char *a, const char *b, bool *out)
{
    struct stat left, right;
    bool        has_right = false;
    TRY(look(a, &left, out));
    if (*out) TRY(look(b, &right, &has_right));
    *out = has_right && left.st_dev == right.st_dev && left.st_ino == right.st_ino;
    return OK;
}

Status file_is_dir(const char *path, bool *out)
{
    struct stat info;
    TRY(look(path, &info, out));
    *out = *out && S_ISDIR(info.st_mode);
    return OK;
}

Status file_size(const char *path, int64_t *out)
{
    struct stat info;
    bool        is_there;
    TRY(look(path, &info, &is_there));
    *out = is_there ? (int64_t)info.st_size : -1;
    return OK;
}

static Status read_names(Arena *arena, DIR *dir, const char *folder, const char ***names, size_t *count)
{
    size_t capacity = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) return errno ? file_fail("list", folder) : OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (*count == capacity) {
            const char **more = arena_array(arena, const char *, capacity = capacity ? 2 * capacity : 64);
            if (*count) memcpy(more, *names, *count * sizeof *more);
            *names = more;
        }
        (*names)[(*count)++] = arena_strdup(arena, entry->d_name);
    }
}

Status file_list(Arena *arena, const char *folder, const char ***out_names, size_t *out_count)
{
    DIR *dir;
    *out_names = NULL;
    *out_count = 0;
    do dir = opendir(folder);
    while (!dir && errno == EINTR);
    if (!dir) return file_fail("list", folder);
    Status status = read_names(arena, dir, folder, out_names, out_count);
    closedir(dir);
    if (status == OK && *out_count) qsort(*out_names, *out_count, sizeof **out_names, compare_texts);
    return status;
}

Status file_list_if_there(Arena *arena, const char *folder, const char ***out_names, size_t *out_count)
{
    Status status = file_list(arena, folder, out_names, out_count);
    if (status != ERR_NOT_FOUND) return status;
    status_clear();
    return OK;
}

static Status copy_path(char dst[PATH_MOST], const char *path)
{
    size_t len = strlen(path);
    FAIL_IF(len == 0 || len >= PATH_MOST, ERR_INVALID, "a path of %zu bytes, expected 1 to %d", len, PATH_MOST - 1);
    memcpy(dst, path, len + 1);
    return OK;
}

Status file_make_dirs(const char *path)
{
    char part[PATH_MOST];
    TRY(copy_path(part, path));
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != 0) continue;
        char was = *at;
        *at = 0;
        bool is_dir;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return file_fail("make the folder", part);
        TRY(file_is_dir(part, &is_dir));
        FAIL_IF(!is_dir, ERR_INVALID, "cannot make the folder %s: %s is a file", path, part);
        if (was == 0) break;
        *at = was;
    }
    return OK;
}

Status file_lock(const char *path, const char *waiting, int *out_fd)
{
    int fd = file_open(path, O_RDWR | O_CREAT), failed;
    if (fd < 0 && errno == EACCES) fd = file_open(path, O_RDONLY); /* another user's file: reading is enough to lock it */
    if (fd < 0) return file_fail("create", path);
    do failed = flock(fd, LOCK_EX | LOCK_NB);
    while (failed && errno == EINTR);
    if (failed && errno == EWOULDBLOCK) {
        log_info("%s", waiting);
        do failed = flock(fd, LOCK_EX);
        while (failed && errno == EINTR);
    }
    if (failed) log_warn("%s can't be locked: %s; don't start another process that writes there", path, strerror(errno));
    *out_fd = fd;
    return OK;
}

Status file_exchange(const char *a, const char *b, bool *out_done)
{
    *out_done = syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
    if (*out_done || errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return OK;
    return file_fail("rename to", b);
}

Status file_sync_dir(const char *path)
{
    SCOPED(file_close_at) int fd = file_open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return file_fail("open the folder", path);
    /* Some network file systems can't fsync a folder (EINVAL): nothing can be made durable then. */
    return file_fsync(fd) != 0 && errno != EINVAL ? file_fail("fsync", path) : OK;
}

Status file_sync_above(const char *path)
{
    char copy[PATH_MOST];
    TRY(copy_path(copy, path));
    return file_sync_dir(dirname(copy));
}

static Status write_all(int fd, const char *path, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size < (1u << 30) ? size : (1u << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_fail("write", path);
        data += n;
        size -= (size_t)n;
    }
    return OK;
}

#define PARTIAL_END ".partial" /* one fixed name, so the next run overwrites what a killed run left */

struct FileWriter {
    int      fd;
    char     path[PATH_MOST], partial[PATH_MOST + sizeof PARTIAL_END]; /* final and temporary name */
    uint64_t size;                                                     /* bytes appended so far */
    size_t   used;                                                     /* bytes in buffer */
    char     buffer[COPY_BYTES];
};

static Status open_writer(const char *path, int flags, FileWriter **out)
{
    struct stat info;
    FAIL_IF(!*path, ERR_INVALID, "the name of the file to write is empty");
    /* The rename would put a file in place of /dev/null, say. */
    FAIL_IF(stat(path, &info) == 0 && !S_ISREG(info.st_mode), ERR_INVALID, "%s is %s; expected the name of a file", path,
            kind_name(info.st_mode));
    SCOPED(scoped_free) FileWriter *writer = malloc_or_end(sizeof *writer);
    TRY(copy_path(writer->path, path));
    snprintf(writer->partial, sizeof writer->partial, "%s" PARTIAL_END, path);
    writer->used = 0;
    writer->size = 0;
    writer->fd = file_open(writer->partial, O_WRONLY | O_CREAT | flags);
    if (writer->fd < 0) return file_fail("create", path);
    *out = writer;
    writer = NULL;
    return OK;
}

Status file_writer_open(const char *path, FileWriter **out)
{
    return open_writer(path, O_TRUNC, out);
}

Status file_writer_open_part(const char *path, int64_t size, FileWriter **out)
{
    TRY(open_writer(path, 0, out));
    if (file_truncate((*out)->fd, size) == 0) return OK;
    Status status = file_fail("write", path);
    file_writer_abort(*out);
    return status;
}

static Status writer_flush(FileWriter *writer)
{
    size_t used = writer->used;
    writer->used = 0;
    return write_all(writer->fd, writer->path, writer->buffer, used);
}

Status file_writer_append(FileWriter *writer, const void *data, size_t size)
{
    writer->size += size;
    if (size > sizeof writer->buffer - writer->used) TRY(writer_flush(writer));
    if (size >= sizeof writer->buffer) return write_all(writer->fd, writer->path, data, size);
    if (size) memcpy(writer->buffer + writer->used, data, size);
    writer->used += size;
    return OK;
}

Status file_writer_skip(FileWriter *writer, size_t size)
{
    if (!size) return OK;
    TRY(writer_flush(writer));
    writer->size += size;
    return lseek(writer->fd, (off_t)size, SEEK_CUR) < 0 ? file_fail("write", writer->path) : OK;
}

uint64_t file_writer_size(const FileWriter *writer)
{
    return writer->size;
}

void file_writer_abort(FileWriter *writer)
{
    if (!writer) return;
    if (writer->fd >= 0) {
        close(writer->fd);
        unlink(writer->partial);
    }
    free(writer);
}

/* Flushes, syncs and closes the temporary file. If the close fails, removes the file; after an earlier failure, file_writer_abort removes
 * it. */
static Status writer_settle(FileWriter *writer)
{
    Status status = writer_flush(writer);
    if (status == OK && file_fsync(writer->fd) != 0) status = file_fail("fsync", writer->path);
    if (status != OK) return status;
    int fd = writer->fd;
    writer->fd = -1;
    /* A network file system may report a failed write only here. */
    if (file_close(fd) != 0) status = file_fail("close", writer->path);
    if (status != OK) unlink(writer->partial);
    return status;
}

static Status publish(const char *partial, char *path)
{
    Status status = rename(partial, path) != 0 ? file_fail("rename to", path) : OK;
    if (status != OK) unlink(partial);
    return status == OK ? file_sync_dir(dirname(path)) : status;
}

Status file_writer_commit(FileWriter *writer)
{
    Status status = writer_settle(writer);
    if (status == OK) status = publish(writer->partial, writer->path);
    file_writer_abort(writer);
    return status;
}

Status file_writer_end(FileWriter *writer, Status status)
{
    if (status == OK) return file_writer_commit(writer);
    file_writer_abort(writer);
    return status;
}

Status file_writer_close_part(FileWriter *writer)
{
    Status status = writer_settle(writer);
    file_writer_abort(writer);
    return status;
}

Status file_publish_parts(const char *path)
{
    SCOPED_ARENA(arena);
    return publish(arena_printf(&arena, "%s" PARTIAL_END, path), arena_strdup(&arena, path));
}

void file_remove_parts(const char *path)
{
    SCOPED_ARENA(arena);
    file_remove_behind(arena_printf(&arena, "%s" PARTIAL_END, path));
}

Status file_write_atomic(const char *path, const void *data, size_t size)
{
    FileWriter *writer;
    TRY(file_writer_open(path, &writer));
    return file_writer_end(writer, file_writer_append(writer, data, size));
}

static Status remove_below(Arena *arena, const char *path)
{
    struct stat  info;
    const char **names;
    size_t       count;
    if (lstat(path, &info) != 0) return errno == ENOENT || errno == ENOTDIR ? OK : file_fail("remove", path);
    if (!S_ISDIR(info.st_mode)) return unlink(path) != 0 && errno != ENOENT ? file_fail("remove", path) : OK;
    TRY(file_list(arena, path, &names, &count));
    for (size_t i = 0; i < count; i++) {
        FAIL_IF(strlen(path) + strlen(names[i]) + 1 >= PATH_MOST, ERR_IO, "cannot remove %s: a path in it is too long", path);
        TRY(remove_below(arena, arena_printf(arena, "%s/%s", path, names[i])));
    }
    return rmdir(path) != 0 && errno != ENOENT ? file_fail("remove", path) : OK;
}

Status file_remove_tree(const char *path)
{
    char copy[PATH_MOST];
    SCOPED_ARENA(arena);
    TRY(copy_path(copy, path));
    return remove_below(&arena, copy);
}

void file_remove_behind(const char *path)
{
    char message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status_message());
    Status ignored = file_remove_tree(path);
    ignored = status_fail(ERR_IO, "%s", message);
    (void)ignored;
}

Status file_remove_in(const char *folder, bool (*wanted)(const char *name))
{
    SCOPED_ARENA(arena);
    const char **names;
    size_t       count;
    TRY(file_list_if_there(&arena, folder, &names, &count));
    for (size_t i = 0; i < count; i++)
        if (wanted(names[i])) TRY(file_remove_tree(arena_printf(&arena, "%s/%s", folder, names[i])));
    return OK;
}

static int64_t bytes_below(Arena *arena, const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) return 0;
    int64_t bytes = (int64_t)info.st_blocks * 512;
    DIR    *dir = S_ISDIR(info.st_mode) ? opendir(path) : NULL;
    if (!dir) return bytes;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            bytes += bytes_below(arena, arena_printf(arena, "%s/%s", path, entry->d_name));
    closedir(dir);
    return bytes;
}

int64_t file_tree_bytes(const char *path)
{
    SCOPED_ARENA(arena);
    return bytes_below(&arena, path);
}

Status file_free_bytes(const char *path, int64_t *out_bytes)
{
    char part[PATH_MOST];
    TRY(copy_path(part, path));
    struct statvfs info;
    while (statvfs(part, &info) != 0) {
        if (errno != ENOENT) return file_fail("look at the file system of", path);
        char *slash = strrchr(part, '/');
        if (!slash)
            strcpy(part, ".");
        else if (slash == part)
            part[1] = 0;
        else
            *slash = 0;
    }
    *out_bytes = (int64_t)info.f_bavail * (int64_t)info.f_frsize;
    return OK;
}

Status file_fingerprint(const char *path, uint64_t seed, uint64_t *out_hash)
{
    struct stat info;
    if (stat(path, &info) != 0) return file_fail("look at", path);
    uint64_t facts[] = {(uint64_t)info.st_dev, (uint64_t)info.st_ino, (uint64_t)info.st_size, (uint64_t)info.st_mtim.tv_sec,
                        (uint64_t)info.st_mtim.tv_nsec};
    *out_hash = S_ISREG(info.st_mode) ? hash_bytes(facts, sizeof facts, seed) : 0;
    return OK;
}

uint64_t file_stamp(const char *path)
{
    enum { SETTLED_SECONDS = 1 }; /* longer than any file system's clock tick: two writes within one tick leave the same times */
    struct stat     info;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stat(path, &info) != 0 || info.st_ctim.tv_sec + SETTLED_SECONDS >= now.tv_sec) return 0;
    int64_t facts[] = {info.st_size,        info.st_mtim.tv_sec,  info.st_mtim.tv_nsec,
                       info.st_ctim.tv_sec, info.st_ctim.tv_nsec, (int64_t)info.st_ino};
    return hash_bytes(facts, sizeof facts, 0) | 1; /* never 0 */
}

/* Hashes at most `bytes` from offset `at` on. Reading beats mapping: page faults cost more than the copy, which stays in cache. */
static Status hash_range(int fd, const char *path, int64_t at, int64_t bytes, uint64_t *out_hash)
{
    enum { BUFFER_BYTES = 1 << 18 };
    XXH3_state_t state;
    SCOPED_ARRAY(char, buffer, BUFFER_BYTES);
    XXH3_64bits_reset(&state);
    while (bytes > 0) {
        ssize_t n = pread(fd, buffer, bytes < BUFFER_BYTES ? (size_t)bytes : BUFFER_BYTES, at);
        if (n == 0) break;
        if (n < 0 && errno != EINTR) return file_fail("read", path);
        if (n < 0) continue;
        XXH3_64bits_update(&state, buffer, (size_t)n);
        at += n;
        bytes -= n;
    }
    *out_hash = XXH3_64bits_digest(&state);
    return OK;
}

Status file_hash(const char *path, uint64_t *out_hash)
{
    SCOPED(file_close_at) int fd = -1;
    int64_t                   size;
    TRY(open_regular(path, &fd, &size));
    return hash_range(fd, path, 0, INT64_MAX, out_hash);
}

Status file_hash_range(const char *path, size_t first, size_t end, uint64_t *out_hashes)
{
    SCOPED(file_close_at) int fd = -1;
    int64_t                   size;
    TRY(open_regular(path, &fd, &size));
    for (size_t i = first; i < end; i++)
        TRY(hash_range(fd, path, (int64_t)i * FILE_HASH_PART_BYTES, FILE_HASH_PART_BYTES, &out_hashes[i - first]));
    return OK;
}

typedef struct PartHashes {
    const char *path;
    int         fd;
    uint64_t   *hashes; /* indexed by part */
    bool        failed;
} PartHashes;

static void hash_part(void *context, int64_t part, int worker)
{
    PartHashes *parts = context;
    (void)worker;
    if (hash_range(parts->fd, parts->path, part * FILE_HASH_PART_BYTES, FILE_HASH_PART_BYTES, &parts->hashes[part]) != OK)
        __atomic_store_n(&parts->failed, true, __ATOMIC_RELAXED);
}

Status file_hash_parts(ThreadPool *pool, const char *path, uint64_t *out_hash)
{
    SCOPED(file_close_at) int fd = -1;
    int64_t                   size;
    TRY(open_regular(path, &fd, &size));
    int64_t count = (size + FILE_HASH_PART_BYTES - 1) / FILE_HASH_PART_BYTES;
    SCOPED_ARRAY(uint64_t, hashes, count + 1);
    PartHashes parts = {.path = path, .fd = fd, .hashes = hashes};
    pool_run(pool, count, hash_part, &parts);
    *out_hash = hash_bytes(hashes, (size_t)count * sizeof *hashes, (uint64_t)size);
    FAIL_IF(parts.failed, ERR_IO, "cannot read %s", path);
    return OK;
}
