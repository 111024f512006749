/* A task computes a tile of c, one depth (a run along k) after the other, from rows of a and columns of b. An operand is read in place
 * unless its layout costs more than packing it. Each task packs its own rows of a. b is packed a block at a time for all workers; the next
 * block is packed by workers that find no tile left of this one. For few rows of c each task packs b too, a panel when it needs it: the
 * panel is then in its L1 or L2 cache. If there are few workers and a is read in place, each worker may compute parts of c alone, as
 * products on one thread. While a tile is computed, the operands of the next one are prefetched, a cache line every few steps along k.
 *
 * If there are few tiles for the workers, or only thin ones, each depth is a task of its own: its sums stay apart until all sums of a block
 * exist, and are then added in the same order. Operands in bf16, FP8 or int8 become fp32 as they are packed, unless the kernel multiplies
 * bf16. A bf16 tile of c accumulates in fp32 scratch. Products of a few rows are dot products instead (gemm_dots.c). */
#include "ops/products/gemm.h"

#include "base/scoped.h"
#include "device/cpu/sgemm.h"
#include "ops/products/gemm_dots.h"
#include "ops/products/gemm_few.h"
#include "ops/products/gemm_grid.h"
#include "ops/products/gemm_operand.h"

enum {
    PACK_COLS = 2 * SGEMM_COLS, /* columns of b that a task packs */
    PACK_ROWS = 64,             /* rows of b that a task packs, if b is stored (k,n) */
    PIECE = 2048,               /* floats of a run's sums that are added up at a time */
};

_Static_assert(PACK_ROWS % BGEMM_BLOCK == 0, "parts of a panel are whole blocks");

/* Rows [k, k + depth) and columns [n, n + cols) of op(b), packed into panels. */
typedef struct Block {
    int64_t k, depth, n, cols;
    float  *panels;
} Block;

typedef struct GemmJob {
    const Gemm        *gemm;
    const SgemmKernel *kernel;
    GemmGrid           grid;
    int                num_workers;
    Block              block, next; /* next: without columns after the last block */
    int64_t            tiles;       /* tasks that compute the block; later tasks pack the next one */
    float             *parts;       /* apart: sums of each depth (depths of a block, m, columns of a block); kept: c's sums so far (m, n) */
    float             *scratch;     /* per worker: panels of a, tile of a bf16 c */
    int64_t            scratch_floats;
} GemmJob;

/* Floats of scratch for a product that all workers compute together. */
static int64_t grid_floats(const Gemm *g, int num_workers)
{
    GemmGrid grid = gemm_grid(g, num_workers);
    return grid_blocks(g, &grid) * grid_block_floats(&grid) + grid_part_floats(g, &grid) + num_workers * grid_scratch_floats(g, &grid);
}

/* Floats of scratch for each worker that computes parts of c alone. The last parts have fewer rows or columns, and so may have another
 * grid. */
static int64_t own_floats(const Gemm *g, const GemmOwn *own)
{
    Gemm whole = *g, last = *g;
    whole.m = own->rows, last.m = g->m - (div_up(g->m, own->rows) - 1) * own->rows;
    whole.n = own->cols, last.n = g->n - (div_up(g->n, own->cols) - 1) * own->cols;
    return max_i64(grid_floats(&whole, 1), grid_floats(&last, 1));
}

size_t gemm_workspace(const Gemm *g, int num_workers)
{
    if (gemm_by_dots(g)) return gemm_dots_workspace(g, num_workers);
    if (gemm_by_few(g)) return gemm_few_workspace(g, num_workers);
    if (!g->m || !g->n) return 0;
    GemmOwn own = gemm_own(g, num_workers);
    int64_t floats = own.parts > 1 ? num_workers * own_floats(g, &own) : grid_floats(g, num_workers);
    return (size_t)floats * sizeof(float);
}

static int64_t pack_tasks(const Gemm *g, const GemmGrid *grid, const Block *block)
{
    if (grid->b != B_BLOCKS) return 0;
    return g->b.trans ? div_up(block->cols, PACK_COLS) : block->cols ? div_up(block->depth, PACK_ROWS) : 0;
}

