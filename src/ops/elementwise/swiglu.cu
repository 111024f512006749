/* swiglu on CUDA: h = silu(gate) up, or gelu(gate) up, 16 bytes per thread at a time. Gate and up may be packed side by side in rows, or
 * separate. With codes of h under one scale, a thread block computes a tile of 128 rows and 64 columns of h, and a thread 4 rows of 8
 * columns. */
#include "device/cuda/vec_f16.cuh"
#include "ops/elementwise/gated.cuh"
#include "ops/lowbit/fp8_rows.cuh"
#include "ops/rows.cuh"

#include <type_traits>

enum { IN_GATE, IN_UP, IN_SCALE };
enum { OUT_H, OUT_CODES, OUT_MORE };
enum { PER = 8 };

/* to up */
template <typename T, int N, bool GELU> static __device__ __forceinline__ void gated_pack(const float *g, float *u)
{
#pragma unroll
    for (int k = 0; k < N; k++) u[k] = gated<T, GELU>(g[k], u[k]);
}

/* Element (row, f) of gate is gate[row * stride + f], and of up up[row * stride + f]. CODES: also makes codes of h with scales of
 * blocks; then h may be NULL. */
template <typename T, int CODES, bool GELU>
static __global__ void swiglu_packs(const T *gate, const T *up, T *h, RowCodes q, int64_t stride)
{
    enum { N = Pack<T>::N };
    RowState state = {};
    int64_t  packs = q.scaled.cols / N;
    release_launches();
    await_launches();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < q.scaled.rows * packs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / packs, c = (i - row * packs) * N;
        float   g[N], u[N];
        load_pack(gate + row * stride + c, g);
        load_pack(up + row * stride + c, u);
        gated_pack<T, N, GELU>(g, u);
        store_result<CODES>(h, u, q, state, row, c);
    }
}

/* Like swiglu_packs, with codes of h under one scale. tiles: number of tiles side by side. */
template <typename T, bool GELU>
static __global__ void __launch_bounds__(SCALED_THREADS, 3)
    swiglu_tiles(const T *gate, const T *up, T *h, ScaledCodes q, int64_t stride, unsigned tiles)
{
    __shared__ TurnedTile<PER> turned;
    int64_t                    first_row = (int64_t)(blockIdx.x / tiles) * SCALED_ROWS;
    int64_t                    first_col = (int64_t)(blockIdx.x % tiles) * SCALED_GROUPS * PER;
    int64_t                    row = first_row + threadIdx.x / SCALED_GROUPS * SCALED_EACH;
    int64_t                    col = first_col + threadIdx.x % SCALED_GROUPS * PER;
    float                      factor = q.scale[FP8_SCALE];
    unsigned                   seen = seen_most(q);
    Eight<T>                   gates[SCALED_EACH], ups[SCALED_EACH];
    uint32_t                   words[SCALED_EACH][PER / 4], most = 0;
    /* Threads beyond the last row or column load its elements again, so that no branch delays the loads. */
#pragma unroll
    for (int r = 0; r < SCALED_EACH; r++) {
        int64_t at = min(row + r, q.rows - 1) * stride + min(col, q.cols - PER);
        gates[r].load(gate + at, true, PER);
        ups[r].load(up + at, true, PER);
    }
#pragma unroll
    for (int r = 0; r < SCALED_EACH; r++) {
        float   g[PER], u[PER];
        int64_t at = (row + r) * q.cols + col;
        bool    inside = row + r < q.rows && col < q.cols;
#pragma unroll
        for (int k = 0; k < PER; k++) g[k] = gates[r].get(k), u[k] = ups[r].get(k);
        gated_pack<T, PER, GELU>(g, u);
#pragma unroll
        for (int k = 0; k < PER; k++) u[k] = to_float(from_float<T>(u[k]));
        if (h && inside) store_n<PER>(h + at, u);
        most = max(most, encode_scaled<PER>(u, factor, q.format, words[r]));
        if (q.codes && inside) store_words<PER / 4>(q.codes + at, words[r]);
    }
    if (q.codes_t) {
        put_turned<PER>(turned, words);
        __syncthreads();
        store_turned<PER>(q, turned, first_row, first_col, q.cols);
    }
    record_most(q, most, seen);
}

