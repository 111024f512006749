/* Only one run at a time writes an output folder: it locks a file there. The kernel releases the lock however the run ends. */
#pragma once

#include "base/status.h"

enum { OUTPUT_LOCK_NONE = -1 };

/* *lock: OUTPUT_LOCK_NONE, or the lock that an earlier call took on this folder; then nothing changes. ERR_INVALID names the process that
 * holds the lock. If the file system has no locks, the function only warns. The folder must exist. */
NODISCARD Status output_lock_take(const char *dir, int *lock);

/* Whether `dir`, as this host sees it, is the folder that process `pid` has locked. The process may be on another host. */
bool output_lock_is_seen(const char *dir, long pid);

/* Removes the lock file and releases the lock. */
void output_lock_release(const char *dir, int *lock);
