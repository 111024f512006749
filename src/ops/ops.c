/* The table of ops, expanded from ops.def. */
#include "ops/ops.h"

const OpDef *const op_table[OP_COUNT] = {
#define OP(id, name, signature) [OP_##id] = &op_##name,
#include "ops/ops.def"
#undef OP
};

const char *const op_signatures[OP_COUNT] = {
#define OP(id, name, signature) [OP_##id] = signature,
#include "ops/ops.def"
#undef OP
};
