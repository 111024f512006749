/* Every op by its descriptor: what infer accepts and rejects, the text form, each kernel against the reference, and
 * that results depend neither on threads, nor on the width of vectors, nor on what memory held, nor on which outputs are
 * wanted, nor on sharing memory where that's allowed.
 *
 *   test_ops [op]
 */
#include "ops/op_case.h"

static ThreadPool *pools[2]; /* 2 and 4 threads */

static bool kernel_fits(const OpCase *c, const CpuKernel *kernel)
{
    return op_types_fit(c->node, kernel->dtypes, kernel->except);
}

static const CpuKernel *reference_of(const OpDef *op)
{
    int k = 0;
    while (k + 1 < OP_MAX_KERNELS && op->cpu[k + 1].run) k++;
    return &op->cpu[k];
}

/* ---- infer and text ---- */

/* Input k has dims that infer may refuse; where it doesn't, kernels keep to their memory (they may refuse the
 * contents). */
static void run_harmless(const OpDef *op, const OpSample *sample, const TensorType *in, int k)
{
    OpCase c;
    bool   empty = in[k].ndim == 0;
    for (int d = 0; d < in[k].ndim; d++) empty = empty || in[k].dim[d] < 1;
    if (empty) return;
    if (op_case_make(&c, op, sample->attrs, in) == OK) {
        op_case_fill(&c, 1, sample->int_range);
        RunOptions run = {.want = ~0u, .poison = 0};
        if (op->cpu[0].run && op_case_run(&c, &op->cpu[0], &run, op->name) != OK) status_clear();
    }
    op_case_free(&c);
}

/* A wrong dtype is always refused, but by what only moves bytes or says that it takes whole numbers. Wrong dims are refused, or harmless:
 * then they run within bounds. */
static void check_corrupted(const OpDef *op, const OpSample *sample)
{
    TensorType in[NODE_MAX_IN];
    bool       takes_any = op->flags & OP_VIEW || op->cpu[0].dtypes & DT_SET(DT_I32);
    memcpy(in, sample->in, sizeof in);
    for (int i = 0; i < op->num_in; i++) {
        if (!sample->in[i].ndim) continue;
        in[i].dtype = type_is_float(&in[i]) ? DT_I32 : DT_F32;
        if (!takes_any && op_takes(op, sample->attrs, in))
            test_fail(__FILE__, __LINE__, "%s: infer takes %s for input %d", op->name, dtype_info(in[i].dtype)->name, i);
        in[i] = sample->in[i];
        for (int change = 0; change <= 2 * in[i].ndim + 1; change++) {
            if (change < in[i].ndim)
                in[i].dim[change]++;
            else if (change < 2 * in[i].ndim)
                in[i].dim[change - in[i].ndim]--;
            else if (change == 2 * in[i].ndim)
                in[i].ndim--;
            else if (in[i].ndim < TENSOR_MAX_DIMS)
                in[i].dim[in[i].ndim++] = 1;
            run_harmless(op, sample, in, i);
            in[i] = sample->in[i];
        }
        in[i] = sample->in[i];
        bool optional = i >= op->min_in || (op->optional_in >> i & 1);
        in[i].ndim = 0;
        if (!optional && op_takes(op, sample->attrs, in)) test_fail(__FILE__, __LINE__, "%s: works without input %d", op->name, i);
        in[i] = sample->in[i];
    }
}

static void check_text(OpCase *c)
{
    StrBuf first = {0}, second = {0};
    Graph *parsed;
    for (int k = 0; k < c->node->num_out; k++)
        if (c->all_out[k]) graph_add_output(c->graph, c->all_out[k]->name, c->all_out[k]);
    EXPECT_OK(graph_verify(c->graph));
    graph_print(c->graph, &first);
    Status status = graph_parse(&c->arena, "case", first.data, first.len, op_table, OP_COUNT, &parsed);
    if (status != OK) {
        test_fail(__FILE__, __LINE__, "%s\n%s", status_message(), strbuf_cstr(&first));
    } else {
        graph_print(parsed, &second);
        EXPECT_STR(strbuf_cstr(&second), strbuf_cstr(&first));
        size_t size = c->node->op->attrs_size;
        EXPECT(!size || memcmp(parsed->first->attrs, c->node->attrs, size) == 0);
    }
    strbuf_deinit(&first);
    strbuf_deinit(&second);
}

