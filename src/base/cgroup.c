#include "base/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads one limit from the folder of a control group; INT64_MAX: no limit. */
typedef int64_t (*LimitFn)(const char *dir);

/* Reads up to `most` numbers from the beginning of file `name` in `dir`; returns how many it read. */
static int read_numbers(const char *dir, const char *name, int most, long long *out)
{
    char path[PATH_MAX];
    int  count = 0;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return 0;
    FILE *file = fopen(path, "re");
    while (file && count < most && fscanf(file, "%lld", &out[count]) == 1) count++;
    if (file) fclose(file);
    return count;
}

static int64_t quota_of(const char *dir)
{
    long long of[2]; /* [0] CPU time in us per period, [1] period in us */
    bool      known = read_numbers(dir, "cpu.max", 2, of) == 2 ||
                 (read_numbers(dir, "cpu.cfs_quota_us", 1, &of[0]) && read_numbers(dir, "cpu.cfs_period_us", 1, &of[1]));
    if (!known || of[0] <= 0 || of[1] <= 0) return INT64_MAX;
    return of[0] / of[1] + (of[0] % of[1] > 0);
}

static int64_t memory_of(const char *dir)
{
    long long limit;
    bool      known = read_numbers(dir, "memory.max", 1, &limit) || read_numbers(dir, "memory.limit_in_bytes", 1, &limit);
    return known && limit > 0 ? limit : INT64_MAX;
}

/* The smallest limit of a group and its ancestors, up to the mount point. `path` begins with a slash. */
static int64_t least_above(const char *mount, const char *path, LimitFn limit_of)
{
    char    dir[PATH_MAX];
    size_t  root = strlen(mount);
    int64_t least = INT64_MAX;
    if (snprintf(dir, sizeof dir, "%s%s", mount, strstr(path, "/..") ? "" : path) >= (int)sizeof dir) return limit_of(mount);
    for (;;) {
        int64_t limit = limit_of(dir);
        if (limit < least) least = limit;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < root) return least;
        *slash = 0;
    }
}

static bool has_controller(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ',')) return true;
    return false;
}

/* Parses one line of the process's groups file, "ID:CONTROLLERS:PATH"; in version 2 CONTROLLERS is empty. */
static int64_t least_of_line(char *line, const char *root, const char *controller, LimitFn limit_of)
{
    char  mount[PATH_MAX];
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) return INT64_MAX;
    *path++ = 0;
    path[strcspn(path, "\n")] = 0;
    if (list[1] == 0) return least_above(root, path, limit_of);
    if (!has_controller(list + 1, controller)) return INT64_MAX;
    int64_t least = INT64_MAX;
    for (int i = 0; i < 2; i++) { /* "cpu,cpuacct" may be mounted under that name, under "cpu", or under both */
        if (snprintf(mount, sizeof mount, "%s/%s", root, i ? controller : list + 1) >= (int)sizeof mount) continue;
        int64_t limit = least_above(mount, path, limit_of);
        if (limit < least) least = limit;
    }
    return least;
}

static int64_t least_limit(const char *root, const char *groups, const char *controller, LimitFn limit_of)
{
    char mount[PATH_MAX];
    if (!root) root = "/sys/fs/cgroup";
    snprintf(mount, sizeof mount, "%s/%s", root, controller);
    int64_t least = limit_of(root), other = limit_of(mount);
    if (other < least) least = other;
    FILE  *file = fopen(groups ? groups : "/proc/self/cgroup", "re");
    char  *line = NULL;
    size_t room = 0;
    while (file && getline(&line, &room, file) > 0) {
        other = least_of_line(line, root, controller, limit_of);
        if (other < least) least = other;
    }
    free(line);
    if (file) fclose(file);
    return least;
}

int cgroup_quota_cores(const char *root, const char *groups)
{
    int64_t cores = least_limit(root, groups, "cpu", quota_of);
    return cores < INT_MAX ? (int)cores : INT_MAX;
}

int64_t cgroup_memory_limit(const char *root, const char *groups)
{
    return least_limit(root, groups, "memory", memory_of);
}
