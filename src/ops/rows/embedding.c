/* embedding: x[b,t] = w[tokens[b,t]]: a copy of rows. */
#include "ops/infer.h"

/* tokens i32 (B,T), w (V,C) -> x (B,T,C) of w's dtype. */
static Status embedding_infer(Node *node)
{
    TRY(infer_input(node, 0, "tokens", DT_SET(DT_I32), DIMS(-1, -1)));
    TRY(infer_input(node, 1, "w", DT_SET_DECODE, DIMS(-1, -1)));
    const TensorType *tokens = &node->in[0]->type, *w = &node->in[1]->type;
    node->out[0]->type = type_make(w->dtype, 3, tokens->dim[0], tokens->dim[1], w->dim[1]);
    return OK;
}

static Status embedding_backward(GradBuilder *grad, const Node *node)
{
    Value *w = node->in[1];
    if (!grad_wanted(grad, w)) return OK;
    Value           *dx = grad_of(grad, node->out[0]);
    EmbeddingDwAttrs attrs = {.vocab = w->type.dim[0], .dw_dtype = grad_dw_dtype(grad, w, dx->type.dtype)};
    Value           *in[] = {node->in[0], dx, grad_accumulator(grad, w)};
    Value           *out[1];
    TRY(grad_emit(grad, OP_EMBEDDING_DW, &attrs, in, 3, 1, out));
    grad_set(grad, w, out[0]);
    return OK;
}

/* Only the rows of the table that are looked up are read. */
static OpCost embedding_cost(const Node *node)
{
    double rows = (double)type_numel(&node->in[0]->type), row_bytes = (double)(type_bytes(&node->in[1]->type) / node->in[1]->type.dim[0]);
    return (OpCost){.bytes = rows * (4 + 2 * row_bytes)};
}

VEC_TASK(embedding_task)
{
    const KernelArgs *args = context;
    const TensorView *w = &args->in[1], *x = &args->out[0];
    const int32_t    *tokens = args->in[0].data;
    int64_t           cols = w->type.dim[1], step = rows_moved(args, type_rows(&x->type), cols),
            end = min_i64(type_rows(&x->type), (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) tile_copy(x, row * cols, w, tokens[row] * cols, cols);
}

static Status embedding_cpu(const KernelArgs *args)
{
    const int32_t *tokens = args->in[0].data;
    int64_t        rows = type_numel(&args->in[0].type), vocab = args->in[1].type.dim[0];
    for (int64_t i = 0; i < rows; i++)
        FAIL_IF(tokens[i] < 0 || tokens[i] >= vocab, ERR_INVALID,
                "token %d at position %lld of the batch is outside the vocabulary of %lld; was the data tokenized for "
                "another model?",
                tokens[i], (long long)i, (long long)vocab);
    pool_run(args->pool, div_up(rows, rows_moved(args, rows, args->in[1].type.dim[1])), embedding_task, (void *)args);
    return OK;
}

const OpDef op_embedding = {
    .id = OP_EMBEDDING,
    .name = "embedding",
    .synopsis = "x[b,t] = w[tokens[b,t]]",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .infer = embedding_infer,
    .backward = embedding_backward,
    .cost = embedding_cost,
    .cpu = {{DT_SET_DECODE, embedding_cpu, "reference"}},
    .params = 1u << 1,
    .samples = "i32[2,5] below=7, [7,12]\n"
               "i32[3,40] below=300, [300,1030]\n",
    .large = "i32[2,700] below=1000, [1000,1024]\n",
};
