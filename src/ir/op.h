/* OpDef: everything the engine may ask of a kind of computation, as fields of one descriptor. Zero is always the safe
 * answer. The list of ops is ops/ops.def; each op is a file on a floor of ops/ that ends with its descriptor. */
#pragma once

#include "ir/attr_list.h"
#include "ir/graph.h"

typedef struct ThreadPool ThreadPool;
typedef struct Comm       Comm;

/* A tensor as kernels see it: dense, row-major. data NULL: absent. */
typedef struct TensorView {
    void      *data;
    TensorType type;
} TensorView;

/* One launch. Kernels see views, attributes, workspace and stream, never recipes, layers, LoRA or sharding. */
typedef struct KernelArgs {
    const TensorView *in;
    TensorView       *out; /* data NULL: not wanted */
    int               num_in, num_out;
    const void       *attrs;
    uint32_t          accumulate; /* bit k: out[k] += result (out[k] is the aliased input's memory) */
    void             *workspace;  /* op->workspace bytes, 256-byte aligned */
    size_t            workspace_bytes;
    bool              rows_alone; /* a row's result has the same bits whatever rows are beside it */
    bool              early;      /* it may begin before the launches in front have ended: all of the program are on one stream */
    uint32_t          constant;   /* bit k: nothing of the program writes in[k], which may be read then */
    ThreadPool       *pool;       /* CPU */
    Comm             *comm;       /* CPU: the ranks that collectives are of; NULL: one rank */
    void             *stream;     /* CUDA: cudaStream_t */
    void             *device;     /* CUDA: the plugin's device, for library handles */
} KernelArgs;

typedef Status (*KernelFn)(const KernelArgs *args);

enum { OP_MAX_KERNELS = 4, KERNEL_MAX_EXCEPT = 4 };

/* The dtypes of some operands of a kernel: bit k of `in` and `out` names input and output k. */
typedef struct OperandTypes {
    uint32_t in, out;
    DTypeSet dtypes;
} OperandTypes;

/* A kernel's types, on every device: `dtypes` for each operand but those that `except` names; indices and counters (i32, i64)
 * are infer's business and fit any kernel that doesn't name them. A product of e4m3 and e5m2 with a scale each, say, is
 *     .dtypes = DT_SET_BF16 | DT_SET_F32, .except = { { .in = 1 << IN_W, .dtypes = DT_SET(DT_E4M3) },
 *     { .in = 1 << IN_DY, .dtypes = DT_SET(DT_E5M2) }, { .in = 1 << IN_W_SCALE | 1 << IN_DY_SCALE, .dtypes = DT_SET_F32 } } */
typedef struct CpuKernel {
    DTypeSet     dtypes;
    KernelFn     run;
    const char  *name;
    OperandTypes except[KERNEL_MAX_EXCEPT]; /* one without operands ends it */
} CpuKernel;

typedef enum AttrType { ATTR_TYPE_END, ATTR_TYPE_INT, ATTR_TYPE_FLOAT, ATTR_TYPE_BOOL, ATTR_TYPE_DTYPE, ATTR_TYPE_LIST } AttrType;

/* An attribute: int64_t, double, bool or AttrList at `offset` of the op's struct. A dtype is an int64_t: 0 says nothing, and then it
 * isn't printed either; else DTYPE_TO_ATTR(dtype). Nor is a list without numbers, which is every list's default. */
typedef struct AttrDef {
    const char *name;
    AttrType    type;
    size_t      offset;
    double      default_value;
    bool        of_node; /* where a module doesn't say it: a key of the node's own */
    bool        is_rare; /* of a bool: printed only where it is true */
} AttrDef;

#define ATTR_INT(Struct, field, value) \
    { \
#field, ATTR_TYPE_INT, offsetof(Struct, field), (value), false, false \
    }
#define ATTR_SITE(Struct, field) \
    { \
#field, ATTR_TYPE_INT, offsetof(Struct, field), 0, true, false \
    }
#define ATTR_FLOAT(Struct, field, value) \
    { \
#field, ATTR_TYPE_FLOAT, offsetof(Struct, field), (value), false, false \
    }
