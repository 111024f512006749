/* Shared by lora_add and lora_add_bwd: attributes and their checks. */
#pragma once

#include "ops/products/gemm.h"

#define LORA_ATTR_OF(Struct, field, m) \
    { \
#field #m, ATTR_TYPE_INT, offsetof(Struct, field) + (m) * sizeof(int64_t), 0, false, false \
    }
#define LORA_ATTR(field, m) LORA_ATTR_OF(LoraAttrs, field, m)
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

/* Checks that members with these rows and columns follow each other within y's columns; *out_rows: rows of all members. */
NODISCARD Status lora_check_members(const int64_t rows[LORA_MAX_MEMBERS], const int64_t col[LORA_MAX_MEMBERS], int64_t y_cols,
                                    int64_t *out_rows);

/* Checks inputs 0 to 2 against the attributes: y or dy (...,Y), h (..., members r) and b (M,r). y: the first input's name. */
NODISCARD Status lora_infer(const Node *node, const char *y);
