/* Attention on the vector units, in fp32: for fp32 tensors, and for head dims that the matrix-unit kernels don't serve. Blocks of keys (or
 * queries) are loaded into shared memory; a warp takes ROWS queries (or keys). While scores are computed a lane has one key (or query);
 * while sums are computed it has head dims lane, lane + 32, ... Blocks outside a query's document are skipped.
 *
 * Sums of dbias: each warp has its own R sums in shared memory. Each lane has a key at another distance, so lanes add to different rows.
 * Only the first and the last row stand for many distances; these two are summed over the warp first. Then the block adds its warps' sums,
 * and a second kernel adds the blocks' sums, always in one order. */
#include "device/cuda/fp8.cuh"
#include "device/cuda/vec_f16.cuh"
#include "ops/attention/attention.cuh"

#include "ir/op.h"

enum { WARPS = 8, ROWS = 2, BLOCK = WARPS * ROWS, TILE = 32, THREADS = WARPS * 32 };
static_assert((int)BLOCK == (int)ATTENTION_BIAS_QUERIES, "a block leaves the sums of its queries");

static __device__ __forceinline__ float to_float(e4m3 code)
{
    return fp8_get(&code, DT_E4M3, 0);
}

template <typename T> static __device__ __forceinline__ const T *head_at(const Heads &h, int b, int t, int head, int dim)
{
    return (const T *)h.data + b * h.batch_stride + t * h.token_stride + (int64_t)head * dim;
}

template <typename T> static __device__ __forceinline__ T *head_at_mut(const Heads &h, int b, int t, int head, int dim)
{
    return (T *)h.data + b * h.batch_stride + t * h.token_stride + (int64_t)head * dim;
}

/* Loads rows [t, t + rows) of one head as floats, `stride` floats a row; rows from `rows` to `count` become zeros. */
template <typename T>
static __device__ void load_rows(float *to, int stride, const Heads &h, int b, int t, int rows, int count, int head, int dim)
{
    for (int i = threadIdx.x; i < count * dim; i += THREADS) {
        int r = i / dim, d = i % dim;
        to[r * stride + d] = r < rows ? to_float(head_at<T>(h, b, t + r, head, dim)[d]) : 0.0f;
    }
}

/* As load_rows, but loads positions [t, t + rows) of batch row b from the cache; rows from `rows` to TILE become zeros. */
template <typename C>
static __device__ void load_cells(float *to, int stride, const AttentionDims &a, const Heads &h, int b, int t, int rows, int head, int dim)
{
    for (int r = threadIdx.x >> 5; r < TILE; r += WARPS) {
        const C *from = r < rows ? head_at<C>(h, 0, attention_cell(a.pages, b, t + r), head, dim) : NULL;
        for (int d = threadIdx.x & 31; d < dim; d += 32) to[r * stride + d] = from ? to_float(from[d]) : 0.0f;
    }
}

/* Loads a tile of keys and their values. */
template <typename C, bool PAGED>
static __device__ void load_keys(float *k, float *v, int k_stride, int v_stride, const AttentionDims &a, int b, int key, int keys, int head)
{
    if (PAGED) {
        load_cells<C>(k, k_stride, a, a.k, b, key, keys, head, a.dim);
        load_cells<C>(v, v_stride, a, a.v, b, key, keys, head, a.v_dim);
    } else {
        load_rows<C>(k, k_stride, a.k, b, key, keys, TILE, head, a.dim);
        load_rows<C>(v, v_stride, a.v, b, key, keys, TILE, head, a.v_dim);
    }
}

/* The first key that any of queries [t, t + rows) attends; own: the key index of query t's own token. */
static __device__ int least_first_key(const AttentionDims &a, int b, int t, int rows, int own)
{
    int least = INT_MAX;
    for (int i = 0; i < rows; i++) least = min(least, attention_first_key(a, b, t + i, own + i));
    return least;
}

