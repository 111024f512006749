/* Every kernel that this CPU can run, with every form of operands, compared bit by bit with a plain chain of multiply-adds. */
#include "device/cpu/sgemm.h"

#include "base/philox.h"
#include "test.h"

#include <math.h>

enum { MOST = 80, PAD = 3, STRIDE = MOST + PAD, FLOATS = STRIDE * STRIDE };

static const DType formats[] = {DT_F32, DT_BF16, DT_E4M3, DT_E5M2};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* A matrix as stored in a format, and its decoded values. */
typedef struct Stored {
    float         numbers[FLOATS];
    unsigned char data[FLOATS * sizeof(float)];
} Stored;

static Stored stored_a[FORMATS], stored_b[FORMATS];
static float  before[FLOATS], got[FLOATS], expected[FLOATS], panels_a[FLOATS * 2], panels_b[FLOATS * 2];

/* Uses all 24 bits of a float's mantissa, so that a product is rounded unless the multiply-add is fused. */
static void fill(float *values, uint32_t key)
{
    for (uint32_t i = 0; i < FLOATS; i++) values[i] = (float)philox4x32(i, 0, 0, 0, key).v[0] / 2147483648.0f - 1.0f;
}

static void fill_stored(Stored *stored, uint32_t key)
{
    static float values[FLOATS];
    fill(values, key);
    for (int f = 0; f < FORMATS; f++) {
        dtype_encode(formats[f], values, FLOATS, stored[f].data);
        dtype_decode(formats[f], stored[f].data, FLOATS, stored[f].numbers);
    }
}

typedef struct Case {
    int64_t m, n, k;
    bool    trans_a, trans_b, add, pack_a, pack_b, far, by_rows;
    int     format; /* index in `formats` */
} Case;

static void chain(const Case *t, float alpha)
{
    memcpy(expected, before, sizeof expected);
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            float sum = 0, *c = &expected[i * STRIDE + j];
            for (int64_t l = 0; l < t->k; l++) {
                int64_t at_a = t->trans_a ? l * STRIDE + i : i * STRIDE + l, at_b = t->trans_b ? j * STRIDE + l : l * STRIDE + j;
                sum = fmaf(stored_a[t->format].numbers[at_a], stored_b[t->format].numbers[at_b], sum);
            }
            *c = fmaf(sum, alpha, t->add ? *c : 0);
        }
}

static void check(const SgemmKernel *kernel, const Case *t)
{
    DType         dtype = formats[t->format];
    const Stored *a = &stored_a[t->format], *b = &stored_b[t->format];
    int           how = (t->add ? SGEMM_ADD : 0) | (t->far ? SGEMM_FAR : 0) | (t->by_rows ? SGEMM_BY_ROWS : 0);
    memset(panels_a, 0xff, sizeof panels_a); /* fills with NaN */
    memset(panels_b, 0xff, sizeof panels_b);
    memcpy(got, before, sizeof got);
    SgemmA of_a = t->pack_a ? sgemm_pack_a(kernel, t->trans_a, t->m, t->k, a->data, dtype, STRIDE, panels_a)
                            : sgemm_a(kernel, t->trans_a, a->numbers, STRIDE);
    SgemmB of_b = t->pack_b ? sgemm_pack_b(kernel, t->trans_b, t->n, t->k, b->data, dtype, STRIDE, panels_b, kernel->cols * t->k)
                            : sgemm_b(kernel, b->numbers, STRIDE);
    sgemm_run(kernel, t->m, t->n, t->k, 0.75f, of_a, of_b, got, STRIDE, how, NULL, 0);
    chain(t, 0.75f);
    if (memcmp(got, expected, sizeof got) != 0)
        test_fail(__FILE__, __LINE__, "%s: %lldx%lldx%lld trans %d %d, packed %d %d, %s, add %d, far %d, by rows %d", kernel->name,
                  (long long)t->m, (long long)t->n, (long long)t->k, t->trans_a, t->trans_b, t->pack_a, t->pack_b, dtype_info(dtype)->name,
                  t->add, t->far, t->by_rows);
    int64_t room_a = sgemm_packed(t->m, SGEMM_ROWS, t->k), room_b = sgemm_packed(t->n, SGEMM_COLS, t->k);
    for (int64_t i = room_a; i < FLOATS * 2; i++) EXPECT(isnan(panels_a[i]));
    for (int64_t i = room_b; i < FLOATS * 2; i++) EXPECT(isnan(panels_b[i]));
}

static void each_way(const SgemmKernel *kernel, int64_t m, int64_t n, int64_t k)
{
    for (int way = 0; way < 32 * FORMATS; way++) {
        Case t = {m, n, k, way & 1, way & 2, way & 4, way & 8, way & 16, false, false, way / 32};
        if ((formats[t.format] != DT_F32 && (!t.pack_a || !t.pack_b)) || (t.trans_b && !t.pack_b)) continue;
        check(kernel, &t);
        t.far = true;
        check(kernel, &t);
        t.by_rows = true;
        check(kernel, &t);
    }
}

static void products_have_the_bits_of_a_chain(void)
{
    const SgemmKernel *kernels[2];
    fill_stored(stored_a, 1);
    fill_stored(stored_b, 2);
    fill(before, 3);
    int count = sgemm_kernels(kernels);
    EXPECT(count >= 1 && kernels[0] == sgemm_kernel());
    for (int kernel = 0; kernel < count; kernel++) {
        EXPECT(SGEMM_ROWS % kernels[kernel]->rows == 0 && SGEMM_COLS % kernels[kernel]->cols == 0);
        for (int64_t m = 1; m <= 26; m++) {
            each_way(kernels[kernel], m, 33, 9);
            each_way(kernels[kernel], m, 33, MOST); /* k is so deep that columns are computed one by one */
        }
        for (int64_t n = 1; n <= 66; n++) {
            each_way(kernels[kernel], 7, n, 17);
            each_way(kernels[kernel], 7, n, MOST);
        }
        for (int64_t k = 0; k <= 18; k++) each_way(kernels[kernel], 13, 35, k);
        each_way(kernels[kernel], MOST, MOST, MOST);
    }
}

/* NaN and infinities too; codes are read eight at a time and one at a time. */
static void every_code_is_packed_as_its_number(void)
{
    const SgemmKernel *kernel = sgemm_kernel();
    uint8_t            codes[256];
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    for (int f = 2; f < FORMATS; f++)
        for (int trans = 0; trans < 2; trans++)
            for (int64_t cols = kernel->cols - 1; cols <= kernel->cols; cols++) {
                int64_t depth = 256 / kernel->cols;
                sgemm_pack_b(kernel, trans, cols, depth, codes, formats[f], trans ? depth : cols, panels_b, kernel->cols * depth);
                for (int64_t i = 0; i < depth * cols; i++) {
                    float got_one = trans ? panels_b[i % depth * kernel->cols + i / depth] : panels_b[i / cols * kernel->cols + i % cols];
                    float want;
                    dtype_decode(formats[f], &codes[i], 1, &want);
                    EXPECT(isnan(want) ? isnan(got_one) : memcmp(&got_one, &want, sizeof want) == 0);
                }
            }
}

TEST_MAIN(TEST(products_have_the_bits_of_a_chain), TEST(every_code_is_packed_as_its_number))
