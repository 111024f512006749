/* attention_cached, attention_turned: write new keys and values into their rows' pages, then attend over the pages. A row whose positions
 * are outside its pages writes nothing and gives NaN. (The program checks positions before it runs.) */
#include "device/cuda/vec_f16.cuh"
#include "ops/attention/attention_cache.cuh"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_turned.h"

enum { IN_Q, IN_K, IN_V, IN_KC, IN_VC, IN_STARTS, IN_PAGES, IN_SINKS, IN_BIAS };
enum { THREADS = 256 };

/* Copies new keys and values to the cache in words of type W; a token's bytes are a multiple of the word. element: bytes of an element. */
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

/* Encodes new keys and values into the cache, N elements a thread; head_dim is a multiple of N. */
template <typename T, int N> static __global__ void append_codes(AttentionDims a, Heads k, Heads v)
{
    int64_t parts = (int64_t)a.num_kv_heads * a.dim / N, count = (int64_t)a.batch * a.len * parts;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t token = i / parts, c = i % parts * N;
        int     b = (int)(token / a.len), t = (int)(token % a.len);
        if (!attention_has_room(a, b)) continue;
        int64_t from = b * k.batch_stride + t * k.token_stride + c;
        int64_t to = attention_cell(a.pages, b, a.pages.starts[b] + t) * parts * N + c;
        float   key[4] = {}, value[4] = {};
#pragma unroll
        for (int e = 0; e < N; e++) key[e] = to_float(((const T *)k.data)[from + e]), value[e] = to_float(((const T *)v.data)[from + e]);
        uint32_t keys = e4m3_encode(key), values = e4m3_encode(value);
        if (N == 4)
            *(uint32_t *)((e4m3 *)a.k.data + to) = keys, *(uint32_t *)((e4m3 *)a.v.data + to) = values;
        else
            ((e4m3 *)a.k.data)[to] = (e4m3)keys, ((e4m3 *)a.v.data)[to] = (e4m3)values;
    }
}

/* Appends keys and values that have the same head dim. */
static Status append_alike(const AttentionDims *a, const Heads *k, const Heads *v, cudaStream_t stream)
{
    int      element = (int)dtype_bytes(a->dtype, 1);
    bool     coded = a->cached == DT_E4M3, wide = coded ? a->dim % 4 == 0 : a->dim * element % 16 == 0;
    int64_t  part = coded ? (wide ? 4 : 1) : wide ? 16 / element : 1;
    unsigned grid = cuda_grid((int64_t)a->batch * a->len * a->num_kv_heads * a->dim / part, THREADS);
    if (coded && wide)
        CUDA_FLOAT_ANY(a->dtype, T, append_codes<T, 4><<<grid, THREADS, 0, stream>>>(*a, *k, *v));
    else if (coded)
        CUDA_FLOAT_ANY(a->dtype, T, append_codes<T, 1><<<grid, THREADS, 0, stream>>>(*a, *k, *v));
    else if (wide)
        append_rows<uint4><<<grid, THREADS, 0, stream>>>(*a, *k, *v, element);
    else if (element == 4)
        append_rows<uint32_t><<<grid, THREADS, 0, stream>>>(*a, *k, *v, element);
    else
        append_rows<uint16_t><<<grid, THREADS, 0, stream>>>(*a, *k, *v, element);
    return CUDA_LAUNCHED();
}

Status attention_append_keys(const AttentionDims *a, const Heads *k, cudaStream_t stream)
{
    AttentionDims keys = *a;
    keys.v = a->k;
    return append_alike(&keys, k, k, stream);
}

static Status append(const AttentionDims *a, const Heads *k, const Heads *v, cudaStream_t stream)
{
    if (a->v_dim == a->dim) return append_alike(a, k, v, stream);
    AttentionDims values = *a;
    values.k = a->v, values.dim = a->v_dim;
    TRY(attention_append_keys(a, k, stream));
    return append_alike(&values, v, v, stream);
}

