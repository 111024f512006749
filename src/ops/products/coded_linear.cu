/* Products with codes on CUDA. Few rows have a kernel of their own; more rows of e4m3 use the plain kernel. Products with a gate or a norm,
 * unless few_rows_codes_one.cu serves them, are computed an element a thread.
 *
 * int8_linear of many rows: codes are decoded to x's dtype in scratch, and multiplied as any matrix. The fp32 sums of some rows at a time
 * are then multiplied by the scales. A row has the same bits with few rows and with many. */
#include "ops/lowbit/int8.cuh"
#include "ops/elementwise/gated.cuh"
#include "ops/products/coded_linear.h"
#include "ops/products/few_rows_codes.h"
#include "ops/products/linear.cuh"
#include "ops/products/normed_rows.cuh"

enum { THREADS = 256 };

/* Whether no launch of the program writes the scales, the bias or the norm, which the kernel loads together. */
static bool scales_are_constant(const KernelArgs *args)
{
    uint32_t wanted = 1u << CODED_SCALE;
    if (args->num_in > CODED_BIAS && args->in[CODED_BIAS].data) wanted |= 1u << CODED_BIAS;
    if (rows_is_normed(args, CODED_NORM)) wanted |= 1u << CODED_NORM;
    return (args->constant & wanted) == wanted;
}

static RowsFusion fusion_of(const KernelArgs *args)
{
    const CodedLinearAttrs *attrs = (const CodedLinearAttrs *)args->attrs;
    RowsFusion              fusion = {};
    fusion.parts = 1;
    fusion.gated = attrs->gated, fusion.gelu = attrs->gelu;
    return fusion;
}

/* If gated: sets g's n to the number of y's columns. */
static void gate_product(const KernelArgs *args, Gemm *g)
{
    if (((const CodedLinearAttrs *)args->attrs)->gated) g->n /= 2;
}

static bool are_few(const KernelArgs *args, Gemm *g)
{
    RowsFusion fusion = fusion_of(args);
    RowsNorm   norm = {};
    if (!coded_is_fused(args)) return few_rows_codes_fit(g);
    gate_product(args, g);
    if (rows_is_normed(args, CODED_NORM)) fusion.norm = &norm;
    return (!fusion.norm || rows_norm_fits(g)) && few_rows_codes_one_fit(g, &fusion);
}

static Status norm_rows(const KernelArgs *args)
{
    const CodedLinearAttrs *attrs = (const CodedLinearAttrs *)args->attrs;
    return launch_norm(args, CODED_NORM, attrs->eps, attrs->offset);
}

static Status run_few(const KernelArgs *args, Gemm *g)
{
    const CodedLinearAttrs *attrs = (const CodedLinearAttrs *)args->attrs;
    RowsFusion              fusion = fusion_of(args);
    RowsNorm                norm;
    g->b_constant = g->b_constant && scales_are_constant(args);
    if (!coded_is_fused(args)) return few_rows_codes_run(g, args->stream);
    if (!view_wanted(&args->out[ROWS_Y])) return norm_rows(args);
    gate_product(args, g);
    if (rows_is_normed(args, CODED_NORM) && norm_in_product(args, CODED_NORM, g, attrs->eps, attrs->offset, &norm)) {
        fusion.norm = &norm;
    } else if (rows_is_normed(args, CODED_NORM)) {
        TRY(norm_rows(args));
        g->a.data = args->workspace, g->a.offset = 0;
    }
    return few_rows_codes_one_run(g, &fusion, args->stream);
}

