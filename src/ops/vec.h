/* Rows of floats on the CPU: load and store as f32, bf16 or f16, exp, sums and dot products. All arithmetic is fp32. Stores as f16 round to
 * nearest, so that magnitudes from 65520 on become infinity. Sums are added in an order that depends on `count` alone (4 groups of 8
 * lanes), so that they never differ from run to run. */
#pragma once

#include "base/avx2.h"
#include "base/cpu.h"
#include "base/dtype.h"

#include <math.h>

/* Marks a function: all that it calls is inlined and compiled for AVX-512. Call it only if cpu_avx512(). */
#ifdef __clang__
#define VEC_WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), flatten))
#else
#define VEC_WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"), flatten))
#endif

/* Like VEC_ROW, for parts of a VEC_WIDE function. */
#define VEC_WIDE_ROW VEC_WIDE static inline __attribute__((always_inline))

/* Begins a pool's task, `static void name(void *context, int64_t task, int worker)`. It is also compiled for AVX-512, where the constant
 * `wide` is true. Both give the same bits: elements are independent, and the source fixes the lanes of sums. */
#define VEC_TASK(name) \
    static inline void   name##_any(void *context, int64_t task, int worker, bool wide); \
    VEC_WIDE static void name##_wide(void *context, int64_t task, int worker) \
    { \
        name##_any(context, task, worker, true); \
    } \
    static void name(void *context, int64_t task, int worker) \
    { \
        if (cpu_avx512()) \
            name##_wide(context, task, worker); \
        else \
            name##_any(context, task, worker, false); \
    } \
    static inline void name##_any(void *context, int64_t task, int worker, bool wide __attribute__((unused)))

/* Before a loop: it is vectorised even if its results may overlap its operands; each result may overwrite only its own operand. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* sanitizers prevent vectorisation */
#define VEC_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define VEC_LOOP _Pragma("GCC ivdep")
#endif

/* A function over rows, whose first argument is their dtype: f32 or bf16. VEC_OF calls it with either dtype as a constant, so that vec_get
 * and vec_set in its loops have no choice to make and whole vectors are converted in registers. */
#define VEC_ROW static inline __attribute__((always_inline))
#define VEC_OF(dtype, row, ...) ((dtype) == DT_F32 ? row(DT_F32, __VA_ARGS__) : row(DT_BF16, __VA_ARGS__))

/* VEC_OF for f16 too, which decoding needs. */
#define VEC_OF_ANY(dtype, row, ...) ((dtype) == DT_F16 ? row(DT_F16, __VA_ARGS__) : VEC_OF(dtype, row, __VA_ARGS__))

enum { VEC_NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

/* The element at `index` of a tensor. */
static inline const void *vec_at(const void *data, DType dtype, int64_t index)
{
    return (const char *)data + index * (dtype == DT_F32 ? 4 : 2);
}

static inline void *vec_at_mut(void *data, DType dtype, int64_t index)
{
    return (char *)data + index * (dtype == DT_F32 ? 4 : 2);
}

static inline float vec_get(const void *data, DType dtype, int64_t index)
{
    if (dtype == DT_F32) return ((const float *)data)[index];
    uint16_t word = ((const uint16_t *)data)[index];
    return dtype == DT_F16 ? _cvtsh_ss(word) : bf16_to_f32(word);
}

static inline void vec_set(void *data, DType dtype, int64_t index, float value)
{
    if (dtype == DT_F32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = dtype == DT_F16 ? _cvtss_sh(value, VEC_NEAREST) : bf16_from_f32(value);
}

/* Elements that are computed side by side, in 6 AVX-512 registers; VEC_PART at a time if a row has fewer left. */
enum { VEC_BLOCK = 96, VEC_PART = 32 };

/* Prefetches a block of elements: from one row to the next the hardware prefetches late. The block may be past the end. */
VEC_ROW void vec_ahead(const void *row, DType dtype, int64_t i)
{
    const char *from = vec_at(row, dtype, i);
    for (int k = 0; k < VEC_BLOCK * (dtype == DT_F32 ? 4 : 2); k += 64) __builtin_prefetch(from + k);
}

/* Prefetches `count` elements if they are f32. bf16 takes so many instructions that the hardware prefetches it in time. */
VEC_ROW void vec_ahead_floats(DType dtype, const void *row, int64_t i, int64_t count)
{
    for (int64_t k = 0; dtype == DT_F32 && k < count; k += 16) __builtin_prefetch((const float *)row + i + k);
}

typedef float    Vec8 __attribute__((vector_size(32)));
typedef int32_t  Int8 __attribute__((vector_size(32)));
typedef uint32_t Word8 __attribute__((vector_size(32)));

static inline Vec8 vec8_load(const float *p)
{
    return (Vec8)_mm256_loadu_ps(p);
}

/* Keeps v in a register. Compilers would load a value once for each result that uses it, and a processor has only two loads a cycle. */
static inline Vec8 vec8_held(Vec8 v)
{
    __asm__("" : "+v"(v));
    return v;
}

/* Elements [i, i + 8) of a row. */
VEC_ROW Vec8 vec8_get(DType dtype, const void *row, int64_t i)
{
    if (dtype == DT_F32) return vec8_load((const float *)row + i);
    if (dtype == DT_F16) return (Vec8)_mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)row + i)));
    const __m256i high_halves = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1, -1, 10, 11, -1,
                                                 -1, 12, 13, -1, -1, 14, 15);
    __m128i       words = _mm_loadu_si128((const void *)((const uint16_t *)row + i));
    return (Vec8)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(words), high_halves);
}

