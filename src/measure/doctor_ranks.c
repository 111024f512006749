#include "measure/doctor_ranks.h"

#include "ops/attrs.h"
#include "ops/ops.h"
#include "setup/rank_threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct RankRun {
    Comm         *comm;
    Device       *device;
    FILE         *out; /* NULL on all ranks but rank 0 */
    DoctorCounts *counts;
} RankRun;

typedef struct RanksJob {
    DoctorOpen open;
    Status (*work)(RankRun *run);
    FILE         *out;
    DoctorCounts *counts;
} RanksJob;

/* ---- ranks ---- */

static Status work_joined(const RanksJob *job, RankRun *run)
{
    TRY(job->open(comm_rank(run->comm), &run->device));
    FAIL_IF(!run->device->api->join, ERR_UNSUPPORTED, "device %s can't work together with others", run->device->api->name);
    TRY(run->device->api->join(run->device, run->comm));
    return job->work(run);
}

static Status work_as(void *context, Comm *comm, RankPlace place)
{
    const RanksJob *job = context;
    RankRun         run = {.comm = comm, .out = place.rank ? NULL : job->out, .counts = job->counts};
    Status          status = work_joined(job, &run);
    if (status != OK) comm_abort(comm, status, status_message());
    if (run.device) run.device->api->destroy(run.device);
    return status;
}

/* Runs the job on every rank. If ranks fail, returns the failure of the first rank that didn't fail because of another one. */
static Status run_ranks(RanksJob job, int ranks)
{
    RankTeam *team;
    int       failed;
    TRY(rank_team_create(ranks, NULL, &team));
    Status status = rank_team_run(team, work_as, &job, &failed);
    rank_team_destroy(team);
    return status == OK ? OK : status_prefix(status, "rank %d", failed);
}

/* ---- one collective ---- */

typedef struct Collective {
    Arena       arena;
    Node       *node;
    Device     *device;
    BoundKernel kernel;
    Launch      launch;
    TensorView  in[2], out[1];
    void       *workspace, *replay;
    int         repeats; /* launches in one replay */
    Launch     *launches;
} Collective;

enum { COLS_ROWS = 3 }; /* rows of each rank's input of gather_cols */

typedef struct What {
    const OpDef *op;
    DType        dtype;
    int64_t      count; /* number of elements: of one rank's share; all_reduce: of the tensor; gather_cols: of a row of the input */
    bool         max, accumulate;
} What;

/* Frees a collective. If this rank failed, it first calls comm_abort, as other ranks' devices may read the memory. */
static void collective_close(Collective *c, RankRun *run, Status status)
{
    const DeviceApi *api = c->device->api;
    if (status != OK) comm_abort(run->comm, status, status_message());
    if (c->replay) api->release(c->device, c->replay);
    for (int i = 0; i < 2; i++)
        if (c->in[i].data) api->free(c->device, SPACE_DEVICE, c->in[i].data);
    if (c->out[0].data && c->out[0].data != c->in[0].data && c->out[0].data != c->in[1].data)
        api->free(c->device, SPACE_DEVICE, c->out[0].data);
    if (c->workspace) api->free(c->device, SPACE_DEVICE, c->workspace);
    free(c->launches);
    arena_deinit(&c->arena);
}

static Status make_node(Collective *c, const What *what, int ranks)
{
    RanksAttrs            attrs = {.ranks = ranks};
    AllReduceAttrs        all = {.ranks = ranks, .max = what->max};
    const GatherColsAttrs cols = {.ranks = ranks};
    bool                  whole = what->op == &op_reduce_scatter || what->op == &op_all_to_all;
    TensorType            share = type_make(what->dtype, 1, what->count), x = type_make(what->dtype, 1, what->count * (whole ? ranks : 1));
    if (what->op == &op_gather_cols) x = type_make(what->dtype, 2, (int64_t)COLS_ROWS, what->count);
    Graph *graph = graph_create(&c->arena, "collective", op_table, OP_COUNT);
    Value *values[NODE_MAX_IN] = {graph_add_value(graph, VALUE_INPUT, "x", &x)};
    if (what->accumulate) values[1] = graph_add_value(graph, VALUE_INPUT, "acc", &share);
    const void *given = what->op == &op_all_reduce ? (const void *)&all : what->op == &op_gather_cols ? (const void *)&cols : &attrs;
    return graph_add_node(graph, what->op, given, "out", values, what->op->num_in, ~0u, &c->node);
}

