/* rms_norm_bwd on CUDA: a block takes the rows of a chunk one by one; each thread keeps sums of its columns of dw in registers. Each row
 * takes one block-wide sum. dw: partial sums of chunks are in the workspace, and are added in order. */
#include "ops/lowbit/fp8_rows.cuh"
#include "ops/rows.cuh"

enum { IN_DY, IN_X, IN_W, IN_RSTD, IN_ACC_DX, IN_ACC_DW, IN_SCALE };
enum { OUT_DX, OUT_DW, OUT_CODES, OUT_MORE };
enum { MOST_PACKS = 4 }; /* packs of a thread, with 1024 threads: C up to 32768 bf16 or 16384 f32 */

/* dx may be dy's memory; dx NULL or dw NULL: not wanted. acc: is added to dx; NULL: nothing is added. CODES: which codes of dx are made.
 * wide: w begins at a multiple of 16 bytes. */
template <typename T, int PACKS, int CODES>
static __global__ void __launch_bounds__(1024)
    rms_norm_bwd_packs(const T *dy, const T *x, const T *w, bool wide, const float *rstd_in, T *dx, const T *acc, RowCodes q, float *dw,
                       int64_t chunk_rows, float offset)
{
    enum { N = Pack<T>::N, EARLY = PACKS == 1 /* one pack a thread leaves registers to load acc before the sum */ };
    int64_t          rows = q.scaled.rows, cols = q.scaled.cols;
    RowState         state = row_state<CODES>(q);
    __shared__ float scratch[32];
    float            part[PACKS][N] = {}, weight[PACKS][N];
    for (int p = 0; p < PACKS; p++) {
        int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
        if (c < cols) load_pack_any(w + c, wide, weight[p]);
        for (int i = 0; i < N; i++) weight[p][i] += offset;
    }
    int64_t end = ((int64_t)blockIdx.x + 1) * chunk_rows;
    for (int64_t row = (int64_t)blockIdx.x * chunk_rows; row < rows && row < end; row++) {
        float   gy[PACKS][N], v[PACKS][N], rstd = rstd_in[row], dot = 0;
        Pack<T> before[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
            if (c >= cols) continue;
            load_pack(dy + row * cols + c, gy[p]);
            load_pack(x + row * cols + c, v[p]);
            if (EARLY && acc) before[p].words = *(const uint4 *)(acc + row * cols + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                dot += gy[p][i] * weight[p][i] * v[p][i];
                part[p][i] += gy[p][i] * (v[p][i] * rstd);
            }
        }
        if (!dx && !CODES) continue;
        float pull = rstd * rstd * rstd * block_sum(dot, scratch) / (float)cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
            if (c >= cols) continue;
            float old[N] = {};
            if (!EARLY && acc) before[p].words = *(const uint4 *)(acc + row * cols + c);
            for (int i = 0; i < N && acc; i++) old[i] = to_float(before[p].v[i]);
#pragma unroll
            for (int i = 0; i < N; i++) old[i] += gy[p][i] * weight[p][i] * rstd - v[p][i] * pull;
            store_result<CODES>(dx, old, q, state, row, c);
        }
    }
    row_record<CODES>(q, state);
    if (!dw) return;
    for (int p = 0; p < PACKS; p++) {
        int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
        for (int i = 0; i < N && c < cols; i++) dw[(int64_t)blockIdx.x * cols + c + i] = part[p][i];
    }
}

static __global__ void rms_norm_bwd_elements(TensorView dy, TensorView x, TensorView w, const float *rstd_in, TensorView dx, bool add,
                                             float *dw, int64_t rows, int64_t cols, int64_t chunk_rows, float offset)
{
    __shared__ float scratch[32];
    int64_t          end = ((int64_t)blockIdx.x + 1) * chunk_rows;
    float           *part = dw ? dw + (int64_t)blockIdx.x * cols : NULL;
    for (int64_t c = threadIdx.x; part && c < cols; c += blockDim.x) part[c] = 0;
    for (int64_t row = (int64_t)blockIdx.x * chunk_rows; row < rows && row < end; row++) {
        float rstd = rstd_in[row], dot = 0;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
            float g = elem_get(dy.data, dy.type.dtype, row * cols + c), v = elem_get(x.data, x.type.dtype, row * cols + c);
            dot += g * (elem_get(w.data, w.type.dtype, c) + offset) * v;
            if (part) part[c] += g * (v * rstd);
        }
        float pull = rstd * rstd * rstd * block_sum(dot, scratch) / (float)cols;
        for (int64_t c = threadIdx.x; dx.data && c < cols; c += blockDim.x) {
            float g = elem_get(dy.data, dy.type.dtype, row * cols + c), v = elem_get(x.data, x.type.dtype, row * cols + c);
            float d = g * (elem_get(w.data, w.type.dtype, c) + offset) * rstd - v * pull;
            elem_set(dx.data, dx.type.dtype, row * cols + c, add ? elem_get(dx.data, dx.type.dtype, row * cols + c) + d : d);
        }
    }
}

