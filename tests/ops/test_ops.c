/* Every op by its descriptor: what infer accepts and rejects, the text form, and each kernel of the CPU as ops/check.h says, with 2 and 4
 * threads too.
 *
 *   test_ops [op]
 */
#include "ops/check.h"
#include "ops/op_case.h"

static const CpuKernel *reference_of(const OpDef *op)
{
    int k = 0;
    while (k + 1 < OP_MAX_KERNELS && op->cpu[k + 1].run) k++;
    return &op->cpu[k];
}

/* ---- infer and text ---- */

/* Input k has changed dims. If infer accepts them, the kernel must keep to its memory; it may refuse the contents. */
static void run_harmless(const OpDef *op, const OpSample *sample, const TensorType *in, int k)
{
    OpCase c;
    bool   empty = in[k].ndim == 0;
    for (int d = 0; d < in[k].ndim; d++) empty = empty || in[k].dim[d] < 1;
    if (empty) return;
    if (op_case_make(&c, op, sample->attrs, in) == OK) {
        op_case_fill(&c, 1, sample->int_range);
        if (op->cpu[0].run && op_case_run(&c, &op->cpu[0], 1, op->name) != OK) status_clear();
    }
    op_case_free(&c);
}

/* A wrong dtype must be refused, except by views and by ops whose kernel takes i32. Wrong dims are refused, or the kernel runs within
 * bounds. */
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

/* The node's text must parse into the same node. */
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

/* Checks the text of each case of the sample. */
static void check_texts(const OpDef *op, const OpSample *sample, int index)
{
    for (int i = 0; i < OP_TYPES; i++) {
        TensorType  in[NODE_MAX_IN];
        const char *types;
        OpCase      c;
        if (!op_sample_types(op, sample, i, in, &types)) continue;
        if (op_case_make(&c, op, sample->attrs, in) == OK)
            check_text(&c);
        else
            test_fail(__FILE__, __LINE__, "%s sample %d %s: %s", op->name, index, types, status_message());
        op_case_free(&c);
    }
}

/* ---- ops ---- */

static void take_outcome(void *context, const OpOutcome *o)
{
    int *count = context;
    ++*count;
    if (!o->faults) return;
    test_fail(__FILE__, __LINE__, "%s, kernel %s, %s %d, %s: %s", o->op, o->kernel ? o->kernel : "-", o->sample, o->index, o->types,
              o->faults);
}

static void check_op(const OpDef *op, int id, const OpChecks *checks)
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
    if (op->cpu[0].run) EXPECT_OK(op_check(checks, op));
    for (int i = 0; i < samples.count; i++) {
        check_texts(op, &samples.items[i], i);
        check_corrupted(op, &samples.items[i]);
    }
    for (int i = 0; i < large.count; i++) {
        Node *node;
        if (op_alone(graph_create(&arena, "case", op_table, OP_COUNT), op, large.items[i].attrs, large.items[i].in, &node) != OK)
            test_fail(__FILE__, __LINE__, "%s large %d: %s", op->name, i, status_message());
    }
    arena_deinit(&arena);
}

int main(int argc, char **argv)
{
    int      passed = 0, failed = 0, cases = 0;
    OpChecks checks = {.report = take_outcome, .context = &cases};
    if (device_cpu_create(1, &checks.cpu) != OK) return 1;
    checks.device = checks.cpu;
    for (int i = 0; i < 2; i++)
        if (device_cpu_create(2 << i, &checks.same[i]) != OK) return 1;
    for (int id = 0; id < OP_COUNT; id++) {
        if (argc > 1 && strcmp(argv[1], op_table[id]->name) != 0) continue;
        test_failures_of_case = 0;
        check_op(op_table[id], id, &checks);
        if (test_failures_of_case) fprintf(stderr, "FAILED %s\n", op_table[id]->name);
        *(test_failures_of_case ? &failed : &passed) += 1;
    }
    for (int i = 0; i < 2; i++) checks.same[i]->api->destroy(checks.same[i]);
    checks.cpu->api->destroy(checks.cpu);
    printf("%d cases\n%d passed, %d failed, %d skipped\n", cases, passed, failed, test_skipped_case);
    return failed || !passed;
}
