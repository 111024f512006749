/* linear_add: y[:, col:col+M] += alpha x w^T, in place. */
#include "ops/linear.cuh"

static CudaGemm gemm_of_types(const LinearAttrs *attrs, const TensorType *y, const TensorType *x, const TensorType *w)
{
    CudaGemm g = {};
    g.m = type_rows(x), g.n = w->dim[0], g.k = w->dim[1];
    g.trans_b = true;
    g.accumulate = true;
    g.alpha = (float)attrs->alpha;
    g.a_dtype = x->dtype, g.b_dtype = w->dtype, g.c_dtype = y->dtype;
    g.a_stride = g.b_stride = g.k, g.c_stride = type_cols(y);
    g.c_offset = attrs->col;
    return g;
}

static CudaGemm gemm_of_node(const Node *node)
{
    return gemm_of_types((const LinearAttrs *)node->attrs, &node->in[0]->type, &node->in[1]->type, &node->in[2]->type);
}

static CudaGemm gemm_of_args(const KernelArgs *args)
{
    CudaGemm g =
        gemm_of_types((const LinearAttrs *)args->attrs, &args->in[0].type, &args->in[1].type, &args->in[2].type);
    g.a = args->in[1].data, g.b = args->in[2].data, g.c = args->out[0].data;
    return g;
}

LINEAR_KERNELS(linear_add)
