/* group_linear: multiplies each group, such as each attention head, by a matrix of its own: y_g = x_g w_g^T, turned y_g = x_g w_g. The
 * matrices follow each other in w, with R rows each; w_g is rows begin to begin + size - 1 of group g's R rows. So the halves of a packed
 * weight are read in place. A task computes the product of one group: even a few rows of x have many groups. */
#include "ops/products/group_linear.h"

#include "ops/products/gemm.h"

static const AttrDef group_linear_attrs[] = {
    ATTR_INT(GroupLinearAttrs, begin, 0), ATTR_INT(GroupLinearAttrs, size, 0), ATTR_BOOL(GroupLinearAttrs, turned, false), {0}};

/* x (...,G,K), turned (...,G,size); w (G R,K) -> y (...,G,size), turned (...,G,K), of x's dtype. */
static Status group_linear_infer(Node *node)
{
    const GroupLinearAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "x", 2));
    TRY(infer_input(node, 1, "w", DT_SET_DECODE, DIMS(-1, -1)));
    const TensorType *x = &node->in[0]->type, *w = &node->in[1]->type;
    Groups            g = groups_of(attrs, x, w);
    char              text[64];
    FAIL_IF(w->dim[0] % g.count, ERR_INVALID, "w has %lld rows, x is %s; expected a multiple of its %lld groups", (long long)w->dim[0],
            type_text(x, text), (long long)g.count);
    FAIL_IF(g.begin < 0 || g.size < 1 || g.size > g.rows || g.begin > g.rows - g.size, ERR_INVALID,
            "%lld rows from %lld on of each group's %lld: attributes begin and size don't fit", (long long)g.size, (long long)g.begin,
            (long long)g.rows);
    int64_t wanted = attrs->turned ? g.size : g.cols;
    FAIL_IF(type_cols(x) != wanted, ERR_INVALID, "x is %s, expected %lld numbers of each group: %s", type_text(x, text), (long long)wanted,
            attrs->turned ? "turned, as many as rows of w are read" : "as many as w has columns");
    node->out[0]->type = *x;
    node->out[0]->type.dim[x->ndim - 1] = attrs->turned ? g.cols : g.size;
    return OK;
}

/* Each group has its own matrix, so groups don't count as rows: all dims before the group dim make rows. */
static int group_linear_dims(const Node *node)
{
    return node->in[0]->type.ndim - 2;
}

static OpCost group_linear_cost(const Node *node)
{
    const TensorType *x = &node->in[0]->type, *w = &node->in[1]->type, *y = &node->out[0]->type;
    Groups            g = groups_of(node->attrs, x, w);
    double            read = (double)(g.count * g.size * g.cols), rows = (double)type_numel(x) / (double)(g.count * type_cols(x));
    return (OpCost){.flops = 2 * rows * read,
                    .bytes = (double)type_bytes(x) + (double)type_bytes(y) + (double)dtype_bytes(w->dtype, g.count * g.size * g.cols),
                    .matrix_unit = true};
}

/* ---- CPU ---- */

/* All groups' products have the same dims. */
static size_t worker_bytes(const KernelArgs *args)
{
    Gemm gemm = group_product(args, 0);
    return (gemm_workspace(&gemm, 1) + 63) / 64 * 64;
}

static size_t group_linear_workspace(const Node *node, int num_workers)
{
    NodeArgs storage;
    return (size_t)num_workers * worker_bytes(node_args(node, &storage));
}

static void group_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    Gemm              gemm = group_product(args, task);
    gemm_run(&gemm, NULL, (char *)args->workspace + (size_t)worker * worker_bytes(args));
}

static int64_t num_groups(const KernelArgs *args)
{
    const TensorType *x = &args->in[0].type;
    return x->dim[x->ndim - 2];
}

static Status group_linear_groups(const KernelArgs *args)
{
    pool_run(args->pool, num_groups(args), group_task, (void *)args);
    return OK;
}

static Status group_linear_reference(const KernelArgs *args)
{
    for (int64_t group = 0; group < num_groups(args); group++) {
        Gemm gemm = group_product(args, group);
        gemm_reference(&gemm);
    }
    return OK;
}

const OpDef op_group_linear = {
    .id = OP_GROUP_LINEAR,
    .name = "group_linear",
    .synopsis = "y_g = x_g w_g^T, turned y_g = x_g w_g: each group g has a matrix of its own",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .attrs_size = sizeof(GroupLinearAttrs),
    .attrs = group_linear_attrs,
    .by_row = 1u << 0,
    .row_dims = group_linear_dims,
    .infer = group_linear_infer,
    .cost = group_linear_cost,
    .workspace = group_linear_workspace,
    .cpu = {{DT_SET_DECODE, group_linear_groups, "groups"}, {DT_SET_DECODE, group_linear_reference, "reference"}},
    .params = 1u << 1,
    .samples = "[3,7], [12,7]\n"
               "[2,3,4,5], [44,9] {size=5, turned=true} rows_alone\n"
               "[2,3,4,9], [44,9] {begin=5} rows_alone\n"
               "[70,2,18], [36,50] {turned=true} rows_alone\n"
               "[9,2,700], [1400,24] {turned=true} rows_alone\n"
               "[9,2,700], [48,700] rows_alone\n",
    /* The halves of latent attention's packed weight, as in DeepSeek-V3 but with fewer heads. */
    .large = "[7,1,16,128], [4096,512] {size=128, turned=true} rows_alone\n"
             "[7,1,16,512], [4096,512] {begin=128, size=128} rows_alone\n"
             "[1,300,3,128], [768,512] {size=128, turned=true} rows_alone\n"
             "[1,300,3,512], [768,512] {begin=128, size=128} rows_alone\n",
};