static Status collective_open(Collective *c, Device *device, const What *what, int ranks, int repeats)
{
    const DeviceApi *api = device->api;
    *c = (Collective){.device = device, .repeats = repeats};
    TRY(make_node(c, what, ranks));
    TRY(api->bind(device, c->node, &c->kernel));
    TRY(api->alloc(device, SPACE_DEVICE, c->kernel.workspace_bytes + 256, &c->workspace));
    for (int i = 0; i < c->node->num_in; i++) {
        if (!c->node->in[i]) continue;
        c->in[i].type = c->node->in[i]->type;
        TRY(api->alloc(device, SPACE_DEVICE, (size_t)type_bytes(&c->in[i].type), &c->in[i].data));
        if (c->node->out[0]->storage == c->node->in[i]) c->out[0].data = c->in[i].data;
    }
    c->out[0].type = c->node->out[0]->type;
    if (!c->out[0].data) TRY(api->alloc(device, SPACE_DEVICE, (size_t)type_bytes(&c->out[0].type), &c->out[0].data));
    c->launch = (Launch){.kernel = c->kernel, .node = c->node, .stream = STREAM_COMM};
    c->launch.args = (KernelArgs){.in = c->in,
                                  .out = c->out,
                                  .num_in = c->node->num_in,
                                  .num_out = 1,
                                  .attrs = c->node->attrs,
                                  .accumulate = node_accumulate_mask(c->node),
                                  .workspace = c->workspace,
                                  .workspace_bytes = c->kernel.workspace_bytes};
    c->launches = calloc_or_end((size_t)repeats, sizeof *c->launches);
    for (int i = 0; i < repeats; i++) c->launches[i] = c->launch;
    return api->prepare(device, c->launches, repeats, &c->replay);
}

/* ---- right ---- */

static void draw(void *data, const TensorType *type, unsigned seed)
{
    for (int64_t i = 0, n = type_numel(type); i < n; i++) {
        float value = (float)((((uint32_t)i + 1) * 2654435761u ^ seed * 40503u) >> 8) / 8388608.0f - 1.0f;
        dtype_encode(type->dtype, &value, 1, (char *)data + dtype_bytes(type->dtype, i));
    }
}

static Status expect_parts(Comm *comm, const void *x, size_t bytes, char *out)
{
    int    ranks = comm_size(comm);
    size_t part = bytes / (size_t)ranks;
    char  *all = malloc_or_end((size_t)ranks * bytes);
    Status status = comm_all_gather(comm, x, all, bytes);
    for (int r = 0; r < ranks && status == OK; r++)
        memcpy(out + (size_t)r * part, all + (size_t)r * bytes + (size_t)comm_rank(comm) * part, part);
    free(all);
    return status;
}

static Status expect_cols(Comm *comm, const void *x, size_t bytes, char *out)
{
    int    ranks = comm_size(comm);
    size_t row = bytes / COLS_ROWS;
    char  *all = malloc_or_end((size_t)ranks * bytes);
    Status status = comm_all_gather(comm, x, all, bytes);
    for (int i = 0; i < ranks * COLS_ROWS && status == OK; i++) {
        int rank = i % ranks, of_share = i / ranks;
        memcpy(out + (size_t)i * row, all + (size_t)rank * bytes + (size_t)of_share * row, row);
    }
    free(all);
    return status;
}

/* Computes the expected result by collectives over host memory, which sum exactly in the order of ranks. */
static Status make_expected(Comm *comm, const What *what, const Collective *c, const void *x, const void *acc, void *out)
{
    int64_t count = type_numel(&c->out[0].type);
    if (what->op == &op_gather) return comm_all_gather(comm, x, out, (size_t)type_bytes(&c->in[0].type));
    if (what->op == &op_gather_cols) return expect_cols(comm, x, (size_t)type_bytes(&c->in[0].type), out);
    if (what->op == &op_all_to_all) return expect_parts(comm, x, (size_t)type_bytes(&c->in[0].type), out);
    if (what->op == &op_all_reduce) {
        memcpy(out, x, (size_t)type_bytes(&c->out[0].type));
        return comm_all_reduce(comm, out, count, what->dtype, what->max ? COMM_MAX : COMM_SUM);
    }
    TRY(comm_reduce_scatter(comm, x, out, count, what->dtype, COMM_SUM));
    for (int64_t i = 0; acc && i < count; i++) {
        int64_t at = dtype_bytes(what->dtype, i);
        float   a, b;
        dtype_decode(what->dtype, (char *)out + at, 1, &a);
        dtype_decode(what->dtype, (const char *)acc + at, 1, &b);
        a += b;
        dtype_encode(what->dtype, &a, 1, (char *)out + at);
    }
    return OK;
}

