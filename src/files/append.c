/* See append.h. */
#include "files/append.h"

#include "files/file.h"

#include <errno.h>
#include <unistd.h>

/* False on failure, with errno set. */
static bool write_all(AppendFile *file)
{
    size_t done = 0, len = file->waiting.len;
    while (done < len) {
        ssize_t n = pwrite(file->fd, file->waiting.data + done, len - done, file->bytes + (int64_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (done < len) {
        int error = errno;
        (void)!file_truncate(file->fd, file->bytes); /* if this fails, the next attempt overwrites the torn bytes */
        errno = error;
        return false;
    }
    file->bytes += (int64_t)len;
    strbuf_clear(&file->waiting);
    return true;
}

Status append_write(AppendFile *file)
{
    return write_all(file) ? OK : file_fail("write", file->path);
}

Status append_sync(AppendFile *file)
{
    TRY(append_write(file));
    return file_fsync(file->fd) == 0 ? OK : file_fail("write", file->path);
}

void append_close(AppendFile *file)
{
    if (file->fd >= 0) {
        (void)write_all(file);
        close(file->fd);
    }
    strbuf_deinit(&file->waiting);
}
