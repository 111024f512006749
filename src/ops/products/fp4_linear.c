/* fp4_linear: y = alpha a b^T + bias over the last dim, of e2m1 codes times the scales of their blocks times one factor a tensor
 * (ops/lowbit/nvfp4.h).
 *
 * Scales are stored as cuBLASLt wants them for tensor cores of sm_100 and later (CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3). Both operands
 * are stored along the dim that is summed over: these tensor cores multiply FP4 in no other layout. The CPU reads the same bytes, so that
 * the layout for GPUs is tested on machines without one. A code times its scale is exact in fp32: results of CPU and GPU differ only by the
 * order of sums. */
#include "ops/lowbit/nvfp4.h"
#include "ops/products/gemm.h"

static const AttrDef fp4_linear_attrs[] = {ATTR_FLOAT(ScaledLinearAttrs, alpha, 1), ATTR_DTYPE(ScaledLinearAttrs, dtype), {0}};

static Status infer_scales(const Node *node, int codes, int scale, int global, const char *scale_name, const char *global_name)
{
    TensorType type = nvfp4_scale_type(&node->in[codes]->type, true);
    TRY(infer_like(node, scale, scale_name, DT_SET(DT_E4M3), &type));
    return infer_input(node, global, global_name, DT_SET_F32, DIMS(1));
}

/* a codes (...,K), b codes (M,K), scales of both in tiles, global of both f32 (1), [bias (M)], [acc (...,M)] -> y (...,M). */
static Status fp4_linear_infer(Node *node)
{
    const TensorType *a = &node->in[FP4_A]->type;
    FAIL_IF(a->dtype != DT_E2M1 || a->ndim < 2, ERR_INVALID, "a is %s of %d dims; expected e2m1 of at least 2", dtype_info(a->dtype)->name,
            a->ndim);
    FAIL_IF(type_cols(a) % NVFP4_BLOCK, ERR_INVALID, "a has %lld columns; expected a multiple of 16", (long long)type_cols(a));
    TRY(infer_input(node, FP4_B, "b", DT_SET(DT_E2M1), DIMS(-1, type_cols(a))));
    TRY(infer_scales(node, FP4_A, FP4_A_SCALE, FP4_A_GLOBAL, "a_scale", "a_global"));
    TRY(infer_scales(node, FP4_B, FP4_B_SCALE, FP4_B_GLOBAL, "b_scale", "b_global"));
    return infer_product(node, FP4_B, FP4_BIAS, FP4_ACC);
}

GEMM_COST(fp4_linear)

/* ---- the CPU: both operands as fp32, then their product ---- */

/* Decodes rows of codes. out: their values, without the factor of the whole tensor. */
typedef struct Decode {
    const TensorView *codes, *scale;
    float            *out;
} Decode;

static void decode_task(void *context, int64_t task, int worker)
{
    const Decode  *d = context;
    int64_t        cols = type_cols(&d->codes->type), blocks = cols / NVFP4_BLOCK, each = rows_per_task(cols);
    int64_t        end = min_i64(type_rows(&d->codes->type), (task + 1) * each);
    const uint8_t *codes = d->codes->data, *scales = d->scale->data;
    (void)worker;
    for (int64_t row = task * each; row < end; row++)
        for (int64_t block = 0; block < blocks; block++) {
            float   scale = nvfp4_scale(scales[nvfp4_scale_at(row, block, blocks, true)]);
            int64_t first = row * cols + block * NVFP4_BLOCK;
            for (int64_t i = first; i < first + NVFP4_BLOCK; i++) d->out[i] = nvfp4_value(codes[i / 2] >> (i % 2 * 4) & 15u, scale, 1);
        }
}

static void decode(const KernelArgs *args, int codes, int scale, float *out)
{
    Decode  d = {&args->in[codes], &args->in[scale], out};
    int64_t cols = type_cols(&d.codes->type);
    pool_run(args->pool, div_up(type_rows(&d.codes->type), rows_per_task(cols)), decode_task, &d);
}

