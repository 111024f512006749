/* The attributes of layer_norm and layer_norm_bwd, for CPU and CUDA. */
#pragma once

#include <stdint.h>

typedef struct LayerNormAttrs {
    double  eps;
    double  offset;   /* added to w */
    int64_t dw_dtype; /* layer_norm_bwd: dtype of dw and db */
} LayerNormAttrs;
