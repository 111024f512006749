/* What the kernel offers, with messages that name the file, and writes that are whole or not at all. */
#include "files/file.h"

#include "base/hash.h"
#include "base/log.h"

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

/* Compiled in here: one function of it is used, and inlined it needs no library. */
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { COPY_BYTES = 1 << 20, PATH_MOST = PATH_MAX };

static Status status_of(int error)
{
    if (error == ENOENT || error == ENOTDIR) return ERR_NOT_FOUND;
    if (error == EACCES || error == EPERM || error == EROFS) return ERR_INVALID; /* what was named can't be used */
    return error == ENOSPC || error == EDQUOT ? ERR_NO_FIT : ERR_IO;
}

Status file_fail(const char *what, const char *path)
{
    int error = errno;
    FAIL(status_of(error), "cannot %s %s: %s", what, path, strerror(error));
}

static Status open_regular(const char *path, int *out_fd, int64_t *out_size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_fail("open", path);
    struct stat info;
    if (fstat(fd, &info) != 0) {
        Status status = file_fail("read", path);
        close(fd);
        return status;
    }
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        FAIL(ERR_INVALID, "%s is %s, expected a file", path, S_ISDIR(info.st_mode) ? "a folder" : "no regular file");
    }
    *out_fd = fd;
    *out_size = info.st_size;
    return OK;
}

/* What a clone without git-LFS has in a file's place: a short text that starts so. */
static Status check_no_pointer(const char *path, const char *data, size_t size)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    enum { POINTER_BYTES = 1024 }; /* of LFS's specification: a pointer is shorter */
    FAIL_IF(size < POINTER_BYTES && size >= sizeof start && memcmp(data, start, sizeof start - 1) == 0, ERR_INVALID,
            "%s is a git-LFS pointer, not the file itself: run `git lfs install` and `git lfs pull` in its folder, or download it again",
            path);
    return OK;
}

Status file_map(const char *path, FileMap *out)
{
    int     fd;
    int64_t size;
    TRY(open_regular(path, &fd, &size));
    *out = (FileMap){"", 0};
    Status status = OK;
    if (size > 0) {
        void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = file_fail("map", path);
        else
            *out = (FileMap){data, (size_t)size};
    }
    close(fd);
    if (status == OK) status = check_no_pointer(path, out->data, out->size);
    if (status != OK) file_unmap(out);
    return status;
}

void file_unmap(FileMap *map)
{
    if (map->size > 0) munmap((void *)map->data, map->size);
    *map = (FileMap){"", 0};
}

