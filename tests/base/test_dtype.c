/* Number formats: every code and every rounding is compared with a slow reference in this file, and with hashes of other programs' results
 * (tests/oracle/make_dtypes.py).
 *
 * TEST_LONG=1: a hundred million random floats in place of a million. */
#include "base/dtype.h"

#include "base/json.h"
#include "base/small_float.h"
#include "random_float.h"
#include "test.h"

#include <float.h>
#include <stdlib.h>

static const DType coded[] = {DT_I8, DT_F16, DT_E4M3, DT_E5M2, DT_E2M1, DT_NF4};
enum { NUM_CODED = sizeof coded / sizeof coded[0], ALL_BF16 = 1 << 16, MOST_CODES = 1 << 16 };

typedef struct Code {
    double value;
    int    code;
} Code;

static float decoded[MOST_CODES]; /* values of the current format's codes, by code */
static Code  sorted[MOST_CODES];  /* finite values of the current format, ascending; zero once */
static int   num_codes, num_sorted;

/* Encodes one element per code, for formats of any width. */
static void encode(DType dtype, const float *values, int64_t numel, uint16_t *out)
{
    for (int64_t i = 0; i < numel; i++) {
        float   pair[2] = {values[i], 0};
        uint8_t bytes[4] = {0};
        dtype_encode(dtype, pair, dtype_info(dtype)->block, bytes);
        out[i] = (uint16_t)(bytes[0] | (dtype_info(dtype)->bits == 16 ? bytes[1] << 8 : 0));
        if (dtype_info(dtype)->block == 2) out[i] = dtype_info(dtype)->first_is_high ? bytes[0] >> 4 : bytes[0] & 15;
    }
}

static int compare(const void *a, const void *b)
{
    double x = ((const Code *)a)->value, y = ((const Code *)b)->value;
    return (x > y) - (x < y);
}

static void decode_all(DType dtype)
{
    num_codes = 1 << dtype_info(dtype)->bits;
    for (int code = 0; code < num_codes; code++) {
        uint8_t bytes[2] = {(uint8_t)code, (uint8_t)(code >> 8)};
        float   pair[2];
        if (dtype_info(dtype)->block == 2) bytes[0] = (uint8_t)(code | code << 4);
        dtype_decode(dtype, bytes, dtype_info(dtype)->block, pair);
        decoded[code] = pair[0];
    }
    num_sorted = 0;
    for (int code = 0; code < num_codes; code++)
        if (isfinite(decoded[code]) && !(decoded[code] == 0 && signbit(decoded[code]))) sorted[num_sorted++] = (Code){decoded[code], code};
    qsort(sorted, (size_t)num_sorted, sizeof *sorted, compare);
}

/* The nearest finite value. A tie goes to the value with the even code; in NF4 to the lower one. */
static double nearest(DType dtype, float x)
{
    int low = 0, high = num_sorted - 1;
    if (x <= sorted[low].value) return sorted[low].value;
    if (x >= sorted[high].value) return sorted[high].value;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(sorted[middle].value <= x ? &low : &high) = middle;
    }
    double below = sorted[low].value, above = sorted[high].value;
    if (dtype == DT_NF4) return x > ((float)below + (float)above) / 2 ? above : below;
    if (x - below != above - x) return x - below < above - x ? below : above;
    return sorted[low].code % 2 ? above : below;
}

/* Formats with NaN; all of them except e4m3 have infinities too. */
static bool has_specials(DType dtype)
{
    return dtype == DT_F16 || dtype == DT_E4M3 || dtype == DT_E5M2;
}

/* Whether `got` is a correct result for an infinity: infinite or NaN, or the largest value if the format has neither. */
static bool is_from_infinity(DType dtype, float x, float got)
{
    if (signbit(got) != signbit(x)) return false;
    return dtype == DT_E4M3 ? isnan(got) : has_specials(dtype) ? isinf(got) : got == (x > 0 ? sorted[num_sorted - 1] : sorted[0]).value;
}