static __device__ __forceinline__ float score_of(const AttentionDims &a, float product, int head, int distance)
{
    float score = a.scale * product;
    if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
    return a.bias.data ? score + attention_bias(a, head, distance) : score;
}

/* exp(score - lse); *slope: the derivative of the softcap at this score, 1 without a softcap. */
static __device__ __forceinline__ float probability(const AttentionDims &a, float product, float lse, float *slope, int head, int distance)
{
    if (a.bias.data) lse -= attention_bias(a, head, distance);
    *slope = 1;
    if (a.softcap <= 0) return expf(a.scale * product - lse);
    float t = tanhf(a.scale * product / a.softcap);
    *slope = 1.0f - t * t;
    return expf(a.softcap * t - lse);
}

/* Adds ds of a warp's lanes to the warp's sums of dbias. Each lane has its own key, `distance` tokens before the query; seen: the query
 * attends that key. */
static __device__ __forceinline__ void add_biases(const AttentionDims &a, float *sums, float ds, bool seen, int distance)
{
    int   row = attention_bias_row(a, distance), last = a.bias_rows - 1;
    float first_sum = warp_sum(seen && row == 0 ? ds : 0.0f), last_sum = warp_sum(seen && row == last ? ds : 0.0f);
    if (seen && row > 0 && row < last) sums[row] += ds;
    if ((threadIdx.x & 31) == 0) {
        sums[0] += first_sum;
        if (last > 0) sums[last] += last_sum;
    }
    __syncwarp();
}

/* Adds up the warps' sums of dbias and stores the block's sums. */
static __device__ void store_biases(const AttentionDims &a, const float *sums, int b, int head, int block, int blocks)
{
    float *to = a.bias_parts + (((int64_t)b * a.num_heads + head) * blocks + block) * a.bias_rows;
    __syncthreads();
    for (int r = threadIdx.x; r < a.bias_rows; r += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += sums[w * a.bias_rows + r];
        to[r] = sum;
    }
}

static __device__ __forceinline__ float dot(const float *x, const float *y, int dim)
{
    float sum = 0;
    for (int d = 0; d < dim; d++) sum += x[d] * y[d];
    return sum;
}

/* C: dtype of k and v. DIMS: head dims of a lane, 32 apart. PAGED: k and v are a cache. Then tiles of keys begin at multiples of TILE, and
 * a query skips unattended keys, so that its bits don't depend on the queries beside it. */
