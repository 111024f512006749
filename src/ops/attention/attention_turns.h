/* Which kernel attention_bwd uses on a GPU, cuDNN's or ours, and the workspace of our one-pass kernel (attention_turns.cu). It is here
 * because plans decide it without a GPU. */
#pragma once

#include "ops/attrs.h"

#include <stddef.h>

enum {
    TURNS_SM = 90,
    TURNS_TILE = 64,          /* queries of a tile */
    TURNS_LEAST_DENSE = 4096, /* rows of this many tokens or more: cuDNN is no faster */
};

/* Bytes of the scores that cuDNN's deterministic backward holds: 16 bits for each pair of tokens of a row, per head. */
static inline int64_t attention_scores_bytes(const AttentionAttrs *attrs, int64_t batch, int64_t len)
{
    return batch * attrs->num_heads * len * len * 2;
}

/* Whether cuDNN may serve these rows: its scores grow with the square of the rows' length, ours don't. The limit of 4 GiB is 16 rows of
 * 2,048 tokens with 32 heads. */
static inline bool attention_may_hold_scores(const AttentionAttrs *attrs, int64_t batch, int64_t len)
{
    return attention_by_rows(attrs, len) && len % 128 == 0 && attention_scores_bytes(attrs, batch, len) <= (int64_t)4 << 30;
}

/* Whether the one-pass kernel has tiles for these heads. v_dim: the head dim of values. */
static inline bool attention_turns_dims(const AttentionAttrs *attrs, int64_t v_dim)
{
    int64_t dim = attrs->head_dim;
    bool    cap = attrs->softcap > 0;
    if (v_dim != dim) return dim == 192 && v_dim == 128 && !cap;
    return dim == 128 || (dim == 64 && !cap);
}

/* Whether the one-pass kernel serves bf16 rows of `len` tokens. cudnn: cuDNN could serve the node instead. */
static inline bool attention_in_turns(const AttentionAttrs *attrs, int64_t v_dim, int64_t batch, int64_t len, bool cudnn)
{
    cudnn = cudnn && v_dim == attrs->head_dim;
    return attention_turns_dims(attrs, v_dim) && attrs->scale >= 0 &&
           (!cudnn || !attention_may_hold_scores(attrs, batch, len) || len >= TURNS_LEAST_DENSE);
}

/* Whether the one-pass kernel serves bf16 rows of bidirectional attention, or of attention with a bias, without a gradient of the bias.
 * biased: there is a bias, which needs more shared memory. */
static inline bool attention_forms_in_turns(const AttentionAttrs *attrs, int64_t v_dim, bool biased)
{
    return attention_turns_dims(attrs, v_dim) && !(attrs->softcap > 0) && (attrs->head_dim == 64 || !biased);
}

/* Sizes of the workspace's parts, in this order: delta (B,H,T) f32; taken: int, the number of blocks that began, then the number of
 * finished turns of each tile of queries; sum: f32, dq of each tile of queries. */
typedef struct TurnsBytes {
    size_t delta, taken, sum;
} TurnsBytes;

static inline TurnsBytes attention_turns_bytes(int64_t batch, int64_t num_heads, int64_t len, int64_t dim)
{
    size_t heads = (size_t)(batch * num_heads), tiles = heads * (size_t)((len + TURNS_TILE - 1) / TURNS_TILE);
    return (TurnsBytes){(heads * (size_t)len * sizeof(float) + 255) / 256 * 256, ((tiles + 1) * sizeof(int) + 255) / 256 * 256,
                        tiles * (size_t)(TURNS_TILE * dim) * sizeof(float)};
}