#define FEW_CODES(op) \
    static bool op##_are_few(const Node *node, CudaDevice *) \
    { \
        NodeArgs storage; \
        Gemm     gemm; \
        op##_products(node_args(node, &storage), &gemm); \
        return are_few(node_args(node, &storage), &gemm); \
    } \
    static Status op##_few(const KernelArgs *args) \
    { \
        Gemm gemm; \
        products_note(args, &gemm, op##_products(args, &gemm)); \
        return run_few(args, &gemm); \
    }

FEW_CODES(int8_linear)
FEW_CODES(fp8_tiles_linear)

static bool is_fused(const Node *node, CudaDevice *)
{
    NodeArgs storage;
    return coded_is_fused(node_args(node, &storage));
}

static bool is_plain(const Node *node, CudaDevice *device)
{
    return !is_fused(node, device);
}

/* Row `row` of x times row `col` of w (codes in int8 or e4m3), with scale and bias, rounded as y stores it. */
static __device__ float sum_at(const TensorView &x, const TensorView &codes, const TensorView &scale, const TensorView &bias, int dtype,
                               int64_t row, int64_t col)
{
    int64_t      k = codes.type.dim[1], tiles = (k + FP8_TILE - 1) / FP8_TILE;
    const float *scales = (const float *)scale.data;
    bool         whole = codes.type.dtype == DT_I8;
    float        sum = 0;
    for (int64_t i = 0; i < k; i++) {
        float w = whole ? (float)((const int8_t *)codes.data)[col * k + i]
                        : fp8_get(codes.data, DT_E4M3, col * k + i) * scales[col / FP8_TILE * tiles + i / FP8_TILE];
        if (!whole && x.type.dtype == DT_BF16) w = to_float(__float2bfloat16_rn(w));
        sum += any_get(x.data, x.type.dtype, row * k + i) * w;
    }
    if (whole) sum = __fmul_rn(sum, scales[col]);
    if (bias.data) sum = __fadd_rn(sum, any_get(bias.data, bias.type.dtype, col));
    return dtype == DT_BF16 ? to_float(__float2bfloat16_rn(sum)) : sum;
}

static __global__ void coded_elements(TensorView x, TensorView codes, TensorView scale, TensorView bias, TensorView y, int64_t rows,
                                      int64_t cols, RowsFusion fusion)
{
    int dtype = y.type.dtype;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / cols, col = i % cols;
        float   value = sum_at(x, codes, scale, bias, dtype, row, col);
        if (fusion.gated) {
            float up = sum_at(x, codes, scale, bias, dtype, row, cols + col);
            value = fusion.gelu ? gated<float, true>(value, up) : gated<float, false>(value, up);
        }
        any_set(y.data, dtype, i, value);
    }
}

static Status coded_fused_elements(const KernelArgs *args)
{
    const TensorView *y = &args->out[ROWS_Y];
    TensorView        x = args->in[CODED_X], bias = {};
    int64_t           rows = type_rows(&y->type), cols = type_cols(&y->type);
    if (args->num_in > CODED_BIAS) bias = args->in[CODED_BIAS];
    if (rows_is_normed(args, CODED_NORM)) TRY(norm_rows(args));
    if (rows_is_normed(args, CODED_NORM)) x.data = args->workspace;
    if (!view_wanted(y)) return OK;
    coded_elements<<<cuda_grid(rows * cols, THREADS), THREADS, 0, cuda_stream(args)>>>(x, args->in[CODED_W], args->in[CODED_SCALE], bias,
                                                                                       *y, rows, cols, fusion_of(args));
    return CUDA_LAUNCHED();
}

/* y = scale * sums + bias, rounded after each step; 8 columns a thread. wide: rows consist of whole 16-byte packs. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    scale_columns(const float *sums, const float *scale, TensorView bias, T *y, int64_t rows, int64_t cols, bool wide)
{
    int64_t across = (cols + 7) / 8;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * across; i += (int64_t)gridDim.x * THREADS) {
        int64_t      at = i / across * cols + i % across * 8, col = i % across * 8;
        Eight<float> eight;
        float        v[8];
        eight.load(sums + at, wide, cols - col);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (col + k >= cols) break;
            v[k] = __fmul_rn(eight.get(k), scale[col + k]);
            if (bias.data) v[k] = __fadd_rn(v[k], elem_get(bias.data, bias.type.dtype, col + k));
        }
        store_eight(y + at, v, wide, cols - col);
    }
}

static Status finish(const KernelArgs *args, const float *sums, int64_t row, int64_t rows)
{
    const TensorView *y = &args->out[0];
    TensorView        bias = {};
    int64_t           cols = type_cols(&y->type);
    void             *to = (char *)y->data + dtype_bytes(y->type.dtype, row * cols);
    bool              wide = cols % 8 == 0 && is_aligned16(to);
    if (args->num_in > CODED_BIAS) bias = args->in[CODED_BIAS];
    CUDA_FLOAT(y->type.dtype, T, {
        scale_columns<T><<<cuda_grid(rows * cuda_div_up(cols, 8), THREADS), THREADS, 0, cuda_stream(args)>>>(
            sums, (const float *)args->in[CODED_SCALE].data, bias, (T *)to, rows, cols, wide);
    });
    return CUDA_LAUNCHED();
}

/* The product of rows [row, row + rows) of x with the decoded codes, into sums. */
static Gemm piece(const KernelArgs *args, const Int8Scratch *s, int64_t row, int64_t rows)
{
    const TensorView *x = &args->in[CODED_X], *codes = &args->in[CODED_W];
    char             *scratch = (char *)args->workspace;
    TensorView        w = {}, sums = {};
    int64_t           n = codes->type.dim[0], k = codes->type.dim[1];
    w.type = codes->type;
    w.type.dtype = x->type.dtype;
    w.data = scratch + s->numbers;
    sums.type = type_make(DT_F32, 2, rows, n);
    sums.data = scratch + s->sums;
    Gemm g = gemm_of(rows, n, k, gemm_operand(x, false, row * k), gemm_operand(&w, true, 0), gemm_operand(&sums, false, 0), 1, false);
    g.rows_alone = args->rows_alone;
    return g;
}

