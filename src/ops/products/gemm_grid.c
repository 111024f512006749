#include "ops/products/gemm_grid.h"

#include "base/cpu.h"
#include "device/cpu/sgemm.h"

enum {
    DEPTH = 320,       /* depth of a run of multiply-adds, whose sums are then added to c: a's rows and b's columns of it fit in caches */
    PAIRS_DEPTH = 640, /* depth of a run of two bf16 operands, which take half the room */
    TILE_M = 144,      /* rows of a that a task packs at a time: 180 KiB */
    FAR_M = 288,       /* rows of a tile if stored rows of a are FAR_APART: they load faster in longer pieces */
    DEEP_M = 264,      /* rows of a tile if tiles share no packed b and k is deep: every tile reads its columns of b from memory again */
    SHALLOW_K = 32,    /* up to this k, writing c is the bound: with few, tall tiles a worker mostly writes what it wrote the last time */
    TALL_M = 1056,     /* rows of a tile if k is shallow, or if each row of a is read once */
    LEAST_M = 24,      /* rows of a tile, at least: fewer reuse b too little */
    LEAST_N = 64,
    TILE_ROWS = 6, /* loading a tile's first operands takes about as long as computing this many of its rows */
    TASKS_PER_WORKER = 4,
    MANY_WORKERS = 8,       /* with this many workers one is often late (another guest of the machine has its core): smaller tiles help.
                             * Each worker keeps to its own rows, since data that another worker wrote is slow to read. */
    BLOCK_FLOATS = 1 << 19, /* floats of b packed at a time, 2 MiB; with many workers this many for every BLOCK_WORKERS of them */
    BLOCK_WORKERS = 4,
    SETS_BYTES = 1 << 16,   /* bytes: data this far apart, or a multiple, maps to the same sets of the L2 cache */
    BLOCK_N = 512,          /* columns of a block, at least, if a is read in place */
    BLOCK_N_A = 2048,       /* columns of a block, at least, if a is packed for each block */
    NARROW = 64,            /* columns of c: if it has no more, packing a takes longer than using it */
    PACK_FAR_ALIASED = 100, /* packs a b stored across the depth from this many rows of c on, if b's rows alias and the kernel is far */
    PACK_ALIASED = 32,      /* as PACK_FAR_ALIASED, if the kernel isn't far */
    PACK = 200,             /* as PACK_ALIASED, if b's rows don't alias; a far kernel then reads b in place */
    PART_FLOATS = 1 << 22,  /* most floats of GemmJob.parts, if the grid is `apart` or `kept`: 16 MiB */
    OWN_PARTS = 1 << 19,    /* most floats of GemmJob.parts for each worker, if the grid is `apart` and c is fp32 */
    ALIASED = 2048,         /* bytes: rows this far apart, or a multiple, share few cache sets, and packing gains much */
    ALIASED_ROWS = 4096,    /* like ALIASED, if a is stored along the depth: a tile reads few rows of a at a time */
    FAR_APART = 1 << 16,    /* bytes: if stored rows of an a across the depth are this far apart, a is packed unless it stays in L1 */
    WIDE = 512,             /* columns of a tile, at most, if b is read in place */
    STAYS_ROWS = 1024,      /* a may stay in the L1 cache from this many rows of c on: with fewer, b isn't in the caches yet */
    STAYS_FLOATS = 1 << 17, /* if a stays in the L1 cache, b has at most this many floats over a run: they come from the L2 cache */
    OWN_N = 128,            /* columns of c that a worker computes alone: their run of b stays in its L2 cache */
    OWN_FEWEST = 1024,      /* a worker computes columns alone from this many columns of c on */
    UNEVEN = 16,            /* a worker computes columns alone if the largest share times the workers is at most n / UNEVEN more than n */
    OWN_B = 1 << 15,        /* a worker computes rows of c alone if b has at most this many floats */
    OWN_ROWS = 512,         /* rows of c that a worker computes alone, at least */
    ACROSS_N = 128,         /* columns of c, at least, if an a across the depth stays: else its next rows aren't all prefetched in time */
    PANEL_ROWS = 256,       /* a task packs its own panels of b for at most this many rows of c, if b is stored along the depth */
    PANEL_ACROSS = 128,     /* a task packs its own panels of b for at most this many rows of c, if b is stored across the depth */
    PANEL_COLS = 1024, /* a task packs its own panels of b only with this many columns of c, divided by whole panels, or with too few rows
                          to divide */
    PANEL_COLS_A = 12, /* if the task packs a too, it needs this many columns of c for each row */
};

