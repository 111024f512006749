/* A task makes a tile of c, depth by depth, from rows of a and columns of b. An operand is read where it lies unless its place in memory
 * costs more than packing it: a is then packed by each task for itself, b a block at a time for all workers; the next block is packed by
 * whoever finds no tile left of this one. While a tile is made, what it reads next comes into the caches, a line every few steps along k.
 * Where there are few tiles for the workers, or only thin ones, each depth is a task of its own: its sums stay apart until those of a block
 * are there, and are then added in the same order. What is bf16 or FP8 becomes fp32 as it is packed; a bf16 tile of c adds up in fp32
 * scratch. Products of a few rows (decoding) are dot products instead: they are bound by reading b, which packing would copy first. */
#include "ops/gemm.h"

#include "device/cpu/bgemm.h"
#include "device/cpu/sgemm.h"

enum {
    DEPTH = 320,       /* of a run of multiply-adds before they are added to c: a's rows and b's columns of it fit in caches */
    PAIRS_DEPTH = 640, /* the same of two bf16 operands, which take half the room */
    TILE_M = 144,      /* rows of a that a task packs at a time, 180 KiB */
    DEEP_M = 264,      /* the same where b isn't packed and is deep: every tile reads its columns of b from memory again */
    SHALLOW_K = 32,    /* such a product is bound by writing c: with few, tall tiles a worker mostly writes what it wrote the last time */
    TALL_M = 1056,     /* rows of a tile of it, and where each row of a is read once */
    LEAST_M = 24,      /* fewer reuse b too little */
    LEAST_N = 64,
    TILE_ROWS = 6, /* what a tile reads first takes about as long as so many of its rows */
    TASKS_PER_WORKER = 4,
    MANY_WORKERS = 8,       /* of so many one is often late (another guest of the machine has its core): smaller tiles make up for it.
                             * Each keeps to its own rows, since what another worker wrote is slow to read. */
    BLOCK_FLOATS = 1 << 19, /* of b packed at a time, 2 MiB; many workers pack so much for every BLOCK_WORKERS */
    BLOCK_WORKERS = 4,
    BLOCK_N = 512,              /* columns that a block has at least; twice as many where a is packed for each block */
    PACK_COLS = 2 * SGEMM_COLS, /* packed by a task */
    PACK_ROWS = 64,             /* the same where rows of b lie along k */
    NARROW = 64,                /* columns of c: packing a for no more takes longer than using it */
    PACK_FAR_ALIASED = 100, /* rows that c has at least where b, across the depth, is packed: if b's rows alias and the kernel is far, */
    PACK_ALIASED = 32,      /* if they alias and it isn't, */
    PACK = 200,             /* if neither. A far kernel reads rows that don't alias where they lie. */
    PART_FLOATS = 1 << 22,  /* of sums that stay apart, or are kept, 16 MiB */
    ALIASED = 2048,         /* bytes: rows so far apart, or a multiple, share few places of the caches, and packing gains much */
    ALIASED_ROWS = 4096,    /* the same of rows of a along the depth, of which a tile reads few at a time */
    FAR_APART = 1 << 16,    /* bytes: rows of an a across the depth that are so far apart are packed (measured) */
    WIDE = 512,             /* columns of a tile at most where b is read where it lies */
    FEW_ROWS = 4,
    DOT_COLS = 32, /* columns of c that a task of dot products has at least */
};

_Static_assert(PACK_ROWS % BGEMM_BLOCK == 0, "parts of a panel are whole blocks");

/* How a product is cut. Bits depend on `depth` and on nothing else of it. */
typedef struct Grid {
    const BgemmKernel *pairs; /* of two bf16 operands; else NULL */
    int64_t            rows;  /* that tile_m is a multiple of */
    int64_t            depth, block_k, block_n, tile_m, tile_n;
    int64_t large, small_m; /* of the tiles side by side in the last columns of a block: how many have tile_m rows; rows of the others */
    bool    a_lies, b_lies; /* read where it lies, not packed */
    bool    by_rows;        /* tiles of the same rows come one after another, and all have tile_m; else those of the same columns */
    bool    apart;          /* each depth is a task */
    bool    kept;           /* fp32 sums of a bf16 c are kept from block to block; else its tiles add up over all of k */
} Grid;

/* Whether an operand is read where it lies. */
static bool a_lies(const Gemm *g)
{
    int64_t bytes = dtype_bytes(DT_F32, g->a.stride);
    if (g->a.dtype != DT_F32) return false;
    if (g->n <= NARROW) return true;
    return g->a.trans ? sgemm_kernel()->far && bytes % ALIASED != 0 && bytes < FAR_APART : bytes % ALIASED_ROWS != 0;
}

