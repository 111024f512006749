/* Shared by element-wise ops, on the CPU: types, gradients, the loop over tiles. */
#pragma once

#include "ops/elementwise/broadcast.h"
#include "ops/infer.h"

/* Sets y's dims to those that the first `count` inputs, if present, broadcast to; y's dtype stays. */
NODISCARD Status infer_broadcast(const Node *node, int count, const char *const *names, TensorType *y);

/* a, b -> y of the dims that both broadcast to, in a's dtype. */
NODISCARD Status pair_infer(Node *node);

/* x (...) -> y of x's type; for an op that makes a gradient, dy, x (...) -> dx of x's type. */
NODISCARD Status unary_infer(Node *node);

/* One flop for each element of the result. */
OpCost pair_cost(const Node *node);

/* grad_add of d, a gradient with the dims of the op's result. Dims that `value` lacks are summed in f32; the result has the dtype of
 * `value`. */
NODISCARD Status grad_add_broadcast(GradBuilder *grad, Value *value, Value *d);

/* See OpDef.tile; count is at most TILE. */
typedef void (*TileFn)(float *y, const float *const *in, int64_t count, double number);

/* Computes out[0] tile by tile; an absent input is an array of zeros. */
void broadcast_cpu(const KernelArgs *args, TileFn tile, double number);

/* Defines a TileFn, name_tile: y[i] = expr for each element of the inputs' tiles a, b and c; y may be one of them. Also its CPU kernel,
 * name_cpu. */
#define TILE_OF(name, expr) \
    static void name##_tile(float *y, const float *const *in, int64_t count, double number) \
    { \
        const float *a = in[0], *b = in[1], *c = in[2]; \
        (void)b; \
        (void)c; \
        (void)number; \
        VEC_LOOP \
        for (int64_t i = 0; i < count; i++) y[i] = (expr); \
    } \
    static Status name##_cpu(const KernelArgs *args) \
    { \
        broadcast_cpu(args, name##_tile, 0); \
        return OK; \
    }

enum { ELEMENTS_PER_TASK = 16 * TILE };

/* A task of an op of one or two inputs, which have the result's dims. A VEC_TASK calls it with a VEC_ROW function, which is then compiled
 * for AVX-512 too. */
VEC_ROW void tiles_task(const KernelArgs *args, int64_t task, TileFn tile, double number)
{
    int64_t      end = min_i64(type_numel(&args->out[0].type), (task + 1) * ELEMENTS_PER_TASK);
    float        scratch[2][TILE], scratch_y[TILE];
    const float *in[2] = {0};
    for (int64_t at = task * ELEMENTS_PER_TASK; at < end; at += TILE) {
        int64_t n = min_i64(TILE, end - at);
        for (int k = 0; k < args->num_in; k++) in[k] = tile_load(&args->in[k], at, n, scratch[k]);
        float *y = tile_result(&args->out[0], at, scratch_y);
        tile(y, in, n, number);
        tile_store(&args->out[0], at, y, n);
    }
}

/* Runs tasks that call tiles_task, over the whole result. */
static inline Status tiles_run(const KernelArgs *args, void (*task)(void *context, int64_t task, int worker))
{
    pool_run(args->pool, div_up(type_numel(&args->out[0].type), ELEMENTS_PER_TASK), task, (void *)args);
    return OK;
}

/* Elements of input k for elements [at, at + count) of a row of the result, as floats. offset: where the row begins in the input. The
 * result points into the input, or to `scratch`. */
const float *broadcast_load(const KernelArgs *args, const Broadcast *plan, int k, int64_t offset, int64_t at, int64_t count,
                            float *scratch);
