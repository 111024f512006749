/* The plain matrix product, and random operands for measuring. */
#include "base/nvfp4_tiles.h"
#include "device/cuda/fp8.cuh"
#include "device/cuda/gemm.h"
#include "device/cuda/vec_f16.cuh"

enum { EDGE = 32, THREADS = 256 };

static __device__ __forceinline__ int64_t index_of(const GemmOperand &x, int64_t row, int64_t col)
{
    return x.offset + (x.trans ? col * x.stride + row : row * x.stride + col);
}

/* Element of an operand in FP4, whose stored rows run along k. */
static __device__ __forceinline__ float get_fp4(const GemmOperand &x, int64_t row, int64_t k)
{
    int64_t  i = row * x.stride + k;
    uint32_t code = ((const uint8_t *)x.data)[i / 2] >> (i % 2 * 4) & 15u;
    uint8_t  scale = x.blocks[nvfp4_scale_at(row, k / NVFP4_BLOCK, x.stride / NVFP4_BLOCK, true)];
    return small_decode(small_e2m1(), code) * small_decode(small_e4m3(), scale);
}

static __device__ __forceinline__ float get(const GemmOperand &x, int64_t row, int64_t col, bool row_is_k)
{
    if (x.dtype == DT_E2M1) return get_fp4(x, row_is_k ? col : row, row_is_k ? row : col);
    int64_t i = index_of(x, row, col);
    float   value = DT_SET(x.dtype) & DT_SET_FP8 ? fp8_get(x.data, x.dtype, i) : any_get(x.data, x.dtype, i);
    if (!gemm_has_block_scales(&x)) return value;
    value *= gemm_block_scale(&x, row_is_k ? col : row, row_is_k ? row : col);
    return x.to_bf16 ? to_float(__float2bfloat16_rn(value)) : value;
}

static __device__ __forceinline__ float whole_scale(const GemmOperand &x)
{
    return x.scale && x.scaling == GEMM_SCALE_WHOLE ? *x.scale : 1.0f;
}

typedef struct GroupSteps {
    int64_t a, b, c;
} GroupSteps;

/* Computes product blockIdx.z; its operands begin `steps` after those of the product before. A thread block computes EDGE x EDGE elements
 * of c. A thread computes 4 elements of one column, 8 rows apart. Sums run over k in order. */
static __global__ void __launch_bounds__(THREADS) gemm_tiles(Gemm g, GroupSteps steps)
{
    __shared__ float a_tile[EDGE][EDGE + 1], b_tile[EDGE][EDGE + 1];
    int              x = threadIdx.x % EDGE, y = threadIdx.x / EDGE;
    int64_t          row = (int64_t)blockIdx.x * EDGE, col = (int64_t)blockIdx.y * EDGE;
    float            sum[4] = {0};
    g.a.offset += blockIdx.z * steps.a, g.b.offset += blockIdx.z * steps.b, g.c.offset += blockIdx.z * steps.c;
    for (int64_t k = 0; k < g.k; k += EDGE) {
        for (int i = y; i < EDGE; i += THREADS / EDGE) {
            /* x runs along stored rows: for a along k, or along rows of c if a is transposed */
            int64_t ar = row + (g.a.trans ? x : i), ak = k + (g.a.trans ? i : x), bk = k + (g.b.trans ? x : i),
                    bc = col + (g.b.trans ? i : x);
            float a = ar < g.m && ak < g.k ? get(g.a, ar, ak, false) : 0, b = bc < g.n && bk < g.k ? get(g.b, bk, bc, true) : 0;
            a_tile[g.a.trans ? x : i][g.a.trans ? i : x] = a;
            b_tile[g.b.trans ? x : i][g.b.trans ? i : x] = b;
        }
        __syncthreads();
        for (int p = 0; p < EDGE; p++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] += a_tile[y + 8 * i][p] * b_tile[p][x];
        __syncthreads();
    }
    float factor = g.alpha * whole_scale(g.a) * whole_scale(g.b);
    for (int i = 0; i < 4; i++) {
        int64_t r = row + y + 8 * i, c = col + x, at = index_of(g.c, r, c);
        if (r >= g.m || c >= g.n) continue;
        float value = factor * sum[i];
        if (g.epilogue == GEMM_BIAS) value += any_get(g.bias.data, g.bias.dtype, g.bias.offset + c);
        if (g.accumulate) value += any_get(g.c.data, g.c.dtype, at);
        any_set(g.c.data, g.c.dtype, at, value);
    }
}

Status cuda_gemm_plain_groups(const Gemm *g, int64_t count, const int64_t steps[3], void *stream)
{
    if (!g->m || !g->n || !count) return OK;
    dim3 grid((unsigned)cuda_div_up(g->m, EDGE), (unsigned)cuda_div_up(g->n, EDGE), (unsigned)count);
    FAIL_IF(grid.y > 65535, ERR_UNSUPPORTED, "the plain matrix product is for at most %d columns, got %lld", 65535 * EDGE, (long long)g->n);
    FAIL_IF(grid.z > 65535, ERR_UNSUPPORTED, "the plain matrix product is for at most 65535 groups, got %lld", (long long)count);
    gemm_tiles<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*g, GroupSteps{steps[0], steps[1], steps[2]});
    return CUDA_LAUNCHED();
}

Status cuda_gemm_plain(const Gemm *g, void *stream)
{
    const int64_t none[3] = {0, 0, 0};
    return cuda_gemm_plain_groups(g, 1, none, stream);
}

static __global__ void make_factors(Gemm g, float *out)
{
    out[0] = g.alpha * whole_scale(g.a) * whole_scale(g.b);
    out[1] = g.accumulate ? 1.0f : 0.0f;
}

Status cuda_gemm_factors(const Gemm *g, float *out, void *stream)
{
    make_factors<<<1, 1, 0, (cudaStream_t)stream>>>(*g, out);
    return CUDA_LAUNCHED();
}

static __global__ void fill_random(void *data, int dtype, int64_t rows, int64_t cols, int64_t stride)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * THREADS) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h = (h ^ (h >> 15)) * 2246822519u;
        h ^= h >> 13;
        int64_t at = i / cols * stride + i % cols;
        float   value = (float)(int32_t)h * (1.0f / 2147483648.0f);
        if (dtype == DT_U8)
            ((uint8_t *)data)[at] = (uint8_t)h;
        else if (DT_SET(dtype) & DT_SET_FP8)
            ((uint8_t *)data)[at] = fp8_encode(value, dtype);
        else
            any_set(data, dtype, at, value);
    }
}

Status cuda_fill_random(void *data, DType dtype, int64_t rows, int64_t cols, int64_t stride, void *stream)
{
    if (dtype == DT_E2M1) return cuda_fill_random(data, DT_U8, rows, cols / 2, stride / 2, stream); /* a byte holds two codes */
    fill_random<<<cuda_grid(rows * cols, THREADS), THREADS, 0, (cudaStream_t)stream>>>(data, dtype, rows, cols, stride);
    return CUDA_LAUNCHED();
}

Status cuda_kernels_check(CudaDevice *device)
{
    cudaFuncAttributes attributes;
    (void)device;
    cudaError_t error = cudaFuncGetAttributes(&attributes, gemm_tiles);
    FAIL_IF(error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction, ERR_UNSUPPORTED,
            "device cuda: this build has no code for this GPU's compute capability: use `make release`, which builds "
            "for all");
    CUDA_TRY(error);
    return OK;
}
