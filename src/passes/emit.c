/* emit: one launch a node, its kernel chosen by the device; memory is bound when a session allocates. */
#include "ops/ops.h"
#include "passes/pass.h"

static void views_of(Arena *arena, Value *const *values, int count, TensorView **out)
{
    *out = arena_array(arena, TensorView, count + 1);
    for (int i = 0; i < count; i++)
        if (values[i]) (*out)[i].type = values[i]->type;
}

static Status emit_node(PassContext *context, Node *node, Launch *launch)
{
    Program *program = context->program;
    *launch = (Launch){ .node = node };
    TRY(context->device->api->bind(context->device, node, &launch->kernel));
    TensorView *in;
    views_of(context->arena, node->in, node->num_in, &in);
    views_of(context->arena, node->out, node->num_out, &launch->args.out);
    launch->args.in = in;
    launch->args.num_in = node->num_in;
    launch->args.num_out = node->num_out;
    launch->args.attrs = node->attrs;
    launch->args.accumulate = node_accumulate_mask(node);
    launch->args.workspace_bytes = launch->kernel.workspace_bytes;
    if (node->flags & NODE_ONCE) return OK;
    OpCost cost = launch_cost(launch);
    program->cost.flops += cost.flops;
    program->cost.bytes += cost.bytes;
    program->roofline_seconds += launch_limit_seconds(&context->plan->facts, launch, 1);
    return OK;
}

Status pass_emit(PassContext *context, Graph **graph)
{
    Program *program = context->program;
    int      count = 0;
    for (const Node *node = (*graph)->first; node; node = node->next) count += !(node->op->flags & OP_VIEW);
    program->launches = arena_array(context->arena, Launch, count + 1);
    program->once = arena_array(context->arena, Launch, count + 1);
    for (Node *node = (*graph)->first; node; node = node->next) {
        if (node->op->flags & OP_VIEW) continue;
        bool    once = (node->flags & NODE_ONCE) != 0;
        Launch *launch = once ? &program->once[program->num_once++] : &program->launches[program->num_launches++];
        TRY(emit_node(context, node, launch));
        int64_t bytes = ((int64_t)launch->kernel.workspace_bytes + 255) / 256 * 256;
        if (bytes > context->plan->region_bytes[REGION_WORKSPACE]) context->plan->region_bytes[REGION_WORKSPACE] = bytes;
    }
    return OK;
}
