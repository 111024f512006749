/* The interface of passes. A pass takes a graph and returns a graph. Passes share no state except the graph and the plan's layout. */
#pragma once

#include "passes/compile.h"

/* Scopes: the programs that a pass runs for, one bit each. P_MODEL: all programs made from the model; P_GRADS: those of them with a
 * backward pass; P_CACHED: those of them with a cache. The other scopes: programs that are made from something else (EntrySource). */
enum { P_MODEL = 1, P_GRADS = 2, P_CACHED = 4, P_UPDATE = 8, P_SHARES = 16, P_WEIGHTS = 32, P_MATRIX = 64 };

typedef struct PassContext {
    Arena                *arena;
    const char           *file;   /* name of the graph's source, for messages */
    const IrModule       *module; /* the module to bind; NULL: the graph exists already */
    const JsonValue      *config;
    const char           *config_name;
    const CompileOptions *options;
    Device               *device;
    Plan                 *plan;    /* layout of the values that earlier programs placed */
    Program              *program; /* the program that is made: passes read its shape, place and emit fill it */
} PassContext;

#define PASS(name, programs, help) NODISCARD Status pass_##name(PassContext *context, Graph **graph);
#include "passes/passes.def"
#undef PASS

/* Number of passes and the name of each, in order. */
int         pass_count(void);
const char *pass_name(int index);
/* *out_index: the pass of this name. ERR_INVALID lists all names. */
NODISCARD Status pass_find(const char *name, int *out_index);
/* pass_scopes: the scopes that the pass runs for. entry_scopes: the scopes that contain an entry. */
uint32_t pass_scopes(int index);
uint32_t entry_scopes(const Entry *entry);
/* Whether the pass needs the layout of lasting values: such a pass runs once all programs are scheduled. */
bool pass_after_layout(int index);
/* Runs the pass over context->program->graph, and verifies the result if the options say so. A pass may leave the graph's cursor
 * anywhere. */
NODISCARD Status pass_run(PassContext *context, int index);

/* Makes an empty plan for this device. */
NODISCARD Status plan_start(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan);

/* Gives nodes added from here on the layer, part and source line of `node`. Each pass begins in the state that pass_work_nowhere sets. */
static inline void pass_work_like(Graph *graph, const Node *node)
{
    graph->layer = node->layer;
    graph->part = node->part;
    graph->source = node->source;
}

/* Like pass_work_like, and new nodes go before `node`. */
static inline void pass_work_at(Graph *graph, Node *node)
{
    graph->cursor = node;
    pass_work_like(graph, node);
}

/* The state in which each pass begins: new nodes go to the end, without layer, part and source line. */
static inline void pass_work_nowhere(Graph *graph)
{
    graph->cursor = NULL;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->source = NULL;
}

/* Adds a node as graph_add_node does; *out is its first output. */
NODISCARD Status pass_add(Graph *graph, const OpDef *op, const void *attrs, const char *name, Value *const *in, int num_in, Value **out);
/* Adds a view of x in the dims of a type. */
NODISCARD Status pass_reshape(Graph *graph, const char *name, Value *x, const TensorType *dims, Node **out);
/* Whether the node reads only inputs and constants: pass schedule may move it, since no activation dies where it runs. */
bool pass_reads_given(const Node *node);

/* Runs the fusions that no_fuse doesn't switch off. counts: how often each fired, for tests. */
NODISCARD Status fuse_graph(Graph *graph, uint32_t no_fuse, int counts[FUSION_COUNT]);

/* Why `maker` and `reader`, which reads its result, aren't steps of one chain; NULL: one of them isn't element-wise. */
const char *chain_apart(const Node *maker, const Node *reader);

/* Reverse-mode differentiation of the output "loss". accumulate: gradients and loss are added to what their memory holds.
 * fp32_grads: see CompileOptions. */
NODISCARD Status autodiff_graph(Graph *graph, bool accumulate, bool fp32_grads);

/* Binds the module for the program's output as pass bind does, but for another shape. The graph is only examined, not run. */
NODISCARD Status bind_probe(PassContext *context, int64_t batch, int64_t seq, Graph **out_graph);

/* Pass cache: ERR_UNSUPPORTED if a token's logits depend on other tokens, except through attention, or on the number of tokens. */
NODISCARD Status check_tokens_apart(PassContext *context);

/* Pass cache, for attention whose keys and values are made from a latent. *out_done: the cache holds the latent, and the node is replaced;
 * else the node is unchanged. context->plan->latent counts both cases. */
NODISCARD Status cache_latent(const PassContext *context, Graph *graph, Node *node, const CacheShape *shape, bool *out_done);

/* Whether pass adapt changes the weight's product in this program. */
bool adapt_wraps(const PassContext *context, const Param *param);

/* The inputs of op sample that every choice of ids from logits (rows,V) needs, for this many slots; more may be added to `in`. */
void sampling_inputs(Graph *graph, Value *logits, int64_t rows, int64_t slots, Value *in[NODE_MAX_IN]);
/* Pass cache: adds the choice of tokens, for entries that choose them. */
NODISCARD Status add_sampling(PassContext *context, Graph *graph, const CacheShape *shape);

/* Removes nodes that nothing reads and that write no lasting memory. */
void remove_dead_nodes(Graph *graph);
