/* Every kernel that this CPU can run, over every layout of operands, compared bit by bit with plain chains of multiply-adds. */
#include "device/cpu/bgemm.h"

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/philox.h"
#include "test.h"

#include <immintrin.h>
#include <math.h>

enum { MOST = 100, PAD = 3, STRIDE = MOST + PAD, COUNT = STRIDE * STRIDE, ROOM = 128 * (128 + 16) * 4 };

static uint16_t a[COUNT], b[COUNT];
static float    before[COUNT], got[COUNT], expected[COUNT];
static char     panels_a[ROOM], panels_b[ROOM];

/* tiny: products and sums are often denormal, and so are some operands. */
static void fill(uint16_t *values, uint32_t key, bool tiny)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        Philox4 draw = philox4x32(i, 0, 0, 0, key);
        float   value = (float)draw.v[0] / 2147483648.0f - 1.0f;
        values[i] = bf16_from_f32(tiny ? ldexpf(value, -60 - (int)(draw.v[1] % 12) - (draw.v[2] % 50 ? 0 : 64)) : value);
    }
}

typedef struct Case {
    int64_t m, n, k;
    bool    along_a, along_b, add;
} Case;

static float element(const uint16_t *x, int64_t row, int64_t l, bool along)
{
    return bf16_to_f32(x[along ? row * STRIDE + l : l * STRIDE + row]);
}

static float multiply_add(float x, float y, float sum)
{
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(x), _mm_set_ss(y), _mm_set_ss(sum)));
}

/* Flushes denormals to zero while it sums. */
static float block_sums(const Case *t, int64_t i, int64_t j)
{
    unsigned       control = _mm_getcsr();
    volatile float sum = 0; /* volatile: keeps the additions between the two changes of the denormal mode */
    _mm_setcsr(control | 0x8040);
    for (int64_t l = 0; l < t->k; l += BGEMM_BLOCK) {
        float chain[2] = {0};
        for (int64_t s = l; s < l + BGEMM_BLOCK && s < t->k; s++)
            chain[s % 2] = multiply_add(element(a, i, s, t->along_a), element(b, j, s, t->along_b), chain[s % 2]);
        volatile float both = chain[0] + chain[1];
        sum = sum + both;
    }
    _mm_setcsr(control);
    return sum;
}

static void take(void *context, int64_t row, int64_t col, const float *sums, int64_t stride, int64_t rows, int64_t cols)
{
    const Case *t = context;
    EXPECT(cols <= BGEMM_COLS && row + rows <= t->m && col + cols <= t->n);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float *c = &got[(row + i) * STRIDE + col + j];
            *c = fmaf(sums[i * stride + j], 0.75f, t->add ? *c : 0);
        }
}

static void check(const BgemmKernel *kernel, Case *t)
{
    BgemmSource of_a = {a, STRIDE, t->along_a, t->m, t->k}, of_b = {b, STRIDE, t->along_b, t->n, t->k};
    size_t      panel_a = bgemm_panel(kernel, kernel->rows, t->k), panel_b = bgemm_panel(kernel, kernel->cols, t->k);
    size_t      used_a = (size_t)((t->m + kernel->rows - 1) / kernel->rows) * panel_a;
    size_t      used_b = (size_t)((t->n + kernel->cols - 1) / kernel->cols) * panel_b;
    memset(panels_a, 0xff, sizeof panels_a); /* fills with NaN */
    memset(panels_b, 0xff, sizeof panels_b);
    memcpy(got, before, sizeof got);
    memcpy(expected, before, sizeof expected);
    kernel->pack_a(&of_a, panels_a, panel_a);
    kernel->pack_b(&of_b, panels_b, panel_b);
    bgemm_run(kernel, t->m, t->n, t->k, panels_a, panels_b, panel_b, take, t);
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            float *c = &expected[i * STRIDE + j];
            *c = fmaf(block_sums(t, i, j), 0.75f, t->add ? *c : 0);
        }
    if (memcmp(got, expected, sizeof got) != 0)
        test_fail(__FILE__, __LINE__, "%s: %lldx%lldx%lld along %d %d, add %d", kernel->name, (long long)t->m, (long long)t->n,
                  (long long)t->k, t->along_a, t->along_b, t->add);
    for (size_t i = used_a; i < ROOM; i++) EXPECT(panels_a[i] == -1);
    for (size_t i = used_b; i < ROOM; i++) EXPECT(panels_b[i] == -1);
}

