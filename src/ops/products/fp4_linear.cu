/* fp4_linear: y = alpha a b^T + bias, of e2m1 codes with scales of blocks in tiles. */
#include "ops/products/linear.cuh"

#define OPERANDS \
    { \
        {.in = 1u << FP4_A | 1u << FP4_B, .dtypes = DT_SET(DT_E2M1)}, \
            {.in = 1u << FP4_A_SCALE | 1u << FP4_B_SCALE, .dtypes = DT_SET(DT_E4M3)}, \
        { \
            .in = 1u << FP4_A_GLOBAL | 1u << FP4_B_GLOBAL, .dtypes = DT_SET_F32 \
        } \
    }

PRODUCT_KERNELS(fp4_linear)
CUDA_KERNELS(fp4_linear,
             {.dtypes = DT_SET_FLOAT,
              .min_sm = 100,
              .run = fp4_linear_cublas,
              .name = "cublaslt",
              .workspace = fp4_linear_workspace,
              .match = fp4_linear_match,
              .prepare = fp4_linear_prepare,
              .except = OPERANDS},
             {.dtypes = DT_SET_FLOAT, .run = fp4_linear_plain, .name = "plain", .except = OPERANDS})