/* Dims with the operands of the launch. cache: the input index of kc. *k, *v: the new tokens' heads. */
static AttentionDims bound(const KernelArgs *args, int cache, Heads *k, Heads *v)
{
    TensorView    packed[3] = {args->in[0]};
    bool          apart = cache == IN_KC; /* false: the op is attention_turned, which has only packed rows, and no sinks and no bias */
    AttentionDims a = attention_dims((const AttentionAttrs *)args->attrs, &args->in[IN_Q].type, apart ? &args->in[IN_V].type : NULL);
    heads_of_qkv(&a, apart ? args->in : packed, &a.q, k, v);
    if (apart) attention_bind_scores(&a, args->in + IN_SINKS);
    a.cached = args->out[1].type.dtype;
    a.k = heads_of(&args->out[1]), a.v = heads_of(&args->out[2]), a.o = heads_of(&args->out[0]);
    a.pages.starts = (const int32_t *)args->in[cache + IN_STARTS - IN_KC].data;
    a.pages.table = (const int32_t *)args->in[cache + IN_PAGES - IN_KC].data;
    a.pages.row_pages = (int)args->in[cache + IN_PAGES - IN_KC].type.dim[1];
    a.pages.num_pages = (int)args->in[cache].type.dim[0];
    a.pages.page_len = (int)args->in[cache].type.dim[1];
    return a;
}

/* Whether both caches of the op (attention_cached or attention_turned) have the same dtype. */
static bool same_caches(const Node *node)
{
    const OpAlias *alias = node->op->alias;
    return node->in[alias[0].in]->type.dtype == node->in[alias[1].in]->type.dtype;
}

static bool turned_mma_match(const Node *node, CudaDevice *device)
{
    return same_caches(node) && attention_mma_serves((const AttentionAttrs *)node->attrs, cuda_shared_bytes(device), false);
}

static bool turned_simt_match(const Node *node, CudaDevice *)
{
    return same_caches(node) && ((const AttentionAttrs *)node->attrs)->head_dim <= ATTENTION_MOST_DIM;
}

static bool mma_match(const Node *node, CudaDevice *device)
{
    return turned_mma_match(node, device) && attention_is_plain(node, IN_Q, IN_SINKS);
}

static bool simt_match(const Node *node, CudaDevice *)
{
    return same_caches(node) && attention_simt_serves(node, IN_Q);
}

static Status mma_run(const KernelArgs *args)
{
    Heads         k, v;
    AttentionDims a = bound(args, IN_KC, &k, &v);
    if (!a.batch || !a.len) return OK;
    bool      early = args->early && (args->constant >> IN_STARTS & args->constant >> IN_PAGES & 1);
    HeadTurns none = {};
    if (a.o.data && a.len == 1) return attention_pages_decode(&a, &k, &v, &none, early, args->workspace, cuda_stream(args));
    TRY(append(&a, &k, &v, cuda_stream(args)));
    return a.o.data ? attention_pages_prefill(&a, cuda_stream(args)) : OK;
}

static Status simt_run(const KernelArgs *args)
{
    Heads         k, v;
    AttentionDims a = bound(args, IN_KC, &k, &v);
    if (!a.batch || !a.len) return OK;
    TRY(append(&a, &k, &v, cuda_stream(args)));
    return a.o.data ? attention_simt_forward(&a, cuda_stream(args)) : OK;
}

#define CACHES(dtype) \
    { \
        {1u << IN_KC | 1u << IN_VC, 1u << 1 | 1u << 2, DT_SET(dtype) | DT_SET(DT_E4M3)}, \
        { \
            1u << IN_SINKS | 1u << IN_BIAS, 0, DT_SET_DECODE \
        } \
    }

CUDA_KERNELS(attention_cached,
             {.dtypes = DT_SET_BF16,
              .min_sm = 80,
              .run = mma_run,
              .name = "mma",
              .workspace = cuda_planned_workspace,
              .match = mma_match,
              .except = CACHES(DT_BF16)},
             {.dtypes = DT_SET(DT_F16),
              .min_sm = 80,
              .run = mma_run,
              .name = "mma",
              .workspace = cuda_planned_workspace,
              .match = mma_match,
              .except = CACHES(DT_F16)},
             {.dtypes = DT_SET_BF16, .run = simt_run, .name = "simt", .match = simt_match, .except = CACHES(DT_BF16)},
             {.dtypes = DT_SET(DT_F16), .run = simt_run, .name = "simt", .match = simt_match, .except = CACHES(DT_F16)},
             {.dtypes = DT_SET_F32, .run = simt_run, .name = "simt", .match = simt_match, .except = CACHES(DT_F32)})

