/* The attributes of gelu and gelu_bwd, for CPU and CUDA. */
#pragma once

#include <stdbool.h>

typedef struct GeluAttrs {
    bool tanh; /* the approximation by tanh; false: by erf, exactly */
} GeluAttrs;
