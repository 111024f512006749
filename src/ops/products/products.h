/* The matrix products that ops consist of, for CPU and CUDA alike. A function op##_products reads the views of a launch. For a node
 * (node_args) the views' data are NULL, and it reads only their types. It returns the number of products: at most MAX_PRODUCTS. */
#pragma once

#include "device/gemm.h"
#include "ops/attrs.h"

enum { MAX_PRODUCTS = 2 * LORA_MAX_MEMBERS };

static inline bool view_wanted(const TensorView *view)
{
    return view->type.ndim > 0;
}

static inline bool is_constant(const KernelArgs *args, const GemmOperand *operand)
{
    for (int k = 0; k < args->num_in; k++)
        if (args->in[k].data == operand->data) return args->constant >> k & 1;
    return false;
}

/* Sets in each product the fields that come from the launch: rows_alone, early, b_constant. Returns count. */
static inline int products_note(const KernelArgs *args, Gemm *gemms, int count)
{
    for (int i = 0; i < count; i++) {
        gemms[i].rows_alone = args->rows_alone;
        gemms[i].early = args->early;
        gemms[i].b_constant = is_constant(args, &gemms[i].b);
    }
    return count;
}

/* y = x w^T + bias */
static inline int linear_products(const KernelArgs *args, Gemm *out)
{
    const TensorView *x = &args->in[0], *w = &args->in[1], *y = &args->out[0];
    *out = gemm_of(type_rows(&x->type), w->type.dim[0], w->type.dim[1], gemm_operand(x, false, 0), gemm_operand(w, true, 0),
                   gemm_operand(y, false, 0), 1, false);
    if (args->num_in < 3 || !view_wanted(&args->in[2])) return 1;
    out->epilogue = GEMM_BIAS;
    out->bias = gemm_operand(&args->in[2], false, 0);
    return 1;
}

/* y = x w^T + bias, z = x u^T: the products that are wanted */
enum { PAIR_X, PAIR_W, PAIR_U, PAIR_BIAS };
static inline int linear_pair_products(const KernelArgs *args, Gemm *out)
{
    const TensorView *x = &args->in[PAIR_X];
    int               count = 0;
    for (int k = 0; k < 2; k++) {
        const TensorView *w = &args->in[PAIR_W + k];
        if (!view_wanted(&args->out[k])) continue;
        out[count] = gemm_of(type_rows(&x->type), w->type.dim[0], w->type.dim[1], gemm_operand(x, false, 0), gemm_operand(w, true, 0),
                             gemm_operand(&args->out[k], false, 0), 1, false);
        if (k == 0 && args->num_in > PAIR_BIAS && view_wanted(&args->in[PAIR_BIAS])) {
            out[count].epilogue = GEMM_BIAS;
            out[count].bias = gemm_operand(&args->in[PAIR_BIAS], false, 0);
        }
        count++;
    }
    return count;
}

/* y = x w^T + bias, where w is kept as codes. int8_linear: y = scale * (x codes^T) + bias */
enum { CODED_X, CODED_W, CODED_SCALE, CODED_BIAS };
static inline int int8_linear_products(const KernelArgs *args, Gemm *out)
{
    const TensorView *x = &args->in[CODED_X], *codes = &args->in[CODED_W], *y = &args->out[0];
    *out = gemm_of(type_rows(&x->type), codes->type.dim[0], codes->type.dim[1], gemm_operand(x, false, 0), gemm_operand(codes, true, 0),
                   gemm_operand(y, false, 0), 1, false);
    out->b.scale = (const float *)args->in[CODED_SCALE].data;
    out->b.scaling = GEMM_SCALE_COLS;
    if (args->num_in <= CODED_BIAS || !view_wanted(&args->in[CODED_BIAS])) return 1;
    out->epilogue = GEMM_BIAS;
    out->bias = gemm_operand(&args->in[CODED_BIAS], false, 0);
    return 1;
}

/* fp8_tiles_linear: w is e4m3 codes with scales of tiles, and its elements are rounded to x's dtype. */
static inline int fp8_tiles_linear_products(const KernelArgs *args, Gemm *out)
{
    int count = int8_linear_products(args, out);
    out->b.scaling = GEMM_SCALE_TILES;
    out->b.scale_stride = type_cols(&args->in[CODED_SCALE].type);
    out->b.to_bf16 = args->in[CODED_X].type.dtype == DT_BF16;
    return count;
}

