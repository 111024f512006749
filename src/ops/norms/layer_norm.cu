/* layer_norm on CUDA: a block has a row, which stays in registers; it computes the mean, then the sum of squares around the mean.
 * layer_norm_bwd: a block takes the rows of a chunk one by one; each thread keeps sums of its columns of dw and db in registers; the
 * chunks' partial sums are added in order. Sums are fp32, in a fixed order. */
#include "device/cuda/vec_f16.cuh"
#include "ops/norms/layer_norm.h"
#include "ops/rows.cuh"

enum { IN_DY, IN_X, IN_W, IN_MEAN, IN_RSTD };
enum { MOST_PACKS = 4 }; /* packs of a thread, with 1024 threads: C up to 32768 bf16 or 16384 f32 */

/* Loads the weights of a pack of columns: w + offset; 1 + offset if there is no w. */
template <typename T> static __device__ __forceinline__ void load_weights(const T *w, int64_t c, float offset, float (&u)[Pack<T>::N])
{
    if (w) load_pack(w + c, u);
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) u[i] = (w ? u[i] : 1.0f) + offset;
}

static __device__ __forceinline__ float weight_at(const TensorView &w, int64_t c, float offset)
{
    return (w.data ? any_get(w.data, w.type.dtype, c) : 1.0f) + offset;
}

/* The first column of this thread's pack p. */
template <int N> static __device__ __forceinline__ int64_t pack_column(int p)
{
    return ((int64_t)p * blockDim.x + threadIdx.x) * N;
}

/* w, b, y, mean_out, rstd_out may be NULL; y may be x's memory. C is a multiple of a pack's elements. */
template <typename T, int PACKS>
static __global__ void __launch_bounds__(1024)
    layer_norm_packs(const T *x, const T *w, const T *b, T *y, float *mean_out, float *rstd_out, int64_t cols, float eps, float offset)
{
    enum { N = Pack<T>::N };
    __shared__ float scratch[32];
    int64_t          at = (int64_t)blockIdx.x * cols;
    float            v[PACKS][N], u[N], sum = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (pack_column<N>(p) >= cols) continue;
        load_pack(x + at + pack_column<N>(p), v[p]);
#pragma unroll
        for (int i = 0; i < N; i++) sum += v[p][i];
    }
    float mean = block_sum(sum, scratch) / (float)cols;
    sum = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (pack_column<N>(p) >= cols) continue;
#pragma unroll
        for (int i = 0; i < N; i++) v[p][i] -= mean, sum += v[p][i] * v[p][i];
    }
    float rstd = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
    if (mean_out && threadIdx.x == 0) mean_out[blockIdx.x] = mean;
    if (rstd_out && threadIdx.x == 0) rstd_out[blockIdx.x] = rstd;
    if (!y) return;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t c = pack_column<N>(p);
        if (c >= cols) continue;
        float bias[N] = {};
        load_weights(w, c, offset, u);
        if (b) load_pack(b + c, bias);
#pragma unroll
        for (int i = 0; i < N; i++) v[p][i] = u[i] * (v[p][i] * rstd) + bias[i];
        store_pack(y + at + c, v[p]);
    }
}

/* For any dtypes and sizes; reads a row three times, twice from cache. */
static __global__ void layer_norm_elements(TensorView x, TensorView w, TensorView b, TensorView y, float *mean_out, float *rstd_out,
                                           int64_t cols, float eps, float offset)
{
    __shared__ float scratch[32];
    int64_t          at = (int64_t)blockIdx.x * cols;
    float            sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) sum += any_get(x.data, x.type.dtype, at + c);
    float mean = block_sum(sum, scratch) / (float)cols;
    sum = 0;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = any_get(x.data, x.type.dtype, at + c) - mean;
        sum += v * v;
    }
    float rstd = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
    if (mean_out && threadIdx.x == 0) mean_out[blockIdx.x] = mean;
    if (rstd_out && threadIdx.x == 0) rstd_out[blockIdx.x] = rstd;
    for (int64_t c = threadIdx.x; y.data && c < cols; c += blockDim.x) {
        float v = any_get(x.data, x.type.dtype, at + c) - mean, bias = b.data ? any_get(b.data, b.type.dtype, c) : 0;
        any_set(y.data, y.type.dtype, at + c, weight_at(w, c, offset) * (v * rstd) + bias);
    }
}

static float offset_of(const KernelArgs *args)
{
    return (float)((const LayerNormAttrs *)args->attrs)->offset;
}