/* pairs_panel: bytes of a panel of b for a bf16 kernel. pairs_panels: the address of depth l of the panel that begins at column `col`. */
static size_t pairs_panel(const GemmJob *job, int64_t depth)
{
    return bgemm_panel(job->grid.pairs, job->grid.pairs->cols, depth);
}

static char *pairs_panels(const GemmJob *job, const Block *block, int64_t col, int64_t l)
{
    const BgemmKernel *kernel = job->grid.pairs;
    return (char *)block->panels + col / kernel->cols * (int64_t)pairs_panel(job, block->depth) + l * kernel->cols * kernel->bytes;
}

/* Packs rows [row, row + rows) of the block's columns [col, col + cols) into its panels. */
static void pack_b(const GemmJob *job, const Block *block, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    const Gemm *g = job->gemm;
    const void *from = operand_at(&g->b, block->k + row, block->n + col);
    if (job->grid.pairs) {
        BgemmSource b = {from, g->b.stride, g->b.trans, cols, rows};
        job->grid.pairs->pack_b(&b, pairs_panels(job, block, col, row), pairs_panel(job, block->depth));
        return;
    }
    int64_t width = job->kernel->cols, depth = grid_panel_depth(&job->grid, block->depth), panel = width * depth;
    float  *panels = block->panels + col * depth + row * width;
    sgemm_pack_b(job->kernel, g->b.trans, cols, rows, from, g->b.dtype, g->b.stride, panels, panel);
    operand_scale_panels(&g->b, width, block->n + col, cols, block->k + row, rows, panels, panel);
}

/* Runs one of the pack_tasks: it packs columns of op(b) if b is stored (n,k), else rows. */
static void pack_part(const GemmJob *job, const Block *block, int64_t part)
{
    int64_t at = part * (job->gemm->b.trans ? PACK_COLS : PACK_ROWS);
    if (job->gemm->b.trans)
        pack_b(job, block, 0, block->depth, at, min_i64(PACK_COLS, block->cols - at));
    else
        pack_b(job, block, at, min_i64(PACK_ROWS, block->depth - at), 0, block->cols);
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
    const void *from = operand_at(&g->a, row, k);
    if (job->grid.a_lies) return sgemm_a(job->kernel, g->a.trans, from, g->a.stride);
    SgemmA a = sgemm_pack_a(job->kernel, g->a.trans, rows, depth, from, g->a.dtype, g->a.stride, panels);
    operand_scale_panels(&g->a, job->kernel->rows, row, rows, k, depth, panels, a.panel);
    return a;
}

static SgemmB operand_b(const GemmJob *job, int64_t l, int64_t col)
{
    const Gemm *g = job->gemm;
    int64_t     width = job->kernel->cols;
    if (job->grid.b == B_LIES) return sgemm_b(job->kernel, operand_at(&g->b, job->block.k + l, job->block.n + col), g->b.stride);
    int64_t depth = grid_panel_depth(&job->grid, job->block.depth);
    return (SgemmB){job->block.panels + col * depth + l * width, width * depth, width};
}

/* Rows to prefetch: `rows` rows of `floats` floats each, from `data` on. */
static SgemmAhead rows_ahead(const void *data, int64_t stride, int64_t floats, int64_t rows)
{
    return (SgemmAhead){data, div_up(floats, 16), stride * (int64_t)sizeof(float), rows};
}

/* Lists the data that `tile` reads first, from depth l of the block on, to be prefetched while `now` is computed at depth now_l. Returns
 * the number of entries. Data stored along the depth isn't listed: the hardware prefetches it, or it was loaded with the previous rows. */
static int read_next(const GemmJob *job, const GemmTile *now, int64_t now_l, const GemmTile *tile, int64_t l, SgemmAhead *ahead)
{
    const Gemm *g = job->gemm;
    int         count = 0;
    int64_t     depth = min_i64(job->grid.depth, job->block.depth - l);
    if (l != now_l || tile->col != now->col) {
        SgemmB b = operand_b(job, l, tile->col);
        ahead[count++] = rows_ahead(b.data, b.row, job->kernel->cols, depth);
    }
    if (g->a.trans && g->a.dtype == DT_F32)
        ahead[count++] = rows_ahead(operand_at(&g->a, tile->row, job->block.k + l), g->a.stride,
                                    job->grid.a_stays ? job->kernel->rows : tile->rows, depth);
    return count;
}

