/* Ranks that are threads, and ranks that meet over TCP as processes do (mostly threads in this test too, which share only the sockets).
 * Checks the results of collectives, with the same bits every time, and that one failure ends all ranks at once, wherever it happens. */
#include "comm/comm.h"
#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 8, MOST_COUNT = 5000 };

/* ---- a group of threads, each running the same function ---- */

typedef struct Team Team;
typedef struct Member {
    Team     *team;
    Comm     *comm;
    int       rank;
    Status    status;
    char      message[512];
    pthread_t thread;
} Member;

struct Team {
    int size;
    Status (*run)(Member *member);
    uint64_t seed;
    int      culprit, moment; /* the rank that fails, and when */
    int      port, listener;  /* port and listening socket on which ranks meet */
    void (*change)(Member *member, CommMeeting *meeting);
    const CommLimits *limits;
    Member            members[MOST];
};

#define SECRET "sixteen letters, or more"

static bool over_sockets; /* true: teams use the TCP backend; false: threads */

/* Listens on a free port. Returns the socket. */
static int listen_somewhere(int *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t          size = sizeof address;
    int                fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 64) != 0) perror("listen");
    getsockname(fd, (struct sockaddr *)&address, &size);
    *out_port = ntohs(address.sin_port);
    return fd;
}

static Status member_run(Member *member)
{
    Team       *team = member->team;
    CommMeeting meeting = {.port = team->port, .rank = member->rank, .world_size = team->size, .secret = SECRET, .timeout = 30};
    if (over_sockets) {
        meeting.listener = member->rank == 0 ? team->listener : 0;
        if (team->change) team->change(member, &meeting);
        TRY(comm_meet(&meeting, team->limits, &member->comm));
    }
    EXPECT_INT(comm_rank(member->comm), member->rank);
    EXPECT_INT(comm_size(member->comm), team->size);
    return team->run(member);
}

static void *member_main(void *argument)
{
    Member *member = argument;
    member->status = member_run(member);
    snprintf(member->message, sizeof member->message, "%s", member->status == OK ? "" : status_message());
    comm_destroy(member->comm);
    return NULL;
}

static void team_run(Team *team, const CommLimits *limits)
{
    Comm *comms[MOST] = {0};
    team->limits = limits;
    if (over_sockets)
        team->listener = listen_somewhere(&team->port);
    else
        EXPECT_OK(comm_threads_create(team->size, limits, comms));
    for (int r = 0; r < team->size; r++) {
        team->members[r] = (Member){.team = team, .comm = comms[r], .rank = r};
        EXPECT(pthread_create(&team->members[r].thread, NULL, member_main, &team->members[r]) == 0);
    }
    for (int r = 0; r < team->size; r++) pthread_join(team->members[r].thread, NULL);
}

static uint32_t draw(uint64_t seed, uint64_t at)
{
    uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15u + at * 0xBF58476D1CE4E5B9u;
    x ^= x >> 31;
    x *= 0x94D049BB133111EBu;
    return (uint32_t)((x ^ x >> 29) >> 16);
}

/* ---- what collectives give ---- */

static const DType dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_I32, DT_I64};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static bool is_whole(DType dtype)
{
    return dtype == DT_I32 || dtype == DT_I64;
}

/* Element i of rank r's data in this round: every rank can compute it. */
static double element(uint64_t seed, int rank, int64_t i, DType dtype)
{
    uint32_t bits = draw(seed ^ (uint64_t)rank << 32, (uint64_t)i);
    if (is_whole(dtype)) return (double)(int32_t)bits;
    float value = (float)(int32_t)bits * 0x1p-28f;
    char  code[4];
    dtype_convert(code, dtype, &value, DT_F32, 1);
    dtype_convert(&value, DT_F32, code, dtype, 1);
    return value;
}

static void fill(void *data, uint64_t seed, int rank, int64_t count, DType dtype)
{
    for (int64_t i = 0; i < count; i++) {
        double x = element(seed, rank, i, dtype);
        float  value = (float)x;
        if (dtype == DT_I32)
            ((int32_t *)data)[i] = (int32_t)x;
        else if (dtype == DT_I64)
            ((int64_t *)data)[i] = (int64_t)x;
        else
            dtype_convert((char *)data + dtype_bytes(dtype, i), dtype, &value, DT_F32, 1);
    }
}