/* fp4_linear's product with decoded codes a and b as its operands. */
static Gemm decoded_product(const KernelArgs *args, float *a, float *b)
{
    Gemm g;
    fp4_linear_products(args, &g);
    g.a.dtype = g.b.dtype = DT_F32;
    g.a.data = a;
    g.b.data = b;
    return g;
}

static size_t decoded_floats(const Gemm *g)
{
    return (size_t)((g->m + g->n) * g->k);
}

static size_t fp4_linear_workspace(const Node *node, int num_workers)
{
    NodeArgs storage;
    Gemm     g = decoded_product(node_args(node, &storage), NULL, NULL);
    return decoded_floats(&g) * sizeof(float) + gemm_workspace(&g, num_workers);
}

static Status fp4_linear_cpu(const KernelArgs *args)
{
    float *a = args->workspace, *b = a + type_numel(&args->in[FP4_A].type);
    Gemm   g = decoded_product(args, a, b);
    decode(args, FP4_A, FP4_A_SCALE, a);
    decode(args, FP4_B, FP4_B_SCALE, b);
    gemm_run(&g, args->pool, a + decoded_floats(&g));
    return OK;
}

const OpDef op_fp4_linear = {
    .id = OP_FP4_LINEAR,
    .name = "fp4_linear",
    .synopsis = "y = alpha a b^T + bias; an operand is e2m1 codes, times the e4m3 scales of 16 elements along a row, times its "
                "global scale",
    .num_in = 8,
    .num_out = 1,
    .min_in = 6,
    .alias = {{.out = 0, .in = FP4_ACC, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(ScaledLinearAttrs),
    .attrs = fp4_linear_attrs,
    .infer = fp4_linear_infer,
    .cost = fp4_linear_cost,
    .workspace = fp4_linear_workspace,
    .cpu = {{DT_SET_FLOAT,
             fp4_linear_cpu,
             "reference",
             {{.in = 1u << FP4_A | 1u << FP4_B, .dtypes = DT_SET(DT_E2M1)},
              {.in = 1u << FP4_A_SCALE | 1u << FP4_B_SCALE, .dtypes = DT_SET(DT_E4M3)},
              {.in = 1u << FP4_A_GLOBAL | 1u << FP4_B_GLOBAL, .dtypes = DT_SET_F32}}}},
    .holds = {[FP4_A_SCALE] = HOLDS_SQUARES, [FP4_B_SCALE] = HOLDS_SQUARES},
    /* Tolerance: a bf16 y has 8 bits. */
    .samples = "e2m1[3,16], e2m1[7,16], e4m3[1,1,512], e4m3[1,1,512], [1], [1], [7]\n"
               "e2m1[2,70,96], e2m1[264,96], e4m3[2,2,512], e4m3[3,2,512], [1], [1] {dtype=bf16} tolerance=0.005\n"
               "e2m1[130,1056], e2m1[40,1056], e4m3[2,17,512], e4m3[1,17,512], [1], [1] {alpha=0.5} tolerance=0.005\n"
               "e2m1[40,128], e2m1[144,128], e4m3[1,2,512], e4m3[2,2,512], [1], [1], bf16[144] {dtype=bf16} tolerance=0.005\n"
               "e2m1[1,64], e2m1[48,64], e4m3[1,1,512], e4m3[1,1,512], [1], [1] {dtype=bf16} tolerance=0.005\n",
    /* shapes of y, dx and dw */
    .large = "e2m1[2048,1024], e2m1[3072,1024], e4m3[16,16,512], e4m3[24,16,512], [1], [1] {dtype=bf16} tolerance=0.005\n"
             "e2m1[2048,3072], e2m1[1024,3072], e4m3[16,48,512], e4m3[8,48,512], [1], [1] {dtype=bf16} tolerance=0.005\n"
             "e2m1[3072,2048], e2m1[1024,2048], e4m3[24,32,512], e4m3[8,32,512], [1], [1] tolerance=0.005\n",
};