/* Like read_next, but for a task that packs its own panels of b: collects the columns that the panel after `own` is packed from. left:
 * columns after `own`; 0: none. */
static int read_next_panel(const GemmJob *job, const Block *own, int64_t left, SgemmAhead *ahead)
{
    const GemmOperand *b = &job->gemm->b;
    if (b->dtype != DT_F32 || !left) return 0;
    const void *from = operand_at(b, own->k, own->n + own->cols);
    int64_t     cols = min_i64(left, own->cols);
    /* contiguous columns are read as one piece, in short rows */
    *ahead = b->stride == own->depth ? rows_ahead(from, cols, cols, own->depth) : rows_ahead(from, b->stride, own->depth, cols);
    return 1;
}

/* Finishes complete sums: multiplies by the scales of columns, and adds the bias. */
static void finish(const Gemm *g, float *c, int64_t stride, int64_t rows, int64_t col, int64_t cols)
{
    for (int64_t i = 0; i < rows && g->b.scaling == GEMM_SCALE_COLS; i++)
        for (int64_t j = 0; j < cols; j++) c[i * stride + j] *= g->b.scale[col + j];
    for (int64_t i = 0; i < rows && g->epilogue == GEMM_BIAS; i++)
        for (int64_t j = 0; j < cols; j++) c[i * stride + j] += vec_get(g->bias.data, g->bias.dtype, g->bias.offset + col + j);
}

/* Stores fp32 sums as a part of a row of c, or adds them to it if the gemm accumulates. */
static void store_row(const Gemm *g, int64_t row, int64_t col, const float *sums, int64_t count)
{
    void *to = gemm_c_at(g, row, col);
    if (g->accumulate)
        vec_add_row(to, g->c.dtype, sums, count);
    else
        vec_store_row(to, g->c.dtype, sums, count);
}

/* Where and how a tile's sums over one depth are stored. */
typedef struct SumsTo {
    const Gemm *gemm;
    float      *c;
    int64_t     c_stride, row, col, rows; /* row, col, rows: the tile's position in the gemm's c */
    float       factor;
    bool        adds;
    bool        far;  /* c isn't in the caches */
    bool        ends; /* c is scratch, and its finished sums are stored to the gemm's c */
} SumsTo;

/* Successive rows of a matrix, `step` bytes apart. */
typedef struct Rows {
    char   *at;
    int64_t step;
} Rows;

/* out = factor * sums; with `adds`, `before` is added. */
VEC_ROW void take_rows(DType dtype, bool adds, Rows out, Rows before, const float *sums, int64_t stride, float factor, int64_t rows,
                       int64_t cols)
{
    Vec8 factors = vec8_all(factor), zeros = vec8_all(0);
    for (int64_t i = 0; i < rows; i++, sums += stride, out.at += out.step, before.at += before.step)
        VEC_EACH(dtype, out.at, cols, j, n,
                 vec8_fma(vec8_some(DT_F32, sums, j, n), factors, adds ? vec8_some(DT_F32, before.at, j, n) : zeros));
}

/* Like take_rows, with the number of columns of a kernel's whole tile as a constant: bf16 with AVX2 is 1 % faster. */
VEC_ROW void take_tile(DType dtype, bool adds, Rows out, Rows before, const float *sums, int64_t stride, float factor, int64_t rows,
                       int64_t cols)
{
    if (cols == BGEMM_COLS)
        take_rows(dtype, adds, out, before, sums, stride, factor, rows, BGEMM_COLS);
    else if (cols == BGEMM_COLS / 2)
        take_rows(dtype, adds, out, before, sums, stride, factor, rows, BGEMM_COLS / 2);
    else
        take_rows(dtype, adds, out, before, sums, stride, factor, rows, cols);
}

static Rows rows_of_sums(const SumsTo *to, int64_t row, int64_t col)
{
    return (Rows){(char *)(to->c + row * to->c_stride + col), (int64_t)sizeof(float) * to->c_stride};
}

static Rows rows_of_c(const SumsTo *to, int64_t row, int64_t col)
{
    const Gemm *g = to->gemm;
    return (Rows){gemm_c_at(g, to->row + row, to->col + col), dtype_bytes(g->c.dtype, g->c.stride)};
}

