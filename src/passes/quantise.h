/* How frozen weights are kept in few bits. */
#pragma once

#include "ir/op.h"

enum { FORMAT_MAX_PARTS = 4 };

/* A format is two ops and names for what lies between them: the outputs of the first, which quantises a weight, are the inputs of the
 * second, which makes it again. The first part is the weight's codes, of its dims; the parts of several weights lie one after the other
 * along their first dim. */
typedef struct WeightFormat {
    const char  *name; /* nf4 */
    const OpDef *quantise, *dequantise;
    const void  *attrs; /* of the first; NULL: its defaults */
    int          num_parts;
    const char  *parts[FORMAT_MAX_PARTS]; /* parameter P has values P.codes, P.absmax, ... */
    const OpDef *product; /* y = x w^T + bias of x, the parts and bias, for programs without gradients; NULL: the weight is made again */
} WeightFormat;

/* Format `index` in the order of the table; NULL: there are no more. */
const WeightFormat *weight_format_at(int index);
/* NULL: there is none of that name. */
const WeightFormat *weight_format_find(const char *name);

/* The name of the value that holds part k of a parameter or, with `name` that of their packed base, of several. */
const char *weight_part_name(Arena *arena, const WeightFormat *format, const char *name, int k);

/* Whether a frozen parameter is kept in a format: the matrices of blocks are, but not embedding, head, norms, biases and adapters. */
bool weight_is_quantised(const Param *param);
