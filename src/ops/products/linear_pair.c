/* linear_pair: y = x w^T + bias and z = x u^T: a layer and its adapters on the same input. The sums are those of linear. */
#include "ops/products/gemm.h"

/* x (...,K), w (M,K), u (R,K), [bias (M)] -> y (...,M), z (...,R) of x's dtype. */
static Status linear_pair_infer(Node *node)
{
    TRY(infer_float(node, PAIR_X, "x", 2));
    const TensorType *x = &node->in[PAIR_X]->type;
    TRY(infer_input(node, PAIR_W, "w", DT_SET_DECODE, DIMS(-1, type_cols(x))));
    TRY(infer_input(node, PAIR_U, "u", DT_SET_DECODE, DIMS(-1, type_cols(x))));
    if (node->in[PAIR_BIAS]) TRY(infer_input(node, PAIR_BIAS, "bias", DT_SET_DECODE, DIMS(node->in[PAIR_W]->type.dim[0])));
    for (int k = 0; k < 2; k++) {
        node->out[k]->type = *x;
        node->out[k]->type.dim[x->ndim - 1] = node->in[PAIR_W + k]->type.dim[0];
    }
    return OK;
}

GEMM_COST(linear_pair)
GEMM_KERNELS(linear_pair)

const OpDef op_linear_pair = {
    .id = OP_LINEAR_PAIR,
    .name = "linear_pair",
    .synopsis = "y = x w^T + bias, z = x u^T",
    .num_in = 4,
    .num_out = 2,
    .min_in = 3,
    .by_row = 1u << 0,
    .infer = linear_pair_infer,
    .cost = linear_pair_cost,
    .workspace = linear_pair_workspace,
    .cpu = {{DT_SET_DECODE, linear_pair_tiles, "tiles"}, {DT_SET_FLOAT, linear_pair_reference, "reference"}},
    .params = 1u << PAIR_W | 1u << PAIR_U | 1u << PAIR_BIAS,
    .samples = "[3,5], [7,5], [4,5], [7]\n"
               "[2,20,40], [130,40], [24,40]\n"
               "[9,72], [50,72], [8,72], [50] rows_alone\n",
    .large = "[7,1024], [4096,1024], [384,1024], [4096] rows_alone\n"
             "[16,3072], [1024,3072], [16,3072] rows_alone\n"
             "[29,576], [6146,576], [20,576] rows_alone\n"
             "[64,2048], [1025,2048], [128,2048] rows_alone\n"
             "[64,1024], [6144,1024], [256,1024], [6144] rows_alone\n"
             "[300,1024], [2048,1024], [16,1024] rows_alone\n",
};