static void expect_rounded(DType dtype, float x, uint16_t code)
{
    const DTypeInfo *info = dtype_info(dtype);
    bool             has_nan = has_specials(dtype);
    if (isinf(x)) {
        if (!is_from_infinity(dtype, x, decoded[code])) test_fail(__FILE__, __LINE__, "%s: %g becomes %g", info->name, x, decoded[code]);
        return;
    }
    if (isnan(x) && has_nan) {
        if (!isnan(decoded[code])) test_fail(__FILE__, __LINE__, "%s: NaN becomes %g", info->name, decoded[code]);
        return;
    }
    double want = isnan(x) ? 0 : nearest(dtype, x);
    if (decoded[code] != want) test_fail(__FILE__, __LINE__, "%s: %.9g becomes %.9g, expected %.9g", info->name, x, decoded[code], want);
    bool has_sign = dtype != DT_I8 && dtype != DT_NF4 && !isnan(x);
    if (has_sign && signbit(decoded[code]) != signbit(x)) test_fail(__FILE__, __LINE__, "%s: %.9g changes its sign", info->name, x);
}

static uint64_t fnv(uint64_t hash, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001B3u;
    return hash;
}

#define FNV_START 0xCBF29CE484222325u

static uint64_t hash_codes(DType dtype, const uint16_t *codes, int64_t numel)
{
    uint64_t hash = FNV_START;
    for (int64_t i = 0; i < numel; i++) hash = fnv(hash, &codes[i], dtype_info(dtype)->bits == 16 ? 2 : 1);
    return hash;
}

static uint64_t hash_decoded(void)
{
    uint64_t hash = FNV_START;
    for (int code = 0; code < num_codes; code++) {
        uint32_t word = 0x7FC00000u;
        if (!isnan(decoded[code])) memcpy(&word, &decoded[code], 4);
        hash = fnv(hash, &word, 4);
    }
    return hash;
}

static void expect_hash(const JsonValue *hashes, DType dtype, const char *what, uint64_t hash)
{
    char        text[17];
    const char *want = "";
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    json_get_str(json_get(hashes, dtype_info(dtype)->name), what, &want);
    if (strcmp(text, want) != 0) test_fail(__FILE__, __LINE__, "%s: %s is %s, the oracle's %s", dtype_info(dtype)->name, what, text, want);
}

static JsonValue read_hashes(Arena *arena)
{
    static char text[8192];
    JsonValue   hashes = {0};
    FILE       *file = fopen("tests/fixtures/dtypes.json", "r");
    EXPECT(file != NULL);
    size_t len = file ? fread(text, 1, sizeof text, file) : 0;
    EXPECT_OK(json_parse(arena, "dtypes.json", text, len, &hashes));
    if (file) fclose(file);
    return hashes;
}

static void codes_and_roundings_are_the_oracle_s(void)
{
    Arena           arena = {0};
    const JsonValue hashes = read_hashes(&arena);
    float          *values = arena_array(&arena, float, 3 * MOST_CODES);
    uint16_t       *codes = arena_array(&arena, uint16_t, 3 * MOST_CODES);
    for (int k = 0; k < NUM_CODED; k++) {
        DType   dtype = coded[k];
        int64_t n = 0;
        decode_all(dtype);
        expect_hash(&hashes, dtype, "decode", hash_decoded());
        for (int i = 0; i < ALL_BF16; i++) values[i] = bf16_to_f32((uint16_t)i);
        encode(dtype, values, ALL_BF16, codes);
        for (int i = 0; i < ALL_BF16; i++) expect_rounded(dtype, values[i], codes[i]);
        expect_hash(&hashes, dtype, "bf16", hash_codes(dtype, codes, ALL_BF16));
        for (int i = 0; i + 1 < num_sorted; i++) {
            float middle = ((float)sorted[i].value + (float)sorted[i + 1].value) / 2;
            values[n++] = nextafterf(middle, -INFINITY);
            values[n++] = middle;
            values[n++] = nextafterf(middle, INFINITY);
        }
        encode(dtype, values, n, codes);
        for (int64_t i = 0; i < n; i++) expect_rounded(dtype, values[i], codes[i]);
        expect_hash(&hashes, dtype, "ties", hash_codes(dtype, codes, n));
    }
    arena_deinit(&arena);
}

