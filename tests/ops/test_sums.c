/* Sums over many elements, in several chunks, against fp64: what the generic test can only compare with themselves. */
#include "ops/op_case.h"

static OpCase summed(const OpDef *op, TensorType type)
{
    OpCase     c;
    TensorType in[NODE_MAX_IN] = {type};
    int        ranges[NODE_MAX_IN] = {0};
    RunOptions run = {.want = ~0u, .poison = 0xFF};
    EXPECT_OK(op_case_make(&c, op, NULL, in));
    op_case_fill(&c, 3, ranges);
    EXPECT_OK(op_case_run(&c, &op->cpu[0], &run, op->name));
    return c;
}

static void sum_squares_of_several_tasks(void)
{
    for (DType dtype = DT_F32; dtype <= DT_BF16; dtype++) {
        TensorType type = type_make(dtype, 1, INT64_C(200003));
        OpCase     c = summed(&op_sum_squares, type);
        double     want = 0;
        for (int64_t i = 0; i < type.dim[0]; i++) want += pow(element(&type, c.in[0].data, i), 2);
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
            double want = 0, got = element(&c.all_out[0]->type, c.out[0].data, col);
            for (int64_t row = 0; row < 5000; row++) want += element(&type, c.in[0].data, row * 37 + col);
            EXPECT_NEAR(got, want, dtype == DT_F32 ? 1e-4 : fabs(want) / 256);
        }
        op_case_free(&c);
    }
}

TEST_MAIN(TEST(sum_squares_of_several_tasks), TEST(col_sum_of_several_chunks))
