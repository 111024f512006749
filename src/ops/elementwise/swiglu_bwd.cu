/* swiglu_bwd on CUDA: with s = sigmoid(gate): dup = dh gate s, dgate = dh up s (1 + gate (1 - s)); with gelu see swiglu_bwd.c. With
 * codes under one scale, a thread block computes a tile of 128 rows and 64 columns of dh, and a thread 4 rows of 8 columns. */
#include "ops/elementwise/gelu.h"
#include "ops/lowbit/fp8_rows.cuh"
#include "ops/rows.cuh"

enum { IN_DH, IN_GATE, IN_UP, IN_SCALE };
enum { OUT_DGATE, OUT_DUP, OUT_CODES, OUT_MORE };
enum { PER = 8 };

/* Stores dgate in dg, and dup in u. */
template <typename T, int N, bool GELU>
static __device__ __forceinline__ void gated_bwd(const float *d, const float *g, float *u, float *dg)
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        float s = 1.0f / (1.0f + exp_for<T>(-(GELU ? gelu_argument(g[k]) : g[k])));
        dg[k] = d[k] * u[k] * s * (1.0f + g[k] * (1.0f - s) * (GELU ? gelu_argument_slope(g[k]) : 1.0f));
        u[k] = d[k] * g[k] * s;
    }
}

/* Element (row, f) of gate, up, dgate and dup is at row * stride + f of its pointer. CODES: also makes codes with scales of blocks; then
 * dgate and dup are packed, and may be NULL. */
template <typename T, int CODES, bool GELU>
static __global__ void swiglu_bwd_packs(const T *dh, const T *gate, const T *up, T *dgate, T *dup, RowCodes q, int64_t rows, int64_t cols,
                                        int64_t stride)
{
    enum { N = Pack<T>::N };
    RowState state = {};
    int64_t  packs = cols / N;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * packs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / packs, c = (i - row * packs) * N;
        float   d[N], g[N], u[N], dg[N];
        load_pack(dh + row * cols + c, d);
        load_pack(gate + row * stride + c, g);
        load_pack(up + row * stride + c, u);
        gated_bwd<T, N, GELU>(d, g, u, dg);
        if (CODES) {
            store_result<CODES>(dgate, dg, q, state, row, c);
            store_result<CODES>(dgate, u, q, state, row, cols + c);
            continue;
        }
        if (dgate) store_pack(dgate + row * stride + c, dg);
        if (dup) store_pack(dup + row * stride + c, u);
    }
}

/* Rounds PER values to T, stores them at `at` of y (NULL: not wanted) if `inside`, and stores their codes. Returns their largest finite
 * magnitude; 0 if not `inside`. */
template <typename T>
static __device__ __forceinline__ uint32_t store_coded(T *y, float *v, const ScaledCodes &q, float factor, int64_t at, bool inside,
                                                       uint32_t *words)
{
#pragma unroll
    for (int k = 0; k < PER; k++) v[k] = to_float(from_float<T>(v[k]));
    if (y && inside) store_n<PER>(y + at, v);
    uint32_t most = encode_scaled<PER>(v, factor, q.format, words);
    if (q.codes && inside) store_words<PER / 4>(q.codes + at, words);
    return inside ? most : 0;
}

/* Makes rows of dgate and dup side by side, `cols` columns each, and their codes under one scale. tiles: number of tiles side by side. */
template <typename T, bool GELU>
static __global__ void __launch_bounds__(SCALED_THREADS, 2)
    swiglu_bwd_tiles(const T *dh, const T *gate, T *packed, ScaledCodes q, int64_t cols, unsigned tiles)
{
    __shared__ TurnedTile<PER> turned[2];
    int64_t                    first_row = (int64_t)(blockIdx.x / tiles) * SCALED_ROWS;
    int64_t                    first_col = (int64_t)(blockIdx.x % tiles) * SCALED_GROUPS * PER;
    int64_t                    row = first_row + threadIdx.x / SCALED_GROUPS * SCALED_EACH;
    int64_t                    col = first_col + threadIdx.x % SCALED_GROUPS * PER;
    float                      factor = q.scale[FP8_SCALE];
    unsigned                   seen = seen_most(q);
    Eight<T>                   grads[SCALED_EACH], gates[SCALED_EACH], ups[SCALED_EACH];
    uint32_t                   words[2][SCALED_EACH][PER / 4], most = 0;
    /* Threads beyond the last row or column load its elements again, so that no branch delays the loads. If another thread has
     * overwritten them already it doesn't matter, as these results are dropped. */
#pragma unroll
    for (int r = 0; r < SCALED_EACH; r++) {
        int64_t from = min(row + r, q.rows - 1), c = min(col, cols - PER);
        grads[r].load(dh + from * cols + c, true, PER);
        gates[r].load(gate + from * 2 * cols + c, true, PER);
        ups[r].load(gate + from * 2 * cols + cols + c, true, PER);
    }
#pragma unroll
    for (int r = 0; r < SCALED_EACH; r++) {
        float   d[PER], g[PER], u[PER], dg[PER];
        int64_t at = (row + r) * 2 * cols + col;
        bool    inside = row + r < q.rows && col < cols;
#pragma unroll
        for (int k = 0; k < PER; k++) d[k] = grads[r].get(k), g[k] = gates[r].get(k), u[k] = ups[r].get(k);
        gated_bwd<T, PER, GELU>(d, g, u, dg);
        most = max(most, store_coded(packed, dg, q, factor, at, inside, words[0][r]));
        most = max(most, store_coded(packed, u, q, factor, at + cols, inside, words[1][r]));
    }
    if (q.codes_t) {
        put_turned<PER>(turned[0], words[0]);
        put_turned<PER>(turned[1], words[1]);
        __syncthreads();
        store_turned<PER>(q, turned[0], first_row, first_col, cols);
        store_turned<PER>(q, turned[1], first_row, cols + first_col, 2 * cols);
    }
    record_most(q, most, seen);
}