Status file_read_as_is(Arena *arena, const char *path, size_t max_bytes, Str *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_fail("open", path);
    StrBuf text = {0};
    Status status = OK;
    for (;;) {
        if (text.len > max_bytes) {
            status = status_fail(ERR_INVALID, "%s is larger than %zu bytes, the most that is read of such a file", path, max_bytes);
            break;
        }
        strbuf_reserve(&text, 1 << 16);
        ssize_t n = read(fd, text.data + text.len, text.capacity - text.len - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = file_fail("read", path);
        if (n <= 0) break;
        text.len += (size_t)n;
    }
    close(fd);
    if (status == OK) *out = (Str){arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    strbuf_deinit(&text);
    return status;
}

Status file_read(Arena *arena, const char *path, size_t max_bytes, Str *out)
{
    TRY(file_read_as_is(arena, path, max_bytes, out));
    return check_no_pointer(path, out->data, out->len);
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_same(const char *a, const char *b)
{
    struct stat left, right;
    return stat(a, &left) == 0 && stat(b, &right) == 0 && left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

bool file_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int64_t file_size(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
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
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return file_fail("make the folder", part);
        FAIL_IF(!file_is_dir(part), ERR_INVALID, "cannot make the folder %s: %s is a file", path, part);
        if (was == 0) break;
        *at = was;
    }
    return OK;
}

Status file_lock(const char *path, const char *waiting, int *out_fd)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EACCES) fd = open(path, O_RDONLY | O_CLOEXEC); /* another user's: reading is enough to lock it */
    if (fd < 0) return file_fail("create", path);
    int failed = flock(fd, LOCK_EX | LOCK_NB);
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
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_fail("open the folder", path);
    /* Some network file systems can't fsync a folder (EINVAL): there is nothing to make durable then. */
    Status status = fsync(fd) != 0 && errno != EINVAL ? file_fail("fsync", path) : OK;
    close(fd);
    return status;
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

struct FileWriter {
    int      fd;
    char    *path, *partial; /* final and temporary name */
    uint64_t size;           /* appended in all */
    size_t   used;           /* of buffer */
    char     buffer[COPY_BYTES];
};

/* One fixed name: a killed run's rest is written over by the next. */
static char *partial_name(const char *path)
{
    StrBuf name = {0};
    strbuf_printf(&name, "%s.partial", path);
    return name.data;
}

static Status open_writer(const char *path, int flags, FileWriter **out)
{
    char copy[PATH_MOST];
    TRY(copy_path(copy, path));
    FileWriter *writer = malloc(sizeof *writer);
    if (!writer) fatal_out_of_memory(sizeof *writer);
    writer->partial = partial_name(path);
    writer->path = strdup(path);
    if (!writer->path) fatal_out_of_memory(strlen(path));
    writer->used = 0;
    writer->size = 0;
    writer->fd = open(writer->partial, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    if (writer->fd < 0) {
        Status status = file_fail("create", writer->partial);
        file_writer_abort(writer);
        return status;
    }
    *out = writer;
    return OK;
}

Status file_writer_open(const char *path, FileWriter **out)
{
    return open_writer(path, O_TRUNC, out);
}

Status file_writer_open_part(const char *path, int64_t size, FileWriter **out)
{
    TRY(open_writer(path, 0, out));
    if (ftruncate((*out)->fd, size) == 0) return OK;
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
    TRY(writer_flush(writer));
    writer->size += size;
    return lseek(writer->fd, (off_t)size, SEEK_CUR) < 0 ? file_fail("write", writer->path) : OK;
}

uint64_t file_writer_size(const FileWriter *writer)
{
    return writer->size;
}

static void writer_free(FileWriter *writer)
{
    free(writer->path);
    free(writer->partial);
    free(writer);
}

void file_writer_abort(FileWriter *writer)
{
    if (!writer) return;
    if (writer->fd >= 0) {
        close(writer->fd);
        unlink(writer->partial);
    }
    writer_free(writer);
}

/* What was written is on the disk; else the temporary file is gone. */
static Status writer_settle(FileWriter *writer)
{
    Status status = writer_flush(writer);
    if (status == OK && fsync(writer->fd) != 0) status = file_fail("fsync", writer->path);
    if (status != OK) return status;
    int fd = writer->fd;
    writer->fd = -1;
    /* A network file system may report a failed write only here. */
    if (close(fd) != 0) status = file_fail("close", writer->path);
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

Status file_writer_close_part(FileWriter *writer)
{
    Status status = writer_settle(writer);
    file_writer_abort(writer);
    return status;
}

Status file_publish_parts(const char *path)
{
    char *partial = partial_name(path), *name = strdup(path);
    if (!name) fatal_out_of_memory(strlen(path));
    Status status = publish(partial, name);
    free(partial);
    free(name);
    return status;
}

Status file_remove_parts(const char *path)
{
    char  *partial = partial_name(path);
    Status status = file_remove_tree(partial);
    free(partial);
    return status;
}

Status file_write_atomic(const char *path, const void *data, size_t size)
{
    FileWriter *writer;
    TRY(file_writer_open(path, &writer));
    Status status = file_writer_append(writer, data, size);
    if (status == OK) return file_writer_commit(writer);
    file_writer_abort(writer);
    return status;
}

static Status remove_below(char path[PATH_MOST], size_t len)
{
    struct stat info;
    if (lstat(path, &info) != 0) return errno == ENOENT ? OK : file_fail("remove", path);
    if (!S_ISDIR(info.st_mode)) return unlink(path) != 0 && errno != ENOENT ? file_fail("remove", path) : OK;
    DIR *dir = opendir(path);
    if (!dir) return file_fail("open the folder", path);
    Status         status = OK;
    struct dirent *entry;
    while (status == OK && (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        size_t more = strlen(entry->d_name) + 1;
        if (len + more >= PATH_MOST) {
            status = status_fail(ERR_IO, "cannot remove %s: a path in it is too long", path);
            break;
        }
        snprintf(path + len, PATH_MOST - len, "/%s", entry->d_name);
        status = remove_below(path, len + more);
        path[len] = 0;
    }
    closedir(dir);
    if (status == OK && rmdir(path) != 0 && errno != ENOENT) status = file_fail("remove", path);
    return status;
}

Status file_remove_tree(const char *path)
{
    char copy[PATH_MOST];
    TRY(copy_path(copy, path));
    return remove_below(copy, strlen(copy));
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
    Arena   arena = {0};
    int64_t bytes = bytes_below(&arena, path);
    arena_deinit(&arena);
    return bytes;
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

uint64_t file_stamp(const char *path)
{
    enum { SETTLED_SECONDS = 1 }; /* above the tick of any file system's clock: two writes within one tick look alike */
    struct stat     info;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stat(path, &info) != 0 || info.st_ctim.tv_sec + SETTLED_SECONDS >= now.tv_sec) return 0;
    int64_t facts[] = {info.st_size,        info.st_mtim.tv_sec,  info.st_mtim.tv_nsec,
                       info.st_ctim.tv_sec, info.st_ctim.tv_nsec, (int64_t)info.st_ino};
    return hash_bytes(facts, sizeof facts, 0) | 1; /* never 0 */
}

/* Of at most `bytes` from `at` on. Read and not mapped: a fault for every few pages costs more than the copy, which stays in
 * cache. */
static Status hash_range(int fd, const char *path, int64_t at, int64_t bytes, uint64_t *out_hash)
{
    enum { BUFFER_BYTES = 1 << 18 };
    XXH3_state_t state;
    Status       status = OK;
    char        *buffer = malloc(BUFFER_BYTES);
    if (!buffer) fatal_out_of_memory(BUFFER_BYTES);
    XXH3_64bits_reset(&state);
    while (bytes > 0 && status == OK) {
        ssize_t n = pread(fd, buffer, bytes < BUFFER_BYTES ? (size_t)bytes : BUFFER_BYTES, at);
        if (n == 0) break;
        if (n < 0 && errno != EINTR) status = file_fail("read", path);
        if (n < 0) continue;
        XXH3_64bits_update(&state, buffer, (size_t)n);
        at += n;
        bytes -= n;
    }
    *out_hash = XXH3_64bits_digest(&state);
    free(buffer);
    return status;
}

Status file_hash(const char *path, uint64_t *out_hash)
{
    int     fd;
    int64_t size;
    TRY(open_regular(path, &fd, &size));
    Status status = hash_range(fd, path, 0, INT64_MAX, out_hash);
    close(fd);
    return status;
}

Status file_hash_range(const char *path, size_t first, size_t end, uint64_t *out_hashes)
{
    int     fd;
    int64_t size;
    Status  status = OK;
    TRY(open_regular(path, &fd, &size));
    for (size_t i = first; i < end && status == OK; i++)
        status = hash_range(fd, path, (int64_t)i * FILE_HASH_PART_BYTES, FILE_HASH_PART_BYTES, &out_hashes[i - first]);
    close(fd);
    return status;
}

typedef struct PartHashes {
    const char *path;
    int         fd;
    uint64_t   *hashes; /* by part */
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
    PartHashes parts = {.path = path};
    int64_t    size;
    TRY(open_regular(path, &parts.fd, &size));
    int64_t count = (size + FILE_HASH_PART_BYTES - 1) / FILE_HASH_PART_BYTES;
    parts.hashes = calloc((size_t)count + 1, sizeof *parts.hashes);
    if (!parts.hashes) fatal_out_of_memory((size_t)count * sizeof *parts.hashes);
    pool_run(pool, count, hash_part, &parts);
    *out_hash = hash_bytes(parts.hashes, (size_t)count * sizeof *parts.hashes, (uint64_t)size);
    free(parts.hashes);
    close(parts.fd);
    FAIL_IF(parts.failed, ERR_IO, "cannot read %s", path);
    return OK;
}