static bool b_lies(const Gemm *g)
{
    bool    far = sgemm_kernel()->far, aliased = dtype_bytes(DT_F32, g->b.stride) % ALIASED == 0;
    int64_t fewest = aliased ? (far ? PACK_FAR_ALIASED : PACK_ALIASED) : far ? INT64_MAX : PACK;
    return g->b.dtype == DT_F32 && !g->b.trans && g->m < fewest;
}

/* About `tile`, so that all tiles are of nearly one size. */
static int64_t even_tile(int64_t size, int64_t tile, int64_t multiple)
{
    return div_up(div_up(size, div_up(size, tile)), multiple) * multiple;
}

static int64_t num_runs(const Grid *grid, int64_t depth)
{
    return max_i64(1, div_up(depth, grid->depth));
}

static int64_t num_tiles(const Grid *grid, int64_t m, int64_t n)
{
    return div_up(m, grid->tile_m) * div_up(min_i64(n, grid->block_n), grid->tile_n);
}

/* Tiles are made smaller until there are `enough`; across columns only where a needn't be packed for each, and first where they are
 * `deep`: what a tile has read of b it uses for all its rows. */
static void cut_tiles(Grid *grid, int64_t m, int64_t n, int64_t tile_m, int64_t enough, bool deep)
{
    int64_t rows = grid->pairs ? grid->rows : SGEMM_ROWS / 3; /* nearly equal halves matter more than whole panels */
    grid->tile_m = even_tile(m, tile_m, deep ? rows : grid->rows);
    grid->tile_n = grid->b_lies ? even_tile(n, WIDE, SGEMM_COLS) : grid->block_n;
    while (num_tiles(grid, m, n) < enough) {
        bool wide = deep ? grid->tile_n >= 4 * LEAST_N : grid->tile_n > grid->tile_m;
        if (grid->tile_n / 2 >= LEAST_N && (grid->tile_m / 2 < LEAST_M || (grid->a_lies && wide)))
            grid->tile_n = even_tile(min_i64(n, grid->block_n), grid->tile_n / 2, SGEMM_COLS);
        else if (grid->tile_m / 2 >= LEAST_M)
            grid->tile_m = even_tile(m, grid->tile_m / 2, rows);
        else
            return;
    }
}

/* Workers end at nearly the same time when the last tiles are small, or when each has as many, all of nearly one size. */
static void cut_last(Grid *grid, int64_t m, int64_t n, int num_workers)
{
    int64_t tiles = num_tiles(grid, m, n), whole = div_up(m, grid->tile_m) * grid->tile_m;
    bool    alike = tiles % num_workers == 0 && tiles < TASKS_PER_WORKER * num_workers && whole <= m + m / 32;
    grid->small_m = min_i64(grid->tile_m, max_i64(grid->rows, grid->tile_m / 4 / grid->rows * grid->rows));
    grid->large = alike || num_workers == 1 ? div_up(m, grid->tile_m) : max_i64(0, m / grid->tile_m - div_up(num_workers, 2));
}

/* Gives tiles fewer rows, half as many at least, if all workers then end sooner; `beside`: tiles with the same rows. A tile takes as long
 * as its rows and TILE_ROWS, and a row more where its last panel isn't whole. The last worker is late by half a tile. */
static void level_tiles(Grid *grid, int64_t m, int64_t beside, int num_workers)
{
    int64_t rows = grid->pairs ? grid->rows : SGEMM_ROWS / 3, panel = grid->pairs ? grid->rows : sgemm_kernel()->rows, best = INT64_MAX;
    for (int64_t tile_m = grid->tile_m, least = max_i64(LEAST_M, tile_m / 2); tile_m >= least; tile_m -= rows) {
        int64_t most = div_up(div_up(m, tile_m) * beside, num_workers);
        int64_t time = (2 * most + 1) * (tile_m + (tile_m % panel != 0) + TILE_ROWS);
        if (time < best) best = time, grid->tile_m = tile_m;
    }
}

