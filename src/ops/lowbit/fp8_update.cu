/* fp8_update on CUDA: a thread block takes 32 tensors; its warps share the rows of their history. */
#include "device/cuda/vec.cuh"
#include "ops/lowbit/fp8_update.h"

enum { TENSORS = 32, WARPS = 32 };

typedef struct Update {
    Fp8UpdateAttrs attrs;
    TensorView     in[UPDATE_IN_COUNT + 1], out[UPDATE_OUT_SCALES + 1];
} Update;

static __global__ void __launch_bounds__(TENSORS *WARPS) fp8_update_tensors(Update u)
{
    __shared__ float largest[WARPS][TENSORS];
    int              lane = threadIdx.x % TENSORS, warp = threadIdx.x / TENSORS;
    const float     *history = (const float *)u.in[UPDATE_IN_HISTORY].data;
    int64_t          rows = u.in[UPDATE_IN_HISTORY].type.dim[0], tensors = u.in[UPDATE_IN_NOW].type.dim[0];
    int64_t          tensor = (int64_t)blockIdx.x * TENSORS + lane, row = fp8_update_row(u.in, rows);
    float            amax = 0;
    if (tensor < tensors && row >= 0 && !u.attrs.most_recent)
#pragma unroll 4
        for (int64_t r = warp; r < rows; r += WARPS)
            if (r != row) amax = fmaxf(amax, history[r * tensors + tensor]);
    largest[warp][lane] = amax;
    __syncthreads();
    if (warp || tensor >= tensors) return;
    amax = fp8_update_now(u.in, tensor);
    for (int i = 0; i < WARPS; i++) amax = fmaxf(amax, largest[i][lane]);
    fp8_update_tensor(&u.attrs, u.in, u.out, tensor, row, amax);
}

static Status fp8_update_run(const KernelArgs *args)
{
    Update u = {*(const Fp8UpdateAttrs *)args->attrs, {}, {}};
    memcpy(u.in, args->in, sizeof u.in);
    memcpy(u.out, args->out, sizeof u.out);
    int64_t tensors = u.in[UPDATE_IN_NOW].type.dim[0];
    fp8_update_tensors<<<(unsigned)cuda_div_up(tensors, TENSORS), TENSORS * WARPS, 0, cuda_stream(args)>>>(u);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_update, {.dtypes = DT_SET_FLOAT, .run = fp8_update_run, .name = "columns"})
