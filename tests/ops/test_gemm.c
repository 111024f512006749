/* gemm_run, compared with three loops in fp64: every layout, dtype and size class, sub-matrices, and equal bits with any number of
 * threads. */
#include "ops/products/gemm.h"

#include "base/philox.h"
#include "test.h"

typedef struct Operands {
    Gemm   gemm;
    void  *a, *b, *bias, *c;
    size_t c_bytes;
} Operands;

static void *random_tensor(DType dtype, int64_t numel, uint64_t key)
{
    void *data = malloc((size_t)numel * 4 + 4);
    for (int64_t i = 0; i < numel; i++) {
        Philox4 draw = philox4x32((uint32_t)i, 0, 0, 0, key);
        float   value = (float)draw.v[0] / 2147483648.0f - 1.0f;
        dtype_encode(dtype, &value, 1, (char *)data + dtype_bytes(dtype, i));
    }
    return data;
}

/* Operands op(a) (m,k), op(b) (k,n), c (m,n), each inside rows that are `pad` elements wider. */
static Operands operands(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, DType a, DType b, DType c, int64_t pad)
{
    Operands o = {.gemm = {.m = m,
                           .n = n,
                           .k = k,
                           .a.trans = trans_a,
                           .b.trans = trans_b,
                           .alpha = 0.75f,
                           .a.dtype = a,
                           .b.dtype = b,
                           .c.dtype = c,
                           .bias.dtype = b}};
    o.gemm.a.stride = (trans_a ? m : k) + pad;
    o.gemm.b.stride = (trans_b ? k : n) + pad;
    o.gemm.c.stride = n + pad;
    o.gemm.a.data = o.a = random_tensor(a, (trans_a ? k : m) * o.gemm.a.stride, 1);
    o.gemm.b.data = o.b = random_tensor(b, (trans_b ? n : k) * o.gemm.b.stride, 2);
    o.gemm.c.data = o.c = random_tensor(c, m * o.gemm.c.stride, 3);
    o.bias = random_tensor(b, n, 4);
    o.c_bytes = (size_t)dtype_bytes(c, m * o.gemm.c.stride);
    return o;
}

static void operands_free(Operands *o)
{
    free(o->a), free(o->b), free(o->bias), free(o->c);
}

/* Runs the product; returns a copy of c. */
static void *product(const Operands *o, ThreadPool *pool)
{
    Gemm   gemm = o->gemm;
    size_t bytes = gemm_workspace(&gemm, pool_num_workers(pool));
    enum { BEYOND = 4096 };
    uint8_t *workspace = malloc(bytes + BEYOND), *c = malloc(o->c_bytes + 1);
    memset(workspace, 0xFF, bytes + BEYOND); /* fills with NaN: scratch is never read before it is written */
    memcpy(c, o->c, o->c_bytes);
    gemm.c.data = c;
    gemm_run(&gemm, pool, workspace);
    for (size_t i = bytes; i < bytes + BEYOND; i++)
        if (workspace[i] != 0xFF) {
            test_fail(__FILE__, __LINE__, "%lldx%lldx%lld wrote beyond its workspace", (long long)gemm.m, (long long)gemm.n,
                      (long long)gemm.k);
            break;
        }
    free(workspace);
    return c;
}

static void check_product(const Operands *o, const char *what)
{
    Gemm  reference = o->gemm;
    void *expected = malloc(o->c_bytes + 1), *got = product(o, NULL);
    memcpy(expected, o->c, o->c_bytes);
    reference.c.data = expected;
    gemm_reference(&reference);
    double worst = 0, largest = 1;
    for (int64_t i = 0; i < o->gemm.m * o->gemm.c.stride; i++) {
        double x = vec_get(got, o->gemm.c.dtype, i), y = vec_get(expected, o->gemm.c.dtype, i);
        if ((i - o->gemm.c.offset) % o->gemm.c.stride >= o->gemm.n && x != y)
            test_fail(__FILE__, __LINE__, "%s: wrote beyond its columns", what);
        worst = fmax(worst, isfinite(x) ? fabs(x - y) : INFINITY);
        largest = fmax(largest, fabs(y));
    }
    double limit = o->gemm.c.dtype == DT_F32 ? 2e-6 : 1.0 / 128;
    if (!(worst <= limit * largest)) test_fail(__FILE__, __LINE__, "%s: off by %g of %g", what, worst, largest);
    free(expected), free(got);
}

