/* attention_bwd: which kernel serves which node. */
#include "ops/attention.cuh"

enum { IN_DO, IN_Q, IN_K, IN_V, IN_O, IN_LSE, IN_DOC_START };

static bool simt_match(const Node *node, CudaDevice *)
{
    return ((const AttentionAttrs *)node->attrs)->head_dim <= ATTENTION_MOST_DIM && attention_one_dtype(node, IN_Q);
}

static size_t simt_workspace(const Node *node, CudaDevice *)
{
    AttentionDims a = attention_dims((const AttentionAttrs *)node->attrs, &node->in[IN_Q]->type);
    return attention_delta_bytes(&a);
}

static AttentionDims bound(const KernelArgs *args)
{
    AttentionDims a = attention_dims((const AttentionAttrs *)args->attrs, &args->in[IN_Q].type);
    heads_of_qkv(&a, args->in + IN_Q, &a.q, &a.k, &a.v);
    a.o = heads_of(&args->in[IN_O]);
    a.grad_o = heads_of(&args->in[IN_DO]);
    a.lse = (float *)args->in[IN_LSE].data;
    a.doc_start = (const int32_t *)args->in[IN_DOC_START].data;
    if (args->in[IN_Q].type.ndim == 3) {
        heads_of_qkv(&a, args->out, &a.dq, &a.dk, &a.dv);
    } else {
        Heads *heads[] = { &a.dq, &a.dk, &a.dv };
        for (int k = 0; k < 3; k++)
            if (args->out[k].data) *heads[k] = heads_of(&args->out[k]);
    }
    return a;
}

static Status simt_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    a.delta = (const float *)args->workspace;
    TRY(attention_delta(&a, (float *)args->workspace, cuda_stream(args)));
    return attention_simt_backward(&a, cuda_stream(args));
}

CUDA_KERNELS(attention_bwd, { .dtypes = DT_SET_FLOAT, .run = simt_run, .name = "simt", .workspace = simt_workspace, .match = simt_match })
