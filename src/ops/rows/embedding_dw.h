/* Rows added up by their ids: what embedding_dw and scatter_add_rows have in common. */
#pragma once

#include "ir/op.h"

/* out[0] (V,C) (+)= for each id v the sum, in fp32 and in order, of those rows of `rows` (N,C) whose id is v. ids i32 (N).
 * args: the launch, for its result, its workspace and its threads. */
NODISCARD Status rows_added_cpu(const KernelArgs *args, const TensorView *ids, const TensorView *rows);

/* Of kernels on the CPU and on a GPU, for `count` ids below `vocab`. */
size_t rows_added_workspace(int64_t count, int64_t vocab);
size_t rows_added_gpu_workspace(int64_t count);
