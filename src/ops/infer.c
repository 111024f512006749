/* Checks of an op's inputs, and sums of partial sums. */
#include "ops/infer.h"

#include "ops/lowbit/fp8.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/lowbit/nvfp4.h"

#include <stdio.h>

static void dims_text(char *buf, size_t size, int ndim, const int64_t *dims)
{
    size_t used = (size_t)snprintf(buf, size, "(");
    for (int i = 0; i < ndim && used < size; i++) {
        const char *comma = i ? ", " : "";
        if (dims[i] < 0)
            used += (size_t)snprintf(buf + used, size - used, "%sany", comma);
        else
            used += (size_t)snprintf(buf + used, size - used, "%s%lld", comma, (long long)dims[i]);
    }
    if (used < size) snprintf(buf + used, size - used, ")");
}

static Status check_dtype(const Node *node, int k, const char *name, DTypeSet dtypes)
{
    DType dtype = node->in[k]->type.dtype;
    if (DT_SET(dtype) & dtypes) return OK;
    FAIL_IF(dtypes == DT_SET_FLOAT, ERR_INVALID, "%s is %s, expected a float tensor (f32 or bf16)", name, dtype_info(dtype)->name);
    FAIL_IF(dtypes == DT_SET_DECODE, ERR_INVALID, "%s is %s, expected a float tensor (f32, bf16 or f16)", name, dtype_info(dtype)->name);
    DType want = (DType)__builtin_ctz(dtypes);
    FAIL(ERR_INVALID, "%s is %s, expected %s", name, dtype_info(dtype)->name, dtype_info(want)->name);
}

Status infer_input(const Node *node, int k, const char *name, DTypeSet dtypes, int ndim, const int64_t *dims)
{
    CHECK(node->in[k]);
    TRY(check_dtype(node, k, name, dtypes));
    const TensorType *type = &node->in[k]->type;
    bool              same = type->ndim == ndim;
    for (int i = 0; same && i < ndim; i++) same = dims[i] < 0 || dims[i] == type->dim[i];
    if (same) return OK;
    char got[64], want[128];
    dims_text(want, sizeof want, ndim, dims);
    FAIL(ERR_INVALID, "%s is %s, expected dims %s", name, type_text(type, got), want);
}

Status infer_like(const Node *node, int k, const char *name, DTypeSet dtypes, const TensorType *like)
{
    return infer_input(node, k, name, dtypes, like->ndim, like->dim);
}

Status infer_dw(const Node *node, int acc, const char *name, int64_t dw_dtype, TensorType *type)
{
    DType dtype = dw_dtype ? ATTR_TO_DTYPE(dw_dtype) : type->dtype;
    FAIL_IF(!(DT_SET(dtype) & DT_SET_FLOAT), ERR_INVALID, "attribute dw_dtype is %s, expected f32 or bf16", dtype_info(dtype)->name);
    type->dtype = dtype;
    if (!node->in[acc]) return OK;
    TRY(infer_like(node, acc, name, DT_SET_FLOAT, type));
    type->dtype = node->in[acc]->type.dtype;
    FAIL_IF(dw_dtype && type->dtype != dtype, ERR_INVALID, "%s is %s, but attribute dw_dtype says %s", name, dtype_info(type->dtype)->name,
            dtype_info(dtype)->name);
    return OK;
}

Status infer_float(const Node *node, int k, const char *name, int min_ndim)
{
    CHECK(node->in[k]);
    TRY(check_dtype(node, k, name, DT_SET_DECODE));
    char got[64];
    FAIL_IF(node->in[k]->type.ndim < min_ndim, ERR_INVALID, "%s is %s, expected at least %d dims", name, type_text(&node->in[k]->type, got),
            min_ndim);
    return OK;
}

bool codes_fit(const Node *node, const TensorType *rows, int64_t whole, uint32_t ins)
{
    bool fits = type_cols(rows) % whole == 0 && DT_SET(rows->dtype) & DT_SET_FLOAT;
    for (int k = 0; k < node->num_in; k++)
        if (ins >> k & 1 && node->in[k]) fits = fits && node->in[k]->type.dtype == rows->dtype;
    return fits;
}

/* Types of codes under one scale, [of the transposed codes], [of the largest magnitude]. */
static Status infer_scaled_codes(const Node *node, DType dtype, TensorType *out)
{
    const OpCodes    *c = &node->op->codes;
    const TensorType *y = &node->out[c->of]->type;
    const Value      *amax = node->in[c->scale + 1];
    FAIL_IF(!(DT_SET(dtype) & DT_SET_FP8), ERR_INVALID, "codes is %s; expected e4m3 or e5m2", dtype_info(dtype)->name);
    TRY(infer_input(node, c->scale, "scale", DT_SET_F32, DIMS(FP8_SCALE_FLOATS)));
    if (amax) TRY(infer_input(node, c->scale + 1, "amax", DT_SET_F32, DIMS(1)));
    out[0] = type_as(y, dtype);
    if (c->turns) out[1] = type_make(dtype, 2, type_cols(y), type_rows(y));
    if (amax) out[2] = amax->type;
    return OK;
}