static void what_is_beyond_is_the_largest_and_codes_come_back(void)
{
    static const double largest[NUM_CODED] = {127, 65504, 448, 57344, 6, 1};
    for (int k = 0; k < NUM_CODED; k++) {
        const float beyond[] = {FLT_MAX, (float)largest[k] * 1.25f}, infinity = INFINITY;
        uint16_t    code, again;
        decode_all(coded[k]);
        EXPECT(sorted[num_sorted - 1].value == largest[k]);
        encode(coded[k], &infinity, 1, &code);
        EXPECT(is_from_infinity(coded[k], infinity, decoded[code]));
        for (int i = 0; i < 2; i++) {
            float negative = -beyond[i];
            encode(coded[k], &beyond[i], 1, &code);
            EXPECT(decoded[code] == sorted[num_sorted - 1].value);
            encode(coded[k], &negative, 1, &code);
            EXPECT(decoded[code] == sorted[0].value);
        }
        for (int i = 0; i < num_codes; i++) {
            if (!isfinite(decoded[i])) continue;
            encode(coded[k], &decoded[i], 1, &again);
            EXPECT_INT(again, i);
        }
    }
}

static void long_rows_are_as_single_values(void)
{
    enum { N = 1030 };
    float    values[N], got[N], one[N];
    uint16_t codes[N], single[N];
    for (int i = 0; i < N; i++) values[i] = (float)((i * 7919 % 2003) - 1000) / 401;
    for (int k = 0; k < NUM_CODED; k++) {
        decode_all(coded[k]);
        dtype_encode(coded[k], values, N, codes);
        dtype_decode(coded[k], codes, N, got);
        encode(coded[k], values, N, single);
        for (int i = 0; i < N; i++) one[i] = decoded[single[i]];
        EXPECT(memcmp(got, one, sizeof got) == 0);
    }
}

/* In NVFP4 the element with the even index is in the low four bits; in bitsandbytes' NF4 in the high four bits. */
static void two_elements_share_a_byte_in_the_stated_order(void)
{
    const float values[4] = {1, -6, 0, 0.5f};
    uint8_t     bytes[2];
    dtype_encode(DT_E2M1, values, 4, bytes);
    EXPECT_INT(bytes[0], 0xF2);
    EXPECT_INT(bytes[1], 0x10);
    dtype_encode(DT_NF4, values, 4, bytes);
    EXPECT_INT(bytes[0], 0xF0);
    EXPECT_INT(bytes[1], 0x7C);
}

static void sizes_are_of_whole_blocks(void)
{
    static const int64_t bytes_of_64[DT_COUNT] = {256, 128, 256, 512, 64, 64, 128, 64, 64, 32, 32};
    for (int i = 0; i < DT_COUNT; i++) {
        const DTypeInfo *info = dtype_info((DType)i);
        DType            parsed;
        EXPECT_INT(dtype_bytes((DType)i, 64), bytes_of_64[i]);
        EXPECT_INT(dtype_bytes((DType)i, 0), 0);
        EXPECT_INT(info->bits * info->block % 8, 0);
        EXPECT(dtype_parse(info->hf_name, &parsed) && parsed == (DType)i);
    }
}

