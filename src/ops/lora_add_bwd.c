/* lora_add_bwd: with dy_m the columns of member m,  dh_m = alpha dy_m b_m,  db_m = alpha dy_m^T h_m: one op, so that one kernel
 * may make both from one read of dy. */
#include "ops/lora.h"
#include "ops/lora_chunks.h"

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

/* The wanted products of all members, those of dh first. */
static int gemms_of_views(const LoraAttrs *attrs, const TensorView *dy, const TensorView *h, const TensorView *b,
                          const TensorView *dh, const TensorView *db, bool accumulate, Gemm out[2 * LORA_MAX_MEMBERS])
{
    int count = dh ? lora_gemms(LORA_DH, attrs, dy, dh, b, out) : 0;
    int end = count + (db ? lora_gemms(LORA_DB, attrs, dy, h, db, out + count) : 0);
    for (int i = count; i < end; i++) out[i].accumulate = accumulate;
    return end;
}

static int gemms_of_args(const KernelArgs *args, Gemm out[2 * LORA_MAX_MEMBERS])
{
    return gemms_of_views(args->attrs, &args->in[0], &args->in[1], &args->in[2], args->out[0].data ? &args->out[0] : NULL,
                          args->out[1].data ? &args->out[1] : NULL, args->accumulate >> 1 & 1, out);
}

static int gemms_of_node(const Node *node, Gemm out[2 * LORA_MAX_MEMBERS])
{
    TensorView in[3], result[2];
    for (int i = 0; i < 3; i++) in[i] = (TensorView){ .type = node->in[i]->type };
    for (int k = 0; k < 2; k++)
        if (node->out[k]) result[k] = (TensorView){ .type = node->out[k]->type };
    return gemms_of_views(node->attrs, &in[0], &in[1], &in[2], node->out[0] ? &result[0] : NULL,
                          node->out[1] ? &result[1] : NULL, node->in[3] != NULL, out);
}

static OpCost lora_add_bwd_cost(const Node *node)
{
    Gemm   gemm[2 * LORA_MAX_MEMBERS];
    OpCost cost = { .matrix_unit = true };
    int    count = gemms_of_node(node, gemm), members = lora_members(node->attrs);
    for (int i = 0; i < count; i++) {
        OpCost one = gemm_cost(&gemm[i]);
        cost.flops += one.flops;
        cost.bytes += one.bytes;
        if (i >= members) cost.bytes -= (double)(gemm[i].m * gemm[i].k * dtype_bytes(gemm[i].a_dtype)); /* dy was read */
    }
    return cost;
}

static size_t lora_add_bwd_workspace(const Node *node, int num_workers)
{
    Gemm   gemm[2 * LORA_MAX_MEMBERS];
    size_t most = 0;
    for (int i = 0, count = gemms_of_node(node, gemm); i < count; i++) {
        size_t bytes = gemm_workspace(&gemm[i], num_workers);
        if (bytes > most) most = bytes;
    }
    return most;
}

static size_t lora_add_bwd_gpu_workspace(const Node *node)
{
    int64_t r = type_cols(&node->in[2]->type);
    bool    mma = node->in[0]->type.dtype == DT_BF16 && (r == 8 || r == 16 || r == 32 || r == 64);
    return mma ? lora_sums_bytes(node->attrs, &node->in[0]->type, &node->in[2]->type) : GPU_GEMM_WORKSPACE;
}

static Status lora_add_bwd_tiles(const KernelArgs *args)
{
    Gemm gemm[2 * LORA_MAX_MEMBERS];
    for (int i = 0, count = gemms_of_args(args, gemm); i < count; i++) gemm_run(&gemm[i], args->pool, args->workspace);
    return OK;
}

static Status lora_add_bwd_reference(const KernelArgs *args)
{
    Gemm gemm[2 * LORA_MAX_MEMBERS];
    for (int i = 0, count = gemms_of_args(args, gemm); i < count; i++) gemm_reference(&gemm[i]);
    return OK;
}

static const LoraAttrs lora_bwd_one = { .alpha = 1, .rows = { 7 } },
                       lora_bwd_two = { .alpha = 0.5, .rows = { 30, 9 }, .col = { 0, 41 } },
                       lora_bwd_f32 = { .alpha = 0.5, .rows = { 16, 24 }, .col = { 8, 32 }, .dw_dtype = DTYPE_TO_ATTR(DT_F32) },
                       lora_bwd_three = { .alpha = 2, .rows = { 16, 8, 8 }, .col = { 0, 16, 24 } };

static const OpSample lora_add_bwd_samples[] = {
    { .in = { { DT_F32, 2, { 3, 7 } }, { DT_F32, 2, { 3, 5 } }, { DT_F32, 2, { 7, 5 } } }, .attrs = &lora_bwd_one },
    { .in = { { DT_F32, 3, { 2, 640, 50 } }, { DT_F32, 3, { 2, 640, 16 } }, { DT_F32, 2, { 39, 8 } }, { DT_F32, 2, { 39, 8 } } },
      .attrs = &lora_bwd_two },
    { .in = { { DT_F32, 2, { 21, 32 } }, { DT_F32, 2, { 21, 24 } }, { DT_F32, 2, { 32, 8 } } }, .attrs = &lora_bwd_three },
    { .in = { { DT_F32, 2, { 130, 64 } }, { DT_F32, 2, { 130, 16 } }, { DT_F32, 2, { 40, 8 } } }, .attrs = &lora_bwd_f32 },
};

const OpDef op_lora_add_bwd = {
    .id = OP_LORA_ADD_BWD,
    .name = "lora_add_bwd",
    .synopsis = "dh_m = alpha dy_m b_m, db_m = alpha dy_m^T h_m for each member m",
    .num_in = 4,
    .num_out = 2,
    .min_in = 3,
    .alias = { { .out = 1, .in = 3, .accumulate = true } },
    .num_alias = 1,
    .attrs_size = sizeof(LoraAttrs),
    .attrs = lora_add_bwd_attrs,
    .infer = lora_add_bwd_infer,
    .cost = lora_add_bwd_cost,
    .workspace = lora_add_bwd_workspace,
    .gpu_workspace = lora_add_bwd_gpu_workspace,
    .cpu = { { DT_SET_FLOAT, lora_add_bwd_tiles, "tiles" }, { DT_SET_FLOAT, lora_add_bwd_reference, "reference" } },
    .samples = lora_add_bwd_samples,
    .num_samples = sizeof lora_add_bwd_samples / sizeof lora_add_bwd_samples[0],
};
