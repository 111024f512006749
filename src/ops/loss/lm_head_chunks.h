/* How the output head's rows are cut into chunks on a GPU: by shapes alone, for kernels and for plans. */
#pragma once

#include "device/device.h"
#include "ops/attrs.h"

/* Rows of all chunks but the last: logits of at most 1 GiB, by 128 rows, chunks of nearly one size. Each chunk reads and writes all of dw;
 * where there is none (a frozen head) chunks cost next to nothing, and their logits are at most 384 MiB. least_chunks: as many chunks at
 * least, unless they were of fewer than 1,024 rows, whose products take no longer than that traffic. */
static inline int64_t lm_head_chunk_rows(int64_t rows, int64_t row_bytes, bool has_dw, int64_t least_chunks)
{
    const int64_t chunk_bytes = has_dw ? 1 << 30 : 384 << 20, multiple = 128, least_rows = 1024;
    int64_t       most = chunk_bytes / row_bytes / multiple * multiple;
    if (most < multiple) most = multiple;
    int64_t chunks = (rows + most - 1) / most;
    if (least_chunks > rows / least_rows) least_chunks = rows / least_rows;
    if (chunks < least_chunks) chunks = least_chunks;
    if (chunks <= 1) return rows;
    int64_t each = (rows + chunks - 1) / chunks;
    return (each + multiple - 1) / multiple * multiple;
}

/* Bytes the head works in on a GPU: a chunk's logits in x's dtype, and what a product takes. x (...,C). */
static inline size_t lm_head_gpu_workspace(const TensorType *x, int64_t vocab, bool has_dw, int64_t least_chunks)
{
    int64_t rows = type_rows(x), row_bytes = dtype_bytes(x->dtype, vocab);
    return GPU_GEMM_WORKSPACE + (size_t)(lm_head_chunk_rows(rows, row_bytes, has_dw, least_chunks) * row_bytes);
}

/* How often dw is added to while a micro-batch's chunks run. x (...,C). */
static inline int64_t lm_head_num_sums(const TensorType *x, int64_t vocab, int64_t least_chunks)
{
    int64_t rows = type_rows(x);
    int64_t each = rows ? lm_head_chunk_rows(rows, dtype_bytes(x->dtype, vocab), true, least_chunks) : 1;
    return (rows + each - 1) / each;
}

/* Whether the chunks' sum is made in fp32 apart from dw, which is of `dw` and rounds each time that it is added to. */
static inline bool lm_head_sums_apart(const TensorType *x, int64_t vocab, DType dw, const LmHeadBwdAttrs *attrs)
{
    return attrs->sum_f32 && dw != DT_F32 && lm_head_num_sums(x, vocab, attrs->chunks) > 1;
}