/* Elements [i, i + n) in the first lanes, 0 in the others; n at most 8. */
VEC_ROW Vec8 vec8_some(DType dtype, const void *row, int64_t i, int64_t n)
{
    float lanes[8] = {0};
    if (n == 8) return vec8_get(dtype, row, i);
    for (int64_t k = 0; k < n; k++) lanes[k] = vec_get(row, dtype, i + k);
    return vec8_load(lanes);
}

/* Rounds each lane to bf16 in its low half, as bf16_from_f32 does; `nans` false: no lane is NaN. */
VEC_ROW __m256i vec8_rounded(Vec8 v, bool nans)
{
    Word8 word = (Word8)v, rounded = word + ((word >> 16 & 1) + 0x7FFF), nan = (Word8)(v != v);
    if (nans) rounded = (nan & (word | 0x400000)) | (~nan & rounded);
    return _mm256_srli_epi32((__m256i)rounded, 16);
}

/* Rounds 16 floats to bf16. The processor's instruction flushes denormals to 0: if a result is 0, all are rounded by hand. */
static inline __m256i vec16_bf16(Vec8 low, Vec8 high)
{
    if (atomic_load_explicit(&cpu_bf16, memory_order_relaxed)) {
        __m256i words;
        __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=x"(words) : "x"(low), "x"(high));
        if (!_mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_add_epi16(words, words), _mm256_setzero_si256()))) return words;
    }
    __m256i first = vec8_rounded(low, false), second = vec8_rounded(high, false);
    if (_mm256_movemask_ps(_mm256_cmp_ps((__m256)low, (__m256)high, _CMP_UNORD_Q))) {
        first = vec8_rounded(low, true);
        second = vec8_rounded(high, true);
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xD8);
}

static inline __m256i vec16_f16(Vec8 low, Vec8 high)
{
    return _mm256_setr_m128i(_mm256_cvtps_ph((__m256)low, VEC_NEAREST), _mm256_cvtps_ph((__m256)high, VEC_NEAREST));
}

/* Rounds the floats of two vectors to 16 bits each, in order. */
VEC_ROW __m256i vec16_narrow(DType dtype, Vec8 low, Vec8 high)
{
    return dtype == DT_F16 ? vec16_f16(low, high) : vec16_bf16(low, high);
}

/* Stores elements [i, i + 16), each as vec_set does. */
VEC_ROW void vec16_set(DType dtype, void *row, int64_t i, Vec8 low, Vec8 high)
{
    if (dtype == DT_F32) {
        memcpy((float *)row + i, &low, sizeof low);
        memcpy((float *)row + i + 8, &high, sizeof high);
    } else {
        _mm256_storeu_si256((void *)((uint16_t *)row + i), vec16_narrow(dtype, low, high));
    }
}