template <typename T, typename C, int DIMS, bool PAGED> static __global__ void __launch_bounds__(THREADS) forward_kernel(AttentionDims a)
{
    extern __shared__ float shared[];
    int                     stride = a.dim + 1, b = blockIdx.z, head = blockIdx.y, row = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK;
    int                     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rows = min(BLOCK, a.len - row), v_stride = a.v_dim + 1;
    int                     first = PAGED ? a.pages.starts[b] : 0;
    float                  *q = shared, *k = q + BLOCK * a.dim, *v = k + TILE * stride;
    float                   most[ROWS], total[ROWS], sum[ROWS][DIMS];
    for (int r = 0; r < ROWS; r++) {
        most[r] = -INFINITY, total[r] = 0;
        for (int i = 0; i < DIMS; i++) sum[r][i] = 0;
    }
    load_rows<T>(q, a.dim, a.q, b, row, rows, BLOCK, head, a.dim);
    int begin = least_first_key(a, b, row, rows, first + row), end = attention_after_key(a, b, row + rows - 1, first + row + rows - 1);
    if (PAGED) begin = attention_has_room(a, b) ? begin / TILE * TILE : end; /* outside the cache: no keys, so the result is NaN */
    for (int key = begin; key < end; key += TILE) {
        int keys = min(TILE, end - key);
        __syncthreads();
        load_keys<C, PAGED>(k, v, stride, v_stride, a, b, key, keys, head / a.group);
        __syncthreads();
        for (int r = 0; r < ROWS; r++) {
            int t = row + warp * ROWS + r, from = 0, to = keys;
            if (PAGED) from = max(0, attention_first_key(a, b, t, first + t) - key), to = min(keys, first + t + 1 - key);
            if (PAGED && from >= to) continue;
            bool  seen = t < row + rows && lane < keys && attention_attends(a, b, t, first + t, key + lane);
            int   distance = first + t - key - lane;
            float score = seen ? score_of(a, dot(q + (warp * ROWS + r) * a.dim, k + lane * stride, a.dim), head, distance) : -INFINITY;
            float before = most[r], now = fmaxf(before, warp_max(score));
            bool  poisoned = __any_sync(0xFFFFFFFFu, isnan(score));
            if (now == -INFINITY && !poisoned) continue;
            float p = seen ? expf(score - now) : 0.0f, shrink = expf(before - now);
            most[r] = now;
            total[r] = total[r] * shrink + warp_sum(p);
            for (int i = 0; i < DIMS; i++) sum[r][i] *= shrink;
            for (int j = from; j < to; j++) {
                float pj = __shfl_sync(0xFFFFFFFFu, p, j);
                for (int i = 0; i < DIMS; i++)
                    if (lane + 32 * i < a.v_dim) sum[r][i] += pj * v[j * v_stride + lane + 32 * i];
            }
        }
    }
    for (int r = 0; r < ROWS; r++) {
        int t = row + warp * ROWS + r;
        if (t >= row + rows) break;
        if (a.sinks.data && total[r] != 0) {
            float sink = attention_number(a.sinks, head), now = fmaxf(most[r], sink), shrink = expf(most[r] - now);
            total[r] = total[r] * shrink + expf(sink - now);
            most[r] = now;
            for (int i = 0; i < DIMS; i++) sum[r][i] *= shrink;
        }
        if (a.o.data)
            for (int i = 0; i < DIMS; i++)
                if (lane + 32 * i < a.v_dim) head_at_mut<T>(a.o, b, t, head, a.v_dim)[lane + 32 * i] = from_float<T>(sum[r][i] / total[r]);
        if (a.lse && lane == 0) a.lse[((int64_t)b * a.num_heads + head) * a.len + t] = most[r] + logf(total[r]);
    }
}

template <typename T> static __global__ void delta_kernel(AttentionDims a, float *delta)
{
    int64_t at = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    int     lane = threadIdx.x & 31;
    if (at >= (int64_t)a.batch * a.len * a.num_heads) return;
    int      head = (int)(at % a.num_heads), t = (int)(at / a.num_heads % a.len), b = (int)(at / a.num_heads / a.len);
    const T *o = head_at<T>(a.o, b, t, head, a.v_dim), *grad_o = head_at<T>(a.grad_o, b, t, head, a.v_dim);
    float    sum = 0;
    for (int d = lane; d < a.v_dim; d += 32) sum += to_float(o[d]) * to_float(grad_o[d]);
    sum = warp_sum(sum);
    if (lane) return;
    int64_t row = ((int64_t)b * a.num_heads + head) * a.len + t;
    delta[row] = a.dlse ? sum - a.dlse[row] : sum;
}

