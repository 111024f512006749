/* Training's attention by warpgroup products on CUDA: plain, with sinks, and with values narrower than keys (MLA). Each case is first
 * checked against a plain loop, at odd lengths, and then timed. TFLOP/s count only unmasked scores.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o build/attention_training bench/attention_training.cu \
 *       src/ops/attention/attention_wgmma.cu src/ops/attention/attention_turns.cu && build/attention_training
 */
#include "bench.cuh"

#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_turns.h"
#include "ops/mma.cuh"

#include <math.h>
#include <string.h>
#include <vector>

enum { WARM = 2, RUNS = 10, ROUNDS = 3 };

#define MOST_ERROR 8e-3 /* allowed RMS of the errors, relative to the RMS of the expected values */
#define LEAST_RMS 1e-3  /* least RMS to divide by: dq and dk of rows of one token are expected to be 0 */

/* Values of variance about 1. */
static __global__ void fill_normalised(bf16 *p, int64_t count, unsigned seed)
{
    int64_t step = (int64_t)gridDim.x * FILL_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x; i < count; i += step) {
        unsigned h = (unsigned)i * 2654435761u + seed;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        p[i] = __float2bfloat16((float)((int)((h ^ h >> 16) % 2001) - 1000) * 1.7e-3f);
    }
}

/* ---- plain loops: one block per query or key, fp32 ---- */

static __device__ const bf16 *vector_of(const Heads &h, int b, int t, int head, int dim)
{
    return (const bf16 *)h.data + b * h.batch_stride + t * h.token_stride + (int64_t)head * dim;
}

static __device__ float dot(const bf16 *x, const bf16 *y, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += __bfloat162float(x[i]) * __bfloat162float(y[i]);
    return sum;
}

/* Softmax weight that query t gives to `key`. */
static __device__ float weight(const AttentionDims &a, const float *lse, int b, int head, int t, int key)
{
    float s = a.scale * dot(vector_of(a.q, b, t, head, a.dim), vector_of(a.k, b, key, head / a.group, a.dim), a.dim);
    return expf(s - lse[((int64_t)b * a.num_heads + head) * a.len + t]);
}

static __device__ float slope(const AttentionDims &a, const float *lse, const float *delta, int b, int head, int t, int key)
{
    float dp = dot(vector_of(a.grad_o, b, t, head, a.v_dim), vector_of(a.v, b, key, head / a.group, a.v_dim), a.v_dim);
    return weight(a, lse, b, head, t, key) * (dp - delta[((int64_t)b * a.num_heads + head) * a.len + t]);
}

static __global__ void plain_lse(AttentionDims a, float *lse)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y, b = blockIdx.z;
    if (t >= a.len) return;
    float most = a.sinks.data ? attention_number(a.sinks, head) : -INFINITY, total = a.sinks.data ? 1 : 0;
    for (int key = attention_first_key(a, b, t, t); key <= t; key++) {
        float s = a.scale * dot(vector_of(a.q, b, t, head, a.dim), vector_of(a.k, b, key, head / a.group, a.dim), a.dim);
        float now = fmaxf(most, s);
        total = total * expf(most - now) + expf(s - now);
        most = now;
    }
    lse[((int64_t)b * a.num_heads + head) * a.len + t] = most + logf(total);
}

static __global__ void plain_o(AttentionDims a, const float *lse, float *o)
{
    int   t = blockIdx.x, head = blockIdx.y, b = blockIdx.z, d = threadIdx.x;
    float sum = 0;
    for (int key = attention_first_key(a, b, t, t); key <= t; key++)
        sum += weight(a, lse, b, head, t, key) * __bfloat162float(vector_of(a.v, b, key, head / a.group, a.v_dim)[d]);
    o[(((int64_t)b * a.len + t) * a.num_heads + head) * a.v_dim + d] = sum;
}