/* Stores elements [i, i + n); n at most 8. */
VEC_ROW void vec8_set(DType dtype, void *row, int64_t i, int64_t n, Vec8 v)
{
    Vec8 rounded = dtype == DT_F32 ? v : (Vec8)vec16_narrow(dtype, v, v);
    if (n == 8)
        memcpy(vec_at_mut(row, dtype, i), &rounded, dtype == DT_F32 ? 32 : 16);
    else
        memcpy(vec_at_mut(row, dtype, i), &rounded, (size_t)n * (dtype == DT_F32 ? 4 : 2));
}

/* Stores elements [i, i + 8) and [k, k + 8) of a row of bf16 or f16, which are rounded together. */
VEC_ROW void vec8_set_narrow(DType dtype, uint16_t *row, int64_t i, Vec8 at_i, int64_t k, Vec8 at_k)
{
    __m256i words = vec16_narrow(dtype, at_i, at_k);
    _mm_storeu_si128((void *)(row + i), _mm256_castsi256_si128(words));
    _mm_storeu_si128((void *)(row + k), _mm256_extracti128_si256(words, 1));
}

/* row[i] = value for `count` elements. `value` is an expression for elements [i, i + n) as a Vec8; it may read the row there. */
#define VEC_EACH(dtype, row, count, i, n, value) \
    do { \
        int64_t vec_at = 0; \
        for (; vec_at + 16 <= (count); vec_at += 16) { \
            Vec8 vec_pair[2]; \
            for (int64_t i = vec_at, n = 8; i < vec_at + 16; i += 8) vec_pair[(i - vec_at) / 8] = (value); \
            vec16_set(dtype, row, vec_at, vec_pair[0], vec_pair[1]); \
        } \
        for (int64_t i = vec_at, n = 8; i < (count); i += 8) { \
            n = (count)-i < 8 ? (count)-i : 8; \
            vec8_set(dtype, row, i, n, value); \
        } \
    } while (0)

/* Runs a statement on floats for each i below `count`, in vectors as wide as the task is compiled for. */
#define VEC_FLOATS(count, i, ...) \
    do { \
        int64_t vec_at = 0; \
        for (; vec_at + 16 <= (count); vec_at += 16) { \
            VEC_LOOP \
            for (int64_t i = vec_at; i < vec_at + 16; i++) __VA_ARGS__ \
        } \
        for (int64_t i = vec_at; i < (count); i++) __VA_ARGS__ \
    } while (0)

static inline Vec8 vec8_all(float x)
{
    return (Vec8){x, x, x, x, x, x, x, x};
}

/* x y - z and x y + z, rounded once. In a sum of two products compilers choose themselves which one to fuse. */
static inline Vec8 vec8_fms(Vec8 x, Vec8 y, Vec8 z)
{
    return (Vec8)_mm256_fmsub_ps((__m256)x, (__m256)y, (__m256)z);
}

static inline Vec8 vec8_fma(Vec8 x, Vec8 y, Vec8 z)
{
    return (Vec8)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
}

static inline float vec8_sum(Vec8 v)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1)); /* v[0] + v[4], v[1] + v[5], ... */
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

/* dst[i] = row[i], of a row in f32, bf16 or f16. */
static inline void vec_copy_in(float *dst, const void *row, DType dtype, int64_t count)
{
    if (dtype == DT_F32) {
        memcpy(dst, row, (size_t)count * sizeof(float));
        return;
    }
    if (dtype == DT_F16)
        VEC_EACH(DT_F32, dst, count, i, n, vec8_some(DT_F16, row, i, n));
    else
        VEC_EACH(DT_F32, dst, count, i, n, vec8_some(DT_BF16, row, i, n));
}

/* The row as f32: itself, or converted into `scratch` (count floats). */
static inline const float *vec_load_row(const void *row, DType dtype, int64_t count, float *scratch)
{
    if (dtype == DT_F32) return row;
    vec_copy_in(scratch, row, dtype, count);
    return scratch;
}

/* Where to compute a result row: the row itself when f32, else `scratch`; vec_store_row then finishes it. */
static inline float *vec_result_row(void *row, DType dtype, float *scratch)
{
    return dtype == DT_F32 ? row : scratch;
}

