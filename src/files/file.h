/* Whole files in and out. Reading maps or reads; writing never leaves a half-written file behind. */
#pragma once

#include "base/arena.h"
#include "base/pool.h"
#include "base/strbuf.h"

#include <stdint.h>

/* A read-only memory map. An empty file has data "" and size 0. A file that shrinks while mapped is the one thing this
 * can't survive; files we wrote are only replaced by rename. */
typedef struct FileMap {
    const char *data;
    size_t      size; /* bytes */
} FileMap;

/* A git-LFS pointer in the file's place is ERR_INVALID, here and in file_read. */
NODISCARD Status file_map(const char *path, FileMap *out);
void             file_unmap(FileMap *map);

/* Reads at most max_bytes (an error beyond it); NUL follows the text. A folder, a pipe, a socket or a device in the file's place is
 * ERR_INVALID: reading those can take forever. */
NODISCARD Status file_read(Arena *arena, const char *path, size_t max_bytes, Str *out);
NODISCARD Status file_read_as_is(Arena *arena, const char *path, size_t max_bytes, Str *out);  /* a pointer's text, too */
NODISCARD Status file_read_stream(Arena *arena, const char *path, size_t max_bytes, Str *out); /* a pipe, too: what the user names */

/* "cannot WHAT PATH: ", and what errno says. A full disk is ERR_NO_FIT. */
NODISCARD Status file_fail(const char *what, const char *path);

/* Only ENOENT and ENOTDIR say that nothing is there. Any other failure, such as of a folder that can't be searched or a disk that
 * can't be read, is an error which names the file and the cause. */
NODISCARD Status file_exists(const char *path, bool *out);
NODISCARD Status file_is_dir(const char *path, bool *out);
NODISCARD Status file_is_same(const char *a, const char *b, bool *out); /* both are there and are one file or folder */
NODISCARD Status file_size(const char *path, int64_t *out);             /* -1: absent */

/* The names in a folder, hidden ones too, in the order of their bytes. An absent folder is ERR_NOT_FOUND, or has no names. */
NODISCARD Status file_list(Arena *arena, const char *folder, const char ***out_names, size_t *out_count);
NODISCARD Status file_list_if_there(Arena *arena, const char *folder, const char ***out_names, size_t *out_count);

/* open, fsync, ftruncate and close, which a signal doesn't end: -1 with errno. Files are made with mode 0666 less the umask. */
int file_open(const char *path, int flags);
int file_fsync(int fd);
int file_truncate(int fd, int64_t size);
int file_close(int fd);
/* Closes the descriptor at this address, for SCOPED; -1: there is none. */
void file_close_at(int *fd);

/* path's folder and all above it. */
NODISCARD Status file_make_dirs(const char *path);

/* Writes a temporary file `path`.partial, fsyncs it, renames it over `path`, fsyncs the folder. On any error the old file
 * stays as it was and the temporary one is removed. */
NODISCARD Status file_write_atomic(const char *path, const void *data, size_t size);

/* The same in pieces, through a buffer: append as often as wanted, then commit or abort, either of which frees the writer.
 * A failed append leaves only abort. */
typedef struct FileWriter FileWriter;
NODISCARD Status          file_writer_open(const char *path, FileWriter **out);
NODISCARD Status          file_writer_append(FileWriter *writer, const void *data, size_t size);
uint64_t                  file_writer_size(const FileWriter *writer); /* bytes appended */
NODISCARD Status          file_writer_commit(FileWriter *writer);
void                      file_writer_abort(FileWriter *writer); /* NULL is fine */
/* Commits where `status` is OK; else aborts, and returns it again. */
NODISCARD Status file_writer_end(FileWriter *writer, Status status);

/* The same by several writers, which each write parts of one temporary file of `size` bytes in all and skip the others' parts. When all
 * have closed theirs, one of them publishes the file, or, where one failed, removes it. */
NODISCARD Status file_writer_open_part(const char *path, int64_t size, FileWriter **out);
NODISCARD Status file_writer_skip(FileWriter *writer, size_t size); /* 0 is fine */
NODISCARD Status file_writer_close_part(FileWriter *writer);
NODISCARD Status file_publish_parts(const char *path);
void             file_remove_parts(const char *path); /* behind a failure, whose message stays */

/* Locks the file `path`, made when it is absent, until *out_fd is closed or this process ends, however it ends. While another
 * process holds it, says `waiting` on stderr and waits. Where the file system has no locks, a warning: then there is none. */
NODISCARD Status file_lock(const char *path, const char *waiting, int *out_fd);

/* `a` gets the name of `b` and `b` that of `a`, at once. *out_done false: the file system or the kernel can't. */
NODISCARD Status file_exchange(const char *a, const char *b, bool *out_done);

/* fsync of a folder, so that renames in it last. */
NODISCARD Status file_sync_dir(const char *path);
NODISCARD Status file_sync_above(const char *path); /* of the folder that holds `path` */

/* Removes a file or a whole folder tree; absent is fine. */
NODISCARD Status file_remove_tree(const char *path);
/* The same behind a failure: the message stays the failure's, whether this succeeds or not. */
void file_remove_behind(const char *path);
/* Removes the files and folders in a folder whose names are `wanted`. An absent folder is fine. */
NODISCARD Status file_remove_in(const char *folder, bool (*wanted)(const char *name));

/* Bytes on disk of a file or of a whole folder tree; what can't be read counts as 0. */
int64_t file_tree_bytes(const char *path);

/* Free bytes of the file system that holds `path` (or its nearest existing parent). */
NODISCARD Status file_free_bytes(const char *path, int64_t *out_bytes);

/* XXH3 64 of a file. */
NODISCARD Status file_hash(const char *path, uint64_t *out_hash);
/* Hash of a file's place, size and time, folded into `seed`: another value for any other file, and after any write to it. 0: the path is
 * no file. */
NODISCARD Status file_fingerprint(const char *path, uint64_t seed, uint64_t *out_hash);
/* Of size, times and inode: another value after any write, replacement or rename; 0, which says nothing, for a file that is absent
 * or was touched within the last second. What was once learnt of a file's content holds while this stays. */
uint64_t file_stamp(const char *path);
/* Of a large file on many threads: XXH3 of its parts' XXH3, whatever the number of threads. pool may be NULL. */
enum { FILE_HASH_PART_BYTES = 16 << 20 };
/* Of parts first to end - 1 alone. */
NODISCARD Status file_hash_range(const char *path, size_t first, size_t end, uint64_t *out_hashes);
NODISCARD Status file_hash_parts(ThreadPool *pool, const char *path, uint64_t *out_hash);
