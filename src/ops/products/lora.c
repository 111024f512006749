/* See lora.h. */
#include "ops/products/lora.h"

static Status check_member(const LoraAttrs *attrs, int m, int64_t least_col, int64_t cols)
{
    long long rows = (long long)attrs->rows[m], col = (long long)attrs->col[m];
    FAIL_IF(rows < 1 || col < least_col || col > cols || rows > cols - col, ERR_INVALID,
            "member %d has %lld rows at column %lld: expected some within columns %lld to %lld", m, rows, col, (long long)least_col,
            (long long)cols);
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
    FAIL_IF(type_rows(y) != type_rows(h), ERR_INVALID, "%s has %lld rows and h %lld, expected the same", y_name, (long long)type_rows(y),
            (long long)type_rows(h));
    FAIL_IF(type_cols(h) % members, ERR_INVALID, "h has %lld columns, expected a multiple of %d: as many a member", (long long)type_cols(h),
            members);
    return infer_input(node, 2, "b", DT_SET_FLOAT, DIMS(rows, type_cols(h) / members));
}
