/* The ops of FP8 with one scale per tensor: codes and their transpose, saturation, scales that follow a history, and the three products of
 * a linear layer. */
#include "ops/lowbit/fp8.h"
#include "ops/lowbit/fp8_update.h"
#include "ops/op_case.h"
#include "ops/op_inputs.h"
#include "ops/products/products.h"

static const Fp8QuantiseAttrs  quantise_attrs[] = {{DTYPE_TO_ATTR(DT_E4M3)}, {DTYPE_TO_ATTR(DT_E5M2)}};
static const ScaledLinearAttrs to_bf16 = {.alpha = 1, .dtype = DTYPE_TO_ATTR(DT_BF16)}, to_f32 = {.alpha = 1};
static const TensorType        scale_type = {DT_F32, 1, {FP8_SCALE_FLOATS}}, one_type = {DT_F32, 1, {1}};

/* Runs the op on these inputs; NULL: an absent input. */
static OpCase run_op(const OpDef *op, const void *attrs, const TensorType *types, const void *const *data)
{
    OpCase c;
    EXPECT_OK(op_case_make(&c, op, attrs, types));
    for (int i = 0; i < op->num_in; i++)
        if (types[i].ndim) memcpy(c.in[i].data, data[i], c.in[i].bytes);
    EXPECT_OK(op_case_run(&c, &op->cpu[0], 1, op->name));
    return c;
}

static OpCase quantise(DType dtype, int64_t rows, int64_t cols, const float *x, float scale, float amax)
{
    float      scale_row[FP8_SCALE_FLOATS];
    TensorType types[NODE_MAX_IN] = {type_make(DT_F32, 2, rows, cols), scale_type, one_type};
    fp8_scale_set(scale_row, scale);
    return run_op(&op_fp8_quantise, &quantise_attrs[dtype == DT_E5M2], types, (const void *const[]){x, scale_row, &amax});
}

static float amax_of(const OpCase *c)
{
    return *(float *)(void *)c->out[2].data;
}

/* ---- codes ---- */

enum { MOST_X = 200 * 210 };

static void codes_are_rounded_products_in_both_layouts(void)
{
    static const int64_t sizes[][2] = {{1, 1}, {3, 70}, {64, 64}, {65, 128}, {130, 17}, {200, 210}};
    static float         x[MOST_X];
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        int64_t rows = sizes[s / 2][0], cols = sizes[s / 2][1];
        DType   dtype = s % 2 ? DT_E5M2 : DT_E4M3;
        float   most = 0;
        for (int64_t i = 0; i < rows * cols; i++) {
            x[i] = (float)draw_normal(s, (uint32_t)i);
            most = fmaxf(most, fabsf(x[i]));
        }
        OpCase  c = quantise(dtype, rows, cols, x, 37.3f, 0.125f);
        int64_t off = 0;
        for (int64_t i = 0; i < rows * cols; i++) {
            float   scaled = x[i] * 37.3f;
            uint8_t code;
            dtype_encode(dtype, &scaled, 1, &code);
            off += c.out[0].data[i] != code;
            off += c.out[1].data[i % cols * rows + i / cols] != code;
        }
        EXPECT_INT(off, 0);
        EXPECT(amax_of(&c) == fmaxf(0.125f, most));
        op_case_free(&c);
    }
}

/* A finite value that is too large becomes the largest code, even if its product with the scale overflows fp32. A value that isn't finite
 * becomes NaN, and isn't counted in the largest magnitude. */
static void what_is_too_large_saturates_and_what_is_not_finite_stays_visible(void)
{
    static const float x[] = {1e6f, -1e6f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN, -NAN, 0, -0.0f, 1e-30f, 1};
    for (int k = 0; k < 2; k++) {
        DType  dtype = k ? DT_E5M2 : DT_E4M3;
        float  got[12], most = fp8_most(dtype);
        OpCase c = quantise(dtype, 2, 6, x, 1000, 7);
        dtype_decode(dtype, c.out[0].data, 12, got);
        for (int i = 0; i < 4; i++) EXPECT(got[i] == (i % 2 ? -most : most));
        for (int i = 4; i < 8; i++) EXPECT(isnan(got[i]));
        EXPECT(got[8] == 0 && !signbit(got[8]) && got[9] == 0 && signbit(got[9]) && got[10] == 0);
        EXPECT(got[11] == (k ? 1024.0f : 448.0f));
        EXPECT(amax_of(&c) == 3e38f);
        op_case_free(&c);
    }
}

