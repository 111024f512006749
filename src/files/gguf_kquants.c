/* Blocks of 256 values in groups, each with a small scale of its own.
 *
 * A group's scale is searched for: several ways to divide its range are each rounded, then fitted by least squares. The one with the
 * smallest squared error is taken. Then the groups' scales are rounded to multiples of the block's scale, and the codes are chosen anew for
 * the rounded scales. */
#include "files/gguf_blocks.h"

#include <math.h>

enum { VALUES = GGUF_MOST_BLOCK, GROUP = 32, GROUPS = VALUES / GROUP, FINE = 16, FINE_GROUPS = VALUES / FINE };

static int round_within(float value, int least, int most)
{
    float rounded = rintf(value);
    return rounded < (float)least ? least : rounded > (float)most ? most : (int)rounded;
}

/* ---- Q4_K and Q5_K: value = scale * code - minimum, both at least 0 ---- */

/* 1 / scale, or 0 if the scale is so small that every code is 0. */
static float inverse_of(float scale)
{
    return fabsf(scale) > 1e-30f ? 1 / scale : 0;
}

typedef struct Line {
    float scale, minimum;
    float error; /* sum of squared errors */
} Line;

static float line_error(const float *x, const Line *line, int most)
{
    float inverse = inverse_of(line->scale), error = 0;
    for (int i = 0; i < GROUP; i++) {
        float code = (float)round_within((x[i] + line->minimum) * inverse, 0, most);
        float off = line->scale * code - line->minimum - x[i];
        error += off * off;
    }
    return error;
}

/* The line that fits x best, by least squares, for the codes that x has on the line `from`. */
static Line fit_line(const float *x, const Line *from, int most)
{
    float inverse = inverse_of(from->scale), codes = 0, squares = 0, values = 0, products = 0;
    for (int i = 0; i < GROUP; i++) {
        float code = (float)round_within((x[i] + from->minimum) * inverse, 0, most);
        codes += code;
        squares += code * code;
        values += x[i];
        products += code * x[i];
    }
    float spread = GROUP * squares - codes * codes;
    Line  line = *from;
    if (spread <= 0) return line;
    line.scale = (GROUP * products - codes * values) / spread;
    line.minimum = (codes * products - squares * values) / spread;
    if (line.minimum < 0) line = (Line){.scale = products / squares};
    if (line.scale < 0) line = *from;
    return line;
}

static void keep_better(const float *x, int most, Line candidate, Line *best)
{
    candidate.error = line_error(x, &candidate, most);
    if (candidate.error < best->error) *best = candidate;
}

static Line find_line(const float *x, int most)
{
    enum { TRIALS = 12 };
    float least = 0, largest = x[0];
    for (int i = 0; i < GROUP; i++) {
        least = fminf(least, x[i]);
        largest = fmaxf(largest, x[i]);
    }
    Line best = {.scale = fmaxf(largest - least, 0) / (float)most, .minimum = -least};
    best.error = line_error(x, &best, most);
    if (inverse_of(best.scale) == 0) return best;
    for (int trial = 0; trial < TRIALS; trial++) { /* from a scale that is a bit too large to a scale that clips the range */
        Line line = {.scale = (largest - least) / ((float)most - 1.2f + 0.2f * (float)trial), .minimum = -least};
        keep_better(x, most, fit_line(x, &line, most), &best);
    }
    keep_better(x, most, fit_line(x, &best, most), &best);
    return best;
}

/* Twelve bytes hold the 6-bit scales and minimums of 8 groups. Bytes 0-3 are the scales of groups 0-3, with the top two bits of groups 4-7
 * above them; bytes 4-7 hold the minimums in the same way. Bytes 8-11 are the low four bits of groups 4-7: scale, then minimum. */
