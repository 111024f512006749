/* embedding_dw: dw[v] = sum of dx[b,t] over the positions where tokens[b,t] = v, in order of position.
 *
 * Positions are sorted by token (a stable counting sort in the workspace). So each row of dw is summed in fp32 and stored once, whatever
 * its dtype, and threads can divide the rows without changing a bit. */
#include "ops/rows/embedding_dw.h"

#include "ops/infer.h"

static const AttrDef embedding_dw_attrs[] = {ATTR_INT(EmbeddingDwAttrs, vocab, 0), ATTR_DTYPE(EmbeddingDwAttrs, dw_dtype), {0}};

enum { VOCAB_PER_TASK = 256 };

/* tokens i32 (B,T), dx (B,T,C), [acc (V,C)] -> dw (V,C), in dx's dtype unless attribute dw_dtype says another. */
static Status embedding_dw_infer(Node *node)
{
    const EmbeddingDwAttrs *attrs = node->attrs;
    TRY(infer_input(node, 0, "tokens", DT_SET(DT_I32), DIMS(-1, -1)));
    const TensorType *tokens = &node->in[0]->type;
    TRY(infer_input(node, 1, "dx", DT_SET_FLOAT, DIMS(tokens->dim[0], tokens->dim[1], -1)));
    FAIL_IF(attrs->vocab < 1, ERR_INVALID, "attribute vocab is %lld, expected the number of rows of dw", (long long)attrs->vocab);
    TensorType dw = type_make(node->in[1]->type.dtype, 2, attrs->vocab, node->in[1]->type.dim[2]);
    TRY(infer_dw(node, 2, "acc", attrs->dw_dtype, &dw));
    node->out[0]->type = dw;
    return OK;
}

static OpCost embedding_dw_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[1]->type));
}

/* Parts of the workspace: first i32 (V+1): where each token's positions begin in `order`; order i32 (N): positions sorted by token. */
size_t rows_added_workspace(int64_t count, int64_t vocab)
{
    return (size_t)(vocab + 1 + count) * sizeof(int32_t);
}

/* Room for keys and positions, each unsorted and sorted, and for the most that CUB's sort takes: as much again for both, and counts of each
 * digit for every few thousand elements. */
size_t rows_added_gpu_workspace(int64_t count)
{
    size_t column = ((size_t)count * sizeof(int32_t) + 255) / 256 * 256;
    return 4 * column + 2 * column + (size_t)count + (64 << 10);
}

static size_t embedding_dw_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return rows_added_workspace(type_numel(&node->in[0]->type), ((const EmbeddingDwAttrs *)node->attrs)->vocab);
}

static size_t embedding_dw_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return rows_added_gpu_workspace(type_numel(&node->in[0]->type));
}

typedef struct RowsAdded {
    const KernelArgs *args;
    const TensorView *rows;
} RowsAdded;

static void embedding_dw_row(const RowsAdded *job, int64_t v, const int32_t *places, int64_t count)
{
    const KernelArgs *args = job->args;
    const TensorView *dx = job->rows, *dw = &args->out[0];
    int64_t           cols = dw->type.dim[1];
    float             sum[TILE];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        memset(sum, 0, (size_t)n * sizeof(float));
        for (int64_t k = 0; k < count; k++)
            VEC_OF(dx->type.dtype, vec_sum_row, sum, vec_at(dx->data, dx->type.dtype, places[k] * cols + c), n);
        if (args->accumulate & 1)
            tile_add(dw, v * cols + c, sum, n);
        else
            tile_store(dw, v * cols + c, sum, n);
    }
}

VEC_TASK(embedding_dw_task)
{
    const RowsAdded  *job = context;
    const KernelArgs *args = job->args;
    int64_t           vocab = args->out[0].type.dim[0], end = min_i64(vocab, (task + 1) * VOCAB_PER_TASK);
    const int32_t    *first = args->workspace, *order = first + vocab + 1;
    (void)worker;
    for (int64_t v = task * VOCAB_PER_TASK; v < end; v++) {
        int64_t count = first[v + 1] - first[v];
        if (count || !(args->accumulate & 1)) embedding_dw_row(job, v, order + first[v], count);
    }
}

Status rows_added_cpu(const KernelArgs *args, const TensorView *ids, const TensorView *rows)
{
    const int32_t *tokens = ids->data;
    RowsAdded      job = {args, rows};
    int64_t        count = type_numel(&ids->type), vocab = args->out[0].type.dim[0];
    int32_t       *first = args->workspace, *order = first + vocab + 1;
    memset(first, 0, (size_t)(vocab + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < count; i++) {
        FAIL_IF(tokens[i] < 0 || tokens[i] >= vocab, ERR_INVALID, "id %d at position %lld is outside the %lld rows", tokens[i],
                (long long)i, (long long)vocab);
        first[tokens[i]]++;
    }
    int32_t end = 0; /* first[v] becomes the end of v's positions; filling from the back makes it their start */
    for (int64_t v = 0; v < vocab; v++) first[v] = end += first[v];
    first[vocab] = end;
    for (int64_t i = count - 1; i >= 0; i--) order[--first[tokens[i]]] = (int32_t)i;
    pool_run(args->pool, div_up(vocab, VOCAB_PER_TASK), embedding_dw_task, &job);
    return OK;
}

static Status embedding_dw_cpu(const KernelArgs *args)
{
    return rows_added_cpu(args, &args->in[0], &args->in[1]);
}

const OpDef op_embedding_dw = {
    .id = OP_EMBEDDING_DW,
    .name = "embedding_dw",
    .synopsis = "dw[v] = sum of dx[b,t] where tokens[b,t] = v",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .alias = {{.out = 0, .in = 2, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(EmbeddingDwAttrs),
    .attrs = embedding_dw_attrs,
    .infer = embedding_dw_infer,
    .cost = embedding_dw_cost,
    .workspace = embedding_dw_workspace,
    .gpu_workspace = embedding_dw_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, embedding_dw_cpu, "reference"}},
    .samples = "i32[2,5] below=7, [2,5,12], [7,12] {vocab=7}\n"
               "i32[3,40] below=600, [3,40,1030] {vocab=600}\n"
               "i32[2,50] below=7, [2,50,12] {vocab=7, dw_dtype=f32}\n",
    .large = "i32[2,700] below=300, [2,700,1024] {vocab=1000}\n",
};
