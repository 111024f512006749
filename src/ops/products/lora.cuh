/* Shared by lora_add and lora_add_bwd on CUDA: the layout of members, for kernels that compute all members at once. */
#pragma once

#include "ops/products/linear.cuh"
#include "ops/products/lora_chunks.h"

/* ---- kernels over slabs: a slab is up to SLAB columns of one member ---- */

typedef struct LoraLayout {
    int64_t tokens, y_stride, h_stride, b_rows; /* b_rows: rows of b, all members together */
    float   alpha;
    int     members, r, num_slabs;
    int     rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS], first[LORA_MAX_MEMBERS] /* first row of b */, slab[LORA_MAX_MEMBERS];
} LoraLayout;

static inline LoraLayout lora_layout(const LoraAttrs *attrs, const TensorType *y, const TensorType *h, const TensorType *b, int slab_cols)
{
    LoraLayout l = {};
    l.tokens = type_rows(y), l.y_stride = type_cols(y), l.h_stride = type_cols(h), l.b_rows = b->dim[0];
    l.alpha = (float)attrs->alpha;
    l.members = lora_members(attrs), l.r = (int)type_cols(b);
    for (int m = 0, first = 0; m < l.members; m++) {
        l.rows[m] = (int)attrs->rows[m], l.col[m] = (int)attrs->col[m];
        l.first[m] = first, l.slab[m] = l.num_slabs;
        first += l.rows[m];
        l.num_slabs += (int)cuda_div_up(l.rows[m], slab_cols);
    }
    return l;
}

static __device__ __forceinline__ int lora_member_of_slab(const LoraLayout &l, int slab)
{
    int m = 0;
    while (m + 1 < l.members && slab >= l.slab[m + 1]) m++;
    return m;
}

/* Runs the statement with R the rank: LORA_RANK(layout.r, launch<R>(...)). */
#define LORA_RANK(r, ...) \
    do { \
        if ((r) == 8) { \
            enum { R = 8 }; \
            __VA_ARGS__; \
        } else if ((r) == 16) { \
            enum { R = 16 }; \
            __VA_ARGS__; \
        } else if ((r) == 32) { \
            enum { R = 32 }; \
            __VA_ARGS__; \
        } else { \
            enum { R = 64 }; \
            __VA_ARGS__; \
        } \
    } while (0)
