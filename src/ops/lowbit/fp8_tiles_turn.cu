/* fp8_tiles_turn on CUDA: 32 x 32 codes at a time, through shared memory. It runs once, when a weight is loaded. */
#include "device/cuda/kernel.h"
#include "device/cuda/vec.cuh"
#include "ops/lowbit/fp8_tiles.h"

enum { IN_CODES, IN_SCALE };
enum { OUT_CODES_T, OUT_SCALE_T, OUT_PADDED };
enum { EDGE = 32, THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) turn_codes(const uint8_t *codes, uint8_t *out, int64_t rows, int64_t cols)
{
    __shared__ uint8_t tile[EDGE][EDGE + 4];
    int64_t            across = (cols + EDGE - 1) / EDGE, row = blockIdx.x / across * EDGE, col = blockIdx.x % across * EDGE;
    int                x = threadIdx.x % EDGE;
    for (int y = threadIdx.x / EDGE; y < EDGE; y += THREADS / EDGE)
        if (row + y < rows && col + x < cols) tile[y][x] = codes[(row + y) * cols + col + x];
    __syncthreads();
    for (int y = threadIdx.x / EDGE; y < EDGE; y += THREADS / EDGE)
        if (col + y < cols && row + x < rows) out[(col + y) * rows + row + x] = tile[x][y];
}

/* Copies scales (down, across), or their transpose, into rows of `stride` padded with zeros. */
static __global__ void copy_scales(const float *scale, float *out, int64_t down, int64_t across, int64_t stride, bool turned)
{
    int64_t count = (turned ? across : down) * stride;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / stride, col = i % stride;
        out[i] = col >= (turned ? down : across) ? 0 : scale[turned ? col * across + row : row * across + col];
    }
}

static Status fp8_tiles_turn_run(const KernelArgs *args)
{
    const TensorType *type = &args->in[IN_CODES].type, *scales = &args->in[IN_SCALE].type;
    const float      *scale = (const float *)args->in[IN_SCALE].data;
    cudaStream_t      stream = cuda_stream(args);
    int64_t           blocks = cuda_div_up(type->dim[0], EDGE) * cuda_div_up(type->dim[1], EDGE);
    FAIL_IF(blocks > INT32_MAX, ERR_UNSUPPORTED, "fp8_tiles_turn is for at most %lld elements", (long long)INT32_MAX * EDGE * EDGE);
    if (args->out[OUT_CODES_T].data)
        turn_codes<<<(unsigned)blocks, THREADS, 0, stream>>>((const uint8_t *)args->in[IN_CODES].data,
                                                             (uint8_t *)args->out[OUT_CODES_T].data, type->dim[0], type->dim[1]);
    for (int k = OUT_SCALE_T; k <= OUT_PADDED; k++) {
        const TensorView *out = &args->out[k];
        if (!out->data) continue;
        copy_scales<<<cuda_grid(type_numel(&out->type), THREADS), THREADS, 0, stream>>>(scale, (float *)out->data, scales->dim[0],
                                                                                        scales->dim[1], out->type.dim[1], k == OUT_SCALE_T);
    }
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_tiles_turn, {.dtypes = DT_SET_F32,
                              .run = fp8_tiles_turn_run,
                              .name = "tiles",
                              .except = {{.in = 1u << IN_CODES, .out = 1u << OUT_CODES_T, .dtypes = DT_SET(DT_E4M3)}}})
