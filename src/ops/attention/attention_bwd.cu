/* attention_bwd on CUDA: chooses the kernel of each node. */
#include "device/cuda/sdpa.h"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_turns.h"

enum { IN_DO, IN_Q, IN_K, IN_V, IN_O, IN_LSE, IN_DOC_START, IN_DLSE, IN_SINKS, IN_BIAS, IN_ACC_SINKS, IN_ACC_BIAS };
enum { OUT_DSINKS = 3, OUT_DBIAS };

/* Whether the sums of dbias, if wanted, fit into a thread block's shared memory. */
static bool few_distances(const Node *node)
{
    return !node->out[OUT_DBIAS] || node->in[IN_BIAS]->type.dim[0] <= ATTENTION_MOST_DISTANCES;
}

static bool mma_match(const Node *node, CudaDevice *device)
{
    return attention_one_dim(node, IN_Q) && attention_has_form(node, IN_SINKS) && few_distances(node) &&
           attention_mma_serves((const AttentionAttrs *)node->attrs, cuda_shared_bytes(device), true);
}

static bool wgmma_match(const Node *node, CudaDevice *device)
{
    int64_t v_dim = attention_dims_of(node, IN_Q).v_dim;
    bool    form = attention_forms_in_turns((const AttentionAttrs *)node->attrs, v_dim, node->in[IN_BIAS] != NULL) && !node->out[OUT_DBIAS];
    return (form || attention_is_causal(node, IN_SINKS)) && attention_wgmma_serves(node, IN_Q, IN_SINKS) && cuda_sm(device) == 90 &&
           attention_wgmma_there();
}

static bool simt_match(const Node *node, CudaDevice *)
{
    return attention_simt_serves(node, IN_Q) && few_distances(node);
}

static size_t simt_workspace(const Node *node, CudaDevice *)
{
    AttentionDims a = attention_dims_of(node, IN_Q);
    if (node->out[OUT_DBIAS]) a.bias_rows = (int)node->in[IN_BIAS]->type.dim[0];
    return attention_delta_bytes(&a) + attention_parts_bytes(&a);
}

static AttentionDims bound(const KernelArgs *args)
{
    AttentionDims a = attention_dims((const AttentionAttrs *)args->attrs, &args->in[IN_Q].type, &args->in[IN_V].type);
    heads_of_qkv(&a, args->in + IN_Q, &a.q, &a.k, &a.v);
    a.o = heads_of(&args->in[IN_O]);
    a.grad_o = heads_of(&args->in[IN_DO]);
    a.lse = (float *)args->in[IN_LSE].data;
    a.doc_start = (const int32_t *)args->in[IN_DOC_START].data;
    a.dlse = (const float *)args->in[IN_DLSE].data;
    attention_bind_scores(&a, args->in + IN_SINKS);
    if (args->in[IN_Q].type.ndim == 3) {
        if (args->out[0].data) heads_of_qkv(&a, args->out, &a.dq, &a.dk, &a.dv); /* without dq only sinks or a bias are trained */
    } else {
        Heads *heads[] = {&a.dq, &a.dk, &a.dv};
        for (int k = 0; k < 3; k++)
            if (args->out[k].data) *heads[k] = heads_of(&args->out[k]);
    }
    return a;
}

static CudaSdpa sdpa_of(const AttentionDims *a)
{
    CudaSdpa s = {};
    s.backward = true;
    s.batch = a->batch, s.len = a->len, s.num_heads = a->num_heads, s.num_kv_heads = a->num_kv_heads, s.dim = a->dim;
    s.scale = a->scale;
    s.q_stride = a->q.token_stride, s.kv_stride = a->k.token_stride, s.dq_stride = a->dq.token_stride, s.dkv_stride = a->dk.token_stride;
    s.q = a->q.data, s.k = a->k.data, s.v = a->v.data, s.o = a->o.data, s.grad_o = a->grad_o.data;
    s.dq = a->dq.data, s.dk = a->dk.data, s.dv = a->dv.data;
    s.lse = a->lse;
    return s;
}

/* Describes the node to cuDNN: the strides that bound() sets, and no data. */
static CudaSdpa sdpa_of_node(const Node *node)
{
    TensorView    views[3] = {};
    AttentionDims a = attention_dims_of(node, IN_Q);
    for (int i = 0; i < 3; i++)
        if (node->in[IN_Q + i]) views[i].type = node->in[IN_Q + i]->type;
    heads_of_qkv(&a, views, &a.q, &a.k, &a.v);
    a.dq = a.q, a.dk = a.k;
    a.q.data = a.k.data = a.v.data = a.dq.data = a.dk.data = NULL;
    return sdpa_of(&a);
}

