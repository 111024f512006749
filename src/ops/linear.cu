/* linear: y = x w^T + bias. */
#include "ops/linear.cuh"

static CudaGemm gemm_of_types(const TensorType *x, const TensorType *w, const TensorType *y)
{
    CudaGemm g = {};
    g.m = type_rows(x), g.n = w->dim[0], g.k = w->dim[1];
    g.trans_b = true;
    g.alpha = 1;
    g.a_dtype = x->dtype, g.b_dtype = w->dtype, g.c_dtype = y->dtype;
    g.a_stride = g.b_stride = g.k, g.c_stride = g.n;
    return g;
}

static CudaGemm gemm_of_node(const Node *node)
{
    CudaGemm g = gemm_of_types(&node->in[0]->type, &node->in[1]->type, &node->out[0]->type);
    if (!node->in[2]) return g;
    g.bias = LINEAR_BIAS_THERE;
    g.bias_dtype = node->in[2]->type.dtype;
    return g;
}

static CudaGemm gemm_of_args(const KernelArgs *args)
{
    CudaGemm g = gemm_of_types(&args->in[0].type, &args->in[1].type, &args->out[0].type);
    g.a = args->in[0].data, g.b = args->in[1].data, g.c = args->out[0].data;
    if (args->num_in > 2) g.bias = args->in[2].data;
    g.bias_dtype = args->num_in > 2 ? args->in[2].type.dtype : DT_F32;
    return g;
}

LINEAR_KERNELS(linear)