static __global__ void plain_delta(AttentionDims a, float *delta)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y, b = blockIdx.z;
    if (t >= a.len) return;
    delta[((int64_t)b * a.num_heads + head) * a.len + t] =
        dot(vector_of(a.o, b, t, head, a.v_dim), vector_of(a.grad_o, b, t, head, a.v_dim), a.v_dim);
}

static __global__ void plain_dq(AttentionDims a, const float *lse, const float *delta, float *dq)
{
    int   t = blockIdx.x, head = blockIdx.y, b = blockIdx.z, d = threadIdx.x;
    float sum = 0;
    for (int key = attention_first_key(a, b, t, t); key <= t; key++)
        sum += slope(a, lse, delta, b, head, t, key) * __bfloat162float(vector_of(a.k, b, key, head / a.group, a.dim)[d]);
    dq[(((int64_t)b * a.len + t) * a.num_heads + head) * a.dim + d] = sum * a.scale;
}

static __global__ void plain_dkv(AttentionDims a, const float *lse, const float *delta, float *dk, float *dv)
{
    int     key = blockIdx.x, g = blockIdx.y, b = blockIdx.z, d = threadIdx.x;
    float   k_sum = 0, v_sum = 0;
    int64_t at = ((int64_t)b * a.len + key) * a.num_kv_heads + g;
    for (int head = g * a.group; head < (g + 1) * a.group; head++)
        for (int t = key; t < a.len; t++) {
            if (key < attention_first_key(a, b, t, t)) continue;
            k_sum += slope(a, lse, delta, b, head, t, key) * __bfloat162float(vector_of(a.q, b, t, head, a.dim)[d]);
            if (d < a.v_dim) v_sum += weight(a, lse, b, head, t, key) * __bfloat162float(vector_of(a.grad_o, b, t, head, a.v_dim)[d]);
        }
    dk[at * a.dim + d] = k_sum * a.scale;
    if (d < a.v_dim) dv[at * a.v_dim + d] = v_sum;
}

/* ---- */

template <typename T> static T *take(size_t count)
{
    T *p;
    check(cudaMalloc(&p, count * sizeof(T) + 16), "memory");
    check(cudaMemset(p, 0xff, count * sizeof(T)), "memory");
    return p;
}

struct Case {
    int  batch, len, heads, kv_heads, dim, v_dim, window;
    bool sinks, documents;
};

/* An attention's tensors. */
struct Tensors {
    Case                c;
    AttentionDims       a = {};
    size_t              q_size, k_size, v_size, o_size, rows;
    bf16               *q, *k, *v, *o, *grad_o, *dq, *dk, *dv;
    float              *lse;
    void               *workspace;
    std::vector<void *> owned;