/* ---- kernels ---- */

typedef struct Outputs {
    void *data[NODE_MAX_OUT];
} Outputs;

static Outputs outputs_keep(const OpCase *c)
{
    Outputs o = {{0}};
    for (int k = 0; k < NODE_MAX_OUT; k++) {
        if (!c->out[k].base) continue;
        o.data[k] = malloc(c->out[k].bytes + 1);
        memcpy(o.data[k], c->out[k].data, c->out[k].bytes);
    }
    return o;
}

static void outputs_free(Outputs *o)
{
    for (int k = 0; k < NODE_MAX_OUT; k++) free(o->data[k]);
}

/* Runs again with these options; wanted outputs have the same bits as in `expected`. */
static void check_same_bits(OpCase *c, const CpuKernel *kernel, const Outputs *expected, const RunOptions *run, const char *what)
{
    if (op_case_run(c, kernel, run, what) != OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", what, status_message());
        return;
    }
    for (int k = 0; k < NODE_MAX_OUT; k++)
        if ((c->all & run->want) >> k & 1 && memcmp(expected->data[k], c->out[k].data, c->out[k].bytes) != 0)
            test_fail(__FILE__, __LINE__, "%s (want %x): output %d has other bits; error %.3g", what, run->want & c->all, k,
                      tensor_error(&c->all_out[k]->type, c->out[k].data, &c->all_out[k]->type, expected->data[k], 1e-30));
}

/* What was there plus the plain result, for outputs that add. */
static void check_accumulates(OpCase *c, const CpuKernel *kernel, const Outputs *expected, const char *what)
{
    uint32_t   mask = node_accumulate_mask(c->node) & c->all;
    RunOptions run = {.want = ~0u, .plain = true, .poison = 0xFF};
    if (!mask || op_case_run(c, kernel, &run, what) != OK) return;
    for (int k = 0; k < NODE_MAX_OUT; k++) {
        if (!(mask >> k & 1)) continue;
        const TensorType *type = &c->all_out[k]->type;
        int               acc = 0;
        while (c->node->in[acc] != c->all_out[k]->storage) acc++;
        double worst = 0, largest = 0;
        for (int64_t i = 0; i < type_numel(type); i++) {
            double sum = element(type, c->in[acc].data, i) + element(type, c->out[k].data, i), got = element(type, expected->data[k], i);
            worst = fmax(worst, fabs(sum - got));
            largest = fmax(largest, fabs(sum));
        }
        double limit = type->dtype == DT_F32 ? 1e-5 : 1.0 / 64;
        if (!(worst <= limit * largest))
            test_fail(__FILE__, __LINE__, "%s: output %d isn't what was there plus the result: off by %.3g of %.3g", what, k, worst,
                      largest);
    }
}

/* New versions of state: an op that updates in place always does. */
static uint32_t inplace_outputs(const OpCase *c)
{
    uint32_t mask = 0;
    for (int k = 0; k < c->node->num_out; k++)
        if (c->all_out[k] && c->all_out[k]->storage && !(node_accumulate_mask(c->node) >> k & 1)) mask |= 1u << k;
    return mask;
}

