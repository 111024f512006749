/* OpDef: all that the engine may ask about a kind of computation, as fields of one descriptor. Zero is always the safe answer. The list
 * of ops is ops/ops.def; each op is a file in a folder of ops/ that ends with its descriptor. */
#pragma once

#include "ir/attr_list.h"
#include "ir/graph.h"

typedef struct ThreadPool ThreadPool;
typedef struct Comm       Comm;

/* A tensor as kernels see it: dense, row-major. data NULL: the operand is absent. */
typedef struct TensorView {
    void      *data;
    TensorType type;
} TensorView;

/* One launch. Kernels see views, attributes, workspace and stream, never recipes, layers, LoRA or sharding. */
typedef struct KernelArgs {
    const TensorView *in;
    TensorView       *out; /* data NULL: the output is not wanted */
    int               num_in, num_out;
    const void       *attrs;
    uint32_t          accumulate; /* bit k: out[k] += result (out[k] is the aliased input's memory) */
    void             *workspace;  /* op->workspace bytes, 256-byte aligned */
    size_t            workspace_bytes;
    bool              rows_alone; /* a row's result has the same bits whatever other rows are present */
    bool              early;    /* it may start before earlier launches have ended (CUDA); all launches of the program are on one stream */
    uint32_t          constant; /* bit k: no launch of the program writes in[k], so an early start may already read it */
    ThreadPool       *pool;     /* CPU */
    Comm             *comm;     /* CPU: the ranks of a collective; NULL: one rank */
    void             *stream;   /* CUDA: cudaStream_t */
    void             *device;   /* CUDA: the plugin's device, for library handles */
} KernelArgs;

typedef Status (*KernelFn)(const KernelArgs *args);

enum { OP_MAX_KERNELS = 4, KERNEL_MAX_EXCEPT = 4 };

/* The dtypes of some operands of a kernel: bit k of `in` and `out` names input and output k. */
typedef struct OperandTypes {
    uint32_t in, out;
    DTypeSet dtypes;
} OperandTypes;

/* A kernel's types, on every device. Each operand has one of `dtypes`, except the operands that `except` names. Indices and counters (i32,
 * i64) are checked by infer and fit any kernel that doesn't name them. A product of e4m3 and e5m2 with a scale each, for example, is
 *     .dtypes = DT_SET_BF16 | DT_SET_F32, .except = { { .in = 1 << IN_W, .dtypes = DT_SET(DT_E4M3) },
 *     { .in = 1 << IN_DY, .dtypes = DT_SET(DT_E5M2) }, { .in = 1 << IN_W_SCALE | 1 << IN_DY_SCALE, .dtypes = DT_SET_F32 } } */
typedef struct CpuKernel {
    DTypeSet     dtypes;
    KernelFn     run;
    const char  *name;
    OperandTypes except[KERNEL_MAX_EXCEPT]; /* ended by an entry without operands */
} CpuKernel;

typedef enum AttrType { ATTR_TYPE_END, ATTR_TYPE_INT, ATTR_TYPE_FLOAT, ATTR_TYPE_BOOL, ATTR_TYPE_DTYPE, ATTR_TYPE_LIST } AttrType;

/* An attribute: int64_t, double, bool or AttrList at `offset` of the op's struct. A dtype is an int64_t: DTYPE_TO_ATTR(dtype), or 0 for
 * unset. Unset dtypes and empty lists (every list's default) aren't printed. */
