/* GEMMs at the shapes of two small models, run by gemm_run as ops call it, beside one large GEMM on the same threads. Prints GFLOP/s with 1
 * thread and with all (argv[1] of them), and GFLOP/s of the fastest of the given libraries. Then attention, the head's loss and decoding of
 * single rows.
 *
 *   build/bench/bench_gemm [threads [attention]]        attention alone
 *   build/bench/bench_gemm [threads [library ...]]      OpenBLAS, MKL or oneDNN: libopenblas.so.0 libmkl_rt.so.3 libdnnl.so.2 */
#include "base/pool.h"
#include "device/cpu/sgemm.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/products/gemm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The libraries' C function sgemm, and its codes for row-major, plain and transposed matrices; oneDNN's function takes letters. */
enum { CBLAS_ROWS = 101, CBLAS_PLAIN = 111, CBLAS_TRANS = 112 };
typedef void (*Cblas)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                      int ldb, float beta, float *c, int ldc);
typedef int (*Dnnl)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
                    int64_t ldb, float beta, float *c, int64_t ldc);

typedef struct Peer {
    const char *name;
    Cblas       cblas;
    Dnnl        dnnl;
    void (*set_threads)(int threads);
} Peer;

/* Many short measurements, of which the fastest counts: a busy machine slows most of them, but hardly all. */
enum { MOST_PEERS = 4, TURNS = 25, TURN_MS = 50, REST_US = 30000 };
static Peer peers[MOST_PEERS];
static int  num_peers;

typedef struct Shape {
    const char *name;
    char        kind;       /* y: x w^T; x: dx = dy w; w: dw = dy^T x */
    int64_t     rows, k, m; /* x (rows,k), w (m,k) */
} Shape;

static const Shape shapes[] = {
    {"one big", 'y', 2048, 2048, 2048},
    {"qwen3 qkv", 'y', 4096, 256, 512},
    {"qwen3 o", 'y', 4096, 256, 256},
    {"qwen3 gate+up", 'y', 4096, 256, 1536},
    {"qwen3 down", 'y', 4096, 768, 256},
    {"qwen3 head chunk", 'y', 1024, 256, 4096},
    {"qwen3 qkv", 'x', 4096, 256, 512},
    {"qwen3 gate+up", 'x', 4096, 256, 1536},
    {"qwen3 down", 'x', 4096, 768, 256},
    {"qwen3 head chunk", 'x', 1024, 256, 4096},
    {"qwen3 qkv", 'w', 4096, 256, 512},
    {"qwen3 o", 'w', 4096, 256, 256},
    {"qwen3 gate+up", 'w', 4096, 256, 1536},
    {"qwen3 down", 'w', 4096, 768, 256},
    {"qwen3 head chunk", 'w', 1024, 256, 4096},
    {"llama-15m qkv", 'y', 2048, 288, 864},
    {"llama-15m gate+up", 'y', 2048, 288, 1536},
    {"llama-15m head chunk", 'y', 1024, 288, 32000},
    {"llama-15m head chunk", 'x', 1024, 288, 32000},
    {"llama-15m head chunk", 'w', 1024, 288, 32000},
    {"few rows of a head", 'y', 128, 288, 32000},
    {"few rows of a head", 'x', 128, 288, 32000},
    {"few rows of a head", 'w', 128, 288, 32000},
    {"lora a", 'y', 4096, 256, 16},
    {"lora b", 'y', 4096, 16, 256},
    {"lora a", 'w', 2048, 1024, 16},
    {"lora b", 'w', 2048, 16, 1024},
    {"decode 1 row", 'y', 1, 256, 4096},
    {"decode 4 rows", 'y', 4, 256, 4096},
    {"decode 8 rows", 'y', 8, 256, 4096},
};

