/* A list of numbers among the attributes of an op. It is part of the op's struct, so that attributes are copied and compared as bytes;
 * array entries after the last number stay 0. Shared by CPU and CUDA. */
#pragma once

#include <stdint.h>

enum { ATTR_LIST_MOST = 256 };

typedef struct AttrList {
    int64_t count;
    double  values[ATTR_LIST_MOST];
} AttrList;