template <typename T> static bool launch_forward(const KernelArgs *args, int64_t rows, int64_t cols, float eps, float offset)
{
    unsigned threads = row_threads(cols / Pack<T>::N), grid = (unsigned)rows;
    int64_t  each = cuda_div_up(cols / Pack<T>::N, threads);
    const T *x = (const T *)args->in[0].data, *w = (const T *)args->in[1].data, *b = (const T *)args->in[2].data;
    T       *y = (T *)args->out[0].data;
    float   *mean = (float *)args->out[1].data, *rstd = (float *)args->out[2].data;
    auto     stream = cuda_stream(args);
    if (each == 1)
        layer_norm_packs<T, 1><<<grid, threads, 0, stream>>>(x, w, b, y, mean, rstd, cols, eps, offset);
    else if (each == 2)
        layer_norm_packs<T, 2><<<grid, threads, 0, stream>>>(x, w, b, y, mean, rstd, cols, eps, offset);
    else if (each <= MOST_PACKS)
        layer_norm_packs<T, MOST_PACKS><<<grid, threads, 0, stream>>>(x, w, b, y, mean, rstd, cols, eps, offset);
    return each <= MOST_PACKS;
}

/* Whether rows are whole packs of one dtype, and all views begin at multiples of 16 bytes. */
static bool fit_packs(const TensorView *x, const TensorView *const *views, int count, int64_t cols)
{
    for (int i = 0; i < count; i++)
        if (!is_aligned16(views[i]->data)) return false;
    return cols % (16 / dtype_bytes(x->type.dtype, 1)) == 0 && views_are(x->type.dtype, views, count);
}

static Status layer_norm_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *w = &args->in[1], *b = &args->in[2], *y = &args->out[0];
    int64_t           cols = type_cols(&x->type), rows = type_rows(&x->type);
    float             eps = (float)((const LayerNormAttrs *)args->attrs)->eps, offset = offset_of(args);
    const TensorView *views[] = {x, w, b, y};
    bool              done = false;
    if (fit_packs(x, views, 4, cols)) CUDA_FLOAT_ANY(x->type.dtype, T, done = launch_forward<T>(args, rows, cols, eps, offset));
    if (!done)
        layer_norm_elements<<<(unsigned)rows, 256, 0, cuda_stream(args)>>>(*x, *w, *b, *y, (float *)args->out[1].data,
                                                                           (float *)args->out[2].data, cols, eps, offset);
    return CUDA_LAUNCHED();
}

/* ---- backward ---- */

/* dx may be dy's memory. w NULL: 1; dx, dw, db NULL: not wanted. Partial sums of successive chunks are `stride` floats apart. */
template <typename T, int PACKS>
static __global__ void __launch_bounds__(1024)
    layer_norm_bwd_packs(const T *dy, const T *x, const T *w, const float *means, const float *rstds, T *dx, bool add, float *dw, float *db,
                         int64_t stride, int64_t rows, int64_t cols, int64_t chunk_rows, float offset)
{
    enum { N = Pack<T>::N };
    __shared__ float scratch[32];
    float            part_w[PACKS][N] = {}, part_b[PACKS][N] = {}, weight[PACKS][N];
    for (int p = 0; p < PACKS; p++)
        if (pack_column<N>(p) < cols) load_weights(w, pack_column<N>(p), offset, weight[p]);
    int64_t end = ((int64_t)blockIdx.x + 1) * chunk_rows;
    for (int64_t row = (int64_t)blockIdx.x * chunk_rows; row < rows && row < end; row++) {
        float g[PACKS][N], v[PACKS][N], mean = means[row], rstd = rstds[row], sum = 0, dot = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t c = pack_column<N>(p);
            if (c >= cols) continue;
            load_pack(dy + row * cols + c, g[p]);
            load_pack(x + row * cols + c, v[p]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                v[p][i] -= mean;
                part_w[p][i] += g[p][i] * (v[p][i] * rstd);
                part_b[p][i] += g[p][i];
                g[p][i] *= weight[p][i];
                sum += g[p][i];
                dot += g[p][i] * v[p][i];
            }
        }
        if (!dx) continue;
        float shift = rstd * block_sum(sum, scratch) / (float)cols, pull = rstd * rstd * rstd * block_sum(dot, scratch) / (float)cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int64_t c = pack_column<N>(p);
            if (c >= cols) continue;
            float old[N] = {};
            if (add) load_pack(dx + row * cols + c, old);
#pragma unroll
            for (int i = 0; i < N; i++) old[i] += g[p][i] * rstd - shift - v[p][i] * pull;
            store_pack(dx + row * cols + c, old);
        }
    }
    for (int p = 0; p < PACKS; p++) {
        int64_t c = pack_column<N>(p);
        for (int i = 0; i < N && c < cols; i++) {
            if (dw) dw[(int64_t)blockIdx.x * stride + c + i] = part_w[p][i];
            if (db) db[(int64_t)blockIdx.x * stride + c + i] = part_b[p][i];
        }
    }
}