/* Whether an a stored across the depth can be read in place: its stored rows don't share few cache sets. */
static bool spread_across(const Gemm *g)
{
    bool alias = dtype_bytes(DT_F32, g->a.stride) % (cpu_reads_aliased() ? ALIASED_ROWS : ALIASED) == 0;
    return g->a.trans && g->a.dtype == DT_F32 && sgemm_kernel()->far && !alias;
}

static bool far_apart(const Gemm *g)
{
    return dtype_bytes(DT_F32, g->a.stride) >= FAR_APART;
}

/* Whether an a stored across the depth stays in the L1 cache: each piece of its rows is then read once, and needn't be packed. */
static bool stays_across(const Gemm *g, int64_t depth)
{
    return spread_across(g) && far_apart(g) && depth > SGEMM_SHALLOW && g->m >= STAYS_ROWS && g->n >= ACROSS_N &&
           g->n * depth <= STAYS_FLOATS;
}

/* Whether an a stored along the depth stays in the L1 cache. Zen 5 is up to 7 % faster with it, an Intel CPU a sixth slower;
 * cpu_reads_aliased tells them apart. */
static bool stays_along(const Gemm *g, const GemmGrid *grid)
{
    bool fits = g->m >= STAYS_ROWS && min_i64(g->n, grid->block_n) * grid->depth <= STAYS_FLOATS;
    return grid->a_lies && !g->a.trans && grid->b != B_PANELS && fits && cpu_reads_aliased();
}

/* Whether a is read in place. */
static bool a_lies(const Gemm *g, bool stays)
{
    if (g->a.dtype != DT_F32) return false;
    if (g->n <= NARROW) return true;
    if (g->a.trans) return spread_across(g) && (stays || !far_apart(g));
    return cpu_reads_aliased() || dtype_bytes(DT_F32, g->a.stride) % ALIASED_ROWS != 0;
}

static BPlace place_b(const Gemm *g, bool lies, bool stays)
{
    bool    far = sgemm_kernel()->far, aliased = dtype_bytes(DT_F32, g->b.stride) % ALIASED == 0;
    int64_t fewest = aliased ? (far ? PACK_FAR_ALIASED : PACK_ALIASED) : far ? INT64_MAX : PACK;
    if (g->b.dtype == DT_F32 && !g->b.trans && g->m < fewest && !stays) return B_LIES;
    int64_t most = g->b.trans ? PANEL_ROWS : cpu_reads_aliased() ? PANEL_ACROSS : 0;
    bool    few = g->m <= most && (lies || g->n >= PANEL_COLS_A * g->m), wide = g->m < 2 * LEAST_M || g->n >= PANEL_COLS;
    return few && wide && g->k > SHALLOW_K ? B_PANELS : B_BLOCKS;
}

/* The most rows that a tile may have. */
static int64_t most_rows(const Gemm *g, bool lies, bool tall, bool reused)
{
    if (tall) return TALL_M;
    if (reused) return DEEP_M;
    return !lies && g->a.trans && far_apart(g) ? FAR_M : TILE_M;
}

/* A size of about `tile`, a multiple of `multiple`, with which all tiles have nearly the same size. */
static int64_t even_tile(int64_t size, int64_t tile, int64_t multiple)
{
    return div_up(div_up(size, div_up(size, tile)), multiple) * multiple;
}

int64_t grid_runs(const GemmGrid *grid, int64_t depth)
{
    return max_i64(1, div_up(depth, grid->depth));
}

static int64_t num_tiles(const GemmGrid *grid, int64_t m, int64_t n)
{
    return div_up(m, grid->tile_m) * div_up(min_i64(n, grid->block_n), grid->tile_n);
}