/* Computes the expected result of reducing element i, added in rank order, into `code`. */
static void expected(uint64_t seed, int size, int64_t i, DType dtype, CommReduce reduce, void *code)
{
    float   sum = 0;
    int64_t whole = 0;
    for (int r = 0; r < size; r++) {
        double x = element(seed, r, i, dtype);
        if (reduce == COMM_MAX) {
            sum = r == 0 || (float)x > sum ? (float)x : sum;
            whole = r == 0 || (int64_t)x > whole ? (int64_t)x : whole;
        } else {
            sum = r == 0 ? (float)x : sum + (float)x;
            whole += is_whole(dtype) ? (int64_t)x : 0;
        }
    }
    int32_t low = (int32_t)whole;
    if (dtype == DT_I64)
        memcpy(code, &whole, 8);
    else if (dtype == DT_I32)
        memcpy(code, &low, 4);
    else
        dtype_convert(code, dtype, &sum, DT_F32, 1);
}

static void compare(const void *got, uint64_t seed, int size, int64_t from, int64_t count, DType dtype, CommReduce reduce)
{
    size_t bytes = (size_t)dtype_bytes(dtype, 1);
    for (int64_t i = 0; i < count; i++) {
        char want[8];
        expected(seed, size, from + i, dtype, reduce, want);
        if (memcmp((const char *)got + (size_t)i * bytes, want, bytes) == 0) continue;
        test_fail(__FILE__, __LINE__, "element %lld of %d ranks' %s differs", (long long)(from + i), size, dtype_info(dtype)->name);
        return;
    }
}

static Status one_reduction(Member *member, uint64_t seed, int64_t count, DType dtype, CommReduce reduce, bool in_place)
{
    int   size = member->team->size;
    char *send = malloc((size_t)size * MOST_COUNT * 8), *recv = malloc(MOST_COUNT * 8);
    char *place = in_place ? send + dtype_bytes(dtype, member->rank * count) : recv;
    fill(send, seed, member->rank, size * count, dtype);
    Status status = comm_reduce_scatter(member->comm, send, place, count, dtype, reduce);
    if (status == OK) compare(place, seed, size, member->rank * count, count, dtype, reduce);
    fill(recv, seed, member->rank, count, dtype);
    if (status == OK) status = comm_all_reduce(member->comm, recv, count, dtype, reduce);
    if (status == OK) compare(recv, seed, size, 0, count, dtype, reduce);
    free(send);
    free(recv);
    return status;
}

static Status one_exchange(Member *member, uint64_t seed, int64_t bytes, bool in_place)
{
    int      size = member->team->size, root = (int)(draw(seed, 7) % (uint32_t)size);
    uint8_t *all = malloc((size_t)size * MOST_COUNT), *send = malloc(MOST_COUNT);
    uint8_t *mine = in_place ? all + member->rank * bytes : send;
    for (int64_t i = 0; i < bytes; i++) mine[i] = (uint8_t)draw(seed ^ (uint64_t)member->rank << 32, (uint64_t)i);
    Status status = comm_all_gather(member->comm, mine, all, (size_t)bytes);
    int    wrong = 0;
    for (int r = 0; r < size && status == OK; r++)
        for (int64_t i = 0; i < bytes; i++) wrong += all[r * bytes + i] != (uint8_t)draw(seed ^ (uint64_t)r << 32, (uint64_t)i);
    for (int64_t i = 0; i < bytes; i++) send[i] = (uint8_t)draw(seed ^ (uint64_t)member->rank << 32, (uint64_t)i);
    if (status == OK) status = comm_broadcast(member->comm, root, send, (size_t)bytes);
    for (int64_t i = 0; i < bytes && status == OK; i++) wrong += send[i] != (uint8_t)draw(seed ^ (uint64_t)root << 32, (uint64_t)i);
    if (wrong) test_fail(__FILE__, __LINE__, "%d bytes of %lld gathered or broadcast are wrong", wrong, (long long)bytes);
    free(all);
    free(send);
    return status;
}