/* With one thread: its CPU time, which other programs on the machine hardly change. With more: wall time. */
static double seconds_now(const ThreadPool *pool)
{
    struct timespec t;
    clock_gettime(pool ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of the fastest run. Runs repeat for `seconds`, at least `least` times; a first run isn't counted. */
static double fastest_seconds(void (*run)(void *context), void *context, const ThreadPool *pool, double seconds, int least)
{
    double best = 1e9, begin = seconds_now(pool);
    run(context);
    for (int count = 0; count < least || seconds_now(pool) - begin < seconds; count++) {
        double start = seconds_now(pool), taken;
        run(context);
        taken = seconds_now(pool) - start;
        best = taken < best ? taken : best;
    }
    return best;
}

/* Allocates in huge pages, as training does. */
static void *filled(DType dtype, int64_t numel)
{
    enum { HUGE_PAGE = 1 << 21 };
    size_t bytes = ((size_t)dtype_bytes(dtype, numel) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void  *data = aligned_alloc(HUGE_PAGE, bytes);
    if (!data) fatal_out_of_memory(bytes);
    madvise(data, bytes, MADV_HUGEPAGE);
    for (int64_t i = 0; i < numel; i++) vec_set(data, dtype, i, (float)((size_t)i * 2654435761u >> 8 & 0xFFFF) / 65536.0f - 0.5f);
    return data;
}

typedef struct GemmRun {
    Gemm        gemm;
    ThreadPool *pool;
    void       *workspace;
    const Peer *peer;
} GemmRun;

static void run_gemm(void *context)
{
    GemmRun *run = context;
    gemm_run(&run->gemm, run->pool, run->workspace);
}

static void run_peer(void *context)
{
    const GemmRun *run = context;
    const Gemm    *g = &run->gemm;
    int            m = (int)g->m, n = (int)g->n, k = (int)g->k;
    if (run->peer->cblas)
        run->peer->cblas(CBLAS_ROWS, g->a.trans ? CBLAS_TRANS : CBLAS_PLAIN, g->b.trans ? CBLAS_TRANS : CBLAS_PLAIN, m, n, k, g->alpha,
                         g->a.data, (int)g->a.stride, g->b.data, (int)g->b.stride, 0, g->c.data, (int)g->c.stride);
    else
        run->peer->dnnl(g->a.trans ? 'T' : 'N', g->b.trans ? 'T' : 'N', m, n, k, g->alpha, g->a.data, g->a.stride, g->b.data, g->b.stride,
                        0, g->c.data, g->c.stride);
}

static bool open_peer(const char *path)
{
    static const char *const threads[] = {"openblas_set_num_threads", "MKL_Set_Num_Threads", "omp_set_num_threads"};
    void                    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    Peer                     peer = {.name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path};
    if (!library || num_peers == MOST_PEERS) return false;
    *(void **)&peer.cblas = dlsym(library, "cblas_sgemm");
    *(void **)&peer.dnnl = dlsym(library, "dnnl_sgemm");
    for (int i = 0; i < 3 && !peer.set_threads; i++) *(void **)&peer.set_threads = dlsym(library, threads[i]);
    if ((!peer.cblas && !peer.dnnl) || !peer.set_threads) return false;
    peers[num_peers++] = peer;
    return true;
}

/* Measures our product and each library in turn: seconds of ours; seconds of the fastest library, and which library it is. */
static void compare(GemmRun *run, double *out_ours, double *out_best, const Peer **out_peer)
{
    *out_ours = *out_best = 1e9;
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = -1; i < num_peers; i++) {
            if (run->pool) usleep(REST_US); /* waits until the previous library's threads stop spinning */
            run->peer = i < 0 ? NULL : &peers[i];
            if (run->peer) run->peer->set_threads(pool_num_workers(run->pool));
            double taken = fastest_seconds(i < 0 ? run_gemm : run_peer, run, run->pool, 1e-3 * TURN_MS, 1);
            if (i < 0 && taken < *out_ours) *out_ours = taken;
            if (i >= 0 && taken < *out_best) *out_best = taken, *out_peer = run->peer;
        }
}

static Gemm gemm_of_shape(const Shape *s, DType dtype)
{
    Gemm g = {.alpha = 1, .a.dtype = dtype, .b.dtype = dtype, .c.dtype = dtype};
    switch (s->kind) {
    case 'y':
        g.m = s->rows, g.n = s->m, g.k = s->k, g.b.trans = true, g.a.stride = s->k, g.b.stride = s->k, g.c.stride = s->m;
        break;
    case 'x':
        g.m = s->rows, g.n = s->k, g.k = s->m, g.a.stride = s->m, g.b.stride = s->k, g.c.stride = s->k;
        break;
    default:
        g.m = s->m, g.n = s->k, g.k = s->rows, g.a.trans = true, g.a.stride = s->m, g.b.stride = s->k, g.c.stride = s->k;
    }
    return g;
}

static void bench_shape(const Shape *s, ThreadPool *pools[2])
{
    printf("%-22s %s %6lld %6lld %6lld ", s->name,
           s->kind == 'y'   ? "y "
           : s->kind == 'x' ? "dx"
                            : "dw",
           (long long)s->rows, (long long)s->k, (long long)s->m);
    double flops = 2.0 * (double)s->rows * (double)s->k * (double)s->m;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 2; i++) {
            DType   dtype = d ? DT_BF16 : DT_F32;
            GemmRun run = {.gemm = gemm_of_shape(s, dtype), .pool = pools[i]};
            void   *a = filled(dtype, run.gemm.m * run.gemm.k), *b = filled(dtype, run.gemm.n * run.gemm.k);
            run.gemm.a.data = a;
            run.gemm.b.data = b;
            run.gemm.c.data = filled(dtype, run.gemm.m * run.gemm.n);
            run.workspace = filled(DT_F32, (int64_t)(gemm_workspace(&run.gemm, pool_num_workers(pools[i])) / sizeof(float)) + 1);
            if (d || !num_peers) {
                printf(" %9.1f", flops / fastest_seconds(run_gemm, &run, pools[i], 0.25, 5) * 1e-9);
            } else {
                double      ours, best;
                const Peer *peer = NULL;
                compare(&run, &ours, &best, &peer);
                printf(" %9.1f (%5.1f %.5s: %.2f)", flops / ours * 1e-9, flops / best * 1e-9, peer ? peer->name + 3 : "", best / ours);
            }
            free(a), free(b), free(run.gemm.c.data), free(run.workspace);
        }
    printf("\n");
}

typedef struct OpRun {
    const OpDef *op;
    KernelArgs   args;
} OpRun;

static void run_op(void *context)
{
    const OpRun *run = context;
    if (run->op->cpu[0].run(&run->args) != OK) printf("%s\n", status_message());
}

/* Milliseconds of one op with these input types on `pool`. Integer inputs are 0, labels are 1. */
static double bench_op(const OpDef *op, const void *attrs, const TensorType *in, uint32_t want, ThreadPool *pool)
{
    Arena      arena = {0};
    Graph     *graph = graph_create(&arena, "bench", op_table, OP_COUNT);
    Value     *values[NODE_MAX_IN] = {0};
    TensorView views[NODE_MAX_IN] = {0}, out[NODE_MAX_OUT] = {0};
    Node      *node;
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim) values[i] = graph_add_value(graph, VALUE_INPUT, "in", &in[i]);
    if (graph_add_node(graph, op, attrs, "out", values, op->num_in, want, &node) != OK) {
        printf("%s\n", status_message());
        return 0;
    }
    for (int i = 0; i < op->num_in; i++) {
        if (!values[i]) continue;
        views[i] = (TensorView){filled(DT_F32, type_bytes(&in[i]) / 4 + 1), in[i]};
        if (in[i].dtype == DT_I32)
            for (int64_t k = 0; k < type_numel(&in[i]); k++) ((int32_t *)views[i].data)[k] = op->id == OP_LM_HEAD_LOSS_BWD;
    }
    for (int k = 0; k < op->num_out; k++)
        if (node->out[k]) out[k] = (TensorView){filled(DT_F32, type_bytes(&node->out[k]->type) / 4 + 1), node->out[k]->type};
    size_t bytes = op->workspace(node, pool_num_workers(pool));
    OpRun  run = {op,
                  {.in = views,
                   .out = out,
                   .num_in = op->num_in,
                   .num_out = op->num_out,
                   .attrs = node->attrs,
                   .workspace = filled(DT_F32, (int64_t)bytes / 4 + 1),
                   .workspace_bytes = bytes,
                   .pool = pool}};
    double seconds = fastest_seconds(run_op, &run, pool, 0.25, 5);
    for (int i = 0; i < op->num_in; i++) free(views[i].data);
    for (int k = 0; k < op->num_out; k++) free(out[k].data);
    free(run.args.workspace);
    arena_deinit(&arena);
    return seconds * 1e3;
}

