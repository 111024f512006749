/* attention on CUDA: chooses the kernel of each node. */
#include "device/cuda/sdpa.h"
#include "ops/attention/attention_mma.cuh"

enum { IN_Q, IN_K, IN_V, IN_DOC_START, IN_SINKS, IN_BIAS };

static CudaSdpa sdpa_of(const AttentionDims *a)
{
    CudaSdpa s = {};
    s.batch = a->batch, s.len = a->len, s.num_heads = a->num_heads, s.num_kv_heads = a->num_kv_heads, s.dim = a->dim;
    s.scale = a->scale;
    s.q_stride = a->q.token_stride, s.kv_stride = a->k.token_stride;
    s.q = a->q.data, s.k = a->k.data, s.v = a->v.data, s.o = a->o.data;
    s.lse = a->lse;
    return s;
}

/* Describes the node to cuDNN: the strides that bound() sets, and no data. */
static CudaSdpa sdpa_of_node(const Node *node)
{
    TensorView    views[3] = {};
    AttentionDims a = attention_dims_of(node, IN_Q);
    for (int i = 0; i < 3; i++)
        if (node->in[i]) views[i].type = node->in[i]->type;
    heads_of_qkv(&a, views, &a.q, &a.k, &a.v);
    a.o.data = a.q.data = a.k.data = a.v.data = NULL;
    return sdpa_of(&a);
}

static bool sdpa_match(const Node *node, CudaDevice *device)
{
    const AttentionAttrs *attrs = (const AttentionAttrs *)node->attrs;
    if (!attention_by_rows(attrs, node->in[0]->type.dim[1]) || !node->out[0] || !node->out[1]) return false;
    if (!attention_is_plain(node, IN_Q, IN_SINKS) || node->in[IN_SINKS]) return false;
    CudaSdpa s = sdpa_of_node(node);
    return cuda_sdpa_supported(device, &s);
}

static size_t sdpa_workspace(const Node *node, CudaDevice *device)
{
    CudaSdpa s = sdpa_of_node(node);
    return cuda_sdpa_workspace(device, &s);
}

static bool mma_match(const Node *node, CudaDevice *device)
{
    return attention_one_dim(node, IN_Q) && attention_has_form(node, IN_SINKS) &&
           attention_mma_serves((const AttentionAttrs *)node->attrs, cuda_shared_bytes(device), false);
}

static bool wgmma_match(const Node *node, CudaDevice *device)
{
    return attention_wgmma_serves(node, IN_Q, IN_SINKS) && cuda_sm(device) == 90 && attention_wgmma_there();
}

static bool simt_match(const Node *node, CudaDevice *)
{
    return attention_simt_serves(node, IN_Q);
}

static AttentionDims bound(const KernelArgs *args)
{
    AttentionDims a = attention_dims((const AttentionAttrs *)args->attrs, &args->in[IN_Q].type, &args->in[IN_V].type);
    heads_of_qkv(&a, args->in, &a.q, &a.k, &a.v);
    a.o = heads_of(&args->out[0]);
    a.doc_start = (const int32_t *)args->in[IN_DOC_START].data;
    a.lse = (float *)args->out[1].data;
    attention_bind_scores(&a, args->in + IN_SINKS);
    return a;
}

static Status simt_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    return attention_simt_forward(&a, cuda_stream(args));
}

static Status wgmma_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    return attention_wgmma_forward(&a, cuda_stream(args));
}

static Status mma_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    return attention_mma_forward(&a, cuda_stream(args));
}

static Status sdpa_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    CudaSdpa      s = sdpa_of(&a);
    return cuda_sdpa_run((CudaDevice *)args->device, &s, args->workspace, args->stream);
}

#define TYPES \
    { \
        {.out = 1u << 1, .dtypes = DT_SET_F32}, \
        { \
            .in = 1u << IN_SINKS | 1u << IN_BIAS, .dtypes = DT_SET_DECODE \
        } \
    }

CUDA_KERNELS(attention,
             {.dtypes = DT_SET_BF16, .run = sdpa_run, .name = "cudnn", .workspace = sdpa_workspace, .match = sdpa_match, .except = TYPES},
             {.dtypes = DT_SET_BF16, .min_sm = 90, .run = wgmma_run, .name = "wgmma", .match = wgmma_match, .except = TYPES},
             {.dtypes = DT_SET_BF16, .min_sm = 80, .run = mma_run, .name = "mma", .match = mma_match, .except = TYPES},
             {.dtypes = DT_SET_BF16, .run = simt_run, .name = "simt", .match = simt_match, .except = TYPES},
             {.dtypes = DT_SET(DT_F16), .run = simt_run, .name = "simt", .match = simt_match, .except = TYPES},
             {.dtypes = DT_SET_F32, .run = simt_run, .name = "simt", .match = simt_match, .except = TYPES})
