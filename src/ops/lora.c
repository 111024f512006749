/* See lora.h. */
#include "ops/lora.h"

static Status check_member(const LoraAttrs *attrs, int m, int64_t least_col, int64_t cols)
{
    long long rows = (long long)attrs->rows[m], col = (long long)attrs->col[m];
    FAIL_IF(rows < 1 || col < least_col || col > cols || rows > cols - col, ERR_INVALID,
            "member %d has %lld rows at column %lld: expected some within columns %lld to %lld", m, rows, col,
            (long long)least_col, (long long)cols);
    return OK;
}

Status lora_infer(const Node *node, const char *y_name)
{
    const LoraAttrs *attrs = node->attrs;
    int              members = lora_members(attrs);
    TRY(infer_float(node, 0, y_name, 2));
    TRY(infer_float(node, 1, "h", 2));
    const TensorType *y = &node->in[0]->type, *h = &node->in[1]->type;
    int64_t           rows = 0, next_col = 0;
    for (int m = 0; m < members || m == 0; m++) {
        TRY(check_member(attrs, m, next_col, type_cols(y)));
        next_col = attrs->col[m] + attrs->rows[m];
        rows += attrs->rows[m];
    }
    FAIL_IF(type_rows(y) != type_rows(h), ERR_INVALID, "%s has %lld rows and h %lld, expected the same", y_name,
            (long long)type_rows(y), (long long)type_rows(h));
    FAIL_IF(type_cols(h) % members, ERR_INVALID, "h has %lld columns, expected a multiple of %d: as many a member",
            (long long)type_cols(h), members);
    return infer_input(node, 2, "b", DT_SET_FLOAT, DIMS(rows, type_cols(h) / members));
}

static const void *element(const TensorView *t, int64_t at)
{
    return t->data ? vec_at(t->data, t->type.dtype, at) : NULL;
}

static void *element_mut(const TensorView *t, int64_t at)
{
    return t->data ? vec_at_mut(t->data, t->type.dtype, at) : NULL;
}

int lora_gemms(LoraProduct product, const LoraAttrs *attrs, const TensorView *y, const TensorView *h, const TensorView *b,
               Gemm out[LORA_MAX_MEMBERS])
{
    int     members = lora_members(attrs);
    int64_t tokens = type_rows(&y->type), y_stride = type_cols(&y->type), h_stride = type_cols(&h->type), r = type_cols(&b->type);
    int64_t first = 0; /* row of b */
    for (int m = 0; m < members; m++) {
        int64_t     rows = attrs->rows[m], at_y = attrs->col[m], at_h = m * r, at_b = first * r;
        const DType dy = y->type.dtype, dh = h->type.dtype, db = b->type.dtype;
        first += rows;
        if (product == LORA_ADD)
            out[m] = (Gemm){ .m = tokens, .n = rows, .k = r, .trans_b = true, .accumulate = true,
                             .a = element(h, at_h), .b = element(b, at_b), .c = element_mut(y, at_y),
                             .a_dtype = dh, .b_dtype = db, .c_dtype = dy,
                             .a_stride = h_stride, .b_stride = r, .c_stride = y_stride };
        else if (product == LORA_DH)
            out[m] = (Gemm){ .m = tokens, .n = r, .k = rows,
                             .a = element(y, at_y), .b = element(b, at_b), .c = element_mut(h, at_h),
                             .a_dtype = dy, .b_dtype = db, .c_dtype = dh,
                             .a_stride = y_stride, .b_stride = r, .c_stride = h_stride };
        else
            out[m] = (Gemm){ .m = rows, .n = r, .k = tokens, .trans_a = true,
                             .a = element(y, at_y), .b = element(h, at_h), .c = element_mut(b, at_b),
                             .a_dtype = dy, .b_dtype = dh, .c_dtype = db,
                             .a_stride = y_stride, .b_stride = h_stride, .c_stride = r };
        out[m].alpha = (float)attrs->alpha;
    }
    return members;
}