static void fetch_rows(Rows r, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++, r.at += r.step) __builtin_prefetch(r.at, 1);
}

/* Stores a part of a tile's sums, and prefetches the part stored next: the rows below, or the tile's first rows in the next columns. */
static void take_sums(void *context, int64_t row, int64_t col, const float *sums, int64_t stride, int64_t rows, int64_t cols)
{
    const SumsTo *to = context;
    const Gemm   *g = to->gemm;
    bool          below = row + rows < to->rows, as_is = g->epilogue != GEMM_BIAS && !g->accumulate;
    int64_t       next_row = below ? row + rows : 0, next_col = below ? col : col + cols, next_rows = min_i64(rows, to->rows - next_row);
    Rows          before = rows_of_sums(to, row, col), out = to->ends ? rows_of_c(to, row, col) : before;
    if (to->ends) fetch_rows(rows_of_c(to, next_row, next_col), next_rows);
    if (to->adds || !to->ends) fetch_rows(rows_of_sums(to, next_row, next_col), next_rows);
    if (!to->ends || as_is) {
        DType dtype = to->ends ? DT_BF16 : DT_F32;
        if (to->adds)
            VEC_OF(dtype, take_tile, true, out, before, sums, stride, to->factor, rows, cols);
        else
            VEC_OF(dtype, take_tile, false, out, before, sums, stride, to->factor, rows, cols);
        return;
    }
    for (int64_t i = 0; i < rows; i++, sums += stride, before.at += before.step) {
        float last[BGEMM_COLS];
        take_rows(DT_F32, to->adds, (Rows){(char *)last, 0}, before, sums, stride, to->factor, 1, cols);
        finish(g, last, cols, 1, to->col + col, cols);
        store_row(g, to->row + row + i, to->col + col, last, cols);
    }
}

/* A task's own panel of b, for columns of the tile from depth l of the block on. It is stored behind the task's panels of a. */
static Block own_panel(const GemmJob *job, const GemmTile *tile, int64_t l, int64_t depth, float *panels)
{
    return (Block){job->block.k + l, depth, job->block.n + tile->col, 0, panels + grid_a_floats(&job->grid)};
}

/* Computes a tile over the depth from l of the block on, by a bf16 kernel. */
static void pairs_run(const GemmJob *job, const GemmTile *tile, int64_t l, int64_t depth, float *panels, SumsTo *to)
{
    const BgemmKernel *kernel = job->grid.pairs;
    const GemmOperand *a = &job->gemm->a;
    BgemmSource        of_a = {operand_at(a, tile->row, job->block.k + l), a->stride, !a->trans, tile->rows, depth};
    const char        *rows = (const char *)panels;
    kernel->pack_a(&of_a, (char *)panels, bgemm_panel(kernel, kernel->rows, depth));
    if (job->grid.b == B_BLOCKS) {
        bgemm_run(kernel, tile->rows, tile->cols, depth, rows, pairs_panels(job, &job->block, tile->col, l),
                  pairs_panel(job, job->block.depth), take_sums, to);
        return;
    }
    Block own = own_panel(job, tile, l, depth, panels);
    for (int64_t col = 0; col < tile->cols; col += own.cols, own.n += own.cols, to->c += own.cols, to->col += own.cols) {
        own.cols = min_i64(kernel->cols, tile->cols - col);
        pack_b(job, &own, 0, depth, 0, own.cols);
        bgemm_run(kernel, tile->rows, own.cols, depth, rows, (const char *)own.panels, 0, take_sums, to);
    }
}

