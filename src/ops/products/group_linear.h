/* What an op's file and passes share of group_linear. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct GroupLinearAttrs {
    int64_t begin, size; /* rows that are read of each group's matrix: `size` from `begin` on; size 0: all from `begin` on */
    bool    turned;      /* y_g = x_g w_g; else y_g = x_g w_g^T */
} GroupLinearAttrs;
