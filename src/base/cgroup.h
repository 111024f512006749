/* What the control groups of this process leave it: a group's limit holds for all below it, so the least of its own and of those above
 * counts (Linux, admin-guide/cgroup-v2 and cgroup-v1).
 *
 * `root`: where groups are mounted; NULL: /sys/fs/cgroup. `groups`: the file that names the process's; NULL: /proc/self/cgroup. In a
 * container it may name a folder that isn't seen there: then `root` itself is the container's group. */
#pragma once

#include <stdint.h>

/* Cores that the quotas of time make up, rounded up; INT_MAX without one. Of version 2 cpu.max is read, of version 1 cpu.cfs_quota_us and
 * cpu.cfs_period_us. */
int cgroup_quota_cores(const char *root, const char *groups);

/* Bytes of memory; INT64_MAX without a limit. Of version 2 memory.max is read, of version 1 memory.limit_in_bytes. */
int64_t cgroup_memory_limit(const char *root, const char *groups);