/* Like pairs_run, by the fp32 kernel. Meanwhile it prefetches what `next`, if not NULL, reads first from depth next_l on. */
static void fp32_run(const GemmJob *job, const GemmTile *tile, int64_t l, int64_t depth, float *panels, const SumsTo *to,
                     const GemmTile *next, int64_t next_l)
{
    const SgemmKernel *kernel = job->kernel;
    SgemmA             a = operand_a(job, tile->row, tile->rows, job->block.k + l, depth, panels);
    SgemmAhead         ahead[SGEMM_MOST_AHEAD];
    int                how = (to->adds ? SGEMM_ADD : 0) | (to->far ? SGEMM_FAR : 0), num_ahead = 0;
    if (job->grid.b != B_PANELS) {
        if (job->grid.a_stays) how |= SGEMM_BY_ROWS;
        if (next) num_ahead = read_next(job, tile, l, next, next_l, ahead);
        sgemm_run(kernel, tile->rows, tile->cols, depth, to->factor, a, operand_b(job, l, tile->col), to->c, to->c_stride, how, ahead,
                  num_ahead);
        return;
    }
    Block own = own_panel(job, tile, l, depth, panels);
    for (int64_t col = 0; col < tile->cols; col += own.cols, own.n += own.cols) {
        own.cols = min_i64(kernel->cols, tile->cols - col);
        pack_b(job, &own, 0, depth, 0, own.cols);
        num_ahead = read_next_panel(job, &own, tile->cols - col - own.cols, ahead);
        sgemm_run(kernel, tile->rows, own.cols, depth, to->factor, a, (SgemmB){own.panels, 0, kernel->cols}, to->c + col, to->c_stride, how,
                  ahead, num_ahead);
    }
}

static void tile_run(const GemmJob *job, const GemmTile *tile, int64_t l, int64_t depth, float *panels, SumsTo *to, const GemmTile *next,
                     int64_t next_l)
{
    if (job->grid.pairs)
        pairs_run(job, tile, l, depth, panels, to);
    else
        fp32_run(job, tile, l, depth, panels, to, next, next_l);
}

/* Computes a tile of c over the depth of the block. next: the tile that the worker probably computes after it, or NULL. */
static void tile_sum(const GemmJob *job, const GemmTile *tile, const GemmTile *next, float *panels, float *c, int64_t c_stride, bool adds)
{
    const Gemm  *g = job->gemm;
    const Block *block = &job->block;
    bool         direct = g->c.dtype == DT_F32;
    for (int64_t l = 0; l < max_i64(1, block->depth); l += job->grid.depth) {
        int64_t depth = min_i64(job->grid.depth, block->depth - l), end = l + depth;
        SumsTo  to = {.gemm = g, .c = c, .c_stride = c_stride, .row = tile->row, .col = block->n + tile->col, .rows = tile->rows};
        to.factor = gemm_factor(g);
        to.adds = adds || l > 0;
        to.far = l == 0 && direct;
        to.ends = job->grid.pairs && !direct && block->k + end == g->k;
        tile_run(job, tile, l, depth, panels, &to, end < block->depth ? tile : next, end < block->depth ? end : 0);
    }
}

static float *part_of(const GemmJob *job, int64_t run, int64_t row, int64_t col)
{
    return job->parts + (run * job->gemm->m + row) * job->grid.block_n + col;
}

/* Computes a tile over one depth, and stores its sums in job->parts. */
static void part_task(const GemmJob *job, int64_t task, float *panels)
{
    const GemmGrid *grid = &job->grid;
    int64_t         cols = job->block.cols, tiles = grid_tiles(job->gemm, grid, cols), after = task + 1, l = task / tiles * grid->depth;
    GemmTile        tile = grid_tile(job->gemm, grid, cols, task % tiles), next = grid_tile(job->gemm, grid, cols, after % tiles);
    float          *part = part_of(job, task / tiles, tile.row, tile.col);
    SumsTo          to = {.gemm = job->gemm, .c = part, .c_stride = grid->block_n, .row = tile.row, .rows = tile.rows, .factor = 1};
    int64_t         depth = min_i64(grid->depth, job->block.depth - l), next_l = after / tiles * grid->depth;
    tile_run(job, &tile, l, depth, panels, &to, after < job->tiles ? &next : NULL, next_l);
}

/* Rows that a task of add_parts adds up. A run's sums of these rows are one piece of memory, long enough to be prefetched. */
static int64_t rows_of_parts(const GemmJob *job)
{
    return max_i64(1, min_i64(PIECE / job->block.cols, job->gemm->m / (2 * job->num_workers)));
}