static void put_pairs(const uint8_t *scales, const uint8_t *minimums, uint8_t *at)
{
    for (int j = 0; j < 4; j++) {
        at[j] = (uint8_t)(scales[j] | scales[j + 4] >> 4 << 6);
        at[j + 4] = (uint8_t)(minimums[j] | minimums[j + 4] >> 4 << 6);
        at[j + 8] = (uint8_t)((scales[j + 4] & 15) | (minimums[j + 4] & 15) << 4);
    }
}

static void get_pairs(const uint8_t *at, uint8_t *scales, uint8_t *minimums)
{
    for (int j = 0; j < 4; j++) {
        scales[j] = at[j] & 63;
        minimums[j] = at[j + 4] & 63;
        scales[j + 4] = (uint8_t)((at[j + 8] & 15) | at[j] >> 6 << 4);
        minimums[j + 4] = (uint8_t)(at[j + 8] >> 4 | at[j + 4] >> 6 << 4);
    }
}

/* Each 64 codes share 32 bytes: the first 32 codes are the low halves. Fifth bits precede them: bit k of byte i is of code 32 k + i. */
static void put_run_codes(const uint8_t *codes, int bits, uint8_t *at)
{
    if (bits == 5) {
        memset(at, 0, GROUP);
        for (int i = 0; i < VALUES; i++) at[i % GROUP] |= (uint8_t)((codes[i] >> 4) << (i / GROUP));
        at += GROUP;
    }
    for (int i = 0; i < VALUES; i += 2 * GROUP, at += GROUP)
        for (int k = 0; k < GROUP; k++) at[k] = (uint8_t)((codes[i + k] & 15) | (codes[i + k + GROUP] & 15) << 4);
}

static void get_run_codes(const uint8_t *at, int bits, uint8_t *codes)
{
    const uint8_t *fifth = at;
    at += bits == 5 ? GROUP : 0;
    for (int i = 0; i < VALUES; i++) {
        int run = i / (2 * GROUP), half = i / GROUP % 2;
        codes[i] = (uint8_t)(at[run * GROUP + i % GROUP] >> (4 * half) & 15);
        if (bits == 5) codes[i] |= (uint8_t)((fifth[i % GROUP] >> (i / GROUP) & 1) << 4);
    }
}

void gguf_encode_q45_k(int bits, const float *values, uint8_t *block)
{
    Line    lines[GROUPS];
    uint8_t scales[GROUPS], minimums[GROUPS], codes[VALUES];
    float   largest_scale = 0, largest_minimum = 0;
    int     most = (1 << bits) - 1;
    for (int j = 0; j < GROUPS; j++) {
        lines[j] = find_line(values + j * GROUP, most);
        largest_scale = fmaxf(largest_scale, lines[j].scale);
        largest_minimum = fmaxf(largest_minimum, lines[j].minimum);
    }
    gguf_put_half(block, largest_scale / 63);
    gguf_put_half(block + 2, largest_minimum / 63);
    float d = gguf_get_half(block), e = gguf_get_half(block + 2);
    for (int j = 0; j < GROUPS; j++) {
        scales[j] = (uint8_t)(d > 0 ? round_within(lines[j].scale / d, 0, 63) : 0);
        minimums[j] = (uint8_t)(e > 0 ? round_within(lines[j].minimum / e, 0, 63) : 0);
        float scale = d * scales[j], minimum = e * minimums[j];
        for (int i = 0; i < GROUP; i++)
            codes[j * GROUP + i] = (uint8_t)(scale > 0 ? round_within((values[j * GROUP + i] + minimum) / scale, 0, most) : 0);
    }
    put_pairs(scales, minimums, block + 4);
    put_run_codes(codes, bits, block + 16);
}

void gguf_decode_q45_k(int bits, const uint8_t *block, float *values)
{
    uint8_t scales[GROUPS], minimums[GROUPS], codes[VALUES];
    float   d = gguf_get_half(block), e = gguf_get_half(block + 2);
    get_pairs(block + 4, scales, minimums);
    get_run_codes(block + 16, bits, codes);
    for (int i = 0; i < VALUES; i++) values[i] = d * scales[i / GROUP] * codes[i] - e * minimums[i / GROUP];
}

