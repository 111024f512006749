/* Packing, compared with a plain quadratic best fit and with the invariants of any packing. */
#include "base/philox.h"
#include "data/pack.h"
#include "test.h"

/* The same rule in plain code: samples, from longest to shortest, go into the fullest row with room; of equally full rows, into the one
 * queued first. */
static int64_t plain_best_fit(const int32_t *lengths, int64_t n, int32_t capacity)
{
    int32_t *used = calloc((size_t)n, sizeof *used);
    int64_t  rows = 0;
    for (int32_t length = capacity; length >= 1; length--)
        for (int64_t i = 0; i < n; i++) {
            if (lengths[i] != length) continue;
            int64_t best = -1;
            for (int64_t r = 0; r < rows; r++)
                if (used[r] + length <= capacity && (best < 0 || used[r] > used[best])) best = r;
            if (best < 0) best = rows++;
            used[best] += length;
        }
    free(used);
    return rows;
}

static void every_sample_is_in_one_row_that_holds_it(void)
{
    for (uint32_t trial = 0; trial < 60; trial++) {
        int32_t  capacity = 1 + (int32_t)(philox4x32(trial, 0, 0, 0, 1).v[0] % 300);
        int64_t  n = philox4x32(trial, 0, 0, 0, 2).v[0] % 400;
        int32_t *lengths = calloc((size_t)n + 1, sizeof *lengths);
        uint8_t *seen = calloc((size_t)n + 1, 1);
        for (int64_t i = 0; i < n; i++) lengths[i] = 1 + (int32_t)(philox4x32(trial, (uint32_t)i, 0, 0, 3).v[0] % (uint32_t)capacity);
        Packing packing;
        pack_best_fit(lengths, n, capacity, &packing);
        EXPECT_INT(packing.num_rows, plain_best_fit(lengths, n, capacity));
        EXPECT_INT(packing.begin[packing.num_rows], n);
        for (int64_t r = 0; r < packing.num_rows; r++) {
            int64_t used = 0;
            for (int64_t k = packing.begin[r]; k < packing.begin[r + 1]; k++) {
                used += lengths[packing.items[k]];
                EXPECT(!seen[packing.items[k]]++);
            }
            EXPECT(used >= 1 && used <= capacity);
        }
        packing_deinit(&packing);
        free(lengths);
        free(seen);
    }
}

static void halves_pair_up(void)
{
    int32_t lengths[] = {40, 60, 50, 50, 99, 1};
    Packing packing;
    pack_best_fit(lengths, 6, 100, &packing);
    EXPECT_INT(packing.num_rows, 3);
    EXPECT_INT(packing.items[0], 4);
    EXPECT_INT(packing.items[1], 5);
    packing_deinit(&packing);
}

static void a_million_samples_pack_tightly(void)
{
    int64_t  n = 1000000;
    int32_t *lengths = malloc(sizeof *lengths * (size_t)n);
    int64_t  tokens = 0;
    for (int64_t i = 0; i < n; i++) tokens += lengths[i] = 1 + (int32_t)(philox4x32((uint32_t)i, 0, 0, 0, 5).v[0] % 3000);
    Packing packing;
    pack_best_fit(lengths, n, 8192, &packing);
    EXPECT((double)tokens / ((double)packing.num_rows * 8192) > 0.999);
    packing_deinit(&packing);
    free(lengths);
}

TEST_MAIN(TEST(every_sample_is_in_one_row_that_holds_it), TEST(halves_pair_up), TEST(a_million_samples_pack_tightly))
