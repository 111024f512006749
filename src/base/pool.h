/* ThreadPool: runs the tasks of one job at a time, fork-join. Which worker runs a task is not fixed, so a task's result
 * must depend on its index alone: that is what makes results independent of the number of threads. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct ThreadPool ThreadPool;

enum { POOL_MOST_WORKERS = 1024 };

/* task: in [0, num_tasks). worker: in [0, pool_num_workers), for indexing scratch memory per worker. */
typedef void (*PoolTask)(void *context, int64_t task, int worker);

/* num_workers includes the calling thread; 0: pool_usable_cores(). */
NODISCARD Status pool_create(int num_workers, ThreadPool **out_pool);

/* Number of cores that this process may use, limited by the CPU quotas of its control groups. */
int pool_usable_cores(void);

void pool_destroy(ThreadPool *pool);
int  pool_num_workers(const ThreadPool *pool); /* 1 if pool is NULL */

/* Runs tasks 0..num_tasks-1 and returns when all are done. The calling thread works too. If pool is NULL, the tasks run in the calling
 * thread, in order. Not re-entrant: a task must not call pool_run on its own pool. Doesn't allocate. */
void pool_run(ThreadPool *pool, int64_t num_tasks, PoolTask task, void *context);

/* As pool_run, but tasks are started in order of their index. In pool_run each worker begins with its own share of adjacent tasks: so from
 * job to job it mostly works on the same rows of tensors, which are in its caches. */
void pool_run_in_order(ThreadPool *pool, int64_t num_tasks, PoolTask task, void *context);
