/* linear_add: y[:, col:col+M] += alpha x w^T, in place. */
#include "ops/products/linear.cuh"

FEW_ROWS_KERNELS(linear_add)
PRODUCT_KERNELS(linear_add)
CUDA_KERNELS(linear_add, FEW_ROWS(linear_add), PRODUCT_ROWS(linear_add))