/* Makes tiles smaller until there are `enough`. Columns are cut only if a needn't be packed again for each cut or if tasks pack b anyway.
 * If b is `reused` columns are cut first: a tile uses what it has read or packed of b for all its rows. */
static void cut_tiles(GemmGrid *grid, int64_t m, int64_t n, int64_t tile_m, int64_t enough, bool reused)
{
    int64_t rows = grid->pairs ? grid->rows : SGEMM_ROWS / 3; /* nearly equal halves matter more than whole panels */
    grid->tile_m = even_tile(m, tile_m, reused ? rows : grid->rows);
    grid->tile_n = grid->b == B_BLOCKS ? grid->block_n : even_tile(n, WIDE, SGEMM_COLS);
    while (num_tiles(grid, m, n) < enough) {
        bool flat = grid->tile_n > grid->tile_m, wide = reused && grid->b == B_LIES ? grid->tile_n >= 4 * LEAST_N : flat;
        if (grid->tile_n / 2 >= LEAST_N && (grid->tile_m / 2 < LEAST_M || ((grid->a_lies || grid->b == B_PANELS) && wide)))
            grid->tile_n = even_tile(min_i64(n, grid->block_n), grid->tile_n / 2, SGEMM_COLS);
        else if (grid->tile_m / 2 >= LEAST_M)
            grid->tile_m = even_tile(m, grid->tile_m / 2, rows);
        else
            return;
    }
}

/* Makes the last tiles small, so that workers end at nearly the same time. Makes none small for one worker, or if all workers have the same
 * number of tiles, few and of nearly one size. */
static void cut_last(GemmGrid *grid, int64_t m, int64_t n, int num_workers)
{
    int64_t tiles = num_tiles(grid, m, n), whole = div_up(m, grid->tile_m) * grid->tile_m;
    bool    alike = tiles % num_workers == 0 && tiles < TASKS_PER_WORKER * num_workers && whole <= m + m / 32;
    grid->small_m = min_i64(grid->tile_m, max_i64(grid->rows, grid->tile_m / 4 / grid->rows * grid->rows));
    grid->large = alike || num_workers == 1 ? div_up(m, grid->tile_m) : max_i64(0, m / grid->tile_m - div_up(num_workers, 2));
}

/* Gives tiles fewer rows, at least half as many, if all workers then end sooner. beside: number of tiles with the same rows. Estimate: a
 * tile takes as long as its rows and TILE_ROWS more, and one row more if its last panel isn't whole. The last worker is late by half a
 * tile. */
static void level_tiles(GemmGrid *grid, int64_t m, int64_t beside, int num_workers)
{
    int64_t rows = grid->pairs ? grid->rows : SGEMM_ROWS / 3, panel = grid->pairs ? grid->rows : sgemm_kernel()->rows, best = INT64_MAX;
    for (int64_t tile_m = grid->tile_m, least = max_i64(LEAST_M, tile_m / 2); tile_m >= least; tile_m -= rows) {
        int64_t most = div_up(div_up(m, tile_m) * beside, num_workers);
        int64_t time = (2 * most + 1) * (tile_m + (tile_m % panel != 0) + TILE_ROWS);
        if (time < best) best = time, grid->tile_m = tile_m;
    }
}

/* How many columns of c a worker computes alone, few enough that their part of b stays in the L2 cache; g->n if workers don't. An a that
 * isn't read in place would have to be packed again for each of these parts. */
static int64_t own_cols(const Gemm *g, int num_workers)
{
    int64_t depth = even_tile(max_i64(1, g->k), DEPTH, 8);
    bool    lies = a_lies(g, false) && !g->a.trans && g->c.dtype == DT_F32 && g->b.scaling == GEMM_SCALE_WHOLE;
    if (!lies || g->n < OWN_FEWEST || g->m < STAYS_ROWS || OWN_N * depth > STAYS_FLOATS) return g->n;
    if (place_b(g, true, false) != B_BLOCKS || (num_workers == 1 && !cpu_reads_aliased())) return g->n;
    int64_t tasks = div_up(div_up(g->n, OWN_N), num_workers) * num_workers, cols = even_tile(g->n, div_up(g->n, tasks), SGEMM_COLS);
    int64_t most = div_up(div_up(g->n, cols), num_workers) * cols; /* columns of the busiest worker */
    return most * num_workers <= g->n + g->n / UNEVEN ? cols : g->n;
}

