/* adamw_8bit: its map and 100 updates, compared with bitsandbytes' (tests/oracle/make_adamw_8bit.py); and the behaviour that it shares with
 * adamw. */
#include "files/safetensors.h"
#include "ops/lowbit/dynamic_map.h"
#include "ops/op_case.h"

static const char fixture_path[] = "tests/fixtures/adamw_8bit.safetensors";

enum { IN_W, IN_G, IN_M, IN_V, IN_M_SCALE, IN_V_SCALE, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_SEGMENTS, IN_MASTER };
enum { PARAMS = 2, STATES = 5 };
static const int         sizes[PARAMS] = {4500, 4100}, offsets[PARAMS] = {13, 4608}; /* neither size is a multiple of a block */
static const int         state_in[STATES] = {IN_W, IN_M, IN_V, IN_M_SCALE, IN_V_SCALE};
static const char *const state_names[STATES] = {"w", "m", "v", "m.scale", "v.scale"};

static const AdamwAttrs attrs = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .stochastic = true};

static OpCase case_make(DType weights)
{
    enum { NUMEL = 8800, BLOCKS = MOMENT_FIRST(NUMEL, PARAMS) };
    TensorType w = type_make(weights, 1, (int64_t)NUMEL), f = type_make(DT_F32, 1, (int64_t)NUMEL),
               codes = type_make(DT_U8, 1, (int64_t)NUMEL), scales = type_make(DT_F32, 1, (int64_t)BLOCKS),
               one = type_make(DT_F32, 1, INT64_C(1));
    TensorType in[NODE_MAX_IN] = {w,
                                  f,
                                  codes,
                                  codes,
                                  scales,
                                  scales,
                                  one,
                                  one,
                                  type_make(DT_F32, 1, (int64_t)HYPER_COUNT),
                                  type_make(DT_I64, 1, (int64_t)STEP_COUNT),
                                  type_make(DT_I64, 2, (int64_t)PARAMS, (int64_t)SEGMENT_COLUMNS)};
    OpCase     c;
    EXPECT_OK(op_case_make(&c, &op_adamw_8bit, &attrs, in));
    for (int i = 0; i < op_adamw_8bit.num_in; i++)
        if (c.in[i].data) memset(c.in[i].data, 0, c.in[i].bytes);
    int64_t(*segments)[SEGMENT_COLUMNS] = (void *)c.in[IN_SEGMENTS].data;
    for (int k = 0; k < PARAMS; k++) {
        int64_t row[SEGMENT_COLUMNS] = {offsets[k], sizes[k], 1, 7 + k};
        memcpy(segments[k], row, sizeof row);
    }
    return c;
}

/* As in the oracle: uniform in [-1, 1), times 2^-(index % 11). */
static float number(uint32_t turn, uint32_t index)
{
    uint32_t h = index * 0x9E3779B1u + turn * 0x85EBCA77u;
    h = (h ^ h >> 15) * 0x2C1B3C6Du;
    h = (h ^ h >> 12) * 0x297A2D39u;
    h ^= h >> 15;
    return ldexpf((float)((int)(h >> 8) - (1 << 23)), -23 - (int)(index % 11));
}

/* Runs a step; its results become the next step's inputs. */
static void step(OpCase *c, uint32_t turn)
{
    static const int outs[STATES] = {0, 1, 2, 3, 4};
    float           *g = (void *)c->in[IN_G].data, *hyper = (void *)c->in[IN_HYPER].data;
    for (int k = 0; k < PARAMS; k++)
        for (int i = 0; i < sizes[k]; i++) g[offsets[k] + i] = number(turn, (uint32_t)(10000 * k + i));
    hyper[HYPER_LR] = 1e-3f;
    hyper[HYPER_BIAS1] = (float)(1 - pow(attrs.beta1, turn));
    hyper[HYPER_BIAS2] = (float)(1 - pow(attrs.beta2, turn));
    ((int64_t *)(void *)c->in[IN_STEP].data)[STEP_INDEX] = turn;
    EXPECT_OK(op_case_run(c, &op_adamw_8bit.cpu[0], 1, "adamw_8bit"));
    for (int k = 0; k < STATES; k++) memcpy(c->in[state_in[k]].data, c->out[outs[k]].data, c->in[state_in[k]].bytes);
}

