/* adamw beyond the generic test: stochastic rounding keeps sums of tiny updates; padding and bad steps change nothing. */
#include "ops/op_case.h"

enum { NUMEL = 4096, PADDED = NUMEL + 64 };

typedef struct Setup {
    OpCase c;
    float *hyper, *norm2, *loss;
} Setup;

static void *in_data(Setup *s, int k)
{
    return s->c.in[k].data;
}

/* One segment [16, 16 + NUMEL) surrounded by padding; v and m in dtype `moments`, w in `weights`; all elements are zero. */
static Setup setup_make(DType weights, DType moments, bool master, const AdamwAttrs *attrs)
{
    Setup      s;
    TensorType w = type_make(weights, 1, (int64_t)PADDED), f = type_make(DT_F32, 1, (int64_t)PADDED),
               m = type_make(moments, 1, (int64_t)PADDED);
    TensorType one = type_make(DT_F32, 1, INT64_C(1));
    TensorType in[NODE_MAX_IN] = {w,
                                  f,
                                  m,
                                  m,
                                  one,
                                  one,
                                  type_make(DT_F32, 1, (int64_t)HYPER_COUNT),
                                  type_make(DT_I64, 1, (int64_t)STEP_COUNT),
                                  type_make(DT_I64, 2, INT64_C(1), (int64_t)SEGMENT_COLUMNS)};
    if (master) in[9] = f;
    EXPECT_OK(op_case_make(&s.c, &op_adamw, attrs, in));
    for (int k = 0; k < 10; k++)
        if (s.c.in[k].data) memset(s.c.in[k].data, 0, s.c.in[k].bytes);
    int64_t segment[SEGMENT_COLUMNS] = {16, NUMEL, 1, 7};
    memcpy(in_data(&s, 8), segment, sizeof segment);
    s.norm2 = in_data(&s, 4);
    s.loss = in_data(&s, 5);
    s.hyper = in_data(&s, 6);
    s.hyper[HYPER_LR] = 1;
    s.hyper[HYPER_BIAS1] = s.hyper[HYPER_BIAS2] = 1;
    *s.norm2 = 1;
    return s;
}

/* Runs a step; its results become the next step's inputs. */
static void setup_step(Setup *s, int64_t index)
{
    static const int state_in[] = {0, 2, 3, 9}, state_out[] = {0, 1, 2, 3};
    ((int64_t *)in_data(s, 7))[STEP_INDEX] = index;
    EXPECT_OK(op_case_run(&s->c, &op_adamw.cpu[0], 1, "adamw"));
    for (int k = 0; k < 4; k++)
        if (s->c.in[state_in[k]].bytes) memcpy(s->c.in[state_in[k]].data, s->c.out[state_out[k]].data, s->c.in[state_in[k]].bytes);
}

/* beta1 = beta2 = 0, |g| = 1, eps = 0: every step moves w by lr against the sign of g. */
static const AdamwAttrs plain = {.stochastic = true};

/* 1000 steps of 1e-3 ulp. On the grid of bf16 (ulp 2^-7 in [1, 2)) each step moves one ulp with probability 1e-3: the expected sum is 1
 * ulp, with variance 1000 * 1e-3 * (1 - 1e-3). The mean over NUMEL elements is within 3 sigma; rounding to nearest wouldn't move at all. */
static void tiny_updates_add_up_in_bf16(void)
{
    const double ulp = 1.0 / 128;
    for (int sign = -1; sign <= 1; sign += 2) {
        Setup     s = setup_make(DT_BF16, DT_F32, false, &plain);
        uint16_t *w = in_data(&s, 0);
        float    *g = in_data(&s, 1);
        for (int i = 0; i < PADDED; i++) w[i] = bf16_from_f32(1.5f), g[i] = (float)sign;
        s.hyper[HYPER_LR] = (float)(1e-3 * ulp);
        for (int step = 0; step < 1000; step++) setup_step(&s, step);
        double mean = 0, square = 0;
        for (int i = 16; i < 16 + NUMEL; i++) {
            double moved = ((double)bf16_to_f32(w[i]) - 1.5) / ulp;
            mean += moved / NUMEL;
            square += moved * moved / NUMEL;
        }
        double variance = 0.999;
        EXPECT_NEAR(mean, -sign, 3 * sqrt(variance / NUMEL));
        EXPECT_NEAR(square - mean * mean, variance, 0.15);
        for (int i = 0; i < PADDED; i++)
            if (i < 16 || i >= 16 + NUMEL) EXPECT(w[i] == bf16_from_f32(1.5f));
        op_case_free(&s.c);
    }
}

