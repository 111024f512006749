/* lora_add: y[:, columns of member m] += alpha h_m b_m^T, in place: what LoRA's adapters on one input add to the packed output
 * of their linear layers. h = x [a_0; a_1; ...]^T and b = [b_0; b_1; ...]; h_m is columns [m r, (m+1) r) of h. */
#include "ops/products/lora.h"

LORA_ATTRS(lora_add_attrs, );

/* y (...,Y), h (..., members r) of the same rows, b (M,r) -> y. */
static Status lora_add_infer(Node *node)
{
    TRY(lora_infer(node, "y"));
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static Status lora_add_backward(GradBuilder *grad, const Node *node)
{
    Value   *y = node->in[0], *h = node->in[1], *b = node->in[2], *dy = grad_of(grad, node->out[0]), *out[2];
    uint32_t want = want_bit(grad_wanted(grad, h), 0) | want_bit(grad_wanted(grad, b), 1);
    if (!dy) return OK;
    TRY(grad_add(grad, y, dy));
    if (!want) return OK;
    Value    *in[] = {dy, h, b, want & 2 ? grad_accumulator(grad, b) : NULL};
    LoraAttrs attrs = *(const LoraAttrs *)node->attrs;
    if (want & 2) attrs.dw_dtype = grad_dw_dtype(grad, b, dy->type.dtype);
    TRY(grad_emit(grad, OP_LORA_ADD_BWD, &attrs, in, 4, want, out));
    TRY(grad_add(grad, h, out[0]));
    if (out[1]) grad_set(grad, b, out[1]);
    return OK;
}

GEMM_COST(lora_add)
GEMM_KERNELS(lora_add)

static const LoraAttrs lora_add_one = {.alpha = 1, .rows = {7}}, lora_add_two = {.alpha = 0.5, .rows = {30, 9}, .col = {0, 41}},
                       lora_add_three = {.alpha = 2, .rows = {16, 8, 8}, .col = {0, 16, 24}};

static const OpSample lora_add_samples[] = {
    {.in = {{DT_F32, 2, {3, 7}}, {DT_F32, 2, {3, 5}}, {DT_F32, 2, {7, 5}}}, .attrs = &lora_add_one},
    {.in = {{DT_F32, 3, {2, 40, 50}}, {DT_F32, 3, {2, 40, 16}}, {DT_F32, 2, {39, 8}}}, .attrs = &lora_add_two},
    {.in = {{DT_F32, 2, {21, 32}}, {DT_F32, 2, {21, 24}}, {DT_F32, 2, {32, 8}}}, .attrs = &lora_add_three},
};

static const LoraAttrs large_lora_qkv = {.alpha = 2, .rows = {2048, 1024, 1024}, .col = {0, 2048, 3072}};
static const LoraAttrs large_lora_qv = {.alpha = 2, .rows = {520, 128}, .col = {0, 640}};
static const LoraAttrs large_lora_gate_up = {.alpha = 0.5, .rows = {1536, 1536}, .col = {0, 1536}};
static const LoraAttrs large_lora_one = {.alpha = 2, .rows = {1024}};

/* Shapes of real models. */
static const OpSample lora_add_large_samples[] = {
    {.in = {{DT_F32, 3, {2, 300, 4096}}, {DT_F32, 3, {2, 300, 48}}, {DT_F32, 2, {4096, 16}}}, .attrs = &large_lora_qkv},
    {.in = {{DT_F32, 2, {333, 768}}, {DT_F32, 2, {333, 16}}, {DT_F32, 2, {648, 8}}}, .attrs = &large_lora_qv},
    {.in = {{DT_F32, 2, {200, 3072}}, {DT_F32, 2, {200, 64}}, {DT_F32, 2, {3072, 32}}}, .attrs = &large_lora_gate_up},
    {.in = {{DT_F32, 2, {129, 1024}}, {DT_F32, 2, {129, 64}}, {DT_F32, 2, {1024, 64}}}, .attrs = &large_lora_one},
};

const OpDef op_lora_add = {
    .id = OP_LORA_ADD,
    .name = "lora_add",
    .synopsis = "y[:, columns of m] += alpha h_m b_m^T for each member m",
    .num_in = 3,
    .num_out = 1,
    .min_in = 3,
    .alias = {{.out = 0, .in = 0}},
    .num_alias = 1,
    .attrs_size = sizeof(LoraAttrs),
    .attrs = lora_add_attrs,
    .infer = lora_add_infer,
    .backward = lora_add_backward,
    .cost = lora_add_cost,
    .workspace = lora_add_workspace,
    .cpu = {{DT_SET_DECODE, lora_add_tiles, "tiles"}, {DT_SET_DECODE, lora_add_reference, "reference"}},
    .params = 1u << 2,
    .samples = lora_add_samples,
    .num_samples = sizeof lora_add_samples / sizeof lora_add_samples[0],
    .large = lora_add_large_samples,
    .num_large = sizeof lora_add_large_samples / sizeof lora_add_large_samples[0],
};