static Status many_collectives(Member *member)
{
    for (int round = 0; round < 60; round++) {
        uint64_t   seed = member->team->seed + (uint64_t)round;
        int64_t    count = round % 7 == 0 ? (int64_t)(draw(seed, 0) % 3) : (int64_t)(draw(seed, 0) % MOST_COUNT);
        DType      dtype = dtypes[draw(seed, 1) % NUM_DTYPES];
        CommReduce reduce = draw(seed, 2) % 3 ? COMM_SUM : COMM_MAX;
        comm_beat(member->comm, round % 2 ? "odd" : "even");
        TRY(one_reduction(member, seed, count, dtype, reduce, draw(seed, 3) % 2));
        TRY(one_exchange(member, seed, count, draw(seed, 4) % 2));
        TRY(comm_barrier(member->comm));
    }
    return comm_check(member->comm);
}

static void collectives_of_1_to_8_ranks_give_the_plain_sums(void)
{
    for (int size = 1; size <= MOST; size += over_sockets ? 3 : 1) {
        Team team = {.size = size, .run = many_collectives, .seed = 100u * (unsigned)size};
        team_run(&team, NULL);
        for (int r = 0; r < size; r++)
            if (team.members[r].status != OK) test_fail(__FILE__, __LINE__, "rank %d of %d: %s", r, size, team.members[r].message);
    }
}

static void no_comm_is_one_rank(void)
{
    float data[3] = {1, 2, 3}, other[3] = {0};
    EXPECT_INT(comm_size(NULL), 1);
    EXPECT_INT(comm_rank(NULL), 0);
    EXPECT_OK(comm_barrier(NULL));
    EXPECT_OK(comm_all_gather(NULL, data, other, sizeof data));
    EXPECT(memcmp(data, other, sizeof data) == 0);
    EXPECT_OK(comm_all_reduce(NULL, data, 3, DT_F32, COMM_SUM));
    EXPECT_OK(comm_reduce_scatter(NULL, data, other, 3, DT_F32, COMM_SUM));
    EXPECT(memcmp(data, other, sizeof data) == 0 && data[2] == 3);
    EXPECT_FAILS(comm_broadcast(NULL, 1, data, 4), ERR_INVALID, "rank 1 of 1");
    EXPECT_FAILS(comm_all_reduce(NULL, data, 3, DT_U8, COMM_SUM), ERR_UNSUPPORTED, "u8");
    comm_abort(NULL, ERR_IO, "nothing");
    comm_beat(NULL, "nothing");
    EXPECT_OK(comm_check(NULL));
}

static Status maximum_of_nan(Member *member)
{
    float data[2] = {(float)member->rank, (float)member->rank};
    if (member->rank == member->team->culprit) data[1] = NAN;
    TRY(comm_all_reduce(member->comm, data, 2, DT_F32, COMM_MAX));
    EXPECT(data[0] == (float)(member->team->size - 1));
    EXPECT(isnan(data[1]));
    return OK;
}

static void a_nan_on_any_rank_is_the_maximum(void)
{
    for (int culprit = 0; culprit < 4; culprit++) {
        Team team = {.size = 4, .run = maximum_of_nan, .culprit = culprit};
        team_run(&team, NULL);
        for (int r = 0; r < 4; r++) EXPECT_INT(team.members[r].status, OK);
    }
}

/* ---- failing together ---- */

static void expect_all_named(const Team *team, Status status, const char *part)
{
    for (int r = 0; r < team->size; r++)
        if (r != team->culprit && (team->members[r].status != status || !strstr(team->members[r].message, part)))
            test_fail(__FILE__, __LINE__, "rank %d of %d ended with %s \"%s\", expected %s \"...%s...\"", r, team->size,
                      test_status_names[team->members[r].status], team->members[r].message, test_status_names[status], part);
}

static Status fails_at_a_moment(Member *member)
{
    Team *team = member->team;
    float data[64];
    for (int i = 0;; i++) {
        if (member->rank == team->culprit && i == team->moment) {
            comm_abort(member->comm, ERR_NO_FIT, "the disk is full");
            EXPECT_FAILS(comm_barrier(member->comm), ERR_RANK, "the disk is full");
            EXPECT_INT(comm_cause(member->comm), ERR_NO_FIT);
            FAIL(ERR_NO_FIT, "own failure");
        }
        for (int k = 0; k < 64; k++) data[k] = (float)k;
        if (i % 3 == 0) TRY(comm_barrier(member->comm));
        if (i % 3 == 1) TRY(comm_all_reduce(member->comm, data, 64, DT_F32, COMM_SUM));
        if (i % 3 == 2) TRY(comm_broadcast(member->comm, i % team->size, data, sizeof data));
    }
}

