/* Decoding in bf16 is bound by reading b, and packing would copy b first: columns of b are instead transposed in registers. Sums are
 * cut along k as in tiles, so that a prompt, which tiles compute, and generated text have the same bits. Codes with block scales become
 * bf16 first, some columns at a time, for any number of rows. */
#include "ops/products/gemm_few.h"

#include "ops/products/gemm_grid.h"
#include "ops/products/gemm_operand.h"

enum {
    MOST_ROWS = 8,
    FEW_TASKS = 8, /* tasks for each worker, about: it reads b in long pieces */
};

bool gemm_has_pairs(const Gemm *g)
{
    bool codes = gemm_has_block_scales(&g->b) && g->b.to_bf16, plain = g->b.dtype == DT_BF16 && g->b.scaling == GEMM_SCALE_WHOLE;
    return g->rows_alone && !g->a.trans && g->b.trans && g->a.dtype == DT_BF16 && (plain || codes) && (DT_SET(g->c.dtype) & DT_SET_FLOAT);
}

bool gemm_by_few(const Gemm *g)
{
    return gemm_has_pairs(g) && (g->m <= MOST_ROWS || g->b.dtype != DT_BF16);
}

/* Whether bgemm_one makes the product. */
static bool by_one(const Gemm *g)
{
    return g->m == 1 && g->k <= BGEMM_ONE_DEPTH && (g->b.dtype != DT_BF16 || g->b.stride == g->k);
}

/* Words of a's rows, as kernels read them. There is room for fewer rows and for less depth too, since ops plan their largest product. */
static int64_t floats_of_rows(const Gemm *g)
{
    return max_i64(bgemm_one_floats(g->k), g->m * bgemm_depth(g->k));
}

/* Floats of a worker's scratch: a column as floats, then columns of b in bf16. */
static int64_t floats_of_worker(const Gemm *g)
{
    return g->b.dtype == DT_BF16 ? 0 : g->k + (BGEMM_FEW_COLS * g->k + 1) / 2;
}

size_t gemm_few_workspace(const Gemm *g, int num_workers)
{
    return (size_t)(floats_of_rows(g) + num_workers * floats_of_worker(g)) * sizeof(float);
}

typedef struct FewJob {
    const Gemm *gemm;
    float      *rows, *scratch; /* rows: a's rows, for all workers; scratch: of each worker */
    int64_t     cols, depth;    /* cols: columns of a task; depth: depth of a run */
    bool        paired;         /* the kernel is bgemm_few_paired */
} FewJob;

/* Columns [col, col + cols) of b in bf16: in place, or in scratch. */
static BgemmCols columns_of(const Gemm *g, int64_t col, int64_t cols, float *scratch)
{
    uint16_t *codes = (uint16_t *)(void *)(scratch + g->k);
    if (g->b.dtype == DT_BF16) return (BgemmCols){operand_at(&g->b, 0, col), g->b.stride, g->k, BGEMM_FEW_COLS * g->b.stride - g->k};
    for (int64_t j = 0; j < cols; j++) {
        dtype_decode(g->b.dtype, operand_at(&g->b, 0, col + j), g->k, scratch);
        operand_scale_panels(&g->b, 1, col + j, 1, 0, g->k, scratch, g->k);
        vec_store_row(codes + j * g->k, DT_BF16, scratch, g->k);
    }
    return (BgemmCols){codes, g->k, g->k, 0};
}

/* Stores `rows` rows of c, `cols` columns from `col` on, from sums over all runs. */
static void store_sums(const Gemm *g, int64_t row, int64_t rows, int64_t col, int64_t cols, float (*sums)[BGEMM_FEW_COLS])
{
    for (int64_t i = 0; i < rows; i++) {
        void *c = gemm_c_at(g, row + i, col);
        for (int64_t j = 0; j < cols && g->epilogue == GEMM_BIAS; j++)
            sums[i][j] += vec_get(g->bias.data, g->bias.dtype, g->bias.offset + col + j);
        if (g->accumulate && g->c.dtype != DT_F32)
            vec_add_row(c, g->c.dtype, sums[i], cols);
        else
            vec_store_row(c, g->c.dtype, sums[i], cols);
    }
}

