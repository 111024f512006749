/* Adding up rows by their ids: shared by embedding_dw and scatter_add_rows. */
#pragma once

#include "ir/op.h"

/* Computes out[0] (V,C), or adds to it (accumulate): row v is the sum of the rows of `rows` (N,C) whose id is v, in fp32 and in order. ids
 * i32 (N). args: the launch, which has out, the workspace and the thread pool. */
NODISCARD Status rows_added_cpu(const KernelArgs *args, const TensorView *ids, const TensorView *rows);

/* Bytes of workspace for `count` ids below `vocab`: first of rows_added_cpu, then of embedding_dw and scatter_add_rows on a GPU. */
size_t rows_added_workspace(int64_t count, int64_t vocab);
size_t rows_added_gpu_workspace(int64_t count);