static void a_failure_at_any_moment_ends_all_and_is_named(void)
{
    for (int turn = 0; turn < (over_sockets ? 20 : 200); turn++) {
        uint64_t seed = 5000u + (unsigned)turn;
        Team     team = {.size = 2 + (int)(draw(seed, 0) % (MOST - 1)), .run = fails_at_a_moment, .moment = (int)(draw(seed, 1) % 30)};
        char     part[64];
        team.culprit = (int)(draw(seed, 2) % (uint32_t)team.size);
        team_run(&team, NULL);
        snprintf(part, sizeof part, "rank %d: the disk is full", team.culprit);
        expect_all_named(&team, ERR_RANK, part);
        EXPECT_INT(team.members[team.culprit].status, ERR_NO_FIT);
    }
}

/* Several ranks fail: all ranks name the same one, whichever failed first. */
static Status many_fail(Member *member)
{
    char why[32];
    for (int i = 0; i < 5; i++) TRY(comm_barrier(member->comm));
    snprintf(why, sizeof why, "%d's own", member->rank);
    if (member->rank % 2) comm_abort(member->comm, ERR_IO, why);
    return comm_barrier(member->comm);
}

static void of_several_failures_one_is_named_by_all(void)
{
    for (int turn = 0; turn < 50 && !over_sockets; turn++) {
        Team team = {.size = MOST, .run = many_fail, .culprit = -1};
        team_run(&team, NULL);
        expect_all_named(&team, ERR_RANK, "'s own");
        expect_all_named(&team, ERR_RANK, team.members[0].message);
    }
}

static Status leaves_early(Member *member)
{
    TRY(comm_barrier(member->comm));
    return member->rank == member->team->culprit ? OK : comm_barrier(member->comm);
}

static void a_rank_that_leaves_early_is_named(void)
{
    Team team = {.size = 4, .run = leaves_early, .culprit = 2};
    team_run(&team, NULL);
    expect_all_named(&team, ERR_RANK, "rank 2: it has left");
}

static Status calls_another(Member *member)
{
    int64_t data[MOST] = {0};
    TRY(comm_barrier(member->comm));
    if (member->rank == member->team->culprit) return comm_broadcast(member->comm, 0, data, 16);
    return comm_all_gather(member->comm, &data[member->rank], data, 8);
}

static void calls_that_do_not_match_are_named(void)
{
    Team team = {.size = 3, .run = calls_another, .culprit = 1};
    team_run(&team, NULL);
    expect_all_named(&team, ERR_RANK, "rank 1: it calls broadcast of 16 bytes from rank 0, rank 0 calls all_gather of 8 bytes");
    EXPECT_INT(team.members[1].status, ERR_RANK);
}

static Status stands_still(Member *member)
{
    comm_beat(member->comm, "saving");
    TRY(comm_barrier(member->comm));
    if (member->rank != member->team->culprit) return comm_barrier(member->comm);
    while (comm_check(member->comm) == OK) usleep(10000);
    return comm_check(member->comm);
}

static void a_rank_that_stands_still_is_named_and_ends_all(void)
{
    Team team = {.size = 3, .run = stands_still, .culprit = 1};
    team_run(&team, &(CommLimits){.progress = 0.3, .grace = 0.2});
    team.culprit = -1;
    expect_all_named(&team, ERR_RANK, "rank 1: no progress for ");
    expect_all_named(&team, ERR_RANK, "in phase saving");
}

/* In total, the rank takes longer than the limit for ranks that were never slow. But each of its steps takes only as long as the step
 * before, so the other ranks wait for it. */
static Status is_slow_and_moves(Member *member)
{
    comm_beat(member->comm, "slow");
    for (int i = 0; i < 24; i++) {
        if (member->rank == member->team->culprit) usleep(100000u);
        comm_beat(member->comm, "slow");
    }
    return comm_barrier(member->comm);
}

