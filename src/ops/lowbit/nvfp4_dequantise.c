/* nvfp4_dequantise: decodes NVFP4 codes, or their transpose (ops/lowbit/nvfp4.h). A code's value times its scale is exact; times the
 * tensor's factor it is rounded to fp32, then to w's dtype. */
#include "ops/infer.h"
#include "ops/lowbit/nvfp4.h"

static const AttrDef nvfp4_dequantise_attrs[] = {ATTR_DTYPE(DequantiseAttrs, dtype),
                                                 ATTR_BOOL(DequantiseAttrs, transposed, false),
                                                 ATTR_BOOL(DequantiseAttrs, tiled, false),
                                                 DEQUANTISE_ROWS,
                                                 {0}};

enum { IN_CODES, IN_SCALE, IN_GLOBAL };

/* codes e2m1 (...,C), scale e4m3 (...,C / 16), global f32 (1) -> w (...,C); transposed: codes (N,K) -> w (K,N). Each member (N,K) has a
 * global of its own. tiled: scale (N / 128, C / 64, 512), quotients rounded up. */
static Status nvfp4_dequantise_infer(Node *node)
{
    const DequantiseAttrs *attrs = node->attrs;
    DType                  dtype;
    const TensorType      *codes = &node->in[IN_CODES]->type;
    FAIL_IF(codes->dtype != DT_E2M1 || codes->ndim < 2 || (attrs->transposed && codes->ndim != 2), ERR_INVALID,
            "codes are %s of %d dims; expected e2m1 of %s", dtype_info(codes->dtype)->name, codes->ndim,
            attrs->transposed ? "2, for the transpose" : "at least 2");
    FAIL_IF(type_cols(codes) % NVFP4_BLOCK, ERR_INVALID, "codes have %lld columns; expected a multiple of 16", (long long)type_cols(codes));
    TensorType scale = nvfp4_scale_type(codes, attrs->tiled);
    TRY(infer_like(node, IN_SCALE, "scale", DT_SET(DT_E4M3), &scale));
    int64_t rows[DEQUANTISE_MAX_MEMBERS];
    TRY(infer_dequantised(attrs, type_rows(codes), &dtype));
    FAIL_IF(attrs->rows[0] && (attrs->transposed || attrs->tiled), ERR_INVALID, "members with transposed or tiled; expected members alone");
    TRY(infer_input(node, IN_GLOBAL, "global", DT_SET_F32, DIMS((int64_t)dequantise_members(attrs, type_rows(codes), rows))));
    node->out[0]->type = attrs->transposed ? type_make(dtype, 2, codes->dim[1], codes->dim[0]) : type_as(codes, dtype);
    return OK;
}

static OpCost nvfp4_dequantise_cost(const Node *node)
{
    return cost_streaming(node, 2.0 * (double)type_numel(&node->out[0]->type));
}

/* Decodes the 16 elements of a block. global: the factor of the weight that the block belongs to. */
static void block_values(const KernelArgs *args, int64_t block, float global, float *values)
{
    const uint8_t *codes = (const uint8_t *)args->in[IN_CODES].data + block * (NVFP4_BLOCK / 2);
    int64_t        blocks = type_cols(&args->in[IN_CODES].type) / NVFP4_BLOCK;
    bool           tiled = ((const DequantiseAttrs *)args->attrs)->tiled;
    int64_t        at = nvfp4_scale_at(block / blocks, block % blocks, blocks, tiled);
    float          scale = nvfp4_scale(((const uint8_t *)args->in[IN_SCALE].data)[at]);
    for (int i = 0; i < NVFP4_BLOCK; i++) values[i] = nvfp4_value(codes[i / 2] >> (i % 2 * 4) & 15u, scale, global);
}

