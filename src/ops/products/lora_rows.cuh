/* lora_add by the kernels of lora_rows (lora_rows.cu): of one adapter, which all rows have, with the same bits. */
#pragma once

#include "device/cuda/kernel.h"

Status lora_rows_of_one(const KernelArgs *args);