static void check_kernel(OpCase *c, const CpuKernel *kernel, const char *what)
{
    const OpDef *op = c->node->op;
    RunOptions   run = {.want = ~0u, .poison = 0xFF};
    if (op_case_run(c, kernel, &run, what) != OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", what, status_message());
        return;
    }
    Outputs expected = outputs_keep(c);
    run.poison = 0x3C;
    check_same_bits(c, kernel, &expected, &run, what);
    for (int i = 0; i < 2; i++) {
        run.pool = pools[i];
        check_same_bits(c, kernel, &expected, &run, what);
    }
    cpu_avx512_forbid(true);
    check_same_bits(c, kernel, &expected, &run, what);
    cpu_avx512_forbid(false);
    uint32_t always = inplace_outputs(c);
    for (run.want = 1; run.want < c->all; run.want++)
        if ((run.want & c->all) == run.want && (run.want & always) == always) check_same_bits(c, kernel, &expected, &run, what);
    run.want = ~0u;
    for (int i = 0; i < op->num_in; i++) {
        bool shares = c->node->in[i] && c->all_out[0] && type_equal(&c->node->in[i]->type, &c->all_out[0]->type) && !c->all_out[0]->storage;
        run.inplace = op->inplace & 1u << i;
        if (run.inplace && shares) check_same_bits(c, kernel, &expected, &run, what);
    }
    run.inplace = 0;
    check_accumulates(c, kernel, &expected, what);
    outputs_free(&expected);
}

/* Each kernel within the sample's tolerance of the reference. */
static void check_against_reference(OpCase *c, const OpSample *sample, const char *what)
{
    const OpDef     *op = c->node->op;
    const CpuKernel *reference = reference_of(op);
    RunOptions       run = {.want = ~0u, .poison = 0xFF};
    if (reference == &op->cpu[0] || op_case_run(c, reference, &run, what) != OK) return;
    Outputs expected = outputs_keep(c);
    for (const CpuKernel *kernel = op->cpu; kernel != reference; kernel++) {
        if (!kernel_fits(c, kernel) || op_case_run(c, kernel, &run, what) != OK) continue;
        for (int k = 0; k < op->num_out; k++) {
            if (!c->all_out[k]) continue;
            const TensorType *type = &c->all_out[k]->type;
            double            limit = type->dtype == DT_BF16  ? 1.0 / 128
                                      : type->dtype == DT_F16 ? 1.0 / 1024
                                      : type->dtype == DT_I32 ? 0
                                      : sample->tolerance > 0 ? sample->tolerance
                                                              : 1e-5;
            double            error = tensor_error(type, c->out[k].data, type, expected.data[k], 1e-30);
            if (!(error <= limit))
                test_fail(__FILE__, __LINE__, "%s: kernel %s, output %d is off by %.3g of the largest", what, kernel->name, k, error);
        }
    }
    outputs_free(&expected);
}

/* What the op makes codes of has the codes that an op of its own makes. */
static void check_codes(OpCase *c, const CpuKernel *kernel, const char *what)
{
    const OpCodes *codes = &c->node->op->codes;
    const OpDef   *maker = op_codes_maker(c->node);
    RunOptions     run = {.want = ~0u, .poison = 0xFF};
    OpCase         apart;
    TensorType     in[NODE_MAX_IN] = {0};
    if (!maker || !c->all_out[codes->out] || op_case_run(c, kernel, &run, what) != OK) return;
    in[0] = c->all_out[codes->of]->type;
    for (int i = 1; i < maker->num_in; i++)
        if (c->node->in[codes->scale + i - 1]) in[i] = c->node->in[codes->scale + i - 1]->type;
    EXPECT_OK(op_case_make(&apart, maker, (const char *)c->node->attrs + codes->attr, in)); /* its one attribute is the codes' dtype */
    memcpy(apart.in[0].data, c->out[codes->of].data, apart.in[0].bytes);
    for (int i = 1; i < maker->num_in; i++)
        if (in[i].ndim) memcpy(apart.in[i].data, c->in[codes->scale + i - 1].data, apart.in[i].bytes);
    EXPECT_OK(op_case_run(&apart, &maker->cpu[0], &run, what));
    for (int k = 0; k < maker->num_out; k++) {
        const Value *out = c->all_out[codes->out + k];
        if (!out) {
            EXPECT(!apart.all_out[k] || !codes->turns);
            continue;
        }
        EXPECT(type_equal(&apart.all_out[k]->type, &out->type));
        if (memcmp(apart.out[k].data, c->out[codes->out + k].data, apart.out[k].bytes) != 0)
            test_fail(__FILE__, __LINE__, "%s: output %d isn't what %s makes of output %d", what, codes->out + k, maker->name, codes->of);
    }
    op_case_free(&apart);
}

