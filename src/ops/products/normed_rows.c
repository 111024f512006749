#include "ops/products/normed_rows.h"

#include "ops/elementwise/gelu.h"
#include "ops/ops.h"
#include "ops/products/gemm.h"

#include <math.h>

Status rows_infer_norm(Node *node, int norm)
{
    const TensorType *x = &node->in[0]->type;
    FAIL_IF(node->in[norm + 1] && !node->in[norm], ERR_INVALID, "a residual is there, and no norm that reads the sum");
    if (node->in[norm]) TRY(infer_input(node, norm, "norm", DT_SET_DECODE, DIMS(type_cols(x))));
    if (node->in[norm + 1]) TRY(infer_like(node, norm + 1, "residual", DT_SET(x->dtype), x));
    node->out[ROWS_SUM]->type = node->in[norm + 1] ? *x : (TensorType){0};
    return OK;
}

Status rows_make_norm(const KernelArgs *args, int norm, double eps, double offset)
{
    RowsNormed   normed = rows_normed(args, norm);
    RmsNormAttrs attrs = {eps, offset, 0, 0};
    KernelArgs   made = *args;
    TensorView   in[NODE_MAX_IN] = {normed.x, args->in[norm]}, out[NODE_MAX_OUT] = {normed.y};
    made.in = in, made.out = out, made.attrs = &attrs;
    made.num_in = 2, made.num_out = 2;
    if (!rows_is_sum(args, norm)) return op_rms_norm.cpu[0].run(&made);
    in[1] = args->in[norm + 1], in[2] = args->in[norm];
    out[0] = normed.sum, out[1] = normed.y;
    made.num_in = 3, made.num_out = 3;
    return op_add_rms_norm.cpu[0].run(&made);
}

void rows_gate(const TensorView *y, const void *packed, bool gelu)
{
    DType   dtype = y->type.dtype;
    int64_t cols = type_cols(&y->type);
    for (int64_t row = 0; row < type_rows(&y->type); row++)
        for (int64_t c = 0; c < cols; c++) {
            float g = vec_get(packed, dtype, row * 2 * cols + c), u = vec_get(packed, dtype, row * 2 * cols + cols + c);
            float h = g / (1.0f + expf(-(gelu ? gelu_argument(g) : g))) * u;
            dtype_encode(dtype, &h, 1, (char *)y->data + dtype_bytes(dtype, row * cols + c));
        }
}