#define ATTR_BOOL(Struct, field, value) \
    { \
#field, ATTR_TYPE_BOOL, offsetof(Struct, field), (value), false, false \
    }
/* A bool that is printed only where it is true. */
#define ATTR_RARE(Struct, field) \
    { \
#field, ATTR_TYPE_BOOL, offsetof(Struct, field), 0, false, true \
    }
#define ATTR_DTYPE(Struct, field) \
    { \
#field, ATTR_TYPE_DTYPE, offsetof(Struct, field), 0, false, false \
    }

#define ATTR_LIST(Struct, field) \
    { \
#field, ATTR_TYPE_LIST, offsetof(Struct, field), 0, false, false \
    }

#define DTYPE_TO_ATTR(dtype) ((int64_t)(dtype) + 1)
#define ATTR_TO_DTYPE(attr) ((DType)((attr)-1)) /* of one that isn't 0 */

typedef struct OpCost {
    double flops;       /* multiply and add count two */
    double bytes;       /* moved through device memory: each input read once, each output written once */
    bool   matrix_unit; /* flops run at GEMM rate */
    double peer_bytes;  /* that a rank sends to others; it receives as many */
} OpCost;

enum {
    OP_VIEW = 1 << 0,        /* out[0] is in[0]'s memory under another shape: no kernel */
    OP_RANDOM = 1 << 1,      /* draws random numbers (keyed, so that a clone draws the same) */
    OP_BY_DOCUMENT = 1 << 4, /* cost is of rows of one document: shorter ones take less */
    OP_BY_LABEL = 1 << 5,    /* cost is of rows that all have a label: others may be passed over */
    OP_COLLECTIVE = 1 << 7,  /* all ranks run it together */
    OP_STOPS = 1 << 8,       /* no gradient goes through it: what it makes counts as constant */
    OP_CPU_ALONE = 1 << 9,   /* there are no kernels for GPUs: a pass that makes it asks what it plans for */
    OP_LOSS = 1 << 6,        /* backward takes an output without a gradient for the loss itself, whose gradient is 1 */
};

/* Output `out` takes over the memory of input `in` where that input is connected. accumulate: the kernel adds to it
 * (optional input: without it the output is plainly written); else: the kernel updates it in place.
 * What is added up has the dtype of the memory it is added to, and is rounded only when it is stored there. Where there is no
 * such input yet, attribute dw_dtype of ops that make a parameter's gradient says the dtype; unset: the operands'. */
typedef struct OpAlias {
    int8_t out, in;
    bool   accumulate;
} OpAlias;

typedef struct GradBuilder GradBuilder;

/* What the elements of an input are beyond their dtype. */
typedef enum InputHolds {
    HOLDS_ANY,       /* floats; integers below what shapes say (an index) */
    HOLDS_HYPER,     /* HYPER_COUNT scalars of the run */
    HOLDS_LABELS,    /* classes, or IGNORE_INDEX */
    HOLDS_DOC_START, /* the place in its row where the token's document begins */
    HOLDS_SQUARES,   /* not negative */
    HOLDS_POSITIVE,  /* from 0.5 on */
    HOLDS_MASK,      /* 0 or 1 */
    HOLDS_WHOLE,     /* whole numbers */
    HOLDS_HALF,      /* between whole numbers */
    HOLDS_NORM2,     /* a squared norm */
    HOLDS_SEGMENTS,  /* see ops/attrs.h */
    HOLDS_CONTROLS,  /* rows of SAMPLE_CONTROLS, see ops/attrs.h */
    HOLDS_SLOTS,     /* of sequences, each another, and -1 */
    HOLDS_SEEN,      /* see ops/attrs.h */
    HOLDS_SCALE,     /* rows of 4: a tensor's scale, see ops/lowbit/fp8.h */
    HOLDS_PAGES,     /* pages of a cache, each once where there are as many */
} InputHolds;

/* A KV cache in pages that all rows share, and where each row's positions lie in it. */
typedef struct CacheShape {
    int64_t pages, page_len;
    Value  *starts, *row_pages; /* feeds `starts` and `pages` */
    bool    fp8;                /* keys and values are kept in e4m3; else in the attention's dtype */
} CacheShape;