static void a_rank_that_is_slow_but_moves_is_waited_for(void)
{
    Team team = {.size = 3, .run = is_slow_and_moves, .culprit = 2};
    team_run(&team, &(CommLimits){.progress = 2, .grace = 0.2});
    for (int r = 0; r < 3; r++) EXPECT_INT(team.members[r].status, OK);
}

static atomic_int told;

static void tell(void *context)
{
    atomic_fetch_add(&told, *(int *)context);
}

/* A rank that waits in its device's collective isn't in a call of comm: the function given to on_end wakes it. */
static Status waits_elsewhere(Member *member)
{
    static int one = 1, none = 1000; /* static: if the barrier fails, `tell` may read them after this function returned */
    comm_on_end(member->comm, tell, &none);
    comm_on_end(member->comm, tell, &one);
    TRY(comm_barrier(member->comm));
    if (member->rank == member->team->culprit) comm_abort(member->comm, ERR_IO, "a cable");
    while (atomic_load(&told) < member->team->size) usleep(1000);
    comm_on_end(member->comm, NULL, NULL);
    return comm_check(member->comm);
}

static void on_end_wakes_every_rank_once(void)
{
    for (int turn = 0; turn < (over_sockets ? 3 : 20); turn++) {
        Team team = {.size = 5, .run = waits_elsewhere, .culprit = turn % 5};
        atomic_store(&told, 0);
        team_run(&team, NULL);
        EXPECT_INT(atomic_load(&told), 5);
        team.culprit = -1;
        expect_all_named(&team, ERR_RANK, ": a cable");
    }
}

static void sizes_are_checked(void)
{
    Comm *comm = NULL;
    EXPECT_FAILS(comm_threads_create(0, NULL, &comm), ERR_INVALID, "0 ranks");
    EXPECT_FAILS(comm_threads_create(COMM_MOST_RANKS + 1, NULL, &comm), ERR_INVALID, "expected 1 to 1024");
}

/* ---- processes ---- */

static void every_case_over_sockets(void)
{
    over_sockets = true;
    collectives_of_1_to_8_ranks_give_the_plain_sums();
    a_nan_on_any_rank_is_the_maximum();
    a_failure_at_any_moment_ends_all_and_is_named();
    a_rank_that_leaves_early_is_named();
    calls_that_do_not_match_are_named();
    a_rank_that_stands_still_is_named_and_ends_all();
    a_rank_that_is_slow_but_moves_is_waited_for();
    on_end_wakes_every_rank_once();
    over_sockets = false;
}

static Status only_meets(Member *member)
{
    return comm_barrier(member->comm);
}

static void has_another_secret(Member *member, CommMeeting *meeting)
{
    if (member->rank == member->team->culprit) meeting->secret = "some other letters, as many";
}

static void has_another_size(Member *member, CommMeeting *meeting)
{
    if (member->rank == member->team->culprit) meeting->world_size++;
}

static void has_another_program(Member *member, CommMeeting *meeting)
{
    meeting->agreed = member->rank == member->team->culprit ? 7 : 8;
}

static void says_it_is_1(Member *member, CommMeeting *meeting)
{
    if (member->rank) meeting->rank = 1;
}

static void does_not_come(Member *member, CommMeeting *meeting)
{
    meeting->timeout = 1;
    if (member->rank == member->team->culprit) meeting->port = 1, meeting->timeout = 0.1;
}

static void meetings_that_fail_are_named_on_every_rank(void)
{
    static const struct {
        void (*change)(Member *member, CommMeeting *meeting);
        const char *part;
    } cases[] = {{has_another_secret, "another secret"},
                 {has_another_size, "world_size"},
                 {has_another_program, "rank 2 runs something else than rank 0"},
                 {says_it_is_1, "two processes say that they are rank 1"},
                 {does_not_come, "1 of 3 ranks didn't come within 1 s: 2"}};
    over_sockets = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Team team = {.size = 3, .run = only_meets, .culprit = 2, .change = cases[i].change};
        team_run(&team, NULL);
        for (int r = 0; r < 3; r++) {
            const Member *member = &team.members[r];
            if (cases[i].change == does_not_come && r == 2) continue;
            if (member->status != ERR_INVALID || !strstr(member->message, cases[i].part))
                test_fail(__FILE__, __LINE__, "case %zu, rank %d: %s \"%s\"", i, r, test_status_names[member->status], member->message);
            EXPECT(!strstr(member->message, SECRET));
        }
    }
    over_sockets = false;
}

