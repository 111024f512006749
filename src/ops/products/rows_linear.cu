/* rows_linear on CUDA: bf16 and f16 by few_rows_bulk.cu, with the bits of rms_norm, linear and swiglu if sums are whole; anything else an
 * element a thread. The norm of a single row is computed in the product, the norm of several rows in a launch of its own. */
#include "device/cuda/vec_f16.cuh"
#include "ops/elementwise/gated.cuh"
#include "ops/products/normed_rows.cuh"
#include "ops/products/rows_linear.h"

enum { THREADS = 256, AT_ONCE = 64 /* AT_ONCE: the most rows of one product */ };

static RowsFusion fusion_of(const KernelArgs *args)
{
    const RowsLinearAttrs *attrs = (const RowsLinearAttrs *)args->attrs;
    RowsFusion             fusion = {};
    fusion.parts = (int)attrs->parts;
    fusion.gated = attrs->gated, fusion.gelu = attrs->gelu;
    return fusion;
}

/* The product into y, with all rows of w. */
static Gemm product_of(const KernelArgs *args)
{
    Gemm g;
    products_note(args, &g, rows_linear_products(args, &g));
    if (!((const RowsLinearAttrs *)args->attrs)->gated) return g;
    g.n /= 2;
    g.c.stride = g.n;
    return g;
}

/* At most AT_ONCE rows of the product from `row` on. */
static Gemm some_rows(const Gemm *g, int64_t row)
{
    Gemm some = *g;
    some.m = g->m - row < (int64_t)AT_ONCE ? g->m - row : (int64_t)AT_ONCE;
    some.a.offset += row * g->a.stride;
    some.c.offset += row * g->c.stride;
    return some;
}

static bool rows_linear_is_bulk(const Node *node, CudaDevice *device)
{
    NodeArgs storage;
    Gemm     all = product_of(node_args(node, &storage)), g = some_rows(&all, 0);
    return few_rows_bulk_serves(device) && few_rows_operands_fit(&g) && few_rows_bulk_fit(&g);
}

static Status norm_rows(const KernelArgs *args)
{
    const RowsLinearAttrs *attrs = (const RowsLinearAttrs *)args->attrs;
    return launch_norm(args, ROWS_NORM, attrs->eps, attrs->offset);
}

static Status rows_linear_bulk(const KernelArgs *args)
{
    const RowsLinearAttrs *attrs = (const RowsLinearAttrs *)args->attrs;
    Gemm                   g = product_of(args);
    RowsFusion             fusion = fusion_of(args);
    RowsNorm               norm;
    if (!view_wanted(&args->out[ROWS_Y])) return norm_rows(args);
    if (rows_is_normed(args, ROWS_NORM) && norm_in_product(args, ROWS_NORM, &g, attrs->eps, attrs->offset, &norm)) {
        fusion.norm = &norm;
        g.b_constant = g.b_constant && (args->constant >> ROWS_NORM & 1);
    } else if (rows_is_normed(args, ROWS_NORM)) {
        TRY(norm_rows(args));
        g.a.data = args->workspace, g.a.offset = 0;
    }
    for (int64_t row = 0; row < g.m; row += AT_ONCE) {
        Gemm some = some_rows(&g, row);
        TRY(few_rows_bulk_run(&some, args->in[ROWS_W].type.dim[0], &fusion, args->stream));
    }
    return OK;
}

/* Row `row` of x times row `col` of w, rounded to y's dtype. */
static __device__ float sum_at(const TensorView &x, const TensorView &w, const TensorView &bias, int dtype, int64_t k, int64_t row,
                               int64_t col, const RowsFusion &fusion)
{
    float   sums[ROWS_MOST_PARTS] = {};
    int64_t part = k / fusion.parts;
    for (int p = 0; p < fusion.parts; p++)
        for (int64_t i = p * part; i < (p + 1) * part; i++)
            sums[p] += any_get(x.data, x.type.dtype, row * k + i) * any_get(w.data, w.type.dtype, col * k + i);
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (bias.data) sum += any_get(bias.data, bias.type.dtype, col);
    return dtype == DT_BF16 ? to_float(__float2bfloat16_rn(sum)) : dtype == DT_F16 ? to_float(__float2half_rn(sum)) : sum;
}

static __global__ void rows_linear_elements(TensorView x, TensorView w, TensorView bias, TensorView y, int64_t rows, int64_t cols,
                                            int64_t k, RowsFusion fusion)
{
    int dtype = y.type.dtype;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / cols, col = i % cols;
        float   sum = sum_at(x, w, bias, dtype, k, row, col, fusion);
        if (fusion.gated) {
            float up = sum_at(x, w, bias, dtype, k, row, cols + col, fusion);
            sum = fusion.gelu ? gated<float, true>(sum, up) : gated<float, false>(sum, up);
        }
        any_set(y.data, dtype, i, sum);
    }
}

static Status rows_linear_plain(const KernelArgs *args)
{
    const TensorView *y = &args->out[0];
    TensorView        x = args->in[ROWS_X], bias = {};
    int64_t           rows = type_rows(&y->type), cols = type_cols(&y->type);
    if (args->num_in > ROWS_BIAS) bias = args->in[ROWS_BIAS];
    if (!view_wanted(y)) return norm_rows(args);
    if (rows_is_normed(args, ROWS_NORM)) {
        TRY(norm_rows(args));
        x.data = args->workspace;
    }
    rows_linear_elements<<<cuda_grid(rows * cols, THREADS), THREADS, 0, cuda_stream(args)>>>(x, args->in[ROWS_W], bias, *y, rows, cols,
                                                                                             type_cols(&x.type), fusion_of(args));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(rows_linear,
             {.dtypes = DT_SET_DECODE,
              .min_sm = 90,
              .run = rows_linear_bulk,
              .name = "few rows in bulk",
              .workspace = cuda_planned_workspace,
              .match = rows_linear_is_bulk},
             {.dtypes = DT_SET_DECODE, .run = rows_linear_plain, .name = "elements", .workspace = cuda_planned_workspace})
