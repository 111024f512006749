/* Ops that are bound by memory, at the shapes of two small models: GB/s by the op's own cost (each input read once, each output written
 * once). Also the share of memcpy's GB/s on as many bytes with as many threads; the op and memcpy run in turn.
 *
 *   build/bench/bench_ops [threads [op]] */
#include "ops/infer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { N = 4096, C = 288, F = 768, V = 4096, E = 4200000, B = 8, T = 512 };

typedef struct Case {
    const OpDef *op;
    TensorType   in[NODE_MAX_IN];
    const void  *attrs;
} Case;

#define NDIM(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define X(...) \
    { \
        DT_F32, NDIM(__VA_ARGS__), \
        { \
            __VA_ARGS__ \
        } \
    }
#define I(...) \
    { \
        DT_I32, NDIM(__VA_ARGS__), \
        { \
            __VA_ARGS__ \
        } \
    }

static const EmbeddingDwAttrs vocab = {.vocab = V};
static const QkvAttrs         qkv = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .eps = 1e-6};
static const DropoutAttrs     tenth = {.p = 0.1};
static const AdamwAttrs       adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .stochastic = true};

static const Case cases[] = {
    {&op_embedding, {I(B, T), X(V, C)}, NULL},
    {&op_embedding_dw, {I(B, T), X(B, T, C), X(V, C)}, &vocab},
    {&op_add, {X(N, C), X(N, C)}, NULL},
    {&op_col_sum, {X(N, C)}, NULL},
    {&op_rms_norm, {X(N, C), X(C)}, NULL},
    {&op_rms_norm_bwd, {X(N, C), X(N, C), X(C), X(N)}, NULL},
    {&op_rms_norm_bwd, {X(N, C), X(N, C), X(C), X(N), X(N, C), X(C)}, NULL},
    {&op_add_rms_norm, {X(N, C), X(N, C), X(C)}, NULL},
    {&op_rope, {X(B, T, 6, 48), X(T, 48), I(B, T)}, NULL},
    {&op_qkv_norm_rope, {X(B, T, 512), X(64), X(64), X(T, 64), I(B, T)}, &qkv},
    {&op_qkv_norm_rope_bwd, {X(B, T, 512), X(B, T, 512), X(64), X(64), X(T, 64), I(B, T), X(B, T, 6)}, &qkv},
    {&op_swiglu, {X(N, 2 * F)}, NULL},
    {&op_swiglu_bwd, {X(N, F), X(N, 2 * F)}, NULL},
    {&op_dropout, {X(B, T, C), I(B, T), I(B, T), {DT_I64, 1, {STEP_COUNT}}}, &tenth},
    {&op_sum_squares, {X(E)}, NULL},
    {&op_adamw, {X(E), X(E), X(E), X(E), X(1), X(1), X(HYPER_COUNT), {DT_I64, 1, {STEP_COUNT}}, {DT_I64, 2, {1, SEGMENT_COLUMNS}}}, &adam},
};