/* y = alpha a b^T + bias, of codes with one scale for each operand, stored after its inverse */
enum { SCALED_A, SCALED_B, SCALED_A_SCALE, SCALED_B_SCALE, SCALED_BIAS, SCALED_ACC };
static inline int scaled_linear_products(const KernelArgs *args, Gemm *out)
{
    const ScaledLinearAttrs *attrs = (const ScaledLinearAttrs *)args->attrs;
    const TensorView        *a = &args->in[SCALED_A], *b = &args->in[SCALED_B], *bias = &args->in[SCALED_BIAS], *y = &args->out[0];
    *out = gemm_of(type_rows(&a->type), b->type.dim[0], b->type.dim[1], gemm_operand(a, false, 0), gemm_operand(b, true, 0),
                   gemm_operand(y, false, 0), attrs->alpha, args->accumulate & 1);
    out->a.scale = (const float *)args->in[SCALED_A_SCALE].data;
    out->b.scale = (const float *)args->in[SCALED_B_SCALE].data;
    out->fast = attrs->fast;
    if (!view_wanted(bias)) return 1;
    out->epilogue = GEMM_BIAS;
    out->bias = gemm_operand(bias, false, 0);
    return 1;
}

/* block_linear: as scaled_linear, but a has a scale for each 1 x 128 codes, and b for each 128 x 128. */
static inline int block_linear_products(const KernelArgs *args, Gemm *out)
{
    const TensorView *a_scale = &args->in[SCALED_A_SCALE], *b_scale = &args->in[SCALED_B_SCALE];
    int               count = scaled_linear_products(args, out);
    out->a.scaling = GEMM_SCALE_ROWS;
    out->a.scale_stride = type_cols(&a_scale->type);
    out->b.scaling = GEMM_SCALE_TILES;
    out->b.scale_stride = type_cols(&b_scale->type);
    return count;
}

/* y = alpha a b^T + bias, where a and b are e2m1 codes with a scale for each block (stored in tiles) and a factor for the tensor */
enum { FP4_A, FP4_B, FP4_A_SCALE, FP4_B_SCALE, FP4_A_GLOBAL, FP4_B_GLOBAL, FP4_BIAS, FP4_ACC };
static inline int fp4_linear_products(const KernelArgs *args, Gemm *out)
{
    const ScaledLinearAttrs *attrs = (const ScaledLinearAttrs *)args->attrs;
    const TensorView        *in = args->in, *bias = &in[FP4_BIAS];
    *out = gemm_of(type_rows(&in[FP4_A].type), in[FP4_B].type.dim[0], in[FP4_B].type.dim[1], gemm_operand(&in[FP4_A], false, 0),
                   gemm_operand(&in[FP4_B], true, 0), gemm_operand(&args->out[0], false, 0), attrs->alpha, args->accumulate & 1);
    out->a.scale = (const float *)in[FP4_A_GLOBAL].data;
    out->b.scale = (const float *)in[FP4_B_GLOBAL].data;
    out->a.blocks = (const uint8_t *)in[FP4_A_SCALE].data;
    out->b.blocks = (const uint8_t *)in[FP4_B_SCALE].data;
    if (!view_wanted(bias)) return 1;
    out->epilogue = GEMM_BIAS;
    out->bias = gemm_operand(bias, false, 0);
    return 1;
}

/* y[:, col:col+M] += alpha x w^T */
static inline int linear_add_products(const KernelArgs *args, Gemm *out)
{
    const LinearAttrs *attrs = (const LinearAttrs *)args->attrs;
    const TensorView  *x = &args->in[1], *w = &args->in[2], *y = &args->out[0];
    *out = gemm_of(type_rows(&x->type), w->type.dim[0], w->type.dim[1], gemm_operand(x, false, 0), gemm_operand(w, true, 0),
                   gemm_operand(y, false, attrs->col), attrs->alpha, true);
    return 1;
}

/* dx = alpha dy[:, col:col+M] w */
static inline int linear_dx_products(const KernelArgs *args, Gemm *out)
{
    const LinearAttrs *attrs = (const LinearAttrs *)args->attrs;
    const TensorView  *dy = &args->in[0], *w = &args->in[1], *dx = &args->out[0];
    *out = gemm_of(type_rows(&dy->type), w->type.dim[1], w->type.dim[0], gemm_operand(dy, false, attrs->col), gemm_operand(w, false, 0),
                   gemm_operand(dx, false, 0), attrs->alpha, args->accumulate & 1);
    return 1;
}

