/* The attributes of the ops that have any: what passes write and kernels read. Shared by CPU and CUDA. */
#pragma once

#include "ir/attr_list.h"

#include <stdbool.h>

/* dw_dtype: dtype of a parameter's gradient where nothing is there to add to; 0: the operands' (see OpAlias). */
typedef struct EmbeddingDwAttrs {
    int64_t vocab; /* rows of dw */
    int64_t dw_dtype;
} EmbeddingDwAttrs;

typedef struct RowsAtAttrs {
    int64_t dw_dtype; /* of drows */
} RowsAtAttrs;

typedef struct LinearAttrs { /* linear, linear_add, linear_dx, linear_dw */
    double  alpha;           /* 1 */
    int64_t col;             /* first column of y or dy that w's rows stand for: 0 */
    int64_t rows;            /* linear_dw: M, rows of w */
    int64_t dw_dtype;        /* linear_dw */
    int64_t dtype;           /* linear: of y; 0: x's. linear_dx: of dx; 0: dy's, or that of what it is added to */
} LinearAttrs;

/* Adapters on columns of one y: member m has rows[m] rows of b, after those of the members before it, and adds to columns
 * [col[m], col[m] + rows[m]). rows 0: none, and none after it. */
enum { LORA_MAX_MEMBERS = 3 };
typedef struct LoraAttrs { /* lora_add, lora_add_bwd */
    double  alpha;         /* 1 */
    int64_t rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS];
    int64_t dw_dtype; /* lora_add_bwd: of db */
} LoraAttrs;

static inline int lora_count(const int64_t rows[LORA_MAX_MEMBERS])
{
    int count = 0;
    while (count < LORA_MAX_MEMBERS && rows[count] > 0) count++;
    return count;
}

static inline int lora_members(const LoraAttrs *attrs)
{
    return lora_count(attrs->rows);
}

/* Adapters that rows choose among, each with the members above: for member m adapter a has rank ranks[m n + a] of n adapters, 0 where it
 * doesn't adapt that layer, and scale scales[m n + a]. */
enum { LORA_MOST_ADAPTERS = 64 };
typedef struct LoraRowsAttrs {
    int64_t  rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS];
    AttrList ranks, scales;
} LoraRowsAttrs;

typedef struct CastAttrs {
    int64_t dtype; /* of the result; 0: the operand's */
} CastAttrs;

typedef struct ScaledLinearAttrs {
    double  alpha; /* 1 */
    int64_t dtype; /* of y where there is no acc; 0: f32 */
    bool    fast;  /* sums may be kept in fewer bits than fp32 has */
} ScaledLinearAttrs;

typedef struct Fp8QuantiseAttrs {
    int64_t dtype; /* of the codes: e4m3 or e5m2; 0: e4m3 */
} Fp8QuantiseAttrs;

/* margin: scales are 2^margin below those that bring the largest magnitude to the format's largest number. */
typedef struct Fp8OwnScaleAttrs {
    int64_t dtype; /* of the codes that the scale is for; 0: e4m3 */
    int64_t margin;
} Fp8OwnScaleAttrs;

typedef struct Fp8UpdateAttrs {
    int64_t margin;
    bool    most_recent; /* scales follow the newest row of the history; else the largest of all its rows */
} Fp8UpdateAttrs;

/* Weights that were quantised one by one, whose codes and scales lie one after the other: member m is rows[m] rows of the result.
 * rows 0: none, and none after it; none at all: it is one weight. */
enum { DEQUANTISE_MAX_MEMBERS = 3 };
typedef struct DequantiseAttrs { /* nf4_dequantise, fp8_tiles_dequantise, nvfp4_dequantise */
    int64_t dtype;               /* of the result; 0: f32 */
    int64_t rows[DEQUANTISE_MAX_MEMBERS];
    bool    transposed; /* nvfp4_dequantise: the result is the transpose of what the codes stand for */
    bool    tiled;      /* nvfp4_dequantise: scales lie in tiles, as nvfp4_quantise says */
} DequantiseAttrs;

