/* Definitions of products with codes that plans and CUDA share. */
#pragma once

#include "device/device.h"
#include "ops/products/normed_rows.h"

enum { CODED_NORM = CODED_BIAS + 1, CODED_RESIDUAL };

typedef struct CodedLinearAttrs {
    int64_t dtype; /* dtype of y; 0: x's dtype */
    bool    gated; /* y = silu(gate) * up, of packed gate and up, as in swiglu */
    bool    gelu;  /* gelu by tanh in place of silu */
    double  eps;   /* epsilon of the norm */
    double  offset;
} CodedLinearAttrs;

enum { CODED_FEW_ROWS = 64, CODED_WHOLE = 16 }; /* CODED_WHOLE: k is a multiple of this */

/* INT8_PIECE_ROWS: the most rows of y whose sums a GPU keeps at a time. */
enum { INT8_PIECE_ROWS = 512, INT8_ALIGN = 256 };

/* A GPU's scratch for many rows, as byte offsets: first the products' own scratch, then `numbers`, the codes decoded to x's dtype, then
 * `sums`. bytes: total size. */
typedef struct Int8Scratch {
    size_t numbers, sums, bytes;
} Int8Scratch;

static inline size_t int8_aligned(size_t bytes)
{
    return (bytes + INT8_ALIGN - 1) / INT8_ALIGN * INT8_ALIGN;
}

/* Returns the number of rows of the next piece. rows: how many rows are left. */
static inline int64_t int8_piece(int64_t rows)
{
    const int64_t most = INT8_PIECE_ROWS;
    return rows < most ? rows : most;
}

static inline Int8Scratch int8_scratch(const TensorType *x, const TensorType *codes)
{
    Int8Scratch s;
    s.numbers = int8_aligned(GPU_GEMM_WORKSPACE);
    s.sums = s.numbers + int8_aligned((size_t)dtype_bytes(x->dtype, type_numel(codes)));
    s.bytes = s.sums + int8_aligned((size_t)dtype_bytes(DT_F32, int8_piece(type_rows(x)) * codes->dim[0]));
    return s;
}

/* Whether a GPU multiplies one-byte codes without decoding them in scratch: few rows of bf16. */
static inline bool coded_rows_are_few(const TensorType *x, const TensorType *codes)
{
    return x->dtype == DT_BF16 && type_rows(x) <= CODED_FEW_ROWS && codes->dim[1] % CODED_WHOLE == 0;
}

/* Whether a norm or SwiGLU is fused into the product. */
static inline bool coded_is_fused(const KernelArgs *args)
{
    return ((const CodedLinearAttrs *)args->attrs)->gated || rows_is_normed(args, CODED_NORM);
}

/* Limits of codes (M,K) that GPUs of compute capability 9.0 multiply with one row of bf16 and a fused SwiGLU, or a fused norm. */
enum { CODED_ALONG = 128, CODED_MOST_NORMED = 8192, CODED_MOST_ALONG = 32768 };
static inline bool coded_gated_fits(const TensorType *codes)
{
    return codes->dim[0] % (2 * CODED_ALONG) == 0 && codes->dim[1] % CODED_ALONG == 0 && codes->dim[1] <= CODED_MOST_ALONG;
}
static inline bool coded_normed_fits(const TensorType *codes)
{
    return codes->dim[1] % CODED_ALONG == 0 && codes->dim[1] <= CODED_MOST_NORMED;
}