/* cuDNN takes no gradient of lse, and doesn't return delta, from which the gradient of sinks is computed. */
static bool sdpa_match(const Node *node, CudaDevice *device)
{
    bool all = node->out[0] != NULL && !node->in[IN_DLSE] && !node->in[IN_SINKS] && attention_is_plain(node, IN_Q, IN_SINKS);
    for (int k = 1; k < 3; k++) all = all && (!node->in[IN_Q + k] || node->out[k]);
    const AttentionAttrs *attrs = (const AttentionAttrs *)node->attrs;
    int64_t               batch = node->in[IN_Q]->type.dim[0], len = node->in[IN_Q]->type.dim[1];
    if (!attention_may_hold_scores(attrs, batch, len) || !all) return false;
    if (wgmma_match(node, device) && attention_in_turns(attrs, attrs->head_dim, batch, len, true)) return false;
    CudaSdpa s = sdpa_of_node(node);
    return cuda_sdpa_supported(device, &s);
}

static size_t sdpa_workspace(const Node *node, CudaDevice *device)
{
    CudaSdpa s = sdpa_of_node(node);
    return cuda_sdpa_workspace(device, &s);
}

/* Computes dsinks from delta, which is at the beginning of the workspace. */
static Status dsinks(const KernelArgs *args, AttentionDims *a)
{
    a->delta = (const float *)args->workspace;
    return attention_dsinks(a, &args->out[OUT_DSINKS], args->accumulate >> OUT_DSINKS & 1, cuda_stream(args));
}

static Status simt_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    a.delta = (const float *)args->workspace;
    if (args->out[OUT_DBIAS].data) a.bias_parts = (float *)((char *)args->workspace + attention_delta_bytes(&a));
    TRY(attention_delta(&a, (float *)args->workspace, cuda_stream(args)));
    TRY(attention_simt_backward(&a, cuda_stream(args)));
    TRY(attention_dbias(&a, ATTENTION_BIAS_QUERIES, &args->out[OUT_DBIAS], args->accumulate >> OUT_DBIAS & 1, cuda_stream(args)));
    return dsinks(args, &a);
}

static size_t wgmma_workspace(const Node *node, CudaDevice *)
{
    AttentionDims a = attention_dims_of(node, IN_Q);
    TurnsBytes    n = attention_turns_bytes(a.batch, a.num_heads, a.len, a.dim);
    return attention_in_turns((const AttentionAttrs *)node->attrs, a.v_dim, a.batch, a.len, false) ? n.delta + n.taken + n.sum
                                                                                                   : attention_delta_bytes(&a);
}

static Status wgmma_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    if (attention_in_turns((const AttentionAttrs *)args->attrs, a.v_dim, a.batch, a.len, false)) {
        TRY(attention_turns_backward(&a, args->workspace, cuda_stream(args)));
        return dsinks(args, &a);
    }
    a.delta = (const float *)args->workspace;
    TRY(attention_delta(&a, (float *)args->workspace, cuda_stream(args)));
    TRY(attention_wgmma_backward(&a, cuda_stream(args)));
    return dsinks(args, &a);
}

static Status mma_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    a.delta = (const float *)args->workspace;
    if (args->out[OUT_DBIAS].data) a.bias_parts = (float *)((char *)args->workspace + attention_delta_bytes(&a));
    TRY(attention_delta(&a, (float *)args->workspace, cuda_stream(args)));
    TRY(attention_mma_backward(&a, cuda_stream(args)));
    TRY(attention_dbias(&a, ATTENTION_TILE_QUERIES, &args->out[OUT_DBIAS], args->accumulate >> OUT_DBIAS & 1, cuda_stream(args)));
    return dsinks(args, &a);
}

static Status sdpa_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    CudaSdpa      s = sdpa_of(&a);
    return cuda_sdpa_run((CudaDevice *)args->device, &s, args->workspace, args->stream);
}

#define SCORES 1u << IN_SINKS | 1u << IN_BIAS | 1u << IN_ACC_SINKS | 1u << IN_ACC_BIAS
#define TYPES \
    { \
        {.in = 1u << IN_LSE | 1u << IN_DLSE, .dtypes = DT_SET_F32}, \
        { \
            .in = SCORES, .out = 1u << OUT_DSINKS | 1u << OUT_DBIAS, .dtypes = DT_SET_FLOAT \
        } \
    }

CUDA_KERNELS(
    attention_bwd,
    {.dtypes = DT_SET_BF16, .run = sdpa_run, .name = "cudnn", .workspace = sdpa_workspace, .match = sdpa_match, .except = TYPES},
    {.dtypes = DT_SET_BF16,
     .min_sm = 90,
     .run = wgmma_run,
     .name = "wgmma",
     .workspace = wgmma_workspace,
     .match = wgmma_match,
     .except = TYPES},
    {.dtypes = DT_SET_BF16, .min_sm = 80, .run = mma_run, .name = "mma", .workspace = simt_workspace, .match = mma_match, .except = TYPES},
    {.dtypes = DT_SET_BF16, .run = simt_run, .name = "simt", .workspace = simt_workspace, .match = simt_match, .except = TYPES},
    {.dtypes = DT_SET_F32, .run = simt_run, .name = "simt", .workspace = simt_workspace, .match = simt_match, .except = TYPES})
