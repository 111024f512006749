/* linear: y = x w^T + bias. */
#include "ops/products/linear.cuh"

FEW_ROWS_KERNELS(linear)
PRODUCT_KERNELS(linear)
CUDA_KERNELS(linear, FEW_ROWS(linear), PRODUCT_ROWS(linear))
