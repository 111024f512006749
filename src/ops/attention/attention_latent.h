/* What the op and passes share of attention_latent. */
#pragma once

#include <stdint.h>

enum { LATENT_Q, LATENT_K, LATENT_KC, LATENT_STARTS, LATENT_PAGES, LATENT_IN };

typedef struct LatentAttrs {
    int64_t num_heads, head_dim; /* of queries; there is one head of keys */
    int64_t value_dim;           /* a value is that many numbers of its key, the first ones */
    double  scale;               /* of q k^T; 0: 1/sqrt(head_dim) */
} LatentAttrs;
