/* One run at a time writes an output folder: a file in it is locked, which the kernel undoes however the run ends. */
#pragma once

#include "base/status.h"

enum { OUTPUT_LOCK_NONE = -1 };

/* *lock: OUTPUT_LOCK_NONE, or the lock that an earlier call took on the same folder, which is kept. ERR_INVALID names the process that
 * holds the lock. A file system without locks is a warning. The folder must be there. */
NODISCARD Status output_lock_take(const char *dir, int *lock);

/* Whether `dir` is, as seen from here, the folder that process `pid`, of this host or another, took the lock of. */
bool output_lock_is_seen(const char *dir, long pid);

/* Removes the file. */
void output_lock_release(const char *dir, int *lock);
