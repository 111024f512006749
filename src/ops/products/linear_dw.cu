/* linear_dw: dw = alpha dy[:, col:col+M]^T x. */
#include "ops/products/linear.cuh"

PRODUCT_KERNELS(linear_dw)
CUDA_KERNELS(linear_dw, PRODUCT_ROWS(linear_dw))
