/* rope on CUDA: a thread rotates one pair. The unfused form: training and generation use qkv_norm_rope. */
#include "device/cuda/vec_f16.cuh"
#include "ops/attrs.h"
#include "ops/rows.cuh"

static __global__ void rope_pairs(TensorView x, const float *table, const int32_t *positions, TensorView y, int64_t pairs, int64_t heads,
                                  int64_t head_dim, int64_t turned, int64_t len, bool interleaved, float sign)
{
    int64_t half = turned / 2, apart = interleaved ? 1 : half;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t head = 2 * i / head_dim, k = i - head * (head_dim / 2), row = head / heads, at = head * head_dim + k;
        if (k >= half) { /* elements after the rotated pairs are copied, two a thread */
            for (int64_t from = at + k; from < at + k + 2; from++) any_set(y.data, y.type.dtype, from, any_get(x.data, x.type.dtype, from));
            continue;
        }
        if (interleaved) at += k;
        int32_t position = positions[row];
        bool    inside = position >= 0 && position < len;
        float   c = inside ? table[position * turned + k] : NAN, s = inside ? sign * table[position * turned + half + k] : NAN;
        float   first = any_get(x.data, x.type.dtype, at), second = any_get(x.data, x.type.dtype, at + apart);
        any_set(y.data, y.type.dtype, at, first * c - second * s);
        any_set(y.data, y.type.dtype, at + apart, second * c + first * s);
    }
}

static Status rope_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *table = &args->in[1];
    const RopeAttrs  *attrs = (const RopeAttrs *)args->attrs;
    int64_t           pairs = type_numel(&x->type) / 2;
    rope_pairs<<<cuda_grid(pairs, 256), 256, 0, cuda_stream(args)>>>(
        *x, (const float *)table->data, (const int32_t *)args->in[2].data, args->out[0], pairs, x->type.dim[2], x->type.dim[3],
        table->type.dim[1], table->type.dim[0], attrs->interleaved, attrs->inverse ? -1.0f : 1.0f);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(rope, {.dtypes = DT_SET_DECODE, .run = rope_run, .name = "pairs"})
