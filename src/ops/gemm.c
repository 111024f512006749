/* A tile of c is one call of the BLAS over all of k. What is bf16 is converted to fp32 scratch by panels of K_PANEL,
 * whose products add up in fp32 before the tile is stored. Products of a few rows (decoding) are dot products instead:
 * they are bound by reading b, and the BLAS would first copy it. */
#include "ops/gemm.h"

#include "device/cpu/blas.h"

enum {
    TILE_M = 256,
    TILE_N = 512,
    K_PANEL = 1024,
    ENOUGH_TASKS = 16,
    LEAST_TILE = 128 * 128,    /* smaller tiles copy as much of a and b as they multiply */
    LEAST_TILE_WORK = 1 << 21, /* multiplications in a tile, 20 us at 200 GFLOP/s: below it starting tasks shows */
    FEW_ROWS = 4,
    DOT_COLS = 32, /* columns of c a task, by dot products */
};

typedef struct Grid {
    int64_t tile_m, tile_n, tiles_m, tiles_n, k_panel;
} Grid;

/* About `tile`, so that all tiles are of nearly one size. */
static int64_t even_tile(int64_t size, int64_t tile, int64_t multiple)
{
    return div_up(div_up(size, div_up(size, tile)), multiple) * multiple;
}

static bool all_f32(const Gemm *g)
{
    return g->a_dtype == DT_F32 && g->b_dtype == DT_F32 && g->c_dtype == DT_F32;
}

static Grid gemm_grid(const Gemm *g)
{
    int64_t tile_m = max_i64(1, min_i64(TILE_M, g->m)), tile_n = max_i64(1, min_i64(TILE_N, g->n));
    while (div_up(g->m, tile_m) * div_up(g->n, tile_n) < ENOUGH_TASKS && tile_m * tile_n / 2 >= LEAST_TILE &&
           tile_m * tile_n / 2 * g->k >= LEAST_TILE_WORK) {
        if (tile_n >= tile_m)
            tile_n /= 2;
        else
            tile_m /= 2;
    }
    Grid grid = { .tile_m = even_tile(max_i64(g->m, 1), tile_m, 8),
                  .tile_n = even_tile(max_i64(g->n, 1), tile_n, 16),
                  .k_panel = g->k };
    grid.tiles_m = div_up(g->m, grid.tile_m);
    grid.tiles_n = div_up(g->n, grid.tile_n);
    if (!all_f32(g)) grid.k_panel = min_i64(g->k, K_PANEL);
    return grid;
}

static bool by_dots(const Gemm *g)
{
    return g->m <= FEW_ROWS && g->trans_b && !g->trans_a;
}

typedef struct GemmJob {
    const Gemm *gemm;
    Grid        grid;
    float      *scratch; /* per worker: panels of a and b, tile of c */
    int64_t     scratch_floats;
} GemmJob;

static int64_t scratch_floats(const Grid *grid)
{
    return (grid->tile_m + grid->tile_n) * grid->k_panel + grid->tile_m * grid->tile_n;
}

size_t gemm_workspace(const Gemm *g, int num_workers)
{
    if (by_dots(g)) return all_f32(g) ? 0 : (size_t)(num_workers * (FEW_ROWS + 1) * g->k) * sizeof(float);
    if (all_f32(g) || !g->m || !g->n) return 0;
    Grid grid = gemm_grid(g);
    return (size_t)(num_workers * scratch_floats(&grid)) * sizeof(float);
}

/* Rows [row, row + rows) and columns [col, col + cols) of a stored matrix as f32: in place, or converted to scratch. */
static const float *load_panel(const void *data, DType dtype, int64_t stride, int64_t row, int64_t rows, int64_t col,
                               int64_t cols, float *scratch, int64_t *out_stride)
{
    *out_stride = stride;
    if (dtype == DT_F32) return (const float *)data + row * stride + col;
    *out_stride = cols;
    for (int64_t i = 0; i < rows; i++)
        vec_copy_in(scratch + i * cols, vec_at(data, dtype, (row + i) * stride + col), dtype, cols);
    return scratch;
}

static void add_bias(const Gemm *g, float *c, int64_t stride, int64_t rows, int64_t col, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) c[i * stride + j] += vec_get(g->bias, g->bias_dtype, col + j);
}

