/* How a product on the CPU is cut into tiles of c and blocks of its depth, and which operands are packed: decided by shapes, dtypes, the
 * kernel and the number of workers. Bits depend on the length of a run of multiply-adds alone, which none but k and the dtypes decide. */
#pragma once

#include "device/cpu/bgemm.h"
#include "ops/products/gemm.h"

typedef enum BPlace {
    B_LIES,   /* read where it lies */
    B_BLOCKS, /* packed a block at a time, for all workers */
    B_PANELS, /* packed by each task, a panel when it needs it */
} BPlace;

typedef struct GemmGrid {
    const BgemmKernel *pairs; /* of two bf16 operands; else NULL */
    int64_t            rows;  /* that tile_m is a multiple of */
    int64_t            depth; /* of a run: the sums over it are added to c */
    int64_t            block_k, block_n, tile_m, tile_n;
    int64_t large, small_m; /* of the tiles side by side in the last columns of a block: how many have tile_m rows; rows of the others */
    bool    a_lies;         /* read where it lies, not packed */
    bool    a_stays;        /* in the first cache, since tiles are made row by row */
    BPlace  b;
    bool    shares;  /* each worker begins with tiles that lie side by side: it wrote them the last time, and has them in its caches */
    bool    by_rows; /* tiles of the same rows come one after another, and all have tile_m; else those of the same columns */
    bool    apart;   /* each depth is a task */
    bool    kept;    /* fp32 sums of a bf16 c are kept from block to block; else its tiles add up over all of k */
} GemmGrid;

/* Of c; columns are counted from the block's first. */
typedef struct GemmTile {
    int64_t row, rows, col, cols;
} GemmTile;

/* Parts of c that a worker makes alone, as a product on one thread: few workers then read little of what another one wrote, which is slow
 * where a host gives each core a third cache of its own. */
typedef struct GemmOwn {
    int64_t rows, cols; /* of all parts but the last ones */
    int64_t parts;      /* 1: all workers make c together */
} GemmOwn;

GemmOwn gemm_own(const Gemm *g, int num_workers);

/* That of a run of bf16 operands. */
int64_t grid_pairs_depth(int64_t k);

/* Of workers that make c together. */
GemmGrid gemm_grid(const Gemm *g, int num_workers);

/* Runs of multiply-adds over so much depth; 1 over none. */
int64_t grid_runs(const GemmGrid *grid, int64_t depth);

/* Tiles of a block of so many columns, over one run, and the tile with the number. */
int64_t  grid_tiles(const Gemm *g, const GemmGrid *grid, int64_t cols);
GemmTile grid_tile(const Gemm *g, const GemmGrid *grid, int64_t cols, int64_t number);

/* Rows from the beginning of one panel of b to the next. Panels of several runs lie so far apart that one run's parts of them have places
 * of the second cache that follow each other, instead of sharing them. */
int64_t grid_panel_depth(const GemmGrid *grid, int64_t depth);

/* Scratch, in floats: blocks of packed b that are in memory at a time, and one of them; sums that stay apart or are kept; of each worker
 * panels of a, behind them one of b where tasks pack it, and all with the tile of a c that isn't fp32. */
int64_t grid_blocks(const Gemm *g, const GemmGrid *grid);
int64_t grid_block_floats(const GemmGrid *grid);
int64_t grid_part_floats(const Gemm *g, const GemmGrid *grid);
int64_t grid_a_floats(const GemmGrid *grid);
int64_t grid_b_floats(const GemmGrid *grid);
int64_t grid_scratch_floats(const Gemm *g, const GemmGrid *grid);