/* c = factor * part if `first`, else c += factor * part. Prefetches the data `after` bytes behind part. */
static void add_part(float *c, const float *part, int64_t after, float factor, bool first, int64_t count)
{
    for (int64_t j = 0; j < count; j += 16) __builtin_prefetch((const char *)(part + j) + after);
    for (int64_t j = 0; j < count; j++) c[j] = fmaf(part[j], factor, first ? 0 : c[j]);
}

/* Adds up some rows of the partial sums, as tile_sum would have. */
static void add_parts(void *context, int64_t task, int worker)
{
    const GemmJob *job = context;
    const Gemm    *g = job->gemm;
    const Block   *block = &job->block;
    bool           direct = g->c.dtype == DT_F32, adds = direct && (block->k > 0 || g->accumulate), ends = block->k + block->depth == g->k;
    int64_t        most = rows_of_parts(job), row = task * most, rows = min_i64(most, g->m - row);
    int64_t        runs = grid_runs(&job->grid, block->depth), after = g->m * job->grid.block_n * (int64_t)sizeof(float);
    float          factor = gemm_factor(g), sums[PIECE];
    (void)worker;
    for (int64_t col = 0; col < block->cols; col += PIECE) {
        int64_t cols = min_i64(PIECE, block->cols - col), stride = direct ? g->c.stride : cols;
        float  *c = direct ? gemm_c_at(g, row, block->n + col) : sums;
        for (int64_t run = 0; run < runs; run++)
            for (int64_t i = 0; i < rows; i++)
                add_part(c + i * stride, part_of(job, run, row + i, col), run + 1 < runs ? after : 0, factor, run == 0 && !adds, cols);
        if (ends) finish(g, c, stride, rows, block->n + col, cols);
        for (int64_t i = 0; !direct && i < rows; i++) store_row(g, row + i, block->n + col, c + i * stride, cols);
    }
}

static void tile_task(void *context, int64_t task, int worker)
{
    const GemmJob  *job = context;
    const Gemm     *g = job->gemm;
    const GemmGrid *grid = &job->grid;
    const Block    *block = &job->block;
    if (task >= job->tiles) {
        pack_part(job, &job->next, task - job->tiles);
        return;
    }
    float *panels = job->scratch + worker * job->scratch_floats, *scratch = panels + grid_a_floats(grid) + grid_b_floats(grid);
    if (grid->apart) {
        part_task(job, task, panels);
        return;
    }
    int64_t  tiles = grid_tiles(g, grid, block->cols), after = task + (grid->shares ? 1 : job->num_workers);
    GemmTile tile = grid_tile(g, grid, block->cols, task), next = grid_tile(g, grid, block->cols, min_i64(after, tiles - 1));
    bool     direct = g->c.dtype == DT_F32, ends = block->k + block->depth == g->k;
    int64_t  col = block->n + tile.col, c_stride = direct ? g->c.stride : grid->kept ? g->n : tile.cols;
    float   *c = direct ? gemm_c_at(g, tile.row, col) : grid->kept ? job->parts + tile.row * g->n + col : scratch;
    tile_sum(job, &tile, after < tiles ? &next : NULL, panels, c, c_stride, block->k > 0 || (direct && g->accumulate));
    if (!ends || (grid->pairs && !direct)) return;
    finish(g, c, c_stride, tile.rows, col, tile.cols);
    if (direct) return;
    for (int64_t i = 0; i < tile.rows; i++) store_row(g, tile.row + i, col, c + i * c_stride, tile.cols);
}

/* The block numbered `number`: numbers run over columns first. After the last block: a block without columns. */
static Block block_at(const Gemm *g, const GemmGrid *grid, int64_t number, float *memory)
{
    int64_t across = div_up(g->n, grid->block_n), k = number / across * grid->block_k, n = number % across * grid->block_n;
    if (number && k >= g->k) return (Block){0};
    memory += number % 2 * grid_block_floats(grid);
    return (Block){k, min_i64(grid->block_k, g->k - k), n, min_i64(grid->block_n, g->n - n), memory};
}

