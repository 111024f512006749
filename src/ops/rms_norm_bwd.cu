/* rms_norm_bwd on CUDA: a block takes a chunk of rows one by one; each thread keeps its columns' part of dw in registers.
 * Two sums of a block a row. dw: partial sums of chunks in workspace, added in order. */
#include "ops/rows.cuh"

enum { IN_DY, IN_X, IN_W, IN_RSTD };
enum { MOST_PACKS = 4 }; /* a thread's columns: 4 packs of 1024 threads, C up to 32768 bf16 or 16384 f32 */

/* dx may be dy's memory; dx NULL or dw NULL: not wanted. */
template <typename T, int PACKS>
static __global__ void rms_norm_bwd_packs(const T *dy, const T *x, const T *w, const float *rstd_in, T *dx, bool add, float *dw,
                                          int64_t rows, int64_t cols, int64_t chunk_rows)
{
    enum { N = Pack<T>::N };
    __shared__ float scratch[32];
    float            part[PACKS][N] = {}, weight[PACKS][N];
    for (int p = 0; p < PACKS; p++) {
        int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
        if (c < cols) load_pack(w + c, weight[p]);
    }
    int64_t end = ((int64_t)blockIdx.x + 1) * chunk_rows;
    for (int64_t row = (int64_t)blockIdx.x * chunk_rows; row < rows && row < end; row++) {
        float gy[PACKS][N], v[PACKS][N], rstd = rstd_in[row], dot = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
            if (c >= cols) continue;
            load_pack(dy + row * cols + c, gy[p]);
            load_pack(x + row * cols + c, v[p]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                dot += gy[p][i] * weight[p][i] * v[p][i];
                part[p][i] += gy[p][i] * (v[p][i] * rstd);
            }
        }
        if (!dx) continue;
        float pull = rstd * rstd * rstd * block_sum(dot, scratch) / (float)cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
            if (c >= cols) continue;
            float old[N] = {};
            if (add) load_pack(dx + row * cols + c, old);
#pragma unroll
            for (int i = 0; i < N; i++) old[i] += gy[p][i] * weight[p][i] * rstd - v[p][i] * pull;
            store_pack(dx + row * cols + c, old);
        }
    }
    if (!dw) return;
    for (int p = 0; p < PACKS; p++) {
        int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * N;
        for (int i = 0; i < N && c < cols; i++) dw[(int64_t)blockIdx.x * cols + c + i] = part[p][i];
    }
}

static __global__ void rms_norm_bwd_elements(TensorView dy, TensorView x, TensorView w, const float *rstd_in, TensorView dx, bool add,
                                             float *dw, int64_t rows, int64_t cols, int64_t chunk_rows)
{
    __shared__ float scratch[32];
    int64_t          end = ((int64_t)blockIdx.x + 1) * chunk_rows;
    float           *part = dw ? dw + (int64_t)blockIdx.x * cols : NULL;
    for (int64_t c = threadIdx.x; part && c < cols; c += blockDim.x) part[c] = 0;
    for (int64_t row = (int64_t)blockIdx.x * chunk_rows; row < rows && row < end; row++) {
        float rstd = rstd_in[row], dot = 0;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
            float g = elem_get(dy.data, dy.type.dtype, row * cols + c), v = elem_get(x.data, x.type.dtype, row * cols + c);
            dot += g * elem_get(w.data, w.type.dtype, c) * v;
            if (part) part[c] += g * (v * rstd);
        }
        float pull = rstd * rstd * rstd * block_sum(dot, scratch) / (float)cols;
        for (int64_t c = threadIdx.x; dx.data && c < cols; c += blockDim.x) {
            float g = elem_get(dy.data, dy.type.dtype, row * cols + c), v = elem_get(x.data, x.type.dtype, row * cols + c);
            float d = g * elem_get(w.data, w.type.dtype, c) * rstd - v * pull;
            elem_set(dx.data, dx.type.dtype, row * cols + c, add ? elem_get(dx.data, dx.type.dtype, row * cols + c) + d : d);
        }
    }
}

template <typename T> static bool launch_packs(const KernelArgs *args, float *dw, int64_t rows, int64_t cols, int64_t chunk)
{
    int64_t      packs = cols / Pack<T>::N;
    unsigned     threads = row_threads(packs), grid = (unsigned)cuda_div_up(rows, chunk);
    bool         add = args->accumulate & 1;
    const T     *dy = (const T *)args->in[IN_DY].data, *x = (const T *)args->in[IN_X].data, *w = (const T *)args->in[IN_W].data;
    T           *dx = (T *)args->out[0].data;
    auto         stream = cuda_stream(args);
    const float *rstd = (const float *)args->in[IN_RSTD].data;
    int64_t      each = cuda_div_up(packs, threads);
    if (each == 1)
        rms_norm_bwd_packs<T, 1><<<grid, threads, 0, stream>>>(dy, x, w, rstd, dx, add, dw, rows, cols, chunk);
    else if (each == 2)
        rms_norm_bwd_packs<T, 2><<<grid, threads, 0, stream>>>(dy, x, w, rstd, dx, add, dw, rows, cols, chunk);
    else if (each <= MOST_PACKS)
        rms_norm_bwd_packs<T, MOST_PACKS><<<grid, threads, 0, stream>>>(dy, x, w, rstd, dx, add, dw, rows, cols, chunk);
    return each <= MOST_PACKS;
}

static Status rms_norm_bwd_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[IN_DY], *x = &args->in[IN_X], *w = &args->in[IN_W], *dx = &args->out[0];
    int64_t           cols = type_cols(&x->type), rows = type_rows(&x->type), chunk = sum_chunk_rows(rows);
    float            *dw = args->out[1].data ? (float *)args->workspace : NULL;
    const TensorView *views[] = {dy, x, w, dx};
    bool              done = false;
    if (cols % (16 / dtype_bytes(x->type.dtype, 1)) == 0 && is_aligned16(w->data) && views_are(x->type.dtype, views, 4))
        CUDA_FLOAT(x->type.dtype, T, done = launch_packs<T>(args, dw, rows, cols, chunk));
    if (!done)
        rms_norm_bwd_elements<<<(unsigned)cuda_div_up(rows, chunk), 256, 0, cuda_stream(args)>>>(
            *dy, *x, *w, (const float *)args->in[IN_RSTD].data, *dx, args->accumulate & 1, dw, rows, cols, chunk);
    if (dw) launch_combine(args, 1, dw, cuda_div_up(rows, chunk), cols, cols);
    return CUDA_LAUNCHED();
}

static size_t rms_norm_bwd_workspace(const Node *node, CudaDevice *device)
{
    const TensorType *x = &node->in[IN_X]->type;
    (void)device;
    return node->out[1] ? (size_t)(sum_num_chunks(type_rows(x)) * type_cols(x)) * sizeof(float) : 0;
}

CUDA_KERNELS(rms_norm_bwd, {.dtypes = DT_SET_FLOAT, .run = rms_norm_bwd_run, .name = "chunks", .workspace = rms_norm_bwd_workspace})
