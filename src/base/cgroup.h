/* Limits that the control groups of this process set. A group's limit also holds for its descendants, so the smallest limit of the
 * process's group and its ancestors counts (Linux, admin-guide/cgroup-v2 and cgroup-v1).
 *
 * `root`: where the groups are mounted; NULL: /sys/fs/cgroup. `groups`: the file that names the process's groups; NULL: /proc/self/cgroup.
 * In a container the file `groups` may name a folder that isn't visible there: then `root` itself is the container's group. */
#pragma once

#include <stdint.h>

/* Number of cores that the CPU time quotas allow, rounded up; INT_MAX: no quota. Reads cpu.max (version 2), or cpu.cfs_quota_us and
 * cpu.cfs_period_us (version 1). */
int cgroup_quota_cores(const char *root, const char *groups);

/* Bytes of memory that are allowed; INT64_MAX: no limit. Reads memory.max (version 2) or memory.limit_in_bytes (version 1). */
int64_t cgroup_memory_limit(const char *root, const char *groups);
