/* The table of ops, expanded from ops.def. */
#include "ops/ops.h"

#include <string.h>

const OpDef *const op_table[OP_COUNT] = {
#define OP(id, name) [OP_##id] = &op_##name,
#include "ops/ops.def"
#undef OP
};

const OpDef *op_by_name(const char *name)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(op_table[i]->name, name) == 0) return op_table[i];
    return NULL;
}
