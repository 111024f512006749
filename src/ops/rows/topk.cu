/* topk and topk_bwd on CUDA. One thread block per row finds the largest element, then the next largest, and so on: k passes over a row that
 * stays in the caches. Meant for small k. */
#include "device/cuda/vec_f16.cuh"
#include "ops/rows.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS };

/* An element and its column; place -1: none. Order: NaN first, then larger elements, then earlier columns. */
struct Ranked {
    float   value;
    int32_t place;

    __device__ bool before(Ranked other) const
    {
        bool larger = value > other.value || (value != value && other.value == other.value);
        bool equal = value == other.value || (value != value && other.value != other.value);
        return place >= 0 && (other.place < 0 || larger || (equal && place < other.place));
    }
};

/* The first element of all threads in that order; every thread gets it. */
static __device__ Ranked block_first(Ranked own, Ranked *scratch)
{
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) {
        Ranked other = {__shfl_xor_sync(0xFFFFFFFFu, own.value, offset), __shfl_xor_sync(0xFFFFFFFFu, own.place, offset)};
        if (other.before(own)) own = other;
    }
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = own;
    __syncthreads();
    own = scratch[0];
    for (int w = 1; w < WARPS; w++)
        if (scratch[w].before(own)) own = scratch[w];
    __syncthreads();
    return own;
}

static __global__ void topk_rows(TensorView x, TensorView y, int32_t *ids, int64_t rows, int64_t cols, int64_t k)
{
    __shared__ Ranked scratch[WARPS];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        Ranked last = {0, -1};
        for (int64_t i = 0; i < k; i++) {
            Ranked best = {0, -1};
            for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
                Ranked here = {any_get(x.data, x.type.dtype, row * cols + c), (int32_t)c};
                if (here.before(best) && (last.place < 0 || last.before(here))) best = here;
            }
            last = block_first(best, scratch);
            if (threadIdx.x) continue;
            if (y.data) any_set(y.data, y.type.dtype, row * k + i, last.value);
            if (ids) ids[row * k + i] = last.place;
        }
    }
}

/* Writes dy to dx, which was set to zeros before. Ids of a row are distinct, so each element is written at most once. */
static __global__ void topk_bwd_elements(TensorView dy, const int32_t *ids, TensorView dx, int64_t count, int64_t k, int64_t cols)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        if (ids[i] >= 0 && ids[i] < cols) any_set(dx.data, dx.type.dtype, i / k * cols + ids[i], any_get(dy.data, dy.type.dtype, i));
}

static Status topk_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    int64_t           rows = type_rows(&x->type);
    topk_rows<<<cuda_grid(rows, 1), THREADS, 0, cuda_stream(args)>>>(*x, args->out[0], (int32_t *)args->out[1].data, rows,
                                                                     type_cols(&x->type), ((const TopkAttrs *)args->attrs)->k);
    return CUDA_LAUNCHED();
}

static Status topk_bwd_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[0], *dx = &args->out[0];
    int64_t           count = type_numel(&dy->type);
    CUDA_TRY(cudaMemsetAsync(dx->data, 0, (size_t)type_bytes(&dx->type), cuda_stream(args)));
    topk_bwd_elements<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>(*dy, (const int32_t *)args->in[1].data, *dx, count,
                                                                                    type_cols(&dy->type), type_cols(&dx->type));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(topk, {.dtypes = DT_SET_DECODE, .run = topk_run, .name = "rows"})
CUDA_KERNELS(topk_bwd, {.dtypes = DT_SET_FLOAT, .run = topk_bwd_run, .name = "elements"})
