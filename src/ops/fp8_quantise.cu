/* fp8_quantise on CUDA: a block takes a tile of 128 x 128, a thread 4 rows of 16 columns of it. x is read once. Codes go out as they lie;
 * those of the transpose by way of shared memory, where a word is one column's codes of 4 rows, so that both are written 128 bytes in
 * a row. The largest magnitude is the same in whatever order blocks report theirs. */
#include "device/cuda/fp8.cuh"
#include "ops/attrs.h"
#include "ops/fp8.h"
#include "ops/fp8_sixteen.cuh"

enum { OUT_CODES, OUT_CODES_T, OUT_AMAX };
enum { EDGE = 128, THREADS = 256, ROWS = 4, GROUPS = EDGE / COLS, WARPS = THREADS / 32 };

typedef struct Quantise {
    const void  *x;
    const float *scale;
    uint8_t     *codes, *codes_t; /* NULL: not wanted */
    unsigned    *amax;            /* bits of a float that isn't negative; NULL: not wanted */
    int64_t      rows, cols;
    unsigned     tiles;   /* beside each other */
    bool         whole_t; /* rows of codes_t are whole pieces of 16, well aligned */
} Quantise;

/* Returns the largest finite magnitude. */
template <typename T, DType F> static __device__ __forceinline__ uint32_t encode_row(const Row<T> &row, float factor, uint32_t *words)
{
    float    v[COLS];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < COLS; i++) {
        v[i] = row.get(i);
        most = max(most, small_magnitude(v[i]));
    }
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        float scaled[4];
#pragma unroll
        for (int i = 0; i < 4; i++) scaled[i] = v[4 * w + i] * factor;
        words[w] = fp8_encode4(scaled, F);
    }
    if (most < FP8_INFINITE) return most;
    most = 0;
#pragma unroll
    for (int i = 0; i < COLS; i++) {
        uint32_t magnitude = small_magnitude(v[i]), shift = 8 * (i % 4);
        if (magnitude < FP8_INFINITE)
            most = max(most, magnitude);
        else
            words[i / 4] = (words[i / 4] & ~(0xFFu << shift)) | fp8_nan(F) << shift;
    }
    return most;
}

/* Word i of the result is byte i of each of the four. */
static __device__ __forceinline__ void turn_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t *out)
{
    uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(ab_low, cd_low, 0x5410);
    out[1] = __byte_perm(ab_low, cd_low, 0x7632);
    out[2] = __byte_perm(ab_high, cd_high, 0x5410);
    out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

/* Columns of the tile as rows of codes_t: 8 threads a column, 16 codes each. */
static __device__ __forceinline__ void store_turned(const Quantise &q, const uint32_t (*turned)[EDGE / 4], int64_t row, int64_t col)
{
    for (int piece = threadIdx.x; piece < EDGE * GROUPS; piece += THREADS) {
        int      c = piece / GROUPS, part = piece % GROUPS;
        int64_t  at = row + part * COLS;
        uint8_t *to = q.codes_t + (col + c) * q.rows + at;
        uint4    words = *reinterpret_cast<const uint4 *>(&turned[c][(part ^ c / COLS) * WORDS]);
        if (col + c >= q.cols || at >= q.rows) continue;
        if (q.whole_t) {
            *reinterpret_cast<uint4 *>(to) = words;
            continue;
        }
        uint32_t each[WORDS] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < COLS; i++)
            if (at + i < q.rows) to[i] = (uint8_t)(each[i / 4] >> (8 * (i % 4)));
    }
}

/* WHOLE: rows of x and of codes are whole pieces of 16, well aligned. */
template <typename T, DType F, bool WHOLE> static __global__ void __launch_bounds__(THREADS, 3) fp8_tiles(Quantise q)
{
    /* Word `band` of a column lies at band ^ 4 group: writes of a warp and reads of 8 threads then meet every bank once. */
    __shared__ __align__(16) uint32_t turned[EDGE][EDGE / 4];
    __shared__ uint32_t               largest[WARPS];
    int                               group = threadIdx.x % GROUPS, band = threadIdx.x / GROUPS;
    int64_t  first_row = (int64_t)(blockIdx.x / q.tiles) * EDGE, first_col = (int64_t)(blockIdx.x % q.tiles) * EDGE;
    int64_t  row = first_row + band * ROWS, col = first_col + group * COLS;
    float    factor = q.scale[FP8_SCALE];
    Row<T>   rows[ROWS];
    uint32_t words[ROWS][WORDS], most = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows[r] = load_row<T, WHOLE>((const T *)q.x, q.rows, q.cols, row + r, col);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        most = max(most, encode_row<T, F>(rows[r], factor, words[r]));
        if (q.codes && row + r < q.rows && col < q.cols) store_codes<WHOLE>(q.codes + (row + r) * q.cols + col, q.cols - col, words[r]);
    }
    if (q.codes_t) {
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            uint32_t columns[4];
            turn_bytes(words[0][w], words[1][w], words[2][w], words[3][w], columns);
#pragma unroll
            for (int i = 0; i < 4; i++) turned[group * COLS + 4 * w + i][band ^ 4 * group] = columns[i];
        }
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    if (q.codes_t) store_turned(q, turned, first_row, first_col);
    if (threadIdx.x || !q.amax) return;
    for (int i = 1; i < WARPS; i++) most = max(most, largest[i]);
    if (most > *(volatile unsigned *)q.amax) atomicMax(q.amax, most);
}

template <typename T, DType F> static void launch_tiles(const Quantise &q, unsigned blocks, cudaStream_t stream)
{
    if (q.cols % COLS == 0 && is_aligned16(q.x) && is_aligned16(q.codes))
        fp8_tiles<T, F, true><<<blocks, THREADS, 0, stream>>>(q);
    else
        fp8_tiles<T, F, false><<<blocks, THREADS, 0, stream>>>(q);
}

static Status fp8_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *out = args->out;
    Quantise          q = {x->data,
                           (const float *)args->in[1].data,
                           (uint8_t *)out[OUT_CODES].data,
                           (uint8_t *)out[OUT_CODES_T].data,
                           (unsigned *)out[OUT_AMAX].data,
                           type_rows(&x->type),
                           type_cols(&x->type),
                           (unsigned)cuda_div_up(type_cols(&x->type), EDGE)};
    int64_t           blocks = cuda_div_up(q.rows, EDGE) * q.tiles;
    q.whole_t = q.rows % COLS == 0 && is_aligned16(q.codes_t);
    FAIL_IF(blocks > INT32_MAX, ERR_UNSUPPORTED, "fp8_quantise is for at most %lld elements", (long long)INT32_MAX * EDGE * EDGE);
    CUDA_FLOAT(x->type.dtype, T, {
        if (fp8_dtype(((const Fp8QuantiseAttrs *)args->attrs)->dtype) == DT_E4M3)
            launch_tiles<T, DT_E4M3>(q, (unsigned)blocks, cuda_stream(args));
        else
            launch_tiles<T, DT_E5M2>(q, (unsigned)blocks, cuda_stream(args));
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_quantise, {.dtypes = DT_SET_FLOAT,
                            .run = fp8_quantise_run,
                            .name = "tiles",
                            .except = {{.out = 1u << OUT_CODES | 1u << OUT_CODES_T, .dtypes = DT_SET_FP8}}})