template <bool GELU>
static __global__ void swiglu_elements(TensorView gate, TensorView up, int64_t up_at, TensorView h, int64_t rows, int64_t cols,
                                       int64_t stride)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / cols, c = i - row * cols;
        float   g = any_get(gate.data, gate.type.dtype, row * stride + c), u = any_get(up.data, up.type.dtype, row * stride + up_at + c);
        any_set(h.data, h.type.dtype, i, g / (1.0f + expf(-(GELU ? gelu_argument(g) : g))) * u);
    }
}

template <typename T, bool GELU> static Status launch_packs(const KernelArgs *args, const TensorView *up, const RowCodes &q)
{
    const TensorView *gate = &args->in[IN_GATE];
    bool              packed = up == gate;
    int64_t           cols = q.scaled.cols;
    const T          *g = (const T *)gate->data, *u = packed ? g + cols : (const T *)up->data;
    auto              kernel = swiglu_packs<T, CODES_NONE, GELU>;
    int64_t           count = q.scaled.rows * cols / Pack<T>::N;
    if constexpr (!std::is_same<T, __half>::value) /* there are no codes of f16 */
        if (row_codes_kind(&q)) kernel = swiglu_packs<T, CODES_BLOCKS, GELU>;
    return cuda_launch_early(args->early, kernel, dim3(cuda_grid(count, 256)), 256, 0, cuda_stream(args), g, u, (T *)args->out[OUT_H].data,
                             q, packed ? 2 * cols : cols);
}

template <typename T, bool GELU> static Status launch_tiles(const KernelArgs *args, const TensorView *up, const ScaledCodes &q)
{
    const TensorView *gate = &args->in[IN_GATE];
    bool              packed = up == gate;
    const T          *g = (const T *)gate->data;
    unsigned          blocks, tiles;
    TRY(scaled_grid(q.rows, q.cols, PER, &blocks, &tiles));
    swiglu_tiles<T, GELU><<<blocks, SCALED_THREADS, 0, cuda_stream(args)>>>(
        g, packed ? g + q.cols : (const T *)up->data, (T *)args->out[OUT_H].data, q, packed ? 2 * q.cols : q.cols, tiles);
    return OK;
}

template <bool GELU> static Status launch(const KernelArgs *args)
{
    const TensorView *gate = &args->in[IN_GATE], *h = &args->out[OUT_H], *up = args->in[IN_UP].data ? &args->in[IN_UP] : gate;
    bool              packed = up == gate;
    int64_t           stride = type_cols(&gate->type), cols = packed ? stride / 2 : stride, rows = type_rows(&gate->type);
    RowCodes          q = row_codes(args, OUT_CODES, IN_SCALE, ((const SwigluAttrs *)args->attrs)->codes, rows, cols);
    int               kind = row_codes_kind(&q);
    const TensorView *views[] = {gate, up, h};
    if (kind == CODES_SCALED)
        CUDA_FLOAT(gate->type.dtype, T, TRY((launch_tiles<T, GELU>(args, up, q.scaled))));
    else if (kind == CODES_BLOCKS)
        CUDA_FLOAT(gate->type.dtype, T, return (launch_packs<T, GELU>(args, up, q)));
    else if (cols % 8 == 0 && views_are(DT_BF16, views, 3))
        return launch_packs<__nv_bfloat16, GELU>(args, up, q);
    else if (cols % 8 == 0 && views_are(DT_F16, views, 3))
        return launch_packs<__half, GELU>(args, up, q);
    else
        swiglu_elements<GELU>
            <<<cuda_grid(rows * cols, 256), 256, 0, cuda_stream(args)>>>(*gate, *up, packed ? cols : 0, *h, rows, cols, stride);
    return CUDA_LAUNCHED();
}

static Status swiglu_run(const KernelArgs *args)
{
    return ((const SwigluAttrs *)args->attrs)->gelu ? launch<true>(args) : launch<false>(args);
}

CUDA_KERNELS(swiglu, {.dtypes = DT_SET_DECODE,
                      .run = swiglu_run,
                      .name = "packs",
                      .except = {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}})
