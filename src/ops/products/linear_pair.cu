/* linear_pair: y = x w^T + bias and z = x u^T. */
#include "ops/products/linear.cuh"

FEW_ROWS_KERNELS(linear_pair)
PRODUCT_KERNELS(linear_pair)
CUDA_KERNELS(linear_pair, FEW_ROWS(linear_pair), PRODUCT_ROWS(linear_pair))