static Grid gemm_grid(const Gemm *g, int num_workers)
{
    int64_t m = max_i64(1, g->m), n = max_i64(1, g->n), k = max_i64(1, g->k);
    Grid grid = {.pairs = g->a.dtype == DT_BF16 && g->b.dtype == DT_BF16 ? bgemm_kernel() : NULL, .a_lies = a_lies(g), .b_lies = b_lies(g)};
    grid.depth = grid.pairs ? even_tile(k, PAIRS_DEPTH, BGEMM_BLOCK) : even_tile(k, DEPTH, 8);
    grid.rows = grid.pairs && grid.pairs->rows > SGEMM_ROWS ? grid.pairs->rows : SGEMM_ROWS;
    int64_t least_n = grid.a_lies ? BLOCK_N : 2 * BLOCK_N, block = BLOCK_FLOATS * max_i64(1, num_workers / BLOCK_WORKERS);
    grid.block_n = even_tile(n, grid.b_lies ? n : max_i64(least_n, block / k), SGEMM_COLS);
    int64_t blocked_k = even_tile(k, max_i64(1, block / grid.block_n / grid.depth) * grid.depth, grid.depth);
    grid.block_k = g->c.dtype == DT_F32 && !grid.b_lies ? blocked_k : k;
    int64_t enough = num_workers > 1 ? TASKS_PER_WORKER * num_workers : 1, runs = num_runs(&grid, min_i64(k, grid.block_k));
    bool    shallow = k <= SHALLOW_K && g->c.dtype == DT_F32, deep = grid.b_lies && runs > 1;
    bool    tall = shallow || (grid.a_lies && !g->a.trans && n <= SGEMM_COLS);
    int64_t wanted = shallow || deep ? div_up(enough, 2) : enough;
    if (num_workers >= MANY_WORKERS && !shallow) wanted *= 2;
    cut_tiles(&grid, m, n, tall ? TALL_M : deep ? DEEP_M : TILE_M, wanted, deep);
    int64_t most = PART_FLOATS / (m * grid.block_n); /* runs that may stay apart */
    bool    few = num_tiles(&grid, m, n) < 2 * num_workers, thin = grid.tile_m < 2 * LEAST_M && grid.tile_m < m;
    if (num_workers > 1 && runs > 1 && most >= (g->c.dtype == DT_F32 ? 2 : runs) && (few || thin)) {
        grid.apart = true;
        if (runs > most) grid.block_k = even_tile(runs, most, 1) * grid.depth;
        runs = num_runs(&grid, min_i64(k, grid.block_k));
        cut_tiles(&grid, m, n, TILE_M, div_up(enough, runs), false);
    }
    if (num_workers >= MANY_WORKERS && !shallow)
        level_tiles(&grid, m, div_up(min_i64(n, grid.block_n), grid.tile_n) * (grid.apart ? runs : 1), num_workers);
    grid.kept = g->c.dtype != DT_F32 && !grid.b_lies && !grid.apart && blocked_k < k && m * n <= PART_FLOATS;
    if (grid.kept) grid.block_k = blocked_k;
    grid.by_rows = num_workers >= MANY_WORKERS;
    cut_last(&grid, m, n, grid.apart || grid.by_rows ? 1 : num_workers);
    return grid;
}

static bool by_dots(const Gemm *g)
{
    return g->m <= FEW_ROWS && g->b.trans && !g->a.trans;
}

/* A worker's converted rows. */
static int64_t dot_floats(const Gemm *g)
{
    return g->a.dtype == DT_F32 && g->b.dtype == DT_F32 ? 0 : (FEW_ROWS + 1) * g->k;
}

/* Rows [k, k + depth) and columns [n, n + cols) of op(b), in panels. */
typedef struct Block {
    int64_t k, depth, n, cols;
    float  *panels;
} Block;

/* Of c; columns are counted from the block's first. */
typedef struct Tile {
    int64_t row, rows, col, cols;
} Tile;

typedef struct GemmJob {
    const Gemm        *gemm;
    const SgemmKernel *kernel;
    Grid               grid;
    int                num_workers;
    Block              block, next; /* next: without columns at the end */
    int64_t            tiles;       /* tasks of the block; those after them pack the next one */
    float             *parts;       /* sums that stay apart: (depths of a block, m, columns of a block); those kept: (m, n) */
    float             *scratch;     /* per worker: panels of a, tile of a bf16 c */
    int64_t            scratch_floats;
} GemmJob;

/* That panels have for `depth`. */
static int64_t panel_depth(const Grid *grid, int64_t depth)
{
    return grid->pairs ? bgemm_depth(depth) : depth;
}

static int64_t block_floats(const Grid *grid)
{
    return grid->b_lies ? 0 : sgemm_packed(grid->block_n, SGEMM_COLS, panel_depth(grid, grid->block_k));
}