/* How many members `all` rows have, and the rows of each. */
static inline int dequantise_members(const DequantiseAttrs *attrs, int64_t all, int64_t rows[DEQUANTISE_MAX_MEMBERS])
{
    int count = 0;
    for (; count < DEQUANTISE_MAX_MEMBERS && attrs->rows[count] > 0; count++) rows[count] = attrs->rows[count];
    if (!count) rows[count++] = all;
    return count;
}

typedef struct Nvfp4Attrs { /* nvfp4_quantise */
    bool    transposed;     /* codes of x^T */
    bool    two_d;          /* a scale for 16 x 16 elements, so that a weight and its transpose have the same values */
    bool    four_six;       /* a block's largest element becomes 6 or 4, whichever has the smaller error */
    bool    stochastic;     /* rounding by random numbers */
    bool    hadamard;       /* of x transformed by a random Hadamard matrix along each block */
    bool    tiled;          /* scales lie in tiles, as fp4_linear reads them */
    int64_t site;           /* names this op among all for random numbers */
} Nvfp4Attrs;

typedef struct ReshapeAttrs {
    int64_t ndim, d0, d1, d2, d3;
} ReshapeAttrs;

/* codes: the dtype that an output is quantised to as well (OpCodes): e4m3; 0: it isn't. */
typedef struct SwigluAttrs { /* swiglu, swiglu_bwd */
    int64_t codes;
    bool    gelu; /* the gate's function is gelu by tanh; else silu */
} SwigluAttrs;

typedef struct RmsNormAttrs { /* rms_norm, add_rms_norm, rms_norm_bwd */
    double  eps;
    double  offset;   /* added to w */
    int64_t dw_dtype; /* rms_norm_bwd */
    int64_t codes;
} RmsNormAttrs;

typedef struct ColSumAttrs {
    int64_t dw_dtype;
} ColSumAttrs;

/* hits: the output that says whose label is the likeliest is there. */
typedef struct CrossEntropyAttrs {
    bool hits;
} CrossEntropyAttrs;

/* chunks: pieces of the rows on a GPU at the least, as far as lm_head_chunk_rows goes with it. softcap: logits l become softcap
 * tanh(l / softcap); 0: they stay. sum_f32: a GPU adds the chunks of dw up in fp32 before they are rounded, as the CPU always does. */
typedef struct LmHeadAttrs {
    int64_t chunks;
    double  softcap;
    bool    hits;
    bool    sum_f32;
} LmHeadAttrs;

typedef struct LmHeadBwdAttrs {
    int64_t dw_dtype;
    int64_t chunks;
    double  softcap;
    bool    hits;
    bool    sum_f32;
} LmHeadBwdAttrs;

typedef struct SoftcapAttrs { /* softcap, softcap_bwd */
    double cap;
} SoftcapAttrs;

typedef struct ReluAttrs { /* relu, relu_bwd */
    bool squared;
} ReluAttrs;

typedef struct MaximumAttrs { /* maximum_bwd */
    bool least;               /* of minimum */
} MaximumAttrs;

typedef struct ReduceAttrs { /* sum, mean, max, expand */
    int64_t dim;             /* which one; negative: counted from the end */
    int64_t size;            /* expand: of it in y */
    int64_t dtype;           /* sum, mean: of y; 0: f32. expand: 0: x's */
} ReduceAttrs;

typedef struct PickBwdAttrs {
    int64_t dim; /* of dx: where its `size` columns lie */
    int64_t size;
    int64_t dtype;    /* of dx; 0: dy's */
    bool    inserted; /* dy lacks the dim; else it has it, of size 1 */
} PickBwdAttrs;

typedef struct SoftmaxAttrs { /* softmax, log_softmax and their gradients */
    int64_t dtype;            /* of y; 0: log_softmax f32, softmax x's. Backward: of dx; 0: dy's */
} SoftmaxAttrs;

typedef struct ColumnsAttrs {
    int64_t begin;
    int64_t size; /* columns: of y */
    int64_t cols; /* columns_bwd: of dx */
} ColumnsAttrs;

typedef struct ConcatAttrs {
    int64_t dim; /* negative: counted from the end */
} ConcatAttrs;