    template <typename T> T *own(size_t count)
    {
        T *p = take<T>(count);
        owned.push_back(p);
        return p;
    }
    Heads heads(void *p, int num, int dim)
    {
        return Heads{p, (int64_t)c.len * num * dim, (int64_t)num * dim};
    }
    explicit Tensors(const Case &c_) : c(c_)
    {
        size_t tokens = (size_t)c.batch * c.len;
        rows = tokens * c.heads;
        q_size = rows * c.dim, o_size = rows * c.v_dim, k_size = tokens * c.kv_heads * c.dim, v_size = tokens * c.kv_heads * c.v_dim;
        q = own<bf16>(q_size), k = own<bf16>(k_size), v = own<bf16>(v_size), o = own<bf16>(o_size), grad_o = own<bf16>(o_size);
        dq = own<bf16>(q_size), dk = own<bf16>(k_size), dv = own<bf16>(v_size), lse = own<float>(rows);
        bf16  *all[] = {q, k, v, grad_o};
        size_t sizes[] = {q_size, k_size, v_size, o_size};
        for (int i = 0; i < 4; i++) fill_normalised<<<1024, FILL_THREADS>>>(all[i], (int64_t)sizes[i], 17 * i + 1);
        AttentionAttrs attrs = {};
        attrs.num_heads = c.heads, attrs.num_kv_heads = c.kv_heads, attrs.head_dim = c.dim, attrs.window = c.window;
        TensorType q_type = {}, v_type = {};
        q_type.ndim = v_type.ndim = 4, q_type.dim[0] = c.batch, q_type.dim[1] = c.len, v_type.dim[3] = c.v_dim;
        a = attention_dims(&attrs, &q_type, &v_type);
        a.q = heads(q, c.heads, c.dim), a.k = heads(k, c.kv_heads, c.dim), a.v = heads(v, c.kv_heads, c.v_dim);
        a.o = heads(o, c.heads, c.v_dim), a.grad_o = heads(grad_o, c.heads, c.v_dim), a.lse = lse;
        a.dq = heads(dq, c.heads, c.dim), a.dk = heads(dk, c.kv_heads, c.dim), a.dv = heads(dv, c.kv_heads, c.v_dim);
        if (c.sinks) {
            bf16 *sinks = own<bf16>((size_t)c.heads);
            fill_normalised<<<1, FILL_THREADS>>>(sinks, c.heads, 99);
            a.sinks.data = sinks, a.sinks.dtype = DT_BF16;
        }
        if (c.documents) {
            int32_t             *starts = own<int32_t>(tokens);
            std::vector<int32_t> host(tokens);
            int                  cuts[] = {0, 1, 61, 64, 130, 258, 401};
            for (size_t i = 0; i < tokens; i++)
                for (int cut : cuts)
                    if ((int)(i % c.len) >= cut + (int)(i / c.len)) host[i] = cut ? cut + (int)(i / c.len) : 0;
            check(cudaMemcpy(starts, host.data(), tokens * 4, cudaMemcpyHostToDevice), "copy");
            a.doc_start = starts;
        }
        TurnsBytes n = attention_turns_bytes(c.batch, c.heads, c.len, c.dim);
        workspace = own<char>(n.delta + n.taken + n.sum);
    }
    ~Tensors()
    {
        for (void *p : owned) cudaFree(p);
    }
};

