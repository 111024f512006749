/* Every kernel this CPU runs, over every way of handing it operands, against a plain chain of multiply-adds: equal bits. */
#include "device/cpu/sgemm.h"

#include "base/philox.h"
#include "test.h"

#include <math.h>

enum { MOST = 80, PAD = 3, STRIDE = MOST + PAD, FLOATS = STRIDE * STRIDE };

static float    values_a[FLOATS], values_b[FLOATS], before[FLOATS], got[FLOATS], expected[FLOATS];
static uint16_t halves_a[FLOATS], halves_b[FLOATS];
static float    panels_a[FLOATS * 2], panels_b[FLOATS * 2];

/* All 24 bits of a float, so that a product has to be rounded where it isn't fused; in bf16, what is left of them. */
static void fill(float *values, uint16_t *halves, uint32_t key)
{
    for (uint32_t i = 0; i < FLOATS; i++) {
        Philox4 draw = philox4x32(i, 0, 0, 0, key);
        values[i] = (float)draw.v[0] / 2147483648.0f - 1.0f;
        if (halves) halves[i] = bf16_from_f32(values[i]);
    }
}

typedef struct Case {
    int64_t m, n, k;
    bool    trans_a, trans_b, add, pack_a, pack_b;
    DType   dtype;
} Case;

static void chain(const Case *t, float alpha)
{
    memcpy(expected, before, sizeof expected);
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            float sum = 0, *c = &expected[i * STRIDE + j];
            for (int64_t l = 0; l < t->k; l++) {
                int64_t at_a = t->trans_a ? l * STRIDE + i : i * STRIDE + l, at_b = t->trans_b ? j * STRIDE + l : l * STRIDE + j;
                bool    half = t->dtype == DT_BF16;
                sum = fmaf(half ? bf16_to_f32(halves_a[at_a]) : values_a[at_a], half ? bf16_to_f32(halves_b[at_b]) : values_b[at_b], sum);
            }
            *c = fmaf(sum, alpha, t->add ? *c : 0);
        }
}

static void check(const SgemmKernel *kernel, const Case *t)
{
    bool        half = t->dtype == DT_BF16;
    const void *a = half ? (const void *)halves_a : values_a, *b = half ? (const void *)halves_b : values_b;
    memset(panels_a, 0xff, sizeof panels_a); /* NaN */
    memset(panels_b, 0xff, sizeof panels_b);
    memcpy(got, before, sizeof got);
    SgemmA of_a = t->pack_a ? sgemm_pack_a(kernel, t->trans_a, t->m, t->k, a, t->dtype, STRIDE, panels_a)
                            : sgemm_a(kernel, t->trans_a, values_a, STRIDE);
    SgemmB of_b =
        t->pack_b ? sgemm_pack_b(kernel, t->trans_b, t->n, t->k, b, t->dtype, STRIDE, panels_b) : sgemm_b(kernel, values_b, STRIDE);
    sgemm_run(kernel, t->m, t->n, t->k, 0.75f, of_a, of_b, got, STRIDE, t->add);
    chain(t, 0.75f);
    if (memcmp(got, expected, sizeof got) != 0)
        test_fail(__FILE__, __LINE__, "%s: %lldx%lldx%lld trans %d %d, packed %d %d, bf16 %d, add %d", kernel->name, (long long)t->m,
                  (long long)t->n, (long long)t->k, t->trans_a, t->trans_b, t->pack_a, t->pack_b, half, t->add);
    int64_t room_a = sgemm_packed(t->m, SGEMM_ROWS, t->k), room_b = sgemm_packed(t->n, SGEMM_COLS, t->k);
    for (int64_t i = room_a; i < FLOATS * 2; i++) EXPECT(isnan(panels_a[i]));
    for (int64_t i = room_b; i < FLOATS * 2; i++) EXPECT(isnan(panels_b[i]));
}

static void each_way(const SgemmKernel *kernel, int64_t m, int64_t n, int64_t k)
{
    for (int way = 0; way < 64; way++) {
        Case t = {m, n, k, way & 1, way & 2, way & 4, way & 8, way & 16, way & 32 ? DT_BF16 : DT_F32};
        if ((t.dtype == DT_BF16 && (!t.pack_a || !t.pack_b)) || (t.trans_b && !t.pack_b)) continue;
        check(kernel, &t);
    }
}

static void products_have_the_bits_of_a_chain(void)
{
    const SgemmKernel *kernels[2];
    fill(values_a, halves_a, 1);
    fill(values_b, halves_b, 2);
    fill(before, NULL, 3);
    int count = sgemm_kernels(kernels);
    EXPECT(count >= 1 && kernels[0] == sgemm_kernel());
    for (int kernel = 0; kernel < count; kernel++) {
        EXPECT(SGEMM_ROWS % kernels[kernel]->rows == 0 && SGEMM_COLS % kernels[kernel]->cols == 0);
        for (int64_t m = 1; m <= 26; m++) each_way(kernels[kernel], m, 33, 9);
        for (int64_t n = 1; n <= 66; n++) each_way(kernels[kernel], 7, n, 17);
        for (int64_t k = 0; k <= 18; k++) each_way(kernels[kernel], 13, 35, k);
        each_way(kernels[kernel], MOST, MOST, MOST);
    }
}

TEST_MAIN(TEST(products_have_the_bits_of_a_chain))
