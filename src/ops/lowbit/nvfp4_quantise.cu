/* nvfp4_quantise on CUDA, in two launches: the largest magnitude of the tensor, then the codes. A warp takes DEEP squares of 16 x 16
 * elements below each other. In each square a lane has half a line, 8 elements, so that two lanes share a block, and a warp has all of a
 * square block. The transpose goes through shared memory of the warp alone. x is read twice. Arithmetic and draws are the CPU's.
 *
 * Magnitudes are compared as integers by atomics: their order changes nothing. */
#include "device/cuda/vec.cuh"
#include "ops/attrs.h"
#include "ops/lowbit/nvfp4.h"
#include "ops/random.h"

enum { IN_X, IN_STEP, IN_DOC_ID, IN_POSITIONS };
enum { OUT_CODES, OUT_SCALE, OUT_GLOBAL };
enum { THREADS = 256, WARPS = THREADS / 32, DEEP = 2, HALF = NVFP4_BLOCK / 2 };
enum { STRIDE = NVFP4_BLOCK + 2 /* so that columns of 8 rows, read by two lanes at a time, are in different banks */ };

typedef struct Quantise {
    uint8_t       *codes, *scales; /* NULL: not wanted */
    float         *global;
    uint32_t      *most; /* largest magnitude */
    const int64_t *step;
    const int32_t *doc_id, *positions;
    int64_t        rows, cols;
    Nvfp4Attrs     attrs;
    bool           wide;   /* rows of x are aligned to 16 bytes */
    bool           packed; /* codes is aligned to 4 bytes */
} Quantise;

/* A lane's part of a square: elements [8 half, 8 half + 8) of a line. */
typedef struct Lane {
    int64_t  line, at; /* number of the line; index of the lane's first element in the line */
    bool     inside;
    float    v[HALF];
    uint32_t most; /* largest magnitude of its block, or of the square */
} Lane;

static __device__ __forceinline__ int half_of_lane(void)
{
    return threadIdx.x & 1;
}

/* Transposes a square over the lanes: element (i, 8 half + k) becomes element (8 half + k, i), where i is lane / 2. */
static __device__ __forceinline__ void transpose(float *v, float *square)
{
    int line = threadIdx.x % 32 / 2, first = half_of_lane() * HALF;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < HALF; k++) square[line * STRIDE + first + k] = v[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < HALF; k++) v[k] = square[(first + k) * STRIDE + line];
}

static __device__ __forceinline__ void hadamard(float *v)
{
    bool is_second = half_of_lane();
#pragma unroll
    for (int k = 0; k < HALF; k++) v[k] = nvfp4_signed(v[k], (is_second ? HALF : 0) + k);
    nvfp4_hadamard8(v);
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, v[k], 1);
        v[k] = nvfp4_hadamard_join(is_second ? other : v[k], is_second ? v[k] : other, is_second);
    }
}

/* The row and first column of x that a lane loads. */
static __device__ __forceinline__ int64_t lane_row(int64_t down)
{
    return down * NVFP4_BLOCK + threadIdx.x % 32 / 2;
}
static __device__ __forceinline__ int64_t lane_col(int64_t across)
{
    return across * NVFP4_BLOCK + half_of_lane() * HALF;
}

template <typename T>
static __device__ __forceinline__ void load_deep(const Quantise *q, const T *x, int64_t down, int64_t across, Eight<T> *raw)
{
#pragma unroll
    for (int d = 0; d < DEEP; d++) {
        int64_t row = lane_row(down + d), col = lane_col(across);
        if (row < q->rows) raw[d].load(x + row * q->cols + col, q->wide, q->cols - col);
    }
}

/* Called by all lanes. square: shared memory of the warp. */
template <bool TRANSPOSED, typename T>
static __device__ __forceinline__ Lane lane_make(const Quantise *q, const Eight<T> *raw, int64_t down, int64_t across, float *square)
{
    Lane l;
#pragma unroll
    for (int k = 0; k < HALF; k++) l.v[k] = raw->get(k);
    if (TRANSPOSED) transpose(l.v, square);
    l.line = (TRANSPOSED ? across : down) * NVFP4_BLOCK + threadIdx.x % 32 / 2;
    l.at = (TRANSPOSED ? down : across) * NVFP4_BLOCK + half_of_lane() * HALF;
    l.inside = l.line < (TRANSPOSED ? q->cols : q->rows) && l.at < (TRANSPOSED ? q->rows : q->cols);
    if (q->attrs.hadamard) hadamard(l.v);
    l.most = 0;
#pragma unroll
    for (int k = 0; k < HALF; k++) l.most = max(l.most, small_magnitude(l.v[k]));
    l.most = max(l.most, __shfl_xor_sync(0xFFFFFFFFu, l.most, 1));
    if (q->attrs.two_d) l.most = __reduce_max_sync(0xFFFFFFFFu, l.most);
    return l;
}