static void all_layouts_and_dtypes_match_three_loops(void)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {1, 70, 33},    {4, 65, 1100},  {5, 40, 20},    {130, 70, 40},
                                       {17, 600, 9}, {40, 24, 2100}, {5, 520, 1300}, {60, 1040, 340}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int bits = 0; bits < 64; bits++) {
            DType    a = bits & 1 ? DT_BF16 : DT_F32, b = bits & 2 ? DT_BF16 : DT_F32, c = bits & 4 ? DT_BF16 : DT_F32;
            Operands o = operands(sizes[s][0], sizes[s][1], sizes[s][2], bits & 8, bits & 16, a, b, c, bits & 32 ? 5 : 0);
            char     what[96];
            snprintf(what, sizeof what, "%lldx%lldx%lld, case %d", (long long)o.gemm.m, (long long)o.gemm.n, (long long)o.gemm.k, bits);
            o.gemm.accumulate = bits & 32;
            o.gemm.epilogue = bits & 8 ? GEMM_BIAS : GEMM_PLAIN;
            o.gemm.bias.data = o.bias;
            check_product(&o, what);
            operands_free(&o);
        }
}

static void check_dots(int64_t m, int64_t k, DType b)
{
    enum { N = 37 };
    Operands o = operands(m, N, k, false, true, DT_F32, b, DT_F32, 0);
    o.gemm.rows_alone = true;
    float *c = product(&o, NULL), *row = malloc((size_t)k * sizeof(float));
    for (int64_t j = 0; j < N; j++) {
        vec_copy_in(row, vec_at(o.b, b, j * k), b, k);
        for (int64_t i = 0; i < m; i++) {
            float expected = o.gemm.alpha * vec_dot((float *)o.a + i * k, row, k), got = c[i * N + j];
            if (memcmp(&got, &expected, sizeof got) != 0)
                test_fail(__FILE__, __LINE__, "%lld rows of %lld: %a, expected %a", (long long)m, (long long)k, got, expected);
        }
    }
    free(c), free(row);
    operands_free(&o);
}

/* Products of few rows give the bits of vec_dot, so decoding gives the same text on every processor. */
static void rows_alone_have_the_bits_of_vec_dot(void)
{
    static const int64_t rows[] = {1, 2, 3, 4, 11, 12, 31};
    for (int narrow = 0; narrow < 2; narrow++) {
        cpu_avx512_forbid(narrow);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int64_t k = 1; k < 140; k += k < 40 ? 1 : 13) {
                check_dots(rows[i], k, DT_F32);
                check_dots(rows[i], k, DT_BF16);
                check_dots(rows[i], k, DT_F16);
            }
    }
    cpu_avx512_forbid(false);
}

/* Compares a bf16 product of `rows` rows at a time with the product of all rows by tiles. */
static void check_few(const Operands *all, int64_t rows, const void *expected, ThreadPool *pool)
{
    for (int64_t row = 0; row + rows <= all->gemm.m; row += rows) {
        Operands some = *all;
        int64_t  stride = some.gemm.c.stride;
        some.gemm.m = rows, some.gemm.rows_alone = true;
        some.gemm.a.offset += row * some.gemm.a.stride;
        some.gemm.c.offset += row * stride;
        char *got = product(&some, pool);
        for (int64_t i = row; i < row + rows; i++) {
            size_t at = (size_t)dtype_bytes(some.gemm.c.dtype, i * stride);
            if (memcmp(got + at, (const char *)expected + at, (size_t)dtype_bytes(some.gemm.c.dtype, stride)) != 0)
                test_fail(__FILE__, __LINE__, "row %lld of %lldx%lldx%lld, %lld at a time, c %s", (long long)i, (long long)all->gemm.m,
                          (long long)all->gemm.n, (long long)all->gemm.k, (long long)rows, dtype_info(some.gemm.c.dtype)->name);
        }
        free(got);
    }
}