static void compare(const char *name, const bf16 *got, const float *expected, size_t count, bool *fails)
{
    std::vector<bf16>  x(count);
    std::vector<float> y(count);
    check(cudaMemcpy(x.data(), got, count * 2, cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(y.data(), expected, count * 4, cudaMemcpyDeviceToHost), "copy");
    double error = 0, norm = 0, most = 0;
    for (size_t i = 0; i < count; i++) {
        double e = (double)__bfloat162float(x[i]) - y[i];
        error += e * e, norm += (double)y[i] * y[i], most = fmax(most, fabs(e));
        if (isnan(e)) most = error = INFINITY;
    }
    double relative = sqrt(error / fmax(norm, (double)count * LEAST_RMS * LEAST_RMS));
    printf(" %s %.1e (%.1e)", name, relative, most);
    *fails = *fails || !(relative < MOST_ERROR);
}

static bool right(const Case &c, cudaStream_t stream)
{
    Tensors t(c);
    float  *lse = t.own<float>(t.rows), *delta = t.own<float>(t.rows), *o = t.own<float>(t.o_size), *dq = t.own<float>(t.q_size),
          *dk = t.own<float>(t.k_size), *dv = t.own<float>(t.v_size);
    bool fails = false;
    dim3 lanes((c.len + 127) / 128, c.heads, c.batch), queries(c.len, c.heads, c.batch), keys(c.len, c.kv_heads, c.batch);
    if (attention_wgmma_forward(&t.a, stream) != OK || attention_turns_backward(&t.a, t.workspace, stream) != OK) exit(1);
    plain_lse<<<lanes, 128, 0, stream>>>(t.a, lse);
    plain_o<<<queries, c.v_dim, 0, stream>>>(t.a, lse, o);
    plain_delta<<<lanes, 128, 0, stream>>>(t.a, delta);
    plain_dq<<<queries, c.dim, 0, stream>>>(t.a, lse, delta, dq);
    plain_dkv<<<keys, c.dim, 0, stream>>>(t.a, lse, delta, dk, dv);
    check(cudaStreamSynchronize(stream), "run");
    printf("B %d T %5d heads %2d:%d of %d/%d window %d%s%s:", c.batch, c.len, c.heads, c.kv_heads, c.dim, c.v_dim, c.window,
           c.sinks ? " sinks" : "", c.documents ? " documents" : "");
    compare("o", t.o, o, t.o_size, &fails);
    compare("dq", t.dq, dq, t.q_size, &fails);
    compare("dk", t.dk, dk, t.k_size, &fails);
    compare("dv", t.dv, dv, t.v_size, &fails);
    std::vector<char> first(t.q_size * 2), second(t.q_size * 2);
    check(cudaMemcpy(first.data(), t.dq, first.size(), cudaMemcpyDeviceToHost), "copy");
    if (attention_turns_backward(&t.a, t.workspace, stream) != OK) exit(1);
    check(cudaStreamSynchronize(stream), "run");
    check(cudaMemcpy(second.data(), t.dq, first.size(), cudaMemcpyDeviceToHost), "copy");
    if (first != second) fails = true, printf(" OTHER BITS IN A SECOND RUN");
    printf("%s\n", fails ? " FAILED" : "");
    fflush(stdout);
    return !fails;
}

static double time_of(Tensors &t, bool backward, cudaStream_t stream)
{
    cudaEvent_t begin, end;
    double      best = INFINITY;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int round = 0; round < ROUNDS; round++) {
        float ms;
        for (int i = 0; i < WARM + RUNS; i++) {
            if (i == WARM) check(cudaEventRecord(begin, stream), "event");
            Status status = backward ? attention_turns_backward(&t.a, t.workspace, stream) : attention_wgmma_forward(&t.a, stream);
            if (status != OK) exit(1);
        }
        check(cudaEventRecord(end, stream), "event");
        check(cudaStreamSynchronize(stream), "run");
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        best = fmin(best, ms * 1e-3 / RUNS);
    }
    return best;
}

int main(void)
{
    cudaStream_t stream;
    bool         all = true;
    check(cudaStreamCreate(&stream), "stream");
    for (int len : {1, 63, 64, 65, 200, 513})
        for (int variant = 0; variant < 4; variant++) {
            Case c = {2, len, 4, variant == 2 ? 2 : 4, 192, 128, variant == 3 ? 100 : 0, variant == 3, variant == 1};
            all = right(c, stream) && all;
        }
    all = right({2, 513, 4, 2, 128, 128, 0, true, true}, stream) && all;
    all = right({2, 513, 4, 2, 64, 64, 0, true, true}, stream) && all;
    for (int len : {2048, 4096, 8192}) {
        double plain[2] = {};
        for (int variant = 0; variant < 3; variant++) {
            Case    c = {len == 8192 ? 1 : 4, len, 16, 16, variant == 2 ? 192 : 128, 128, 0, variant == 1, false};
            Tensors t(c);
            printf("B %d T %d, 16 heads of %d/%d%s:", c.batch, c.len, c.dim, c.v_dim, c.sinks ? ", sinks" : "");
            for (int backward = 0; backward < 2; backward++) {
                double pairs = (double)c.batch * c.heads * len * (len + 1.0) / 2;
                double flops = 2 * pairs * (backward ? 3.0 * c.dim + 2.0 * c.v_dim : c.dim + c.v_dim), s = time_of(t, backward, stream);
                if (!variant) plain[backward] = s / flops;
                printf("  %s %.3f ms, %.0f TFLOP/s, %.3f of plain per FLOP", backward ? "backward" : "forward", s * 1e3, flops / s * 1e-12,
                       s / flops / plain[backward]);
            }
            printf("\n");
            fflush(stdout);
        }
    }
    return all ? 0 : 1;
}
