/* fp8_rows_quantise on CUDA: a warp takes 512 elements of some rows, a thread 16 of each row. They stay in registers between the search for
 * the largest magnitude, among 8 threads, and the encoding. All loads are in flight at once; x is read once. */
#include "ops/lowbit/fp8_rows.cuh"
#include "ops/lowbit/fp8_sixteen.cuh"

enum { OUT_CODES, OUT_SCALE };
enum { THREADS = 256, WARPS = THREADS / 32, ACROSS = FP8_TILE / COLS, PIECE = 32 * COLS };

typedef struct BlockCodes {
    uint8_t *codes;
    float   *scales; /* each NULL: not wanted */
    int64_t  rows, cols;
} BlockCodes;

/* WHOLE: rows of x and of codes consist of whole, aligned packs of 16. */
template <typename T, bool WHOLE> static __global__ void __launch_bounds__(THREADS, 4) fp8_rows(const T *x, BlockCodes q, unsigned pieces)
{
    enum { ROWS = 8 / sizeof(T) };
    int64_t row = (int64_t)(blockIdx.x / pieces) * WARPS * ROWS + threadIdx.x / 32 * ROWS;
    int64_t col = (int64_t)(blockIdx.x % pieces) * PIECE + threadIdx.x % 32 * COLS;
    Row<T>  rows[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows[r] = load_row<T, WHOLE>(x, q.rows, q.cols, row + r, col);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float    v[COLS];
        uint32_t most = 0, words[WORDS];
#pragma unroll
        for (int i = 0; i < COLS; i++) {
            v[i] = rows[r].get(i);
            most = max(most, small_magnitude(v[i]));
        }
        float scale = fp8_row_scale(most_of<ACROSS>(most)), inverse = 1 / scale;
        if (row + r >= q.rows || col >= q.cols) continue;
        if (q.scales && col % FP8_TILE == 0) q.scales[col / FP8_TILE * q.rows + row + r] = scale;
        if (!q.codes) continue;
#pragma unroll
        for (int i = 0; i < COLS; i++) v[i] *= inverse;
#pragma unroll
        for (int w = 0; w < WORDS; w++) words[w] = fp8_encode4(v + 4 * w, DT_E4M3);
        store_codes<WHOLE>(q.codes + (row + r) * q.cols + col, q.cols - col, words);
    }
}

static Status fp8_rows_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    BlockCodes q = {(uint8_t *)args->out[OUT_CODES].data, (float *)args->out[OUT_SCALE].data, type_rows(&x->type), type_cols(&x->type)};
    int64_t    each = WARPS * 8 / dtype_bytes(x->type.dtype, 1), pieces = cuda_div_up(q.cols, PIECE);
    int64_t    blocks = cuda_div_up(q.rows, each) * pieces;
    bool       whole = q.cols % COLS == 0 && is_aligned16(x->data) && is_aligned16(q.codes);
    FAIL_IF(blocks > INT32_MAX, ERR_UNSUPPORTED, "fp8_rows_quantise is for at most %lld elements", (long long)INT32_MAX * each * PIECE);
    CUDA_FLOAT(x->type.dtype, T, {
        auto kernel = whole ? fp8_rows<T, true> : fp8_rows<T, false>;
        kernel<<<(unsigned)blocks, THREADS, 0, cuda_stream(args)>>>((const T *)x->data, q, (unsigned)pieces);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_rows_quantise, {.dtypes = DT_SET_FLOAT,
                                 .run = fp8_rows_quantise_run,
                                 .name = "rows",
                                 .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}})