/* v decays by 0.1% per step, less than half an ulp of bf16: rounding to nearest would keep it for ever. */
static void a_bf16_second_moment_decays(void)
{
    const AdamwAttrs attrs = {.beta2 = 0.999, .eps = 1, .stochastic = true};
    Setup            s = setup_make(DT_F32, DT_BF16, false, &attrs);
    uint16_t        *v = in_data(&s, 3);
    double           mean = 0;
    for (int i = 0; i < PADDED; i++) v[i] = bf16_from_f32(1.0f);
    for (int step = 0; step < 500; step++) setup_step(&s, step);
    for (int i = 16; i < 16 + NUMEL; i++) mean += (double)bf16_to_f32(v[i]) / NUMEL;
    EXPECT_NEAR(mean, pow(0.999, 500), 0.005);
    EXPECT(v[0] == bf16_from_f32(1.0f) && v[PADDED - 1] == v[0]);
    op_case_free(&s.c);
}

/* With a master copy, the bf16 weight is the master copy rounded to nearest, whatever is drawn. */
static void a_master_copy_is_exact(void)
{
    Setup  s = setup_make(DT_BF16, DT_F32, true, &plain);
    float *g = in_data(&s, 1), *master = in_data(&s, 9);
    for (int i = 0; i < PADDED; i++) g[i] = 1, master[i] = 1.5f;
    s.hyper[HYPER_LR] = 1e-5f;
    for (int step = 0; step < 100; step++) setup_step(&s, step);
    const uint16_t *w = in_data(&s, 0);
    EXPECT_NEAR(master[16], 1.5 - 100 * 1e-5, 2e-5);
    for (int i = 16; i < 16 + NUMEL; i++) EXPECT(w[i] == bf16_from_f32(master[i]));
    EXPECT(master[15] == 1.5f && w[15] == 0);
    op_case_free(&s.c);
}

/* Padding keeps its contents even if they are NaN, and a step that isn't finite changes no bit. */
static void a_step_that_is_not_finite_touches_nothing(void)
{
    for (int bad = 0; bad < 4; bad++) {
        const AdamwAttrs attrs = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1, .stochastic = true};
        Setup            s = setup_make(DT_BF16, DT_BF16, false, &attrs);
        for (int k = 0; k < 4; k++) memset(in_data(&s, k), 0x3F, s.c.in[k].bytes);
        memset(in_data(&s, 0), 0xFF, 32);
        *s.norm2 = bad == 0 ? NAN : bad == 1 ? INFINITY : 1.0f;
        *s.loss = bad == 2 ? NAN : bad == 3 ? -INFINITY : 1.0f;
        EXPECT_OK(op_case_run(&s.c, &op_adamw.cpu[0], 1, "adamw"));
        EXPECT(memcmp(s.c.out[0].data, in_data(&s, 0), s.c.out[0].bytes) == 0);
        EXPECT(memcmp(s.c.out[1].data, in_data(&s, 2), s.c.out[1].bytes) == 0);
        EXPECT(memcmp(s.c.out[2].data, in_data(&s, 3), s.c.out[2].bytes) == 0);
        *s.norm2 = *s.loss = 1.0f;
        EXPECT_OK(op_case_run(&s.c, &op_adamw.cpu[0], 1, "adamw"));
        EXPECT(memcmp(s.c.out[0].data, in_data(&s, 0), 32) == 0 && memcmp(s.c.out[1].data, in_data(&s, 2), 32) == 0);
        EXPECT(memcmp(s.c.out[0].data + 32, (char *)in_data(&s, 0) + 32, 32) != 0);
        op_case_free(&s.c);
    }
}

