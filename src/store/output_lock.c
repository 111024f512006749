/* See output_lock.h. */
#include "store/output_lock.h"

#include "base/log.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME ".lock"

/* The id of the process that holds or held the lock; 0: not known, as on a full disk. */
static long holder(int fd)
{
    char    text[32] = "";
    ssize_t len = pread(fd, text, sizeof text - 1, 0);
    return len > 0 ? strtol(text, NULL, 10) : 0;
}

static Status fail_held(const char *dir, int fd)
{
    long pid = holder(fd);
    char who[48] = "another process";
    if (pid > 0) snprintf(who, sizeof who, "process %ld", pid);
    FAIL(ERR_INVALID, "output_dir %s is being written by %s; wait for its end, or name another output_dir", dir, who);
}

/* Whether the locked file still has the name `path`: the previous run may have removed it between our open and lock. */
static bool is_current(const char *path, int fd)
{
    struct stat ours, named;
    return fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

Status output_lock_take(const char *dir, int *lock)
{
    char path[4096], text[32];
    if (*lock != OUTPUT_LOCK_NONE) return OK;
    snprintf(path, sizeof path, "%s/" LOCK_NAME, dir);
    for (;;) {
        int fd = file_open(path, O_RDWR | O_CREAT);
        if (fd < 0) return file_fail("create", path);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            bool   is_held = errno == EWOULDBLOCK;
            Status status = is_held ? fail_held(dir, fd) : OK;
            if (!is_held) log_warn("%s can't be locked: %s; start no second run into this output_dir", path, strerror(errno));
            close(fd);
            return status;
        }
        if (is_current(path, fd)) {
            int len = snprintf(text, sizeof text, "%ld\n", (long)getpid());
            if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)len, 0) != len) status_clear(); /* on a full disk the file has no id */
            *lock = fd;
            return OK;
        }
        close(fd);
    }
}

bool output_lock_is_seen(const char *dir, long pid)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/" LOCK_NAME, dir);
    int fd = file_open(path, O_RDONLY);
    if (fd < 0) return false;
    long found = holder(fd);
    close(fd);
    return found == 0 || found == pid;
}

void output_lock_release(const char *dir, int *lock)
{
    char path[4096];
    if (*lock == OUTPUT_LOCK_NONE) return;
    snprintf(path, sizeof path, "%s/" LOCK_NAME, dir);
    if (is_current(path, *lock)) unlink(path);
    close(*lock);
    *lock = OUTPUT_LOCK_NONE;
}
