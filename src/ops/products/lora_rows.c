/* lora_rows: y[:, columns of member m] += scales[a] h_ma b_ma^T, in place, where a is the adapter of the row's sequence. It adds LoRA to
 * the packed output of linear layers while sequences of several adapters are decoded together. h holds the products x A^T side by side: for
 * each member the products of all adapters. b holds the matrices B below each other, in the same order. Each product and matrix has room
 * for the largest rank. A row has the bits that lora_add gives it with its adapter alone. */
#include "ops/products/lora_rows.h"

#include "ops/products/gemm_few.h"
#include "ops/products/lora.h"

static const AttrDef lora_rows_attrs[] = {
    LORA_ATTR_OF(LoraRowsAttrs, rows, 0), LORA_ATTR_OF(LoraRowsAttrs, col, 0),  LORA_ATTR_OF(LoraRowsAttrs, rows, 1),
    LORA_ATTR_OF(LoraRowsAttrs, col, 1),  LORA_ATTR_OF(LoraRowsAttrs, rows, 2), LORA_ATTR_OF(LoraRowsAttrs, col, 2),
    ATTR_LIST(LoraRowsAttrs, ranks),      ATTR_LIST(LoraRowsAttrs, scales),     {0}};

static Status check_ranks(const LoraRowsAttrs *attrs, int64_t most)
{
    int64_t count = attrs->ranks.count;
    FAIL_IF(count < 1 || count % lora_count(attrs->rows) || count != attrs->scales.count, ERR_INVALID,
            "%lld ranks and %lld scales: expected one of each for every adapter of each of %d members", (long long)count,
            (long long)attrs->scales.count, lora_count(attrs->rows));
    FAIL_IF(lora_rows_adapters(attrs) > LORA_MOST_ADAPTERS, ERR_INVALID, "%lld adapters: expected at most %d",
            (long long)lora_rows_adapters(attrs), LORA_MOST_ADAPTERS);
    for (int64_t i = 0; i < count; i++) {
        double rank = attrs->ranks.values[i];
        FAIL_IF(!(rank >= 0 && rank <= (double)most && rank == (double)(int64_t)rank), ERR_INVALID,
                "rank %lld is %g: expected a whole number from 0 to %lld, the columns of b", (long long)i, rank, (long long)most);
    }
    return OK;
}

/* y (...,Y), h (..., members n r) with y's number of rows, b (n M,r), adapters i32 (B), one for each of B sequences with equally many rows
 * -> y. An index outside [0, n): no adapter. */
static Status lora_rows_infer(Node *node)
{
    const LoraRowsAttrs *attrs = node->attrs;
    TRY(infer_float(node, LORA_ROWS_Y, "y", 2));
    TRY(infer_float(node, LORA_ROWS_H, "h", 2));
    TRY(infer_input(node, LORA_ROWS_B, "b", DT_SET_DECODE, DIMS(-1, -1)));
    TRY(infer_input(node, LORA_ROWS_ADAPTERS, "adapters", DT_SET(DT_I32), DIMS(-1)));
    const TensorType *y = &node->in[LORA_ROWS_Y]->type, *h = &node->in[LORA_ROWS_H]->type, *b = &node->in[LORA_ROWS_B]->type;
    int64_t           sequences = node->in[LORA_ROWS_ADAPTERS]->type.dim[0], rows;
    TRY(lora_check_members(attrs->rows, attrs->col, type_cols(y), &rows));
    TRY(check_ranks(attrs, type_cols(b)));
    int64_t n = lora_rows_adapters(attrs);
    FAIL_IF(type_rows(y) != type_rows(h), ERR_INVALID, "y has %lld rows and h %lld, expected the same", (long long)type_rows(y),
            (long long)type_rows(h));
    FAIL_IF(type_rows(y) % sequences, ERR_INVALID, "y has %lld rows, expected a multiple of the %lld of adapters", (long long)type_rows(y),
            (long long)sequences);
    FAIL_IF(type_cols(h) != attrs->ranks.count * type_cols(b) || b->dim[0] != n * rows, ERR_INVALID,
            "h has %lld columns and b is (%lld,%lld): expected %lld and (%lld,%lld), of %lld adapters", (long long)type_cols(h),
            (long long)b->dim[0], (long long)type_cols(b), (long long)(attrs->ranks.count * type_cols(b)), (long long)(n * rows),
            (long long)type_cols(b), (long long)n);
    node->out[0]->type = *y;
    return OK;
}

/* The product for member m of `count` sequences from `first` on, which all have adapter a. before: rows of b of the members before m, for
 * one adapter. */
static Gemm product_of(const KernelArgs *args, int64_t first, int64_t count, int64_t a, int m, int64_t before)
{
    const LoraRowsAttrs *attrs = args->attrs;
    const TensorView    *y = &args->out[0], *h = &args->in[LORA_ROWS_H], *b = &args->in[LORA_ROWS_B];
    int64_t              n = lora_rows_adapters(attrs), each = type_rows(&y->type) / args->in[LORA_ROWS_ADAPTERS].type.dim[0];
    int64_t              row = first * each, rows = attrs->rows[m], r = type_cols(&b->type), i = m * n + a;
    Gemm g = gemm_of(count * each, rows, (int64_t)attrs->ranks.values[i], gemm_operand(h, false, row * type_cols(&h->type) + i * r),
                     gemm_operand(b, true, (before * n + a * rows) * r), gemm_operand(y, false, row * type_cols(&y->type) + attrs->col[m]),
                     attrs->scales.values[i], true);
    g.rows_alone = true; /* a row's bits don't depend on how many adjacent sequences have its adapter */
    return g;
}

