/* The adapters of an InferModel that requests can choose among (infer_use_adapters). */
#pragma once

#include "infer/infer_model.h"

/* Loads the adapters' weights into the session, unless it has them or doesn't decode. */
NODISCARD Status infer_read_adapters(InferModel *infer);

/* Index in row_adapters of the adapter with this name; ERR_INVALID lists the names that exist. */
NODISCARD Status infer_find_adapter(const InferModel *infer, Str name, int *out_index);
