/* A list of numbers among the attributes of an op. It lies in the op's struct, so that attributes are copied and compared as bytes; what is
 * behind its last number stays 0. Shared by CPU and CUDA. */
#pragma once

#include <stdint.h>

enum { ATTR_LIST_MOST = 256 };

typedef struct AttrList {
    int64_t count;
    double  values[ATTR_LIST_MOST];
} AttrList;