static void each_way(const BgemmKernel *kernel, int64_t m, int64_t n, int64_t k)
{
    for (int way = 0; way < 8; way++) check(kernel, &(Case){m, n, k, way & 1, way & 2, way & 4});
}

static void products_have_the_bits_of_two_chains_a_block(void)
{
    const BgemmKernel *kernels[BGEMM_KERNELS];
    int                count = bgemm_kernels(kernels);
    EXPECT(count >= 1 && kernels[0] == bgemm_kernel());
    for (uint32_t i = 0; i < COUNT; i++) before[i] = (float)philox4x32(i, 0, 0, 0, 3).v[0] / 2147483648.0f - 1.0f;
    for (int tiny = 0; tiny < 2; tiny++) {
        fill(a, 1, tiny);
        fill(b, 2, tiny);
        for (int kernel = 0; kernel < count; kernel++) {
            EXPECT(kernels[kernel]->cols <= BGEMM_COLS);
            for (int64_t m = 1; m <= 34; m++) each_way(kernels[kernel], m, 33, 9);
            for (int64_t n = 1; n <= 66; n++) each_way(kernels[kernel], 7, n, 17);
            for (int64_t k = 0; k <= MOST; k++) each_way(kernels[kernel], 13, 35, k);
            each_way(kernels[kernel], MOST, MOST, MOST);
        }
    }
}

/* Emulates AMX's tile product (Intel, Software Developer's Manual, TDPBF16PS) on CPUs without AMX. */
static void plain_amx_tile(int64_t depth, const void *panel_a, const void *panel_b, float *sums)
{
    enum { ROWS = 16, PAIRS = 16, HALF = ROWS * PAIRS * 2 /* elements of a tile */ };
    const uint16_t *x = panel_a, *y = panel_b;
    memset(sums, 0, sizeof(float) * 32 * 32);
    for (int64_t l = 0; l < depth; l += BGEMM_BLOCK, x += 2 * HALF, y += 2 * HALF)
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < 32; j++) {
                const uint16_t *row = x + i / 16 * HALF + i % 16 * 32, *col = y + j / 16 * HALF + j % 16 * 2;
                float           chain[2] = {0};
                for (int s = 0; s < 32; s++)
                    chain[s % 2] = multiply_add(bf16_to_f32(row[s]), bf16_to_f32(col[s / 2 * 32 + s % 2]), chain[s % 2]);
                sums[i * 32 + j] += chain[0] + chain[1];
            }
}

static void panels_of_amx_lie_as_its_tiles_read_them(void)
{
    BgemmKernel kernel = *bgemm_amx();
    if (!cpu_avx512()) SKIP("no AVX-512");
    kernel.tile = plain_amx_tile;
    kernel.begin = kernel.end = NULL;
    fill(a, 1, false);
    fill(b, 2, false);
    for (int64_t m = 1; m <= 34; m += 3) each_way(&kernel, m, 33, 9);
    for (int64_t n = 1; n <= 66; n += 3) each_way(&kernel, 7, n, 17);
    for (int64_t k = 0; k <= MOST; k++) each_way(&kernel, 13, 35, k);
    each_way(&kernel, MOST, MOST, MOST);
}

static void control_of_denormals_is_given_back(void)
{
    unsigned before_all = _mm_getcsr();
    check(bgemm_kernel(), &(Case){20, 20, 40, true, true, false});
    EXPECT(_mm_getcsr() == before_all);
}

TEST_MAIN(TEST(products_have_the_bits_of_two_chains_a_block), TEST(panels_of_amx_lie_as_its_tiles_read_them),
          TEST(control_of_denormals_is_given_back))
