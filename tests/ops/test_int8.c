/* int8_quantise, int8_dequantise and int8_linear: checks beyond the generic tests. */
#include "ops/op_case.h"
#include "ops/products/coded_linear.h"

enum { ROWS = 5, COLS = 37, TOKENS = 70 };

static float drawn(int i)
{
    return ldexpf((float)((uint32_t)i * 2654435761u >> 8) / 8388608.0f - 1, i % 7 - 3);
}

static OpCase run_one(const OpDef *op, const void *attrs, const TensorType *types, const void *const *data)
{
    OpCase c;
    EXPECT_OK(op_case_make(&c, op, attrs, types));
    for (int k = 0; k < c.node->num_in; k++)
        if (data[k]) memcpy(c.in[k].data, data[k], c.in[k].bytes);
    EXPECT_OK(op_case_run(&c, &op->cpu[0], 1, "run"));
    return c;
}

static OpCase quantise(const float *x)
{
    TensorType type = type_make(DT_F32, 2, (int64_t)ROWS, (int64_t)COLS);
    return run_one(&op_int8_quantise, NULL, &type, (const void *const[NODE_MAX_IN]){x});
}

static OpCase dequantise(const OpCase *q)
{
    TensorType types[NODE_MAX_IN] = {q->all_out[0]->type, q->all_out[1]->type};
    return run_one(&op_int8_dequantise, NULL, types, (const void *const[NODE_MAX_IN]){q->out[0].data, q->out[1].data});
}

/* If one element of a row isn't finite, neither that row's elements nor products with it are finite. The other rows are. */
static void what_is_not_finite_stays_visible(void)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    static float       x[ROWS * COLS];
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < ROWS * COLS; i++) x[i] = drawn(i);
        x[2 * COLS + 9] = bad[k];
        OpCase     q = quantise(x), d = dequantise(&q);
        TensorType types[NODE_MAX_IN] = {type_make(DT_F32, 2, INT64_C(1), (int64_t)COLS), q.all_out[0]->type, q.all_out[1]->type};
        OpCase     y = run_one(&op_int8_linear, NULL, types, (const void *const[NODE_MAX_IN]){x, q.out[0].data, q.out[1].data});
        for (int i = 0; i < ROWS * COLS; i++) EXPECT(isfinite(((const float *)(void *)d.out[0].data)[i]) == (i / COLS != 2));
        for (int i = 0; i < ROWS; i++) EXPECT(isfinite(((const float *)(void *)y.out[0].data)[i]) == (i != 2));
        op_case_free(&y);
        op_case_free(&d);
        op_case_free(&q);
    }
}

/* Rows of zeros, of values too small for a scale, and of the largest values. */
static void any_magnitude_comes_back(void)
{
    static const float size[ROWS] = {0, 1e-44f, 1e-38f, 3e38f, 1};
    static float       x[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) x[i] = fmaxf(-1, fminf(1, drawn(i))) * size[i / COLS];
    OpCase        q = quantise(x), d = dequantise(&q);
    const float  *scale = (const float *)(void *)q.out[1].data, *w = (const float *)(void *)d.out[0].data;
    const int8_t *codes = (const int8_t *)q.out[0].data;
    EXPECT(scale[0] == 1 && scale[1] == 1);
    for (int i = 0; i < ROWS * COLS; i++) {
        EXPECT(codes[i] >= -127);
        EXPECT_NEAR(w[i], x[i], fmaxf(size[i / COLS] / 253, 2e-44f));
    }
    op_case_free(&d);
    op_case_free(&q);
}

/* Products of many rows (by tiles) and of single rows (by dot products) equal products with the decoded matrix. */
static void products_are_those_of_the_matrix(void)
{
    static float x[ROWS * COLS], a[TOKENS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) x[i] = drawn(i);
    for (int i = 0; i < TOKENS * COLS; i++) a[i] = drawn(3 * i);
    OpCase       q = quantise(x), d = dequantise(&q);
    const float *w = (const float *)(void *)d.out[0].data;
    for (int rows = 1; rows <= TOKENS; rows += TOKENS - 1) {
        TensorType   types[NODE_MAX_IN] = {type_make(DT_F32, 2, (int64_t)rows, (int64_t)COLS), q.all_out[0]->type, q.all_out[1]->type};
        OpCase       y = run_one(&op_int8_linear, NULL, types, (const void *const[NODE_MAX_IN]){a, q.out[0].data, q.out[1].data});
        const float *sums = (const float *)(void *)y.out[0].data;
        for (int i = 0; i < rows * ROWS; i++) {
            double sum = 0, most = 0;
            for (int k = 0; k < COLS; k++) {
                double term = (double)a[i / ROWS * COLS + k] * (double)w[i % ROWS * COLS + k];
                sum += term;
                most += fabs(term);
            }
            EXPECT_NEAR(sums[i], sum, 1e-6 * most);
        }
        op_case_free(&y);
    }
    op_case_free(&d);
    op_case_free(&q);
}

static void wrong_scales_are_refused(void)
{
    static const CodedLinearAttrs to_f16 = {.dtype = DTYPE_TO_ATTR(DT_F16)};
    const TensorType x = type_make(DT_F32, 2, INT64_C(3), (int64_t)COLS), codes = type_make(DT_I8, 2, (int64_t)ROWS, (int64_t)COLS);
    const TensorType scale = type_make(DT_F32, 1, (int64_t)ROWS), short_scale = type_make(DT_F32, 1, (int64_t)ROWS - 1);
    OpCase           c;
    EXPECT_FAILS(op_case_make(&c, &op_int8_linear, &to_f16, (const TensorType[NODE_MAX_IN]){x, codes, scale}), ERR_INVALID,
                 "dtype is f16; expected f32 or bf16");
    op_case_free(&c);
    EXPECT_FAILS(op_case_make(&c, &op_int8_linear, NULL, (const TensorType[NODE_MAX_IN]){x, codes, short_scale}), ERR_INVALID,
                 "scale is f32[4]");
    op_case_free(&c);
    EXPECT_FAILS(op_case_make(&c, &op_int8_dequantise, NULL, (const TensorType[NODE_MAX_IN]){codes, short_scale}), ERR_INVALID,
                 "scale is f32[4]");
    op_case_free(&c);
}

TEST_MAIN(TEST(what_is_not_finite_stays_visible), TEST(any_magnitude_comes_back), TEST(products_are_those_of_the_matrix),
          TEST(wrong_scales_are_refused))
