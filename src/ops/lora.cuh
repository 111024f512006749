/* What lora_add and lora_add_bwd share on CUDA: a matrix product a member for cuBLASLt, and where members lie for the kernels
 * that serve all of them at once. */
#pragma once

#include "device/cuda/gemm.h"
#include "device/device.h"
#include "ops/attrs.h"

enum { LORA_GEMM_WORKSPACE = GPU_GEMM_WORKSPACE };

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

/* ---- kernels over slabs: a slab is up to SLAB columns of one member ---- */

typedef struct LoraLayout {
    int64_t tokens, y_stride, h_stride, b_rows; /* b_rows: of all members */
    float   alpha;
    int     members, r, num_slabs;
    int     rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS], first[LORA_MAX_MEMBERS] /* row of b */, slab[LORA_MAX_MEMBERS];
} LoraLayout;

static inline LoraLayout lora_layout(const LoraAttrs *attrs, const TensorType *y, const TensorType *h, const TensorType *b,
                                     int slab_cols)
{
    LoraLayout l = {};
    l.tokens = type_rows(y), l.y_stride = type_cols(y), l.h_stride = type_cols(h), l.b_rows = b->dim[0];
    l.alpha = (float)attrs->alpha;
    l.members = lora_members(attrs), l.r = (int)type_cols(b);
    for (int m = 0, first = 0; m < l.members; m++) {
        l.rows[m] = (int)attrs->rows[m], l.col[m] = (int)attrs->col[m];
        l.first[m] = first, l.slab[m] = l.num_slabs;
        first += l.rows[m];
        l.num_slabs += (int)cuda_div_up(l.rows[m], slab_cols);
    }
    return l;
}

/* Whether ranks and alignments are those of the mma kernels: 16-byte packs of y, h and b lie within a member. */
static inline bool lora_mma_fits(const LoraAttrs *attrs, const TensorType *y, const TensorType *b)
{
    int64_t r = type_cols(b);
    bool    fits = (r == 8 || r == 16 || r == 32 || r == 64) && type_cols(y) % 8 == 0 && type_cols(y) < INT32_MAX;
    for (int m = 0; m < lora_members(attrs); m++) fits = fits && attrs->rows[m] % 8 == 0 && attrs->col[m] % 8 == 0;
    return fits;
}

static __device__ __forceinline__ int lora_member_of_slab(const LoraLayout &l, int slab)
{
    int m = 0;
    while (m + 1 < l.members && slab >= l.slab[m + 1]) m++;
    return m;
}

/* Runs the statement with R the rank: LORA_RANK(layout.r, launch<R>(...)). */
#define LORA_RANK(r, ...) \
    do { \
        if ((r) == 8) { \
            enum { R = 8 }; \
            __VA_ARGS__; \
        } else if ((r) == 16) { \
            enum { R = 16 }; \
            __VA_ARGS__; \
        } else if ((r) == 32) { \
            enum { R = 32 }; \
            __VA_ARGS__; \
        } else { \
            enum { R = 64 }; \
            __VA_ARGS__; \
        } \
    } while (0)
