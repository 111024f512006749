/* What lora_add and lora_add_bwd share on CUDA: a matrix product a member, by cuBLASLt. */
#pragma once

#include "device/cuda/gemm.h"
#include "ops/attrs.h"

enum { LORA_GEMM_WORKSPACE = 32 << 20 }; /* CUDA_GEMM_WORKSPACE of device/cuda/cuda.h, which is C */

/* ADD: y += alpha h b^T. DH: h = alpha y b. DB: b = alpha y^T h. */
typedef enum LoraProduct { LORA_ADD, LORA_DH, LORA_DB } LoraProduct;

/* The members' products on these tensors (data NULL while nodes are bound). Returns how many. */
static inline int lora_gemms(LoraProduct product, const LoraAttrs *attrs, const TensorView *y, const TensorView *h,
                             const TensorView *b, CudaGemm *out)
{
    const TensorView *operands[3][3] = {{h, b, y}, {y, b, h}, {y, h, b}}; /* a, b, c by product */
    int64_t           tokens = type_rows(&y->type), r = type_cols(&b->type), first = 0;
    int               members = lora_members(attrs);
    for (int m = 0; m < members; first += attrs->rows[m++]) {
        int64_t rows = attrs->rows[m], at_y = attrs->col[m], at_h = m * r, at_b = first * r;
        int64_t dims[3][3] = {{tokens, rows, r}, {tokens, r, rows}, {rows, r, tokens}};
        int64_t offsets[3][3] = {{at_h, at_b, at_y}, {at_y, at_b, at_h}, {at_y, at_h, at_b}};
        const TensorView *const *t = operands[product];
        CudaGemm                 g = {};
        g.m = dims[product][0], g.n = dims[product][1], g.k = dims[product][2];
        g.trans_a = product == LORA_DB, g.trans_b = g.accumulate = product == LORA_ADD;
        g.alpha = (float)attrs->alpha;
        g.a_dtype = t[0]->type.dtype, g.b_dtype = t[1]->type.dtype, g.c_dtype = t[2]->type.dtype;
        g.a_stride = type_cols(&t[0]->type), g.b_stride = type_cols(&t[1]->type), g.c_stride = type_cols(&t[2]->type);
        g.a_offset = offsets[product][0], g.b_offset = offsets[product][1], g.c_offset = offsets[product][2];
        g.a = t[0]->data, g.b = t[1]->data, g.c = t[2]->data;
        out[m] = g;
    }
    return members;
}

static inline TensorView lora_view(const Value *value)
{
    TensorView view = {};
    view.type = value->type;
    return view;
}

static inline bool lora_gemms_supported(CudaDevice *device, const CudaGemm *gemms, int count)
{
    for (int i = 0; i < count; i++)
        if (!cuda_gemm_supported(device, &gemms[i])) return false;
    return true;
}

static inline Status lora_gemms_prepare(const KernelArgs *args, const CudaGemm *gemms, int count)
{
    for (int i = 0; i < count; i++)
        TRY(cuda_gemm_prepare((CudaDevice *)args->device, &gemms[i], args->workspace, args->workspace_bytes));
    return OK;
}

static inline Status lora_gemms_run(const KernelArgs *args, const CudaGemm *gemms, int count)
{
    for (int i = 0; i < count; i++)
        TRY(cuda_gemm_run((CudaDevice *)args->device, &gemms[i], args->workspace, args->workspace_bytes, args->stream));
    return OK;
}

static inline Status lora_gemms_plain(const KernelArgs *args, const CudaGemm *gemms, int count)
{
    for (int i = 0; i < count; i++) TRY(cuda_gemm_plain(&gemms[i], args->stream));
    return OK;
}
