/* linear_dw: dw = alpha dy[:, col:col+M]^T x. */
#include "ops/linear.cuh"

static CudaGemm gemm_of_types(const LinearAttrs *attrs, const TensorType *dy, const TensorType *x, const TensorType *dw)
{
    CudaGemm g = {};
    g.m = attrs->rows, g.n = type_cols(x), g.k = type_rows(x);
    g.trans_a = true;
    g.alpha = (float)attrs->alpha;
    g.a_dtype = dy->dtype, g.b_dtype = x->dtype, g.c_dtype = dw->dtype;
    g.a_stride = type_cols(dy), g.b_stride = g.c_stride = g.n;
    g.a_offset = attrs->col;
    return g;
}

static CudaGemm gemm_of_node(const Node *node)
{
    CudaGemm g =
        gemm_of_types((const LinearAttrs *)node->attrs, &node->in[0]->type, &node->in[1]->type, &node->out[0]->type);
    g.accumulate = node_accumulate_mask(node) & 1;
    return g;
}

static CudaGemm gemm_of_args(const KernelArgs *args)
{
    CudaGemm g =
        gemm_of_types((const LinearAttrs *)args->attrs, &args->in[0].type, &args->in[1].type, &args->out[0].type);
    g.a = args->in[0].data, g.b = args->in[1].data, g.c = args->out[0].data;
    g.accumulate = args->accumulate & 1;
    return g;
}

LINEAR_KERNELS(linear_dw)