/* Rows of c that a worker computes alone, if b is small and packing it is faster than reading it from another core; g->m if workers
 * don't. */
static int64_t own_rows(const Gemm *g, int num_workers)
{
    bool    small = g->n * g->k <= OWN_B && a_lies(g, false) && !g->a.trans;
    int64_t rows = even_tile(g->m, div_up(g->m, num_workers), SGEMM_ROWS);
    return small && num_workers > 1 && rows >= OWN_ROWS ? rows : g->m;
}

GemmOwn gemm_own(const Gemm *g, int num_workers)
{
    GemmOwn own = {g->m, g->n, 1};
    if (num_workers >= MANY_WORKERS) return own;
    own.cols = own_cols(g, num_workers);
    if (own.cols == g->n) own.rows = own_rows(g, num_workers);
    own.parts = div_up(g->m, own.rows) * div_up(g->n, own.cols);
    return own;
}

int64_t grid_pairs_depth(int64_t k)
{
    return even_tile(max_i64(1, k), PAIRS_DEPTH, BGEMM_BLOCK);
}

GemmGrid gemm_grid(const Gemm *g, int num_workers)
{
    int64_t  m = max_i64(1, g->m), n = max_i64(1, g->n), k = max_i64(1, g->k);
    GemmGrid grid = {.pairs = g->a.dtype == DT_BF16 && g->b.dtype == DT_BF16 && g->c.dtype != DT_F16 ? bgemm_kernel() : NULL};
    grid.depth = grid.pairs ? grid_pairs_depth(k) : even_tile(k, DEPTH, 8);
    grid.a_stays = stays_across(g, grid.depth);
    grid.a_lies = a_lies(g, grid.a_stays);
    grid.b = place_b(g, grid.a_lies, grid.a_stays);
    grid.rows = grid.pairs && grid.pairs->rows > SGEMM_ROWS ? grid.pairs->rows : SGEMM_ROWS;
    int64_t least_n = grid.a_lies ? BLOCK_N : BLOCK_N_A, block = BLOCK_FLOATS * max_i64(1, num_workers / BLOCK_WORKERS);
    grid.block_n = even_tile(n, grid.b != B_BLOCKS ? n : max_i64(least_n, block / k), SGEMM_COLS);
    grid.a_stays = grid.a_stays || stays_along(g, &grid);
    int64_t blocked_k = even_tile(k, max_i64(1, block / grid.block_n / grid.depth) * grid.depth, grid.depth);
    grid.block_k = g->c.dtype == DT_F32 && grid.b == B_BLOCKS ? blocked_k : k;
    int64_t enough = num_workers > 1 ? TASKS_PER_WORKER * num_workers : 1, runs = grid_runs(&grid, min_i64(k, grid.block_k));
    bool    shallow = k <= SHALLOW_K && g->c.dtype == DT_F32, reused = grid.b == B_PANELS || (grid.b == B_LIES && runs > 1);
    bool    tall = shallow || (grid.a_lies && !g->a.trans && n <= SGEMM_COLS);
    int64_t wanted = shallow || reused ? div_up(enough, 2) : enough;
    if (num_workers >= MANY_WORKERS && !shallow) wanted *= 2;
    cut_tiles(&grid, m, n, most_rows(g, grid.a_lies, tall, reused), wanted, reused);
    bool    direct = g->c.dtype == DT_F32, few = num_tiles(&grid, m, n) < 2 * num_workers;
    int64_t floats = direct ? min_i64(PART_FLOATS, num_workers * OWN_PARTS) : PART_FLOATS, most = floats / (m * grid.block_n);
    bool    once =
        num_workers < MANY_WORKERS && grid.b == B_LIES; /* if runs are separate tasks, a row of b is read by one worker, not by each */
    bool thin = grid.tile_m < (once ? 3 : 2) * LEAST_M && grid.tile_m < m;
    if (num_workers > 1 && runs > 1 && most >= (direct ? 2 : runs) && (few || thin)) {
        grid.apart = true;
        if (runs > most) grid.block_k = even_tile(runs, most, min_i64(most, num_workers)) * grid.depth;
        runs = grid_runs(&grid, min_i64(k, grid.block_k));
        cut_tiles(&grid, m, n, TILE_M, div_up(enough, runs), false);
    }
    if (num_workers >= MANY_WORKERS && !shallow)
        level_tiles(&grid, m, div_up(min_i64(n, grid.block_n), grid.tile_n) * (grid.apart ? runs : 1), num_workers);
    grid.kept = g->c.dtype != DT_F32 && grid.b == B_BLOCKS && !grid.apart && blocked_k < k && m * n <= PART_FLOATS;
    if (grid.kept) grid.block_k = blocked_k;
    grid.by_rows = num_workers >= MANY_WORKERS;
    cut_last(&grid, m, n, grid.apart || grid.by_rows ? 1 : num_workers);
    grid.shares = grid.by_rows || shallow || grid.apart || (grid.b == B_LIES && grid.large * grid.tile_m >= m);
    return grid;
}

