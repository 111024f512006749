/* What CPU and CUDA share of `sample`, so that both choose the same ids of the same logits: no sum of floats decides anything. A token's
 * weight, e^((score - largest score) / temperature), is made by the same steps on both, rounded to 2^-40ths, and summed as a whole number:
 * in whatever order it is added up, a sum has the same bits. Temperature is part of the weight alone: an order of scores that it could
 * round to equals would be another.
 *
 * Tokens are ordered by score, the highest first, and of equal ones by id, the lowest first. `sample_order` is that as one number. */
#pragma once

#include "ops/attrs.h"
#include "ops/random.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    SAMPLE_IN_LOGITS,
    SAMPLE_IN_CONTROLS,
    SAMPLE_IN_KEYS,
    SAMPLE_IN_SLOTS,
    SAMPLE_IN_NEXT,
    SAMPLE_IN_SEEN,
    SAMPLE_IN_BIAS_IDS,
    SAMPLE_IN_BIAS,
    SAMPLE_IN_GUIDES,
    SAMPLE_NUM_IN
};
enum { SAMPLE_OUT_IDS, SAMPLE_OUT_LOGPROBS, SAMPLE_OUT_BEST_IDS, SAMPLE_OUT_BEST_LOGPROBS, SAMPLE_OUT_NEXT, SAMPLE_OUT_SEEN };

/* The most tokens that attribute best may ask for. */
enum { SAMPLE_MOST_BEST = 1024 };

/* Ids of rows that have none: no sequence is in the slot; the scores hold NaN or +inf, or are -inf for every token. */
enum { SAMPLE_IDLE = -1, SAMPLE_BAD = -2 };

#define SAMPLE_ONE (UINT64_C(1) << 40) /* the weight of the highest score */

/* On a GPU a row is cut into groups of whole steps of a warp; tokens that the largest scores of groups leave are listed. */
enum { SAMPLE_STEP = 512, SAMPLE_MOST_GROUPS = 1024, SAMPLE_LIST = 2048, SAMPLE_BUCKETS = 2048 };

/* Tokens of a group. */
static inline int64_t sample_group(int64_t vocab)
{
    int64_t steps = (vocab + SAMPLE_STEP - 1) / SAMPLE_STEP;
    return SAMPLE_STEP * ((steps + SAMPLE_MOST_GROUPS - 1) / SAMPLE_MOST_GROUPS);
}

/* Words of a row's guide, which has a bit for each column. */
static inline int64_t sample_guide_words(int64_t cols)
{
    return (cols + 31) / 32;
}

/* What the launches tell each other of a row, beside its groups, lists and buckets. */
typedef struct SampleState {
    uint64_t mass;                  /* of the logits */
    uint64_t all;                   /* of the scores, where top-p wants a part of it */
    uint64_t above;                 /* of what surely comes before the border */
    uint32_t listed, listed_logits; /* more than SAMPLE_LIST: the list isn't whole */
    uint32_t least;                 /* the key that listed scores have at least */
    uint32_t most, most_logit;      /* the largest keys */
    float    per_distance;          /* buckets of a distance of 1 */
} SampleState;

/* Workspace of a row: state, two lists, buckets; of each group its mass, its first token and two keys. */
#define SAMPLE_ROW_BYTES(groups) \
    ((int64_t)sizeof(SampleState) + 2 * 8 * SAMPLE_LIST + 4 * SAMPLE_BUCKETS + (2 * 8 + 2 * 4) * (int64_t)(groups))

/* Floats from row to row of changed scores. */
static inline int64_t sample_stride(int64_t vocab)
{
    return (vocab + 7) / 8 * 8;
}

#ifdef __CUDACC__
#define SAMPLE_FN static __host__ __device__ __forceinline__
#else
#define SAMPLE_FN static inline __attribute__((always_inline))
#endif

SAMPLE_FN uint32_t sample_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

SAMPLE_FN float sample_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* ---- a row's controls ---- */

