/* How lora_add_bwd cuts its work on a GPU: by shapes alone, so that the kernel and plans agree. A slab is up to 256 columns of dy of one
 * member, a tile is 64 tokens, a chunk is some tiles. The workspace has partial sums in fp32: dh of each slab, db of each chunk. */
#pragma once

#include "device/device.h"
#include "ops/attrs.h"

enum {
    LORA_SLAB = 256,
    LORA_TILE_TOKENS = 64,
    LORA_BLOCKS = 264,     /* blocks aimed at: two for each of an H200's multiprocessors, one at rank 64 */
    LORA_MOST_CHUNKS = 32, /* most chunks: the second kernel goes through them one after another */
};

typedef struct LoraChunks {
    int64_t tiles, per, count; /* per: tiles of a chunk; count: number of chunks */
} LoraChunks;

static inline LoraChunks lora_chunks(int64_t tokens, int64_t num_slabs, int64_t r)
{
    LoraChunks c;
    int64_t    blocks = r < 64 ? LORA_BLOCKS : LORA_BLOCKS / 2;
    c.tiles = (tokens + LORA_TILE_TOKENS - 1) / LORA_TILE_TOKENS;
    c.per = (c.tiles * num_slabs + blocks - 1) / blocks;
    if (c.per < (c.tiles + LORA_MOST_CHUNKS - 1) / LORA_MOST_CHUNKS) c.per = (c.tiles + LORA_MOST_CHUNKS - 1) / LORA_MOST_CHUNKS;
    c.count = (c.tiles + c.per - 1) / c.per;
    return c;
}

/* Whether the mma kernels serve these ranks and alignments: no 16-byte pack of y, h or b crosses a member's end. */
static inline bool lora_mma_fits(const LoraAttrs *attrs, const TensorType *y, const TensorType *b)
{
    int64_t r = type_cols(b);
    bool    fits = (r == 8 || r == 16 || r == 32 || r == 64) && type_cols(y) % 8 == 0 && type_cols(y) < INT32_MAX;
    for (int m = 0; m < lora_members(attrs); m++) fits = fits && attrs->rows[m] % 8 == 0 && attrs->col[m] % 8 == 0;
    return fits;
}

/* Bytes of the partial sums. dy (...,Y), b (M,r). */
static inline size_t lora_sums_bytes(const LoraAttrs *attrs, const TensorType *dy, const TensorType *b)
{
    int64_t tokens = type_rows(dy), r = type_cols(b), slabs = 0;
    for (int m = 0; m < lora_members(attrs); m++) slabs += (attrs->rows[m] + LORA_SLAB - 1) / LORA_SLAB;
    return (size_t)((slabs * tokens + lora_chunks(tokens, slabs, r).count * b->dim[0]) * r) * sizeof(float);
}
