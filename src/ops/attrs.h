/* Attributes of all ops that have any; passes write them and kernels read them. Shared by CPU and CUDA. */
#pragma once

#include "ir/attr_list.h"

#include <stdbool.h>

/* dw_dtype: dtype of a parameter's gradient if it isn't added to an earlier one; 0: the operands' dtype (see OpAlias). */
typedef struct EmbeddingDwAttrs {
    int64_t vocab; /* rows of dw */
    int64_t dw_dtype;
} EmbeddingDwAttrs;

typedef struct RowsAtAttrs {
    int64_t dw_dtype; /* dtype of drows */
} RowsAtAttrs;

typedef struct LinearAttrs { /* linear, linear_add, linear_dx, linear_dw */
    double  alpha;           /* default 1 */
    int64_t col;             /* first column of y or dy that belongs to w; default 0 */
    int64_t rows;            /* linear_dw: M, the number of rows of w */
    int64_t dw_dtype;        /* for linear_dw only */
    int64_t dtype;           /* linear: dtype of y; 0: x's. linear_dx: dtype of dx; 0: dy's, or that of the gradient it is added to */
} LinearAttrs;

/* Several adapters on columns of the same y. Member m has rows[m] rows of b, stored after the rows of earlier members, and adds to
 * columns [col[m], col[m] + rows[m]) of y. rows[m] 0 ends the members. */
enum { LORA_MAX_MEMBERS = 3 };
typedef struct LoraAttrs { /* lora_add, lora_add_bwd */
    double  alpha;         /* default 1 */
    int64_t rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS];
    int64_t dw_dtype; /* lora_add_bwd: dtype of db */
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

/* n adapters, of which each row uses one. Each adapter has the members of LoraAttrs. For member m, adapter a has rank ranks[m n + a] (0: it
 * doesn't adapt that layer) and scale scales[m n + a]. */
enum { LORA_MOST_ADAPTERS = 64 };
typedef struct LoraRowsAttrs {
    int64_t  rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS];
    AttrList ranks, scales;
} LoraRowsAttrs;

typedef struct CastAttrs {
    int64_t dtype; /* of the result; 0: the operand's dtype */
} CastAttrs;

typedef struct ScaledLinearAttrs {
    double  alpha; /* default 1 */
    int64_t dtype; /* of y if there is no acc; 0: f32 */
    bool    fast;  /* sums may be kept with less precision than fp32 */
} ScaledLinearAttrs;

typedef struct Fp8QuantiseAttrs {
    int64_t dtype; /* of the codes: e4m3 or e5m2; 0: e4m3 */
} Fp8QuantiseAttrs;

/* margin: scales are smaller by 2^margin than those that map the largest magnitude to the largest number of the format. */
typedef struct Fp8OwnScaleAttrs {
    int64_t dtype; /* of the codes that the scale is for; 0: e4m3 */
    int64_t margin;
} Fp8OwnScaleAttrs;

typedef struct Fp8UpdateAttrs {
    int64_t margin;
    bool    most_recent; /* scales follow the newest row of the history; else the largest value of all rows */
} Fp8UpdateAttrs;

/* Weights that were quantised separately, with their codes and scales concatenated: member m is rows[m] rows of the result. rows[m] 0
 * ends the members; no members: it is one weight. */
enum { DEQUANTISE_MAX_MEMBERS = 3 };
typedef struct DequantiseAttrs { /* nf4_dequantise, fp8_tiles_dequantise, nvfp4_dequantise */
    int64_t dtype;               /* of the result; 0: f32 */
    int64_t rows[DEQUANTISE_MAX_MEMBERS];
    bool    transposed; /* nvfp4_dequantise: the result is the transpose of the coded matrix */
    bool    tiled;      /* nvfp4_dequantise: scales are in tiles, as nvfp4_quantise writes them */
} DequantiseAttrs;

