/* ThreadPool: runs the tasks of one job at a time, fork-join. Which worker runs a task is not fixed, so a task's result
 * must depend on its index alone: that is what makes results independent of the number of threads. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct ThreadPool ThreadPool;

enum { POOL_MOST_WORKERS = 1024 };

/* task in [0, num_tasks); worker in [0, pool_num_workers), for scratch memory of its own. */
typedef void (*PoolTask)(void *context, int64_t task, int worker);

/* num_workers counts the calling thread; 0: the cores this process may use. */
NODISCARD Status pool_create(int num_workers, ThreadPool **out_pool);

/* That this process may use, at most what the quotas of time of its control groups make up. */
int pool_usable_cores(void);

void pool_destroy(ThreadPool *pool);
int  pool_num_workers(const ThreadPool *pool); /* 1 for NULL */

/* Runs tasks 0..num_tasks-1 and returns when all are done. The caller works too. pool may be NULL: runs here, in order.
 * Not re-entrant: a task must not call pool_run on its own pool. Allocates nothing. */
void pool_run(ThreadPool *pool, int64_t num_tasks, PoolTask task, void *context);

/* The same, but tasks are taken in their order. In pool_run each worker begins with a share of tasks that lie side by side: from job to job
 * it has mostly the same rows of tensors, which are in its caches. */
void pool_run_in_order(ThreadPool *pool, int64_t num_tasks, PoolTask task, void *context);
