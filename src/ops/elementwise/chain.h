/* A chain: element-wise ops in a row as one op, whose attribute is a small program. Step i makes a number of each element from inputs and
 * from the results of earlier steps, and rounds it to its dtype as the op alone would: the bits are the same. For CPU and CUDA. */
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

/* An operand: CHAIN_NONE, input k, or CHAIN_RESULT + i, the result of step i. */
enum { CHAIN_NONE = -1, CHAIN_RESULT = CHAIN_MAX_IN };

typedef struct ChainStep {
    int   code;  /* ChainCode */
    int   dtype; /* DType of its result */
    int   operand[CHAIN_OPERANDS];
    float number; /* the op's attribute, 0 if it has none */
    int   out;    /* the output that its result is; -1: none. Output 0 is the last step's */
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

/* The dims of all outputs, of which one at least is wanted. */
static inline const TensorType *chain_result(const KernelArgs *args)
{
    int k = 0;
    while (k + 1 < args->num_out && !args->out[k].data) k++;
    return &args->out[k].type;
}

/* Step i of attributes that infer has checked. */
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

/* The code of an op; -1: it is no step of a chain. The op of a code. */
int          chain_code(const OpDef *op);
const OpDef *chain_op(int code);