static void run_grid(const Gemm *g, ThreadPool *pool, float *workspace)
{
    GemmJob   job = {.gemm = g, .kernel = sgemm_kernel(), .num_workers = pool_num_workers(pool)};
    GemmGrid *grid = &job.grid;
    *grid = gemm_grid(g, job.num_workers);
    job.parts = workspace + grid_blocks(g, grid) * grid_block_floats(grid);
    job.scratch = job.parts + grid_part_floats(g, grid);
    job.scratch_floats = grid_scratch_floats(g, grid);
    job.next = block_at(g, grid, 0, workspace);
    pool_run(pool, pack_tasks(g, grid, &job.next), pack_task, &job);
    for (int64_t number = 1; job.next.cols; number++) {
        job.block = job.next;
        job.next = block_at(g, grid, number, workspace);
        job.tiles = grid_tiles(g, grid, job.block.cols) * (grid->apart ? grid_runs(grid, job.block.depth) : 1);
        (grid->shares ? pool_run : pool_run_in_order)(pool, job.tiles + pack_tasks(g, grid, &job.next), tile_task, &job);
        if (grid->apart) pool_run(pool, div_up(g->m, rows_of_parts(&job)), add_parts, &job);
    }
}

typedef struct OwnJob {
    const Gemm *gemm;
    GemmOwn     own;
    float      *workspace;
    int64_t     floats; /* floats of workspace per worker */
} OwnJob;

/* Computes a part of c on this worker alone. */
static void own_task(void *context, int64_t task, int worker)
{
    const OwnJob *job = context;
    Gemm          g = *job->gemm;
    int64_t       across = div_up(g.n, job->own.cols), row = task / across * job->own.rows, col = task % across * job->own.cols;
    g.a.offset = operand_index(&g.a, row, 0);
    g.b.offset = operand_index(&g.b, 0, col);
    g.c.offset = operand_index(&g.c, row, col);
    g.bias.offset += col;
    g.m = min_i64(job->own.rows, g.m - row);
    g.n = min_i64(job->own.cols, g.n - col);
    run_grid(&g, NULL, job->workspace + worker * job->floats);
}

static void run_tiles(const Gemm *g, ThreadPool *pool, float *workspace)
{
    OwnJob job = {.gemm = g, .own = gemm_own(g, pool_num_workers(pool)), .workspace = workspace};
    if (job.own.parts == 1) {
        run_grid(g, pool, workspace);
        return;
    }
    job.floats = own_floats(g, &job.own);
    pool_run(pool, job.own.parts, own_task, &job);
}

void gemm_run(const Gemm *g, ThreadPool *pool, void *workspace)
{
    if (!g->m || !g->n) return;
    if (gemm_by_dots(g))
        gemm_run_dots(g, pool, workspace);
    else if (gemm_by_few(g))
        gemm_run_few(g, pool, workspace);
    else
        run_tiles(g, pool, workspace);
}

/* An element times the scale of its block, without the scale of the whole operand. */
static double number_at(const GemmOperand *x, int64_t row, int64_t col, bool row_is_k)
{
    float value;
    dtype_decode(x->dtype, operand_at(x, row, col), 1, &value);
    if (!gemm_has_block_scales(x)) return value;
    float scale = gemm_block_scale(x, row_is_k ? col : row, row_is_k ? row : col);
    return x->to_bf16 ? (double)bf16_to_f32(bf16_from_f32(value * scale)) : (double)value * (double)scale;
}

void gemm_reference(const Gemm *g)
{
    SCOPED_ARRAY(double, a, g->m * g->k); /* (M,K) */
    SCOPED_ARRAY(double, b, g->n * g->k); /* (N,K) */
    for (int64_t k = 0; k < g->k; k++) {
        for (int64_t i = 0; i < g->m; i++) a[i * g->k + k] = number_at(&g->a, i, k, false);
        for (int64_t j = 0; j < g->n; j++) b[j * g->k + k] = number_at(&g->b, k, j, true);
    }
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < g->k; k++) sum += a[i * g->k + k] * b[j * g->k + k];
            sum *= gemm_factor(g) * gemm_col_scale(g, j);
            if (g->epilogue == GEMM_BIAS) sum += vec_get(g->bias.data, g->bias.dtype, g->bias.offset + j);
            if (g->accumulate) sum += vec_get(g->c.data, g->c.dtype, operand_index(&g->c, i, j));
            vec_set(g->c.data, g->c.dtype, operand_index(&g->c, i, j), (float)sum);
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