/* ---- scales ---- */

static OpCase own_scale(const Fp8OwnScaleAttrs *attrs, const float *x, int64_t count)
{
    float      old[FP8_SCALE_FLOATS];
    TensorType types[NODE_MAX_IN] = {type_make(DT_F32, 1, count), scale_type};
    fp8_scale_set(old, 4);
    return run_op(&op_fp8_own_scale, attrs, types, (const void *const[]){x, old});
}

static void expect_scale(const OpCase *c, float want)
{
    const float *scale = (const float *)(const void *)c->out[0].data;
    EXPECT(scale[FP8_SCALE] == want && scale[FP8_INVERSE] == 1 / want && scale[2] == 0 && scale[3] == 0);
}

static void a_tensors_own_scale_is_of_its_largest_magnitude(void)
{
    static const Fp8OwnScaleAttrs attrs[] = {{DTYPE_TO_ATTR(DT_E4M3), 0}, {DTYPE_TO_ATTR(DT_E5M2), 3}};
    static const struct {
        float largest, e4m3, e5m2;
    } cases[] = {
        {3.7f, 448 / 3.7f, 57344 / 3.7f / 8},
        {-1e-6f, 448 / 1e-6f, 57344 / 1e-6f / 8},
        {1e-42f, 0x1p126f, 0x1p126f},
        {0, 4, 4},
        {INFINITY, 4, 4},
        {NAN, 4, 4},
    };
    static float x[150000];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int k = 0; k < 2; k++) {
            for (int j = 0; j < 150000; j++) x[j] = cases[i].largest * (float)(j % 10) / 10;
            x[i % 2 ? 3 : 149999] = cases[i].largest;
            if (!isfinite(cases[i].largest))
                for (int j = 0; j < 149999; j++) x[j] = j == 3 ? cases[i].largest : 1;
            OpCase c = own_scale(&attrs[k], x, 150000);
            expect_scale(&c, k ? cases[i].e5m2 : cases[i].e4m3);
            op_case_free(&c);
        }
}

static void a_scale_and_its_inverse_are_normal_numbers(void)
{
    static const Fp8OwnScaleAttrs most = {.margin = 32};
    static const float            x[] = {1, 3e38f};
    OpCase                        c = own_scale(&most, x, 2);
    expect_scale(&c, 0x1p-126f);
    op_case_free(&c);
}

enum { STEPS = 50, ROWS = 7, TENSORS = 5 };

typedef struct Delayed {
    float   now[TENSORS], history[ROWS][TENSORS], scales[TENSORS][FP8_SCALE_FLOATS];
    int64_t count;
} Delayed;

static const float most_of[TENSORS] = {448, 448, 57344, 57344, 448};

/* The largest magnitudes of a step, with all the cases that can occur. */
static void draw_step(int step, float now[TENSORS])
{
    for (uint32_t i = 0; i < TENSORS; i++) now[i] = (float)exp(3 * draw_normal((uint64_t)step, i)) * (i == 2 ? 1e-9f : 1);
    if (step % 6 == 1) now[0] = 0;
    if (step % 11 == 2) now[1] = INFINITY;
    if (step % 13 == 3) now[2] = NAN;
    if (step >= 20 && step < 30) now[3] = 0; /* zero for longer than the history */
}

/* The formula of delayed scaling. */
static void model_step(Delayed *d, const Fp8UpdateAttrs *attrs, bool applied)
{
    if (applied) {
        float *row = d->history[d->count++ % ROWS];
        for (int i = 0; i < TENSORS; i++) {
            float amax = row[i] = isfinite(d->now[i]) ? d->now[i] : 0;
            for (int r = 0; r < ROWS && !attrs->most_recent; r++) amax = d->history[r][i] > amax ? d->history[r][i] : amax;
            if (amax == 0) continue;
            d->scales[i][FP8_SCALE] = most_of[i] / amax / (float)(1 << attrs->margin);
            d->scales[i][FP8_INVERSE] = 1 / d->scales[i][FP8_SCALE];
        }
    }
    memset(d->now, 0, sizeof d->now);
}

