/* dropout on CUDA: a thread takes 4 elements at a time, with one Philox draw; the draws are the CPU's. */
#include "ops/random.h"
#include "ops/attrs.h"
#include "ops/rows.cuh"

static __global__ void dropout_quads(TensorView x, const int32_t *doc_id, const int32_t *positions, const int64_t *step, TensorView y,
                                     int64_t rows, int64_t cols, int64_t site, float p, float kept)
{
    int64_t  quads = (cols + 3) / 4;
    uint64_t key = random_key(step[STEP_SEED], step[STEP_INDEX], RANDOM_DROPOUT, site);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * quads; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / quads, quad = i - row * quads;
        Philox4 draw = random_dropout_quad(key, doc_id[row], positions[row], (uint32_t)quad);
        for (int k = 0; k < 4 && quad * 4 + k < cols; k++) {
            int64_t at = row * cols + quad * 4 + k;
            elem_set(y.data, y.type.dtype, at, philox_uniform(draw.v[k]) >= p ? elem_get(x.data, x.type.dtype, at) * kept : 0.0f);
        }
    }
}

static Status dropout_run(const KernelArgs *args)
{
    const DropoutAttrs *attrs = (const DropoutAttrs *)args->attrs;
    const TensorView   *x = &args->in[0];
    int64_t             cols = type_cols(&x->type), rows = type_rows(&x->type);
    dropout_quads<<<cuda_grid(rows * cuda_div_up(cols, 4), 256), 256, 0, cuda_stream(args)>>>(
        *x, (const int32_t *)args->in[1].data, (const int32_t *)args->in[2].data, (const int64_t *)args->in[3].data, args->out[0], rows,
        cols, attrs->site, (float)attrs->p, (float)(1 / (1 - attrs->p)));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(dropout, {.dtypes = DT_SET_FLOAT, .run = dropout_run, .name = "quads"})
