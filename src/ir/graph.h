/* Graph: an SSA program over tensors. A Value is produced once, by a Node or from outside (input, parameter, state);
 * a Node applies one op. Everything lives in the graph's arena and is freed with it; pointers stay valid till then.
 *
 * State changes only by a new version: an output in the memory of an input, or of a value from outside (see Sharing). Nobody may
 * read the old version later (graph_verify checks). Names are for people, files and look-up by identity: meaning (kind, layer,
 * part, parameter) is in fields and no code parses a name. */
#pragma once

#include "base/arena.h"
#include "base/dtype.h"
#include "base/strbuf.h"
#include "data/feeds.h"

#include <string.h>

typedef struct Graph Graph;
typedef struct Node  Node;
typedef struct Value Value;
typedef struct Param Param;
typedef struct OpDef OpDef;
typedef struct Use   Use;

enum { TENSOR_MAX_DIMS = 4, NODE_MAX_IN = 16, NODE_MAX_OUT = 8 };

typedef struct TensorType {
    DType   dtype;
    uint8_t ndim; /* 0: absent (an optional input that isn't there) */
    int64_t dim[TENSOR_MAX_DIMS];
} TensorType;

TensorType type_make(DType dtype, int ndim, ...); /* dims as int64_t */
/* Every dim positive, the product at most TYPE_MAX_NUMEL, so that sizes in bytes never overflow, and rows of whole blocks. */
#define TYPE_MAX_NUMEL ((int64_t)1 << 48)
NODISCARD Status type_check(const TensorType *type);
int64_t          type_numel(const TensorType *type);
int64_t          type_bytes(const TensorType *type);
int64_t          type_cols(const TensorType *type); /* last dim */
int64_t          type_rows(const TensorType *type); /* product of the others */
bool             type_equal(const TensorType *a, const TensorType *b);
bool             type_same_dims(const TensorType *a, const TensorType *b);
const char      *type_text(const TensorType *type, char buf[64]); /* "f32[2,24,96]" */

typedef enum ValueKind {
    VALUE_INPUT,      /* written from outside before each run */
    VALUE_PARAM,      /* a weight */
    VALUE_ACTIVATION, /* lives within one run */
    VALUE_GRAD,       /* a trained parameter's gradient: lives from run to run of a train step */
    VALUE_STATE,      /* optimizer moments, master weights, loss sums */
    VALUE_CACHE,      /* keys and values of earlier positions */
    VALUE_CONST,      /* fixed after start: tables computed once, or const_data uploaded once */
    VALUE_STAGED,     /* written from outside right before the first node that reads it, or by nodes; dead after the last reader */
    VALUE_KIND_COUNT
} ValueKind;

/* Where memory is. */
typedef enum Space {
    SPACE_DEVICE,
    SPACE_HOST, /* the host's, pinned: copies run beside kernels, and kernels can reach it */
    SPACE_COUNT
} Space;
const char *space_name(Space space);

/* Queues of a device. Nodes of one stream run in order; those of two run beside one another, except where one must wait for what
 * the other makes, reads or overwrites. Waits are derived from what nodes read and write (run/order.h). */
typedef enum Stream { STREAM_COMPUTE, STREAM_COPY_IN, STREAM_COPY_OUT, STREAM_COMM, STREAM_COUNT } Stream;
const char *stream_name(Stream stream);

/* What recomputation flags speak of. */
typedef enum Part { PART_NONE, PART_NORM, PART_QKV, PART_ATT, PART_FFN, PART_SWIGLU, PART_BLOCK, PART_COUNT } Part;
const char *part_name(Part part);
bool        part_parse(const char *text, Part *out);

/* INIT_NORMAL: mean 0, deviation init_std. INIT_UNIFORM: in [-init_std, init_std). INIT_NORMS: the norms of the rows of the weight that its
 * module has in the base (model/dora.h). */