/* row = src; does nothing if src is the row. */
static inline void vec_store_row(void *row, DType dtype, const float *src, int64_t count)
{
    if (row == (const void *)src) return;
    if (dtype == DT_F32) {
        memcpy(row, src, (size_t)count * sizeof(float));
        return;
    }
    if (dtype == DT_F16)
        VEC_EACH(DT_F16, row, count, i, n, vec8_some(DT_F32, src, i, n));
    else
        VEC_EACH(DT_BF16, row, count, i, n, vec8_some(DT_F32, src, i, n));
}

/* sum += row. */
VEC_ROW void vec_sum_row(DType dtype, float *sum, const void *row, int64_t count)
{
    VEC_EACH(DT_F32, sum, count, i, n, vec8_some(DT_F32, sum, i, n) + vec8_some(dtype, row, i, n));
}

/* row += src, added in fp32. */
static inline void vec_add_row(void *row, DType dtype, const float *src, int64_t count)
{
    if (dtype == DT_F32)
        VEC_EACH(DT_F32, row, count, i, n, vec8_some(DT_F32, row, i, n) + vec8_some(DT_F32, src, i, n));
    else if (dtype == DT_F16)
        VEC_EACH(DT_F16, row, count, i, n, vec8_some(DT_F16, row, i, n) + vec8_some(DT_F32, src, i, n));
    else
        VEC_EACH(DT_BF16, row, count, i, n, vec8_some(DT_BF16, row, i, n) + vec8_some(DT_F32, src, i, n));
}

/* The range of vec_exp_within. Both are loaded, not constants: only then do compilers make one instruction, max or min, of a comparison. */
extern const float vec_exp_least, vec_exp_most;

/* e^x within 1 ulp: x = n ln2 + r, |r| <= ln2/2; e^r by a polynomial fitted to 7e-9, times 2^n. Results below 2^-126.5 become 0, from
 * 2^127.5 on inf; NaN stays NaN. No branches: loops over its steps vectorise. */
static const float vec_exp_fit[] = {0.00138105662f, 0.0083680721f, 0.0416682065f, 0.166665226f, 0.49999994f, 1.0f, 1.0f};
enum { VEC_EXP_DEGREE = 6 };

/* 1.5 * 2^23, and the exponent's bias: adding it rounds to a whole number, which is then in the low bits. */
#define VEC_EXP_MAGIC (12582912.0f + 127)

static inline float vec_exp_clamped(float x)
{
    x = x > vec_exp_most ? vec_exp_most : x;
    return x < vec_exp_least ? vec_exp_least : x;
}

static inline float vec_exp_shifted(float x)
{
    return x * 1.44269504088896341f + VEC_EXP_MAGIC;
}

static inline float vec_exp_rest(float x, float shifted)
{
    float n = shifted - VEC_EXP_MAGIC;
    return (x - n * 0.693359375f) + n * 2.12194440e-4f;
}

static inline float vec_exp_scaled(float p, float shifted)
{
    uint32_t bits;
    float    scale;
    memcpy(&bits, &shifted, 4);
    bits <<= 23; /* 0 where n is -127, inf where it is 128 */
    memcpy(&scale, &bits, 4);
    return p * scale;
}

static inline float vec_exp_within(float x)
{
    float shifted = vec_exp_shifted(x), r = vec_exp_rest(x, shifted), p = vec_exp_fit[0];
    for (int k = 1; k <= VEC_EXP_DEGREE; k++) p = p * r + vec_exp_fit[k];
    return vec_exp_scaled(p, shifted);
}

/* e^x for x up to vec_exp_most. */
static inline float vec_exp_below(float x)
{
    return vec_exp_within(x < vec_exp_least ? vec_exp_least : x);
}

/* e^x for every x. */
static inline float vec_expf(float x)
{
    return vec_exp_within(vec_exp_clamped(x));
}

/* x[i] = e^x[i]; count is a constant. Each step is done for all elements before the next step. The steps of one element depend on each
 * other: done element by element, they would fill the processor's queues before it reaches the next elements. With six registers a step is
 * finished when the next begins. */