/* In memory at a time. */
static int64_t num_blocks(const Gemm *g, const Grid *grid)
{
    return grid->block_n < g->n || grid->block_k < g->k ? 2 : 1;
}

static int64_t a_floats(const Grid *grid)
{
    return sgemm_packed(grid->tile_m, grid->rows, grid->depth);
}

static int64_t scratch_floats(const Gemm *g, const Grid *grid)
{
    return a_floats(grid) + (g->c.dtype == DT_F32 || grid->apart || grid->kept ? 0 : grid->tile_m * grid->tile_n);
}

static int64_t part_floats(const Gemm *g, const Grid *grid)
{
    if (grid->kept) return g->m * g->n;
    return grid->apart ? num_runs(grid, min_i64(g->k, grid->block_k)) * g->m * grid->block_n : 0;
}

size_t gemm_workspace(const Gemm *g, int num_workers)
{
    if (by_dots(g)) return (size_t)(num_workers * dot_floats(g)) * sizeof(float);
    if (!g->m || !g->n) return 0;
    Grid grid = gemm_grid(g, num_workers);
    return (size_t)(num_blocks(g, &grid) * block_floats(&grid) + part_floats(g, &grid) + num_workers * scratch_floats(g, &grid)) *
           sizeof(float);
}

/* Which element of memory is at (row, col) of the matrix. */
static int64_t index_of(const GemmOperand *x, int64_t row, int64_t col)
{
    return x->offset + (x->trans ? col * x->stride + row : row * x->stride + col);
}

static const void *element(const GemmOperand *x, int64_t row, int64_t col)
{
    return (const char *)x->data + dtype_bytes(x->dtype, index_of(x, row, col));
}

/* The number there, but for the scale of the whole. */
static double number_at(const GemmOperand *x, int64_t row, int64_t col, bool row_is_k)
{
    float value;
    dtype_decode(x->dtype, element(x, row, col), 1, &value);
    if (x->scaling == GEMM_SCALE_WHOLE) return value;
    return (double)value * gemm_block_scale(x, row_is_k ? col : row, row_is_k ? row : col);
}

/* `count` numbers side by side from there on: in place, or decoded into scratch. */
static const float *numbers_from(const GemmOperand *x, int64_t row, int64_t col, int64_t count, float *scratch)
{
    const void *from = element(x, row, col);
    if (x->dtype == DT_F32) return from;
    dtype_decode(x->dtype, from, count, scratch);
    return scratch;
}

static void *element_of_c(const Gemm *g, int64_t row, int64_t col)
{
    return vec_at_mut(g->c.data, g->c.dtype, index_of(&g->c, row, col));
}

static float whole_scale(const GemmOperand *x)
{
    return x->scale && x->scaling == GEMM_SCALE_WHOLE ? *x->scale : 1.0f;
}

/* alpha and the scales of whole operands. */
static float factor_of(const Gemm *g)
{
    return g->alpha * whole_scale(&g->a) * whole_scale(&g->b);
}

/* Multiplies numbers in panels of `width` rows, `panel` floats apart, by the scales of their blocks: `count` rows from `row` on, `depth`
 * from `k` on. */
static void scale_panels(const GemmOperand *x, int64_t width, int64_t row, int64_t count, int64_t k, int64_t depth, float *panels,
                         int64_t panel)
{
    if (x->scaling == GEMM_SCALE_WHOLE) return;
    for (int64_t i = 0; i < count; i += width, panels += panel) {
        int64_t rows = min_i64(width, count - i);
        for (int64_t l = 0; l < depth; l++)
            for (int64_t j = 0; j < rows; j++) panels[l * width + j] *= gemm_block_scale(x, row + i + j, k + l);
    }
}

/* The same of a row, from its beginning on. */
static void scale_row(const GemmOperand *x, int64_t row, int64_t count, float *numbers)
{
    scale_panels(x, 1, row, 1, 0, count, numbers, count);
}

static int64_t pack_tasks(const Gemm *g, const Grid *grid, const Block *block)
{
    if (grid->b_lies) return 0;
    return g->b.trans ? div_up(block->cols, PACK_COLS) : block->cols ? div_up(block->depth, PACK_ROWS) : 0;
}

/* Bytes of a panel of the block, of bf16 operands, and where that of column `col` has its depth l. */
static size_t pairs_panel(const GemmJob *job, const Block *block)
{
    return bgemm_panel(job->grid.pairs, job->grid.pairs->cols, block->depth);
}

