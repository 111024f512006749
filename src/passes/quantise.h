/* Formats in which frozen weights are kept in few bits. */
#pragma once

#include "ir/op.h"

enum { FORMAT_MAX_PARTS = 4 };

/* A format is two ops and names for the parts between them: the outputs of `quantise` are the inputs of `dequantise`. Part 0 is the
 * weight's codes, with the weight's dims. The parts of several packed weights lie one after the other along their first dim. */
typedef struct WeightFormat {
    const char  *name; /* nf4 */
    const OpDef *quantise, *dequantise;
    const void  *attrs; /* attributes of `quantise`; NULL: its defaults */
    int          num_parts;
    const char  *parts[FORMAT_MAX_PARTS]; /* parameter P has values P.codes, P.absmax, ... */
    const OpDef *product; /* y = x w^T + bias, from x, the parts and bias, for programs without gradients; NULL: the weight is
                             dequantised */
} WeightFormat;

/* Format `index` in the order of the table; NULL: there are no more. */
const WeightFormat *weight_format_at(int index);
/* The format of this name; NULL: none. */
const WeightFormat *weight_format_find(const char *name);

/* The name of the value that holds part k of a parameter or, if `name` is a packed weight's, of all its members. */
const char *weight_part_name(Arena *arena, const WeightFormat *format, const char *name, int k);

/* Whether a frozen parameter may be kept in a format: matrices of blocks, but not embedding, head, norms, biases and adapters. */
bool weight_is_quantised(const Param *param);