typedef struct AttentionShape {
    int64_t batch, len, heads, kv_heads, dim, window;
} AttentionShape;

static const AttentionShape attentions[] = {
    {8, 512, 4, 2, 64, 0}, {4, 512, 6, 6, 48, 0}, {1, 512, 8, 2, 128, 0}, {1, 4096, 4, 2, 64, 0}, {1, 2048, 4, 2, 64, 256}};

/* GFLOP/s count only pairs of a query and a key that the query attends. */
static void bench_attention(const AttentionShape *s, ThreadPool *pools[2])
{
    const AttentionAttrs attrs = {.num_heads = s->heads, .num_kv_heads = s->kv_heads, .head_dim = s->dim, .window = s->window};
    const TensorType     packed = {DT_F32, 3, {s->batch, s->len, (s->heads + 2 * s->kv_heads) * s->dim}}, none = {0};
    const TensorType     o = {DT_F32, 4, {s->batch, s->len, s->heads, s->dim}}, lse = {DT_F32, 3, {s->batch, s->heads, s->len}};
    const TensorType     starts = {DT_I32, 2, {s->batch, s->len}};
    const TensorType forward[NODE_MAX_IN] = {packed, none, none, starts}, backward[NODE_MAX_IN] = {o, packed, none, none, o, lse, starts};
    Attention        a = attention_dims(&attrs, &packed, NULL);
    double           macs = attention_macs(&a);
    printf("attention B%lld T%-4lld H%lld G%lld D%-3lld W%-3lld", (long long)s->batch, (long long)s->len, (long long)s->heads,
           (long long)s->kv_heads, (long long)s->dim, (long long)s->window);
    for (int i = 0; i < 2; i++) {
        double ms = bench_op(&op_attention, &attrs, forward, 3, pools[i]);
        printf("  %d threads: forward %7.2f ms %6.1f", pool_num_workers(pools[i]), ms, 4e-6 * macs / ms);
        ms = bench_op(&op_attention_bwd, &attrs, backward, 1, pools[i]);
        printf(", backward %7.2f ms %6.1f", ms, 10e-6 * macs / ms);
    }
    printf("\n");
}

