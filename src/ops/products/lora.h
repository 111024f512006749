/* What lora_add and lora_add_bwd share: their attributes and checks of them. */
#pragma once

#include "ops/products/gemm.h"

#define LORA_ATTR(field, m) \
    { \
#field #m, ATTR_TYPE_INT, offsetof(LoraAttrs, field) + (m) * sizeof(int64_t), 0, false \
    }
/* `...`: attributes of one op alone, each followed by a comma. */
#define LORA_ATTRS(name, ...) \
    static const AttrDef name[] = {ATTR_FLOAT(LoraAttrs, alpha, 1), \
                                   LORA_ATTR(rows, 0), \
                                   LORA_ATTR(col, 0), \
                                   LORA_ATTR(rows, 1), \
                                   LORA_ATTR(col, 1), \
                                   LORA_ATTR(rows, 2), \
                                   LORA_ATTR(col, 2), \
                                   __VA_ARGS__{0}}

/* Inputs 0 to 2 are y or dy (...,Y), h (..., members r) and b (M,r), as the attributes have it. `y`: the first's name. */
NODISCARD Status lora_infer(const Node *node, const char *y);
