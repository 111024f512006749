/* lora_add_bwd: with dy_m the columns of member m,  dh_m = alpha dy_m b_m,  db_m = alpha dy_m^T h_m: one op, so that one kernel
 * may make both from one read of dy. */
#include "ops/products/lora.h"
#include "ops/products/lora_chunks.h"

LORA_ATTRS(lora_add_bwd_attrs, ATTR_DTYPE(LoraAttrs, dw_dtype), );

/* dy (...,Y), h (..., members r), b (M,r), [acc db (M,r)] -> dh of h's dims in dy's dtype, db too if not told
 * otherwise. */
static Status lora_add_bwd_infer(Node *node)
{
    TRY(lora_infer(node, "dy"));
    node->out[0]->type = type_as(&node->in[1]->type, node->in[0]->type.dtype);
    node->out[1]->type = type_as(&node->in[2]->type, node->in[0]->type.dtype);
    return infer_dw(node, 3, "acc db", ((const LoraAttrs *)node->attrs)->dw_dtype, &node->out[1]->type);
}

static OpCost lora_add_bwd_cost(const Node *node)
{
    NodeArgs storage;
    Gemm     gemms[MAX_PRODUCTS];
    int      count = lora_add_bwd_products(node_args(node, &storage), gemms), members = lora_members(node->attrs);
    OpCost   cost = gemms_cost(gemms, count);
    for (int i = members; i < count; i++) cost.bytes -= (double)(dtype_bytes(gemms[i].a.dtype, gemms[i].m * gemms[i].k)); /* dy was read */
    return cost;
}

static size_t lora_add_bwd_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    const TensorType *dy = &node->in[0]->type, *b = &node->in[2]->type;
    bool              mma = dy->dtype == DT_BF16 && lora_mma_fits(node->attrs, dy, b);
    return mma ? lora_sums_bytes(node->attrs, dy, b) : GPU_GEMM_WORKSPACE;
}

GEMM_KERNELS(lora_add_bwd)

static const LoraAttrs lora_bwd_one = {.alpha = 1, .rows = {7}}, lora_bwd_two = {.alpha = 0.5, .rows = {30, 9}, .col = {0, 41}},
                       lora_bwd_f32 = {.alpha = 0.5, .rows = {16, 24}, .col = {8, 32}, .dw_dtype = DTYPE_TO_ATTR(DT_F32)},
                       lora_bwd_three = {.alpha = 2, .rows = {16, 8, 8}, .col = {0, 16, 24}};

static const OpSample lora_add_bwd_samples[] = {
    {.in = {{DT_F32, 2, {3, 7}}, {DT_F32, 2, {3, 5}}, {DT_F32, 2, {7, 5}}}, .attrs = &lora_bwd_one},
    {.in = {{DT_F32, 3, {2, 640, 50}}, {DT_F32, 3, {2, 640, 16}}, {DT_F32, 2, {39, 8}}, {DT_F32, 2, {39, 8}}}, .attrs = &lora_bwd_two},
    {.in = {{DT_F32, 2, {21, 32}}, {DT_F32, 2, {21, 24}}, {DT_F32, 2, {32, 8}}}, .attrs = &lora_bwd_three},
    {.in = {{DT_F32, 2, {130, 64}}, {DT_F32, 2, {130, 16}}, {DT_F32, 2, {40, 8}}}, .attrs = &lora_bwd_f32},
};

static const LoraAttrs large_lora_qkv = {.alpha = 2, .rows = {2048, 1024, 1024}, .col = {0, 2048, 3072}};
static const LoraAttrs large_lora_qv = {.alpha = 2, .rows = {520, 128}, .col = {0, 640}};
static const LoraAttrs large_lora_gate_up = {.alpha = 0.5, .rows = {1536, 1536}, .col = {0, 1536}};
static const LoraAttrs large_lora_one = {.alpha = 2, .rows = {1024}};
static const LoraAttrs large_lora_qkv_f32 = {
    .alpha = 2, .rows = {2048, 1024, 1024}, .col = {0, 2048, 3072}, .dw_dtype = DTYPE_TO_ATTR(DT_F32)};

/* Shapes of real models. */
static const OpSample lora_add_bwd_large_samples[] = {
    {.in = {{DT_F32, 3, {2, 300, 4096}}, {DT_F32, 3, {2, 300, 48}}, {DT_F32, 2, {4096, 16}}}, .attrs = &large_lora_qkv},
    {.in = {{DT_F32, 2, {333, 768}}, {DT_F32, 2, {333, 16}}, {DT_F32, 2, {648, 8}}}, .attrs = &large_lora_qv},
    {.in = {{DT_F32, 2, {200, 3072}}, {DT_F32, 2, {200, 64}}, {DT_F32, 2, {3072, 32}}}, .attrs = &large_lora_gate_up},
    {.in = {{DT_F32, 2, {129, 1024}}, {DT_F32, 2, {129, 64}}, {DT_F32, 2, {1024, 64}}}, .attrs = &large_lora_one},
    {.in = {{DT_F32, 2, {8192, 1024}}, {DT_F32, 2, {8192, 16}}, {DT_F32, 2, {1024, 16}}}, .attrs = &large_lora_one},
    {.in = {{DT_F32, 3, {2, 300, 4096}}, {DT_F32, 3, {2, 300, 48}}, {DT_F32, 2, {4096, 16}}}, .attrs = &large_lora_qkv_f32},
};

const OpDef op_lora_add_bwd = {
    .id = OP_LORA_ADD_BWD,
    .name = "lora_add_bwd",
    .synopsis = "dh_m = alpha dy_m b_m, db_m = alpha dy_m^T h_m for each member m",
    .num_in = 4,
    .num_out = 2,
    .min_in = 3,
    .alias = {{.out = 1, .in = 3, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(LoraAttrs),
    .attrs = lora_add_bwd_attrs,
    .infer = lora_add_bwd_infer,
    .cost = lora_add_bwd_cost,
    .workspace = lora_add_bwd_workspace,
    .gpu_workspace = lora_add_bwd_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, lora_add_bwd_tiles, "tiles"}, {DT_SET_FLOAT, lora_add_bwd_reference, "reference"}},
    .samples = lora_add_bwd_samples,
    .num_samples = sizeof lora_add_bwd_samples / sizeof lora_add_bwd_samples[0],
    .large = lora_add_bwd_large_samples,
    .num_large = sizeof lora_add_bwd_large_samples / sizeof lora_add_bwd_large_samples[0],
};