static double largest_error(const What *what, const TensorType *type, const void *got, const void *want)
{
    double error = 0;
    if (what->op != &op_reduce_scatter) return memcmp(got, want, (size_t)type_bytes(type)) == 0 ? 0 : INFINITY;
    for (int64_t i = 0, n = type_numel(type); i < n; i++) {
        float a, b;
        dtype_decode(type->dtype, (const char *)got + dtype_bytes(type->dtype, i), 1, &a);
        dtype_decode(type->dtype, (const char *)want + dtype_bytes(type->dtype, i), 1, &b);
        double d = fabs((double)a - (double)b);
        if (!(d <= error)) error = d;
    }
    return error;
}

/* Whether running the collective again, on its own result, gives the same result. */
static bool is_lasting(const What *what)
{
    return what->op == &op_all_reduce ? what->max : !what->accumulate;
}

/* Runs twice on the same contents; results are in got[0] and got[1]. The second time it runs OFTEN times, if further runs don't change
 * the result. */
static Status run_twice(Collective *c, const What *what, const void *x, const void *acc, void *const got[2])
{
    enum { OFTEN = 20 };
    const DeviceApi *api = c->device->api;
    for (int turn = 0; turn < 2; turn++) {
        TRY(api->upload(c->device, c->in[0].data, x, (size_t)type_bytes(&c->in[0].type)));
        if (acc) TRY(api->upload(c->device, c->in[1].data, acc, (size_t)type_bytes(&c->in[1].type)));
        for (int i = 0; i < (turn && is_lasting(what) ? OFTEN : 1); i++) TRY(api->run(c->device, c->launches, c->repeats, c->replay));
        TRY(api->download(c->device, got[turn], c->out[0].data, (size_t)type_bytes(&c->out[0].type)));
    }
    return OK;
}

static Status compare_case(RankRun *run, const What *what, Collective *c)
{
    int      rank = comm_rank(run->comm), ranks = comm_size(run->comm);
    Arena    arena = {0};
    size_t   bytes = (size_t)type_bytes(&c->out[0].type);
    void    *x = arena_alloc(&arena, (size_t)type_bytes(&c->in[0].type)), *acc = NULL, *want = arena_alloc(&arena, bytes);
    void    *got[2] = {arena_alloc(&arena, bytes), arena_alloc(&arena, bytes)};
    uint64_t wrong = 0;
    draw(x, &c->in[0].type, (unsigned)rank + 1);
    if (what->accumulate) draw(acc = arena_alloc(&arena, bytes), &c->out[0].type, 99u + (unsigned)rank);
    Status status = run_twice(c, what, x, acc, got);
    if (status == OK) status = make_expected(run->comm, what, c, x, acc, want);
    double error = status == OK ? largest_error(what, &c->out[0].type, got[0], want) : 0;
    double most = ranks * (what->dtype == DT_BF16 ? 0.03 : 1e-6); /* each rank may round once, at magnitudes up to the number of ranks */
    if (strcmp(c->kernel.name, "nccl") != 0) most = 0;            /* other kernels sum in the order of ranks, as expected */
    bool same = status != OK || memcmp(got[0], got[1], bytes) == 0;
    wrong = !same || !(error <= most);
    if (status == OK && wrong)
        fprintf(stderr, "FAILED %s of %lld %s%s, rank %d of %d: off by %.3g%s\n", what->op->name, (long long)what->count,
                dtype_info(what->dtype)->name, what->accumulate ? ", accumulating" : "", rank, ranks, error,
                same ? "" : "; two runs differ");
    int64_t all = (int64_t)wrong;
    if (status == OK) status = comm_all_reduce(run->comm, &all, 1, DT_I64, COMM_SUM);
    if (status == OK && run->out) *(all ? &run->counts->failed : &run->counts->passed) += 1;
    arena_deinit(&arena);
    return status;
}

static Status check_what(RankRun *run, const What *what)
{
    Collective c;
    Status     status = collective_open(&c, run->device, what, comm_size(run->comm), 1);
    if (status == OK) status = compare_case(run, what, &c);
    collective_close(&c, run, status);
    return status;
}