typedef enum InitKind { INIT_NORMAL, INIT_ZEROS, INIT_ONES, INIT_UNIFORM, INIT_NORMS } InitKind;
typedef enum HfKind { HF_WHOLE, HF_CONCAT, HF_SLICE, HF_TRANSPOSE, HF_ROWS } HfKind;

/* How a parameter is found in (and written to) a Hugging Face folder. */
typedef struct HfSource {
    HfKind         kind;
    int            num_names;
    const char   **names;       /* HF_CONCAT: the pieces in order along dim 0; else one */
    int64_t        begin, rows; /* HF_SLICE: rows [begin, begin+rows) of a tensor with total_rows */
    int64_t        total_rows;
    const int64_t *ids; /* HF_ROWS: of the tensor, `rows` of them */
} HfSource;

/* What a weight is, apart from its place in a graph. */
struct Param {
    const char *name; /* blocks.3.attn.q.weight */
    TensorType  type; /* storage dtype */
    HfSource    hf;
    HfSource    saved; /* how it is written, where that is otherwise; without names: like hf */
    const char
        *ns; /* namespace: the second model that it is of (IrNamespace): frozen, neither adapted nor saved; NULL: of the model itself */
    const char *untied;    /* the tensor that its second use would be, if it had one of its own: the head's of a tied model; NULL: none */
    const char *module;    /* path of the module it is the weight of: model.layers.3.self_attn.q_proj; NULL: none */
    bool        is_linear; /* weight of a linear layer: LoRA may wrap it */
    bool        is_head;   /* the output head: `all-linear` leaves it alone */
    bool        decay;     /* weight decay applies */
    bool        trained;
    bool        is_adapter; /* trained beside a frozen base, saved apart: of a LoRA pair, or (is_whole) a weight of the base */
    bool        is_whole;   /* such a weight: it begins as the base has it */
    int         layer;      /* -1: none */
    /* Where it holds several matrices: the rows of each, as they lie; after the last come further rows of the first. */
    int            num_matrices; /* 0: it is one */
    const int64_t *matrices;
    /* Storage format (NF4, ...; passes/quantise.h), with values beside its own; NULL: its own dtype. */
    const struct WeightFormat *format;
    InitKind                   init;
    float                      init_std;
};

/* Whether it is of that second model, or of the model itself (ns NULL). */
static inline bool param_is_of(const Param *param, const char *ns)
{
    return param->ns && ns ? strcmp(param->ns, ns) == 0 : param->ns == ns;
}

/* After how many rows those of its first matrix come again. Fails unless its rows are a multiple. */
NODISCARD Status param_period(const Param *param, int64_t *out);

/* How a parameter is written. */
static inline const HfSource *param_saved(const Param *param)
{
    return param->saved.num_names ? &param->saved : &param->hf;
}

/* One place that reads a value: input `index` of `node`, or the graph's output `index` where node is NULL. */
struct Use {
    Node *node;
    int   index;
    Use  *prev, *next; /* among the uses of the value, in no order */
};

/* How a value comes by its memory. Views and updates are what the op says of its outputs (OP_VIEW, OpDef.alias) and follow the
 * node's inputs; value_place_in makes members and homes. */
typedef enum Sharing {
    STORAGE_OWN,    /* it has its own */
    STORAGE_MEMBER, /* from outside: consecutive elements of another value from outside, as of a packed weight */
    STORAGE_VIEW,   /* an output: an input's elements under another shape */
    STORAGE_UPDATE, /* an output: the new version of an input */
    STORAGE_HOME,   /* an output: made straight into a value from outside (a gradient, a sum), or into a part of it */
} Sharing;

/* What a model says of keeping an activation for the backward pass. The stronger one comes later. */
typedef enum Hint {
    HINT_NONE,  /* recomputation flags decide */
    HINT_AGAIN, /* it is computed again, whatever they say */
    HINT_SAVE,  /* it is kept, whatever they say */
    HINT_COUNT
} Hint;
const char *hint_name(Hint hint);

