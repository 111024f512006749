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
    uint8_t ndim; /* 0: absent (an optional input that isn't given) */
    int64_t dim[TENSOR_MAX_DIMS];
} TensorType;

TensorType type_make(DType dtype, int ndim, ...); /* dims as int64_t */
/* type_check fails unless every dim is positive, their product is at most TYPE_MAX_NUMEL (so that sizes in bytes never overflow) and
 * rows are whole blocks. */
#define TYPE_MAX_NUMEL ((int64_t)1 << 48)
NODISCARD Status type_check(const TensorType *type);
int64_t          type_numel(const TensorType *type);
int64_t          type_bytes(const TensorType *type);
int64_t          type_cols(const TensorType *type); /* last dim */
int64_t          type_rows(const TensorType *type); /* product of all dims but the last */
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
    VALUE_STAGED,     /* written from outside, or by nodes, right before the first node that reads it; dead after its last reader */
    VALUE_KIND_COUNT
} ValueKind;

/* Which memory a value is in. */
typedef enum Space {
    SPACE_DEVICE,
    SPACE_HOST, /* pinned host memory: copies run beside kernels, and kernels can access it */
    SPACE_COUNT
} Space;
const char *space_name(Space space);

/* Queues of a device. Nodes of one stream run in order. Nodes of two streams run concurrently, unless one must wait for a value that the
 * other makes, reads or overwrites. Waits are derived from what nodes read and write (run/order.h). */
typedef enum Stream { STREAM_COMPUTE, STREAM_COPY_IN, STREAM_COPY_OUT, STREAM_COMM, STREAM_COUNT } Stream;
const char *stream_name(Stream stream);

/* The part of a block that a node belongs to; recomputation flags name parts. */
typedef enum Part { PART_NONE, PART_NORM, PART_QKV, PART_ATT, PART_FFN, PART_SWIGLU, PART_BLOCK, PART_COUNT } Part;
const char *part_name(Part part);
bool        part_parse(const char *text, Part *out);

/* INIT_NORMAL: mean 0, deviation init_std. INIT_UNIFORM: in [-init_std, init_std). INIT_NORMS: row norms of the base weight of the same
 * module (model/dora.h). */
typedef enum InitKind { INIT_NORMAL, INIT_ZEROS, INIT_ONES, INIT_UNIFORM, INIT_NORMS } InitKind;
typedef enum HfKind { HF_WHOLE, HF_CONCAT, HF_SLICE, HF_TRANSPOSE, HF_ROWS } HfKind;

/* How a parameter is found in (and written to) a Hugging Face folder. */
typedef struct HfSource {
    HfKind         kind;
    int            num_names;
    const char   **names;       /* HF_CONCAT: the pieces in order along dim 0; else one name */
    int64_t        begin, rows; /* HF_SLICE: rows [begin, begin+rows) of a tensor with total_rows */
    int64_t        total_rows;
    const int64_t *ids; /* HF_ROWS: `rows` row numbers of the tensor */
} HfSource;

/* A weight, apart from its value in a graph. */
struct Param {
    const char *name; /* such as blocks.3.attn.q.weight */
    TensorType  type; /* storage dtype */
    HfSource    hf;
    HfSource    saved; /* where it is written; num_names 0: as in hf */
    const char
        *ns; /* namespace (IrNamespace) of the second model it belongs to, frozen, neither adapted nor saved; NULL: the model itself */
    const char *untied;    /* name of the tensor that its second use would have if untied (the head of a tied model); NULL: none */
    const char *module;    /* path of its module: model.layers.3.self_attn.q_proj; NULL: none */
    bool        is_linear; /* weight of a linear layer: LoRA may wrap it */
    bool        is_head;   /* the output head: `all-linear` leaves it alone */
    bool        decay;     /* weight decay applies */
    bool        trained;
    bool        is_adapter; /* trained beside a frozen base and saved apart: one of a LoRA pair, or a whole weight (is_whole) */
    bool        is_whole;   /* an adapter weight that starts as a copy of the base's weight */
    int         layer;      /* -1: none */
    /* Rows of each matrix, in storage order, if it holds several. The whole sequence may repeat (param_period). */
    int            num_matrices; /* 0: it is one matrix */
    const int64_t *matrices;
    /* Storage format (NF4, ...; passes/quantise.h), with extra values for scales; NULL: plain elements of its dtype. */
    const struct WeightFormat *format;
    InitKind                   init;
    float                      init_std;
};

/* Whether it belongs to the second model `ns`, or with ns NULL to the model itself. */
static inline bool param_is_of(const Param *param, const char *ns)
{
    return param->ns && ns ? strcmp(param->ns, ns) == 0 : param->ns == ns;
}

