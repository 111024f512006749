/* attention: which kernel serves which node. */
#include "ops/attention.cuh"

static bool simt_match(const Node *node, CudaDevice *)
{
    return ((const AttentionAttrs *)node->attrs)->head_dim <= ATTENTION_MOST_DIM && attention_one_dtype(node, 0);
}

static AttentionDims bound(const KernelArgs *args)
{
    AttentionDims a = attention_dims((const AttentionAttrs *)args->attrs, &args->in[0].type);
    heads_of_qkv(&a, args->in, &a.q, &a.k, &a.v);
    a.o = heads_of(&args->out[0]);
    a.doc_start = (const int32_t *)args->in[3].data;
    a.lse = (float *)args->out[1].data;
    return a;
}

static Status simt_run(const KernelArgs *args)
{
    AttentionDims a = bound(args);
    return attention_simt_forward(&a, cuda_stream(args));
}

CUDA_KERNELS(attention, { .dtypes = DT_SET_FLOAT, .run = simt_run, .name = "simt", .match = simt_match })