static __device__ __forceinline__ uint64_t lane_error(const Quantise *q, const Lane *l, uint32_t code, float global)
{
    float    scale = nvfp4_scale(code), inverse = nvfp4_inverse(global, scale), unit = nvfp4_error_unit(l->most, global);
    uint64_t error = 0;
#pragma unroll
    for (int k = 0; k < HALF; k++) error += nvfp4_error(l->v[k], global, scale, inverse, unit);
    for (int offset = 1; offset < (q->attrs.two_d ? 32 : 2); offset *= 2)
        error += __shfl_xor_sync(0xFFFFFFFFu, (unsigned long long)error, offset);
    return error;
}

static __device__ __forceinline__ uint32_t lane_scale(const Quantise *q, const Lane *l, float global)
{
    uint32_t six = nvfp4_scale_code(l->most, 6, global);
    if (!q->attrs.four_six) return six;
    uint32_t four = nvfp4_scale_code(l->most, 4, global);
    return lane_error(q, l, four, global) < lane_error(q, l, six, global) ? four : six;
}

/* 16 random bits for each of the lane's elements, stored as the bits of floats, which the transpose moves unchanged. */
template <bool TRANSPOSED>
static __device__ __forceinline__ void lane_draw(const Quantise *q, uint64_t key, int64_t down, int64_t across, float *square,
                                                 float *random)
{
    int64_t row = min(lane_row(down), q->rows - 1);
    Philox4 draw = random_octet(key, q->doc_id[row], q->positions[row], (uint32_t)(lane_col(across) / HALF));
#pragma unroll
    for (int k = 0; k < HALF; k++) random[k] = __uint_as_float(random_of_octet(&draw, k));
    if (TRANSPOSED) transpose(random, square);
}

static __device__ __forceinline__ void lane_store(const Quantise *q, const Lane *l, uint32_t word, uint32_t scale, int64_t length)
{
    int64_t at = l->line * length + l->at;
    if (!l->inside) return;
    if (q->scales && half_of_lane() == 0)
        q->scales[nvfp4_scale_at(l->line, l->at / NVFP4_BLOCK, length / NVFP4_BLOCK, q->attrs.tiled)] = (uint8_t)scale;
    if (!q->codes) return;
    if (q->packed) {
        *(uint32_t *)(q->codes + at / 2) = word;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) q->codes[at / 2 + i] = (uint8_t)(word >> (8 * i));
    }
}

/* The first square of a warp; the next ones are a whole grid further. */
static __device__ __forceinline__ int64_t first_down(void)
{
    return (int64_t)blockIdx.y * DEEP;
}
static __device__ __forceinline__ int64_t first_across(void)
{
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

template <bool TRANSPOSED, typename T> static __global__ void __launch_bounds__(THREADS) nvfp4_most(Quantise q, const T *x)
{
    __shared__ float    squares[TRANSPOSED ? WARPS : 1][NVFP4_BLOCK * STRIDE];
    float              *square = squares[TRANSPOSED ? threadIdx.x / 32 : 0];
    __shared__ uint32_t of_warp[WARPS];
    uint32_t            most = 0;
    for (int64_t down = first_down(); down * NVFP4_BLOCK < q.rows; down += (int64_t)gridDim.y * DEEP)
        for (int64_t across = first_across(); across * NVFP4_BLOCK < q.cols; across += (int64_t)gridDim.x * WARPS) {
            Eight<T> raw[DEEP];
            load_deep(&q, x, down, across, raw);
#pragma unroll
            for (int d = 0; d < DEEP; d++) most = max(most, lane_make<TRANSPOSED>(&q, &raw[d], down + d, across, square).most);
        }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) most = max(most, of_warp[i]);
    if (threadIdx.x == 0 && most > *(volatile uint32_t *)q.most) atomicMax(q.most, most);
}

