/* Shared by CPU and CUDA, so that both choose the same ids from the same logits: no sum of floats decides anything. A token's weight,
 * e^((score - largest score) / temperature), is computed by the same steps on both, rounded to a multiple of 2^-40 and summed as an integer
 * (a mass). So a mass has the same bits in whatever order it is summed. Temperature only changes weights: scores divided by it could round
 * to equal values, which would change their order.
 *
 * Tokens are ordered by score, the highest first, and tokens of equal score by id, the lowest first. `sample_order` makes one number of
 * both: a token that comes first has a larger one. The border is the last token in this order that top-k and top-p keep. */
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

/* Ids for rows without a choice. IDLE: the slot belongs to no sequence. BAD: a score is NaN or +inf, or all are -inf. */
enum { SAMPLE_IDLE = -1, SAMPLE_BAD = -2 };

#define SAMPLE_ONE (UINT64_C(1) << 40) /* the weight of the highest score: 1 in units of 2^-40 */

/* A GPU divides a row into groups, each a multiple of a warp's step of SAMPLE_STEP tokens. Lists hold up to SAMPLE_LIST tokens. */
enum { SAMPLE_STEP = 512, SAMPLE_MOST_GROUPS = 1024, SAMPLE_LIST = 2048, SAMPLE_BUCKETS = 2048 };

/* Tokens in a group. */
static inline int64_t sample_group(int64_t vocab)
{
    int64_t steps = (vocab + SAMPLE_STEP - 1) / SAMPLE_STEP;
    return SAMPLE_STEP * ((steps + SAMPLE_MOST_GROUPS - 1) / SAMPLE_MOST_GROUPS);
}

/* Words in a row's guide, which has one bit per column. */
static inline int64_t sample_guide_words(int64_t cols)
{
    return (cols + 31) / 32;
}

/* What launches pass on about a row, beside its groups, lists and buckets. */
typedef struct SampleState {
    uint64_t mass;                  /* mass of the logits, with temperature 1 */
    uint64_t all;                   /* mass of the scores, if top-p needs it */
    uint64_t above;                 /* mass of tokens that certainly come before the border */
    uint32_t listed, listed_logits; /* tokens in each list; above SAMPLE_LIST: the list is incomplete */
    uint32_t least;                 /* least key of listed scores */
    uint32_t most, most_logit;      /* largest keys of the scores and of the logits */
    float    per_distance;          /* number of buckets for a distance of 1 */
} SampleState;

/* Workspace of a row in bytes: state, two lists, buckets; for each group its mass, its first token and two keys. */
#define SAMPLE_ROW_BYTES(groups) \
    ((int64_t)sizeof(SampleState) + 2 * 8 * SAMPLE_LIST + 4 * SAMPLE_BUCKETS + (2 * 8 + 2 * 4) * (int64_t)(groups))

/* Floats from one row of changed scores to the next. */
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
    int64_t  top_k; /* 0: no limit */
    uint64_t top_p; /* in units of 2^-24; 2^24: no limit */
    uint64_t least; /* least weight that min-p keeps */
} SampleRow;

/* Reads a row's controls. Greedy means top-k 1, whatever the other controls are. */
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

/* Whether penalties change the scores of tokens that were seen. */
SAMPLE_FN bool sample_penalises(const SampleRow *row)
{
    return row->repetition != 1 || row->presence != 0 || row->frequency != 0;
}

/* The mass that top-p keeps, out of `all`: enough for at least the first token. */
SAMPLE_FN uint64_t sample_wanted(const SampleRow *row, uint64_t all)
{
    uint64_t low = (all & 0xFFFFFF) * row->top_p + 0xFFFFFF, wanted = (all >> 24) * row->top_p + (low >> 24);
    return wanted ? wanted : 1;
}

/* ---- scores and their order ---- */

/* seen: see mark_seen. The product is rounded before the sum, on CPU and CUDA alike: fmaf leaves nothing for compilers to fuse. */
SAMPLE_FN float sample_penalised(const SampleRow *row, float x, uint32_t seen)
{
    uint32_t count = seen & ~SAMPLE_IN_PROMPT;
    if (!seen) return x;
    x = fmaf(-row->frequency, (float)count, x < 0 ? x * row->repetition : x / row->repetition);
    return count ? x - row->presence : x;
}

/* Maps floats to integers in the same order; -0 equals 0. */
SAMPLE_FN uint32_t sample_key(float x)
{
    uint32_t bits = sample_bits(x + 0.0f);
    return bits ^ (bits >> 31 ? ~0u : 0x80000000u);
}

SAMPLE_FN float sample_of_key(uint32_t key)
{
    return sample_float(key ^ (key >> 31 ? 0x80000000u : ~0u));
}

/* Whether a row whose largest key is `most` has finite scores to draw from. */
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

/* Tokens without a bit in the guide get -inf, whatever their score; NaN and +inf stay, so that a bad row stays bad. */
SAMPLE_FN float sample_guided(const uint32_t *guide, int64_t id, float x)
{
    return guide[id / 32] >> (id % 32) & 1 || !(x < INFINITY) ? x : -INFINITY;
}

/* ---- weights ---- */

/* The exponent of a token's weight, at most 0. */
SAMPLE_FN float sample_distance(float score, float most, float scale)
{
    return (score - most) * scale;
}

#define SAMPLE_MAGIC 12582912.0f /* 1.5 2^23: adding it rounds a float to an integer, which is then in the low bits */

/* e^d for d at most 0, with an error of at most 1.7e-7: d = n ln2 + r, and e^r by a polynomial fitted to 9.2e-8. For d below -30 and for
 * NaN it is e^-30, which rounds to a weight of 0. */
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

/* A weight e of at most 1, in units of 2^-40, is 2^23 coarse + fine with |fine| <= 2^22, so sums of 2^8 weights have parts that fit 32
 * bits. Each part takes a rounding addition; a conversion to 64 bits would take a GPU eight times as long. */
#define SAMPLE_COARSE 96.0f            /* 1.5 2^6: floats near it are multiples of 2^-17 */
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

/* ln of a token's share of `mass`, which is a mass of weights with the same `most` and `scale`. Adding 0.0 turns -0 into 0. */
SAMPLE_FN float sample_logprob(float score, float most, float scale, uint64_t mass)
{
    return (float)((double)sample_distance(score, most, scale) - log((double)mass * (1.0 / (double)SAMPLE_ONE)) + 0.0);
}

/* ---- the draw ---- */

/* A random integer below `mass`. The token drawn is the first, in the order of ids, with which the summed mass of kept tokens exceeds it.
 * The integer depends on a row of keys, not on the slot: a request gets the same text wherever it runs. */
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