struct Value {
    int32_t     id;            /* index in graph->values */
    int32_t     layer;         /* -1: none */
    const char *name;          /* unique in the graph */
    int         num_namesakes; /* given this name and a suffix: ~2, ~3, ... */
    TensorType  type;
    ValueKind   kind;
    Space       space;     /* of a value with memory of its own */
    Node       *producer;  /* NULL: from outside */
    int         out_index; /* which output of producer */
    Param      *param;     /* of a PARAM; NULL for the packed base of several */
    Hint        hint;
    Sharing     sharing;
    Value      *storage; /* its elements are storage's [offset, offset + numel); NULL: it has memory of its own */
    int64_t     offset;  /* 0 except in a member or a home */
    Value      *first_member, *last_member, *next_member; /* the members of a packed one, as they lie; value_place_in keeps them */
    const void *const_data;                               /* VALUE_CONST with contents known now: type_bytes bytes; else NULL */
    Use        *first_use;                                /* every reader in the graph */
    int         num_uses;
};

enum {
    NODE_BACKWARD = 1 << 0, /* made by autodiff */
    NODE_CLONE = 1 << 1,    /* made by recompute */
    NODE_ONCE = 1 << 2,     /* depends on nothing that changes: runs once after start */
    /* Materialised at use: made again for each reader (pass recompute), so that its outputs live no longer than one of them runs. What
     * it reads keeps its contents, and is made at use or lasts; what it makes is memory of its own. */
    NODE_AT_USE = 1 << 3,
    NODE_ROWS_ALONE = 1 << 4, /* of a graph that says so */
};

struct Node {
    int32_t       id;
    int32_t       layer;
    const OpDef  *op;
    Value *const *in;   /* num_in entries, NULL where an optional input is absent; node_set_input changes one */
    Use          *uses; /* num_in entries, linked into the lists of the values read */
    Value       **out;  /* num_out entries; NULL: not wanted, the kernel skips it */
    int           num_in, num_out;
    void         *attrs; /* op->attrs_size bytes */
    Part          part;
    uint32_t      flags;
    Stream        stream;
    Node        **after; /* earlier nodes that must have run, besides those whose results this one reads or overwrites */
    int           num_after;
    const char   *source; /* file:line of the IR or DSL statement; NULL: made by a pass */
    Node         *prev, *next;
    int64_t       order; /* grows along the list: node_precedes */
};

typedef struct NamedValue {
    const char *name;
    Value      *value;
    Use        *use;
} NamedValue;

struct Graph {
    Arena              *arena;
    const char         *name;
    const OpDef *const *ops; /* table of num_ops descriptors, by id */
    int                 num_ops;
    Value             **values;
    int                 num_values, cap_values;
    int                 num_nodes, next_node_id;
    Node               *first, *last; /* execution order */
    Node               *cursor;       /* new nodes go before it; NULL: at the end */
    NamedValue         *outputs;
    int                 num_outputs, cap_outputs;
    Param             **params; /* every parameter of the model, in the order of the IR */
    int                 num_params, cap_params;
    bool        rows_alone; /* a row's results have the same bits whatever rows are beside it, and however a sequence is cut into runs */
    int         layer;      /* given to new nodes and values */
    Part        part;
    const char *source;
    struct NameTable *names;
};

/* Takes `arena` by reference: the graph dies with it. */
Graph *graph_create(Arena *arena, const char *name, const OpDef *const *ops, int num_ops);

/* From here on a row's results don't depend on the rows beside it, to the bit: all nodes, and those that come, say so. */
void graph_set_rows_alone(Graph *graph);

/* The name is made unique by a suffix where taken. */
Value *graph_add_value(Graph *graph, ValueKind kind, const char *name, const TensorType *type);
/* The input of a feed, as a program of this shape reads it. */
Value *graph_add_feed(Graph *graph, Feed feed, int64_t batch, int64_t cols);
Value *graph_add_param(Graph *graph, Param *param);      /* the VALUE_PARAM of it; also lists it in params */
Value *graph_find(const Graph *graph, const char *name); /* NULL: none */
/* The value is found by this name from here on, made unique by a suffix where taken. */
void graph_rename(Graph *graph, Value *value, const char *name);

