/* What a pass sees. A pass is graph in, graph out; no state between passes except the graph and the plan's layout. */
#pragma once

#include "passes/compile.h"

/* What a pass may run for, a bit each: all programs made from the model, of them those that go backward and those with a cache, then those
 * made from something else (EntrySource). */
enum { P_MODEL = 1, P_GRADS = 2, P_CACHED = 4, P_UPDATE = 8, P_SHARES = 16, P_WEIGHTS = 32, P_MATRIX = 64 };

typedef struct PassContext {
    Arena                *arena;
    const char           *file;   /* what the graph comes from, for messages */
    const IrModule       *module; /* NULL: the graph is there already */
    const JsonValue      *config;
    const char           *config_name;
    const CompileOptions *options;
    Device               *device;
    Plan                 *plan;    /* layout of what earlier programs placed */
    Program              *program; /* whose shape the passes ask for, and what place and emit fill */
} PassContext;

#define PASS(name, programs, help) NODISCARD Status pass_##name(PassContext *context, Graph **graph);
#include "passes/passes.def"
#undef PASS

/* Number of passes and the name of each, in order. */
int         pass_count(void);
const char *pass_name(int index);
/* ERR_INVALID with all names. */
NODISCARD Status pass_find(const char *name, int *out_index);
/* The scopes of the programs that the pass runs for, and those that an entry is in. */
uint32_t pass_scopes(int index);
uint32_t entry_scopes(const Entry *entry);
/* Whether it needs the layout of what lasts: it is run once all programs are scheduled. */
bool pass_after_layout(int index);
/* Runs it over context->program->graph, and verifies that if the options say so. The pass needn't leave the graph's cursor as it was. */
NODISCARD Status pass_run(PassContext *context, int index);

/* An empty plan for this device. */
NODISCARD Status plan_start(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan);

/* Where a pass works: what it adds from here on is of the layer, the part and the line that `node` is of. Each pass begins with new nodes
 * at the end, of no layer, part and line. */
static inline void pass_work_like(Graph *graph, const Node *node)
{
    graph->layer = node->layer;
    graph->part = node->part;
    graph->source = node->source;
}

/* The same, and new nodes go before `node`. */
static inline void pass_work_at(Graph *graph, Node *node)
{
    graph->cursor = node;
    pass_work_like(graph, node);
}

/* As each pass begins. */
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
/* Whether all that a node reads is given, inputs and constants: pass schedule may move it, since no activation dies where it runs. */
bool pass_reads_given(const Node *node);

/* How often each fusion fired in the graph being compiled: for tests (counts[FUSION_COUNT]). */
NODISCARD Status fuse_graph(Graph *graph, uint32_t no_fuse, int counts[FUSION_COUNT]);

/* Why `maker`, whose result `reader` reads, isn't a step of one chain with it; NULL: one of the two is no element-wise op. */
const char *chain_apart(const Node *maker, const Node *reader);

/* Reverse-mode differentiation of the output "loss". accumulate: gradients and loss are added to what their memory holds.
 * fp32_grads: see CompileOptions. */
NODISCARD Status autodiff_graph(Graph *graph, bool accumulate, bool fp32_grads);

/* The module of the program's output as pass bind makes it, but for other shapes and for nobody to run. */
NODISCARD Status bind_probe(PassContext *context, int64_t batch, int64_t seq, Graph **out_graph);

/* Pass cache: ERR_UNSUPPORTED where a token's logits depend on other tokens but through attention, or on how many there are. */
NODISCARD Status check_tokens_apart(PassContext *context);

/* Pass cache for an attention whose keys and values are made of a latent: *out_done says whether the cache now holds that, and the node is
 * gone; else it is as it was. context->plan->latent counts either. */
NODISCARD Status cache_latent(const PassContext *context, Graph *graph, Node *node, const CacheShape *shape, bool *out_done);

/* Whether pass adapt changes the weight's product in this program. */
bool adapt_wraps(const PassContext *context, const Param *param);

/* What op sample reads wherever ids are chosen of logits (rows,V), for so many slots; others may be added to `in`. */
void sampling_inputs(Graph *graph, Value *logits, int64_t rows, int64_t slots, Value *in[NODE_MAX_IN]);
/* Pass cache for entries that choose tokens. */
NODISCARD Status add_sampling(PassContext *context, Graph *graph, const CacheShape *shape);

/* Removes nodes that nothing reads and that write no lasting memory. */
void remove_dead_nodes(Graph *graph);
