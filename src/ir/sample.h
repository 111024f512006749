/* A sample of an op: inputs and attributes with which doctor and tests run the op by itself. Samples are a text in the op's descriptor, one
 * a line, in the words of the text form of graphs (docs/ir.md):
 *     [2,5,4,6], _, i32[2,5] below=7 {num_heads=4, softcap=0.7} rows_alone tolerance=1e-2
 * First the types of the inputs: f32 if no dtype is given, _ for an absent input; absent inputs at the end are left out. `below` is the
 * range of an integer input, `masked` the first column of a float input that is masked. Then attributes that differ from their default.
 * A line may be split into several string literals, and words may have any number of blanks between them. */
#pragma once

#include "ir/op.h"

typedef struct OpSample {
    TensorType  in[NODE_MAX_IN]; /* ndim 0: absent */
    const void *attrs;
    double      tolerance;              /* largest error of kernels against the f32 reference, max|d|/max|ref|; 0: 1e-5 */
    int         int_range[NODE_MAX_IN]; /* integer input k is drawn from [0, int_range); see InputHolds */
    int         masked[NODE_MAX_IN];    /* columns of float input k from this one on are -inf for kernels; 0: none */
    bool        rows_alone;             /* the node has NODE_ROWS_ALONE: its first row computed alone must have the same bits */
} OpSample;

typedef struct OpSamples {
    OpSample *items;
    int       count;
} OpSamples;

/* Parses the samples of a text (OpDef.samples, OpDef.large; NULL: none) into the arena. ERR_INVALID: unknown input, attribute or word;
 * the message names op, line and column. Whether the op accepts the inputs is checked by infer, not here. */
NODISCARD Status op_samples_parse(Arena *arena, const OpDef *op, const char *text, OpSamples *out);
