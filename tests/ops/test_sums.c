/* Sums over many elements, in several chunks, compared with fp64. The generic test can only compare them with each other. */
#include "ops/op_case.h"

static OpCase summed(const OpDef *op, TensorType type)
{
    OpCase     c;
    TensorType in[NODE_MAX_IN] = {type};
    int        ranges[NODE_MAX_IN] = {0};
    EXPECT_OK(op_case_make(&c, op, NULL, in));
    op_case_fill(&c, 3, ranges);
    EXPECT_OK(op_case_run(&c, &op->cpu[0], 1, op->name));
    return c;
}

static void sum_squares_of_several_tasks(void)
{
    for (DType dtype = DT_F32; dtype <= DT_BF16; dtype++) {
        TensorType type = type_make(dtype, 1, INT64_C(200003));
        OpCase     c = summed(&op_sum_squares, type);
        double     want = 0;
        for (int64_t i = 0; i < type.dim[0]; i++) want += pow(tensor_element(&type, c.in[0].data, i), 2);
        EXPECT_NEAR(*(float *)(void *)c.out[0].data / want, 1, 1e-6);
        op_case_free(&c);
    }
}

static void col_sum_of_several_chunks(void)
{
    for (DType dtype = DT_F32; dtype <= DT_BF16; dtype++) {
        TensorType type = type_make(dtype, 2, INT64_C(5000), INT64_C(37));
        OpCase     c = summed(&op_col_sum, type);
        for (int64_t col = 0; col < 37; col++) {
            double want = 0, got = tensor_element(&c.all_out[0]->type, c.out[0].data, col);
            for (int64_t row = 0; row < 5000; row++) want += tensor_element(&type, c.in[0].data, row * 37 + col);
            EXPECT_NEAR(got, want, dtype == DT_F32 ? 1e-4 : fabs(want) / 256);
        }
        op_case_free(&c);
    }
}

/* Bytes of workspace on a GPU, as a plan that is made without a GPU counts them. */
static size_t gpu_bytes(const OpDef *op, const void *attrs, const TensorType *in)
{
    OpCase c;
    EXPECT_OK(op_case_make(&c, op, attrs, in));
    size_t bytes = op->gpu_workspace ? op->gpu_workspace(c.node, 90) : 0;
    op_case_free(&c);
    return bytes;
}

/* Partial sums: at most 1,024 chunks of rows, with one fp32 number for each column. */
static void plans_count_partial_sums(void)
{
    TensorType wide = type_make(DT_BF16, 2, INT64_C(5000), INT64_C(6144)), column = type_make(DT_BF16, 1, INT64_C(6144));
    TensorType rows = type_make(DT_F32, 1, INT64_C(5000)), few = type_make(DT_BF16, 2, INT64_C(10), INT64_C(6144));
    EXPECT_INT(gpu_bytes(&op_col_sum, NULL, (TensorType[NODE_MAX_IN]){wide}), 1000 * 6144 * 4);
    EXPECT_INT(gpu_bytes(&op_col_sum, NULL, (TensorType[NODE_MAX_IN]){few}), 10 * 6144 * 4);
    EXPECT_INT(gpu_bytes(&op_rms_norm_bwd, NULL, (TensorType[NODE_MAX_IN]){wide, wide, column, rows}), 1000 * 6144 * 4);
    EXPECT_INT(gpu_bytes(&op_layer_norm_bwd, NULL, (TensorType[NODE_MAX_IN]){wide, wide, column, rows, rows}), 2 * 1000 * 6144 * 4);
    TensorType flat = type_make(DT_BF16, 1, INT64_C(30720000));
    EXPECT_INT(gpu_bytes(&op_sum_squares, NULL, (TensorType[NODE_MAX_IN]){flat}), 938 * 8);
}

TEST_MAIN(TEST(sum_squares_of_several_tasks), TEST(col_sum_of_several_chunks), TEST(plans_count_partial_sums))