/* dw = alpha dy[:, col:col+M]^T x */
static inline int linear_dw_products(const KernelArgs *args, Gemm *out)
{
    const LinearAttrs *attrs = (const LinearAttrs *)args->attrs;
    const TensorView  *dy = &args->in[0], *x = &args->in[1], *dw = &args->out[0];
    *out = gemm_of(attrs->rows, type_cols(&x->type), type_rows(&x->type), gemm_operand(dy, true, attrs->col), gemm_operand(x, false, 0),
                   gemm_operand(dw, false, 0), attrs->alpha, args->accumulate & 1);
    return 1;
}

/* ADD: y += alpha h b^T. DH: h = alpha y b. DB: b = alpha y^T h. One product a member, each on its columns of y and h and its
 * rows of b. */
typedef enum LoraProduct { LORA_ADD, LORA_DH, LORA_DB } LoraProduct;

static inline int lora_products(LoraProduct product, const LoraAttrs *attrs, const TensorView *y, const TensorView *h, const TensorView *b,
                                bool accumulate, Gemm *out)
{
    int     members = lora_members(attrs);
    int64_t tokens = type_rows(&y->type), r = type_cols(&b->type), first = 0; /* first: the member's first row of b */
    for (int m = 0; m < members; m++) {
        int64_t     rows = attrs->rows[m];
        GemmOperand y_m = gemm_operand(y, product == LORA_DB, attrs->col[m]), h_m = gemm_operand(h, false, m * r),
                    b_m = gemm_operand(b, product == LORA_ADD, first * r);
        if (product == LORA_ADD) out[m] = gemm_of(tokens, rows, r, h_m, b_m, y_m, attrs->alpha, accumulate);
        if (product == LORA_DH) out[m] = gemm_of(tokens, r, rows, y_m, b_m, h_m, attrs->alpha, accumulate);
        if (product == LORA_DB) out[m] = gemm_of(rows, r, tokens, y_m, h_m, b_m, attrs->alpha, accumulate);
        first += rows;
    }
    return members;
}

static inline int lora_add_products(const KernelArgs *args, Gemm *out)
{
    return lora_products(LORA_ADD, (const LoraAttrs *)args->attrs, &args->out[0], &args->in[1], &args->in[2], true, out);
}

/* The wanted products: dh's first, then db's. */
static inline int lora_add_bwd_products(const KernelArgs *args, Gemm *out)
{
    const LoraAttrs  *attrs = (const LoraAttrs *)args->attrs;
    const TensorView *dy = &args->in[0], *h = &args->in[1], *b = &args->in[2], *dh = &args->out[0], *db = &args->out[1];
    int               count = view_wanted(dh) ? lora_products(LORA_DH, attrs, dy, dh, b, false, out) : 0;
    if (view_wanted(db)) count += lora_products(LORA_DB, attrs, dy, h, db, args->accumulate >> 1 & 1, out + count);
    return count;
}

/* The output head's three products, for `rows` rows of x from `row` on; logits (rows, V). */
static inline Gemm head_logits_product(const TensorView *x, const TensorView *w, int64_t row, int64_t rows, const TensorView *logits)
{
    int64_t channels = type_cols(&x->type), vocab = w->type.dim[0];
    return gemm_of(rows, vocab, channels, gemm_operand(x, false, row * channels), gemm_operand(w, true, 0), gemm_operand(logits, false, 0),
                   1, false);
}

static inline Gemm head_dx_product(const TensorView *dlogits, const TensorView *w, int64_t row, int64_t rows, const TensorView *dx)
{
    int64_t channels = w->type.dim[1], vocab = w->type.dim[0];
    return gemm_of(rows, channels, vocab, gemm_operand(dlogits, false, 0), gemm_operand(w, false, 0),
                   gemm_operand(dx, false, row * channels), 1, false);
}

static inline Gemm head_dw_product(const TensorView *dlogits, const TensorView *x, int64_t row, int64_t rows, const TensorView *dw,
                                   bool accumulate)
{
    int64_t channels = type_cols(&x->type);
    return gemm_of(type_cols(&dlogits->type), channels, rows, gemm_operand(dlogits, true, 0), gemm_operand(x, false, row * channels),
                   gemm_operand(dw, false, 0), 1, accumulate);
}
