/* Conversions in kernels equal dtype_encode and dtype_decode, which other tests compare with ml_dtypes: every code, and a million random
 * floats in each format. TEST_LONG=1, or on a GPU: a hundred million. */
#include "ops/lowbit/fp8.h"
#include "random_float.h"
#include "text_run.h"

enum { SIDE = 1024, NUMEL = SIDE * SIDE };

static const char quantise_text[] = "graph \"quantise\"\n"
                                    "input x: f32[1024,1024]\n"
                                    "input scale: f32[4]\n"
                                    "q: %1$s[1024,1024], _, _ = fp8_quantise(x, scale) {dtype=%1$s}\n"
                                    "output codes = q\n";

static const char tiles_text[] = "graph \"tiles\"\n"
                                 "input x: f32[1024,1024]\n"
                                 "q: e4m3[1024,1024], q.1: f32[8,8] = fp8_tiles_quantise(x)\n"
                                 "output codes = q\n"
                                 "output scale = q.1\n";

static const char rows_text[] = "graph \"rows\"\n"
                                "input x: f32[1024,1024]\n"
                                "q: e4m3[1024,1024], _ = fp8_rows_quantise(x)\n"
                                "output codes = q\n";

static const char nvfp4_text[] = "graph \"nvfp4\"\n"
                                 "input x: f32[1024,1024]\n"
                                 "q: e2m1[1024,1024], q.1: e4m3[1024,64], q.2: f32[1] = nvfp4_quantise(x) "
                                 "{transposed=false, two_d=false, four_six=false, stochastic=false, hadamard=false, site=0}\n"
                                 "output codes = q\n"
                                 "output scale = q.2\n";

static const char decode_text[] = "graph \"decode\"\n"
                                  "input codes: e4m3[2,128]\n"
                                  "input scale: f32[1,1]\n"
                                  "input small: e2m1[256,16]\n"
                                  "input blocks: e4m3[256,1]\n"
                                  "input global: f32[1]\n"
                                  "w: f32[2,128] = fp8_tiles_dequantise(codes, scale) {dtype=f32, rows0=0, rows1=0, rows2=0}\n"
                                  "v: f32[256,16] = nvfp4_dequantise(small, blocks, global) "
                                  "{dtype=f32, transposed=false, rows0=0, rows1=0, rows2=0}\n"
                                  "output w = w\n"
                                  "output v = v\n";

static uint64_t num_floats(void)
{
#ifdef FAMILY_CUDA
    return 100000000;
#else
    return getenv("TEST_LONG") ? 100000000 : 1000000;
#endif
}

/* Limits magnitudes to `most`; the first element of each block or tile has that magnitude, so that its scale is 1. */
static void limit(float *x, float most, int block, int rows)
{
    int exponent;
    for (int i = 0; i < NUMEL; i++) {
        if (!(fabsf(x[i]) <= most)) x[i] = frexpf(isfinite(x[i]) ? x[i] : 0.3f, &exponent) * most;
        if (i % block == 0 && i / SIDE % rows == 0) x[i] = i & 64 ? most : -most;
    }
}

/* Compares a kernel's codes of x with those of dtype_encode. Where x isn't finite, the kernel's code must be NaN. */
static void compare(DType dtype, const float *x, const uint8_t *got, int64_t begin)
{
    static uint8_t want[NUMEL];
    int64_t        off = 0, first = 0;
    dtype_encode(dtype, x, NUMEL, want);
    for (int64_t i = begin; i < NUMEL; i++) {
        uint32_t code = dtype_code(dtype, got, i);
        float    value = 0;
        if (!isfinite(x[i])) dtype_decode(dtype, got + i, 1, &value);
        if (isfinite(x[i]) ? code == dtype_code(dtype, want, i) : isnan(value)) continue;
        if (!off++) first = i;
    }
    if (off)
        test_fail(__FILE__, __LINE__, "%s: %lld codes differ, the first that of %.9g: %u", dtype_info(dtype)->name, (long long)off,
                  (double)x[first], dtype_code(dtype, got, first));
}

typedef enum Kernel { KERNEL_QUANTISE, KERNEL_TILES, KERNEL_ROWS, KERNEL_NVFP4 } Kernel;