/* bf16 or f16 results against those in f32 of the same numbers. */
static void check_against_f32(OpCase *c, const void *attrs, const char *what)
{
    OpCase           wide;
    TensorType       in[NODE_MAX_IN] = {0};
    const CpuKernel *kernel = &c->node->op->cpu[0];
    RunOptions       run = {.want = ~0u, .poison = 0xFF};
    for (int i = 0; i < c->node->num_in; i++)
        if (c->node->in[i]) in[i] = type_is_float(&c->node->in[i]->type) ? type_as(&c->node->in[i]->type, DT_F32) : c->node->in[i]->type;
    EXPECT_OK(op_case_make(&wide, c->node->op, attrs, in));
    for (int i = 0; i < c->node->num_in; i++) {
        if (!c->node->in[i]) continue;
        if (type_is_float(&in[i]))
            vec_copy_in((float *)(void *)wide.in[i].data, c->in[i].data, c->node->in[i]->type.dtype, type_numel(&in[i]));
        else
            memcpy(wide.in[i].data, c->in[i].data, c->in[i].bytes);
    }
    if (op_case_run(&wide, kernel, &run, what) == OK && op_case_run(c, kernel, &run, what) == OK)
        for (int k = 0; k < c->node->num_out; k++) {
            if (!c->all_out[k] || op_makes_codes(c->node->op, k)) continue;
            double error = tensor_error(&c->all_out[k]->type, c->out[k].data, &wide.all_out[k]->type, wide.out[k].data, 1e-30);
            if (!(error <= (c->all_out[k]->type.dtype == DT_F16 ? 1.0 / 512 : 1.0 / 64)))
                test_fail(__FILE__, __LINE__, "%s: output %d is off by %.3g of the largest from f32", what, k, error);
        }
    op_case_free(&wide);
}

/* ---- some rows at a time ---- */

/* `rows` of the rows that the first dims of an operand make, as so many dims. */
static void cut_type(TensorType *type, int64_t all, int64_t rows)
{
    int64_t first = 1;
    for (int d = 0; d < type->ndim && first < all; d++) {
        first *= type->dim[d];
        type->dim[d] = d ? 1 : rows;
    }
}

/* Rows [begin, end) of the node alone, against those of the last run. */
static void check_part(OpCase *c, const CpuKernel *kernel, const Outputs *expected, int64_t all, int64_t begin, int64_t end,
                       const char *what)
{
    const OpDef *op = c->node->op;
    int64_t      in_row[NODE_MAX_IN] = {0}, out_row[NODE_MAX_OUT] = {0};
    TensorType   in[NODE_MAX_IN] = {0};
    OpCase       part;
    RunOptions   run = {.want = ~0u, .poison = 0xFF};
    EXPECT(op_cut(c->node, all, in_row, out_row));
    for (int i = 0; i < op->num_in; i++) {
        if (!c->node->in[i]) continue;
        in[i] = c->node->in[i]->type;
        if (in_row[i]) cut_type(&in[i], all, end - begin);
    }
    EXPECT_OK(op_case_make(&part, op, c->node->attrs, in));
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim) memcpy(part.in[i].data, c->in[i].data + dtype_bytes(in[i].dtype, begin * in_row[i]), part.in[i].bytes);
    EXPECT_OK(op_case_run(&part, kernel, &run, what));
    for (int k = 0; k < op->num_out; k++) {
        if (!part.all_out[k]) continue;
        const TensorType *type = &part.all_out[k]->type;
        const char       *want = (const char *)expected->data[k] + dtype_bytes(type->dtype, begin * out_row[k]);
        double            limit = !op->cost(c->node).matrix_unit ? 0 : type->dtype == DT_F32 ? 1e-5 : 1.0 / 64;
        double error = memcmp(want, part.out[k].data, part.out[k].bytes) == 0 ? 0 : tensor_error(type, part.out[k].data, type, want, 1e-30);
        if (part.out[k].bytes != (size_t)dtype_bytes(type->dtype, (end - begin) * out_row[k]) || !(error <= limit) ||
            (!limit && memcmp(want, part.out[k].data, part.out[k].bytes) != 0))
            test_fail(__FILE__, __LINE__, "%s: rows %lld to %lld of output %d aren't those of all rows: off by %.3g", what,
                      (long long)begin, (long long)end - 1, k, error);
    }
    op_case_free(&part);
}