static Status check_work(RankRun *run)
{
    const What                large = {&op_reduce_scatter, DT_F32, 9 << 20, .accumulate = true}; /* large enough for a GPU to split it */
    static const OpDef *const ops[] = {&op_gather, &op_gather_cols, &op_reduce_scatter, &op_all_reduce, &op_all_to_all};
    static const int64_t      counts[] = {1, 1003, 1 << 17};
    for (int i = 0; i < 5 * 3 * 2 * 2; i++) {
        bool second = i / 30; /* the second variant: all_reduce by maximum, reduce_scatter that accumulates */
        What what = {ops[i % 5], i / 15 % 2 ? DT_BF16 : DT_F32, counts[i / 5 % 3], .max = second, .accumulate = false};
        if (what.op != &op_reduce_scatter && what.op != &op_all_reduce && second) continue;
        if (what.op == &op_reduce_scatter) what.accumulate = second, what.max = false;
        TRY(check_what(run, &what));
    }
    return run->device->api->is_synchronous ? OK : check_what(run, &large);
}

Status doctor_check_ranks(DoctorOpen open, int ranks, FILE *out, DoctorCounts *counts)
{
    return run_ranks((RanksJob){open, check_work, out, counts}, ranks);
}

/* ---- fast ---- */

static Status time_collective(RankRun *run, Collective *c, double *out_seconds)
{
    const DeviceApi *api = c->device->api;
    TRY(api->run(c->device, c->launches, c->repeats, c->replay));
    TRY(api->mark(c->device, 0));
    TRY(api->run(c->device, c->launches, c->repeats, c->replay));
    TRY(api->mark(c->device, 1));
    TRY(api->await(c->device, 0));
    TRY(api->await(c->device, 1));
    TRY(api->seconds_between(c->device, 0, 1, out_seconds));
    *out_seconds /= c->repeats;
    return comm_barrier(run->comm);
}

static Status measure_work(RankRun *run)
{
    static const OpDef *const ops[] = {&op_gather, &op_reduce_scatter};
    static const int64_t      mib[] = {1, 8, 32, 128, 512};
    int                       ranks = comm_size(run->comm);
    if (run->out) fprintf(run->out, "over %d devices, GB/s of a link (bytes received by each), at MiB in all:\n", ranks);
    for (int o = 0; o < 2; o++) {
        for (int i = 0; i < 5; i++) {
            What       what = {.op = ops[o], .dtype = DT_BF16, .count = (mib[i] << 20) / 2 / ranks};
            Collective c;
            double     seconds = 1;
            Status     status = collective_open(&c, run->device, &what, ranks, 10);
            if (status == OK) status = time_collective(run, &c, &seconds);
            if (status == OK && run->out && i == 0) fprintf(run->out, "%16s (%s)", ops[o]->name, c.kernel.name);
            collective_close(&c, run, status);
            TRY(status);
            double bytes = 2 * (double)what.count * (ranks - 1);
            if (run->out) fprintf(run->out, "  %lld: %.0f (%.0f us)", (long long)mib[i], bytes / seconds / 1e9, seconds * 1e6);
        }
        if (run->out) fprintf(run->out, "\n");
    }
    return OK;
}

Status doctor_measure_ranks(DoctorOpen open, int ranks, FILE *out)
{
    return run_ranks((RanksJob){open, measure_work, out, NULL}, ranks);
}

/* ---- failing together ---- */

/* Starts a collective on all ranks but the last, which fails instead. OK if this rank's collective then ends with the last rank's
 * message. */
static Status break_collective(RankRun *run, Collective *c)
{
    int  rank = comm_rank(run->comm), last = comm_size(run->comm) - 1;
    char part[64];
    snprintf(part, sizeof part, "rank %d: broken on purpose", last);
    TRY(comm_barrier(run->comm));
    if (rank == last) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); /* by then the other ranks wait in the collective */
        comm_abort(run->comm, ERR_IO, "broken on purpose");
        return OK;
    }
    Status status = run->device->api->run(run->device, c->launches, 1, c->replay);
    if (status == OK) status = run->device->api->sync(run->device);
    FAIL_IF(status == OK, ERR_INTERNAL, "a collective ended without the last rank");
    FAIL_IF(status != ERR_RANK || !strstr(status_message(), part), ERR_INTERNAL, "rank %d ended with \"%s\", expected \"%s\"", rank,
            status_message(), part);
    return OK;
}

static Status break_work(RankRun *run)
{
    const What what = {.op = &op_gather, .dtype = DT_F32, .count = 1 << 16};
    Collective c;
    Status     status = collective_open(&c, run->device, &what, comm_size(run->comm), 1);
    if (status == OK) status = break_collective(run, &c);
    collective_close(&c, run, status);
    return status;
}

Status doctor_break_ranks(DoctorOpen open, int ranks)
{
    return run_ranks((RanksJob){open, break_work, NULL, NULL}, ranks);
}