/* Prompts are read by tiles, and texts continue by few rows: the bits are equal. */
static void rows_of_bf16_have_the_bits_of_tiles(void)
{
    static const int64_t depths[] = {1, 7, 32, 45, 640, 643, 1300, 4065, 33, 4130}, rows[] = {1, 2, 3, 4, 5, 8, 9, 24};
    ThreadPool          *pool;
    EXPECT_OK(pool_create(3, &pool));
    for (int narrow = 0; narrow < 2; narrow++)
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
            for (int bits = 0; bits < 8; bits++) {
                Operands o = operands(24, d % 2 ? 37 : 300, depths[d], false, true, DT_BF16, DT_BF16, bits & 1 ? DT_F32 : DT_BF16, 3);
                o.gemm.accumulate = bits & 2;
                o.gemm.epilogue = bits & 4 ? GEMM_BIAS : GEMM_PLAIN;
                o.gemm.bias.data = o.bias;
                cpu_avx512_forbid(false);
                void *expected = product(&o, NULL);
                cpu_avx512_forbid(narrow);
                for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_few(&o, rows[i], expected, i % 2 ? pool : NULL);
                free(expected);
                operands_free(&o);
            }
    cpu_avx512_forbid(false);
    pool_destroy(pool);
}

/* gemm_run with 8-bit codes as one operand, as the FP8 ops call it, and as the other operand. */
static void codes_of_8_bits_are_numbers_in_units_of_their_scale(void)
{
    static const int64_t sizes[][3] = {{3, 70, 33}, {130, 70, 40}, {17, 600, 9}, {40, 24, 2100}};
    static const float   scales[] = {0x1p-3f, 3};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int bits = 0; bits < 32; bits++) {
            DType    a = bits & 1 ? DT_E4M3 : DT_E5M2, b = bits & 2 ? DT_E4M3 : DT_E5M2, c = bits & 4 ? DT_BF16 : DT_F32;
            Operands o = operands(sizes[s][0], sizes[s][1], sizes[s][2], bits & 8, bits & 16, a, b, c, 0);
            char     what[96];
            snprintf(what, sizeof what, "%s x %s, %lldx%lldx%lld, case %d", dtype_info(a)->name, dtype_info(b)->name, (long long)o.gemm.m,
                     (long long)o.gemm.n, (long long)o.gemm.k, bits);
            o.gemm.accumulate = bits & 8;
            o.gemm.a.scale = &scales[0], o.gemm.b.scale = &scales[1];
            check_product(&o, what);
            operands_free(&o);
        }
}

/* Parts of larger matrices, and operands with a scale. */
static void offsets_and_scales_apply(void)
{
    static const float scale_a = 0.25f, scale_b = 8;
    for (int dots = 0; dots < 2; dots++) {
        Operands o = operands(dots ? 3 : 20, 30, 40, false, true, DT_F32, DT_F32, DT_F32, 7);
        Gemm     part = o.gemm;
        part.m -= 1, part.n -= 2, part.k -= 3;
        part.a.offset = part.a.stride + 3, part.b.offset = 2 * part.b.stride + 3, part.c.offset = part.c.stride + 2;
        o.gemm = part;
        check_product(&o, "part");
        float *plain = product(&o, NULL);
        o.gemm.a.scale = &scale_a, o.gemm.b.scale = &scale_b;
        float *scaled = product(&o, NULL);
        for (int64_t i = 0; i < part.m; i++)
            for (int64_t j = 0; j < part.n; j++) {
                int64_t at = part.c.offset + i * part.c.stride + j;
                EXPECT(scaled[at] == 2 * plain[at]);
            }
        free(plain), free(scaled);
        operands_free(&o);
    }
}

static void plain_store_does_not_read_what_was_there(void)
{
    for (int dots = 0; dots < 2; dots++) {
        Operands o = operands(dots ? 2 : 20, 30, 10, false, true, DT_F32, DT_F32, DT_F32, 0);
        memset(o.c, 0xFF, o.c_bytes); /* fills with NaN */
        float *got = product(&o, NULL);
        for (int64_t i = 0; i < o.gemm.m * 30; i++) EXPECT(isfinite(got[i]));
        free(got);
        operands_free(&o);
    }
}

static void empty_sum_is_zero_or_what_was_there(void)
{
    Operands o = operands(6, 7, 0, false, false, DT_F32, DT_F32, DT_F32, 0);
    float   *zero = product(&o, NULL), *kept;
    o.gemm.accumulate = true;
    kept = product(&o, NULL);
    for (int i = 0; i < 42; i++) EXPECT(zero[i] == 0 && kept[i] == ((float *)o.c)[i]);
    free(zero), free(kept);
    operands_free(&o);
}