static char *pairs_panels(const GemmJob *job, const Block *block, int64_t col, int64_t l)
{
    const BgemmKernel *kernel = job->grid.pairs;
    return (char *)block->panels + col / kernel->cols * (int64_t)pairs_panel(job, block) + l * kernel->cols * kernel->bytes;
}

/* One of them: columns of op(b), or rows, whichever lie side by side. */
static void pack_part(const GemmJob *job, const Block *block, int64_t part)
{
    const Gemm *g = job->gemm;
    int64_t     col = g->b.trans ? part * PACK_COLS : 0, cols = g->b.trans ? min_i64(PACK_COLS, block->cols - col) : block->cols;
    int64_t     row = g->b.trans ? 0 : part * PACK_ROWS, rows = g->b.trans ? block->depth : min_i64(PACK_ROWS, block->depth - row);
    const void *from = element(&g->b, block->k + row, block->n + col);
    if (job->grid.pairs) {
        BgemmSource b = {from, g->b.stride, g->b.trans, cols, rows};
        job->grid.pairs->pack_b(&b, pairs_panels(job, block, col, row), pairs_panel(job, block));
        return;
    }
    int64_t width = job->kernel->cols, panel = width * block->depth;
    float  *panels = block->panels + col * block->depth + row * width;
    sgemm_pack_b(job->kernel, g->b.trans, cols, rows, from, g->b.dtype, g->b.stride, panels, panel);
    scale_panels(&g->b, width, block->n + col, cols, block->k + row, rows, panels, panel);
}

static void pack_task(void *context, int64_t task, int worker)
{
    const GemmJob *job = context;
    (void)worker;
    pack_part(job, &job->next, task);
}

static SgemmA operand_a(const GemmJob *job, int64_t row, int64_t rows, int64_t k, int64_t depth, float *panels)
{
    const Gemm *g = job->gemm;
    const void *from = element(&g->a, row, k);
    if (job->grid.a_lies) return sgemm_a(job->kernel, g->a.trans, from, g->a.stride);
    SgemmA a = sgemm_pack_a(job->kernel, g->a.trans, rows, depth, from, g->a.dtype, g->a.stride, panels);
    scale_panels(&g->a, job->kernel->rows, row, rows, k, depth, panels, a.panel);
    return a;
}

static SgemmB operand_b(const GemmJob *job, int64_t l, int64_t col)
{
    const Gemm *g = job->gemm;
    int64_t     width = job->kernel->cols;
    if (job->grid.b_lies) return sgemm_b(job->kernel, element(&g->b, job->block.k + l, job->block.n + col), g->b.stride);
    return (SgemmB){job->block.panels + col * job->block.depth + l * width, width * job->block.depth, width};
}

/* Columns [col, col + cols) of op(x) from row k on, where rows lie across them. */
static SgemmAhead across(const void *data, int64_t stride, int64_t cols)
{
    return (SgemmAhead){data, div_up(cols, 16), stride * (int64_t)sizeof(float)};
}

/* What a tile of sgemm reads first from depth l of the block on, after `now`: returns how many. What lies along the depth comes by itself,
 * or with the rows before. */
static int read_next(const GemmJob *job, const Tile *now, const Tile *tile, int64_t l, SgemmAhead *ahead)
{
    const Gemm *g = job->gemm;
    int         count = 0;
    SgemmB      b = operand_b(job, l, tile->col);
    if (tile == now || tile->col != now->col) ahead[count++] = across(b.data, b.row, job->kernel->cols);
    if (g->a.trans && g->a.dtype == DT_F32) ahead[count++] = across(element(&g->a, tile->row, job->block.k + l), g->a.stride, tile->rows);
    return count;
}

static void add_bias(const Gemm *g, float *c, int64_t stride, int64_t rows, int64_t col, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) c[i * stride + j] += vec_get(g->bias.data, g->bias.dtype, g->bias.offset + col + j);
}

/* Sums of a part of c's row, in fp32, to where c lies. */
static void store_row(const Gemm *g, int64_t row, int64_t col, const float *sums, int64_t count)
{
    void *to = element_of_c(g, row, col);
    if (g->accumulate)
        vec_add_row(to, g->c.dtype, sums, count);
    else
        vec_store_row(to, g->c.dtype, sums, count);
}

/* Where sums over a depth of a tile of two bf16 operands go. */
typedef struct SumsTo {
    const Gemm *gemm;
    float      *c;
    int64_t     c_stride, row, col, rows; /* of the tile in the gemm's c */
    float       factor;
    bool        adds, ends; /* ends: c is scratch, and its last sums go on to the gemm's */
} SumsTo;