typedef struct AttrDef {
    const char *name;
    AttrType    type;
    size_t      offset;
    double      default_value;
    bool        of_node; /* default: a key derived from the node's name */
    bool        is_rare; /* a bool that is printed only if true */
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
/* A bool that is printed only if true. */
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
#define ATTR_TO_DTYPE(attr) ((DType)((attr)-1)) /* attr must not be 0 (unset) */

typedef struct OpCost {
    double flops;       /* a multiply and an add count as two */
    double bytes;       /* device memory traffic: each input read once, each output written once */
    bool   matrix_unit; /* flops run at GEMM rate */
    double peer_bytes;  /* bytes that each rank sends to others; it receives as many */
} OpCost;

enum {
    OP_VIEW = 1 << 0,        /* out[0] is in[0]'s memory under another shape: no kernel */
    OP_RANDOM = 1 << 1,      /* draws random numbers (keyed, so that a clone draws the same) */
    OP_BY_DOCUMENT = 1 << 4, /* cost assumes one document per row; shorter documents cost less */
    OP_BY_LABEL = 1 << 5,    /* cost assumes that all rows have a label; rows without one may be skipped */
    OP_COLLECTIVE = 1 << 7,  /* all ranks run it together */
    OP_STOPS = 1 << 8,       /* no gradient flows through it: its outputs count as constants */
    OP_LOSS = 1 << 6,        /* the backward pass takes an output without a gradient for the loss itself, with gradient 1 */
};

/* Output `out` takes over the memory of input `in` if that input is connected. accumulate: the kernel adds to the old contents (the input
 * is optional: without it the output is plainly written); else the kernel updates it in place.
 * Sums have the dtype of the memory they are added to, and are rounded only when stored there. If the input is absent, attribute
 * dw_dtype of ops that make a parameter's gradient says the dtype; unset: the dtype of the operands. */
typedef struct OpAlias {
    int8_t out, in;
    bool   accumulate;
} OpAlias;

typedef struct GradBuilder GradBuilder;

/* The range of an input's elements, beyond their dtype. */
typedef enum InputHolds {
    HOLDS_ANY,       /* any floats; or indexes, integers from 0 up to a limit that follows from shapes */
    HOLDS_HYPER,     /* HYPER_COUNT scalars of the run */
    HOLDS_LABELS,    /* classes, or IGNORE_INDEX */
    HOLDS_DOC_START, /* index within the row of the first token of each token's document */
    HOLDS_SQUARES,   /* not negative */
    HOLDS_POSITIVE,  /* at least 0.5 */
    HOLDS_MASK,      /* 0 or 1 */
    HOLDS_WHOLE,     /* whole numbers */
    HOLDS_HALF,      /* whole numbers plus 0.5 */
    HOLDS_NORM2,     /* a squared norm */
    HOLDS_SEGMENTS,  /* see ops/attrs.h */
    HOLDS_CONTROLS,  /* rows of SAMPLE_CONTROLS, see ops/attrs.h */
    HOLDS_SLOTS,     /* slots of sequences, all different; -1: none */
    HOLDS_SEEN,      /* see ops/attrs.h */
    HOLDS_SCALE,     /* rows of 4: a tensor's scale, see ops/lowbit/fp8.h */
    HOLDS_PAGES,     /* page numbers of a cache, all different if the cache has enough pages */
} InputHolds;

/* Shape of a KV cache in pages that all rows share; feeds say which pages and positions belong to each row. */
typedef struct CacheShape {
    int64_t pages, page_len;
    Value  *starts, *row_pages; /* feeds `starts` and `pages` */
    bool    fp8;                /* keys and values are kept in e4m3; else in the attention's dtype */
} CacheShape;

/* Inputs of an op that another op computes from the same inputs, as a gradient reads outputs of its forward op. Random contents would be
 * meaningless, so tests run that op first. Both ops have the same struct of attributes. */
typedef struct OpResults {
    const OpDef *op;                /* NULL: no such inputs */
    int8_t       in[NODE_MAX_IN];   /* input i of `op` is input in[i] of this op, for i < op->num_in */
    int8_t       out[NODE_MAX_OUT]; /* output k of `op` is input out[k] of this op, for k < op->num_out */
} OpResults;

/* An op that can also quantise its output `of`. Its outputs from `out` on are then the outputs that op `op` has for `of`, with the same
 * bits. If input `scale` is connected, they are the outputs of op `scaled` instead, whose further inputs are this op's inputs from `scale`
 * on. Attribute `codes` (a dtype, at offset `attr`) turns these outputs on. */
typedef struct OpCodes {
    const OpDef *op, *scaled; /* NULL: the op makes no codes */
    int8_t       of, out, scale;
    bool         turns; /* it can also make the transposed codes that `scaled` makes */
    size_t       attr;
    bool (*fits)(const Node *node, int64_t whole); /* whether a kernel accepts the operands; rows must be a multiple of `whole` elements */
} OpCodes;

struct OpDef {
    int            id;
    const char    *name;     /* its name in IR and Python */
    const char    *synopsis; /* one line of math */
    uint8_t        num_in, num_out;
    uint8_t        min_in;      /* inputs [0, min_in) may not be absent, unless in optional_in */
    uint32_t       optional_in; /* bit k: input k may be absent */
    uint32_t       flags;
    uint32_t       inplace;             /* bit k: output 0 may share input k's memory if input k has no later reader */
    OpAlias        alias[NODE_MAX_OUT]; /* the first num_alias entries are used */
    uint8_t        num_alias;
    size_t         attrs_size;
    const AttrDef *attrs;                                    /* ended by ATTR_TYPE_END */
    Status (*infer)(Node *node);                             /* checks inputs, sets types of outputs */
    Status (*backward)(GradBuilder *grad, const Node *node); /* emits gradient nodes; NULL: no gradient */
    /* Emits nodes at the cursor that compute output k again from the inputs and *other* outputs, which are kept. Sets *out_value. NULL:
     * recomputation clones the whole node. */
    Status (*rebuild)(Graph *graph, const Node *node, int k, Value **out_value);
    OpCost (*cost)(const Node *node);
    size_t (*workspace)(const Node *node, int num_workers); /* scratch of CPU kernels in bytes; NULL: none */
    /* scratch of CUDA kernels in bytes, if it is large, to plan for a GPU that isn't present; sm: compute capability times 10 */
    size_t (*gpu_workspace)(const Node *node, int sm);
    CpuKernel cpu[OP_MAX_KERNELS]; /* first match wins, reference last */
    uint8_t   holds[NODE_MAX_IN];  /* InputHolds of each input */
    OpResults results;
    OpCodes   codes;
    /* Bit k: input k is split into rows. Row i of each output depends only on row i of these inputs and on all of the other inputs, so
     * computing some rows at a time gives the same bits (products: up to the order of their sums). 0: the op can't be split. Rows are
     * made by all dims but the last of the widest operand. by_element: element i depends on element i; inputs with dims of 1, or of one
     * element, are broadcast (op_cut). */
    uint32_t by_row;
    bool     by_element;
    int (*row_dims)(const Node *node); /* number of leading dims that make rows; NULL: all but the last */
    uint32_t params;                   /* bit k: input k may be a trained weight, whose gradient then goes through grad_accumulator */
    uint32_t constants;                /* bit k: input k never has a gradient (a table, scalars); no trained weight may flow into it */
    uint32_t grad_outputs;             /* bit k: output k has a gradient too; output 0 always has one */
    /* Emits the cached form at the cursor, for prefill and decode: it appends this run's keys and values to a cache and reads the whole
     * cache. NULL: the op handles each token by itself, or has no cached form. */
    Status (*cached)(Graph *graph, const Node *node, const CacheShape *shape, Node **out);
    /* Records whether every row is one document (then padding, if any), on which kernels may rely; NULL: the op doesn't care. */
    void (*set_dense)(Node *node, bool dense);
    /* Computes y[i] from in[k][i] for `count` elements in fp32; y may be one of the inputs; an absent input is an array of zeros.
     * number: the op's one attribute. An op with this is element-wise and can be a step of a chain (ops/elementwise/chain.h); NULL: it
     * can't. */
    void (*tile)(float *y, const float *const *in, int64_t count, double number);
    const char *samples; /* samples that the op is tested with, see ir/sample.h */
    const char *large;   /* more samples, in shapes of real models; doctor runs them too */
};

/* The op that would make the node's codes (OpCodes) as a node of its own; NULL: none. */
static inline const OpDef *op_codes_maker(const Node *node)
{
    const OpCodes *codes = &node->op->codes;
    return codes->op && node->in[codes->scale] ? codes->scaled : codes->op;
}

/* Whether output k is codes or their scales (OpCodes). Their bits follow from another output, and may jump when that changes by one bit. */
static inline bool op_makes_codes(const OpDef *op, int k)
{
    return op->codes.op && k >= op->codes.out;
}

/* ---- for backward rules (ir/grad.c) ---- */

/* The gradient of a forward value; NULL when nothing downstream contributes (the rule then adds nothing for it). */
Value *grad_of(GradBuilder *grad, Value *value);
/* Whether d/dvalue is needed: a trained parameter flows into `value`. */
bool grad_wanted(GradBuilder *grad, const Value *value);
/* Applies an op at the end of the graph. `out` receives op->num_out values (NULL for outputs not in `want`). */
NODISCARD Status grad_emit(GradBuilder *grad, int op_id, const void *attrs, Value *const *in, int num_in, uint32_t want, Value **out);
/* Adds `contribution` to d/dvalue; NULL: adds nothing. */
NODISCARD Status grad_add(GradBuilder *grad, Value *value, Value *contribution);
/* The optional accumulate input for a parameter gradient: the gradient so far (of an earlier micro-step, or of another use). NULL: none
 * yet, or `param` is an activation. A rule passes it to its op and gives the op's output to grad_set. */
Value *grad_accumulator(GradBuilder *grad, Value *param);
/* Value of attribute dw_dtype for an op that makes d/dparam; 0: the gradient has dtype `own` anyhow, which the op makes by default. */
int64_t grad_dw_dtype(GradBuilder *grad, const Value *param, DType own);
/* Sets d/dparam to `value`, which already includes what grad_accumulator returned. If `param` is an activation, adds `value` to its
 * gradient. */
void grad_set(GradBuilder *grad, Value *param, Value *value);
/* Readers of forward value `from` after this read `to` instead (the backward op yields it anyhow), unless the backward pass has used
 * them already. */
void grad_replace_forward(GradBuilder *grad, Value *from, Value *to);

/* ---- what changes from run to run, read from device memory ---- */

/* State `results`, f32[RESULT_ROWS,RESULT_SCALARS + n] in host memory: row (step mod RESULT_ROWS) belongs to that optimizer step. The
 * plan's n named scalars follow the first three. */
enum { MOST_SCALARS = 8 };
enum { RESULT_LOSS, RESULT_NORM2, RESULT_APPLIED, RESULT_SCALARS, RESULT_MOST = RESULT_SCALARS + MOST_SCALARS, RESULT_ROWS = 4 };

/* Launch arguments derived from a node alone: types of operands, which outputs accumulate; data and workspace are NULL. */
typedef struct NodeArgs {
    KernelArgs args;
    TensorView in[NODE_MAX_IN], out[NODE_MAX_OUT];
} NodeArgs;
const KernelArgs *node_args(const Node *node, NodeArgs *storage);

/* Whether the node can be computed some rows at a time, where leading dims of its operands make `rows` rows (OpDef.by_row). in[k],
 * out[k]: elements per row of each; 0: the whole input is read. */
bool op_cut(const Node *node, int64_t rows, int64_t in[NODE_MAX_IN], int64_t out[NODE_MAX_OUT]);

/* Whether a kernel with these types (see CpuKernel) supports the node. */
bool op_types_fit(const Node *node, DTypeSet dtypes, const OperandTypes except[KERNEL_MAX_EXCEPT]);
/* The first entry of cpu[] that supports the node's dtypes, or NULL. */
const CpuKernel *op_cpu_kernel(const Node *node);
/* ERR_UNSUPPORTED: the op has no kernel on this device ("CPU") for the node's dtypes; the message names them. */
NODISCARD Status op_no_kernel(const Node *node, const char *device);
