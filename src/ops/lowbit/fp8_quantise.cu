/* fp8_quantise on CUDA: a thread block takes a tile of 128 x 128, a thread 4 rows of 16 columns of it. x is read once. */
#include "ops/lowbit/fp8_scaled.cuh"
#include "ops/lowbit/fp8_sixteen.cuh"

enum { IN_X, IN_SCALE };
enum { OUT_CODES, OUT_CODES_T, OUT_AMAX };
enum { EDGE = SCALED_GROUPS * COLS };

/* WHOLE: rows of x and of codes consist of whole, aligned packs of 16. tiles: number of tiles side by side. */
template <typename T, DType F, bool WHOLE>
static __global__ void __launch_bounds__(SCALED_THREADS, 3) fp8_tiles(const T *x, ScaledCodes q, unsigned tiles)
{
    __shared__ TurnedTile<COLS> turned;
    int64_t                     first_row = (int64_t)(blockIdx.x / tiles) * SCALED_ROWS, first_col = (int64_t)(blockIdx.x % tiles) * EDGE;
    int64_t                     row = first_row + threadIdx.x / SCALED_GROUPS * SCALED_EACH;
    int64_t                     col = first_col + threadIdx.x % SCALED_GROUPS * COLS;
    float                       factor = q.scale[FP8_SCALE];
    unsigned                    seen = seen_most(q);
    Row<T>                      rows[SCALED_EACH];
    uint32_t                    words[SCALED_EACH][WORDS], most = 0;
#pragma unroll
    for (int r = 0; r < SCALED_EACH; r++) rows[r] = load_row<T, WHOLE>(x, q.rows, q.cols, row + r, col);
#pragma unroll
    for (int r = 0; r < SCALED_EACH; r++) {
        float v[COLS];
#pragma unroll
        for (int i = 0; i < COLS; i++) v[i] = rows[r].get(i);
        most = max(most, encode_scaled<COLS>(v, factor, F, words[r]));
        if (q.codes && row + r < q.rows && col < q.cols) store_codes<WHOLE>(q.codes + (row + r) * q.cols + col, q.cols - col, words[r]);
    }
    if (q.codes_t) {
        put_turned<COLS>(turned, words);
        __syncthreads();
        store_turned<COLS>(q, turned, first_row, first_col, q.cols);
    }
    record_most(q, most, seen);
}

template <typename T, DType F>
static void launch_tiles(const void *x, const ScaledCodes &q, unsigned blocks, unsigned tiles, cudaStream_t stream)
{
    auto kernel = q.cols % COLS == 0 && is_aligned16(x) && is_aligned16(q.codes) ? fp8_tiles<T, F, true> : fp8_tiles<T, F, false>;
    kernel<<<blocks, SCALED_THREADS, 0, stream>>>((const T *)x, q, tiles);
}

static Status fp8_quantise_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[IN_X];
    int64_t           format = ((const Fp8QuantiseAttrs *)args->attrs)->dtype;
    ScaledCodes       q = scaled_codes(args, OUT_CODES, IN_SCALE, format, type_rows(&x->type), type_cols(&x->type));
    unsigned          blocks, tiles;
    TRY(scaled_grid(q.rows, q.cols, COLS, &blocks, &tiles));
    CUDA_FLOAT(x->type.dtype, T, {
        if (q.format == DT_E4M3)
            launch_tiles<T, DT_E4M3>(x->data, q, blocks, tiles, cuda_stream(args));
        else
            launch_tiles<T, DT_E5M2>(x->data, q, blocks, tiles, cuda_stream(args));
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_quantise, {.dtypes = DT_SET_FLOAT,
                            .run = fp8_quantise_run,
                            .name = "tiles",
                            .except = {{.out = 1u << OUT_CODES | 1u << OUT_CODES_T, .dtypes = DT_SET_FP8}}})