static size_t int8_linear_workspace(const Node *node, CudaDevice *)
{
    return int8_scratch(&node->in[CODED_X]->type, &node->in[CODED_W]->type).bytes;
}

static Status int8_linear_prepare(const KernelArgs *args)
{
    const TensorView *x = &args->in[CODED_X];
    Int8Scratch       s = int8_scratch(&x->type, &args->in[CODED_W].type);
    int64_t           rows = type_rows(&x->type), whole = int8_piece(rows), last = whole ? rows % whole : 0;
    Gemm              g = piece(args, &s, 0, whole);
    TRY(cuda_gemm_prepare((CudaDevice *)args->device, &g, args->workspace, GPU_GEMM_WORKSPACE));
    if (!last) return OK;
    g = piece(args, &s, rows - last, last);
    return cuda_gemm_prepare((CudaDevice *)args->device, &g, args->workspace, GPU_GEMM_WORKSPACE);
}

static Status int8_linear_pieces(const KernelArgs *args)
{
    const TensorView *x = &args->in[CODED_X], *codes = &args->in[CODED_W];
    Int8Scratch       s = int8_scratch(&x->type, &codes->type);
    int64_t           all = type_rows(&x->type);
    char             *scratch = (char *)args->workspace;
    TRY(int8_decode((const int8_t *)codes->data, NULL, scratch + s.numbers, x->type.dtype, codes->type.dim[0], codes->type.dim[1],
                    cuda_stream(args)));
    for (int64_t row = 0; row < all; row += INT8_PIECE_ROWS) {
        int64_t rows = int8_piece(all - row);
        Gemm    g = piece(args, &s, row, rows);
        TRY(cuda_gemm_run((CudaDevice *)args->device, &g, args->workspace, GPU_GEMM_WORKSPACE, args->stream));
        TRY(finish(args, (const float *)(scratch + s.sums), row, rows));
    }
    return OK;
}

static Status fp8_tiles_linear_plain(const KernelArgs *args)
{
    Gemm gemm;
    fp8_tiles_linear_products(args, &gemm);
    return cuda_gemm_plain(&gemm, args->stream);
}

#define CODES(dtype) \
    { \
        {.in = 1u << CODED_W, .dtypes = DT_SET(dtype)}, \
        { \
            .in = 1u << CODED_SCALE, .dtypes = DT_SET_F32 \
        } \
    }

CUDA_KERNELS(int8_linear,
             {.dtypes = DT_SET_FLOAT,
              .min_sm = 80,
              .run = int8_linear_few,
              .name = "few rows",
              .workspace = cuda_planned_workspace,
              .match = int8_linear_are_few,
              .except = CODES(DT_I8)},
             {.dtypes = DT_SET_FLOAT,
              .run = coded_fused_elements,
              .name = "elements",
              .workspace = cuda_planned_workspace,
              .match = is_fused,
              .except = CODES(DT_I8)},
             {.dtypes = DT_SET_FLOAT,
              .run = int8_linear_pieces,
              .name = "pieces",
              .workspace = int8_linear_workspace,
              .match = is_plain,
              .prepare = int8_linear_prepare,
              .except = CODES(DT_I8)})

CUDA_KERNELS(fp8_tiles_linear,
             {.dtypes = DT_SET_FLOAT,
              .min_sm = 80,
              .run = fp8_tiles_linear_few,
              .name = "few rows",
              .workspace = cuda_planned_workspace,
              .match = fp8_tiles_linear_are_few,
              .except = CODES(DT_E4M3)},
             {.dtypes = DT_SET_FLOAT,
              .run = coded_fused_elements,
              .name = "elements",
              .workspace = cuda_planned_workspace,
              .match = is_fused,
              .except = CODES(DT_E4M3)},
             {.dtypes = DT_SET_FLOAT, .run = fp8_tiles_linear_plain, .name = "plain", .match = is_plain, .except = CODES(DT_E4M3)})