static int num_cut; /* samples of the op that can be cut by rows */

/* Two halves of the rows, cut as finely as it can be. */
static void check_rows(OpCase *c, const CpuKernel *kernel, const char *what)
{
    int64_t    in[NODE_MAX_IN], out[NODE_MAX_OUT], rows = 0, first = 1;
    RunOptions run = {.want = ~0u, .poison = 0xFF};
    if (!c->node->op->by_row || op_case_run(c, kernel, &run, what) != OK) return;
    const TensorType *type = &c->all_out[0]->type;
    for (int d = 0; d < type->ndim; d++) {
        first *= type->dim[d];
        if (op_cut(c->node, first, in, out)) rows = first;
    }
    if (rows < 2) return;
    Outputs expected = outputs_keep(c);
    check_part(c, kernel, &expected, rows, 0, rows / 2, what);
    check_part(c, kernel, &expected, rows, rows / 2, rows, what);
    outputs_free(&expected);
    num_cut++;
}

/* ---- samples ---- */

typedef enum Variant { VARIANT_F32, VARIANT_BF16, VARIANT_MIXED, VARIANT_F16, VARIANT_COUNT } Variant;
static const char *const variant_names[] = {"f32", "bf16", "mixed", "f16"};

/* Float inputs in bf16 so far as infer takes them: all, or every other; or all in f16. */
static void variant_types(const OpDef *op, const OpSample *sample, Variant variant, TensorType *in)
{
    if (variant != VARIANT_F32)
        op_round_inputs(op, sample->attrs, variant == VARIANT_F16 ? DT_F16 : DT_BF16, variant == VARIANT_MIXED ? 2 : 1, in);
}

static void run_case(const OpDef *op, const OpSample *sample, const TensorType *in, Variant variant, const char *what)
{
    OpCase c;
    Status status = op_case_make(&c, op, sample->attrs, in);
    if (status == OK && sample->rows_alone) c.node->flags |= NODE_ROWS_ALONE;
    if (status != OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", what, status_message());
        op_case_free(&c);
        return;
    }
    op_case_fill(&c, 7, sample->int_range);
    for (int k = 0; k < c.node->num_in; k++)
        if (c.node->in[k]) op_mask(c.node, k, sample, c.in[k].data);
    OpCost cost = op->cost(c.node);
    if (!(cost.flops >= 0 && cost.bytes >= 0 && cost.flops + cost.bytes > 0) && !(op->flags & OP_VIEW))
        test_fail(__FILE__, __LINE__, "%s: costs nothing", what);
    for (const CpuKernel *kernel = op->cpu; kernel < op->cpu + OP_MAX_KERNELS && kernel->run; kernel++)
        if (kernel_fits(&c, kernel)) check_kernel(&c, kernel, what), check_codes(&c, kernel, what), check_rows(&c, kernel, what);
    if (op->cpu[0].run) check_against_reference(&c, sample, what);
    if (op->cpu[0].run && variant != VARIANT_F32) check_against_f32(&c, sample->attrs, what);
    check_text(&c);
    op_case_free(&c);
}