/* ---- Q6_K: value = scale * code, codes from -32 to 31, scales of either sign ---- */

static float fine_error(const float *x, float scale)
{
    float inverse = inverse_of(scale), error = 0;
    for (int i = 0; i < FINE; i++) {
        float off = scale * (float)round_within(x[i] * inverse, -32, 31) - x[i];
        error += off * off;
    }
    return error;
}

static float fit_fine(const float *x, float scale)
{
    float inverse = inverse_of(scale), products = 0, squares = 0;
    for (int i = 0; i < FINE; i++) {
        float code = (float)round_within(x[i] * inverse, -32, 31);
        products += code * x[i];
        squares += code * code;
    }
    return squares > 0 && products != 0 ? products / squares : scale;
}

/* The best scale of 16 values; 0: the values are so small that every code is 0. */
static float find_fine(const float *x)
{
    enum { TRIALS = 10 };
    float most = 0;
    for (int i = 0; i < FINE; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    if (fabsf(most) < 1e-15f) return 0;
    float best = -most / 32, least = fine_error(x, best);
    for (int trial = -TRIALS; trial <= TRIALS; trial++) {
        float scale = fit_fine(x, -most / (32 + 0.1f * (float)trial)), error = fine_error(x, scale);
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

/* Each 128 codes share 64 bytes of `low`: the low four bits of code i are in byte i % 64, in its low half for i < 64. They also share 32
 * bytes of `high`: the upper two bits of codes i, i + 32, i + 64 and i + 96 are in byte i. */
static void put_six_bits(const uint8_t *codes, uint8_t *low, uint8_t *high)
{
    memset(high, 0, VALUES / 4);
    for (int i = 0; i < VALUES; i++) {
        int      run = i / 128, at = i % 128;
        uint8_t *byte = &low[run * 64 + at % 64];
        *byte = (uint8_t)(at < 64 ? codes[i] & 15 : *byte | (codes[i] & 15) << 4);
        high[run * 32 + at % 32] |= (uint8_t)(codes[i] >> 4 << (at / 32 * 2));
    }
}

static int get_six_bits(const uint8_t *low, const uint8_t *high, int i)
{
    int run = i / 128, at = i % 128;
    return (low[run * 64 + at % 64] >> (at < 64 ? 0 : 4) & 15) | (high[run * 32 + at % 32] >> (at / 32 * 2) & 3) << 4;
}

enum { Q6_HIGH = 128, Q6_SCALES = 192, Q6_D = 208 };

void gguf_encode_q6_k(const float *values, uint8_t *block)
{
    float   scales[FINE_GROUPS], most = 0;
    uint8_t codes[VALUES];
    for (int j = 0; j < FINE_GROUPS; j++) {
        scales[j] = find_fine(values + j * FINE);
        if (fabsf(scales[j]) > fabsf(most)) most = scales[j];
    }
    gguf_put_half(block + Q6_D, most / -128);
    float d = gguf_get_half(block + Q6_D);
    for (int j = 0; j < FINE_GROUPS; j++) {
        int   stored = d != 0 ? round_within(scales[j] / d, -128, 127) : 0;
        float scale = d * (float)stored;
        block[Q6_SCALES + j] = (uint8_t)(int8_t)stored;
        for (int i = j * FINE; i < (j + 1) * FINE; i++)
            codes[i] = (uint8_t)(32 + (scale != 0 ? round_within(values[i] / scale, -32, 31) : 0));
    }
    put_six_bits(codes, block, block + Q6_HIGH);
}

void gguf_decode_q6_k(const uint8_t *block, float *values)
{
    float d = gguf_get_half(block + Q6_D);
    for (int i = 0; i < VALUES; i++) {
        float scale = d * (float)(int8_t)block[Q6_SCALES + i / FINE];
        values[i] = scale * (float)(get_six_bits(block, block + Q6_HIGH, i) - 32);
    }
}