static Status infer_block_codes(const Node *node, DType dtype, TensorType *out)
{
    const OpCodes    *c = &node->op->codes;
    const TensorType *y = &node->out[c->of]->type;
    FAIL_IF(dtype != DT_E4M3, ERR_INVALID, "codes is %s; expected e4m3, or a scale for all", dtype_info(dtype)->name);
    FAIL_IF(node->in[c->scale + 1], ERR_INVALID, "amax is that of codes under one scale, and there is no scale");
    out[0] = type_as(y, dtype);
    out[1] = type_make(DT_F32, 2, type_cols(y) / FP8_TILE, type_rows(y));
    return OK;
}

Status infer_eps(double eps)
{
    FAIL_IF(!(eps >= 0), ERR_INVALID, "attribute eps is %g, expected 0 or more", eps);
    return OK;
}

Status infer_codes(Node *node, int64_t codes)
{
    enum { MOST = 3 };
    const OpCodes *c = &node->op->codes;
    bool           scaled = node->in[c->scale] != NULL;
    int            whole = scaled ? FP8_WHOLE : FP8_TILE;
    TensorType     out[MOST] = {0};
    char           text[64];
    FAIL_IF(!codes && (scaled || node->in[c->scale + 1]), ERR_INVALID, "scale and amax are for codes, which attribute codes asks for");
    FAIL_IF(codes && !c->fits(node, whole), ERR_INVALID,
            "codes are made of rows of a multiple of %d numbers, all operands of one dtype; output %d is %s, or another operand differs",
            whole, c->of, type_text(&node->out[c->of]->type, text));
    if (codes) TRY((scaled ? infer_scaled_codes : infer_block_codes)(node, ATTR_TO_DTYPE(codes), out));
    for (int k = 0; k < MOST; k++) node->out[c->out + k]->type = out[k];
    return OK;
}

OpCost cost_streaming(const Node *node, double flops)
{
    OpCost cost = {.flops = flops};
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i]) cost.bytes += (double)type_bytes(&node->in[i]->type);
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) cost.bytes += (double)type_bytes(&node->out[k]->type);
    return cost;
}

void chunks_combine(const TensorView *out, bool accumulate, const float *partial, int64_t count, int64_t stride, int64_t cols)
{
    float sum[TILE];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        memcpy(sum, partial + c, (size_t)n * sizeof(float));
        for (int64_t k = 1; k < count; k++)
            for (int64_t i = 0; i < n; i++) sum[i] += partial[k * stride + c + i];
        if (accumulate)
            tile_add(out, c, sum, n);
        else
            tile_store(out, c, sum, n);
    }
}

Status infer_product(Node *node, int b, int bias, int acc)
{
    const TensorType        *a = &node->in[0]->type;
    const ScaledLinearAttrs *attrs = node->attrs;
    int64_t                  rows = node->in[b]->type.dim[0];
    TensorType               y = type_as(a, attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : DT_F32);
    if (node->in[bias]) TRY(infer_input(node, bias, "bias", DT_SET_FLOAT, DIMS(rows)));
    FAIL_IF(!(DT_SET(y.dtype) & DT_SET_FLOAT), ERR_INVALID, "dtype is %s; expected f32 or bf16", dtype_info(y.dtype)->name);
    y.dim[y.ndim - 1] = rows;
    if (node->in[acc]) {
        TRY(infer_like(node, acc, "acc", DT_SET_FLOAT, &y));
        y.dtype = node->in[acc]->type.dtype;
    }
    node->out[0]->type = y;
    return OK;
}

TensorType nvfp4_scale_type(const TensorType *codes, bool tiled)
{
    int64_t blocks = type_cols(codes) / NVFP4_BLOCK;
    if (tiled)
        return type_make(DT_E4M3, 3, nvfp4_tiles(type_rows(codes), NVFP4_TILE_ROWS), nvfp4_tiles(blocks, NVFP4_TILE_BLOCKS),
                         (int64_t)NVFP4_TILE_BYTES);
    TensorType scale = type_as(codes, DT_E4M3);
    scale.dim[scale.ndim - 1] = blocks;
    return scale;
}

Status infer_dequantised(const DequantiseAttrs *attrs, int64_t n, DType *out)
{
    int64_t sum = 0;
    bool    ended = false;
    *out = attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : DT_F32;
    FAIL_IF(!(DT_SET(*out) & DT_SET_FLOAT), ERR_INVALID, "dtype is %s; expected f32 or bf16", dtype_info(*out)->name);
    for (int m = 0; m < DEQUANTISE_MAX_MEMBERS; m++) {
        int64_t rows = attrs->rows[m];
        FAIL_IF(rows < 0 || rows > n - sum || (rows && ended), ERR_INVALID, "rows%d is %lld; expected members of %lld rows in all", m,
                (long long)rows, (long long)n);
        ended = !rows;
        sum += rows;
    }
    FAIL_IF(sum && sum != n, ERR_INVALID, "the members have %lld rows; expected %lld", (long long)sum, (long long)n);
    return OK;
}
