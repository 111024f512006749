/* Where elements of a product's operands are in memory, and what they are multiplied by: for products on the CPU. */
#pragma once

#include "ops/infer.h"

/* The index in memory of the element at (row, col) of the matrix. */
static inline int64_t operand_index(const GemmOperand *x, int64_t row, int64_t col)
{
    return x->offset + (x->trans ? col * x->stride + row : row * x->stride + col);
}

static inline const void *operand_at(const GemmOperand *x, int64_t row, int64_t col)
{
    return (const char *)x->data + dtype_bytes(x->dtype, operand_index(x, row, col));
}

static inline void *gemm_c_at(const Gemm *g, int64_t row, int64_t col)
{
    return vec_at_mut(g->c.data, g->c.dtype, operand_index(&g->c, row, col));
}

static inline float whole_scale(const GemmOperand *x)
{
    return x->scale && x->scaling == GEMM_SCALE_WHOLE ? *x->scale : 1.0f;
}

/* alpha times the scale of each operand that has one scale for all its elements. */
static inline float gemm_factor(const Gemm *g)
{
    return g->alpha * whole_scale(&g->a) * whole_scale(&g->b);
}

/* The scale of a column of sums; 1 if columns have none. */
static inline float gemm_col_scale(const Gemm *g, int64_t col)
{
    return g->b.scaling == GEMM_SCALE_COLS ? g->b.scale[col] : 1.0f;
}

/* Multiplies elements that are `step` floats apart by the scale of their common block. */
VEC_ROW void operand_scale(float *numbers, const int64_t step, int64_t count, float scale, bool to_bf16)
{
    if (to_bf16) {
        VEC_LOOP
        for (int64_t i = 0; i < count; i++) numbers[i * step] = bf16_to_f32(bf16_from_f32(numbers[i * step] * scale));
    } else {
        VEC_LOOP
        for (int64_t i = 0; i < count; i++) numbers[i * step] *= scale;
    }
}

/* Multiplies packed elements by the scales of their blocks. Panels have `width` rows and are `panel` floats apart; they hold `count` rows
 * from `row` on, with `depth` elements from `k` on. */
VEC_ROW void operand_scale_panels(const GemmOperand *x, const int64_t width, int64_t row, int64_t count, int64_t k, int64_t depth,
                                  float *panels, int64_t panel)
{
    if (!gemm_has_block_scales(x)) return;
    for (int64_t i = 0; i < count; i += width, panels += panel)
        for (int64_t l = 0, end; l < depth; l = end) {
            end = min_i64(depth, l + GEMM_BLOCK - (k + l) % GEMM_BLOCK);
            for (int64_t j = 0; j < min_i64(width, count - i); j++)
                operand_scale(panels + l * width + j, width, end - l, gemm_block_scale(x, row + i + j, k + l), x->to_bf16);
        }
}