static void a_port_in_use_is_named(void)
{
    int         port, fd = listen_somewhere(&port);
    Comm       *comm;
    CommMeeting meeting = {.port = port, .world_size = 2, .secret = SECRET};
    EXPECT_FAILS(comm_meet(&meeting, NULL, &comm), ERR_INVALID, "is in use");
    meeting.rank = 2;
    EXPECT_FAILS(comm_meet(&meeting, NULL, &comm), ERR_INVALID, "rank is 2");
    meeting.rank = 0, meeting.secret = "short";
    EXPECT_FAILS(comm_meet(&meeting, NULL, &comm), ERR_INVALID, "at least 16");
    meeting.secret = SECRET, meeting.port = 70000;
    EXPECT_FAILS(comm_meet(&meeting, NULL, &comm), ERR_INVALID, "port 70000");
    meeting.port = port, meeting.host = "no.such.host.invalid";
    EXPECT_FAILS(comm_meet(&meeting, NULL, &comm), ERR_INVALID, "isn't a host");
    close(fd);
}

/* Forks two processes: rank 0, with these limits on open files, and one with all other ranks. part: text expected in rank 0's message; "":
 * all ranks meet. */
static void meet_with_limits(rlim_t soft, rlim_t hard, const char *part)
{
    enum { RANKS = 60 };
    int   port, listener = listen_somewhere(&port), pipes[2], status = 0;
    char  text[1024] = "";
    pid_t host, guests;
    if (pipe(pipes) != 0) return;
    CommMeeting meeting = {.port = port, .world_size = RANKS, .secret = SECRET, .timeout = 20};
    if ((host = fork()) == 0) {
        Comm *comm = NULL;
        EXPECT_INT(setrlimit(RLIMIT_NOFILE, &(struct rlimit){soft, hard}), 0);
        meeting.listener = listener;
        bool is_met = comm_meet(&meeting, NULL, &comm) == OK;
        if (write(pipes[1], status_message(), strlen(status_message()) + 1) < 0) _exit(1);
        comm_destroy(comm);
        _exit(!is_met);
    }
    if ((guests = fork()) == 0) {
        Comm *comms[RANKS] = {0};
        meeting.rank = 1;
        Status met = comm_meet_several(&meeting, NULL, RANKS - 1, comms);
        for (int r = 0; r < RANKS - 1 && met == OK; r++) comm_destroy(comms[r]);
        _exit(0);
    }
    close(listener);
    waitpid(host, &status, 0);
    if (read(pipes[0], text, sizeof text - 1) < 0) text[0] = 0;
    EXPECT_INT(WEXITSTATUS(status), *part != 0);
    EXPECT_CONTAINS(text, part);
    kill(guests, SIGKILL);
    waitpid(guests, &status, 0);
    close(pipes[0]);
    close(pipes[1]);
}

/* Rank 0 has two connections to every other rank. */
static void more_ranks_than_open_files_are_told(void)
{
    meet_with_limits(40, 1024, "");
    meet_with_limits(40, 40, "can't take the next: Too many open files: this process may have 40");
}

/* Strangers that connect and send nothing, or send garbage, don't keep the ranks from meeting. */
static void *make_noise(void *argument)
{
    Team              *team = argument;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)team->port)};
    for (uint32_t i = 0; i < 20; i++) {
        int     fd = socket(AF_INET, SOCK_STREAM, 0);
        uint8_t bytes[300];
        for (uint32_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)draw(i, k);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && i % 3)
            if (send(fd, bytes, draw(i, 999) % sizeof bytes, MSG_NOSIGNAL) < 0) break;
        if (i % 2) close(fd);
    }
    return NULL;
}

static void comes_late(Member *member, CommMeeting *meeting)
{
    pthread_t noise;
    (void)meeting;
    if (member->rank != 1) return;
    pthread_create(&noise, NULL, make_noise, member->team);
    pthread_join(noise, NULL);
}