/* Fills rows[] with the rows of each member, and returns the number of members. all: rows of the result. */
static inline int dequantise_members(const DequantiseAttrs *attrs, int64_t all, int64_t rows[DEQUANTISE_MAX_MEMBERS])
{
    int count = 0;
    for (; count < DEQUANTISE_MAX_MEMBERS && attrs->rows[count] > 0; count++) rows[count] = attrs->rows[count];
    if (!count) rows[count++] = all;
    return count;
}

typedef struct Nvfp4Attrs { /* nvfp4_quantise */
    bool    transposed;     /* quantises x^T */
    bool    two_d;          /* one scale for 16 x 16 elements, so that a weight and its transpose have the same values */
    bool    four_six;       /* maps a block's largest element to 6 or 4, whichever gives the smaller error */
    bool    stochastic;     /* rounds by random numbers */
    bool    hadamard;       /* first transforms each block by a random Hadamard matrix */
    bool    tiled;          /* writes scales in tiles, as fp4_linear reads them */
    int64_t site;           /* identifies this op among all for random numbers */
} Nvfp4Attrs;

typedef struct ReshapeAttrs {
    int64_t ndim, d0, d1, d2, d3;
} ReshapeAttrs;

/* codes: the dtype to which an output is also quantised (OpCodes): e4m3; 0: none. */
typedef struct SwigluAttrs { /* swiglu, swiglu_bwd */
    int64_t codes;
    bool    gelu; /* the gate's function is gelu (by tanh); else silu */
} SwigluAttrs;

typedef struct RmsNormAttrs { /* rms_norm, add_rms_norm, rms_norm_bwd */
    double  eps;
    double  offset;   /* added to w */
    int64_t dw_dtype; /* for rms_norm_bwd only */
    int64_t codes;
} RmsNormAttrs;

typedef struct ColSumAttrs {
    int64_t dw_dtype;
} ColSumAttrs;

/* hits: there is an output that tells whether the label is the likeliest token. */
typedef struct CrossEntropyAttrs {
    bool hits;
} CrossEntropyAttrs;

/* chunks: least number of chunks into which a GPU divides the rows, limited by lm_head_chunk_rows. softcap: logits l become softcap
 * tanh(l / softcap); 0: unchanged. sum_f32: a GPU sums the chunks of dw in fp32 before rounding, as the CPU always does. */
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

typedef struct MaximumAttrs { /* for maximum_bwd */
    bool least;               /* for minimum */
} MaximumAttrs;

typedef struct ReduceAttrs { /* sum, mean, max, expand */
    int64_t dim;             /* index of the dim; negative: counted from the end */
    int64_t size;            /* expand: size of the dim in y */
    int64_t dtype;           /* sum, mean: dtype of y; 0: f32. expand: dtype of y; 0: x's */
} ReduceAttrs;

typedef struct PickBwdAttrs {
    int64_t dim; /* the dim of dx that has `size` columns */
    int64_t size;
    int64_t dtype;    /* of dx; 0: dy's dtype */
    bool    inserted; /* dy lacks the dim; else dy has it, with size 1 */
} PickBwdAttrs;

typedef struct SoftmaxAttrs { /* softmax, log_softmax and their gradients */
    int64_t dtype;            /* dtype of y; 0: log_softmax f32, softmax x's. Backward: dtype of dx; 0: dy's */
} SoftmaxAttrs;

typedef struct ColumnsAttrs {
    int64_t begin;
    int64_t size; /* columns of y */
    int64_t cols; /* columns_bwd: columns of dx */
} ColumnsAttrs;

typedef struct ConcatAttrs {
    int64_t dim; /* index of the dim; negative: counted from the end */
} ConcatAttrs;

typedef struct SliceAttrs { /* slice, pad */
    int64_t dim;            /* index of the dim; negative: counted from the end */
    int64_t begin, size;    /* slice: y is [begin, begin + size) of x */
    int64_t before, after;  /* pad: number of zeros before and after x */
} SliceAttrs;