typedef struct SliceAttrs { /* slice, pad */
    int64_t dim;            /* negative: counted from the end */
    int64_t begin, size;    /* slice: of y in x */
    int64_t before, after;  /* pad: zeros around x */
} SliceAttrs;

typedef struct TopkAttrs {
    int64_t k;     /* topk: how many of each row */
    int64_t size;  /* topk_bwd: of a row of dx */
    int64_t dtype; /* topk_bwd: of dx; 0: dy's */
} TopkAttrs;

typedef struct ScatterAttrs {
    int64_t size;  /* rows of y */
    int64_t dtype; /* of y; 0: x's */
} ScatterAttrs;

typedef struct RowsAttrs {
    int64_t begin;
    int64_t count;      /* take_rows: of y */
    int64_t batch, seq; /* put_rows: of y */
} RowsAttrs;

typedef struct FullAttrs {
    int64_t size;
    double  value;
    int64_t dtype; /* f32 or i32; 0: f32 */
} FullAttrs;

typedef struct ScaleAttrs {
    double by;
} ScaleAttrs;

/* Angles p * f_i. */
typedef struct RopeTableAttrs {
    int64_t  len, head_dim;
    double   theta;
    double   scale;       /* of cosines and sines */
    AttrList frequencies; /* f_i; empty: theta^(-2i/D) */
} RopeTableAttrs;

typedef struct RopeAttrs {
    bool inverse;
    bool interleaved; /* pairs (2i, 2i + 1); else half-split ones (i, i + R/2), as Hugging Face */
} RopeAttrs;

typedef struct QkvAttrs { /* layout of a packed row: H query heads, G keys, G values, D each */
    int64_t num_heads, num_kv_heads, head_dim;
    double  eps;      /* qkv_norm_rope */
    double  offset;   /* added to wq and wk */
    int64_t dw_dtype; /* qkv_norm_rope_bwd: of dwq and dwk */
    int64_t codes;    /* qkv_norm_rope_bwd */
} QkvAttrs;

typedef struct AttentionAttrs {
    int64_t num_heads, num_kv_heads, head_dim; /* needed when packed; always set */
    int64_t window;                            /* a query attends that many keys, itself the last; 0: all before it */
    double  scale;                             /* of q k^T; 0: 1/sqrt(head_dim). Negative: on GPUs kernels without matrix units alone */
    double  softcap;                           /* scores s become softcap tanh(s / softcap); 0: they stay */
    bool    dense;         /* every row is one document: doc_start is 0 wherever it matters. A promise that faster kernels use */
    bool    bidirectional; /* a query attends the keys after its own too, of its document */
    int64_t dw_dtype;      /* attention_bwd: of dsinks and dbias */
} AttentionAttrs;

enum { ATTENTION_BIAS_QUERIES = 16 }; /* of a block on GPUs that sums the gradient of a bias */

/* Whether kernels for whole rows of `len` do as well: rows are single documents, and a query attends all before it. */
static inline bool attention_by_rows(const AttentionAttrs *attrs, int64_t len)
{
    return attrs->dense && !attrs->bidirectional && attrs->scale >= 0 && !(attrs->softcap > 0) && (!attrs->window || attrs->window >= len);
}

typedef struct AlibiTableAttrs {
    int64_t  len, num_heads;
    AttrList slopes; /* one of each head; none: those of Press et al. */
} AlibiTableAttrs;

typedef struct DistanceBucketsAttrs {
    int64_t len;           /* distances; those of bidirectional attention are -(len - 1) / 2 to (len - 1) / 2 */
    int64_t buckets, most; /* from distance `most` on all are in the last bucket */
    bool    bidirectional;
} DistanceBucketsAttrs;

typedef struct LossSumBwdAttrs { /* dims of dlosses */
    int64_t rows, cols;
} LossSumBwdAttrs;

typedef struct DropoutAttrs {
    double  p;    /* chance of a zero */
    int64_t site; /* names this dropout among all: part of the key; in a module that doesn't say it a hash of the node's name */
} DropoutAttrs;