/* A warp has ROWS queries and goes over the keys that they attend. */
template <typename T, int DIMS> static __global__ void __launch_bounds__(THREADS) dq_kernel(AttentionDims a)
{
    extern __shared__ float shared[];
    int                     stride = a.dim + 1, b = blockIdx.z, head = blockIdx.y, row = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK;
    int                     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rows = min(BLOCK, a.len - row);
    int                     v_stride = a.v_dim + 1;
    float                  *q = shared, *grad_o = q + BLOCK * a.dim, *k = grad_o + BLOCK * a.v_dim, *v = k + TILE * stride;
    float                  *biases = v + TILE * v_stride;
    float                   sum[ROWS][DIMS];
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < DIMS; i++) sum[r][i] = 0;
    for (int i = threadIdx.x; a.bias_parts && i < WARPS * a.bias_rows; i += THREADS) biases[i] = 0;
    load_rows<T>(q, a.dim, a.q, b, row, rows, BLOCK, head, a.dim);
    load_rows<T>(grad_o, a.v_dim, a.grad_o, b, row, rows, BLOCK, head, a.v_dim);
    int begin = least_first_key(a, b, row, rows, row), end = attention_after_key(a, b, row + rows - 1, row + rows - 1);
    for (int key = begin; key < end; key += TILE) {
        int keys = min(TILE, end - key);
        __syncthreads();
        load_rows<T>(k, stride, a.k, b, key, keys, TILE, head / a.group, a.dim);
        load_rows<T>(v, v_stride, a.v, b, key, keys, TILE, head / a.group, a.v_dim);
        __syncthreads();
        for (int r = 0; r < ROWS; r++) {
            int     t = row + warp * ROWS + r;
            bool    seen = t < row + rows && lane < keys && attention_attends(a, b, t, t, key + lane);
            int64_t at = ((int64_t)b * a.num_heads + head) * a.len + min(t, a.len - 1);
            float   ds = 0, slope = 1;
            if (seen) {
                float p =
                    probability(a, dot(q + (warp * ROWS + r) * a.dim, k + lane * stride, a.dim), a.lse[at], &slope, head, t - key - lane);
                ds = p * (dot(grad_o + (warp * ROWS + r) * a.v_dim, v + lane * v_stride, a.v_dim) - a.delta[at]);
            }
            if (a.bias_parts) add_biases(a, biases + warp * a.bias_rows, ds, seen, t - key - lane);
            ds = ds * a.scale * slope;
            for (int j = 0; j < keys; j++) {
                float dsj = __shfl_sync(0xFFFFFFFFu, ds, j);
                for (int i = 0; i < DIMS; i++)
                    if (lane + 32 * i < a.dim) sum[r][i] += dsj * k[j * stride + lane + 32 * i];
            }
        }
    }
    for (int r = 0; r < ROWS; r++) {
        int t = row + warp * ROWS + r;
        for (int i = 0; i < DIMS; i++)
            if (a.dq.data && t < row + rows && lane + 32 * i < a.dim)
                head_at_mut<T>(a.dq, b, t, head, a.dim)[lane + 32 * i] = from_float<T>(sum[r][i]);
    }
    if (a.bias_parts) store_biases(a, biases, b, head, row / BLOCK, (int)gridDim.x);
}