/* The largest product that could occur: all sequences have one adapter of full rank, and all members' columns are one product. */
static Gemm largest_product(const KernelArgs *args)
{
    Gemm g = product_of(args, 0, args->in[LORA_ROWS_ADAPTERS].type.dim[0], 0, 0, 0);
    g.k = type_cols(&args->in[LORA_ROWS_B].type);
    g.n = args->in[LORA_ROWS_B].type.dim[0] / lora_rows_adapters(args->attrs);
    return g;
}

/* Assumes that the rows of b of each adapter are read once. */
static OpCost lora_rows_cost(const Node *node)
{
    NodeArgs          storage;
    Gemm              g = largest_product(node_args(node, &storage));
    OpCost            cost = gemms_cost(&g, 1);
    const TensorType *h = &node->in[LORA_ROWS_H]->type, *b = &node->in[LORA_ROWS_B]->type;
    cost.bytes = 2 * (double)type_bytes(&node->out[0]->type) + (double)type_bytes(h) + (double)type_bytes(b);
    return cost;
}

static size_t lora_rows_workspace(const Node *node, int num_workers)
{
    NodeArgs storage;
    Gemm     g = largest_product(node_args(node, &storage));
    return gemm_has_pairs(&g) ? gemm_few_workspace(&g, num_workers) : gemm_workspace(&g, num_workers);
}

/* Calls `run` for each product; adjacent sequences with the same adapter share one product. */
static Status run_products(const KernelArgs *args, void (*run)(const KernelArgs *args, const Gemm *gemm))
{
    const LoraRowsAttrs *attrs = args->attrs;
    const int32_t       *adapters = args->in[LORA_ROWS_ADAPTERS].data;
    int64_t              count = args->in[LORA_ROWS_ADAPTERS].type.dim[0], n = lora_rows_adapters(attrs);
    for (int64_t first = 0, end; first < count; first = end) {
        int64_t a = adapters[first], before = 0;
        for (end = first + 1; end < count && adapters[end] == a;) end++;
        for (int m = 0; m < lora_count(attrs->rows) && a >= 0 && a < n; before += attrs->rows[m++]) {
            Gemm gemm = product_of(args, first, end - first, a, m, before);
            if (gemm.k) run(args, &gemm);
        }
    }
    return OK;
}

/* No product is computed by tiles, however many rows it has, so the largest product's scratch is enough for all. */
static void run_dots(const KernelArgs *args, const Gemm *gemm)
{
    (gemm_has_pairs(gemm) ? gemm_run_few : gemm_run)(gemm, args->pool, args->workspace);
}

static void run_reference(const KernelArgs *args, const Gemm *gemm)
{
    (void)args;
    gemm_reference(gemm);
}

static Status lora_rows_dots(const KernelArgs *args)
{
    return run_products(args, run_dots);
}

static Status lora_rows_reference(const KernelArgs *args)
{
    return run_products(args, run_reference);
}

const OpDef op_lora_rows = {
    .id = OP_LORA_ROWS,
    .name = "lora_rows",
    .synopsis = "y[i, columns of m] += scales[a] h_ma b_ma^T for each member m, where a is the adapter of row i's sequence",
    .num_in = 4,
    .num_out = 1,
    .min_in = 4,
    .alias = {{.out = 0, .in = LORA_ROWS_Y}},
    .num_alias = 1,
    .attrs_size = sizeof(LoraRowsAttrs),
    .attrs = lora_rows_attrs,
    .infer = lora_rows_infer,
    .cost = lora_rows_cost,
    .workspace = lora_rows_workspace,
    .cpu = {{DT_SET_DECODE, lora_rows_dots, "dots"}, {DT_SET_DECODE, lora_rows_reference, "reference"}},
    .samples = "[3,7], [3,5], [7,5], i32[3] below=2 {rows0=7, ranks=[5], scales=[0.5]}\n"
               "[5,4,50], [5,4,24], [90,8], i32[5] below=4 {rows0=30, col0=6, ranks=[8, 0, 3], scales=[2, 1, 0.25]}\n"
               "[6,50], [6,32], [78,8], i32[6] below=3 {rows0=30, rows1=9, col1=41, ranks=[6, 8, 1, 0], scales=[2, 1, 0.25, 1]}\n",
    .large = "[100,1,144], [100,1,216], [408,72], i32[100] below=4 {rows0=136, col0=8, ranks=[72, 40, 33], scales=[0.5, 1, 2]}\n"
             "[64,1,768], [64,1,192], [3072,16], i32[64] below=5 {rows0=512, rows1=128, col1=512, rows2=128, col2=640, ranks=[16,"
             "  8, 16, 4, 16, 8, 0, 4, 16, 8, 0, 4], scales=[2, 1, 0.5, 1.5, 2, 1, 1, 1.5, 2, 1, 1, 1.5]}\n"
             "[1,300,768], [1,300,192], [3072,16], i32[1] below=1 {rows0=512, rows1=128, col1=512, rows2=128, col2=640, ranks=[16,"
             "  8, 16, 4, 16, 8, 0, 4, 16, 8, 0, 4], scales=[2, 1, 0.5, 1.5, 2, 1, 1, 1.5, 2, 1, 1, 1.5]}\n",
};
