/* The table of ops, expanded from ops.def. */
#pragma once

#include "ir/op.h"

typedef enum OpId {
#define OP(id, name, signature) OP_##id,
#include "ops/ops.def"
#undef OP
    OP_COUNT
} OpId;

#define OP(id, name, signature) extern const OpDef op_##name;
#include "ops/ops.def"
#undef OP

/* Indexed by OpId; OP_COUNT entries. */
extern const OpDef *const op_table[OP_COUNT];
/* "inputs -> outputs" of each op, as in ops.def. */
extern const char *const op_signatures[OP_COUNT];
