/* lora_add_bwd: dy_m is the columns of member m.
 *
 *   dh_m = alpha dy_m b_m
 *   db_m = alpha dy_m^T h_m
 *
 * One op, so that one kernel may compute both from one read of dy. */
#include "ops/products/lora.h"
#include "ops/products/lora_chunks.h"

LORA_ATTRS(lora_add_bwd_attrs, ATTR_DTYPE(LoraAttrs, dw_dtype), );

/* dy (...,Y), h (..., members r), b (M,r), [acc db (M,r)] -> dh of h's dims in dy's dtype; db in dy's dtype unless acc or an attribute
 * names another. */
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
    for (int i = members; i < count; i++) cost.bytes -= (double)(dtype_bytes(gemms[i].a.dtype, gemms[i].m * gemms[i].k)); /* dy read once */
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
    .samples = "[3,7], [3,5], [7,5] {rows0=7}\n"
               "[2,640,50], [2,640,16], [39,8], [39,8] {alpha=0.5, rows0=30, rows1=9, col1=41}\n"
               "[21,32], [21,24], [32,8] {alpha=2, rows0=16, rows1=8, col1=16, rows2=8, col2=24}\n"
               "[130,64], [130,16], [40,8] {alpha=0.5, rows0=16, col0=8, rows1=24, col1=32, dw_dtype=f32}\n",
    .large = "[2,300,4096], [2,300,48], [4096,16] {alpha=2, rows0=2048, rows1=1024, col1=2048, rows2=1024, col2=3072}\n"
             "[333,768], [333,16], [648,8] {alpha=2, rows0=520, rows1=128, col1=640}\n"
             "[200,3072], [200,64], [3072,32] {alpha=0.5, rows0=1536, rows1=1536, col1=1536}\n"
             "[129,1024], [129,64], [1024,64] {alpha=2, rows0=1024}\n"
             "[8192,1024], [8192,16], [1024,16] {alpha=2, rows0=1024}\n"
             "[2,300,4096], [2,300,48], [4096,16] {alpha=2, rows0=2048, rows1=1024, col1=2048, rows2=1024, col2=3072, dw_dtype=f32}\n",
};