int64_t grid_panel_depth(const GemmGrid *grid, int64_t depth)
{
    if (grid->pairs) return bgemm_depth(depth);
    int64_t around = SETS_BYTES / dtype_bytes(DT_F32, sgemm_kernel()->cols);
    return depth <= grid->depth ? depth : depth + (around + (grid->depth - depth) % around) % around;
}

int64_t grid_block_floats(const GemmGrid *grid)
{
    return grid->b != B_BLOCKS ? 0 : sgemm_packed(grid->block_n, SGEMM_COLS, grid_panel_depth(grid, grid->block_k));
}

int64_t grid_blocks(const Gemm *g, const GemmGrid *grid)
{
    return grid->block_n < g->n || grid->block_k < g->k ? 2 : 1;
}

int64_t grid_a_floats(const GemmGrid *grid)
{
    return sgemm_packed(grid->tile_m, grid->rows, grid->depth);
}

int64_t grid_b_floats(const GemmGrid *grid)
{
    return grid->b == B_PANELS ? sgemm_packed(SGEMM_COLS, SGEMM_COLS, grid_panel_depth(grid, grid->depth)) : 0;
}

int64_t grid_scratch_floats(const Gemm *g, const GemmGrid *grid)
{
    return grid_a_floats(grid) + grid_b_floats(grid) +
           (g->c.dtype == DT_F32 || grid->apart || grid->kept ? 0 : grid->tile_m * grid->tile_n);
}

int64_t grid_part_floats(const Gemm *g, const GemmGrid *grid)
{
    if (grid->kept) return g->m * g->n;
    return grid->apart ? grid_runs(grid, min_i64(g->k, grid->block_k)) * g->m * grid->block_n : 0;
}

int64_t grid_tiles(const Gemm *g, const GemmGrid *grid, int64_t cols)
{
    int64_t last = grid->large + div_up(max_i64(0, g->m - grid->large * grid->tile_m), grid->small_m);
    return (div_up(cols, grid->tile_n) - 1) * div_up(g->m, grid->tile_m) + last;
}

GemmTile grid_tile(const Gemm *g, const GemmGrid *grid, int64_t cols, int64_t number)
{
    int64_t down = div_up(g->m, grid->tile_m), across = div_up(cols, grid->tile_n);
    int64_t column = grid->by_rows ? number % across : min_i64(number / down, across - 1), size = grid->tile_m, first = 0;
    number = grid->by_rows ? number / across : number - column * down;
    if (column == across - 1 && number >= grid->large) {
        first = grid->large * grid->tile_m;
        number -= grid->large;
        size = grid->small_m;
    }
    int64_t row = first + number * size, col = column * grid->tile_n;
    return (GemmTile){row, min_i64(size, g->m - row), col, min_i64(grid->tile_n, cols - col)};
}