/* State `k` of a parameter; states of several parameters are in one tensor. */
static const void *state_of(const OpCase *c, int param, int k)
{
    const unsigned char *data = c->in[state_in[k]].data;
    if (k >= 3) return data + (size_t)MOMENT_FIRST(offsets[param], param) * sizeof(float);
    return data + (size_t)offsets[param] * (k == 0 ? sizeof(float) : 1);
}

static void check_state(const StFile *file, const OpCase *c, int turn, int param, int k)
{
    char name[32];
    snprintf(name, sizeof name, "%d.%d.%s", turn, param, state_names[k]);
    const StTensor *want = st_find(file, name);
    const void     *got = state_of(c, param, k);
    int64_t         off = 0;
    if (!want) {
        test_fail(__FILE__, __LINE__, "%s isn't in the fixture", name);
        return;
    }
    EXPECT_INT(want->numel, k < 3 ? sizes[param] : (sizes[param] + MOMENT_BLOCK - 1) / MOMENT_BLOCK);
    for (int64_t i = 0; i < want->numel; i++) {
        bool   is_code = k == 1 || k == 2;
        double x = is_code ? ((const uint8_t *)got)[i] : (double)((const float *)got)[i],
               y = is_code ? ((const uint8_t *)want->data)[i] : (double)((const float *)want->data)[i];
        if (is_code ? x != y : fabs(x - y) > 1e-6 * fmax(fabs(y), k == 0 ? 1 : 0)) off++;
        if (is_code && fabs(x - y) > 1) test_fail(__FILE__, __LINE__, "%s: code %lld is %g, expected %g", name, (long long)i, x, y);
    }
    if (off * 1000 > want->numel) test_fail(__FILE__, __LINE__, "%s: %lld of %lld differ", name, (long long)off, (long long)want->numel);
}

static void updates_are_those_of_bitsandbytes(void)
{
    StFile *file = NULL;
    OpCase  c = case_make(DT_F32);
    float  *w = (void *)c.in[IN_W].data;
    EXPECT_OK(st_open(fixture_path, &file));
    for (int k = 0; k < PARAMS; k++)
        for (int i = 0; i < sizes[k]; i++) w[offsets[k] + i] = number(0, (uint32_t)(10000 * k + i));
    for (uint32_t turn = 1; file && turn <= 100; turn++) {
        step(&c, turn);
        for (int k = 0; (turn == 1 || turn == 100) && k < PARAMS * STATES; k++) check_state(file, &c, (int)turn, k / STATES, k % STATES);
    }
    for (int i = 0; i < offsets[0]; i++) EXPECT(w[i] == 0 && c.in[IN_M].data[i] == 0);
    st_close(file);
    op_case_free(&c);
}

static void values_are_those_of_bitsandbytes(void)
{
    StFile *file = NULL;
    EXPECT_OK(st_open(fixture_path, &file));
    for (int is_signed = 0; file && is_signed < 2; is_signed++) {
        const StTensor *want = st_find(file, is_signed ? "map.signed" : "map.unsigned");
        DynamicMap      map;
        dynamic_map_fill(&map, is_signed);
        EXPECT(want && want->numel == 256);
        for (int code = 0; want && code < 256; code++) {
            float got = dynamic_value(&map, is_signed, code);
            if (memcmp(&got, (const float *)want->data + code, sizeof got) != 0)
                test_fail(__FILE__, __LINE__, "code %d, signed %d, is %.9g, expected %.9g", code, is_signed, (double)got,
                          (double)((const float *)want->data)[code]);
        }
    }
    st_close(file);
}

/* Code of the nearest of all 256 values, by trying all. */
static int nearest_slowly(const DynamicMap *map, bool is_signed, float x)
{
    int best = 0;
    for (int code = 1; code < 256; code++) {
        double d = fabs((double)dynamic_value(map, is_signed, code) - (double)x),
               least = fabs((double)dynamic_value(map, is_signed, best) - (double)x);
        if (d < least) best = code;
    }
    return best;
}

