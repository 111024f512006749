/* Operands of lora_rows. */
#pragma once

#include "ops/attrs.h"

enum { LORA_ROWS_Y, LORA_ROWS_H, LORA_ROWS_B, LORA_ROWS_ADAPTERS };
