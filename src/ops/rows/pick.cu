/* pick, pick_bwd and label_mask on CUDA: a thread computes an element of the result. */
#include "device/cuda/vec_f16.cuh"

#include "ops/rows/reduce.h"

enum { THREADS = 256 };

static __global__ void pick_rows(TensorView x, const int32_t *ids, float *y, int64_t count, int64_t each, int64_t cols)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int32_t id = ids[i];
        bool    known = id >= 0 && id < cols;
        y[i] = known ? any_get(x.data, x.type.dtype, i / each * cols + id) : id == IGNORE_INDEX ? 0.0f : NAN;
    }
}

static __global__ void pick_bwd_elements(TensorView dy, const int32_t *ids, TensorView dx, Lines lines, int64_t each, int64_t count)
{
    int64_t all = lines.count * lines.inner;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t at = i / all * each * lines.inner + i % lines.inner, place = i % all / lines.inner;
        float   sum = 0.0f;
        for (int64_t k = 0; k < each; k++, at += lines.inner) {
            if (ids[at] == place) sum += any_get(dy.data, dy.type.dtype, at);
        }
        any_set(dx.data, dx.type.dtype, i, sum);
    }
}

static __global__ void label_mask_elements(const int32_t *labels, float *y, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        y[i] = labels[i] == IGNORE_INDEX ? 0.0f : 1.0f;
}

static Status pick_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    int64_t           count = type_numel(&args->in[1].type), each = count / type_rows(&x->type);
    pick_rows<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>(*x, (const int32_t *)args->in[1].data,
                                                                            (float *)args->out[0].data, count, each, type_cols(&x->type));
    return CUDA_LAUNCHED();
}

static Status pick_bwd_run(const KernelArgs *args)
{
    const TensorView *dx = &args->out[0];
    int64_t           count = type_numel(&dx->type);
    Lines             lines = lines_around(&dx->type, dim_of(((const PickBwdAttrs *)args->attrs)->dim, dx->type.ndim));
    pick_bwd_elements<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>(
        args->in[0], (const int32_t *)args->in[1].data, *dx, lines, type_numel(&args->in[1].type) / (lines.outer * lines.inner), count);
    return CUDA_LAUNCHED();
}

static Status label_mask_run(const KernelArgs *args)
{
    int64_t count = type_numel(&args->out[0].type);
    label_mask_elements<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>((const int32_t *)args->in[0].data,
                                                                                      (float *)args->out[0].data, count);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(pick, {.dtypes = DT_SET_DECODE, .run = pick_run, .name = "elements"})
CUDA_KERNELS(pick_bwd, {.dtypes = DT_SET_FLOAT, .run = pick_bwd_run, .name = "elements"})
CUDA_KERNELS(label_mask, {.dtypes = DT_SET_FLOAT, .run = label_mask_run, .name = "elements"})