VEC_ROW void vec_exp_block(float *x, const int count)
{
    float shifted[VEC_BLOCK], r[VEC_BLOCK], p[VEC_BLOCK];
    VEC_LOOP
    for (int i = 0; i < count; i++) x[i] = vec_exp_clamped(x[i]);
    VEC_LOOP
    for (int i = 0; i < count; i++) shifted[i] = vec_exp_shifted(x[i]);
    VEC_LOOP
    for (int i = 0; i < count; i++) r[i] = vec_exp_rest(x[i], shifted[i]);
    VEC_LOOP
    for (int i = 0; i < count; i++) p[i] = vec_exp_fit[0];
#pragma GCC unroll 8
    for (int k = 1; k <= VEC_EXP_DEGREE; k++) {
        VEC_LOOP
        for (int i = 0; i < count; i++) p[i] = p[i] * r[i] + vec_exp_fit[k];
    }
    VEC_LOOP
    for (int i = 0; i < count; i++) x[i] = vec_exp_scaled(p[i], shifted[i]);
}

/* x[i] = e^x[i] for `count` elements, at most VEC_BLOCK; wide: compiled for AVX-512. */
VEC_ROW void vec_exps(float *x, int64_t count, bool wide)
{
    if (wide && count == VEC_BLOCK) {
        vec_exp_block(x, VEC_BLOCK);
    } else if (wide && count == VEC_PART) {
        vec_exp_block(x, VEC_PART);
    } else {
        VEC_LOOP
        for (int64_t i = 0; i < count; i++) x[i] = vec_expf(x[i]);
    }
}

static inline float vec_sigmoid(float x)
{
    return 1.0f / (1.0f + vec_expf(-x));
}

/* tanh x within 3 ulp: below 0.625 an odd polynomial, fitted to 2e-10; else 1 - 2 / (e^2x + 1). No branches: loops over it vectorise. */
static inline float vec_tanhf(float x)
{
    static const float fit[] = {-0.33333331f, 0.13333210f, -0.05394720f, 0.02170297f, -0.00818268f, 0.00214754f};
    float              size = fabsf(x), x2 = x * x, p = fit[5];
    for (int k = 4; k >= 0; k--) p = p * x2 + fit[k];
    float near = x + x * x2 * p, far = 1.0f - 2.0f / (vec_expf(2.0f * size) + 1.0f);
    return size < 0.625f ? near : copysignf(far, x);
}

/* x[i] = cap tanh(x[i] / cap) */
static inline void vec_softcap(float *x, float cap, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] = cap * vec_tanhf(x[i] / cap);
}

VEC_ROW float vec_row_sum(DType dtype, const void *x, int64_t count)
{
    Vec8    s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        s0 += vec8_get(dtype, x, i);
        s1 += vec8_get(dtype, x, i + 8);
        s2 += vec8_get(dtype, x, i + 16);
        s3 += vec8_get(dtype, x, i + 24);
    }
    for (; i + 8 <= count; i += 8) s0 += vec8_get(dtype, x, i);
    float tail = 0;
    for (; i < count; i++) tail += vec_get(x, dtype, i);
    return vec8_sum((s0 + s1) + (s2 + s3)) + tail;
}

static inline float vec_sum(const float *x, int64_t count)
{
    return vec_row_sum(DT_F32, x, count);
}

VEC_ROW float vec_row_dot(DType dtype, const float *x, const void *y, int64_t count)
{
    Vec8    s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        s0 = vec8_fma(vec8_load(x + i), vec8_get(dtype, y, i), s0);
        s1 = vec8_fma(vec8_load(x + i + 8), vec8_get(dtype, y, i + 8), s1);
        s2 = vec8_fma(vec8_load(x + i + 16), vec8_get(dtype, y, i + 16), s2);
        s3 = vec8_fma(vec8_load(x + i + 24), vec8_get(dtype, y, i + 24), s3);
    }
    for (; i + 8 <= count; i += 8) s0 = vec8_fma(vec8_load(x + i), vec8_get(dtype, y, i), s0);
    float tail = 0;
    for (; i < count; i++) tail = fmaf(x[i], vec_get(y, dtype, i), tail);
    return vec8_sum((s0 + s1) + (s2 + s3)) + tail;
}

static inline float vec_dot(const float *x, const float *y, int64_t count)
{
    return vec_row_dot(DT_F32, x, y, count);
}