static void codes_are_the_nearest(void)
{
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        DynamicMap map;
        dynamic_map_fill(&map, is_signed);
        for (int code = 0; code < 256; code++) EXPECT_INT(dynamic_nearest(&map, is_signed, dynamic_value(&map, is_signed, code)), code);
        for (int code = 0; code < 255; code++) { /* both sides of the middle between neighbours */
            double middle = 0.5 * ((double)dynamic_value(&map, is_signed, code) + (double)dynamic_value(&map, is_signed, code + 1));
            EXPECT_INT(dynamic_nearest(&map, is_signed, (float)(middle - 1e-6 * fabs(middle))), code);
            EXPECT_INT(dynamic_nearest(&map, is_signed, (float)(middle + 1e-6 * fabs(middle))), code + 1);
        }
        for (uint32_t i = 0; i < 200000; i++) { /* values of all magnitudes */
            float x = ldexpf(number(1, i), -(int)(i % 31));
            if (!is_signed) x = fabsf(x);
            int   got = dynamic_nearest(&map, is_signed, x), want = nearest_slowly(&map, is_signed, x);
            float d = fabsf(dynamic_value(&map, is_signed, got) - x), least = fabsf(dynamic_value(&map, is_signed, want) - x);
            if (got != want && !(d <= least * 1.000001f)) test_fail(__FILE__, __LINE__, "%.9g: code %d, expected %d", (double)x, got, want);
        }
        const float odd[] = {0, -0.0f, 1e-30f, 1e-42f, NAN};
        for (int i = 0; i < 5; i++) EXPECT_INT(dynamic_nearest(&map, is_signed, odd[i]), is_signed ? DYNAMIC_ZERO : 0);
        EXPECT_INT(dynamic_nearest(&map, is_signed, INFINITY), 255);
    }
}

/* Padding keeps its contents, and a step that isn't finite changes no bit. */
static void a_step_that_is_not_finite_touches_nothing(void)
{
    for (int bad = 0; bad < 2; bad++) {
        OpCase c = case_make(DT_BF16);
        step(&c, 1);
        *(float *)(void *)c.in[IN_NORM2].data = bad ? INFINITY : 1;
        *(float *)(void *)c.in[IN_LOSS].data = bad ? 1 : NAN;
        EXPECT_OK(op_case_run(&c, &op_adamw_8bit.cpu[0], 1, "adamw_8bit"));
        for (int k = 0; k < STATES; k++) EXPECT(memcmp(c.out[k].data, c.in[state_in[k]].data, c.out[k].bytes) == 0);
        op_case_free(&c);
    }
}

/* A parameter's bits don't depend on its position. */
static void blocks_are_a_parameters_own(void)
{
    uint16_t weights[4100];
    uint8_t  codes[4100];
    for (int move = 0; move < 2; move++) {
        OpCase    c = case_make(DT_BF16);
        int64_t  *segment = (int64_t *)(void *)c.in[IN_SEGMENTS].data + SEGMENT_COLUMNS;
        uint16_t *w = (void *)c.in[IN_W].data;
        float    *g = (void *)c.in[IN_G].data;
        segment[SEGMENT_OFFSET] += 3 * move;
        for (int i = 0; i < sizes[1]; i++) g[segment[SEGMENT_OFFSET] + i] = number(2, (uint32_t)i), w[segment[SEGMENT_OFFSET] + i] = 0x3F80;
        memcpy(c.in[IN_HYPER].data, (const float[4]){1e-3f, 0, 0.1f, 0.001f}, 16);
        EXPECT_OK(op_case_run(&c, &op_adamw_8bit.cpu[0], 1, "adamw_8bit"));
        const void *w_out = (uint16_t *)(void *)c.out[0].data + segment[SEGMENT_OFFSET], *m_out = c.out[1].data + segment[SEGMENT_OFFSET];
        if (move) EXPECT(memcmp(w_out, weights, sizeof weights) == 0 && memcmp(m_out, codes, sizeof codes) == 0);
        memcpy(weights, w_out, sizeof weights);
        memcpy(codes, m_out, sizeof codes);
        op_case_free(&c);
    }
}

TEST_MAIN(TEST(values_are_those_of_bitsandbytes), TEST(codes_are_the_nearest), TEST(updates_are_those_of_bitsandbytes),
          TEST(a_step_that_is_not_finite_touches_nothing), TEST(blocks_are_a_parameters_own))