typedef struct TopkAttrs {
    int64_t k;     /* topk: elements taken from each row */
    int64_t size;  /* topk_bwd: elements in a row of dx */
    int64_t dtype; /* topk_bwd: of dx; 0: dy's dtype */
} TopkAttrs;

typedef struct ScatterAttrs {
    int64_t size;  /* rows of y */
    int64_t dtype; /* of y; 0: x's dtype */
} ScatterAttrs;

typedef struct RowsAttrs {
    int64_t begin;
    int64_t count;      /* take_rows: rows of y */
    int64_t batch, seq; /* put_rows: dims of y */
} RowsAttrs;

typedef struct FullAttrs {
    int64_t size;
    double  value;
    int64_t dtype; /* f32 or i32; 0: f32 */
} FullAttrs;

typedef struct ScaleAttrs {
    double by;
} ScaleAttrs;

/* rope_table: cosines and sines of angles p * f_i, at positions p. */
typedef struct RopeTableAttrs {
    int64_t  len, head_dim;
    double   theta;
    double   scale;       /* factor of cosines and sines */
    AttrList frequencies; /* f_i; empty: theta^(-2i/D), D = head_dim */
} RopeTableAttrs;

typedef struct RopeAttrs {
    bool inverse;
    bool interleaved; /* pairs are (2i, 2i + 1); else (i, i + R/2), as in Hugging Face */
} RopeAttrs;

typedef struct QkvAttrs { /* a packed row has H query heads, G heads of keys and G of values, of D elements each */
    int64_t num_heads, num_kv_heads, head_dim;
    double  eps;      /* for qkv_norm_rope only */
    double  offset;   /* added to wq and wk */
    int64_t dw_dtype; /* qkv_norm_rope_bwd: dtype of dwq and dwk */
    int64_t codes;    /* for qkv_norm_rope_bwd only */
} QkvAttrs;

typedef struct AttentionAttrs {
    int64_t num_heads, num_kv_heads, head_dim; /* needed for packed rows; always set */
    int64_t window;                            /* a query attends to that many keys, its own included; 0: to all earlier keys and its own */
    double  scale;         /* factor of q k^T; 0: 1/sqrt(head_dim). Negative: GPUs use only kernels without matrix units */
    double  softcap;       /* scores s become softcap tanh(s / softcap); 0: unchanged */
    bool    dense;         /* promises that every row is one document (doc_start is 0 where it matters), for faster kernels */
    bool    bidirectional; /* a query also attends to later keys of its document */
    int64_t dw_dtype;      /* attention_bwd: dtype of dsinks and dbias */
} AttentionAttrs;

enum { ATTENTION_BIAS_QUERIES = 16 }; /* queries of a thread block that sums a bias gradient on GPUs */

/* Whether kernels for whole rows of `len` tokens can be used: each row is one document, and a query attends to all earlier keys. */
static inline bool attention_by_rows(const AttentionAttrs *attrs, int64_t len)
{
    return attrs->dense && !attrs->bidirectional && attrs->scale >= 0 && !(attrs->softcap > 0) && (!attrs->window || attrs->window >= len);
}

typedef struct AlibiTableAttrs {
    int64_t  len, num_heads;
    AttrList slopes; /* one per head; empty: those of Press et al. */
} AlibiTableAttrs;

typedef struct DistanceBucketsAttrs {
    int64_t len;           /* number of distances; bidirectional attention has distances -(len - 1) / 2 to (len - 1) / 2 */
    int64_t buckets, most; /* distances from `most` on are in the last bucket */
    bool    bidirectional;
} DistanceBucketsAttrs;

typedef struct LossSumBwdAttrs { /* dims of dlosses */
    int64_t rows, cols;
} LossSumBwdAttrs;

typedef struct DropoutAttrs {
    double  p;    /* probability of a zero */
    int64_t site; /* identifies this dropout among all: part of the random key. Default: a hash of the node's name */
} DropoutAttrs;

