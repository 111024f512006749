/* dora_norm: the Euclidean norm of each row of w + alpha b a, which is never stored: the norms that DoRA (Liu et al. 2024) divides by. They
 * count as constant in the backward pass, as in the paper's section 4.3. None is below DORA_LEAST_NORM, so that rows of zeros stay
 * zeros.. */
#include "ops/infer.h"
#include "ops/products/dora.h"

#include <math.h>
#include <string.h>

static const AttrDef dora_norm_attrs[] = {ATTR_FLOAT(LinearAttrs, alpha, 1), {0}};

enum { W, A, B };
enum { ROWS = 8 }; /* rows of a task, which converts each row of a once */

/* w (M,K), a (R,K), b (M,R) -> f32 (M). */
static Status dora_norm_infer(Node *node)
{
    TRY(infer_input(node, W, "w", DT_SET_DECODE, DIMS(-1, -1)));
    const TensorType *w = &node->in[W]->type;
    TRY(infer_input(node, A, "a", DT_SET_DECODE, DIMS(-1, w->dim[1])));
    TRY(infer_input(node, B, "b", DT_SET_DECODE, DIMS(w->dim[0], node->in[A]->type.dim[0])));
    node->out[0]->type = type_make(DT_F32, 1, w->dim[0]);
    return OK;
}

static OpCost dora_norm_cost(const Node *node)
{
    return cost_streaming(node, 2.0 * (double)type_numel(&node->in[W]->type) * (double)(node->in[A]->type.dim[0] + 1));
}

static void dora_norm_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *w = &args->in[W], *a = &args->in[A], *b = &args->in[B];
    int64_t           cols = w->type.dim[1], r = a->type.dim[0], first = task * ROWS, rows = min_i64(ROWS, w->type.dim[0] - first);
    float             alpha = (float)((const LinearAttrs *)args->attrs)->alpha, sums[ROWS] = {0};
    float             row[ROWS][TILE], scratch[TILE];
    (void)worker;
    for (int64_t at = 0; at < cols; at += TILE) {
        int64_t n = min_i64(TILE, cols - at);
        for (int64_t i = 0; i < rows; i++) memcpy(row[i], tile_load(w, (first + i) * cols + at, n, scratch), (size_t)n * sizeof(float));
        for (int64_t k = 0; k < r; k++) {
            const float *of_a = tile_load(a, k * cols + at, n, scratch);
            for (int64_t i = 0; i < rows; i++) {
                float one, factor = alpha * *tile_load(b, (first + i) * r + k, 1, &one);
                for (int64_t c = 0; c < n; c++) row[i][c] += factor * of_a[c];
            }
        }
        for (int64_t i = 0; i < rows; i++) sums[i] += vec_dot(row[i], row[i], n);
    }
    for (int64_t i = 0; i < rows; i++) ((float *)args->out[0].data)[first + i] = fmaxf(sqrtf(sums[i]), DORA_LEAST_NORM);
}

static Status dora_norm_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(args->in[W].type.dim[0], ROWS), dora_norm_task, (void *)args);
    return OK;
}

const OpDef op_dora_norm = {
    .id = OP_DORA_NORM,
    .name = "dora_norm",
    .synopsis = "norm[i] = the Euclidean norm of row i of w + alpha b a",
    .num_in = 3,
    .num_out = 1,
    .min_in = 3,
    .flags = OP_STOPS,
    .attrs_size = sizeof(LinearAttrs),
    .attrs = dora_norm_attrs,
    .infer = dora_norm_infer,
    .cost = dora_norm_cost,
    .cpu = {{DT_SET_DECODE, dora_norm_cpu, "reference"}},
    .samples = "[5,7], [3,7], [5,3]\n"
               "[35,1100], [16,1100], [35,16] {alpha=0.5}\n"
               "[9,40], [1600,40], [9,1600] {alpha=0.5}\n",
    .large = "[1024,3072], [16,3072], [1024,16] {alpha=2}\n"
             "[3072,1024], [64,1024], [3072,64] {alpha=0.5}\n",
};