static __global__ void layer_norm_bwd_elements(TensorView dy, TensorView x, TensorView w, const float *means, const float *rstds,
                                               TensorView dx, bool add, float *dw, float *db, int64_t stride, int64_t rows, int64_t cols,
                                               int64_t chunk_rows, float offset)
{
    __shared__ float scratch[32];
    int64_t          end = ((int64_t)blockIdx.x + 1) * chunk_rows;
    float           *part_w = dw ? dw + (int64_t)blockIdx.x * stride : NULL, *part_b = db ? db + (int64_t)blockIdx.x * stride : NULL;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        if (part_w) part_w[c] = 0;
        if (part_b) part_b[c] = 0;
    }
    for (int64_t row = (int64_t)blockIdx.x * chunk_rows; row < rows && row < end; row++) {
        float mean = means[row], rstd = rstds[row], sum = 0, dot = 0;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
            float d = elem_get(dy.data, dy.type.dtype, row * cols + c), v = elem_get(x.data, x.type.dtype, row * cols + c) - mean;
            float g = d * weight_at(w, c, offset);
            if (part_w) part_w[c] += d * (v * rstd);
            if (part_b) part_b[c] += d;
            sum += g;
            dot += g * v;
        }
        float shift = rstd * block_sum(sum, scratch) / (float)cols, pull = rstd * rstd * rstd * block_sum(dot, scratch) / (float)cols;
        for (int64_t c = threadIdx.x; dx.data && c < cols; c += blockDim.x) {
            float g = elem_get(dy.data, dy.type.dtype, row * cols + c) * weight_at(w, c, offset);
            float d = g * rstd - shift - (elem_get(x.data, x.type.dtype, row * cols + c) - mean) * pull;
            elem_set(dx.data, dx.type.dtype, row * cols + c, add ? elem_get(dx.data, dx.type.dtype, row * cols + c) + d : d);
        }
    }
}

/* Where partial sums are stored: for each chunk C sums of dw, then C of db; unwanted ones are NULL and left out. */
typedef struct Partial {
    float  *dw, *db;
    int64_t stride, chunk_rows;
} Partial;

template <typename T> static bool launch_backward(const KernelArgs *args, const Partial *sums, int64_t rows, int64_t cols)
{
    unsigned     threads = row_threads(cols / Pack<T>::N), grid = (unsigned)cuda_div_up(rows, sums->chunk_rows);
    int64_t      each = cuda_div_up(cols / Pack<T>::N, threads), stride = sums->stride, chunk = sums->chunk_rows;
    bool         add = args->accumulate & 1;
    float        offset = offset_of(args);
    const T     *dy = (const T *)args->in[IN_DY].data, *x = (const T *)args->in[IN_X].data, *w = (const T *)args->in[IN_W].data;
    T           *dx = (T *)args->out[0].data;
    float       *dw = sums->dw, *db = sums->db;
    auto         stream = cuda_stream(args);
    const float *mean = (const float *)args->in[IN_MEAN].data, *rstd = (const float *)args->in[IN_RSTD].data;
    if (each == 1)
        layer_norm_bwd_packs<T, 1><<<grid, threads, 0, stream>>>(dy, x, w, mean, rstd, dx, add, dw, db, stride, rows, cols, chunk, offset);
    else if (each == 2)
        layer_norm_bwd_packs<T, 2><<<grid, threads, 0, stream>>>(dy, x, w, mean, rstd, dx, add, dw, db, stride, rows, cols, chunk, offset);
    else if (each <= MOST_PACKS)
        layer_norm_bwd_packs<T, MOST_PACKS>
            <<<grid, threads, 0, stream>>>(dy, x, w, mean, rstd, dx, add, dw, db, stride, rows, cols, chunk, offset);
    return each <= MOST_PACKS;
}

static Status layer_norm_bwd_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[IN_DY], *x = &args->in[IN_X], *w = &args->in[IN_W], *dx = &args->out[0];
    int64_t cols = type_cols(&x->type), rows = type_rows(&x->type), chunk = sum_chunk_rows(rows), chunks = cuda_div_up(rows, chunk);
    bool    dw = args->out[1].data != NULL, db = args->out[2].data != NULL, done = false;
    float  *part = (float *)args->workspace;
    Partial sums = {dw ? part : NULL, db ? part + (dw ? cols : 0) : NULL, cols * (dw + db), chunk};
    const TensorView *views[] = {dy, x, w, dx};
    if (fit_packs(x, views, 4, cols)) CUDA_FLOAT(x->type.dtype, T, done = launch_backward<T>(args, &sums, rows, cols));
    if (!done)
        layer_norm_bwd_elements<<<(unsigned)chunks, 256, 0, cuda_stream(args)>>>(
            *dy, *x, *w, (const float *)args->in[IN_MEAN].data, (const float *)args->in[IN_RSTD].data, *dx, args->accumulate & 1, sums.dw,
            sums.db, sums.stride, rows, cols, chunk, offset_of(args));
    if (dw) launch_combine(args, 1, sums.dw, chunks, sums.stride, cols);
    if (db) launch_combine(args, 2, sums.db, chunks, sums.stride, cols);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(layer_norm, {.dtypes = DT_SET_DECODE, .run = layer_norm_run, .name = "rows"})
CUDA_KERNELS(layer_norm_bwd, {.dtypes = DT_SET_FLOAT, .run = layer_norm_bwd_run, .name = "chunks", .workspace = cuda_planned_workspace})