/* *out: number of rows after which the sequence of matrices repeats. Fails unless the parameter's rows are a multiple of it. */
NODISCARD Status param_period(const Param *param, int64_t *out);

/* Where a parameter is written. */
static inline const HfSource *param_saved(const Param *param)
{
    return param->saved.num_names ? &param->saved : &param->hf;
}

/* One use of a value: input `index` of `node`, or the graph's output `index` if node is NULL. */
struct Use {
    Node *node;
    int   index;
    Use  *prev, *next; /* list of the value's uses, in no order */
};

/* Where a value's memory is. Views and updates are declared by the op (OP_VIEW, OpDef.alias) and follow the node's inputs;
 * value_place_in makes members and homes. */
typedef enum Sharing {
    STORAGE_OWN,    /* memory of its own */
    STORAGE_MEMBER, /* a value from outside: consecutive elements of another one, such as a packed weight */
    STORAGE_VIEW,   /* an output: the elements of an input under another shape */
    STORAGE_UPDATE, /* an output: the new version of an input, in its memory */
    STORAGE_HOME,   /* an output: written straight into a value from outside (a gradient, a sum), or into a part of it */
} Sharing;

/* What a model says about keeping an activation for the backward pass; later hints are stronger. */
typedef enum Hint {
    HINT_NONE,  /* recomputation flags decide */
    HINT_AGAIN, /* computed again, whatever the flags say */
    HINT_SAVE,  /* kept, whatever the flags say */
    HINT_COUNT
} Hint;
const char *hint_name(Hint hint);

struct Value {
    int32_t     id;            /* index in graph->values */
    int32_t     layer;         /* -1: none */
    const char *name;          /* unique in the graph */
    int         num_namesakes; /* other values that got this name with a suffix: ~2, ~3, ... */
    TensorType  type;
    ValueKind   kind;
    Space       space;     /* if it has memory of its own */
    Node       *producer;  /* NULL: the value is from outside */
    int         out_index; /* index among the producer's outputs */
    Param      *param;     /* if VALUE_PARAM; NULL for a packed base of several */
    Hint        hint;
    Sharing     sharing;
    Value      *storage; /* its elements are [offset, offset + numel) of storage; NULL: it has memory of its own */
    int64_t     offset;  /* 0 unless a member or a home */
    Value *first_member, *last_member, *next_member; /* list of the members of a packed value, in storage order; kept by value_place_in */
    const void *const_data;                          /* VALUE_CONST with contents known at build time: type_bytes bytes; else NULL */
    Use        *first_use;                           /* list of all its uses */
    int         num_uses;
};

enum {
    NODE_BACKWARD = 1 << 0, /* made by autodiff */
    NODE_CLONE = 1 << 1,    /* made by recompute */
    NODE_ONCE = 1 << 2,     /* depends on nothing that changes: runs once after start */
    /* Made at use: computed again for each reader (pass recompute), so that its outputs live no longer than one reader runs. Its inputs
     * keep their contents, and either are made at use themselves or live as long as its readers need; its outputs have memory of their
     * own. */
    NODE_AT_USE = 1 << 3,
    NODE_ROWS_ALONE = 1 << 4, /* the graph has rows_alone */
};

struct Node {
    int32_t       id;
    int32_t       layer;
    const OpDef  *op;
    Value *const *in;   /* num_in entries, NULL where an optional input is absent; node_set_input changes one */
    Use          *uses; /* num_in entries, each linked into the list of uses of its input */
    Value       **out;  /* num_out entries; NULL: not wanted, the kernel skips it */
    int           num_in, num_out;
    void         *attrs; /* op->attrs_size bytes */
    Part          part;
    uint32_t      flags;
    Stream        stream;
    Node        **after; /* earlier nodes that must run first, besides those whose outputs this one reads or overwrites */
    int           num_after;
    const char   *source; /* file:line of the IR or DSL statement; NULL: made by a pass */
    Node         *prev, *next;
    int64_t       order; /* grows along the list; see node_precedes */
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
    Node               *cursor;       /* new nodes go before this one; NULL: at the end */
    NamedValue         *outputs;
    int                 num_outputs, cap_outputs;
    Param             **params; /* every parameter of the model, in the order of the IR */
    int                 num_params, cap_params;
    bool rows_alone; /* a row's results have the same bits whatever other rows are present, and however a sequence is cut into runs */
    int  layer;      /* for new nodes and values */
    Part part;
    const char       *source;
    struct NameTable *names;
};

/* Borrows `arena`, which must outlive the graph. */
Graph *graph_create(Arena *arena, const char *name, const OpDef *const *ops, int num_ops);

