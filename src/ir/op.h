/* OpDef: everything the engine may ask of a kind of computation, as fields of one descriptor. Zero is always the safe
 * answer. The list of ops is ops/ops.def; each op is a file there that ends with its descriptor. */
#pragma once

#include "ir/graph.h"

typedef struct ThreadPool ThreadPool;

/* A tensor as kernels see it: dense, row-major. data NULL: absent. */
typedef struct TensorView {
    void      *data;
    TensorType type;
} TensorView;

/* One launch. Kernels see views, attributes, workspace and stream, never recipes, layers, LoRA or sharding. */
typedef struct KernelArgs {
    const TensorView *in;
    TensorView       *out;        /* data NULL: not wanted */
    int               num_in, num_out;
    const void       *attrs;
    uint32_t          accumulate; /* bit k: out[k] += result (out[k] is the aliased input's memory) */
    void             *workspace;  /* op->workspace bytes, 256-byte aligned */
    size_t            workspace_bytes;
    ThreadPool       *pool;       /* CPU */
    void             *stream;     /* CUDA: cudaStream_t */
    void             *device;     /* CUDA: the plugin's device, for library handles */
} KernelArgs;

typedef Status (*KernelFn)(const KernelArgs *args);

enum { OP_MAX_KERNELS = 4 };

typedef struct CpuKernel {
    DTypeSet    dtypes; /* every float input and output must be of these */
    KernelFn    run;
    const char *name;
} CpuKernel;

typedef enum AttrType { ATTR_TYPE_END, ATTR_TYPE_INT, ATTR_TYPE_FLOAT, ATTR_TYPE_BOOL } AttrType;

/* An attribute: int64_t, double or bool at `offset` of the op's struct. */
typedef struct AttrDef {
    const char *name;
    AttrType    type;
    size_t      offset;
    double      default_value;
} AttrDef;

#define ATTR_INT(Struct, field, value)   { #field, ATTR_TYPE_INT, offsetof(Struct, field), (value) }
#define ATTR_FLOAT(Struct, field, value) { #field, ATTR_TYPE_FLOAT, offsetof(Struct, field), (value) }
#define ATTR_BOOL(Struct, field, value)  { #field, ATTR_TYPE_BOOL, offsetof(Struct, field), (value) }

typedef struct OpCost {
    double flops;       /* multiply and add count two */
    double bytes;       /* moved through device memory: each input read once, each output written once */
    bool   matrix_unit; /* flops run at GEMM rate */
} OpCost;

enum {
    OP_VIEW = 1 << 0,             /* out[0] is in[0]'s memory under another shape: no kernel */
    OP_NONDETERMINISTIC = 1 << 1, /* results may differ in the last bits from run to run */
    OP_RANDOM = 1 << 2,           /* draws random numbers (keyed, so that a clone draws the same) */
    OP_MATERIALISE = 1 << 3,      /* recompute clones it once per use */
    OP_INPLACE = 1 << 4,          /* out[0] may share in[0]'s memory when that dies here */
    OP_COMMUTES = 1 << 5,         /* in[0] and in[1] may be swapped */
    OP_BY_DOCUMENT = 1 << 6,      /* cost is of rows of one document: shorter ones take less */
};

/* Output `out` takes over the memory of input `in` where that input is connected. accumulate: the kernel adds to it
 * (optional input: without it the output is plainly written); else: the kernel updates it in place. */
typedef struct OpAlias {
    int8_t out, in;
    bool   accumulate;
} OpAlias;

typedef struct GradBuilder GradBuilder;

/* One shape the generic test runs. in: dims of each input (ndim 0: absent). */
typedef struct OpSample {
    TensorType  in[NODE_MAX_IN];
    const void *attrs;     /* NULL: defaults */
    double      tolerance; /* of kernels against the reference in f32, max|d|/max|ref|; 0: 1e-5 */
    int         int_range[NODE_MAX_IN]; /* integer input k is drawn from [0, int_range) */
} OpSample;

struct OpDef {
    int             id;
    const char     *name;      /* spelling in IR and Python */
    const char     *synopsis;  /* one line of math */
    uint8_t         num_in, num_out;
    uint8_t         min_in;    /* inputs [0, min_in) may not be absent, unless in optional_in */
    uint32_t        optional_in; /* bit k: input k may be absent */
    uint32_t        flags;
    OpAlias         alias[NODE_MAX_OUT]; /* ended by {0, 0} unless first; see num_alias */
    uint8_t         num_alias;
    size_t          attrs_size;
    const AttrDef  *attrs;     /* ended by ATTR_TYPE_END */
    Status        (*infer)(Node *node);                             /* checks inputs, sets out types */
    Status        (*backward)(GradBuilder *grad, const Node *node); /* emits nodes; NULL: no gradient */
    /* Emits at the cursor nodes that give output k again from inputs and *other* outputs that stay; NULL: the node is
     * cloned whole. Sets *out_value. */
    Status        (*rebuild)(Graph *graph, const Node *node, int k, Value **out_value);
    OpCost        (*cost)(const Node *node);
    size_t        (*workspace)(const Node *node, int num_workers);   /* CPU kernels' scratch, bytes; NULL: none */
    size_t        (*gpu_workspace)(const Node *node);                /* CUDA kernels' where it is large, for plans of a GPU that isn't here */
    CpuKernel       cpu[OP_MAX_KERNELS];                              /* first match wins, reference last */
    const OpSample *samples;
    int             num_samples;
};

/* ---- for backward rules (implemented by passes/autodiff.c) ---- */

/* The gradient of a forward value; NULL when nothing downstream contributes (the rule then adds nothing for it). */
Value *grad_of(GradBuilder *grad, Value *value);
/* Whether anybody wants d/dvalue: false for integers and what leads to no trained parameter. */
bool grad_wanted(GradBuilder *grad, const Value *value);
/* Applies an op at the end of the graph. `out` receives op->num_out values (NULL where want leaves it out). */
NODISCARD Status grad_emit(GradBuilder *grad, int op_id, const void *attrs, Value *const *in, int num_in, uint32_t want,
                           Value **out);
/* Adds `contribution` to d/dvalue; NULL is nothing. */
NODISCARD Status grad_add(GradBuilder *grad, Value *value, Value *contribution);
/* The optional accumulate input for a parameter gradient: the gradient so far (an earlier micro-step's, or another use's
 * of the same parameter); NULL: none yet. A rule passes it to its op and gives the op's output to grad_set. */
Value *grad_accumulator(GradBuilder *grad, Value *param);
/* d/dparam is now `value`, which already holds what grad_accumulator gave. */
void grad_set(GradBuilder *grad, Value *param, Value *value);
/* Readers of forward value `from` after this read `to` instead (the backward op yields it anyhow), unless gradients were made of them. */
void grad_replace_forward(GradBuilder *grad, Value *from, Value *to);

/* ---- what changes from run to run, read from device memory ---- */

/* Input `step`, i64[STEP_COUNT]. */
enum { STEP_SEED, STEP_INDEX /* optimizer step from 0 */, STEP_POSITION /* first position of this decode or prefill run */, STEP_COUNT = 4 };
/* Input `hyper`, f32[HYPER_COUNT]. */
enum {
    HYPER_LR,
    HYPER_INV_TOKENS,       /* 1 / trained tokens of the whole optimizer step */
    HYPER_BIAS1, HYPER_BIAS2, /* 1 - beta^t */
    HYPER_COUNT = 8
};

/* The entry of cpu[] that serves the node's dtypes, or NULL. */
const CpuKernel *op_cpu_kernel(const Node *node);