static void check_sample(const OpDef *op, const OpSample *sample, int index)
{
    for (Variant variant = 0; variant < VARIANT_COUNT; variant++) {
        char       what[128];
        TensorType in[NODE_MAX_IN];
        memcpy(in, sample->in, sizeof in);
        variant_types(op, sample, variant, in);
        if (variant == VARIANT_F16 && !(op_has_dtype(op, in, DT_F16) && op_is_served(op, sample->attrs, in)))
            continue; /* what only training runs has no kernel */
        snprintf(what, sizeof what, "%s sample %d %s", op->name, index, variant_names[variant]);
        run_case(op, sample, in, variant, what);
        if (!op_add_accumulators(op, sample->attrs, in)) continue;
        snprintf(what, sizeof what, "%s sample %d %s, accumulating", op->name, index, variant_names[variant]);
        run_case(op, sample, in, variant, what);
    }
    check_corrupted(op, sample);
}

/* What another op is said to make of the same inputs has the dims that it makes. */
static void check_results(const OpDef *op, const OpSample *sample, int index)
{
    const OpResults *results = &op->results;
    TensorType       in[NODE_MAX_IN] = {0};
    OpCase           c;
    for (int i = 0; i < results->op->num_in; i++) in[i] = sample->in[results->in[i]];
    Status status = op_case_make(&c, results->op, sample->attrs, in);
    if (status != OK) test_fail(__FILE__, __LINE__, "%s sample %d: %s", op->name, index, status_message());
    for (int k = 0; k < results->op->num_out && status == OK; k++)
        if (c.all_out[k] && !type_same_dims(&c.all_out[k]->type, &sample->in[results->out[k]]))
            test_fail(__FILE__, __LINE__, "%s sample %d: input %d isn't what %s makes", op->name, index, results->out[k],
                      results->op->name);
    op_case_free(&c);
}

static void check_op(const OpDef *op, int id)
{
    EXPECT_INT(op->id, id);
    EXPECT(op->synopsis && op->infer && op->cost && op->num_in <= NODE_MAX_IN && op->num_out <= NODE_MAX_OUT && op->min_in <= op->num_in);
    EXPECT(op->cpu[0].run || (op->flags & OP_VIEW));
    EXPECT_STR(op->flags & OP_VIEW ? "reference" : reference_of(op)->name, "reference");
    for (int a = 0; a < op->num_alias; a++) EXPECT(op->alias[a].in < op->num_in && op->alias[a].out < op->num_out);
    Arena     arena = {0};
    OpSamples samples, large;
    EXPECT_OK(op_samples_parse(&arena, op, op->samples, &samples));
    EXPECT_OK(op_samples_parse(&arena, op, op->large, &large));
    if (!samples.count) test_fail(__FILE__, __LINE__, "%s has no samples", op->name);
    num_cut = 0;
    for (int i = 0; i < samples.count; i++) {
        check_sample(op, &samples.items[i], i);
        if (op->results.op) check_results(op, &samples.items[i], i);
    }
    for (int i = 0; i < large.count; i++) {
        Node *node;
        if (op_alone(graph_create(&arena, "case", op_table, OP_COUNT), op, large.items[i].attrs, large.items[i].in, &node) != OK)
            test_fail(__FILE__, __LINE__, "%s large %d: %s", op->name, i, status_message());
    }
    arena_deinit(&arena);
    if (op->by_row && op->cpu[0].run && !num_cut) test_fail(__FILE__, __LINE__, "%s: no sample can be cut by rows", op->name);
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    if (pool_create(2, &pools[0]) != OK || pool_create(4, &pools[1]) != OK) return 1;
    for (int id = 0; id < OP_COUNT; id++) {
        if (argc > 1 && strcmp(argv[1], op_table[id]->name) != 0) continue;
        test_failures_of_case = 0;
        check_op(op_table[id], id);
        if (test_failures_of_case) fprintf(stderr, "FAILED %s\n", op_table[id]->name);
        *(test_failures_of_case ? &failed : &passed) += 1;
    }
    pool_destroy(pools[0]);
    pool_destroy(pools[1]);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, test_skipped_case);
    return failed || !passed;
}