typedef struct AdamwAttrs {                                /* adamw, adamw_8bit */
    double beta1, beta2, eps, weight_decay, max_grad_norm; /* max_grad_norm 0: no clipping */
    bool   stochastic;                                     /* bf16 weights without master: stochastic rounding */
} AdamwAttrs;

typedef struct RanksAttrs { /* gather, reduce_scatter */
    int64_t ranks;          /* 1 */
} RanksAttrs;

typedef struct GatherColsAttrs {
    int64_t ranks; /* 1 */
    int64_t cols;  /* of the whole; 0: what the shares have together */
    int64_t first; /* of them that the shares have */
} GatherColsAttrs;

typedef struct AllReduceAttrs {
    int64_t ranks; /* 1 */
    bool    max;   /* the largest; else the sum */
} AllReduceAttrs;

typedef struct StepScalarsAttrs {
    double beta1, beta2;
} StepScalarsAttrs;

/* Rows of a weight that are a matrix by themselves: `size` of them from `begin` on, in every `period`. size 0: all. */
typedef struct MatrixRows {
    int64_t begin, size, period;
} MatrixRows;

typedef struct NormuonMomentumAttrs {
    double     momentum, max_grad_norm; /* max_grad_norm 0: no clipping */
    bool       nesterov;
    int64_t    dtype; /* of x; 0: g's */
    MatrixRows rows;
} NormuonMomentumAttrs;

typedef struct AddIdentityAttrs { /* a I + b x */
    double a, b;
} AddIdentityAttrs;

typedef struct NormuonUpdateAttrs {
    double     beta2, eps, weight_decay;
    bool       stochastic; /* bf16 weights without master: stochastic rounding */
    int64_t    key;        /* names the matrix for random numbers */
    MatrixRows rows;
} NormuonUpdateAttrs;

/* segments (S,SEGMENT_COLUMNS) i64 of adamw: one trained parameter a row, or a part of one, sorted by offset; what lies between segments
 * is padding. */
enum {
    SEGMENT_OFFSET,
    SEGMENT_NUMEL,
    SEGMENT_DECAY, /* 0 or 1 */
    SEGMENT_KEY,   /* names the parameter for random numbers */
    SEGMENT_FIRST, /* the element of the parameter at which it begins */
    SEGMENT_COLUMNS
};

/* Moments of 8 bits have a scale for each MOMENT_BLOCK elements, counted from the beginning of their segment: wherever a parameter
 * lies, its blocks are its own. A part of one begins with a block. Segment `index` at `offset` has them from MOMENT_FIRST(offset, index)
 * on; E elements in S segments have room for MOMENT_FIRST(E, S). */
enum { MOMENT_BLOCK = 256 };
#define MOMENT_FIRST(offset, index) ((offset) / MOMENT_BLOCK + (index))

enum { IGNORE_INDEX = -100 };

typedef struct SampleAttrs {
    int64_t vocab; /* only ids below it may be chosen, and count; 0: all columns */
    int64_t best;  /* how many of the likeliest are told */
} SampleAttrs;

/* A row of sample's controls. */
enum {
    SAMPLE_TEMPERATURE, /* 0: greedy */
    SAMPLE_TOP_K,       /* 0: all */
    SAMPLE_TOP_P,       /* 1: all */
    SAMPLE_MIN_P,       /* 0: all */
    SAMPLE_REPETITION,  /* of prompt and text; 1: none */
    SAMPLE_PRESENCE,    /* of text */
    SAMPLE_FREQUENCY,   /* of text */
    SAMPLE_GUIDED,      /* not 0: only tokens of the row's guide */
    SAMPLE_CONTROLS
};

/* A row of sample's keys, by which random numbers are drawn, as uint32_t. */
enum {
    SAMPLE_SEED_LOW,
    SAMPLE_SEED_HIGH,
    SAMPLE_REQUEST_LOW,
    SAMPLE_REQUEST_HIGH,
    SAMPLE_NUMBER, /* of several samples of a request */
    SAMPLE_POSITION,
    SAMPLE_KEYS = 8
};

/* seen[slot][id]: this bit says that the id occurs in the prompt, the others how often it does in the text. */
#define SAMPLE_IN_PROMPT 0x80000000u