static void gemm_tile(void *context, int64_t task, int worker)
{
    const GemmJob *job = context;
    const Gemm    *g = job->gemm;
    const Grid    *grid = &job->grid;
    int64_t        row = task % grid->tiles_m * grid->tile_m, col = task / grid->tiles_m * grid->tile_n;
    int64_t        rows = min_i64(grid->tile_m, g->m - row), cols = min_i64(grid->tile_n, g->n - col);
    float         *a_scratch = job->scratch + worker * job->scratch_floats,
          *b_scratch = a_scratch + grid->tile_m * grid->k_panel;
    bool    direct = g->c_dtype == DT_F32;
    float  *c = direct ? (float *)g->c + row * g->c_stride + col : b_scratch + grid->tile_n * grid->k_panel;
    int64_t c_stride = direct ? g->c_stride : cols, a_stride, b_stride, k = 0;
    do {
        int64_t      depth = min_i64(grid->k_panel, g->k - k);
        const float *a = g->trans_a
                             ? load_panel(g->a, g->a_dtype, g->a_stride, k, depth, row, rows, a_scratch, &a_stride)
                             : load_panel(g->a, g->a_dtype, g->a_stride, row, rows, k, depth, a_scratch, &a_stride);
        const float *b = g->trans_b
                             ? load_panel(g->b, g->b_dtype, g->b_stride, col, cols, k, depth, b_scratch, &b_stride)
                             : load_panel(g->b, g->b_dtype, g->b_stride, k, depth, col, cols, b_scratch, &b_stride);
        float        beta = k > 0 || (direct && g->accumulate) ? 1.0f : 0.0f;
        blas_sgemm(g->trans_a, g->trans_b, rows, cols, depth, g->alpha, a, a_stride, b, b_stride, beta, c, c_stride);
        k += depth;
    } while (k < g->k);
    if (g->bias) add_bias(g, c, c_stride, rows, col, cols);
    if (direct) return;
    for (int64_t i = 0; i < rows; i++) {
        void *to = vec_at_mut(g->c, g->c_dtype, (row + i) * g->c_stride + col);
        if (g->accumulate)
            vec_add_row(to, g->c_dtype, c + i * cols, cols);
        else
            vec_store_row(to, g->c_dtype, c + i * cols, cols);
    }
}

static void gemm_dots(void *context, int64_t task, int worker)
{
    const GemmJob *job = context;
    const Gemm    *g = job->gemm;
    int64_t        end = min_i64(g->n, (task + 1) * DOT_COLS);
    float         *scratch = job->scratch + worker * job->scratch_floats;
    const float   *a[FEW_ROWS];
    for (int64_t i = 0; i < g->m; i++)
        a[i] = vec_load_row(vec_at(g->a, g->a_dtype, i * g->a_stride), g->a_dtype, g->k, scratch + (i + 1) * g->k);
    for (int64_t j = task * DOT_COLS; j < end; j++) {
        const float *b = vec_load_row(vec_at(g->b, g->b_dtype, j * g->b_stride), g->b_dtype, g->k, scratch);
        for (int64_t i = 0; i < g->m; i++) {
            float value = g->alpha * vec_dot(a[i], b, g->k);
            if (g->bias) value += vec_get(g->bias, g->bias_dtype, j);
            if (g->accumulate) value += vec_get(g->c, g->c_dtype, i * g->c_stride + j);
            vec_set(g->c, g->c_dtype, i * g->c_stride + j, value);
        }
    }
}

void gemm_run(const Gemm *g, ThreadPool *pool, void *workspace)
{
    if (!g->m || !g->n) return;
    GemmJob job = { .gemm = g, .scratch = workspace };
    if (by_dots(g)) {
        job.scratch_floats = all_f32(g) ? 0 : (FEW_ROWS + 1) * g->k;
        pool_run(pool, div_up(g->n, DOT_COLS), gemm_dots, &job);
        return;
    }
    job.grid = gemm_grid(g);
    job.scratch_floats = all_f32(g) ? 0 : scratch_floats(&job.grid);
    pool_run(pool, job.grid.tiles_m * job.grid.tiles_n, gemm_tile, &job);
}

void gemm_reference(const Gemm *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < g->k; k++)
                sum += (double)vec_get(g->a, g->a_dtype, g->trans_a ? k * g->a_stride + i : i * g->a_stride + k) *
                       vec_get(g->b, g->b_dtype, g->trans_b ? j * g->b_stride + k : k * g->b_stride + j);
            sum *= g->alpha;
            if (g->bias) sum += vec_get(g->bias, g->bias_dtype, j);
            if (g->accumulate) sum += vec_get(g->c, g->c_dtype, i * g->c_stride + j);
            vec_set(g->c, g->c_dtype, i * g->c_stride + j, (float)sum);
        }
}

OpCost gemm_cost(const Gemm *g)
{
    return (OpCost){ .flops = 2.0 * (double)g->m * (double)g->n * (double)g->k,
                     .bytes = (double)(g->m * g->k * dtype_bytes(g->a_dtype) + g->n * g->k * dtype_bytes(g->b_dtype) +
                                       g->m * g->n * dtype_bytes(g->c_dtype) * (g->accumulate ? 2 : 1)),
                     .matrix_unit = true };
}
