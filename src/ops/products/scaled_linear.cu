/* scaled_linear: y = alpha a b^T / (a's scale times b's) + bias; block_linear: the same with scales of blocks. */
#include "ops/products/linear.cuh"

#define CODES \
    { \
        { \
            .in = 1u << SCALED_A | 1u << SCALED_B, .dtypes = DT_SET_FP8 \
        } \
    }

PRODUCT_KERNELS(scaled_linear)
CUDA_KERNELS(scaled_linear,
             {.dtypes = DT_SET_FLOAT,
              .min_sm = 89,
              .run = scaled_linear_cublas,
              .name = "cublaslt",
              .workspace = scaled_linear_workspace,
              .match = scaled_linear_match,
              .prepare = scaled_linear_prepare,
              .except = CODES},
             {.dtypes = DT_SET_FLOAT, .run = scaled_linear_plain, .name = "plain", .except = CODES})

#define BLOCK_CODES \
    { \
        { \
            .in = 1u << SCALED_A | 1u << SCALED_B, .dtypes = DT_SET(DT_E4M3) \
        } \
    }

PRODUCT_KERNELS(block_linear)
CUDA_KERNELS(block_linear,
             {.dtypes = DT_SET_FLOAT,
              .min_sm = 90,
              .run = block_linear_cublas,
              .name = "cublaslt",
              .workspace = block_linear_workspace,
              .match = block_linear_match,
              .prepare = block_linear_prepare,
              .except = BLOCK_CODES},
             {.dtypes = DT_SET_FLOAT, .run = block_linear_plain, .name = "plain", .except = BLOCK_CODES})