/* Inputs of an op that another one makes from the same inputs, as a gradient reads what the forward op wrote: contents that don't
 * belong together mean nothing. Both have the same struct of attributes. */
typedef struct OpResults {
    const OpDef *op;                /* NULL: no such inputs */
    int8_t       in[NODE_MAX_IN];   /* its input i is input in[i] of this op, for its num_in */
    int8_t       out[NODE_MAX_OUT]; /* its output k is input out[k] of this op, for its num_out */
} OpResults;

/* What another op makes of output `of` can be made where that is: as the last outputs, from `out` on, of the same bits. Attribute `codes`,
 * a dtype at `attr`, says that they are made. With input `scale` the other op is `scaled`, whose inputs after the first are inputs from
 * there on, else `op`. */
typedef struct OpCodes {
    const OpDef *op, *scaled; /* NULL: no such outputs */
    int8_t       of, out, scale;
    bool         turns; /* makes what `scaled` makes of the transpose too */
    size_t       attr;
    bool (*fits)(const Node *node,
                 int64_t     whole); /* what a kernel wants of the operands; rows are to be of a multiple of `whole` numbers */
} OpCodes;

struct OpDef {
    int            id;
    const char    *name;     /* spelling in IR and Python */
    const char    *synopsis; /* one line of math */
    uint8_t        num_in, num_out;
    uint8_t        min_in;      /* inputs [0, min_in) may not be absent, unless in optional_in */
    uint32_t       optional_in; /* bit k: input k may be absent */
    uint32_t       flags;
    uint32_t       inplace;             /* bit k: output 0 may share input k's memory where that dies here */
    OpAlias        alias[NODE_MAX_OUT]; /* ended by {0, 0} unless first; see num_alias */
    uint8_t        num_alias;
    size_t         attrs_size;
    const AttrDef *attrs;                                    /* ended by ATTR_TYPE_END */
    Status (*infer)(Node *node);                             /* checks inputs, sets out types */
    Status (*backward)(GradBuilder *grad, const Node *node); /* emits nodes; NULL: no gradient */
    /* Emits at the cursor nodes that give output k again from inputs and *other* outputs that stay; NULL: the node is
     * cloned whole. Sets *out_value. */
    Status (*rebuild)(Graph *graph, const Node *node, int k, Value **out_value);
    OpCost (*cost)(const Node *node);
    size_t (*workspace)(const Node *node, int num_workers); /* CPU kernels' scratch, bytes; NULL: none */
    /* CUDA kernels' where it is large, for plans of a GPU that isn't here; sm: its compute capability times 10 */
    size_t (*gpu_workspace)(const Node *node, int sm);
    CpuKernel cpu[OP_MAX_KERNELS]; /* first match wins, reference last */
    uint8_t   holds[NODE_MAX_IN];  /* InputHolds of each input */
    OpResults results;
    OpCodes   codes;
    /* Rows are all dims but the last of the widest operand. Row i of each output depends on row i of the inputs k of bit k, and on all of
     * the others: some rows at a time have the bits of all together (products: so far as sums in another order have). 0: it isn't so.
     * by_element: element i on element i; inputs with a dim of 1, or of one number, are spread (op_cut). */
    uint32_t by_row;
    bool     by_element;
    int (*row_dims)(const Node *node); /* how many of the first dims make rows, where it isn't all but the last */
    uint32_t params;                   /* bit k: input k may be a trained weight: backward takes its gradient through grad_accumulator */
    uint32_t constants;                /* bit k: input k never has a gradient (a table, scalars); no trained weight may flow into it */
    uint32_t grad_outputs;             /* bit k: output k has a gradient too; the first always has */
    /* Emits at the cursor the form that appends this run's keys and values to a cache and reads all of it, for prefill and decode;
     * NULL: the op works on each token by itself, or has no such form. */
    Status (*cached)(Graph *graph, const Node *node, const CacheShape *shape, Node **out);
    /* Notes whether every row is one document (padding behind it at most), which kernels may then rely on; NULL: all the same. */
    void (*set_dense)(Node *node, bool dense);
    /* y[i] of in[k][i] for `count` elements in fp32; y may be one of the inputs, an absent one is zeros. number: the op's one attribute.
     * Ops that have this are element-wise and can be a step of a chain (ops/elementwise/chain.h); NULL: the op isn't. */
    void (*tile)(float *y, const float *const *in, int64_t count, double number);
    const char *samples; /* what the op is tested with, see ir/sample.h */
    const char *large;   /* the same in shapes of real models, which doctor runs too */
};

