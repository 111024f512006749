/* How a GPU divides the output head's rows into chunks: by shapes alone, so that kernels and plans agree. */
#pragma once

#include "device/device.h"
#include "ops/attrs.h"

/* Rows of each chunk but the last. It is a multiple of 128; a chunk's logits take at most 1 GiB; chunks have nearly one size. Each chunk
 * reads and writes all of dw. Without dw (a frozen head) chunks cost next to nothing, and their logits take at most 384 MiB. least_chunks:
 * the least number of chunks, lowered so that a chunk has at least 1,024 rows: with fewer rows, reading and writing
 * dw would take longer than the products. */
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

/* Bytes of the head's workspace on a GPU: a chunk's logits in x's dtype, and scratch of a product. x (...,C). */
static inline size_t lm_head_gpu_workspace(const TensorType *x, int64_t vocab, bool has_dw, int64_t least_chunks)
{
    int64_t rows = type_rows(x), row_bytes = dtype_bytes(x->dtype, vocab);
    return GPU_GEMM_WORKSPACE + (size_t)(lm_head_chunk_rows(rows, row_bytes, has_dw, least_chunks) * row_bytes);
}

/* How many sums are added to dw in one micro-batch: one for each chunk. x (...,C). */
static inline int64_t lm_head_num_sums(const TensorType *x, int64_t vocab, int64_t least_chunks)
{
    int64_t rows = type_rows(x);
    int64_t each = rows ? lm_head_chunk_rows(rows, dtype_bytes(x->dtype, vocab), true, least_chunks) : 1;
    return (rows + each - 1) / each;
}

/* Whether chunks are summed in fp32 in the workspace, because dw, of dtype `dw`, would round at each addition. */
static inline bool lm_head_sums_apart(const TensorType *x, int64_t vocab, DType dw, const LmHeadBwdAttrs *attrs)
{
    return attrs->sum_f32 && dw != DT_F32 && lm_head_num_sums(x, vocab, attrs->chunks) > 1;
}