template <bool GELU>
static __global__ void swiglu_bwd_elements(TensorView dh, TensorView gate, TensorView up, TensorView dgate, TensorView dup, int64_t up_at,
                                           int64_t rows, int64_t cols, int64_t stride)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / cols, c = i - row * cols;
        float   g = elem_get(gate.data, gate.type.dtype, row * stride + c), u = elem_get(up.data, up.type.dtype, row * stride + up_at + c);
        float   d = elem_get(dh.data, dh.type.dtype, i), s = 1.0f / (1.0f + expf(-(GELU ? gelu_argument(g) : g)));
        if (dgate.data)
            elem_set(dgate.data, dgate.type.dtype, row * stride + c,
                     d * u * s * (1.0f + g * (1.0f - s) * (GELU ? gelu_argument_slope(g) : 1.0f)));
        if (dup.data) elem_set(dup.data, dup.type.dtype, row * stride + up_at + c, d * g * s);
    }
}

template <typename T, bool GELU>
static void launch_packs(const KernelArgs *args, const TensorView *up, const TensorView *dup, const RowCodes &q, int64_t rows, int64_t cols)
{
    const TensorView *gate = &args->in[IN_GATE];
    bool              packed = up == gate;
    const T          *g = (const T *)gate->data;
    T                *dg = (T *)args->out[OUT_DGATE].data, *du = packed && dg ? dg + cols : (T *)dup->data;
    auto              kernel = row_codes_kind(&q) ? swiglu_bwd_packs<T, CODES_BLOCKS, GELU> : swiglu_bwd_packs<T, CODES_NONE, GELU>;
    kernel<<<cuda_grid(rows * cols / Pack<T>::N, 256), 256, 0, cuda_stream(args)>>>(
        (const T *)args->in[IN_DH].data, g, packed ? g + cols : (const T *)up->data, dg, du, q, rows, cols, packed ? 2 * cols : cols);
}

template <typename T, bool GELU> static Status launch_tiles(const KernelArgs *args, const ScaledCodes &q, int64_t cols)
{
    unsigned blocks, tiles;
    TRY(scaled_grid(q.rows, cols, PER, &blocks, &tiles));
    swiglu_bwd_tiles<T, GELU><<<blocks, SCALED_THREADS, 0, cuda_stream(args)>>>(
        (const T *)args->in[IN_DH].data, (const T *)args->in[IN_GATE].data, (T *)args->out[OUT_DGATE].data, q, cols, tiles);
    return OK;
}

template <bool GELU> static Status launch(const KernelArgs *args)
{
    const TensorView *dh = &args->in[IN_DH], *gate = &args->in[IN_GATE], *up = args->in[IN_UP].data ? &args->in[IN_UP] : gate;
    bool              packed = up == gate;
    const TensorView *dgate = &args->out[0], *dup = packed ? dgate : &args->out[1];
    int64_t           cols = type_cols(&dh->type), rows = type_rows(&dh->type), stride = packed ? 2 * cols : cols;
    const TensorView *views[] = {dh, gate, up, dgate, dup};
    RowCodes          q = row_codes(args, OUT_CODES, IN_SCALE, ((const SwigluAttrs *)args->attrs)->codes, rows, stride);
    int               kind = row_codes_kind(&q);
    if (kind == CODES_SCALED) {
        CUDA_FLOAT(dh->type.dtype, T, TRY((launch_tiles<T, GELU>(args, q.scaled, cols))));
    } else if (kind == CODES_BLOCKS) {
        CUDA_FLOAT(dh->type.dtype, T, launch_packs<T, GELU>(args, up, dup, q, rows, cols));
    } else if (cols % 8 == 0 && views_are(DT_BF16, views, 5)) {
        launch_packs<__nv_bfloat16, GELU>(args, up, dup, q, rows, cols);
    } else {
        swiglu_bwd_elements<GELU><<<cuda_grid(rows * cols, 256), 256, 0, cuda_stream(args)>>>(*dh, *gate, *up, *dgate, *dup,
                                                                                              packed ? cols : 0, rows, cols, stride);
    }
    return CUDA_LAUNCHED();
}

static Status swiglu_bwd_run(const KernelArgs *args)
{
    return ((const SwigluAttrs *)args->attrs)->gelu ? launch<true>(args) : launch<false>(args);
}

CUDA_KERNELS(swiglu_bwd, {.dtypes = DT_SET_FLOAT,
                          .run = swiglu_bwd_run,
                          .name = "packs",
                          .except = {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}})
