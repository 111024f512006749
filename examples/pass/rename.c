/* The pass `rename`: names each activation after its layer and its op, instead of the name that the model's author gave, so that the graphs
 * of two models can be compared as texts. */
#include "passes/pass.h"

Status pass_rename(PassContext *context, Graph **graph)
{
    for (Node *node = (*graph)->first; node; node = node->next)
        for (int k = 0; k < node->num_out; k++) {
            Value *out = node->out[k];
            if (!out || out->kind != VALUE_ACTIVATION) continue;
            const char *layer = node->layer < 0 ? "" : arena_printf(context->arena, "%d.", node->layer);
            graph_rename(*graph, out, arena_printf(context->arena, "%s%s", layer, node->op->name));
        }
    return OK;
}
