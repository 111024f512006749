/* Inputs and attributes of attention_latent, for the op and the passes; and how its GPU kernels divide keys, which determines the size of
 * their workspace. */
#pragma once

#include <stdint.h>

enum { LATENT_Q, LATENT_K, LATENT_KC, LATENT_STARTS, LATENT_PAGES, LATENT_IN };

typedef struct LatentAttrs {
    int64_t num_heads, head_dim; /* number and dim of query heads; there is one key head */
    int64_t value_dim;           /* a value is the first value_dim elements of its key */
    double  scale;               /* factor of q k^T; 0: 1/sqrt(head_dim) */
} LatentAttrs;

/* A chunk is this many tiles of keys (attention_pages.h), and begins at a multiple of it. The sums of a chunk's tiles are added up in
 * order, then the chunks' sums. So a query's bits don't depend on how blocks share its keys, by chunks or by tiles. LATENT_BLOCKS: thread
 * blocks that an H200 runs at a time. */
enum { LATENT_CHUNK = 4, LATENT_BLOCKS = 132 };

/* Query heads of a thread block when rows have one token. */
static inline int64_t latent_block_heads(int64_t num_heads)
{
    return num_heads <= 16 ? 16 : 32;
}

/* The most partial sums, each for all heads, that a run with one token per row stores in the workspace: one for each chunk of tiles or, if
 * blocks have fewer than LATENT_CHUNK tiles each, one for each tile. tiles: the most tiles of a row. */
static inline int64_t latent_slots(int64_t batch, int64_t num_heads, int64_t tiles)
{
    int64_t block_heads = latent_block_heads(num_heads), passes = (num_heads + block_heads - 1) / block_heads;
    int64_t of_tiles = LATENT_BLOCKS * (LATENT_CHUNK - 1) / passes, of_chunks = batch * ((tiles + LATENT_CHUNK - 1) / LATENT_CHUNK);
    if (of_tiles > batch * tiles) of_tiles = batch * tiles;
    return of_tiles > of_chunks ? of_tiles : of_chunks;
}