template <bool TRANSPOSED, typename T> static __global__ void __launch_bounds__(THREADS) nvfp4_squares(Quantise q, const T *x)
{
    __shared__ float squares[TRANSPOSED ? WARPS : 1][NVFP4_BLOCK * STRIDE];
    float           *square = squares[TRANSPOSED ? threadIdx.x / 32 : 0], global = nvfp4_global(*q.most, q.attrs.four_six);
    uint64_t         key = q.attrs.stochastic ? random_key(q.step[STEP_SEED], q.step[STEP_INDEX], RANDOM_NVFP4, q.attrs.site) : 0;
    if (q.global && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *q.global = global;
    for (int64_t down = first_down(); down * NVFP4_BLOCK < q.rows; down += (int64_t)gridDim.y * DEEP)
        for (int64_t across = first_across(); across * NVFP4_BLOCK < q.cols; across += (int64_t)gridDim.x * WARPS) {
            Eight<T> raw[DEEP];
            load_deep(&q, x, down, across, raw);
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                Lane     l = lane_make<TRANSPOSED>(&q, &raw[d], down + d, across, square);
                uint32_t scale = lane_scale(&q, &l, global), word = 0;
                float    inverse = nvfp4_inverse(global, nvfp4_scale(scale)), random[HALF];
                if (q.attrs.stochastic) lane_draw<TRANSPOSED>(&q, key, down + d, across, square, random);
#pragma unroll
                for (int k = 0; k < HALF; k++)
                    word |= (q.attrs.stochastic ? small_stochastic(small_e2m1(), l.v[k] * inverse, __float_as_uint(random[k]))
                                                : nvfp4_code(l.v[k], inverse))
                            << (4 * k);
                lane_store(&q, &l, word, scale, TRANSPOSED ? q.rows : q.cols);
            }
        }
}

template <bool TRANSPOSED, typename T> static void launch(const KernelArgs *args, const Quantise *q, const T *x)
{
    dim3 grid(cuda_grid(cuda_div_up(q->cols, NVFP4_BLOCK), WARPS), cuda_grid(cuda_div_up(q->rows, NVFP4_BLOCK), DEEP));
    nvfp4_most<TRANSPOSED><<<grid, THREADS, 0, cuda_stream(args)>>>(*q, x);
    nvfp4_squares<TRANSPOSED><<<grid, THREADS, 0, cuda_stream(args)>>>(*q, x);
}

static Status nvfp4_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[IN_X], *out = args->out;
    Quantise          q = {};
    q.codes = (uint8_t *)out[OUT_CODES].data;
    q.scales = (uint8_t *)out[OUT_SCALE].data;
    q.global = (float *)out[OUT_GLOBAL].data;
    q.most = (uint32_t *)args->workspace;
    q.step = (const int64_t *)args->in[IN_STEP].data;
    q.doc_id = (const int32_t *)args->in[IN_DOC_ID].data;
    q.positions = (const int32_t *)args->in[IN_POSITIONS].data;
    q.rows = type_rows(&x->type);
    q.cols = type_cols(&x->type);
    q.attrs = *(const Nvfp4Attrs *)args->attrs;
    q.wide = q.cols % 8 == 0 && is_aligned16(x->data);
    q.packed = (uintptr_t)q.codes % 4 == 0;
    CUDA_TRY(cudaMemsetAsync(q.most, 0, sizeof *q.most, cuda_stream(args)));
    if (q.attrs.tiled && q.scales) CUDA_TRY(cudaMemsetAsync(q.scales, 0, (size_t)type_bytes(&out[OUT_SCALE].type), cuda_stream(args)));
    CUDA_FLOAT(x->type.dtype, T, {
        if (q.attrs.transposed)
            launch<true>(args, &q, (const T *)x->data);
        else
            launch<false>(args, &q, (const T *)x->data);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(nvfp4_quantise,
             {.dtypes = DT_SET_FLOAT,
              .run = nvfp4_quantise_run,
              .name = "squares",
              .workspace = cuda_planned_workspace,
              .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E2M1)}, {.out = 1u << OUT_SCALE, .dtypes = DT_SET(DT_E4M3)}}})