/* What is written after these comes into the caches meanwhile: rows below, or the tile's first of the next columns. */
static void take_sums(void *context, int64_t row, int64_t col, const float *sums, int64_t stride, int64_t rows, int64_t cols)
{
    const SumsTo *to = context;
    int64_t       ahead = row + rows < to->rows ? rows : -row, next = col + (row + rows < to->rows ? 0 : cols);
    for (int64_t i = row; i < row + rows; i++, sums += stride) {
        if (i + ahead < to->rows) {
            if (to->ends) __builtin_prefetch(element_of_c(to->gemm, to->row + i + ahead, to->col + next), 1);
            if (to->adds || !to->ends) __builtin_prefetch(to->c + (i + ahead) * to->c_stride + next, 1);
        }
        float *c = to->c + i * to->c_stride + col, last[BGEMM_COLS], *out = to->ends ? last : c;
        for (int64_t j = 0; j < cols; j++) out[j] = fmaf(sums[j], to->factor, to->adds ? c[j] : 0);
        if (!to->ends) continue;
        if (to->gemm->epilogue == GEMM_BIAS) add_bias(to->gemm, out, cols, 1, to->col + col, cols);
        store_row(to->gemm, to->row + i, to->col + col, out, cols);
    }
}

/* Rows of a times columns of the block, from depth l on, of bf16 operands. */
static void pairs_run(const GemmJob *job, int64_t rows, int64_t l, int64_t depth, int64_t cols, float *panels, SumsTo *to)
{
    const BgemmKernel *kernel = job->grid.pairs;
    const GemmOperand *a = &job->gemm->a;
    BgemmSource        of_a = {element(a, to->row, job->block.k + l), a->stride, !a->trans, rows, depth};
    kernel->pack_a(&of_a, (char *)panels, bgemm_panel(kernel, kernel->rows, depth));
    bgemm_run(kernel, rows, cols, depth, (const char *)panels, pairs_panels(job, &job->block, to->col - job->block.n, l),
              pairs_panel(job, &job->block), take_sums, to);
}

/* A tile of c over the depth of the block. `next`: what the worker probably makes after it, or NULL. */
static void tile_sum(const GemmJob *job, const Tile *tile, const Tile *next, float *panels, float *c, int64_t c_stride, bool adds)
{
    const Gemm  *g = job->gemm;
    const Block *block = &job->block;
    for (int64_t l = 0; l < max_i64(1, block->depth); l += job->grid.depth) {
        int64_t depth = min_i64(job->grid.depth, block->depth - l);
        if (job->grid.pairs) {
            bool   ends = g->c.dtype != DT_F32 && block->k + l + depth == g->k;
            SumsTo to = {g, c, c_stride, tile->row, block->n + tile->col, tile->rows, factor_of(g), adds || l > 0, ends};
            pairs_run(job, tile->rows, l, depth, tile->cols, panels, &to);
            continue;
        }
        SgemmA     a = operand_a(job, tile->row, tile->rows, block->k + l, depth, panels);
        SgemmAhead ahead[SGEMM_MOST_AHEAD];
        int        num_ahead = 0, how = (adds || l > 0 ? SGEMM_ADD : 0) | (l == 0 && g->c.dtype == DT_F32 ? SGEMM_FAR : 0);
        if (l + depth < block->depth)
            num_ahead = read_next(job, tile, tile, l + depth, ahead);
        else if (next)
            num_ahead = read_next(job, tile, next, 0, ahead);
        sgemm_run(job->kernel, tile->rows, tile->cols, depth, factor_of(g), a, operand_b(job, l, tile->col), c, c_stride, how, ahead,
                  num_ahead);
    }
}

static float *part_of(const GemmJob *job, int64_t run, int64_t row, int64_t col)
{
    return job->parts + (run * job->gemm->m + row) * job->grid.block_n + col;
}

/* A tile over one depth. */
static void part_task(const GemmJob *job, int64_t run, const Tile *tile, float *panels)
{
    int64_t l = run * job->grid.depth, depth = min_i64(job->grid.depth, job->block.depth - l);
    float  *part = part_of(job, run, tile->row, tile->col);
    if (job->grid.pairs) {
        SumsTo to = {job->gemm, part, job->grid.block_n, tile->row, job->block.n + tile->col, tile->rows, 1, false, false};
        pairs_run(job, tile->rows, l, depth, tile->cols, panels, &to);
        return;
    }
    SgemmA a = operand_a(job, tile->row, tile->rows, job->block.k + l, depth, panels);
    sgemm_run(job->kernel, tile->rows, tile->cols, depth, 1, a, operand_b(job, l, tile->col), part, job->grid.block_n, 0, NULL, 0);
}