/* A warp has ROWS keys and goes over the queries that attend them, one head of the group after the other. */
template <typename T, int DIMS> static __global__ void __launch_bounds__(THREADS) dkv_kernel(AttentionDims a)
{
    extern __shared__ float shared[];
    int                     stride = a.dim + 1, b = blockIdx.z, g = blockIdx.y, row = (int)blockIdx.x * BLOCK;
    int                     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rows = min(BLOCK, a.len - row);
    int                     v_stride = a.v_dim + 1;
    float                  *k = shared, *v = k + BLOCK * a.dim, *q = v + BLOCK * a.v_dim, *grad_o = q + TILE * stride;
    float                   dk[ROWS][DIMS], dv[ROWS][DIMS];
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < DIMS; i++) dk[r][i] = dv[r][i] = 0;
    load_rows<T>(k, a.dim, a.k, b, row, rows, BLOCK, g, a.dim);
    load_rows<T>(v, a.v_dim, a.v, b, row, rows, BLOCK, g, a.v_dim);
    for (int head = g * a.group; head < (g + 1) * a.group; head++)
        for (int query = a.bidirectional ? 0 : row; query < a.len; query += TILE) {
            int queries = min(TILE, a.len - query), latest = query + queries - 1;
            if (attention_first_key(a, b, query, query) >= row + rows) break; /* the first keys of later queries are no smaller */
            if (attention_after_key(a, b, latest, latest) <= row) continue;
            __syncthreads();
            load_rows<T>(q, stride, a.q, b, query, queries, TILE, head, a.dim);
            load_rows<T>(grad_o, v_stride, a.grad_o, b, query, queries, TILE, head, a.v_dim);
            __syncthreads();
            int     t = min(query + lane, a.len - 1);
            int64_t at = ((int64_t)b * a.num_heads + head) * a.len + t;
            for (int r = 0; r < ROWS; r++) {
                int   key = row + warp * ROWS + r;
                bool  seen = lane < queries && key < row + rows && attention_attends(a, b, t, t, key);
                float p = 0, ds = 0;
                if (seen) {
                    float slope;
                    p = probability(a, dot(k + (warp * ROWS + r) * a.dim, q + lane * stride, a.dim), a.lse[at], &slope, head, t - key);
                    ds = p * (dot(v + (warp * ROWS + r) * a.v_dim, grad_o + lane * v_stride, a.v_dim) - a.delta[at]) * a.scale * slope;
                }
                for (int j = 0; j < queries; j++) {
                    float pj = __shfl_sync(0xFFFFFFFFu, p, j), dsj = __shfl_sync(0xFFFFFFFFu, ds, j);
                    for (int i = 0; i < DIMS; i++) {
                        if (lane + 32 * i < a.v_dim) dv[r][i] += pj * grad_o[j * v_stride + lane + 32 * i];
                        if (lane + 32 * i < a.dim) dk[r][i] += dsj * q[j * stride + lane + 32 * i];
                    }
                }
            }
        }
    for (int r = 0; r < ROWS; r++) {
        int key = row + warp * ROWS + r;
        for (int i = 0; i < DIMS; i++) {
            int d = lane + 32 * i;
            if (key >= row + rows) continue;
            if (a.dk.data && d < a.dim) head_at_mut<T>(a.dk, b, key, g, a.dim)[d] = from_float<T>(dk[r][i]);
            if (a.dv.data && d < a.v_dim) head_at_mut<T>(a.dv, b, key, g, a.v_dim)[d] = from_float<T>(dv[r][i]);
        }
    }
}

static size_t forward_bytes(const AttentionDims *a)
{
    return (size_t)(BLOCK * a->dim + TILE * (a->dim + a->v_dim + 2)) * sizeof(float);
}
static size_t backward_bytes(const AttentionDims *a)
{
    size_t biases = a->bias_parts ? (size_t)WARPS * a->bias_rows : 0;
    return ((size_t)(BLOCK * (a->dim + a->v_dim) + TILE * (a->dim + a->v_dim + 2)) + biases) * sizeof(float);
}

template <typename K> static Status allow_shared(K kernel, size_t bytes)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return OK;
}

template <typename T, typename C, int DIMS, bool PAGED> static Status forward_over(const AttentionDims *a, cudaStream_t stream)
{
    dim3 grid((unsigned)cuda_div_up(a->len, BLOCK), (unsigned)a->num_heads, (unsigned)a->batch);
    TRY(allow_shared(forward_kernel<T, C, DIMS, PAGED>, forward_bytes(a)));
    forward_kernel<T, C, DIMS, PAGED><<<grid, THREADS, forward_bytes(a), stream>>>(*a);
    return CUDA_LAUNCHED();
}

template <typename T, int DIMS> static Status forward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->pages.starts) return forward_over<T, T, DIMS, false>(a, stream);
    return a->cached == DT_E4M3 ? forward_over<T, e4m3, DIMS, true>(a, stream) : forward_over<T, T, DIMS, true>(a, stream);
}

template <typename T, int DIMS> static Status backward(const AttentionDims *a, cudaStream_t stream)
{
    unsigned blocks = (unsigned)cuda_div_up(a->len, BLOCK);
    TRY(allow_shared(dq_kernel<T, DIMS>, backward_bytes(a)));
    TRY(allow_shared(dkv_kernel<T, DIMS>, backward_bytes(a)));
    if (a->dq.data || a->bias_parts) dq_kernel<T, DIMS><<<dim3(blocks, a->num_heads, a->batch), THREADS, backward_bytes(a), stream>>>(*a);
    if (a->dk.data || a->dv.data) dkv_kernel<T, DIMS><<<dim3(blocks, a->num_kv_heads, a->batch), THREADS, backward_bytes(a), stream>>>(*a);
    return CUDA_LAUNCHED();
}

