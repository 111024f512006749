/* Operands of lora_rows. */
#pragma once

#include "ops/attrs.h"

enum { LORA_ROWS_Y, LORA_ROWS_H, LORA_ROWS_B, LORA_ROWS_ADAPTERS };

/* The number of adapters, the same for each member. */
static inline int64_t lora_rows_adapters(const LoraRowsAttrs *attrs)
{
    return attrs->ranks.count / lora_count(attrs->rows);
}