static const TensorType update_types[NODE_MAX_IN] = {{DT_F32, 1, {TENSORS}},
                                                     {DT_F32, 2, {ROWS, TENSORS}},
                                                     {DT_F32, 2, {TENSORS, FP8_SCALE_FLOATS}},
                                                     {DT_F32, 1, {TENSORS}},
                                                     {DT_F32, 1, {1}},
                                                     {DT_I64, 1, {1}}};

static void op_step(Delayed *d, const Fp8UpdateAttrs *attrs, bool applied)
{
    float flag = applied;
    d->count += applied;
    OpCase c = run_op(&op_fp8_update, attrs, update_types, (const void *const[]){d->now, d->history, d->scales, most_of, &flag, &d->count});
    memcpy(d->now, c.out[UPDATE_OUT_NOW].data, sizeof d->now);
    memcpy(d->history, c.out[UPDATE_OUT_HISTORY].data, sizeof d->history);
    memcpy(d->scales, c.out[UPDATE_OUT_SCALES].data, sizeof d->scales);
    op_case_free(&c);
}

static void scales_follow_the_history(void)
{
    static const Fp8UpdateAttrs ways[] = {{0}, {.margin = 2}, {.most_recent = true}, {.margin = 1, .most_recent = true}};
    for (int way = 0; way < 4; way++) {
        Delayed model = {0};
        for (int i = 0; i < TENSORS; i++) model.scales[i][FP8_SCALE] = model.scales[i][FP8_INVERSE] = 1;
        Delayed op = model;
        for (int step = 0; step < STEPS; step++) {
            bool applied = step % 9 != 4 && step != 17 && step != 18;
            draw_step(step, model.now);
            draw_step(step, op.now);
            model_step(&model, &ways[way], applied);
            op_step(&op, &ways[way], applied);
            if (memcmp(&model, &op, sizeof op) != 0) test_fail(__FILE__, __LINE__, "way %d differs from the model at step %d", way, step);
        }
    }
}

/* ---- products ---- */

enum { TOKENS = 48, IN = 336, OUT = 80 }; /* the weight is the largest of the three tensors */

/* Random values quantised with a power of two as scale, and their decoded values, which are exact. */
typedef struct Quantised {
    OpCase c;
    float  decoded[OUT * IN];
    float  scale[FP8_SCALE_FLOATS];
} Quantised;

static void quantised_make(Quantised *q, DType dtype, int64_t rows, int64_t cols, float unit, uint64_t key)
{
    static float x[OUT * IN];
    float        scale = 64 / unit;
    for (int64_t i = 0; i < rows * cols; i++) x[i] = unit * (float)draw_normal(key, (uint32_t)i);
    q->c = quantise(dtype, rows, cols, x, scale, 0);
    fp8_scale_set(q->scale, scale);
    dtype_decode(dtype, q->c.out[0].data, rows * cols, x);
    for (int64_t i = 0; i < rows * cols; i++) {
        q->decoded[i] = x[i] / scale;
        EXPECT(bf16_to_f32(bf16_from_f32(q->decoded[i])) == q->decoded[i]);
    }
}

/* Compares scaled_linear on codes, or on their transposes, with another op on the decoded values: the bits are the same; a bf16 result is
 * rounded once. */
static void expect_product(const Quantised *a, bool a_turned, const Quantised *b, bool b_turned, const ScaledLinearAttrs *attrs,
                           const OpDef *op, const void *op_attrs, const Quantised *first, const Quantised *second, const void *third,
                           TensorType third_type)
{
    bool       is_bias = op == &op_linear;
    TensorType types[NODE_MAX_IN] = {a->c.all_out[a_turned]->type, b->c.all_out[b_turned]->type, scale_type, scale_type};
    TensorType plain[NODE_MAX_IN] = {type_as(&first->c.all_out[0]->type, DT_F32), type_as(&second->c.all_out[0]->type, DT_F32), third_type};
    types[is_bias ? SCALED_BIAS : SCALED_ACC] = third_type;
    OpCase            got = run_op(&op_scaled_linear, attrs, types,
                                   (const void *const[]){a->c.out[a_turned].data, b->c.out[b_turned].data, a->scale, b->scale, third, third});
    OpCase            want = run_op(op, op_attrs, plain, (const void *const[]){first->decoded, second->decoded, third});
    const TensorType *type = &got.all_out[0]->type;
    static float      encoded[OUT * IN]; /* large enough for each dtype */
    TensorType        same = type_as(&want.all_out[0]->type, type->dtype);
    EXPECT(type_equal(type, &same));
    dtype_encode(type->dtype, (const float *)want.out[0].data, type_numel(type), encoded);
    if (memcmp(got.out[0].data, encoded, got.out[0].bytes) != 0)
        test_fail(__FILE__, __LINE__, "scaled_linear in place of %s: off by %.3g of the largest", op->name,
                  tensor_errors(type, got.out[0].data, type, encoded, 1e-30).most);
    op_case_free(&got);
    op_case_free(&want);
}