static void nan_and_infinity_reach_their_rows_alone(void)
{
    for (int dots = 0; dots < 2; dots++) {
        Operands o = operands(dots ? 3 : 30, 40, 50, false, true, DT_F32, DT_F32, DT_F32, 0);
        ((float *)o.a)[50 + 7] = NAN;
        ((float *)o.a)[2 * 50 + 9] = INFINITY;
        float *got = product(&o, NULL);
        for (int64_t i = 0; i < o.gemm.m; i++)
            for (int64_t j = 0; j < 40; j++) {
                float x = got[i * 40 + j];
                EXPECT(i == 1 ? isnan(x) : i == 2 ? isinf(x) : isfinite(x));
            }
        free(got);
        operands_free(&o);
    }
}

static void bits_do_not_depend_on_threads(void)
{
    static const int64_t sizes[][3] = {{1000, 512, 64}, {300, 520, 200}, {3, 4000, 100},    {500, 260, 1030},
                                       {100, 60, 9000}, {13, 7, 700},    {1500, 100, 9000}, {100, 1100, 700}};
    static const int     threads[] = {1, 2, 3, 4,
                                      5, 6, 40}; /* with 40 threads, runs are separate tasks; the last size has sums in several blocks */
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int d = 0; d < 3; d++) {
            static const DType operand[] = {DT_F32, DT_BF16, DT_E4M3}, result[] = {DT_F32, DT_BF16, DT_F32};
            Operands           o = operands(sizes[s][0], sizes[s][1], sizes[s][2], s >= 3, s < 3, operand[d], operand[d], result[d], 0);
            o.gemm.accumulate = s == 4 || s == 6;
            o.gemm.epilogue = s == 4 ? GEMM_BIAS : GEMM_PLAIN;
            o.gemm.bias.data = o.bias;
            void *one = product(&o, NULL);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                ThreadPool *pool;
                EXPECT_OK(pool_create(threads[t], &pool));
                for (int again = 0; again < 2; again++) {
                    void *got = product(&o, pool);
                    if (memcmp(one, got, o.c_bytes) != 0)
                        test_fail(__FILE__, __LINE__, "size %zu: %d threads give other bits", s, threads[t]);
                    free(got);
                }
                pool_destroy(pool);
            }
            free(one);
            operands_free(&o);
        }
}

/* Rows that are far apart in memory are read in another order than adjacent rows. */
static void bits_do_not_depend_on_where_rows_lie(void)
{
    enum { M = 1100, N = 140, K = 370, FAR_STRIDE = 16500 };
    Operands close = operands(M, N, K, true, false, DT_F32, DT_F32, DT_F32, 0), far = close;
    float   *rows = calloc((size_t)K * FAR_STRIDE, sizeof *rows);
    for (int64_t k = 0; k < K; k++) memcpy(rows + k * FAR_STRIDE, (float *)close.a + k * M, M * sizeof *rows);
    far.gemm.a.data = rows, far.gemm.a.stride = FAR_STRIDE;
    for (int adds = 0; adds < 2; adds++) {
        close.gemm.accumulate = far.gemm.accumulate = adds;
        float *expected = product(&close, NULL), *got = product(&far, NULL);
        check_product(&far, "rows far apart");
        EXPECT(memcmp(got, expected, far.c_bytes) == 0);
        free(expected), free(got);
    }
    free(rows);
    operands_free(&close);
}

/* With few threads (on some processors with one) each thread packs columns of c alone, or rows if b is small. A b whose rows run across the
 * depth is packed if its rows are a multiple of 2 KiB apart. */
static void bits_do_not_depend_on_who_packs(void)
{
    enum { M = 1030, K = 330 };
    static const struct {
        int64_t n;
        bool    across; /* rows of b run across the depth */
    } cases[] = {{1250, false}, {1250, true}, {20, false}, {20, true}, {90, false}};
    ThreadPool *many, *few;
    EXPECT_OK(pool_create(16, &many));
    EXPECT_OK(pool_create(2, &few));
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        int64_t  n = cases[i].n;
        bool     across = cases[i].across;
        Operands o = operands(M, n, K, false, !across, DT_F32, DT_F32, DT_F32, across ? 1536 - n : 3);
        o.gemm.accumulate = across;
        o.gemm.epilogue = GEMM_BIAS;
        o.gemm.bias.data = o.bias;
        o.gemm.a.offset = o.gemm.b.offset = o.gemm.c.offset = 2;
        check_product(&o, "parts of c made alone");
        float *one = product(&o, NULL), *two = product(&o, few), *sixteen = product(&o, many);
        cpu_avx512_forbid(true);
        float *narrow = product(&o, few);
        cpu_avx512_forbid(false);
        EXPECT(memcmp(one, two, o.c_bytes) == 0);
        EXPECT(memcmp(one, sixteen, o.c_bytes) == 0);
        EXPECT(memcmp(one, narrow, o.c_bytes) == 0);
        free(one), free(two), free(sixteen), free(narrow);
        operands_free(&o);
    }
    pool_destroy(many), pool_destroy(few);
}

