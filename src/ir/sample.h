/* A sample of an op: inputs and attributes that it is run with by itself, for doctor and tests. Samples are a text in the op's descriptor,
 * one a line, of the words that graphs are printed in (docs/ir.md):
 *
 *     [2,5,4,6], _, i32[2,5] below=7 {num_heads=4, softcap=0.7} rows_alone tolerance=1e-2
 *
 * First the types of the inputs: f32 where no dtype stands, _ where an input is absent, nothing for absent ones at the end. `below` is the
 * range of an integer input, `masked` the first column of a float input that is masked. Then attributes that don't have their default.
 * A line may be several string literals; blanks between the words are any number. */
#pragma once

#include "ir/op.h"

typedef struct OpSample {
    TensorType  in[NODE_MAX_IN]; /* ndim 0: absent */
    const void *attrs;
    double      tolerance;              /* of kernels against the reference in f32, max|d|/max|ref|; 0: 1e-5 */
    int         int_range[NODE_MAX_IN]; /* integer input k is drawn from [0, int_range); see InputHolds */
    int         masked[NODE_MAX_IN];    /* columns of float input k from this one on are -inf for kernels; 0: none */
    bool        rows_alone;             /* of a node that says so: its first row alone has the same bits */
} OpSample;

typedef struct OpSamples {
    OpSample *items;
    int       count;
} OpSamples;

/* The samples of a text (OpDef.samples, OpDef.large; NULL: none), in the arena. ERR_INVALID: no such input, attribute or word; the op, the
 * line and the column are named. Whether the op takes what is said is infer's business. */
NODISCARD Status op_samples_parse(Arena *arena, const OpDef *op, const char *text, OpSamples *out);