static void the_three_products_are_those_of_the_decoded_numbers(void)
{
    static const LinearAttrs dx_attrs = {.alpha = 1}, dw_attrs = {.alpha = 1, .rows = OUT};
    static Quantised         x, w, dy;
    static float             sum[OUT * IN];
    float                    bias[OUT];
    for (uint32_t i = 0; i < OUT * IN; i++) sum[i] = 1e-6f * (float)draw_normal(9, i);
    for (uint32_t i = 0; i < OUT; i++) bias[i] = (float)draw_normal(8, i);
    quantised_make(&x, DT_E4M3, TOKENS, IN, 1, 1);
    quantised_make(&w, DT_E4M3, OUT, IN, 0x1p-5f, 2);
    quantised_make(&dy, DT_E5M2, TOKENS, OUT, 0x1p-24f, 3);
    expect_product(&x, false, &w, false, &to_bf16, &op_linear, NULL, &x, &w, bias, type_make(DT_F32, 1, (int64_t)OUT));
    expect_product(&dy, false, &w, true, &to_bf16, &op_linear_dx, &dx_attrs, &dy, &w, NULL, (TensorType){0});
    expect_product(&dy, true, &x, true, &to_f32, &op_linear_dw, &dw_attrs, &dy, &x, sum, type_make(DT_F32, 2, (int64_t)OUT, (int64_t)IN));
    op_case_free(&x.c), op_case_free(&w.c), op_case_free(&dy.c);
}

/* ---- what is refused ---- */

static void expect_refused(const OpDef *op, const void *attrs, const TensorType *types, const char *part)
{
    OpCase c;
    EXPECT_FAILS(op_case_make(&c, op, attrs, types), ERR_INVALID, part);
    op_case_free(&c);
}

static void wrong_formats_and_margins_are_refused(void)
{
    static const Fp8QuantiseAttrs  to_u8 = {DTYPE_TO_ATTR(DT_U8)};
    static const Fp8OwnScaleAttrs  wide = {.margin = 33};
    static const Fp8UpdateAttrs    negative = {.margin = -1};
    static const ScaledLinearAttrs to_f16 = {.alpha = 1, .dtype = DTYPE_TO_ATTR(DT_F16)};
    const TensorType               x[NODE_MAX_IN] = {{DT_F32, 2, {3, 5}}, scale_type};
    const TensorType               codes[NODE_MAX_IN] = {{DT_E4M3, 2, {3, 5}}, {DT_E4M3, 2, {7, 5}}, scale_type, scale_type};
    const TensorType               floats[NODE_MAX_IN] = {{DT_F32, 2, {3, 5}}, {DT_E4M3, 2, {7, 5}}, scale_type, scale_type};
    expect_refused(&op_fp8_quantise, &to_u8, x, "dtype is u8; expected e4m3 or e5m2");
    expect_refused(&op_fp8_own_scale, &wide, x, "margin is 33; expected 0 to 32");
    expect_refused(&op_fp8_update, &negative, update_types, "margin is -1; expected 0 to 32");
    expect_refused(&op_scaled_linear, &to_f16, codes, "dtype is f16; expected f32 or bf16");
    expect_refused(&op_scaled_linear, NULL, floats, "a is f32 of 2 dims; expected e4m3 or e5m2");
}

TEST_MAIN(TEST(codes_are_rounded_products_in_both_layouts), TEST(what_is_too_large_saturates_and_what_is_not_finite_stays_visible),
          TEST(a_tensors_own_scale_is_of_its_largest_magnitude), TEST(a_scale_and_its_inverse_are_normal_numbers),
          TEST(scales_follow_the_history), TEST(the_three_products_are_those_of_the_decoded_numbers),
          TEST(wrong_formats_and_margins_are_refused))
