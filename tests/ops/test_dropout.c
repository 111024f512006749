/* dropout: how many elements are dropped, and that a draw belongs to a token wherever the token is stored. */
#include "ops/op_case.h"
#include "ops/random.h"

enum { ROWS = 64, COLS = 250 };

/* x = 1 everywhere, so the result is each element's scale: 0 or 1 / (1 - p). */
static OpCase make(DropoutAttrs attrs, int64_t batch, int64_t len)
{
    OpCase     c;
    TensorType x = type_make(DT_F32, 3, batch, len, (int64_t)COLS), ids = type_make(DT_I32, 2, batch, len);
    TensorType in[NODE_MAX_IN] = {x, ids, ids, type_make(DT_I64, 1, (int64_t)STEP_COUNT)};
    EXPECT_OK(op_case_make(&c, &op_dropout, &attrs, in));
    memset(c.in[3].data, 0, c.in[3].bytes);
    for (int64_t i = 0; i < ROWS * COLS; i++) ((float *)(void *)c.in[0].data)[i] = 1;
    for (int64_t i = 0; i < ROWS; i++) {
        ((int32_t *)(void *)c.in[1].data)[i] = (int32_t)(i / 16) - 1; /* documents of 16 tokens; -1 is padding */
        ((int32_t *)(void *)c.in[2].data)[i] = (int32_t)(i % 16);
    }
    return c;
}

static const float *run(OpCase *c)
{
    EXPECT_OK(op_case_run(c, &op_dropout.cpu[0], 1, "dropout"));
    return (const float *)(const void *)c->out[0].data;
}

static void a_share_of_p_is_dropped_and_the_rest_scaled(void)
{
    for (double p = 0; p < 1; p += 0.3) {
        OpCase       c = make((DropoutAttrs){.p = p}, 4, 16);
        const float *y = run(&c);
        double       dropped = 0;
        for (int i = 0; i < ROWS * COLS; i++) {
            dropped += y[i] == 0;
            if (y[i] != 0) EXPECT_NEAR(y[i], 1 / (1 - p), 1e-6);
        }
        EXPECT_NEAR(dropped / (ROWS * COLS), p, 4 * sqrt(p * (1 - p) / (ROWS * COLS)));
        op_case_free(&c);
    }
}

/* The same tokens in another batch layout and in reverse order of rows. */
static void draws_belong_to_document_and_position(void)
{
    OpCase   c = make((DropoutAttrs){.p = 0.5}, 4, 16), d = make((DropoutAttrs){.p = 0.5}, 1, ROWS);
    int32_t *doc_id = (int32_t *)(void *)d.in[1].data, *position = (int32_t *)(void *)d.in[2].data;
    for (int i = 0; i < ROWS; i++) {
        doc_id[ROWS - 1 - i] = i / 16 - 1;
        position[ROWS - 1 - i] = i % 16;
    }
    const float *y = run(&c), *z = run(&d);
    for (int i = 0; i < ROWS; i++) EXPECT(memcmp(y + i * COLS, z + (ROWS - 1 - i) * COLS, COLS * sizeof(float)) == 0);
    op_case_free(&c);
    op_case_free(&d);
}

/* Two independent draws with p = 1/2 agree in half of the cases: between rows, elements, steps, seeds and sites. */
static void draws_are_independent(void)
{
    OpCase c = make((DropoutAttrs){.p = 0.5}, 4, 16);
    float  first[ROWS * COLS];
    memcpy(first, run(&c), sizeof first);
    int rows = 0, elements = 0;
    for (int i = 0; i + COLS < ROWS * COLS; i++) rows += first[i] == first[i + COLS];
    for (int i = 0; i + 1 < ROWS * COLS; i++) elements += first[i] == first[i + 1];
    EXPECT_NEAR(rows, (ROWS - 1) * COLS / 2, 4 * sqrt(ROWS * COLS / 4));
    EXPECT_NEAR(elements, ROWS * COLS / 2, 4 * sqrt(ROWS * COLS / 4));
    for (int change = 0; change < 3; change++) {
        OpCase   d = make((DropoutAttrs){.p = 0.5, .site = change == 2}, 4, 16);
        int64_t *step = (int64_t *)(void *)d.in[3].data;
        if (change < 2) step[change == 0 ? STEP_SEED : STEP_INDEX] = 1;
        const float *y = run(&d);
        int          same = 0;
        for (int i = 0; i < ROWS * COLS; i++) same += y[i] == first[i];
        EXPECT_NEAR(same, ROWS * COLS / 2, 4 * sqrt(ROWS * COLS / 4));
        op_case_free(&d);
    }
    op_case_free(&c);
}

/* Published known answers of Philox4x32-10 (Random123). */
static void philox_gives_its_known_answers(void)
{
    const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    Philox4        a = philox4x32(0, 0, 0, 0, 0), b = philox4x32(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0x299f31d0a4093822u);
    EXPECT(memcmp(a.v, zero, sizeof zero) == 0);
    EXPECT(memcmp(b.v, pi, sizeof pi) == 0);
}

/* Elements are kept as random.h defines, draw by draw: every device must agree. */
static void elements_are_kept_by_their_word(void)
{
    OpCase         c = make((DropoutAttrs){.p = 0.25, .site = 5}, 4, 16);
    const float   *y = run(&c);
    const int32_t *doc_id = (const int32_t *)(const void *)c.in[1].data, *position = (const int32_t *)(const void *)c.in[2].data;
    uint64_t       key = random_key(0, 0, RANDOM_DROPOUT, 5);
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        uint32_t row = i / COLS, col = i % COLS;
        Philox4  draw = random_dropout_quad(key, doc_id[row], position[row], col / 4);
        EXPECT_INT(y[i] != 0, philox_uniform(draw.v[col % 4]) >= 0.25f);
    }
    op_case_free(&c);
}

TEST_MAIN(TEST(philox_gives_its_known_answers), TEST(elements_are_kept_by_their_word), TEST(a_share_of_p_is_dropped_and_the_rest_scaled),
          TEST(draws_belong_to_document_and_position), TEST(draws_are_independent))
