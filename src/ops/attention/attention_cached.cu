/* attention_cached: new keys and values go into their rows' pages, then attention over those. A row whose positions lie outside its pages
 * (the program checks them before it runs) writes nothing there and gives NaN. */
#include "ops/attention/attention_mma.cuh"

enum { IN_Q, IN_K, IN_V, IN_KC, IN_VC, IN_STARTS, IN_PAGES };
enum { THREADS = 256 };

/* Copies words W: bytes of a token are a multiple of them. element: bytes of an element. */
template <typename W> static __global__ void append_rows(AttentionDims a, Heads k, Heads v, int element)
{
    int64_t words = (int64_t)a.num_kv_heads * a.dim * element / (int64_t)sizeof(W), count = (int64_t)a.batch * a.len * words;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t token = i / words, c = i % words;
        int     b = (int)(token / a.len), t = (int)(token % a.len);
        if (!attention_has_room(a, b)) continue;
        int64_t from = (b * k.batch_stride + t * k.token_stride) * element / (int64_t)sizeof(W) + c;
        int64_t to = attention_cell(a.pages, b, a.pages.starts[b] + t) * words + c;
        ((W *)a.k.data)[to] = ((const W *)k.data)[from];
        ((W *)a.v.data)[to] = ((const W *)v.data)[from];
    }
}

static Status append(const AttentionDims *a, const Heads *k, const Heads *v, cudaStream_t stream)
{
    int      element = (int)dtype_bytes(a->dtype, 1);
    bool     wide = a->dim * element % 16 == 0;
    int64_t  words = (int64_t)a->batch * a->len * a->num_kv_heads * a->dim * element / (wide ? 16 : element);
    unsigned grid = cuda_grid(words, THREADS);
    if (wide)
        append_rows<uint4><<<grid, THREADS, 0, stream>>>(*a, *k, *v, element);
    else if (element == 4)
        append_rows<uint32_t><<<grid, THREADS, 0, stream>>>(*a, *k, *v, element);
    else
        append_rows<uint16_t><<<grid, THREADS, 0, stream>>>(*a, *k, *v, element);
    return CUDA_LAUNCHED();
}

static AttentionDims bound(const KernelArgs *args, Heads *k, Heads *v)
{
    AttentionDims a = attention_dims((const AttentionAttrs *)args->attrs, &args->in[IN_Q].type);
    heads_of_qkv(&a, args->in, &a.q, k, v);
    a.k = heads_of(&args->out[1]), a.v = heads_of(&args->out[2]), a.o = heads_of(&args->out[0]);
    a.pages.starts = (const int32_t *)args->in[IN_STARTS].data;
    a.pages.table = (const int32_t *)args->in[IN_PAGES].data;
    a.pages.row_pages = (int)args->in[IN_PAGES].type.dim[1];
    a.pages.num_pages = (int)args->in[IN_KC].type.dim[0];
    a.pages.page_len = (int)args->in[IN_KC].type.dim[1];
    return a;
}

static bool mma_match(const Node *node, CudaDevice *device)
{
    return attention_mma_serves((const AttentionAttrs *)node->attrs, cuda_shared_bytes(device), false);
}

static bool simt_match(const Node *node, CudaDevice *)
{
    return ((const AttentionAttrs *)node->attrs)->head_dim <= ATTENTION_MOST_DIM;
}

static Status mma_run(const KernelArgs *args)
{
    Heads         k, v;
    AttentionDims a = bound(args, &k, &v);
    if (!a.batch || !a.len) return OK;
    bool early = args->early && (args->constant >> IN_STARTS & args->constant >> IN_PAGES & 1);
    if (a.o.data && a.len == 1) return attention_pages_decode(&a, &k, &v, early, args->workspace, cuda_stream(args));
    TRY(append(&a, &k, &v, cuda_stream(args)));
    return a.o.data ? attention_pages_prefill(&a, cuda_stream(args)) : OK;
}

static Status simt_run(const KernelArgs *args)
{
    Heads         k, v;
    AttentionDims a = bound(args, &k, &v);
    if (!a.batch || !a.len) return OK;
    TRY(append(&a, &k, &v, cuda_stream(args)));
    return a.o.data ? attention_simt_forward(&a, cuda_stream(args)) : OK;
}

CUDA_KERNELS(attention_cached,
             {.dtypes = DT_SET_BF16, .min_sm = 80, .run = mma_run, .name = "mma", .workspace = cuda_planned_workspace, .match = mma_match},
             {.dtypes = DT_SET_BF16, .run = simt_run, .name = "simt", .match = simt_match},
             {.dtypes = DT_SET(DT_F16), .run = simt_run, .name = "simt", .match = simt_match},
             {.dtypes = DT_SET_F32, .run = simt_run, .name = "simt", .match = simt_match})