/* Fills the first columns of sums with c where products are added to it in fp32, else with 0. */
static void start_sums(const Gemm *g, int64_t row, int64_t rows, int64_t col, int64_t cols, float (*sums)[BGEMM_FEW_COLS])
{
    memset(sums, 0, (size_t)rows * sizeof *sums);
    for (int64_t i = 0; i < rows && g->accumulate && g->c.dtype == DT_F32; i++)
        memcpy(sums[i], gemm_c_at(g, row + i, col), (size_t)cols * sizeof **sums);
}

/* A product of one row. */
static void one_task(void *context, int64_t task, int worker)
{
    const FewJob *job = context;
    const Gemm   *g = job->gemm;
    float        *scratch = job->scratch + worker * floats_of_worker(g), sums[1][BGEMM_FEW_COLS];
    for (int64_t col = task * job->cols, end = min_i64(g->n, col + job->cols); col < end; col += BGEMM_FEW_COLS) {
        int64_t         cols = min_i64(BGEMM_FEW_COLS, end - col);
        const BgemmCols columns = columns_of(g, col, cols, scratch);
        const BgemmOne  one = {g->k, job->depth, gemm_factor(g), job->rows};
        start_sums(g, 0, 1, col, cols, sums);
        bgemm_one(&one, cols, columns.data, sums[0]);
        store_sums(g, 0, 1, col, cols, sums);
    }
}

static void few_task(void *context, int64_t task, int worker)
{
    const FewJob *job = context;
    const Gemm   *g = job->gemm;
    float        *scratch = job->scratch + worker * floats_of_worker(g), factor = gemm_factor(g);
    int64_t       row_floats = bgemm_depth(g->k), end = min_i64(g->n, (task + 1) * job->cols);
    for (int64_t col = task * job->cols; col < end; col += BGEMM_FEW_COLS) {
        int64_t         cols = min_i64(BGEMM_FEW_COLS, end - col);
        const BgemmCols columns = columns_of(g, col, cols, scratch);
        for (int64_t row = 0; row < g->m; row += BGEMM_FEW) {
            int   rows = (int)min_i64(BGEMM_FEW, g->m - row);
            float sums[BGEMM_FEW][BGEMM_FEW_COLS], run[BGEMM_FEW][BGEMM_FEW_COLS];
            start_sums(g, row, rows, col, cols, sums);
            for (int64_t l = 0; l < g->k; l += job->depth) {
                BgemmCols b = {columns.data + l, columns.stride, columns.left - l, columns.jump};
                bgemm_few(job->paired, rows, cols, l, min_i64(job->depth, g->k - l), job->rows + row * row_floats, row_floats, &b, run[0]);
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t j = 0; j < cols; j++) sums[i][j] = fmaf(run[i][j], factor, sums[i][j]);
            }
            store_sums(g, row, rows, col, cols, sums);
        }
    }
}

void gemm_run_few(const Gemm *g, ThreadPool *pool, void *workspace)
{
    int    workers = pool_num_workers(pool);
    FewJob job = {.gemm = g, .rows = workspace, .depth = grid_pairs_depth(g->k), .paired = bgemm_few_paired(g->m)};
    job.scratch = job.rows + floats_of_rows(g);
    job.cols = div_up(max_i64(1, div_up(g->n, FEW_TASKS * workers)), BGEMM_FEW_COLS) * BGEMM_FEW_COLS;
    if (by_one(g))
        bgemm_one_row(operand_at(&g->a, 0, 0), g->k, job.rows);
    else
        for (int64_t i = 0; i < g->m; i++) bgemm_few_row(job.paired, operand_at(&g->a, i, 0), g->k, job.rows + i * bgemm_depth(g->k));
    pool_run(pool, div_up(g->n, job.cols), by_one(g) ? one_task : few_task, &job);
}
