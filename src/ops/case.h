/* An op by itself: a graph of one node, the types that its inputs may have, contents of its inputs, and its results on any device. For
 * doctor and tests. */
#pragma once

#include "base/strbuf.h"
#include "device/device.h"
#include "ir/sample.h"
#include "ops/ops.h"

/* Contents of a tensor on the host. data NULL: the tensor is absent. */
typedef struct OpData {
    unsigned char *data;
    size_t         bytes;
} OpData;

typedef struct OpCase {
    Arena    arena;
    Graph   *graph;
    Node    *node;
    Value   *all_out[NODE_MAX_OUT]; /* all outputs that the op can make here, wanted or not */
    uint32_t all;                   /* bit k: output k is one of all_out */
    OpData   in[NODE_MAX_IN];       /* runs don't change it */
    OpData   out[NODE_MAX_OUT];     /* results of the last run; an output that it didn't want keeps its older contents */
} OpCase;

/* A run of a case. Zero is the usual choice, except for device and want. */
typedef struct OpRun {
    Device       *device;
    BoundKernel   kernel;   /* zero: the one that the device chooses */
    uint32_t      want;     /* bits of the outputs to make; outputs that the op doesn't have here are ignored */
    const Value  *over;     /* the input whose memory output 0 shall take over; NULL: memory as the op declares */
    bool          plain;    /* results are written instead of added to accumulate inputs; only for kernels that don't read the node */
    bool          twice;    /* runs again, over other bytes: the bits must be the same */
    int           repeats;  /* launches in one run; 0: one */
    double       *seconds;  /* set to the time of a launch in a second run; NULL: not measured */
    const OpData *expected; /* wanted outputs must have these bits; NULL: any */
    const char   *when;     /* the end of the fault "output 0 has other bits ..." */
} OpRun;

/* Makes a graph of inputs (ndim 0: absent), named in0, in1, ..., and the node; contents are zero. Fails if infer does. op_case_free frees
 * the case, also if this failed. */
NODISCARD Status op_case_make(OpCase *c, const OpDef *op, const void *attrs, const TensorType *in);
void             op_case_free(OpCase *c);
/* op_case_make, with copies of these inputs (data NULL: absent). wide: floats are converted to fp32. */
NODISCARD Status op_case_of(OpCase *c, const OpDef *op, const void *attrs, const TensorView *in, bool wide);
/* Input i; absent: all zero. */
TensorView op_case_in(const OpCase *c, int i);
/* Draws all inputs of a sample. Inputs that another op computes from the others (OpResults) get its results on `cpu`. */
NODISCARD Status op_case_draw(OpCase *c, const OpSample *sample, Device *cpu);
/* Copies the results, into the case's arena. */
void op_case_keep(OpCase *c, OpData kept[NODE_MAX_OUT]);
/* Connects to the node the outputs in the mask that the op has, and no others. */
void op_case_want(OpCase *c, uint32_t want);
/* Runs the node; all outputs are connected afterwards. Before, outputs and workspace are full of bytes 0xFF. Appends to `faults`, each
 * after "; ": writes outside of the outputs and the workspace, changed inputs, and bits that aren't as `run` says. A second run has other
 * bytes around each tensor, so results that depend on them differ. */
NODISCARD Status op_run(OpCase *c, const OpRun *run, StrBuf *faults);

/* Element i of any tensor. */
double tensor_element(const TensorType *type, const void *data, int64_t i);
/* How far a is from b. Equal elements count as 0, also infinities and NaNs; the error is infinite where one is NaN and the other isn't. */
typedef struct TensorErrors {
    double l2;   /* |a - b| / |b| in the L2 norm */
    double most; /* max|a - b| / max(max|b|, floor) */
} TensorErrors;
TensorErrors tensor_errors(const TensorType *ta, const void *a, const TensorType *tb, const void *b, double floor);

/* Adds to an empty graph inputs of these types (ndim 0: absent), named in0, in1, ..., and the node. Fails if infer does. */
NODISCARD Status op_alone(Graph *graph, const OpDef *op, const void *attrs, const TensorType *in, Node **out);

/* Whether the tensor is present and has floats of 16 or 32 bits. */
bool type_is_float(const TensorType *type);
/* Whether one of the inputs has this dtype. */
bool op_has_dtype(const OpDef *op, const TensorType *in, DType dtype);
/* Whether infer takes these types. */
bool op_takes(const OpDef *op, const void *attrs, const TensorType *in);

/* The dtypes with which a sample runs. index / 2: 0: its own; 1: bf16 for all float inputs that infer accepts so; 2: f16 for these; 3: bf16
 * for inputs 0, 2, 4, ... of these. Odd index: accumulate inputs are added. Writes the types and their name; false: the op doesn't have
 * these types, or a smaller index gives the same. */
enum { OP_TYPES = 8, OP_TYPES_UNIFORM = 6 };
bool op_sample_types(const OpDef *op, const OpSample *sample, int index, TensorType in[NODE_MAX_IN], const char **name);