/* Decodes 16 rows of codes (N,K), which become 16 columns of w (K,N). */
static void transpose_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *w = &args->out[0];
    int64_t           cols = w->type.dim[1], blocks = w->type.dim[0] / NVFP4_BLOCK, first = task * NVFP4_BLOCK;
    int64_t           lines = min_i64(NVFP4_BLOCK, cols - first);
    (void)worker;
    for (int64_t block = 0; block < blocks; block++) {
        float values[NVFP4_BLOCK][NVFP4_BLOCK], scratch[NVFP4_BLOCK], global = *(const float *)args->in[IN_GLOBAL].data;
        for (int64_t line = 0; line < lines; line++) block_values(args, (first + line) * blocks + block, global, values[line]);
        for (int i = 0; i < NVFP4_BLOCK; i++) {
            int64_t at = (block * NVFP4_BLOCK + i) * cols + first;
            float  *row = tile_result(w, at, scratch);
            for (int64_t line = 0; line < lines; line++) row[line] = values[line][i];
            tile_store(w, at, row, lines);
        }
    }
}

enum { BLOCKS_PER_TASK = 1024 };

typedef struct Member {
    const KernelArgs *args;
    int64_t           first, count; /* first block of the member, and number of its blocks */
    float             global;
} Member;

static void blocks_task(void *context, int64_t task, int worker)
{
    const Member     *member = context;
    const TensorView *w = &member->args->out[0];
    int64_t           end = member->first + min_i64(member->count, (task + 1) * BLOCKS_PER_TASK);
    (void)worker;
    for (int64_t block = member->first + task * BLOCKS_PER_TASK; block < end; block++) {
        float scratch[NVFP4_BLOCK], *row = tile_result(w, block * NVFP4_BLOCK, scratch);
        block_values(member->args, block, member->global, row);
        tile_store(w, block * NVFP4_BLOCK, row, NVFP4_BLOCK);
    }
}

static Status nvfp4_dequantise_cpu(const KernelArgs *args)
{
    const DequantiseAttrs *attrs = args->attrs;
    const TensorType      *w = &args->out[0].type;
    int64_t                rows[DEQUANTISE_MAX_MEMBERS];
    Member                 member = {.args = args};
    if (attrs->transposed) {
        pool_run(args->pool, div_up(w->dim[1], NVFP4_BLOCK), transpose_task, (void *)args);
        return OK;
    }
    int count = dequantise_members(attrs, type_rows(w), rows);
    for (int m = 0; m < count; m++, member.first += member.count) {
        member.count = rows[m] * type_cols(w) / NVFP4_BLOCK;
        member.global = ((const float *)args->in[IN_GLOBAL].data)[m];
        pool_run(args->pool, div_up(member.count, BLOCKS_PER_TASK), blocks_task, &member);
    }
    return OK;
}

const OpDef op_nvfp4_dequantise = {
    .id = OP_NVFP4_DEQUANTISE,
    .name = "nvfp4_dequantise",
    .synopsis = "w = values of e2m1 codes, times the scale of their block of 16, times global",
    .num_in = 3,
    .num_out = 1,
    .min_in = 3,
    .attrs_size = sizeof(DequantiseAttrs),
    .attrs = nvfp4_dequantise_attrs,
    .infer = nvfp4_dequantise_infer,
    .cost = nvfp4_dequantise_cost,
    .cpu = {{DT_SET_FLOAT,
             nvfp4_dequantise_cpu,
             "reference",
             {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_E2M1)},
              {.in = 1u << IN_SCALE, .dtypes = DT_SET(DT_E4M3)},
              {.in = 1u << IN_GLOBAL, .dtypes = DT_SET_F32}}}},
    .samples = "e2m1[1,16], e4m3[1,1], [1]\n"
               "e2m1[33,1056], e4m3[33,66], [1] {dtype=bf16}\n"
               "e2m1[2,5,48], e4m3[2,5,3], [1]\n"
               "e2m1[34,48], e4m3[34,3], [3] {rows0=20, rows1=9, rows2=5}\n"
               "e2m1[37,80], e4m3[37,5], [1] {transposed=true}\n"
               "e2m1[48,64], e4m3[48,4], [1] {dtype=bf16, transposed=true}\n"
               "e2m1[2,70,80], e4m3[2,2,512], [1] {tiled=true}\n"
               "e2m1[150,96], e4m3[2,2,512], [1] {transposed=true, tiled=true}\n",
    .large = "e2m1[4096,1024], e4m3[4096,64], [1] {dtype=bf16}\n"
             "e2m1[4096,1024], e4m3[4096,64], [1]\n"
             "e2m1[1000,2048], e4m3[1000,128], [1] {dtype=bf16, transposed=true}\n",
};
