/* linear: y = x w^T + bias. */
#include "ops/products/linear.cuh"

PRODUCT_KERNELS(linear)
CUDA_KERNELS(linear, PRODUCT_ROWS(linear))
