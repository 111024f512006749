/* nvfp4_dequantise on CUDA, 8 elements a thread at a time: 4 bytes of codes, 16 of bf16 or 32 of fp32; TURNS of them are loaded before the
 * first is stored. The transpose goes by squares of 16 x 16, one a warp, through shared memory. Memory: 2.6 bytes an element in bf16. */
#include "device/cuda/vec.cuh"
#include "ops/attrs.h"
#include "ops/lowbit/nvfp4.h"

enum { IN_CODES, IN_SCALE, IN_GLOBAL };
enum { THREADS = 256, WARPS = THREADS / 32, TURNS = 4, HALF = NVFP4_BLOCK / 2, PACKS_PER_CTA = THREADS * TURNS };
enum { STRIDE = NVFP4_BLOCK + 2 /* so that columns of 8 rows, read by two lanes at a time, are in different banks */ };

static __device__ __forceinline__ uint32_t load_word(const uint8_t *codes, bool wide)
{
    if (wide) return *(const uint32_t *)codes;
    return codes[0] | codes[1] << 8 | codes[2] << 16 | (uint32_t)codes[3] << 24;
}

static __device__ __forceinline__ void decode(uint32_t word, uint8_t scale_code, float global, float *v)
{
    float scale = nvfp4_scale(scale_code);
#pragma unroll
    for (int k = 0; k < HALF; k++) v[k] = nvfp4_value(word >> (4 * k) & 15, scale, global);
}

/* For each member the number of packs of 8 elements up to its end; the last entry is the number of all packs. */
typedef struct Members {
    int64_t end[DEQUANTISE_MAX_MEMBERS];
} Members;

/* The scales and their layout. */
typedef struct Scales {
    const uint8_t *data;
    int64_t        blocks; /* in a row */
    bool           tiled;
} Scales;

/* The scale's code of block number `block`. */
static __device__ __forceinline__ uint8_t scale_of(const Scales &scales, int64_t block)
{
    return scales.data[scales.tiled ? nvfp4_scale_at(block / scales.blocks, block % scales.blocks, scales.blocks, true) : block];
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    nvfp4_packs(const uint8_t *codes, Scales scales, const float *global, T *w, Members members, int64_t packs, bool wide)
{
    for (int64_t begin = (int64_t)blockIdx.x * PACKS_PER_CTA; begin < packs; begin += (int64_t)gridDim.x * PACKS_PER_CTA) {
        uint32_t word[TURNS];
        uint8_t  scale[TURNS];
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            int64_t i = begin + t * THREADS + threadIdx.x;
            if (i >= packs) break;
            word[t] = load_word(codes + i * 4, wide);
            scale[t] = scale_of(scales, i / 2);
        }
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            int64_t i = begin + t * THREADS + threadIdx.x;
            float   v[HALF];
            if (i >= packs) break;
            decode(word[t], scale[t], global[(i >= members.end[0]) + (i >= members.end[1])], v);
            store_eight(w + i * HALF, v, wide, HALF);
        }
    }
}

/* Decodes codes (rows,cols) to w (cols,rows). A warp takes squares below each other; a lane has one half of line lane / 2. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    nvfp4_transposed(const uint8_t *codes, Scales scales, const float *global, T *w, int64_t rows, int64_t cols, bool wide)
{
    __shared__ float squares[WARPS][NVFP4_BLOCK * STRIDE];
    float           *square = squares[threadIdx.x / 32];
    int              line = threadIdx.x % 32 / 2, first = (threadIdx.x & 1) * HALF;
    for (int64_t down = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; down * NVFP4_BLOCK < rows; down += (int64_t)gridDim.x * WARPS)
        for (int64_t across = blockIdx.y; across * NVFP4_BLOCK < cols; across += gridDim.y) {
            int64_t row = min(down * NVFP4_BLOCK + line, rows - 1), at = row * cols + across * NVFP4_BLOCK + first;
            int64_t col = down * NVFP4_BLOCK + first; /* of w */
            float   v[HALF];
            decode(load_word(codes + at / 2, wide), scale_of(scales, at / NVFP4_BLOCK), *global, v);
            __syncwarp();
#pragma unroll
            for (int k = 0; k < HALF; k++) square[line * STRIDE + first + k] = v[k];
            __syncwarp();
#pragma unroll
            for (int k = 0; k < HALF; k++) v[k] = square[(first + k) * STRIDE + line];
            store_eight(w + (across * NVFP4_BLOCK + line) * rows + col, v, wide && rows % 8 == 0, rows - col);
        }
}

static Status nvfp4_dequantise_run(const KernelArgs *args)
{
    const TensorView      *in = args->in, *w = &args->out[0];
    const DequantiseAttrs *attrs = (const DequantiseAttrs *)args->attrs;
    const uint8_t         *codes = (const uint8_t *)in[IN_CODES].data;
    const float           *global = (const float *)in[IN_GLOBAL].data;
    cudaStream_t           stream = cuda_stream(args);
    int64_t                packs = type_numel(&w->type) / HALF, cols = type_cols(&in[IN_CODES].type), rows = type_rows(&in[IN_CODES].type);
    int64_t                member_rows[DEQUANTISE_MAX_MEMBERS], end = 0;
    bool                   wide = (uintptr_t)codes % 4 == 0 && is_aligned16(w->data);
    int                    count = dequantise_members(attrs, rows, member_rows);
    Scales                 scales = {(const uint8_t *)in[IN_SCALE].data, cols / NVFP4_BLOCK, attrs->tiled};
    Members                members;
    dim3                   grid(cuda_grid(cuda_div_up(rows, NVFP4_BLOCK), WARPS), cuda_grid(cols, NVFP4_BLOCK));
    for (int m = 0; m < DEQUANTISE_MAX_MEMBERS; m++) {
        end += m < count ? member_rows[m] * cols / HALF : 0;
        members.end[m] = end;
    }
    CUDA_FLOAT(w->type.dtype, T, {
        if (attrs->transposed)
            nvfp4_transposed<T><<<grid, THREADS, 0, stream>>>(codes, scales, global, (T *)w->data, rows, cols, wide);
        else
            nvfp4_packs<T>
                <<<cuda_grid(packs, PACKS_PER_CTA), THREADS, 0, stream>>>(codes, scales, global, (T *)w->data, members, packs, wide);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(nvfp4_dequantise, {.dtypes = DT_SET_FLOAT,
                                .run = nvfp4_dequantise_run,
                                .name = "packs",
                                .except = {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_E2M1)},
                                           {.in = 1u << IN_SCALE, .dtypes = DT_SET(DT_E4M3)},
                                           {.in = 1u << IN_GLOBAL, .dtypes = DT_SET_F32}}})