static void values_beyond_a_format_are_found(void)
{
    float *values = calloc(5000, sizeof *values);
    values[4001] = 65519;
    values[4003] = -65520;
    values[4009] = 0x1.FFp127f;
    values[4500] = NAN;
    EXPECT_INT(dtype_first_unfit(DT_F16, values, 5000), 4003);
    EXPECT_INT(dtype_first_unfit(DT_BF16, values, 5000), 4009);
    EXPECT_INT(dtype_first_unfit(DT_F32, values, 5000), 4500);
    EXPECT_INT(dtype_first_unfit(DT_F32, values, 4500), 4500);
    free(values);
}

static void codes_of_random_floats_are_ml_dtypes_s(void)
{
    enum { PART = 1000 };
    static const DType small[] = {DT_E4M3, DT_E5M2, DT_E2M1};
    Arena              arena = {0};
    const JsonValue    hashes = read_hashes(&arena);
    float              values[PART];
    uint8_t            codes[PART];
    bool               is_long = getenv("TEST_LONG") != NULL;
    uint64_t           count = is_long ? 100000000 : 1000000;
    for (int k = 0; k < 3; k++) {
        uint64_t sum = 0;
        for (uint64_t begin = 0; begin < count; begin += PART) {
            for (uint32_t i = 0; i < PART; i++) values[i] = random_float((uint32_t)begin + i);
            dtype_encode(small[k], values, PART, codes);
            for (uint32_t i = 0; i < PART; i++) sum += (dtype_code(small[k], codes, i) + UINT64_C(1)) * (2 * (begin + i) + 1);
        }
        expect_hash(&hashes, small[k], is_long ? "long" : "million", sum);
    }
    arena_deinit(&arena);
}

/* Rounds a value with each of 65,536 random numbers once: the mean is the value, within 2^-17 of a step. */
static void stochastic_rounding_of_small_floats_has_no_bias(void)
{
    const SmallFloat formats[] = {small_e4m3(), small_e5m2(), small_e2m1()};
    for (int k = 0; k < 3; k++)
        for (uint32_t i = 0; i < 300; i++) {
            float  x = ldexpf(1 + (float)(i * 2654435761u >> 8) / 16777216.0f, -(int)(i % 12)) * (i & 1 ? -1.0f : 1.0f);
            float  near = small_decode(formats[k], small_nearest(formats[k], x)), low = 0, high = 0;
            double sum = 0;
            for (uint32_t random = 0; random < 65536; random++) {
                float got = small_decode(formats[k], small_stochastic(formats[k], x, random));
                low = random ? fminf(low, got) : got;
                high = random ? fmaxf(high, got) : got;
                sum += (double)got;
            }
            EXPECT_NEAR(sum / 65536, x, (high - low) * 0x1.01p-17f + fabsf(x) * 0x1p-20f);
            EXPECT(near == low || near == high || (low == high && fabsf(near - x) < 1));
            EXPECT_INT(small_stochastic(formats[k], near, (uint32_t)i * 7919 % 65536), small_nearest(formats[k], near));
        }
}

static void stochastic_rounding_keeps_what_has_no_neighbours(void)
{
    const SmallFloat formats[] = {small_e4m3(), small_e5m2(), small_e2m1()};
    for (int k = 0; k < 3; k++)
        for (uint32_t random = 0; random < 65536; random += 21845) {
            const float values[] = {0, -0.0f, 1e6f, -3e38f, INFINITY, -INFINITY, NAN};
            for (int i = 0; i < 7; i++) EXPECT_INT(small_stochastic(formats[k], values[i], random), small_nearest(formats[k], values[i]));
        }
}

TEST_MAIN(TEST(codes_and_roundings_are_the_oracle_s), TEST(what_is_beyond_is_the_largest_and_codes_come_back),
          TEST(long_rows_are_as_single_values), TEST(two_elements_share_a_byte_in_the_stated_order), TEST(sizes_are_of_whole_blocks),
          TEST(values_beyond_a_format_are_found), TEST(codes_of_random_floats_are_ml_dtypes_s),
          TEST(stochastic_rounding_of_small_floats_has_no_bias), TEST(stochastic_rounding_keeps_what_has_no_neighbours))
