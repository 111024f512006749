/* How a product on the CPU is cut into tiles of c and blocks of the depth, and which operands are packed. Shapes, dtypes, the kernel and
 * the number of workers decide this. Bits depend only on the length of a run of multiply-adds, which only k and the dtypes decide. */
#pragma once

#include "device/cpu/bgemm.h"
#include "ops/products/gemm.h"

typedef enum BPlace {
    B_LIES,   /* read in place */
    B_BLOCKS, /* packed a block at a time, for all workers */
    B_PANELS, /* packed by each task, a panel when it needs it */
} BPlace;

typedef struct GemmGrid {
    const BgemmKernel *pairs; /* kernel for two bf16 operands; else NULL */
    int64_t            rows;  /* tile_m is a multiple of this */
    int64_t            depth; /* depth of a run, whose sums are then added to c */
    int64_t            block_k, block_n, tile_m, tile_n;
    int64_t large, small_m; /* in the last columns of a block, large: how many tiles have tile_m rows; small_m: rows of the other tiles */
    bool    a_lies;         /* a is read in place, not packed */
    bool    a_stays;        /* a stays in the L1 cache, since tiles are computed row by row */
    BPlace  b;
    bool    shares;  /* each worker begins with tiles side by side, which it wrote the last time and has in its caches */
    bool    by_rows; /* tiles are numbered row by row, and all have tile_m rows; else they are numbered column by column */
    bool    apart;   /* each depth of a tile is a task */
    bool    kept;    /* fp32 sums of a bf16 c are kept from block to block; else a tile is summed over all of k at once */
} GemmGrid;

/* A tile of c; columns are counted from the block's first. */
typedef struct GemmTile {
    int64_t row, rows, col, cols;
} GemmTile;

/* Parts of c that a worker computes alone, as products on one thread. Few workers then read little of what another one wrote, which is slow
 * where a host gives each core an L3 cache of its own. */
typedef struct GemmOwn {
    int64_t rows, cols; /* rows and columns of a part; the last parts may have fewer */
    int64_t parts;      /* 1: all workers compute c together */
} GemmOwn;

GemmOwn gemm_own(const Gemm *g, int num_workers);

/* The depth of a run of bf16 operands. k: the depth of the whole product. */
int64_t grid_pairs_depth(int64_t k);

/* The grid for workers that compute c together. */
GemmGrid gemm_grid(const Gemm *g, int num_workers);

/* The number of runs of multiply-adds over this depth; 1 for depth 0. */
int64_t grid_runs(const GemmGrid *grid, int64_t depth);

/* grid_tiles: the number of tiles in a block of `cols` columns over one run. grid_tile: the tile with this number. */
int64_t  grid_tiles(const Gemm *g, const GemmGrid *grid, int64_t cols);
GemmTile grid_tile(const Gemm *g, const GemmGrid *grid, int64_t cols, int64_t number);

/* Rows from the beginning of one panel of b to the next. Panels of several runs are padded, so that one run's parts of them map to
 * successive sets of the L2 cache instead of the same ones. */
int64_t grid_panel_depth(const GemmGrid *grid, int64_t depth);

/* Scratch. grid_blocks: blocks of packed b that are in memory at a time; grid_block_floats: floats of one. grid_part_floats: floats of
 * GemmJob.parts (gemm.c). For each worker, grid_a_floats: floats of its panels of a; grid_b_floats: floats of the panel of b that follows
 * them if tasks pack b. grid_scratch_floats: both of these, and a tile of c unless c is fp32. */
int64_t grid_blocks(const Gemm *g, const GemmGrid *grid);
int64_t grid_block_floats(const GemmGrid *grid);
int64_t grid_part_floats(const Gemm *g, const GemmGrid *grid);
int64_t grid_a_floats(const GemmGrid *grid);
int64_t grid_b_floats(const GemmGrid *grid);
int64_t grid_scratch_floats(const Gemm *g, const GemmGrid *grid);
