/* One node with memory of its own, for tests of ops: random inputs, guard bytes around every buffer, any subset of
 * outputs, any kernel. */
#pragma once

#include "ops/case.h"
#include "ops/draw.h"
#include "ops/infer.h"
#include "test.h"

enum { GUARD_BYTES = 256, GUARD_FILL = 0xA5 };

/* `bytes` bytes at data, 256-byte aligned, GUARD_BYTES known bytes before and after. */
typedef struct Buffer {
    unsigned char *base, *data;
    size_t         bytes;
} Buffer;

static Buffer buffer_make(size_t bytes)
{
    Buffer b = {.bytes = bytes};
    b.base = aligned_alloc(256, (2 * GUARD_BYTES + bytes + 255) / 256 * 256);
    b.data = b.base + GUARD_BYTES;
    memset(b.base, GUARD_FILL, GUARD_BYTES + bytes + GUARD_BYTES);
    return b;
}

static bool buffer_intact(const Buffer *b)
{
    for (int i = 0; i < GUARD_BYTES && b->base; i++)
        if (b->base[i] != GUARD_FILL || b->data[b->bytes + (size_t)i] != GUARD_FILL) return false;
    return true;
}

static void buffer_free(Buffer *b)
{
    free(b->base);
    *b = (Buffer){0};
}

typedef struct OpCase {
    Arena    arena;
    Graph   *graph;
    Node    *node;
    Value   *all_out[NODE_MAX_OUT]; /* every output the op has here, wanted or not */
    uint32_t all;                   /* bit per output of those */
    Buffer   in[NODE_MAX_IN];       /* as filled; runs work on copies where an output takes over an input */
    Buffer   out[NODE_MAX_OUT];     /* of the last run */
} OpCase;

/* A graph of inputs and the node. The failure is infer's. */
__attribute__((unused)) static Status op_case_make(OpCase *c, const OpDef *op, const void *attrs, const TensorType *in)
{
    *c = (OpCase){0};
    c->graph = graph_create(&c->arena, "case", op_table, OP_COUNT);
    TRY(op_alone(c->graph, op, attrs, in, &c->node));
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim) c->in[i] = buffer_make((size_t)type_bytes(&in[i]));
    for (int k = 0; k < op->num_out; k++) {
        c->all_out[k] = c->node->out[k];
        if (!c->node->out[k]) continue;
        c->all |= 1u << k;
        c->out[k] = buffer_make((size_t)type_bytes(&c->node->out[k]->type));
    }
    return OK;
}

__attribute__((unused)) static void op_case_free(OpCase *c)
{
    for (int i = 0; i < NODE_MAX_IN; i++) buffer_free(&c->in[i]);
    for (int k = 0; k < NODE_MAX_OUT; k++) buffer_free(&c->out[k]);
    arena_deinit(&c->arena);
}

/* ---- inputs ---- */

/* Floats normal, integers in [0, int_range[k]). */
__attribute__((unused)) static void op_case_fill(OpCase *c, uint64_t seed, const int *int_range)
{
    for (int k = 0; k < c->node->num_in; k++) {
        if (!c->node->in[k]) continue;
        op_draw(c->node, k, int_range[k], seed * 64 + (uint64_t)k, c->in[k].data);
    }
}

/* ---- running ---- */

typedef struct RunOptions {
    uint32_t    want;    /* outputs to make */
    uint32_t    inplace; /* bit i: out[0] in in[i]'s memory */
    bool        plain;   /* accumulate inputs connected but not added to */
    int         poison;  /* byte that fills outputs and workspace before */
    ThreadPool *pool;
} RunOptions;

/* Copies the inputs, runs, leaves outputs in c->out. Checks guards and that inputs no output took over stay as they
 * were. */
