/* nf4_quantise on CUDA, in three launches. First a warp takes a block of 64 elements, two for each lane, which make a byte. Then one thread
 * block sums the scales. Last, each thread block encodes NF4_NESTED scales. `once`: only the first launch. Arithmetic and order of sums are
 * the CPU's. */
#include "device/cuda/vec.cuh"
#include "ops/lowbit/nf4.h"

enum { OUT_CODES, OUT_ABSMAX, OUT_NESTED, OUT_OFFSET };
enum { THREADS = 256, WARPS = THREADS / 32 };

/* codes NULL: not wanted. */
template <typename T> static __global__ void nf4_blocks(const T *x, uint8_t *codes, float *scales, int64_t numel, int64_t blocks)
{
    int lane = threadIdx.x & 31;
    for (int64_t block = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); block < blocks; block += (int64_t)gridDim.x * WARPS) {
        int64_t at = block * NF4_BLOCK + 2 * lane;
        bool within = at<numel, is_short = (block + 1) * NF4_BLOCK> numel;
        float    first = within ? to_float(x[at]) : 0, second = within ? to_float(x[at + 1]) : 0;
        uint32_t most = max(small_magnitude(first), small_magnitude(second));
#pragma unroll
        for (int offset = 16; offset; offset >>= 1) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, offset));
        float scale = nf4_scale(most, is_short);
        if (lane == 0) scales[block] = scale;
        if (within && codes)
            codes[at / 2] =
                (uint8_t)(nf4_nearest(nf4_in_block(first, scale, is_short)) << 4 | nf4_nearest(nf4_in_block(second, scale, is_short)));
    }
}

/* Runs in one thread block of NF4_LANES threads. offset NULL: not wanted. */
static __global__ void __launch_bounds__(NF4_LANES) nf4_mean(const float *scales, float *mean, float *offset, int64_t blocks)
{
    __shared__ double lanes[NF4_LANES];
    double            sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += NF4_LANES) sum += (double)scales[i];
    lanes[threadIdx.x] = sum;
    for (int half = NF4_LANES / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
    }
    if (threadIdx.x) return;
    *mean = (float)(lanes[0] / (double)blocks);
    if (offset) *offset = *mean;
}

static_assert(THREADS == (int)NF4_NESTED && THREADS == (int)DYNAMIC_MAGNITUDES, "a thread for each scale and for each entry of the map");

/* absmax, nested NULL: not wanted. */
static __global__ void nf4_scale_codes(const float *scales, const float *mean, uint8_t *absmax, float *nested, int64_t blocks)
{
    __shared__ DynamicMap map;
    __shared__ float      scratch[32];
    dynamic_map_entry(&map, true, threadIdx.x);
    __syncthreads();
    for (int64_t part = blockIdx.x; part * NF4_NESTED < blocks; part += gridDim.x) {
        int64_t i = part * NF4_NESTED + threadIdx.x;
        float   value = i < blocks ? scales[i] - *mean : 0, most = block_max(fmaxf(0, fabsf(value)), scratch);
        if (absmax && i < blocks) absmax[i] = (uint8_t)nf4_scale_code(&map, value, most);
        if (nested && threadIdx.x == 0) nested[part] = most;
    }
}

static Status nf4_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *out = args->out;
    int64_t           numel = type_numel(&x->type), blocks = cuda_div_up(numel, NF4_BLOCK);
    bool              once = ((const Nf4QuantiseAttrs *)args->attrs)->once;
    float            *scales = (float *)(once && out[OUT_ABSMAX].data ? out[OUT_ABSMAX].data : args->workspace), *mean = scales + blocks;
    cudaStream_t      stream = cuda_stream(args);
    CUDA_FLOAT(x->type.dtype, T, {
        nf4_blocks<T>
            <<<cuda_grid(blocks, WARPS), THREADS, 0, stream>>>((const T *)x->data, (uint8_t *)out[OUT_CODES].data, scales, numel, blocks);
    });
    if (once) return CUDA_LAUNCHED();
    nf4_mean<<<1, NF4_LANES, 0, stream>>>(scales, mean, (float *)out[OUT_OFFSET].data, blocks);
    nf4_scale_codes<<<cuda_grid(blocks, NF4_NESTED), THREADS, 0, stream>>>(scales, mean, (uint8_t *)out[OUT_ABSMAX].data,
                                                                           (float *)out[OUT_NESTED].data, blocks);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(nf4_quantise, {.dtypes = DT_SET_FLOAT,
                            .run = nf4_quantise_run,
                            .name = "warps",
                            .workspace = cuda_planned_workspace,
                            .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_NF4)},
                                       {.out = 1u << OUT_ABSMAX, .dtypes = DT_SET(DT_U8) | DT_SET_F32}}})