/* Applies `op` at the cursor: copies attrs (NULL: the op's defaults), runs op->infer, makes output values named `name` (further
 * ones name.1, ...). `in` has num_in entries and is padded with NULL to the op's inputs. want: bit k = output k is made
 * (~0u: all). Fails with infer's message, prefixed by node and source. */
NODISCARD Status graph_add_node(Graph *graph, const OpDef *op, const void *attrs, const char *name, Value *const *in, int num_in,
                                uint32_t want, Node **out_node);

/* Input `index` of the node is `value` from here on; NULL: absent. Outputs that live in an input's memory follow. */
void node_set_input(Node *node, int index, Value *value);
/* Whether `a` runs before `b`; both are in one graph. */
bool node_precedes(const Node *a, const Node *b);
/* `value` is `storage`'s elements from `offset` on: a member, if it is from outside, else an output whose home that is. `storage` is
 * from outside; an output takes its kind. */
void value_place_in(Value *value, Value *storage, int64_t offset);

/* An output that has a home lives where its op says again. */
void value_leave_home(Value *value);
/* A value from outside that has neither readers nor members takes no part any more. */
void value_drop(Value *value);

Node *value_first_reader(const Value *value); /* of all nodes that read it, the first to run; NULL: none does */

void   graph_add_output(Graph *graph, const char *name, Value *value);
void   graph_drop_output(Graph *graph, const char *name); /* where there is one of that name */
void   graph_clear_outputs(Graph *graph);
Value *graph_output(const Graph *graph, const char *name); /* NULL: none */

void node_add_after(Graph *graph, Node *node, Node *earlier);
/* The node reads nothing any more; its outputs must have no readers left. */
void graph_remove_node(Graph *graph, Node *node);
/* Nobody wants output `k`, which has no readers: the kernel skips it. */
void node_drop_output(Node *node, int k);
/* The node makes output `k` too, which the op has here. The name is made unique. */
NODISCARD Status node_want_output(Graph *graph, Node *node, int k, const char *name);
void             graph_move_before(Graph *graph, Node *node, Node *before); /* NULL: to the end */
/* `to` stands for `from` from here on: the stronger hint of the two is its. */
void value_take_hint(Value *to, const Value *from);
/* All readers of `from` at and after `start` (NULL: the first node), and graph outputs, read `to`, which takes its hint. */
void graph_replace_uses(Graph *graph, Value *from, Value *to, Node *start);

/* The value with memory of its own in which this one lives. *out_offset: elements into it (NULL: not wanted). */
Value *value_root(Value *value, int64_t *out_offset);

/* Where a value lives: `offset` elements into `value`. */
typedef struct Root {
    Value  *value;
    int64_t offset;
} Root;
/* value_root of every value by id, in the graph's arena: one walk, however long the chains. */
Root *graph_roots(const Graph *graph);

Value   *node_first_out(const Node *node); /* the first output that is wanted; NULL: none is */
uint32_t node_wanted(const Node *node);    /* bit k: output k is */

/* Bit k set: output k of node adds to what the input that it updates holds. */
uint32_t node_accumulate_mask(const Node *node);

/* Checks SSA order, types (infer again), storage, names, parameters, lists of uses and members. ERR_INTERNAL with the node's text. */
NODISCARD Status graph_verify(const Graph *graph);

/* The text form, docs/ir.md: print -> parse -> print is the identity. What is parsed holds (graph_verify); errors say
 * file:line:column. */
void             graph_print(const Graph *graph, StrBuf *out);
void             node_print(const Node *node, StrBuf *out);
NODISCARD Status graph_parse(Arena *arena, const char *file, const char *text, size_t len, const OpDef *const *ops, int num_ops,
                             Graph **out_graph);