/* ---- attention_turned ---- */

extern "C" const CudaKernelList cuda_kernels_qkv_norm_rope;

/* Whether the decoding kernel can read the norms' weights as they are stored. */
static bool turns_fit(const KernelArgs *args)
{
    for (int k = TURNED_WQ; k <= TURNED_WK; k++)
        if (args->in[k].data && (args->in[k].type.dtype != args->in[TURNED_QKV].type.dtype || !is_aligned16(args->in[k].data)))
            return false;
    return true;
}

static Status turned_mma(const KernelArgs *args)
{
    const uint32_t     read = 1u << TURNED_STARTS | 1u << TURNED_PAGES | 1u << TURNED_TABLE | 1u << TURNED_POSITIONS;
    const TurnedAttrs *attrs = (const TurnedAttrs *)args->attrs;
    const TensorView  *in = args->in;
    Heads              k, v;
    AttentionDims      a = bound(args, TURNED_KC, &k, &v);
    if (!a.batch) return OK;
    if (!a.o.data || !attention_pages_turns(&a) || !turns_fit(args))
        return turned_apart(args, cuda_kernels_qkv_norm_rope.rows[0].run, mma_run);
    HeadTurns turns = {in[TURNED_WQ].data,
                       in[TURNED_WK].data,
                       (const float *)in[TURNED_TABLE].data,
                       (const int32_t *)in[TURNED_POSITIONS].data,
                       in[TURNED_TABLE].type.dim[0],
                       (float)attrs->eps,
                       (float)attrs->offset};
    uint32_t  weights = turns.wq ? 1u << TURNED_WQ | 1u << TURNED_WK : 0;
    bool      early = args->early && (args->constant & (read | weights)) == (read | weights);
    return attention_pages_decode(&a, &k, &v, &turns, early, args->workspace, cuda_stream(args));
}

static Status turned_simt(const KernelArgs *args)
{
    return turned_apart(args, cuda_kernels_qkv_norm_rope.rows[0].run, simt_run);
}

#define TURNED_TYPES(dtype) \
    { \
        {1u << TURNED_TABLE, 0, DT_SET_F32}, {1u << TURNED_KC | 1u << TURNED_VC, 1u << 1 | 1u << 2, DT_SET(dtype) | DT_SET(DT_E4M3)}, \
        { \
            1u << TURNED_WQ | 1u << TURNED_WK, 0, DT_SET_DECODE \
        } \
    }

CUDA_KERNELS(attention_turned,
             {.dtypes = DT_SET_BF16,
              .min_sm = 80,
              .run = turned_mma,
              .name = "mma",
              .workspace = cuda_planned_workspace,
              .match = turned_mma_match,
              .except = TURNED_TYPES(DT_BF16)},
             {.dtypes = DT_SET(DT_F16),
              .min_sm = 80,
              .run = turned_mma,
              .name = "mma",
              .workspace = cuda_planned_workspace,
              .match = turned_mma_match,
              .except = TURNED_TYPES(DT_F16)},
             {.dtypes = DT_SET_BF16,
              .run = turned_simt,
              .name = "simt",
              .workspace = cuda_planned_workspace,
              .match = turned_simt_match,
              .except = TURNED_TYPES(DT_BF16)},
             {.dtypes = DT_SET(DT_F16),
              .run = turned_simt,
              .name = "simt",
              .workspace = cuda_planned_workspace,
              .match = turned_simt_match,
              .except = TURNED_TYPES(DT_F16)},
             {.dtypes = DT_SET_F32,
              .run = turned_simt,
              .name = "simt",
              .workspace = cuda_planned_workspace,
              .match = turned_simt_match,
              .except = TURNED_TYPES(DT_F32)})