typedef struct SampleRow {
    float    scale; /* 1 / temperature */
    float    repetition, presence, frequency;
    int64_t  top_k; /* 0: all */
    uint64_t top_p; /* in 2^-24ths; 2^24: all */
    uint64_t least; /* the least weight that min-p leaves */
} SampleRow;

/* Greedy is the best one of the order, whatever the other filters. */
SAMPLE_FN SampleRow sample_row(const float *controls, int64_t vocab)
{
    float temperature = controls[SAMPLE_TEMPERATURE], k = controls[SAMPLE_TOP_K], p = controls[SAMPLE_TOP_P],
          least = controls[SAMPLE_MIN_P];
    SampleRow row = {1, controls[SAMPLE_REPETITION], controls[SAMPLE_PRESENCE], controls[SAMPLE_FREQUENCY], 1, 1u << 24, 0};
    if (!(temperature > 0)) return row;
    row.scale = 1 / temperature < 3e38f ? 1 / temperature : 3e38f;
    row.top_k = k >= 1 && k < (float)vocab ? (int64_t)k : 0;
    row.top_p = p < 1 ? (uint64_t)(p > 0 ? p * 16777216.0f : 0) : 1u << 24;
    row.least = (uint64_t)(least > 0 ? (least < 1 ? least : 1) * (float)SAMPLE_ONE : 0);
    return row;
}

/* Whether scores of tokens that were seen differ from their logits. */
SAMPLE_FN bool sample_penalises(const SampleRow *row)
{
    return row->repetition != 1 || row->presence != 0 || row->frequency != 0;
}

/* The mass that top-p wants of `all`: at least the first token. */
SAMPLE_FN uint64_t sample_wanted(const SampleRow *row, uint64_t all)
{
    uint64_t low = (all & 0xFFFFFF) * row->top_p + 0xFFFFFF, wanted = (all >> 24) * row->top_p + (low >> 24);
    return wanted ? wanted : 1;
}

/* ---- scores and their order ---- */

/* seen: see mark_seen. What multiplies is rounded before what is added to it: the fmaf leaves compilers nothing to fuse. */
SAMPLE_FN float sample_penalised(const SampleRow *row, float x, uint32_t seen)
{
    uint32_t count = seen & ~SAMPLE_IN_PROMPT;
    if (!seen) return x;
    x = fmaf(-row->frequency, (float)count, x < 0 ? x * row->repetition : x / row->repetition);
    return count ? x - row->presence : x;
}

/* Floats as whole numbers of the same order; -0 is 0. */
SAMPLE_FN uint32_t sample_key(float x)
{
    uint32_t bits = sample_bits(x + 0.0f);
    return bits ^ (bits >> 31 ? ~0u : 0x80000000u);
}

SAMPLE_FN float sample_of_key(uint32_t key)
{
    return sample_float(key ^ (key >> 31 ? 0x80000000u : ~0u));
}

/* Whether a row whose largest score has this key can be drawn from. */
SAMPLE_FN bool sample_key_fits(uint32_t most)
{
    return most > sample_key(-INFINITY) && most < sample_key(INFINITY);
}

SAMPLE_FN uint64_t sample_order(float score, int64_t id)
{
    return (uint64_t)sample_key(score) << 32 | (uint32_t) ~(uint32_t)id;
}

SAMPLE_FN int32_t sample_order_id(uint64_t order)
{
    return (int32_t) ~(uint32_t)order;
}

SAMPLE_FN float sample_order_score(uint64_t order)
{
    return sample_of_key((uint32_t)(order >> 32));
}

/* A guide forbids what it has no bit for, whatever else changes scores; what is no score stays none. */
SAMPLE_FN float sample_guided(const uint32_t *guide, int64_t id, float x)
{
    return guide[id / 32] >> (id % 32) & 1 || !(x < INFINITY) ? x : -INFINITY;
}

/* ---- weights ---- */

/* The exponent of a weight, at most 0. */
SAMPLE_FN float sample_distance(float score, float most, float scale)
{
    return (score - most) * scale;
}