/* With one thread: its CPU time, which other programs on the machine hardly change. With more: wall time. */
static double seconds_now(const ThreadPool *pool)
{
    struct timespec t;
    clock_gettime(pool ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { COPY_TASK = 1 << 18 };

static void copy_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    int64_t           at = task * COPY_TASK, left = type_bytes(&args->in[0].type) - at;
    (void)worker;
    memcpy((char *)args->out[0].data + at, (const char *)args->in[0].data + at, (size_t)(left < COPY_TASK ? left : COPY_TASK));
}

static Status copy_run(const KernelArgs *args)
{
    pool_run(args->pool, (type_bytes(&args->in[0].type) + COPY_TASK - 1) / COPY_TASK, copy_task, (void *)args);
    return OK;
}

/* The fastest of the runs that fit into a turn, at least 5. The first isn't counted: the caches still hold other data. */
enum { TURNS = 4 };
#define TURN_SECONDS 0.025
static double fastest_seconds(KernelFn run, const KernelArgs *args)
{
    double best = 1e9, begin = seconds_now(args->pool);
    for (int count = 0; count < 5 || seconds_now(args->pool) - begin < TURN_SECONDS; count++) {
        double start = seconds_now(args->pool);
        if (run(args) != OK) {
            fprintf(stderr, "%s\n", status_message());
            exit(1);
        }
        double taken = seconds_now(args->pool) - start;
        if (count && taken < best) best = taken;
    }
    return best;
}

/* Tensors of a run are placed one after another in huge pages, as in training. When each began at the start of a huge page, adamw reached a
 * third of its speed on an Intel CPU. */
typedef struct Memory {
    char  *base;
    size_t used;
} Memory;

enum { MEMORY_BYTES = 1 << 28, HUGE_PAGE = 1 << 21, ALIGN = 256 };
static Memory memory;

/* Fills a tensor with random values. Integers are in order if `ordered`. */
static void *filled(const TensorType *type, bool ordered)
{
    void *data = memory.base + memory.used;
    memory.used += ((size_t)type_bytes(type) + ALIGN - 1) / ALIGN * ALIGN;
    if (memory.used > MEMORY_BYTES) fatal_out_of_memory(memory.used);
    for (int64_t i = 0; i < type_numel(type); i++) {
        uint32_t random = (uint32_t)i * 2654435761u >> 8;
        if (type->dtype == DT_I32)
            ((int32_t *)data)[i] = (int32_t)((ordered ? (uint32_t)i : random) % T);
        else if (type->dtype == DT_I64)
            ((int64_t *)data)[i] = 0;
        else
            vec_set(data, type->dtype, i, (float)(random & 0xFFFF) / 65536.0f + 0.01f);
    }
    return data;
}

/* Index of the input whose memory training of these models reuses for the result; -1: none. */
static int lies_over(const OpDef *op)
{
    if (op == &op_swiglu_bwd) return 1;
    return op == &op_rms_norm_bwd || op == &op_rope || op == &op_qkv_norm_rope_bwd ? 0 : -1;
}

/* Prints the case's GB/s with floats in `dtype`, and their share of memcpy's. */
static void print_bandwidth(const Case *c, DType dtype, ThreadPool *pool)
{
    Arena      arena = {0};
    Graph     *graph = graph_create(&arena, "bench", op_table, OP_COUNT);
    Node      *node;
    Value     *in[NODE_MAX_IN] = {0};
    TensorView views[NODE_MAX_IN] = {0}, outs[NODE_MAX_OUT] = {0};
    memory.used = 0;
    for (int i = 0; i < c->op->num_in; i++) {
        TensorType type = c->in[i];
        bool       big = type.ndim >= 2 || type_numel(&type) == E;
        if (!type.ndim) continue;
        bool rotary = c->op == &op_rope || c->op == &op_qkv_norm_rope || c->op == &op_qkv_norm_rope_bwd;
        if (type.dtype == DT_F32 && big && !(rotary && (type.dim[0] == T || i == 6))) type.dtype = dtype;
        in[i] = graph_add_value(graph, VALUE_INPUT, "x", &type);
        views[i] = (TensorView){filled(&type, rotary), type};
    }
    if (c->op == &op_adamw) ((int64_t *)views[8].data)[SEGMENT_NUMEL] = E;
    if (graph_add_node(graph, c->op, c->attrs, "y", in, c->op->num_in, ~0u, &node) != OK) {
        fprintf(stderr, "%s\n", status_message());
        exit(1);
    }
    int over = lies_over(c->op);
    for (int k = 0; k < node->num_out; k++) {
        if (!node->out[k]) continue;
        outs[k] = (TensorView){NULL, node->out[k]->type};
        const Value *storage = node->out[k]->storage;
        for (int i = 0; storage && i < node->num_in; i++)
            if (node->in[i] == storage) outs[k].data = views[i].data;
        if (!storage && k == 0 && over >= 0) outs[k].data = views[over].data;
        if (!outs[k].data) outs[k].data = filled(&outs[k].type, false);
    }
    size_t     bytes = c->op->workspace ? c->op->workspace(node, pool_num_workers(pool)) : 0;
    KernelArgs args = {.in = views,
                       .out = outs,
                       .num_in = node->num_in,
                       .num_out = node->num_out,
                       .attrs = node->attrs,
                       .accumulate = node_accumulate_mask(node),
                       .workspace = aligned_alloc(256, (bytes + 256) / 256 * 256),
                       .workspace_bytes = bytes,
                       .pool = pool};
    double     moved = c->op->cost(node).bytes, seconds = 1e9, copy_seconds = 1e9;
    TensorType half = type_make(DT_F32, 1, (int64_t)moved / 8);
    TensorView from = {filled(&half, false), half}, to = {filled(&half, false), half};
    KernelArgs copy_args = {.in = &from, .out = &to, .pool = pool};
    for (int turn = 0; turn < TURNS; turn++) {
        seconds = fmin(seconds, fastest_seconds(op_cpu_kernel(node)->run, &args));
        copy_seconds = fmin(copy_seconds, fastest_seconds(copy_run, &copy_args));
    }
    free(args.workspace);
    arena_deinit(&arena);
    printf(" %9.1f %4.2f", moved / seconds * 1e-9, copy_seconds / seconds);
}

int main(int argc, char **argv)
{
    ThreadPool *pool;
    memory.base = aligned_alloc(HUGE_PAGE, MEMORY_BYTES);
    if (!memory.base) fatal_out_of_memory(MEMORY_BYTES);
    madvise(memory.base, MEMORY_BYTES, MADV_HUGEPAGE);
    if (pool_create(argc > 1 ? atoi(argv[1]) : 0, &pool) != OK) return 1;
    int workers = pool_num_workers(pool);
    printf("%-20s %14s %14s %14s %14s   GB/s, of memcpy\n", "", "f32", "", "bf16", "");
    printf("%-20s %14d %14d %14d %14d\n", "threads", 1, workers, 1, workers);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc > 2 && strcmp(argv[2], cases[i].op->name) != 0) continue;
        printf("%-20s", cases[i].op->name);
        for (DType dtype = DT_F32; dtype <= DT_BF16; dtype++)
            for (int threads = 0; threads < 2; threads++) print_bandwidth(&cases[i], dtype, threads ? pool : NULL);
        printf("\n");
    }
    pool_destroy(pool);
    free(memory.base);
    return 0;
}