/* From here on a row's results don't depend on other rows, to the bit: marks all nodes, and nodes added later. */
void graph_set_rows_alone(Graph *graph);

/* A name that is taken gets a suffix. */
Value *graph_add_value(Graph *graph, ValueKind kind, const char *name, const TensorType *type);
/* Adds the input for a feed, with the type it has in a program of this shape. */
Value *graph_add_feed(Graph *graph, Feed feed, int64_t batch, int64_t cols);
Value *graph_add_param(Graph *graph, Param *param);      /* adds its VALUE_PARAM, and lists it in params */
Value *graph_find(const Graph *graph, const char *name); /* NULL: none */
/* Renames the value; a name that is taken gets a suffix. */
void graph_rename(Graph *graph, Value *value, const char *name);

/* Adds a node of `op` at the cursor: copies attrs (NULL: the op's defaults), runs op->infer, makes output values named `name` (further
 * ones name.1, ...). `in` has num_in entries and is padded with NULL to the op's inputs. want: bit k = output k is made (~0u: all).
 * Fails with infer's message, prefixed by node and source. */
NODISCARD Status graph_add_node(Graph *graph, const OpDef *op, const void *attrs, const char *name, Value *const *in, int num_in,
                                uint32_t want, Node **out_node);

/* Replaces input `index` of the node by `value`; NULL: absent. Storage of outputs in that input's memory follows. */
void node_set_input(Node *node, int index, Value *value);
/* Whether `a` runs before `b`; both belong to the same graph. */
bool node_precedes(const Node *a, const Node *b);
/* Makes `value` the elements of `storage` from `offset` on. A value from outside becomes a member, an output gets a home there.
 * `storage` is from outside; an output takes its kind. */
void value_place_in(Value *value, Value *storage, int64_t offset);

/* Undoes value_place_in for an output: its storage follows its op again. */
void value_leave_home(Value *value);
/* Removes a value from outside, which must have neither readers nor members. */
void value_drop(Value *value);

Node *value_first_reader(const Value *value); /* the first node to run that reads it; NULL: none does */

void   graph_add_output(Graph *graph, const char *name, Value *value);
void   graph_drop_output(Graph *graph, const char *name); /* does nothing if no output has that name */
void   graph_clear_outputs(Graph *graph);
Value *graph_output(const Graph *graph, const char *name); /* NULL: none */

void node_add_after(Graph *graph, Node *node, Node *earlier);
/* Removes the node and its uses; its outputs must have no readers left. */
void graph_remove_node(Graph *graph, Node *node);
/* Drops output `k`, which has no readers: the kernel then skips it. */
void node_drop_output(Node *node, int k);
/* Adds output `k` to the node's outputs, if its op has it for this node. A name that is taken gets a suffix. */
NODISCARD Status node_want_output(Graph *graph, Node *node, int k, const char *name);
void             graph_move_before(Graph *graph, Node *node, Node *before); /* NULL: moves it to the end */
/* Gives `to`, which replaces `from`, the stronger hint of the two. */
void value_take_hint(Value *to, const Value *from);
/* Makes all readers of `from` at and after `start` (NULL: the first node), and graph outputs, read `to`, which takes over its hint. */
void graph_replace_uses(Graph *graph, Value *from, Value *to, Node *start);

/* The value whose own memory contains this one. *out_offset: elements into it (NULL: not wanted). */
Value *value_root(Value *value, int64_t *out_offset);

/* A location: `offset` elements into `value`. */
typedef struct Root {
    Value  *value;
    int64_t offset;
} Root;
/* value_root of every value by id, in the graph's arena: one walk, however long the chains. */
Root *graph_roots(const Graph *graph);

Value   *node_first_out(const Node *node); /* the first wanted output; NULL: none */
uint32_t node_wanted(const Node *node);    /* bit k: output k is wanted */

/* Bit k set: output k is added to the old contents of the input that it updates. */
uint32_t node_accumulate_mask(const Node *node);

/* Checks SSA order, types (infer again), storage, names, parameters, lists of uses and members. ERR_INTERNAL quotes the node. */
NODISCARD Status graph_verify(const Graph *graph);

/* The text form, docs/ir.md: print -> parse -> print is the identity. A parsed graph has passed graph_verify; errors say
 * file:line:column. */
void             graph_print(const Graph *graph, StrBuf *out);
void             node_print(const Node *node, StrBuf *out);
NODISCARD Status graph_parse(Arena *arena, const char *file, const char *text, size_t len, const OpDef *const *ops, int num_ops,
                             Graph **out_graph);