static void bench_heads(ThreadPool *pools[2])
{
    const TensorType losses = {DT_F32, 2, {8, 512}}, x = {DT_F32, 3, {8, 512, 256}}, w = {DT_F32, 2, {4096, 256}};
    const TensorType labels = {DT_I32, 2, {8, 512}}, none = {0}, head[] = {losses, x, w, labels, none};
    const TensorType losses4 = {DT_F32, 2, {4, 512}}, x4 = {DT_F32, 3, {4, 512, 288}}, w4 = {DT_F32, 2, {32000, 288}};
    const TensorType labels4 = {DT_I32, 2, {4, 512}}, head4[] = {losses4, x4, w4, labels4, none};
    for (int i = 0; i < 2; i++) {
        printf("%d threads: head's loss N4096 C256 V4096 with dx, dw %.2f ms", pool_num_workers(pools[i]),
               bench_op(&op_lm_head_loss_bwd, NULL, head, 7, pools[i]));
        printf(", N2048 C288 V32000 %.2f ms\n", bench_op(&op_lm_head_loss_bwd, NULL, head4, 7, pools[i]));
    }
}

int main(int argc, char **argv)
{
    Device     *device;
    ThreadPool *pools[2] = {NULL, NULL};
    double      flops, bytes;
    if (device_cpu_create(argc > 1 ? atoi(argv[1]) : 0, &device) != OK || device_cpu_measure_peak(device, &flops, &bytes) != OK) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    pools[1] = device_cpu_pool(device);
    bool all = argc < 3 || strcmp(argv[2], "attention");
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("KMP_BLOCKTIME", "10",
           0); /* ms for which Intel's threads spin after their work; the default, 200, is longer than a measurement */
    for (int i = 2; i < argc && all; i++)
        if (!open_peer(argv[i])) printf("no peer: %s has no sgemm that is known here\n", argv[i]);
    printf("kernels %s; %d threads reach %.0f GFLOP/s and %.1f GB/s\n", sgemm_kernel()->name, pool_num_workers(pools[1]), flops * 1e-9,
           bytes * 1e-9);
    if (all)
        printf("GFLOP/s                     rows      k      m   f32 1 th   f32 all  bf16 1 th  bf16 all%s\n",
               num_peers ? "   (the fastest library's, and ours as a part of it)" : "");
    for (size_t i = 0; all && i < sizeof shapes / sizeof shapes[0]; i++) bench_shape(&shapes[i], pools);
    for (size_t i = 0; i < sizeof attentions / sizeof attentions[0]; i++) bench_attention(&attentions[i], pools);
    if (all) bench_heads(pools);
    device->api->destroy(device);
    return 0;
}