/* vec_dot of a row and itself. */
VEC_ROW float vec_row_squares(DType dtype, const void *x, int64_t count)
{
    Vec8    s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        Vec8 a = vec8_get(dtype, x, i), b = vec8_get(dtype, x, i + 8), c = vec8_get(dtype, x, i + 16), d = vec8_get(dtype, x, i + 24);
        s0 = vec8_fma(a, a, s0);
        s1 = vec8_fma(b, b, s1);
        s2 = vec8_fma(c, c, s2);
        s3 = vec8_fma(d, d, s3);
    }
    for (; i + 8 <= count; i += 8) {
        Vec8 a = vec8_get(dtype, x, i);
        s0 = vec8_fma(a, a, s0);
    }
    float tail = 0;
    for (; i < count; i++) tail = fmaf(vec_get(x, dtype, i), vec_get(x, dtype, i), tail);
    return vec8_sum((s0 + s1) + (s2 + s3)) + tail;
}

/* Sum of x w y, which norms need in the backward pass. x may be of another dtype than y; w is f32. Fused multiply-adds are explicit, so
 * that code for AVX-512 alone has the same bits. */
VEC_ROW float vec_row_dot3(DType dtype, const void *y, DType x_dtype, const void *x, const float *w, int64_t count)
{
    Vec8    s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        s0 = vec8_fma(vec8_get(x_dtype, x, i) * vec8_load(w + i), vec8_get(dtype, y, i), s0);
        s1 = vec8_fma(vec8_get(x_dtype, x, i + 8) * vec8_load(w + i + 8), vec8_get(dtype, y, i + 8), s1);
        s2 = vec8_fma(vec8_get(x_dtype, x, i + 16) * vec8_load(w + i + 16), vec8_get(dtype, y, i + 16), s2);
        s3 = vec8_fma(vec8_get(x_dtype, x, i + 24) * vec8_load(w + i + 24), vec8_get(dtype, y, i + 24), s3);
    }
    for (; i + 8 <= count; i += 8) s0 = vec8_fma(vec8_get(x_dtype, x, i) * vec8_load(w + i), vec8_get(dtype, y, i), s0);
    float tail = 0;
    for (; i < count; i++) tail = fmaf(vec_get(x, x_dtype, i) * w[i], vec_get(y, dtype, i), tail);
    return vec8_sum((s0 + s1) + (s2 + s3)) + tail;
}

static inline float vec_dot3(const float *x, const float *w, const float *y, int64_t count)
{
    return vec_row_dot3(DT_F32, y, DT_F32, x, w, count);
}

static inline Vec8 vec8_max(Vec8 a, Vec8 b)
{
    Int8 greater = b > a;
    return (Vec8)((greater & (Int8)b) | (~greater & (Int8)a));
}

/* The largest element; -inf if there are none. NaN is skipped: sums computed later become NaN again. */
static inline float vec_max(const float *x, int64_t count)
{
    Vec8    m0 = vec8_all(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        m0 = vec8_max(m0, vec8_load(x + i));
        m1 = vec8_max(m1, vec8_load(x + i + 8));
        m2 = vec8_max(m2, vec8_load(x + i + 16));
        m3 = vec8_max(m3, vec8_load(x + i + 24));
    }
    for (; i + 8 <= count; i += 8) m0 = vec8_max(m0, vec8_load(x + i));
    m0 = vec8_max(vec8_max(m0, m1), vec8_max(m2, m3));
    float most = -INFINITY;
    for (; i < count; i++) most = x[i] > most ? x[i] : most;
    for (int k = 0; k < 8; k++) most = m0[k] > most ? m0[k] : most;
    return most;
}

/* y[i] = e^(x[i] - shift); returns the sum of the first `count`. x may be y. room: elements of x and y, at least `count`. Elements after
 * `count` may become anything, so that whole vectors are computed. */
static inline float vec_exp_sum_within(float *y, const float *x, float shift, int64_t count, int64_t room)
{
    int64_t whole = (count + 15) & ~(int64_t)15;
    if (whole > room) whole = count;
    for (int64_t i = 0; i < whole; i++) y[i] = vec_expf(x[i] - shift);
    return vec_sum(y, count);
}

static inline float vec_exp_sum(float *y, const float *x, float shift, int64_t count)
{
    return vec_exp_sum_within(y, x, shift, count, count);
}

static inline void vec_scale(float *y, float a, int64_t count)
{
    for (int64_t i = 0; i < count; i++) y[i] *= a;
}
