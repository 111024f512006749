/* See lora.h. */
#include "ops/products/lora.h"

Status lora_check_members(const int64_t rows[LORA_MAX_MEMBERS], const int64_t col[LORA_MAX_MEMBERS], int64_t y_cols, int64_t *out_rows)
{
    int64_t least_col = 0;
    *out_rows = 0;
    for (int m = 0; m < lora_count(rows) || m == 0; m++) {
        FAIL_IF(rows[m] < 1 || col[m] < least_col || col[m] > y_cols || rows[m] > y_cols - col[m], ERR_INVALID,
                "member %d has %lld rows at column %lld: expected some within columns %lld to %lld", m, (long long)rows[m],
                (long long)col[m], (long long)least_col, (long long)y_cols);
        least_col = col[m] + rows[m];
        *out_rows += rows[m];
    }
    return OK;
}

Status lora_infer(const Node *node, const char *y_name)
{
    const LoraAttrs *attrs = node->attrs;
    int              members = lora_members(attrs);
    TRY(infer_float(node, 0, y_name, 2));
    TRY(infer_float(node, 1, "h", 2));
    const TensorType *y = &node->in[0]->type, *h = &node->in[1]->type;
    int64_t           rows;
    TRY(lora_check_members(attrs->rows, attrs->col, type_cols(y), &rows));
    FAIL_IF(type_rows(y) != type_rows(h), ERR_INVALID, "%s has %lld rows and h %lld, expected the same", y_name, (long long)type_rows(y),
            (long long)type_rows(h));
    FAIL_IF(type_cols(h) % members, ERR_INVALID, "h has %lld columns, expected a multiple of %d: as many a member", (long long)type_cols(h),
            members);
    return infer_input(node, 2, "b", DT_SET_DECODE, DIMS(rows, type_cols(h) / members));
}