/* Adds up a row of the parts as tile_sum would have. */
static void add_parts(void *context, int64_t row, int worker)
{
    const GemmJob *job = context;
    const Gemm    *g = job->gemm;
    const Block   *block = &job->block;
    bool           direct = g->c.dtype == DT_F32, adds = direct && (block->k > 0 || g->accumulate), ends = block->k + block->depth == g->k;
    float          factor = factor_of(g), sums[TILE];
    (void)worker;
    for (int64_t col = 0; col < block->cols; col += TILE) {
        int64_t cols = min_i64(TILE, block->cols - col);
        float  *c = direct ? element_of_c(g, row, block->n + col) : sums;
        for (int64_t run = 0; run < num_runs(&job->grid, block->depth); run++) {
            const float *part = part_of(job, run, row, col);
            bool         first = run == 0 && !adds;
            for (int64_t j = 0; j < cols; j++) c[j] = fmaf(part[j], factor, first ? 0 : c[j]);
        }
        if (g->epilogue == GEMM_BIAS && ends) add_bias(g, c, cols, 1, block->n + col, cols);
        if (!direct) store_row(g, row, block->n + col, c, cols);
    }
}

/* Tiles over one depth of a block. */
static int64_t tiles_of(const Gemm *g, const Grid *grid, int64_t cols)
{
    int64_t last = grid->large + div_up(max_i64(0, g->m - grid->large * grid->tile_m), grid->small_m);
    return (div_up(cols, grid->tile_n) - 1) * div_up(g->m, grid->tile_m) + last;
}

static Tile place_tile(const Gemm *g, const Grid *grid, int64_t cols, int64_t number)
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
    return (Tile){row, min_i64(size, g->m - row), col, min_i64(grid->tile_n, cols - col)};
}

static void tile_task(void *context, int64_t task, int worker)
{
    const GemmJob *job = context;
    const Gemm    *g = job->gemm;
    const Grid    *grid = &job->grid;
    const Block   *block = &job->block;
    if (task >= job->tiles) {
        pack_part(job, &job->next, task - job->tiles);
        return;
    }
    int64_t tiles = tiles_of(g, grid, block->cols), after = task + (grid->by_rows ? 1 : job->num_workers);
    Tile    tile = place_tile(g, grid, block->cols, task % tiles);
    float  *panels = job->scratch + worker * job->scratch_floats, *scratch = panels + a_floats(grid);
    if (grid->apart) {
        part_task(job, task / tiles, &tile, panels);
        return;
    }
    Tile    next = place_tile(g, grid, block->cols, min_i64(after, tiles - 1));
    bool    direct = g->c.dtype == DT_F32, ends = block->k + block->depth == g->k;
    int64_t col = block->n + tile.col, c_stride = direct ? g->c.stride : grid->kept ? g->n : tile.cols;
    float  *c = direct ? element_of_c(g, tile.row, col) : grid->kept ? job->parts + tile.row * g->n + col : scratch;
    tile_sum(job, &tile, after < tiles ? &next : NULL, panels, c, c_stride, block->k > 0 || (direct && g->accumulate));
    if (!ends || (grid->pairs && !direct)) return;
    if (g->epilogue == GEMM_BIAS) add_bias(g, c, c_stride, tile.rows, col, tile.cols);
    if (direct) return;
    for (int64_t i = 0; i < tile.rows; i++) store_row(g, tile.row + i, col, c + i * c_stride, tile.cols);
}

/* The block with the number, over columns first; past the last without columns. */
static Block block_at(const Gemm *g, const Grid *grid, int64_t number, float *memory)
{
    int64_t across = div_up(g->n, grid->block_n), k = number / across * grid->block_k, n = number % across * grid->block_n;
    if (number && k >= g->k) return (Block){0};
    return (Block){k, min_i64(grid->block_k, g->k - k), n, min_i64(grid->block_n, g->n - n), memory + number % 2 * block_floats(grid)};
}

