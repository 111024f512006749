/* Rows of bf16: each float is rounded as by bf16_from_f32, whichever instructions are used, and nothing beside the row is written. */
#include "ops/vec.h"

#include "test.h"

enum { HALVES = 1 << 16, MOST = 40 };

static const uint16_t low_halves[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
enum { LOW = sizeof low_halves / sizeof low_halves[0] };

static float    floats[HALVES * LOW];
static uint16_t rounded[HALVES * LOW];

static void fill(void)
{
    for (uint32_t i = 0; i < HALVES * LOW; i++) {
        uint32_t bits = i / LOW << 16 | low_halves[i % LOW];
        memcpy(&floats[i], &bits, 4);
    }
}

/* Rounds rows in which neighbours have the same exponent, and rows in which they have different ones. */
static void check_rounding(void)
{
    for (int64_t step = 1; step <= 10007; step += 10006) {
        for (int64_t i = 0; i < HALVES * LOW; i += MOST) {
            float   row[MOST];
            int64_t count = HALVES * LOW - i < MOST ? HALVES * LOW - i : MOST;
            for (int64_t k = 0; k < count; k++) row[k] = floats[(i + k) * step % (HALVES * LOW)];
            vec_store_row(rounded, DT_BF16, row, count);
            for (int64_t k = 0; k < count; k++)
                if (rounded[k] != bf16_from_f32(row[k]))
                    test_fail(__FILE__, __LINE__, "%a became %#x, expected %#x", (double)row[k], rounded[k], bf16_from_f32(row[k]));
        }
    }
}

static void every_bf16_and_ties(void)
{
    fill();
    cpu_avx512();
    check_rounding();
    cpu_avx512_forbid(true);
    check_rounding();
    cpu_avx512_forbid(false);
}

static void rows_of_any_length(void)
{
    for (int64_t count = 0; count <= MOST; count++) {
        float    row[MOST], sum[MOST + 1];
        uint16_t codes[MOST + 1];
        for (int64_t k = 0; k < count; k++) row[k] = (float)(k + 1);
        memset(codes, 0x55, sizeof codes);
        vec_store_row(codes, DT_BF16, row, count);
        vec_add_row(codes, DT_BF16, row, count);
        for (int64_t k = 0; k <= count; k++) EXPECT_INT(codes[k], k < count ? bf16_from_f32(2 * row[k]) : 0x5555);
        sum[count] = 7;
        vec_copy_in(sum, codes, DT_BF16, count);
        vec_sum_row(DT_BF16, sum, codes, count);
        for (int64_t k = 0; k <= count; k++) EXPECT_NEAR(sum[k], k < count ? 4 * row[k] : 7, 0);
    }
}

TEST_MAIN(TEST(every_bf16_and_ties), TEST(rows_of_any_length))
