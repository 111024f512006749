/* lora_add: y[:, columns of member m] += alpha h_m b_m^T, in place: adds LoRA's adapters on one input to the packed output of their linear
 * layers. h = x [a_0; a_1; ...]^T and b = [b_0; b_1; ...]; h_m is columns [m r, (m+1) r) of h. */
#include "ops/products/lora.h"

LORA_ATTRS(lora_add_attrs, );

/* y (...,Y), h (..., members r) with y's number of rows, b (M,r) -> y. */
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
    .samples = "[3,7], [3,5], [7,5] {rows0=7}\n"
               "[2,40,50], [2,40,16], [39,8] {alpha=0.5, rows0=30, rows1=9, col1=41}\n"
               "[21,32], [21,24], [32,8] {alpha=2, rows0=16, rows1=8, col1=16, rows2=8, col2=24}\n",
    .large = "[2,300,4096], [2,300,48], [4096,16] {alpha=2, rows0=2048, rows1=1024, col1=2048, rows2=1024, col2=3072}\n"
             "[333,768], [333,16], [648,8] {alpha=2, rows0=520, rows1=128, col1=640}\n"
             "[200,3072], [200,64], [3072,32] {alpha=0.5, rows0=1536, rows1=1536, col1=1536}\n"
             "[129,1024], [129,64], [1024,64] {alpha=2, rows0=1024}\n",
};