template <typename T, int PACKS> static void launch(const KernelArgs *args, const RowCodes &q, float *dw, int64_t chunk)
{
    const TensorView *w = &args->in[IN_W], *dx = &args->out[OUT_DX], *acc = &args->in[IN_ACC_DX];
    bool              adds = dx->data ? args->accumulate & 1 : acc->data != NULL;
    int               kind = row_codes_kind(&q);
    auto              kernel = kind == CODES_SCALED   ? rms_norm_bwd_packs<T, PACKS, CODES_SCALED>
                               : kind == CODES_BLOCKS ? rms_norm_bwd_packs<T, PACKS, CODES_BLOCKS>
                                                      : rms_norm_bwd_packs<T, PACKS, CODES_NONE>;
    kernel<<<(unsigned)cuda_div_up(q.scaled.rows, chunk), row_threads(q.scaled.cols / Pack<T>::N), 0, cuda_stream(args)>>>(
        (const T *)args->in[IN_DY].data, (const T *)args->in[IN_X].data, (const T *)w->data, is_aligned16(w->data),
        (const float *)args->in[IN_RSTD].data, (T *)dx->data, adds ? (const T *)acc->data : NULL, q, dw, chunk,
        (float)((const RmsNormAttrs *)args->attrs)->offset);
}

template <typename T> static bool launch_packs(const KernelArgs *args, const RowCodes &q, float *dw, int64_t chunk)
{
    int64_t packs = q.scaled.cols / Pack<T>::N, each = cuda_div_up(packs, row_threads(packs));
    if (each == 1)
        launch<T, 1>(args, q, dw, chunk);
    else if (each == 2)
        launch<T, 2>(args, q, dw, chunk);
    else if (each <= MOST_PACKS)
        launch<T, MOST_PACKS>(args, q, dw, chunk);
    return each <= MOST_PACKS;
}

static Status rms_norm_bwd_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[IN_DY], *x = &args->in[IN_X], *w = &args->in[IN_W], *dx = &args->out[OUT_DX];
    int64_t           cols = type_cols(&x->type), rows = type_rows(&x->type), chunk = sum_chunk_rows(rows);
    float            *dw = args->out[OUT_DW].data ? (float *)args->workspace : NULL;
    RowCodes          q = row_codes(args, OUT_CODES, IN_SCALE, ((const RmsNormAttrs *)args->attrs)->codes, rows, cols);
    const TensorView *views[] = {dy, x, w, dx};
    bool              done = false, whole = is_aligned16(w->data) || row_codes_kind(&q);
    if (cols % (16 / dtype_bytes(x->type.dtype, 1)) == 0 && whole && views_are(x->type.dtype, views, 4))
        CUDA_FLOAT(x->type.dtype, T, done = launch_packs<T>(args, q, dw, chunk));
    if (!done)
        rms_norm_bwd_elements<<<(unsigned)cuda_div_up(rows, chunk), 256, 0, cuda_stream(args)>>>(
            *dy, *x, *w, (const float *)args->in[IN_RSTD].data, *dx, args->accumulate & 1, dw, rows, cols, chunk,
            (float)((const RmsNormAttrs *)args->attrs)->offset);
    if (dw) launch_combine(args, OUT_DW, dw, cuda_div_up(rows, chunk), cols, cols);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(rms_norm_bwd, {.dtypes = DT_SET_FLOAT,
                            .run = rms_norm_bwd_run,
                            .name = "chunks",
                            .workspace = cuda_planned_workspace,
                            .except = {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}})