static void run_blocks(const Gemm *g, ThreadPool *pool, float *workspace)
{
    int         workers = pool_num_workers(pool);
    GemmJob     job = {.gemm = g, .kernel = sgemm_kernel(), .grid = gemm_grid(g, workers), .num_workers = workers};
    const Grid *grid = &job.grid;
    job.parts = workspace + num_blocks(g, grid) * block_floats(grid);
    job.scratch = job.parts + part_floats(g, grid);
    job.scratch_floats = scratch_floats(g, grid);
    job.next = block_at(g, grid, 0, workspace);
    pool_run(pool, pack_tasks(g, grid, &job.next), pack_task, &job);
    for (int64_t number = 1; job.next.cols; number++) {
        job.block = job.next;
        job.next = block_at(g, grid, number, workspace);
        job.tiles = tiles_of(g, grid, job.block.cols) * (grid->apart ? num_runs(grid, job.block.depth) : 1);
        (grid->by_rows ? pool_run : pool_run_in_order)(pool, job.tiles + pack_tasks(g, grid, &job.next), tile_task, &job);
        if (grid->apart) pool_run(pool, g->m, add_parts, &job);
    }
}

/* Columns a task. A worker has few tasks, so that it reads b in long pieces. */
static int64_t dot_cols(const Gemm *g, int num_workers)
{
    return max_i64(DOT_COLS, div_up(g->n, 2 * TASKS_PER_WORKER * num_workers));
}

static void gemm_dots(void *context, int64_t task, int worker)
{
    const GemmJob *job = context;
    const Gemm    *g = job->gemm;
    int64_t        cols = dot_cols(g, job->num_workers), end = min_i64(g->n, (task + 1) * cols);
    float         *scratch = job->scratch + worker * job->scratch_floats;
    const float   *a[FEW_ROWS];
    for (int64_t i = 0; i < g->m; i++) {
        a[i] = numbers_from(&g->a, i, 0, g->k, scratch + (i + 1) * g->k);
        scale_row(&g->a, i, g->k, scratch + (i + 1) * g->k);
    }
    for (int64_t j = task * cols; j < end; j++) {
        const float *b = numbers_from(&g->b, 0, j, g->k, scratch);
        scale_row(&g->b, j, g->k, scratch);
        for (int64_t i = 0; i < g->m; i++) {
            float value = factor_of(g) * vec_dot(a[i], b, g->k);
            if (g->epilogue == GEMM_BIAS) value += vec_get(g->bias.data, g->bias.dtype, g->bias.offset + j);
            if (g->accumulate) value += vec_get(g->c.data, g->c.dtype, index_of(&g->c, i, j));
            vec_set(g->c.data, g->c.dtype, index_of(&g->c, i, j), value);
        }
    }
}

void gemm_run(const Gemm *g, ThreadPool *pool, void *workspace)
{
    if (!g->m || !g->n) return;
    if (!by_dots(g)) {
        run_blocks(g, pool, workspace);
        return;
    }
    GemmJob job = {.gemm = g, .num_workers = pool_num_workers(pool), .scratch = workspace, .scratch_floats = dot_floats(g)};
    pool_run(pool, div_up(g->n, dot_cols(g, job.num_workers)), gemm_dots, &job);
}

void gemm_reference(const Gemm *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < g->k; k++) sum += number_at(&g->a, i, k, false) * number_at(&g->b, k, j, true);
            sum *= factor_of(g);
            if (g->epilogue == GEMM_BIAS) sum += vec_get(g->bias.data, g->bias.dtype, g->bias.offset + j);
            if (g->accumulate) sum += vec_get(g->c.data, g->c.dtype, index_of(&g->c, i, j));
            vec_set(g->c.data, g->c.dtype, index_of(&g->c, i, j), (float)sum);
        }
}

static OpCost gemm_cost(const Gemm *g)
{
    return (OpCost){.flops = 2.0 * (double)g->m * (double)g->n * (double)g->k,
                    .bytes = (double)(dtype_bytes(g->a.dtype, g->m * g->k) + dtype_bytes(g->b.dtype, g->n * g->k) +
                                      dtype_bytes(g->c.dtype, g->m * g->n) * (g->accumulate ? 2 : 1)),
                    .matrix_unit = true};
}

OpCost gemms_cost(const Gemm *gemms, int count)
{
    OpCost cost = {.matrix_unit = true};
    for (int i = 0; i < count; i++) {
        OpCost one = gemm_cost(&gemms[i]);
        cost.flops += one.flops;
        cost.bytes += one.bytes;
    }
    return cost;
}

size_t gemms_workspace(const Gemm *gemms, int count, int num_workers)
{
    size_t most = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = gemm_workspace(&gemms[i], num_workers);
        if (bytes > most) most = bytes;
    }
    return most;
}
