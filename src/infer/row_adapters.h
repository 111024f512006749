/* The adapters of an InferModel that requests choose among (infer_use_adapters). */
#pragma once

#include "infer/infer_model.h"

/* Reads their weights into the session, where it decodes and hasn't them yet. */
NODISCARD Status infer_read_adapters(InferModel *infer);

/* The index of the adapter with this name in row_adapters; ERR_INVALID names those that are there. */
NODISCARD Status infer_find_adapter(const InferModel *infer, Str name, int *out_index);
