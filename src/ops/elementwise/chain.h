/* A chain: consecutive element-wise ops as one op, whose attribute is a small program. Step i computes each element from inputs and from
 * results of earlier steps, and rounds it to its dtype as the separate op would, so the bits are the same. For CPU and CUDA. */
#pragma once

#include "ir/attr_list.h"

#include "ir/op.h"

typedef enum ChainCode {
#define CHAIN(op, operands, flops) CHAIN_##op,
#include "ops/elementwise/chain.def"
#undef CHAIN
    CHAIN_COUNT
} ChainCode;

enum { CHAIN_MAX_IN = 8, CHAIN_MAX_OUT = 6, CHAIN_MAX_STEPS = 16, CHAIN_OPERANDS = 3 };

/* Values of an operand: CHAIN_NONE, k for input k, or CHAIN_RESULT + i for the result of step i. */
enum { CHAIN_NONE = -1, CHAIN_RESULT = CHAIN_MAX_IN };

typedef struct ChainStep {
    int   code;  /* ChainCode */
    int   dtype; /* DType of the result */
    int   operand[CHAIN_OPERANDS];
    float number; /* the op's attribute; 0: it has none */
    int   out;    /* index of the output that gets the result; -1: none. The last step makes output 0 */
} ChainStep;

/* Seven numbers a step, in the order of ChainStep. */
enum { CHAIN_NUMBERS = 7 };
typedef struct ChainAttrs {
    AttrList steps;
} ChainAttrs;

static inline int chain_count(const ChainAttrs *attrs)
{
    return (int)(attrs->steps.count / CHAIN_NUMBERS);
}

/* Type of a wanted output; all outputs have the same dims, and at least one is wanted. */
static inline const TensorType *chain_result(const KernelArgs *args)
{
    int k = 0;
    while (k + 1 < args->num_out && !args->out[k].data) k++;
    return &args->out[k].type;
}

/* Step i; the attributes have been checked by infer. */
static inline ChainStep chain_step(const ChainAttrs *attrs, int i)
{
    const double *n = attrs->steps.values + i * CHAIN_NUMBERS;
    ChainStep     step = {(int)n[0], (int)n[1], {(int)n[2], (int)n[3], (int)n[4]}, (float)n[5], (int)n[6]};
    return step;
}

static inline void chain_add_step(ChainAttrs *attrs, ChainStep step)
{
    double *n = attrs->steps.values + attrs->steps.count;
    n[0] = step.code;
    n[1] = step.dtype;
    for (int k = 0; k < CHAIN_OPERANDS; k++) n[2 + k] = step.operand[k];
    n[5] = step.number;
    n[6] = step.out;
    attrs->steps.count += CHAIN_NUMBERS;
}

/* The code of an op; -1: it can't be a step of a chain. Below, the op of a code. */
int          chain_code(const OpDef *op);
const OpDef *chain_op(int code);