typedef struct AdamwAttrs {                                /* adamw, adamw_8bit */
    double beta1, beta2, eps, weight_decay, max_grad_norm; /* max_grad_norm 0: no clipping */
    bool   stochastic;                                     /* bf16 weights without master: stochastic rounding */
} AdamwAttrs;

typedef struct RanksAttrs { /* gather, reduce_scatter, all_to_all */
    int64_t ranks;          /* 1 */
} RanksAttrs;

typedef struct GatherColsAttrs {
    int64_t ranks; /* 1 */
    int64_t cols;  /* columns of the result; 0: the columns of all shares together */
    int64_t first; /* first column of the result that the shares fill */
} GatherColsAttrs;

typedef struct AllReduceAttrs {
    int64_t ranks; /* 1 */
    bool    max;   /* takes the largest value; else the sum */
} AllReduceAttrs;

typedef struct StepScalarsAttrs {
    double beta1, beta2;
} StepScalarsAttrs;

/* Which rows of a weight form a matrix of their own: `size` rows from `begin` on, in every `period` rows. size 0: all rows. */
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
    int64_t    key;        /* identifies the matrix for random numbers */
    MatrixRows rows;
} NormuonUpdateAttrs;

/* segments (S,SEGMENT_COLUMNS) i64 of adamw. Each row is a trained parameter or a part of one, sorted by offset; elements between
 * segments are padding. */
enum {
    SEGMENT_OFFSET,
    SEGMENT_NUMEL,
    SEGMENT_DECAY, /* 0 or 1 */
    SEGMENT_KEY,   /* identifies the parameter for random numbers */
    SEGMENT_FIRST, /* index within the parameter of the segment's first element */
    SEGMENT_COLUMNS
};

/* 8-bit moments have one scale for each MOMENT_BLOCK elements, counted from the start of a segment, so that a block never spans two
 * parameters. A segment that is a part of a parameter starts with a whole block. Scales of segment `index` at `offset` start at
 * MOMENT_FIRST(offset, index); all scales of E elements in S segments take MOMENT_FIRST(E, S). */
enum { MOMENT_BLOCK = 256 };
#define MOMENT_FIRST(offset, index) ((offset) / MOMENT_BLOCK + (index))

enum { IGNORE_INDEX = -100 };

typedef struct SampleAttrs {
    int64_t vocab; /* only ids below it can be chosen or count as tokens; 0: all columns */
    int64_t best;  /* how many of the likeliest tokens are returned */
} SampleAttrs;

/* Columns of a row of sample's controls. */
enum {
    SAMPLE_TEMPERATURE, /* 0: greedy */
    SAMPLE_TOP_K,       /* 0: no limit */
    SAMPLE_TOP_P,       /* 1: no limit */
    SAMPLE_MIN_P,       /* 0: no limit */
    SAMPLE_REPETITION,  /* penalty for tokens of prompt and text; 1: none */
    SAMPLE_PRESENCE,    /* penalty for tokens of the text; 0: none */
    SAMPLE_FREQUENCY,   /* penalty by count in the text; 0: none */
    SAMPLE_GUIDED,      /* not 0: only tokens that the row's guide allows */
    SAMPLE_CONTROLS
};

/* Columns of a row of sample's keys, uint32_t each, which determine its random numbers. */
enum {
    SAMPLE_SEED_LOW,
    SAMPLE_SEED_HIGH,
    SAMPLE_REQUEST_LOW,
    SAMPLE_REQUEST_HIGH,
    SAMPLE_NUMBER, /* index among several samples of a request */
    SAMPLE_POSITION,
    SAMPLE_KEYS = 8
};

/* seen[slot][id]: this bit is set if the id occurs in the prompt; the other bits count how often it occurs in the text. */
#define SAMPLE_IN_PROMPT 0x80000000u