static void strangers_are_no_hindrance(void)
{
    over_sockets = true;
    Team team = {.size = 3, .run = only_meets, .change = comes_late};
    team_run(&team, NULL);
    for (int r = 0; r < 3; r++)
        if (team.members[r].status != OK) test_fail(__FILE__, __LINE__, "rank %d: %s", r, team.members[r].message);
    over_sockets = false;
}

/* One process is killed or stopped: the others end within 10 s, and name it. */
static void one_of_three_processes_gets(int signal_number, int victim, const char *part)
{
    int   port, listener = listen_somewhere(&port), pipes[3][2];
    pid_t pid[3];
    for (int r = 0; r < 3; r++) {
        if (pipe(pipes[r]) != 0) return;
        if ((pid[r] = fork()) != 0) continue;
        Comm       *comm = NULL;
        CommMeeting meeting = {.port = port, .rank = r, .world_size = 3, .secret = SECRET, .listener = r ? 0 : listener};
        if (r) close(listener);
        Status status = comm_meet(&meeting, NULL, &comm);
        while (status == OK) status = comm_barrier(comm);
        if (write(pipes[r][1], status_message(), strlen(status_message()) + 1) < 0) _exit(1);
        comm_destroy(comm);
        _exit(status == ERR_RANK ? 0 : 1);
    }
    close(listener);
    usleep(700000);
    kill(pid[victim], signal_number);
    for (int r = 0; r < 3; r++) {
        int  status;
        char text[1024] = "";
        if (r == victim) continue;
        waitpid(pid[r], &status, 0);
        if (read(pipes[r][0], text, sizeof text - 1) < 0) text[0] = 0;
        EXPECT_CONTAINS(text, part);
    }
    kill(pid[victim], SIGKILL);
    waitpid(pid[victim], NULL, 0);
    for (int r = 0; r < 3; r++) close(pipes[r][0]), close(pipes[r][1]);
}

static void a_process_that_dies_or_stops_ends_all(void)
{
    one_of_three_processes_gets(SIGKILL, 2, "rank 2: its process has ended");
    one_of_three_processes_gets(SIGKILL, 0, "rank 0: its process has ended");
    one_of_three_processes_gets(SIGSTOP, 1, "rank 1: nothing was heard of it for ");
}

static void secrets_are_of_their_owner_alone(void)
{
    char  path[] = "/tmp/test_comm_XXXXXX", *secret = NULL;
    int   fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    fprintf(file, "%s\n", SECRET);
    fclose(file);
    EXPECT_OK(comm_secret_read(path, &secret));
    EXPECT_STR(secret, SECRET);
    free(secret);
    chmod(path, 0644);
    EXPECT_FAILS(comm_secret_read(path, &secret), ERR_INVALID, "chmod 600");
    unlink(path);
    EXPECT_FAILS(comm_secret_read(path, &secret), ERR_INVALID, "No such file");
    EXPECT_FAILS(comm_secret_read("/tmp", &secret), ERR_INVALID, "cannot read the secret");
    unsetenv(COMM_SECRET_VARIABLE);
    EXPECT_FAILS(comm_secret_read(NULL, &secret), ERR_INVALID, COMM_SECRET_VARIABLE);
    setenv(COMM_SECRET_VARIABLE, SECRET, 1);
    EXPECT_OK(comm_secret_read(NULL, &secret));
    EXPECT_STR(secret, SECRET);
    free(secret);
}

TEST_MAIN(TEST(collectives_of_1_to_8_ranks_give_the_plain_sums), TEST(no_comm_is_one_rank), TEST(a_nan_on_any_rank_is_the_maximum),
          TEST(a_failure_at_any_moment_ends_all_and_is_named), TEST(of_several_failures_one_is_named_by_all),
          TEST(a_rank_that_leaves_early_is_named), TEST(calls_that_do_not_match_are_named),
          TEST(a_rank_that_stands_still_is_named_and_ends_all), TEST(a_rank_that_is_slow_but_moves_is_waited_for),
          TEST(on_end_wakes_every_rank_once), TEST(sizes_are_checked), TEST(every_case_over_sockets),
          TEST(meetings_that_fail_are_named_on_every_rank), TEST(a_port_in_use_is_named), TEST(more_ranks_than_open_files_are_told),
          TEST(strangers_are_no_hindrance), TEST(a_process_that_dies_or_stops_ends_all), TEST(secrets_are_of_their_owner_alone))