/* Returns call(DIMS), with the least compiled DIMS (head dims of a lane) that covers `dim`. */
#define WITH_DIMS(dim, call) \
    do { \
        if ((dim) <= 32) return call(1); \
        if ((dim) <= 64) return call(2); \
        if ((dim) <= 128) return call(4); \
        return call(8); \
    } while (0)

Status attention_simt_forward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
#define CALL(n) \
    (a->dtype == DT_BF16  ? forward<__nv_bfloat16, n>(a, stream) \
     : a->dtype == DT_F16 ? forward<__half, n>(a, stream) \
                          : forward<float, n>(a, stream))
    WITH_DIMS(a->dim > a->v_dim ? a->dim : a->v_dim, CALL);
#undef CALL
}

Status attention_simt_backward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
#define CALL(n) (a->dtype == DT_BF16 ? backward<__nv_bfloat16, n>(a, stream) : backward<float, n>(a, stream))
    WITH_DIMS(a->dim > a->v_dim ? a->dim : a->v_dim, CALL);
#undef CALL
}

/* ---- gradients of sinks and bias ---- */

/* A block computes the gradient of one head's sink. */
template <typename T> static __global__ void __launch_bounds__(THREADS) dsinks_kernel(AttentionDims a, T *to, bool adds)
{
    __shared__ double sums[WARPS];
    int               head = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t           count = (int64_t)a.batch * a.len;
    double            sink = attention_number(a.sinks, head), sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        int64_t at = (i / a.len * a.num_heads + head) * a.len + i % a.len;
        sum -= (double)(expf((float)(sink - a.lse[at])) * a.delta[at]);
    }
    for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < WARPS; w++) sum += sums[w];
    to[head] = from_float<T>((adds ? to_float(to[head]) : 0.0f) + (float)sum);
}

/* A thread computes one element of dbias (R,H). */
template <typename T> static __global__ void __launch_bounds__(THREADS) dbias_kernel(AttentionDims a, int blocks, T *to, bool adds)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, head = i % a.num_heads, row = i / a.num_heads;
    float   sum = 0;
    if (row >= a.bias_rows) return;
    for (int b = 0; b < a.batch; b++)
        for (int k = 0; k < blocks; k++) sum += a.bias_parts[(((int64_t)b * a.num_heads + head) * blocks + k) * a.bias_rows + row];
    to[i] = from_float<T>((adds ? to_float(to[i]) : 0.0f) + sum);
}

Status attention_dsinks(const AttentionDims *a, const TensorView *out, bool adds, cudaStream_t stream)
{
    if (!out->data) return OK;
    CUDA_FLOAT(out->type.dtype, T, dsinks_kernel<T><<<(unsigned)a->num_heads, THREADS, 0, stream>>>(*a, (T *)out->data, adds));
    return CUDA_LAUNCHED();
}

Status attention_dbias(const AttentionDims *a, int queries, const TensorView *out, bool adds, cudaStream_t stream)
{
    if (!out->data) return OK;
    unsigned grid = (unsigned)cuda_div_up((int64_t)a->bias_rows * a->num_heads, THREADS);
    CUDA_FLOAT(out->type.dtype, T,
               dbias_kernel<T><<<grid, THREADS, 0, stream>>>(*a, (int)cuda_div_up(a->len, queries), (T *)out->data, adds));
    return CUDA_LAUNCHED();
}

Status attention_delta(const AttentionDims *a, float *delta, cudaStream_t stream)
{
    int64_t count = (int64_t)a->batch * a->len * a->num_heads;
    if (!count) return OK;
    CUDA_FLOAT(a->dtype, T, delta_kernel<T><<<(unsigned)cuda_div_up(count, WARPS), THREADS, 0, stream>>>(*a, delta));
    return CUDA_LAUNCHED();
}
