/* linear_dx: dx = alpha dy[:, col:col+M] w. */
#include "ops/products/linear.cuh"

PRODUCT_KERNELS(linear_dx)
CUDA_KERNELS(linear_dx, PRODUCT_ROWS(linear_dx))