static void check_batch(Run *r, Kernel kernel, DType dtype, float *x)
{
    static uint8_t codes[NUMEL];
    const float    one[FP8_SCALE_FLOATS] = {1, 1};
    float          scale[64];
    if (kernel == KERNEL_TILES) limit(x, 448, 128, 128);
    if (kernel == KERNEL_ROWS) limit(x, 448, 128, 1);
    if (kernel == KERNEL_NVFP4) limit(x, 6, 16, 1), x[0] = 2688;
    EXPECT_OK(session_write(r->session, "x", x, NUMEL * sizeof *x));
    if (kernel == KERNEL_QUANTISE) EXPECT_OK(session_write(r->session, "scale", one, sizeof one));
    EXPECT_OK(session_run(r->session, r->program));
    EXPECT_OK(session_output(r->session, r->program, "codes", codes, (size_t)dtype_bytes(dtype, NUMEL)));
    int scales = kernel == KERNEL_TILES ? 64 : kernel == KERNEL_NVFP4 ? 1 : 0;
    if (scales) EXPECT_OK(session_output(r->session, r->program, "scale", scale, (size_t)scales * sizeof *scale));
    for (int i = 0; i < scales; i++) EXPECT(scale[i] == 1);
    compare(dtype, x, codes, kernel == KERNEL_NVFP4 ? 16 : 0); /* the first block has its own scale */
}

static void check_codes(const char *text, Kernel kernel, DType dtype)
{
    static float x[NUMEL];
    char        *typed = NULL;
    Run          r;
    EXPECT(asprintf(&typed, text, dtype_info(dtype)->name) > 0);
    run_open(&r, typed);
    for (uint64_t begin = 0; begin < num_floats(); begin += NUMEL) {
        for (uint32_t i = 0; i < NUMEL; i++) x[i] = random_float((uint32_t)begin + i);
        check_batch(&r, kernel, dtype, x);
    }
    run_close(&r);
    free(typed);
}

static void codes_with_a_scale_a_tensor_are_dtype_s(void)
{
    check_codes(quantise_text, KERNEL_QUANTISE, DT_E4M3);
    check_codes(quantise_text, KERNEL_QUANTISE, DT_E5M2);
}

static void codes_of_tiles_are_dtype_s(void)
{
    check_codes(tiles_text, KERNEL_TILES, DT_E4M3);
}

static void codes_of_rows_are_dtype_s(void)
{
    check_codes(rows_text, KERNEL_ROWS, DT_E4M3);
}

static void codes_of_nvfp4_are_dtype_s(void)
{
    check_codes(nvfp4_text, KERNEL_NVFP4, DT_E2M1);
}

static bool same_number(float a, float b)
{
    return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0;
}

/* In NVFP4, every code under every scale. */
static void every_code_has_dtype_s_value(void)
{
    uint8_t     codes[256], small[256 * 8];
    float       value[256], small_value[16], w[256], v[256 * 16];
    const float one = 1;
    Run         r;
    run_open(&r, decode_text);
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    for (int i = 0; i < 256 * 8; i++) small[i] = (uint8_t)(i % 8 * 2 | (i % 8 * 2 + 1) << 4);
    dtype_decode(DT_E4M3, codes, 256, value);
    dtype_decode(DT_E2M1, small, 16, small_value);
    EXPECT_OK(session_write(r.session, "codes", codes, sizeof codes));
    EXPECT_OK(session_write(r.session, "blocks", codes, sizeof codes));
    EXPECT_OK(session_write(r.session, "small", small, sizeof small));
    EXPECT_OK(session_write(r.session, "scale", &one, sizeof one));
    EXPECT_OK(session_write(r.session, "global", &one, sizeof one));
    EXPECT_OK(session_run(r.session, r.program));
    EXPECT_OK(session_output(r.session, r.program, "w", w, sizeof w));
    EXPECT_OK(session_output(r.session, r.program, "v", v, sizeof v));
    for (int i = 0; i < 256; i++) EXPECT(same_number(w[i], value[i]));
    for (int i = 0; i < 256 * 16; i++) EXPECT(same_number(v[i], small_value[i % 16] * value[i / 16]));
    run_close(&r);
}

TEST_MAIN(TEST(codes_with_a_scale_a_tensor_are_dtype_s), TEST(codes_of_tiles_are_dtype_s), TEST(codes_of_rows_are_dtype_s),
          TEST(codes_of_nvfp4_are_dtype_s), TEST(every_code_has_dtype_s_value))
