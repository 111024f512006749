/* attention_cached: new keys and values go into the cache at step[STEP_POSITION], then attention over it. Positions
 * outside the cache (the program checks them before it runs) write nothing there and give NaN. */
#include "ops/attention/attention_mma.cuh"

enum { IN_Q, IN_K, IN_V, IN_KC, IN_VC, IN_STEP };
enum { THREADS = 256 };

static __global__ void append_rows(AttentionDims a, Heads k, Heads v, int dtype, int cache_dtype)
{
    int64_t first = a.step[STEP_POSITION], row = (int64_t)a.num_kv_heads * a.dim, count = (int64_t)a.batch * a.len * row;
    if (first < 0 || first + a.len > a.key_len) return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t b = i / row / a.len, t = i / row % a.len, c = i % row, to = (b * a.key_len + first + t) * row + c;
        elem_set(a.k.data, cache_dtype, to, elem_get(k.data, dtype, b * k.batch_stride + t * k.token_stride + c));
        elem_set(a.v.data, cache_dtype, to, elem_get(v.data, dtype, b * v.batch_stride + t * v.token_stride + c));
    }
}

static bool match(const Node *node, CudaDevice *)
{
    return ((const AttentionAttrs *)node->attrs)->head_dim <= ATTENTION_MOST_DIM;
}

static Status run(const KernelArgs *args)
{
    AttentionDims a = attention_dims((const AttentionAttrs *)args->attrs, &args->in[IN_Q].type);
    Heads         k, v;
    heads_of_qkv(&a, args->in, &a.q, &k, &v);
    a.k = heads_of(&args->out[1]), a.v = heads_of(&args->out[2]), a.o = heads_of(&args->out[0]);
    a.key_len = (int)args->in[IN_KC].type.dim[1];
    a.step = (const int64_t *)args->in[IN_STEP].data;
    int64_t count = (int64_t)a.batch * a.len * a.num_kv_heads * a.dim;
    append_rows<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>(a, k, v, a.dtype, args->out[1].type.dtype);
    TRY(CUDA_LAUNCHED());
    /* one token: a tile of queries would be nearly empty */
    size_t shared = cuda_shared_bytes((CudaDevice *)args->device);
    if (a.dtype == DT_BF16 && a.len > 1 && attention_mma_serves((const AttentionAttrs *)args->attrs, shared, false))
        return attention_mma_forward(&a, cuda_stream(args));
    return attention_simt_forward(&a, cuda_stream(args));
}

CUDA_KERNELS(attention_cached, {.dtypes = DT_SET_BF16, .run = run, .name = "cached", .match = match},
             {.dtypes = DT_SET_F32, .run = run, .name = "cached", .match = match})