/* Draws depend on seed, step, segment and element, but not on a segment's position or on how much of the parameter it holds. */
static void draws_name_what_they_are_for(void)
{
    uint16_t first[NUMEL];
    for (int change = 0; change < 5; change++) {
        enum { PART = 1003 };
        Setup     s = setup_make(DT_BF16, DT_F32, false, &plain);
        uint16_t *w = in_data(&s, 0);
        float    *g = in_data(&s, 1);
        int64_t  *segment = in_data(&s, 8), *step = in_data(&s, 7), begin = change == 3 ? 33 : 16;
        for (int i = 0; i < PADDED; i++) w[i] = bf16_from_f32(1.5f), g[i] = 1;
        s.hyper[HYPER_LR] = 0.5f / 128;
        segment[SEGMENT_OFFSET] = begin;
        if (change == 1) segment[SEGMENT_KEY]++;
        if (change == 2) step[STEP_SEED]++;
        if (change == 4) segment[SEGMENT_FIRST] = PART, segment[SEGMENT_NUMEL] -= PART;
        setup_step(&s, 3);
        int same = 0;
        for (int i = 0; i < NUMEL; i++) same += w[begin + i] == first[i];
        if (change == 0) memcpy(first, w + begin, sizeof first);
        if (change == 1 || change == 2) EXPECT_NEAR(same, NUMEL / 2, 4 * sqrt(NUMEL / 4));
        if (change == 3) EXPECT_INT(same, NUMEL);
        if (change == 4) EXPECT(memcmp(w + begin, first + PART, (NUMEL - PART) * sizeof *w) == 0);
        op_case_free(&s.c);
    }
}

/* Several tasks of many tiles, compared with the formula in fp64. */
static void a_large_segment_follows_the_formula(void)
{
    const AdamwAttrs a = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1, .max_grad_norm = 2};
    enum { LARGE = 40001 };
    OpCase     c;
    TensorType flat = type_make(DT_F32, 1, (int64_t)LARGE), one = type_make(DT_F32, 1, INT64_C(1));
    TensorType in[NODE_MAX_IN] = {flat,
                                  flat,
                                  flat,
                                  flat,
                                  one,
                                  one,
                                  type_make(DT_F32, 1, (int64_t)HYPER_COUNT),
                                  type_make(DT_I64, 1, (int64_t)STEP_COUNT),
                                  type_make(DT_I64, 2, INT64_C(1), (int64_t)SEGMENT_COLUMNS)};
    int        ranges[NODE_MAX_IN] = {0};
    EXPECT_OK(op_case_make(&c, &op_adamw, &a, in));
    op_case_fill(&c, 1, ranges);
    int64_t segment[SEGMENT_COLUMNS] = {0, LARGE, 1, 7};
    memcpy(c.in[8].data, segment, sizeof segment);
    const float *w = (float *)(void *)c.in[0].data, *g = (float *)(void *)c.in[1].data, *m = (float *)(void *)c.in[2].data,
                *v = (float *)(void *)c.in[3].data, *hyper = (float *)(void *)c.in[6].data, *got = (float *)(void *)c.out[0].data;
    double clip = 2 / (sqrt((double)*(float *)(void *)c.in[4].data) + 1e-6), worst = 0;
    EXPECT_OK(op_case_run(&c, &op_adamw.cpu[0], 1, "adamw"));
    for (int i = 0; i < LARGE; i++) {
        double grad = (double)g[i] * clip, first = 0.9 * (double)m[i] + 0.1 * grad, second = 0.99 * (double)v[i] + 0.01 * grad * grad;
        double lr = (double)hyper[HYPER_LR], denom = sqrt(second / (double)hyper[HYPER_BIAS2]) + 1e-3;
        double want = (double)w[i] * (1 - lr * 0.1) - lr * first / (double)hyper[HYPER_BIAS1] / denom;
        worst = fmax(worst, fabs(want - (double)got[i]));
    }
    EXPECT_NEAR(worst, 0, 2e-6);
    op_case_free(&c);
}

TEST_MAIN(TEST(a_large_segment_follows_the_formula), TEST(tiny_updates_add_up_in_bf16), TEST(a_bf16_second_moment_decays),
          TEST(a_master_copy_is_exact), TEST(a_step_that_is_not_finite_touches_nothing), TEST(draws_name_what_they_are_for))