__attribute__((unused)) static Status op_case_run(OpCase *c, const CpuKernel *kernel, const RunOptions *options, const char *what)
{
    const OpDef *op = c->node->op;
    TensorView   in[NODE_MAX_IN] = {0}, out[NODE_MAX_OUT] = {0};
    uint32_t     want = options->want & c->all;
    for (int k = 0; k < op->num_out; k++) c->node->out[k] = want >> k & 1 ? c->all_out[k] : NULL;
    for (int i = 0; i < op->num_in; i++)
        if (c->node->in[i]) in[i] = (TensorView){c->in[i].data, c->node->in[i]->type};
    for (int k = 0; k < op->num_out; k++) {
        if (!(want >> k & 1)) continue;
        memset(c->out[k].data, options->poison, c->out[k].bytes);
        out[k] = (TensorView){c->out[k].data, c->all_out[k]->type};
        for (int i = 0; i < op->num_in; i++) {
            if (c->all_out[k]->storage != c->node->in[i] && !(k == 0 && options->inplace >> i & 1)) continue;
            if (!c->node->in[i]) continue;
            if (!(options->plain && node_accumulate_mask(c->node) >> k & 1)) memcpy(c->out[k].data, c->in[i].data, c->out[k].bytes);
            in[i].data = c->out[k].data;
        }
    }
    int        workers = pool_num_workers(options->pool);
    Buffer     workspace = buffer_make(op->workspace ? op->workspace(c->node, workers) : 0), before[NODE_MAX_IN] = {0};
    KernelArgs args = {.rows_alone = (c->node->flags & NODE_ROWS_ALONE) != 0,
                       .in = in,
                       .out = out,
                       .num_in = op->num_in,
                       .num_out = op->num_out,
                       .attrs = c->node->attrs,
                       .accumulate = options->plain ? 0 : node_accumulate_mask(c->node) & want,
                       .workspace = workspace.data,
                       .workspace_bytes = workspace.bytes,
                       .pool = options->pool};
    memset(workspace.data, options->poison, workspace.bytes);
    for (int i = 0; i < op->num_in; i++) {
        if (!c->in[i].base) continue;
        before[i] = buffer_make(c->in[i].bytes);
        memcpy(before[i].data, c->in[i].data, c->in[i].bytes);
    }
    Status status = kernel->run(&args);
    if (!buffer_intact(&workspace)) test_fail(__FILE__, __LINE__, "%s: wrote outside its workspace of %zu bytes", what, workspace.bytes);
    for (int i = 0; i < op->num_in; i++) {
        if (!c->in[i].base) continue;
        if (!buffer_intact(&c->in[i])) test_fail(__FILE__, __LINE__, "%s: wrote outside input %d", what, i);
        if (memcmp(before[i].data, c->in[i].data, c->in[i].bytes) != 0) test_fail(__FILE__, __LINE__, "%s: changed input %d", what, i);
        buffer_free(&before[i]);
    }
    for (int k = 0; k < op->num_out; k++)
        if (!buffer_intact(&c->out[k])) test_fail(__FILE__, __LINE__, "%s: wrote outside output %d", what, k);
    buffer_free(&workspace);
    for (int k = 0; k < op->num_out; k++) c->node->out[k] = c->all_out[k];
    return status;
}

/* ---- comparing ---- */

/* Element i of any tensor. */
static double element(const TensorType *type, const void *data, int64_t i)
{
    if (type->dtype == DT_I64) return (double)((const int64_t *)data)[i];
    if (type->dtype == DT_I32) return (double)((const int32_t *)data)[i];
    if (DT_SET(type->dtype) & DT_SET_FP8) {
        float value;
        dtype_decode(type->dtype, (const uint8_t *)data + i, 1, &value);
        return (double)value;
    }
    if (dtype_info(type->dtype)->bits <= 8) return dtype_code(type->dtype, data, i);
    return (double)vec_get(data, type->dtype, i);
}

/* max|a - b| / max(max|b|, floor); infinite where one is NaN and the other isn't. Equal elements count 0, infinities
 * too. */
__attribute__((unused)) static double tensor_error(const TensorType *ta, const void *a, const TensorType *tb, const void *b, double floor)
{
    double worst = 0, largest = floor;
    for (int64_t i = 0, n = type_numel(ta); i < n; i++) {
        double x = element(ta, a, i), y = element(tb, b, i);
        if (x == y || (isnan(x) && isnan(y))) continue;
        double d = fabs(x - y);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    for (int64_t i = 0, n = type_numel(tb); i < n; i++) {
        double y = fabs(element(tb, b, i));
        if (isfinite(y) && y > largest) largest = y;
    }
    return worst == 0 ? 0 : worst / largest;
}