/* What would make the codes of the node (OpCodes) apart from it. */
static inline const OpDef *op_codes_maker(const Node *node)
{
    const OpCodes *codes = &node->op->codes;
    return codes->op && node->in[codes->scale] ? codes->scaled : codes->op;
}

/* Whether output k is codes of another one, or comes with them (OpCodes): its bits follow from that, and jump where that moves by a bit. */
static inline bool op_makes_codes(const OpDef *op, int k)
{
    return op->codes.op && k >= op->codes.out;
}

/* ---- for backward rules (ir/grad.c) ---- */

/* The gradient of a forward value; NULL when nothing downstream contributes (the rule then adds nothing for it). */
Value *grad_of(GradBuilder *grad, Value *value);
/* Whether anybody wants d/dvalue: a trained parameter flows into it. */
bool grad_wanted(GradBuilder *grad, const Value *value);
/* Applies an op at the end of the graph. `out` receives op->num_out values (NULL where want leaves it out). */
NODISCARD Status grad_emit(GradBuilder *grad, int op_id, const void *attrs, Value *const *in, int num_in, uint32_t want, Value **out);
/* Adds `contribution` to d/dvalue; NULL is nothing. */
NODISCARD Status grad_add(GradBuilder *grad, Value *value, Value *contribution);
/* The optional accumulate input for a parameter gradient: the gradient so far (an earlier micro-step's, or another use's); NULL: none
 * yet, or `param` was computed, and is an activation. A rule passes it to its op and gives the op's output to grad_set. */
Value *grad_accumulator(GradBuilder *grad, Value *param);
/* Attribute dw_dtype of an op that makes d/dparam, and would make it in `own` if not told. */
int64_t grad_dw_dtype(GradBuilder *grad, const Value *param, DType own);
/* d/dparam is now `value`, which already holds what grad_accumulator gave; to that of an activation it is added. */
void grad_set(GradBuilder *grad, Value *param, Value *value);
/* Readers of forward value `from` after this read `to` instead (the backward op yields it anyhow), unless gradients were made of them. */
void grad_replace_forward(GradBuilder *grad, Value *from, Value *to);

/* ---- what changes from run to run, read from device memory ---- */

/* State `results`, f32[RESULT_ROWS,RESULT_SCALARS + n] in the host's memory: row (step mod RESULT_ROWS) is of that optimizer step. Behind
 * the first three there are the plan's n named scalars. */
enum { MOST_SCALARS = 8 };
enum { RESULT_LOSS, RESULT_NORM2, RESULT_APPLIED, RESULT_SCALARS, RESULT_MOST = RESULT_SCALARS + MOST_SCALARS, RESULT_ROWS = 4 };

/* A launch of a node as far as the node says: types of what is there, which outputs are added to; no data, no workspace. */
typedef struct NodeArgs {
    KernelArgs args;
    TensorView in[NODE_MAX_IN], out[NODE_MAX_OUT];
} NodeArgs;
const KernelArgs *node_args(const Node *node, NodeArgs *storage);

/* Whether the node can be computed some rows at a time where the first dims of its operands make `rows` rows (see OpDef.by_row). Then
 * in[k] and out[k] are the elements of a row of each; 0: the input is read whole. */
bool op_cut(const Node *node, int64_t rows, int64_t in[NODE_MAX_IN], int64_t out[NODE_MAX_OUT]);

/* Whether a kernel with these types (see CpuKernel) serves the node. */
bool op_types_fit(const Node *node, DTypeSet dtypes, const OperandTypes except[KERNEL_MAX_EXCEPT]);
/* The entry of cpu[] that serves the node's dtypes, or NULL. */
const CpuKernel *op_cpu_kernel(const Node *node);
/* ERR_UNSUPPORTED: the op has no kernel on this device ("CPU") for the node's dtypes, which are named. */
NODISCARD Status op_no_kernel(const Node *node, const char *device);
