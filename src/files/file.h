/* Reading and writing whole files. Reading maps or copies; writing never leaves a half-written file. */
#pragma once

#include "base/arena.h"
#include "base/pool.h"
#include "base/strbuf.h"

#include <stdint.h>

/* A read-only memory map. An empty file has data "" and size 0. If the file shrinks while it is mapped, a read of the lost part ends the
 * program; files that we write are only replaced by rename. */
typedef struct FileMap {
    const char *data;
    size_t      size; /* bytes */
} FileMap;

/* Maps the file. ERR_INVALID, also from file_read: the file is a git-LFS pointer in place of its content. */
NODISCARD Status file_map(const char *path, FileMap *out);
void             file_unmap(FileMap *map);

/* Reads a file of at most max_bytes (a longer one is an error); a NUL follows the text. A folder, pipe, socket or device is ERR_INVALID:
 * reading it could block forever. */
NODISCARD Status file_read(Arena *arena, const char *path, size_t max_bytes, Str *out);
NODISCARD Status file_read_as_is(Arena *arena, const char *path, size_t max_bytes, Str *out);  /* also reads a git-LFS pointer */
NODISCARD Status file_read_stream(Arena *arena, const char *path, size_t max_bytes, Str *out); /* also reads pipes that a user named */

/* Fails with "cannot WHAT PATH: " and errno's text. A full disk is ERR_NO_FIT. */
NODISCARD Status file_fail(const char *what, const char *path);

/* *out is false only on ENOENT and ENOTDIR. Any other failure, such as a folder that can't be searched or a disk that can't be read, is an
 * error that names the file and the cause. */
NODISCARD Status file_exists(const char *path, bool *out);
NODISCARD Status file_is_dir(const char *path, bool *out);
NODISCARD Status file_is_same(const char *a, const char *b, bool *out); /* *out: whether a and b exist and are the same file or folder */
NODISCARD Status file_size(const char *path, int64_t *out);             /* -1: absent */

/* Lists the names in a folder, hidden ones too, sorted by their bytes. If the folder is absent, file_list returns ERR_NOT_FOUND, and
 * file_list_if_there finds no names. */
NODISCARD Status file_list(Arena *arena, const char *folder, const char ***out_names, size_t *out_count);
NODISCARD Status file_list_if_there(Arena *arena, const char *folder, const char ***out_names, size_t *out_count);

/* Like open, fsync, ftruncate and close, but they go on after a signal; -1 on failure, with errno. New files get mode 0666 less the
 * umask. */
int file_open(const char *path, int flags);
int file_fsync(int fd);
int file_truncate(int fd, int64_t size);
int file_close(int fd);
/* Closes *fd, for SCOPED; -1: not open. */
void file_close_at(int *fd);

/* Makes the folder `path`, and the folders above it that don't exist. */
NODISCARD Status file_make_dirs(const char *path);

/* Writes a temporary file `path`.partial, fsyncs it, renames it to `path`, and fsyncs the folder. On any error the old file stays as it
 * was, and the temporary file is removed. A `path` that is a folder, pipe, socket or device is refused. */
NODISCARD Status file_write_atomic(const char *path, const void *data, size_t size);

/* Like file_write_atomic, but in pieces, through a buffer: append as often as needed, then commit or abort; both free the writer. After a
 * failed append only abort is allowed. */
typedef struct FileWriter FileWriter;
NODISCARD Status          file_writer_open(const char *path, FileWriter **out);
NODISCARD Status          file_writer_append(FileWriter *writer, const void *data, size_t size);
uint64_t                  file_writer_size(const FileWriter *writer); /* bytes appended */
NODISCARD Status          file_writer_commit(FileWriter *writer);
void                      file_writer_abort(FileWriter *writer); /* NULL is fine */
/* Commits if `status` is OK; else aborts and returns `status`. */
NODISCARD Status file_writer_end(FileWriter *writer, Status status);

/* Like file_writer_open, for several writers that share one temporary file of `size` bytes: each writes its parts and skips the others'.
 * When all have closed it, one of them publishes the file, or removes it if any writer failed. */
NODISCARD Status file_writer_open_part(const char *path, int64_t size, FileWriter **out);
NODISCARD Status file_writer_skip(FileWriter *writer, size_t size); /* size 0 is fine */
NODISCARD Status file_writer_close_part(FileWriter *writer);
NODISCARD Status file_publish_parts(const char *path);
void             file_remove_parts(const char *path); /* call it after a failure: status_message() stays */

/* Locks the file `path`, which is created if absent, until *out_fd is closed or this process ends. If another process holds the lock,
 * prints `waiting` on stderr and waits. If the file system has no locks, warns and goes on without one. */
NODISCARD Status file_lock(const char *path, const char *waiting, int *out_fd);

/* Swaps the names `a` and `b` in one step. *out_done false: the file system or the kernel can't, and nothing has changed. */
NODISCARD Status file_exchange(const char *a, const char *b, bool *out_done);

/* Fsyncs a folder, so that renames in it last. */
NODISCARD Status file_sync_dir(const char *path);
NODISCARD Status file_sync_above(const char *path); /* fsyncs the folder that contains `path` */

/* Removes a file or a whole folder tree; absent is fine. */
NODISCARD Status file_remove_tree(const char *path);
/* Removes the tree `path` after a failure. status_message() still tells of that failure, whether removing succeeds or not. */
void file_remove_behind(const char *path);
/* Removes the files and folders in `folder` whose names `wanted` accepts. An absent folder is fine. */
NODISCARD Status file_remove_in(const char *folder, bool (*wanted)(const char *name));

/* Bytes on disk of a file or of a whole folder tree; anything that can't be read counts as 0. */
int64_t file_tree_bytes(const char *path);

/* Free bytes of the file system that holds `path` (or its nearest existing parent). */
NODISCARD Status file_free_bytes(const char *path, int64_t *out_bytes);

/* XXH3-64 of the file's bytes. */
NODISCARD Status file_hash(const char *path, uint64_t *out_hash);
/* A hash of the file's device, inode, size and modification time, folded into `seed`: it differs for any other file, and after any write.
 * 0: the path is no regular file. */
NODISCARD Status file_fingerprint(const char *path, uint64_t seed, uint64_t *out_hash);
/* A hash of size, times and inode, which any write, replacement or rename changes. An unchanged hash means unchanged content. 0 tells
 * nothing: the file is absent, or was touched within the last second. */
uint64_t file_stamp(const char *path);
/* file_hash_parts hashes a large file on many threads: the XXH3 of its parts' XXH3, the same for any number of threads. pool may be
 * NULL. */
enum { FILE_HASH_PART_BYTES = 16 << 20 };
/* Hashes only parts `first` to `end` - 1, into out_hashes[0], [1], ... */
NODISCARD Status file_hash_range(const char *path, size_t first, size_t end, uint64_t *out_hashes);
NODISCARD Status file_hash_parts(ThreadPool *pool, const char *path, uint64_t *out_hash);
