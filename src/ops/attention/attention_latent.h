/* Inputs and attributes of attention_latent, for the op and the passes. */
#pragma once

#include <stdint.h>

enum { LATENT_Q, LATENT_K, LATENT_KC, LATENT_STARTS, LATENT_PAGES, LATENT_IN };

typedef struct LatentAttrs {
    int64_t num_heads, head_dim; /* number and dim of query heads; there is one key head */
    int64_t value_dim;           /* a value is the first value_dim elements of its key */
    double  scale;               /* factor of q k^T; 0: 1/sqrt(head_dim) */
} LatentAttrs;
