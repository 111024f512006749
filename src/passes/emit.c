/* emit: makes a launch of each node, with the kernel that the device chooses, its stream and its waits. Memory is bound when a session
 * allocates. */
#include "ops/ops.h"
#include "passes/pass.h"
#include "run/order.h"
#include "run/timeline.h"

#include <string.h>

enum { WORKSPACE_ALIGN = 256 };

static void views_of(Arena *arena, Value *const *values, int count, TensorView **out)
{
    *out = arena_array(arena, TensorView, count + 1);
    for (int i = 0; i < count; i++)
        if (values[i]) (*out)[i].type = values[i]->type;
}

static const Value *memory_of(const Value *value)
{
    while (value->storage) value = value->storage;
    return value;
}

/* By id of a value with memory of its own: whether some node that runs in each run writes the value's memory, or makes a view of it. */
static uint8_t *find_written(Arena *arena, const Graph *graph)
{
    uint8_t *written = arena_array(arena, uint8_t, graph->num_values + 1);
    for (int i = 0; i < graph->num_values; i++)
        if (graph->values[i]->producer && !(graph->values[i]->producer->flags & NODE_ONCE)) written[memory_of(graph->values[i])->id] = 1;
    return written;
}

/* Bit k: input k is a weight, a constant or an input that no node writes: its contents are final before the program begins. */
static uint32_t constant_inputs(const Node *node, const uint8_t *written)
{
    uint32_t mask = 0;
    for (int k = 0; k < node->num_in && k < 32; k++) {
        const Value *memory = node->in[k] ? memory_of(node->in[k]) : NULL;
        if (memory && (memory->kind == VALUE_PARAM || memory->kind == VALUE_CONST || memory->kind == VALUE_INPUT) && !written[memory->id])
            mask |= 1u << k;
    }
    return mask;
}

static Status emit_node(PassContext *context, Node *node, const uint8_t *written, Launch *launch)
{
    Program *program = context->program;
    *launch = (Launch){.node = node, .stream = node->stream};
    TRY(context->device->api->bind(context->device, node, &launch->kernel));
    TensorView *in;
    views_of(context->arena, node->in, node->num_in, &in);
    views_of(context->arena, node->out, node->num_out, &launch->args.out);
    launch->args.in = in;
    launch->args.num_in = node->num_in;
    launch->args.num_out = node->num_out;
    launch->args.attrs = node->attrs;
    launch->args.accumulate = node_accumulate_mask(node);
    launch->args.rows_alone = (node->flags & NODE_ROWS_ALONE) != 0;
    launch->args.constant = constant_inputs(node, written);
    launch->args.workspace_bytes = launch->kernel.workspace_bytes;
    if (node->flags & NODE_ONCE) return OK;
    OpCost cost = launch_cost(launch);
    program->cost.flops += cost.flops;
    program->cost.bytes += cost.bytes;
    double *busy = &program->limit_seconds[launch->stream];
    *busy += launch_limit_seconds(&context->plan->facts, launch, 1);
    if (*busy > program->roofline_seconds) program->roofline_seconds = *busy;
    return OK;
}

/* Sizes the streams' scratch. Launches of one stream run in order and share it; launches of two streams may overlap. */
static void plan_workspace(Plan *plan, const Launch *launch)
{
    int64_t  bytes = ((int64_t)launch->kernel.workspace_bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN, end = 0;
    int64_t *most = &plan->workspace_bytes[launch->stream];
    if (bytes > *most) *most = bytes;
    for (int s = 0; s < STREAM_COUNT; s++) {
        plan->workspace_offset[s] = end;
        end += plan->workspace_bytes[s];
    }
    plan->region_bytes[SPACE_DEVICE][REGION_WORKSPACE] = end;
}

/* If all launches are of the compute stream, launches of nodes with NODE_ROWS_ALONE, which are small and many, may start early
 * (KernelArgs.early). */
static void let_begin_early(Program *program)
{
    for (int i = 0; i < program->num_launches; i++)
        if (program->launches[i].stream != STREAM_COMPUTE) return;
    for (int i = 0; i < program->num_launches; i++) program->launches[i].args.early = program->launches[i].args.rows_alone;
}

Status pass_emit(PassContext *context, Graph **graph)
{
    Program     *program = context->program;
    const Order *order = order_make(context->arena, *graph);
    uint8_t     *written = find_written(context->arena, *graph);
    int          count = 0;
    for (const Node *node = (*graph)->first; node; node = node->next) count += !(node->op->flags & OP_VIEW);
    program->launches = arena_array(context->arena, Launch, count + 1);
    program->once = arena_array(context->arena, Launch, count + 1);
    for (Node *node = (*graph)->first; node; node = node->next) {
        if (node->op->flags & OP_VIEW) continue;
        bool    once = (node->flags & NODE_ONCE) != 0;
        Launch *launch = once ? &program->once[program->num_once++] : &program->launches[program->num_launches++];
        TRY(emit_node(context, node, written, launch));
        if (!once) memcpy(launch->wait, order_wait(order, program->num_launches - 1), sizeof launch->wait);
        if (!program->scratch || program->scratch[node->id] < 0) plan_workspace(context->plan, launch);
    }
    let_begin_early(program);
    if (context->plan->facts.bandwidth > 0) {
        Timeline timeline;
        timeline_simulate(context->arena, &context->plan->facts, program->launches, program->num_launches, &timeline);
        program->simulated_seconds = timeline.seconds;
    }
    return OK;
}
