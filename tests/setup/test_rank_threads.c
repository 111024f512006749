/* Teams of ranks: all ranks do their work, again and again, rank 0 on the caller's thread. If several ranks fail, the failure of the rank
 * that failed by itself is reported. */
#include "setup/rank_threads.h"

#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { RANKS = 3 };

typedef struct Job {
    atomic_int done;
    pthread_t  caller;
    int        on_caller; /* number of ranks that worked on the caller's thread */
    int        fails;     /* the rank that fails; -1: none */
    RankPlace  place[RANKS];
} Job;

static Status work(void *context, Comm *comm, RankPlace place)
{
    Job    *job = context;
    int64_t sum = place.rank;
    job->place[place.rank] = place;
    if (pthread_equal(pthread_self(), job->caller)) job->on_caller++;
    if (place.rank == job->fails) {
        comm_abort(comm, ERR_IO, "the disk is gone");
        FAIL(ERR_IO, "the disk is gone");
    }
    TRY(comm_all_reduce(comm, &sum, 1, DT_I64, COMM_SUM));
    FAIL_IF(sum != place.world * (place.world - 1) / 2, ERR_INTERNAL, "the ranks don't work together");
    job->done++;
    return OK;
}

static void all_ranks_work_in_each_round(void)
{
    RankTeam *team;
    Job       job = {.caller = pthread_self(), .fails = -1};
    EXPECT_OK(rank_team_create(RANKS, NULL, &team));
    for (int round = 1; round <= 5; round++) {
        EXPECT_OK(rank_team_run(team, work, &job, NULL));
        EXPECT_INT(job.done, RANKS * round);
        EXPECT_INT(job.on_caller, round);
    }
    for (int r = 0; r < RANKS; r++) {
        EXPECT(job.place[r].rank == r && job.place[r].world == RANKS && job.place[r].local == r && job.place[r].num_local == RANKS);
        EXPECT(job.place[r].is_first_here == (r == 0));
    }
    rank_team_destroy(team);
}

static void a_single_rank_has_no_group(void)
{
    RankTeam *team;
    Job       job = {.caller = pthread_self(), .fails = -1};
    EXPECT_OK(rank_team_create(1, NULL, &team));
    EXPECT_OK(rank_team_run(team, work, &job, NULL));
    EXPECT(job.done == 1 && job.on_caller == 1 && job.place[0].world == 1);
    rank_team_destroy(team);
}

static void the_first_failure_is_told(void)
{
    for (int fails = 0; fails < RANKS; fails++) {
        RankTeam *team;
        int       failed = -1;
        Job       job = {.caller = pthread_self(), .fails = fails};
        EXPECT_OK(rank_team_create(RANKS, NULL, &team));
        EXPECT_FAILS(rank_team_run(team, work, &job, &failed), ERR_IO, "the disk is gone");
        EXPECT_INT(failed, fails);
        job.fails = -1; /* the group has ended: later calls of each rank fail */
        EXPECT_FAILS(rank_team_run(team, work, &job, &failed), ERR_RANK, "the disk is gone");
        rank_team_destroy(team);
    }
}

static Status work_alone(void *context, Comm *comm, RankPlace place)
{
    EXPECT(!comm && place.world == 1 && place.is_first_here);
    return work(context, comm, place);
}

static void a_run_does_its_work_once(void)
{
    Config config = {.gpus = RANKS};
    Job    job = {.caller = pthread_self(), .fails = -1};
    EXPECT_OK(rank_threads_alone(&config, work, &job));
    EXPECT(job.done == RANKS && job.on_caller == 1 && job.place[2].num_local == RANKS);
    job.fails = 0;
    EXPECT_FAILS(rank_threads_alone(&config, work, &job), ERR_IO, "the disk is gone");
    config.gpus = 1;
    job.fails = -1;
    EXPECT_OK(rank_threads_alone(&config, work_alone, &job));
    EXPECT_INT(job.done, RANKS + 1);
}

TEST_MAIN(TEST(all_ranks_work_in_each_round), TEST(a_single_rank_has_no_group), TEST(the_first_failure_is_told),
          TEST(a_run_does_its_work_once))
