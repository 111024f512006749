/* lora_add by the kernels of lora_rows (lora_rows.cu), with the same bits: all rows have one adapter. */
#pragma once

#include "device/cuda/kernel.h"

Status lora_rows_of_one(const KernelArgs *args);
