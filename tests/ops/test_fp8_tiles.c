/* fp8_tiles_quantise and fp8_tiles_dequantise: checks beyond the generic tests. */
#include "ops/op_case.h"

enum { ROWS = 130, COLS = 259, TILES = 6 };

/* Quantises x (ROWS,COLS) to codes and scales, and makes the weight from them. */
static void there_and_back(const float *x, OpCase *q, OpCase *d)
{
    TensorType type = type_make(DT_F32, 2, (int64_t)ROWS, (int64_t)COLS);
    EXPECT_OK(op_case_make(q, &op_fp8_tiles_quantise, NULL, &type));
    memcpy(q->in[0].data, x, q->in[0].bytes);
    EXPECT_OK(op_case_run(q, &op_fp8_tiles_quantise.cpu[0], 1, "quantise"));
    TensorType types[NODE_MAX_IN] = {q->all_out[0]->type, q->all_out[1]->type};
    EXPECT_OK(op_case_make(d, &op_fp8_tiles_dequantise, NULL, types));
    for (int k = 0; k < 2; k++) memcpy(d->in[k].data, q->out[k].data, d->in[k].bytes);
    EXPECT_OK(op_case_run(d, &op_fp8_tiles_dequantise.cpu[0], 1, "dequantise"));
}

static void free_both(OpCase *q, OpCase *d)
{
    op_case_free(q);
    op_case_free(d);
}

static float drawn(int i)
{
    return ldexpf((float)((uint32_t)i * 2654435761u >> 8) / 8388608.0f - 1, i % 7 - 3);
}

/* If one element of a tile isn't finite, no element of that tile comes back finite. The other tiles do. */
static void what_is_not_finite_stays_visible(void)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    static float       x[ROWS * COLS];
    for (int k = 0; k < 4; k++) {
        OpCase q, d;
        for (int i = 0; i < ROWS * COLS; i++) x[i] = drawn(i);
        x[7 * COLS + 130] = bad[k];
        there_and_back(x, &q, &d);
        for (int i = 0; i < ROWS * COLS; i++)
            EXPECT(isfinite(((const float *)(void *)d.out[0].data)[i]) == (i / COLS >= 128 || i % COLS / 128 != 1));
        free_both(&q, &d);
    }
}

/* Tiles of zeros, of values too small for a scale, and of the largest values. */
static void any_magnitude_comes_back(void)
{
    static const float size[TILES] = {0, 1e-44f, 1e-38f, 3e38f, 1, 448};
    static float       x[ROWS * COLS];
    OpCase             q, d;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = fmaxf(-1, fminf(1, drawn(i))) * size[i / COLS / 128 * 3 + i % COLS / 128];
    there_and_back(x, &q, &d);
    const float *scale = (const float *)(void *)q.out[1].data, *w = (const float *)(void *)d.out[0].data;
    EXPECT(scale[0] == 1 && scale[1] == 1);
    for (int i = 0; i < ROWS * COLS; i++) {
        int tile = i / COLS / 128 * 3 + i % COLS / 128;
        EXPECT_NEAR(w[i], x[i], fmaxf(fmaxf(fabsf(x[i]) / 16, size[tile] * 0x1p-17f), 2e-44f));
    }
    free_both(&q, &d);
}

/* Runs a case of the op with these types. Its inputs are x and the outputs of the case `from`. */
static OpCase multiply(const OpDef *op, const TensorType *types, const OpCase *from, const float *x, int64_t rows)
{
    OpCase c;
    EXPECT_OK(op_case_make(&c, op, NULL, types));
    c.node->flags |= NODE_ROWS_ALONE;
    dtype_encode(types[0].dtype, x, rows * COLS, c.in[0].data);
    for (int k = 1; k < c.node->num_in; k++)
        if (c.in[k].data) memcpy(c.in[k].data, from->out[k - 1].data, c.in[k].bytes);
    EXPECT_OK(op_case_run(&c, &op->cpu[0], 1, "multiply"));
    return c;
}

/* Products with codes have the bits of products with the dequantised weight, in either dtype. */
static void products_are_those_of_the_weight(void)
{
    static const DType dtypes[] = {DT_F32, DT_BF16};
    static float       x[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) x[i] = drawn(i);
    for (size_t t = 0; t < 2; t++)
        for (int64_t rows = 1; rows <= 9; rows += 8) {
            DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(dtypes[t])};
            OpCase          q, d;
            there_and_back(x, &q, &d);
            TensorType of_x = type_make(dtypes[t], 2, rows, (int64_t)COLS), parts[NODE_MAX_IN] = {q.all_out[0]->type, q.all_out[1]->type};
            op_case_free(&d);
            EXPECT_OK(op_case_make(&d, &op_fp8_tiles_dequantise, &attrs, parts));
            for (int k = 0; k < 2; k++) memcpy(d.in[k].data, q.out[k].data, d.in[k].bytes);
            EXPECT_OK(op_case_run(&d, &op_fp8_tiles_dequantise.cpu[0], 1, "dequantise"));
            OpCase made = multiply(&op_linear, (const TensorType[NODE_MAX_IN]){of_x, d.all_out[0]->type}, &d, x, rows);
            OpCase coded = multiply(&op_fp8_tiles_linear, (const TensorType[NODE_MAX_IN]){of_x, parts[0], parts[1]}, &q, x, rows);
            EXPECT(memcmp(made.out[0].data, coded.out[0].data, made.out[0].bytes) == 0);
            op_case_free(&made);
            op_case_free(&coded);
            free_both(&q, &d);
        }
}

static void wrong_scales_are_refused(void)
{
    static const DequantiseAttrs to_f16 = {.dtype = DTYPE_TO_ATTR(DT_F16)};
    const TensorType             good[NODE_MAX_IN] = {type_make(DT_E4M3, 2, (int64_t)ROWS, (int64_t)COLS),
                                                      type_make(DT_F32, 2, INT64_C(2), INT64_C(3))};
    TensorType                   short_scale[NODE_MAX_IN] = {good[0], type_make(DT_F32, 2, INT64_C(1), INT64_C(3))};
    OpCase                       c;
    EXPECT_FAILS(op_case_make(&c, &op_fp8_tiles_dequantise, &to_f16, good), ERR_INVALID, "dtype is f16; expected f32 or bf16");
    op_case_free(&c);
    EXPECT_FAILS(op_case_make(&c, &op_fp8_tiles_dequantise, NULL, short_scale), ERR_INVALID, "scale is f32[1,3]");
    op_case_free(&c);
}

TEST_MAIN(TEST(what_is_not_finite_stays_visible), TEST(any_magnitude_comes_back), TEST(products_are_those_of_the_weight),
          TEST(wrong_scales_are_refused))