/* Random sizes, layouts, dtypes and numbers of threads. */
static void any_product_has_its_bits_on_any_threads(void)
{
    static const DType   dtypes[] = {DT_F32, DT_F32, DT_BF16, DT_E4M3}, results[] = {DT_F32, DT_BF16};
    static const int     threads[] = {2, 3, 5, 8, 9, 16, 40};
    static const int64_t most_m[] = {8, 48, 700, 1400}, most_n[] = {8, 400, 700}, most_k[] = {16, 1500, 2500};
    enum { POOLS = sizeof threads / sizeof threads[0], CASES = TEST_IS_WATCHED ? 40 : 400 };
    ThreadPool *pools[POOLS];
    for (int i = 0; i < POOLS; i++) EXPECT_OK(pool_create(threads[i], &pools[i]));
    for (uint32_t number = 0; number < CASES; number++) {
        Philox4  x = philox4x32(number, 0, 0, 0, 5), y = philox4x32(number, 1, 0, 0, 5), z = philox4x32(number, 2, 0, 0, 5);
        int64_t  m = 1 + x.v[0] % most_m[y.v[0] % 4], n = 1 + x.v[1] % most_n[y.v[1] % 3], k = 1 + x.v[2] % most_k[y.v[2] % 3];
        DType    a = dtypes[z.v[0] % 4], b = z.v[0] & 4 ? a : dtypes[z.v[1] % 4], c = results[z.v[2] % 2];
        int64_t  pad = z.v[3] & 4 ? 512 - m % 512 : z.v[3] & 8 ? 3 : 0;
        Operands o = operands(m, n, k, z.v[3] & 1, z.v[3] & 2, a, b, c, pad);
        int      pool = (int)(y.v[3] % POOLS);
        o.gemm.accumulate = z.v[3] & 16;
        void *one = product(&o, NULL);
        for (int again = 0; again < 3; again++) { /* the first run wakes the workers, so that in later runs they compute tiles too */
            void *got = product(&o, pools[pool]);
            if (memcmp(one, got, o.c_bytes) != 0)
                test_fail(__FILE__, __LINE__, "case %u, %lldx%lldx%lld of %s and %s to %s: %d threads give other bits", number,
                          (long long)m, (long long)n, (long long)k, dtype_info(a)->name, dtype_info(b)->name, dtype_info(c)->name,
                          threads[pool]);
            free(got);
        }
        free(one);
        operands_free(&o);
    }
    for (int i = 0; i < POOLS; i++) pool_destroy(pools[i]);
}

/* Products with fewer rows than the smallest tile that workers end with. */
static void few_rows_keep_to_their_scratch(void)
{
    ThreadPool *pool;
    EXPECT_OK(pool_create(2, &pool));
    for (int64_t m = 20; m < 64; m++) {
        Operands o = operands(m, 382, 138, false, true, DT_E4M3, DT_E4M3, DT_BF16, 0);
        void    *one = product(&o, NULL);
        for (int again = 0; again < 8; again++) {
            void *got = product(&o, pool);
            EXPECT(memcmp(one, got, o.c_bytes) == 0);
            free(got);
        }
        free(one);
        operands_free(&o);
    }
    pool_destroy(pool);
}

TEST_MAIN(TEST(all_layouts_and_dtypes_match_three_loops), TEST(rows_alone_have_the_bits_of_vec_dot),
          TEST(rows_of_bf16_have_the_bits_of_tiles), TEST(codes_of_8_bits_are_numbers_in_units_of_their_scale),
          TEST(offsets_and_scales_apply), TEST(plain_store_does_not_read_what_was_there), TEST(empty_sum_is_zero_or_what_was_there),
          TEST(nan_and_infinity_reach_their_rows_alone), TEST(bits_do_not_depend_on_threads), TEST(bits_do_not_depend_on_where_rows_lie),
          TEST(bits_do_not_depend_on_who_packs), TEST(any_product_has_its_bits_on_any_threads), TEST(few_rows_keep_to_their_scratch))