#define SAMPLE_MAGIC 12582912.0f /* 1.5 2^23: adding it rounds to a whole number, held in the low bits */

/* e^d for d at most 0, within 1.7e-7: d = n ln2 + r, e^r by a polynomial fitted to 9.2e-8. Below e^-30, which is 0 in 2^-40ths, e^-30;
 * NaN too. */
SAMPLE_FN float sample_exp(float d)
{
#ifdef __CUDA_ARCH__
    d = fmaxf(d, -30.0f);
#else
    d = d > -30.0f ? d : -30.0f;
#endif
    float shifted = fmaf(d, 1.44269504088896341f, SAMPLE_MAGIC), n = shifted - SAMPLE_MAGIC;
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, d));
    float e = fmaf(0.008290305733680725f, r, 0.0418979749083519f);
    e = fmaf(e, r, 0.1666763722896576f);
    e = fmaf(e, r, 0.4999915063381195f);
    e = fmaf(e, r, 0.9999997019767761f);
    e = fmaf(e, r, 1.0f);
    return sample_float(sample_bits(e) + (sample_bits(shifted) << 23));
}

/* A weight of at most 1 in 2^-40ths is 2^23 coarse + fine, |fine| <= 2^22: sums of up to 2^8 of either fit 32 bits. Two additions that
 * round make them, where a conversion to 64 bits would take a GPU eight times as long. */
#define SAMPLE_COARSE 96.0f            /* 1.5 2^6: numbers there are multiples of 2^-17 */
#define SAMPLE_FINE (1.5f / 131072.0f) /* 1.5 2^-17: of 2^-40 */

SAMPLE_FN int32_t sample_coarse(float e)
{
    return (int32_t)(sample_bits(e + SAMPLE_COARSE) - sample_bits(SAMPLE_COARSE));
}

SAMPLE_FN int32_t sample_fine(float e)
{
    float high = (e + SAMPLE_COARSE) - SAMPLE_COARSE;
    return (int32_t)(sample_bits((e - high) + SAMPLE_FINE) - sample_bits(SAMPLE_FINE));
}

SAMPLE_FN uint64_t sample_mass(int64_t coarse, int64_t fine)
{
    return (uint64_t)(coarse * (1 << 23) + fine);
}

SAMPLE_FN uint64_t sample_weight_at(float distance)
{
    float e = sample_exp(distance);
    return sample_mass(sample_coarse(e), sample_fine(e));
}

SAMPLE_FN uint64_t sample_weight(float score, float most, float scale)
{
    return sample_weight_at(sample_distance(score, most, scale));
}

/* ln of a token's share of a mass of weights like its own. The difference of two zeros may be -0: 0 is added. */
SAMPLE_FN float sample_logprob(float score, float most, float scale, uint64_t mass)
{
    return (float)((double)sample_distance(score, most, scale) - log((double)mass * (1.0 / (double)SAMPLE_ONE)) + 0.0);
}

/* ---- the draw ---- */

/* A whole number below `mass`: of the kept tokens in order of ids, the one is chosen with which their mass exceeds it. It is drawn by a
 * row of keys, which don't name the slot: a request has the same text wherever it runs. */
SAMPLE_FN uint64_t sample_draw(const uint32_t *keys, uint64_t mass)
{
    uint64_t seed = (uint64_t)keys[SAMPLE_SEED_HIGH] << 32 | keys[SAMPLE_SEED_LOW];
    Philox4  draw = philox4x32(keys[SAMPLE_REQUEST_LOW], keys[SAMPLE_REQUEST_HIGH], keys[SAMPLE_NUMBER], keys[SAMPLE_POSITION],
                               random_key((int64_t)seed, 0, RANDOM_SAMPLE, 0));
    uint64_t random = (uint64_t)draw.v[1] << 32 | draw.v[0];
#ifdef __CUDA_ARCH__
    return __umul64hi(random, mass);
#else
    __extension__ typedef unsigned __int128 Wide;
    return (uint64_t)((Wide)random * mass >> 64);
#endif
}
