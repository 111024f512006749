/* Each worker has a share of the tasks, with an atomic counter from which tasks are claimed. A worker claims tasks of its own share first,
 * then of other workers' shares.
 *
 * A new job is announced by incrementing a generation number. Idle workers spin on it for some milliseconds, because the next job usually
 * follows at once and waking a core is slow (slowest in a virtual machine). Then they sleep on it as a futex. The caller never waits for a
 * worker that is still waking up: the job is closed once all tasks are claimed, and later workers don't enter it. */
#include "base/pool.h"
#include "base/avx2.h"

#include "base/c_locale.h"
#include "base/cgroup.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPINS = 1000,               /* spins before a wait yields: 10 to 50 us, longer than the serial code between two jobs of a step */
    YIELD_NS = 5 * 1000 * 1000, /* after its spins a worker yields its core repeatedly for this long, then sleeps; few waits are longer */
};

typedef struct Worker {
    _Alignas(64) int64_t next_task; /* next unclaimed task of this worker's share of the job */
    int64_t     end;                /* end of the share */
    ThreadPool *pool;
    pthread_t   thread;
    int         index;
} Worker;

struct ThreadPool {
    int      num_workers;
    bool     watches; /* idle workers spin; false if there are more workers than cores: spinning would take cores from busy workers */
    PoolTask task;
    void    *context;
    int      num_shares; /* shares of the current job, one for each of the first workers */
    bool     stopping;
    _Alignas(64) uint32_t generation; /* number of the current job; futex */
    uint32_t sleepers;
    _Alignas(64) uint32_t active; /* workers inside the job, without the caller; futex */
    uint32_t caller_sleeps;
    bool     open; /* the job may be entered; a worker increments `active` before it checks this and reads the job's fields */
    Worker   workers[];
};

static void futex_wait(uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Spins for a while; returns whether *word changed from `value` meanwhile. */
static bool watch_change(const uint32_t *word, uint32_t value)
{
    for (int i = 0; i < SPINS; i++) {
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return true;
        _mm_pause();
    }
    for (int64_t end = now_ns() + YIELD_NS; now_ns() < end; sched_yield())
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return true;
    return false;
}

/* Waits until *word differs from `value`. *sleepers counts the threads that only a system call can wake. Sequential consistency orders
 * "count as sleeper, then read the word" against the waker's "change the word, then read sleepers". */
static void wait_change(uint32_t *word, uint32_t value, uint32_t *sleepers, bool watches)
{
    if (watches && watch_change(word, value)) return;
    __atomic_fetch_add(sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) futex_wait(word, value);
    __atomic_fetch_sub(sleepers, 1, __ATOMIC_SEQ_CST);
}

static void work(ThreadPool *pool, int worker)
{
    for (int i = 0; i < pool->num_shares; i++) {
        Worker *share = &pool->workers[(worker + i) % pool->num_shares];
        while (__atomic_load_n(&share->next_task, __ATOMIC_RELAXED) < share->end) {
            int64_t task = __atomic_fetch_add(&share->next_task, 1, __ATOMIC_RELAXED);
            if (task < share->end) pool->task(pool->context, task, worker);
        }
    }
}

static void *worker_main(void *argument)
{
    Worker     *worker = argument;
    ThreadPool *pool = worker->pool;
    for (uint32_t seen = 0;;) {
        wait_change(&pool->generation, seen, &pool->sleepers, pool->watches);
        seen = __atomic_load_n(&pool->generation, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&pool->stopping, __ATOMIC_ACQUIRE)) return NULL;
        __atomic_fetch_add(&pool->active, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&pool->open, __ATOMIC_SEQ_CST)) work(pool, worker->index);
        if (__atomic_sub_fetch(&pool->active, 1, __ATOMIC_SEQ_CST) == 0 && __atomic_load_n(&pool->caller_sleeps, __ATOMIC_SEQ_CST))
            futex_wake(&pool->active);
    }
}

static void announce(ThreadPool *pool)
{
    __atomic_fetch_add(&pool->generation, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool->sleepers, __ATOMIC_SEQ_CST)) futex_wake(&pool->generation);
}

int pool_usable_cores(void)
{
    cpu_set_t set;
    long      online = sysconf(_SC_NPROCESSORS_ONLN);
    int       cores = online > 0 ? (int)online : 1, quota = cgroup_quota_cores(NULL, NULL);
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    return cores < quota ? cores : quota;
}

Status pool_create(int num_workers, ThreadPool **out_pool)
{
    int cores = pool_usable_cores();
    if (num_workers == 0) num_workers = cores < POOL_MOST_WORKERS ? cores : POOL_MOST_WORKERS;
    FAIL_IF(num_workers < 0 || num_workers > POOL_MOST_WORKERS, ERR_INVALID, "%d threads asked for, expected 1 to %d", num_workers,
            POOL_MOST_WORKERS);
    size_t      bytes = sizeof(ThreadPool) + (size_t)num_workers * sizeof(Worker);
    ThreadPool *pool = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!pool) fatal_out_of_memory(bytes);
    memset(pool, 0, bytes);
    pool->num_workers = 1;
    pool->watches = num_workers <= cores;
    for (int i = 1; i < num_workers; i++) {
        Worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        int error = c_locale_thread(&worker->thread, worker_main, worker);
        if (error) {
            pool_destroy(pool);
            FAIL(ERR_IO, "cannot start thread %d of %d: %s; ask for fewer with threads=N", i + 1, num_workers, strerror(error));
        }
        pool->num_workers = i + 1;
    }
    *out_pool = pool;
    return OK;
}

void pool_destroy(ThreadPool *pool)
{
    if (!pool) return;
    __atomic_store_n(&pool->stopping, true, __ATOMIC_RELEASE);
    announce(pool);
    for (int i = 1; i < pool->num_workers; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool);
}

int pool_num_workers(const ThreadPool *pool)
{
    return pool ? pool->num_workers : 1;
}

static void run(ThreadPool *pool, int num_shares, int64_t num_tasks, PoolTask task, void *context)
{
    if (!pool || pool->num_workers == 1 || num_tasks <= 1) {
        for (int64_t i = 0; i < num_tasks; i++) task(context, i, 0);
        return;
    }
    pool->task = task;
    pool->context = context;
    pool->num_shares = num_shares;
    for (int i = 0; i < num_shares; i++) {
        pool->workers[i].end = num_tasks * (i + 1) / num_shares;
        __atomic_store_n(&pool->workers[i].next_task, num_tasks * i / num_shares, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&pool->open, true, __ATOMIC_SEQ_CST);
    announce(pool);
    work(pool, 0);
    __atomic_store_n(&pool->open, false, __ATOMIC_SEQ_CST);
    uint32_t left;
    while ((left = __atomic_load_n(&pool->active, __ATOMIC_SEQ_CST)) != 0)
        wait_change(&pool->active, left, &pool->caller_sleeps, pool->watches);
}

void pool_run(ThreadPool *pool, int64_t num_tasks, PoolTask task, void *context)
{
    run(pool, pool_num_workers(pool), num_tasks, task, context);
}

void pool_run_in_order(ThreadPool *pool, int64_t num_tasks, PoolTask task, void *context)
{
    run(pool, 1, num_tasks, task, context);
}
