/* Lower limits of a step's time: what its rows require, and how a step that is faster than its limit is reported. */
#include "measure/step_limit.h"

#include "test.h"

enum { SEQ = 8, ROWS = 2 };

static Feeds batch_of(const int32_t *doc_start, const int32_t *doc_id, int64_t tokens, int64_t trained)
{
    return (Feeds){.doc_start = (int32_t *)doc_start, .doc_id = (int32_t *)doc_id, .num_tokens = tokens, .num_trained = trained};
}

static void documents_and_padding_ask_for_less(void)
{
    /* One row is a single document; the other has documents of 3 and 2 tokens, then padding. */
    static const int32_t doc_start[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 5, 6, 7};
    static const int32_t doc_id[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, -1, -1, -1};
    Feeds                batch = batch_of(doc_start, doc_id, 13, 6);
    StepWork             work = {0};
    step_work_add(&work, &batch, ROWS, SEQ);
    EXPECT_INT(work.tokens, 13);
    EXPECT_INT(work.trained, 6);
    EXPECT_NEAR(work.pairs, 36 + 6 + 3, 0);
    StepLimit limit = {.flops_rate = 1000,
                       .cells = 16,
                       .pairs = 72,
                       .num_programs = 1,
                       .program[0] = {.flops = 100, .document_flops = 720, .label_flops = 160, .times = 1}};
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 10), (100 + 450 + 60) / 1000.0, 1e-12);
    limit.program[limit.num_programs++] = (ProgramWork){.flops = 1, .bytes = 500, .times = 1};
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 10), 0.611, 1e-12);
    limit.byte_rate = 1000; /* as on a GPU: memory traffic limits the optimizer */
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 10), 0.610 + 0.5, 1e-12);
}

static void a_step_that_beats_a_measurement_is_a_better_one(void)
{
    StepWork  work = {.tokens = 16, .trained = 16, .pairs = 72};
    StepLimit limit = {
        .is_measured = true, .flops_rate = 1000, .cells = 16, .pairs = 72, .num_programs = 1, .program[0] = {.flops = 1000, .times = 1}};
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 2), 1, 1e-12);
    EXPECT(!limit.is_beaten);
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 0.5), 0.5, 1e-12);
    EXPECT(limit.is_beaten);
    EXPECT_NEAR(limit.flops_rate, 2000, 1e-9);
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 2), 0.5, 1e-12);
}

static void an_unknown_rate_has_no_limit(void)
{
    StepWork  work = {.tokens = 16, .trained = 16, .pairs = 72};
    StepLimit limit = {.cells = 16, .pairs = 72, .num_programs = 1, .program[0] = {.flops = 1000, .times = 1}};
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 1), 0, 0);
}

static OpCost thousand(const Node *node)
{
    (void)node;
    return (OpCost){.flops = 1000, .bytes = 10, .matrix_unit = true};
}

static void a_launch_over_packed_documents_has_a_lower_limit(void)
{
    OpDef       attention = {.name = "attention", .flags = OP_BY_DOCUMENT, .cost = thousand}, linear = {.name = "linear", .cost = thousand};
    Node        nodes[] = {{.op = &attention}, {.op = &linear}};
    DeviceFacts facts = {.gemm_flops = {[DT_F32] = 1000}, .bandwidth = 100, .launch_seconds = 0.5};
    EXPECT_NEAR(launch_limit_seconds(&facts, &(Launch){.node = &nodes[0]}, 1), 1.5, 1e-12);
    EXPECT_NEAR(launch_limit_seconds(&facts, &(Launch){.node = &nodes[0]}, 0.25), 0.75, 1e-12);
    EXPECT_NEAR(launch_limit_seconds(&facts, &(Launch){.node = &nodes[0]}, 0.01), 0.6, 1e-12); /* the limit by traffic is unchanged */
    EXPECT_NEAR(launch_limit_seconds(&facts, &(Launch){.node = &nodes[1]}, 0.25), 1.5, 1e-12);
}

/* A product of e4m3 operands that adds to an fp32 gradient larger than its operands, and a bf16 product of the same size. */
static void products_of_fewer_bits_have_a_lower_limit(void)
{
    OpDef     linear = {.name = "linear", .cost = thousand, .alias = {{.out = 0, .in = 2, .accumulate = true}}, .num_alias = 1};
    Value     codes = {.type = {DT_E4M3, 2, {5, 5}}}, bf16 = {.type = {DT_BF16, 2, {5, 5}}}, sum = {.type = {DT_F32, 2, {9, 9}}};
    Value    *of_8_bits[] = {&codes, &codes, &sum}, *of_16_bits[] = {&bf16, &bf16};
    Node      nodes[] = {{.op = &linear, .num_in = 3, .in = of_8_bits}, {.op = &linear, .num_in = 2, .in = of_16_bits}};
    Launch    launches[] = {{.node = &nodes[0]}, {.node = &nodes[1]}};
    Program   program = {.spec = {.entry = &entry_micro, .batch = 1, .seq = 8}, .launches = launches, .num_launches = 2};
    Plan      plan = {.world = 1,
                      .programs = &program,
                      .num_programs = 1,
                      .facts = {.gemm_flops = {[DT_F32] = 100, [DT_BF16] = 1000, [DT_E4M3] = 2000}, .bandwidth = 1000}};
    StepWork  work = {.tokens = 8, .trained = 8, .pairs = 36};
    StepLimit limit;
    EXPECT_NEAR(launch_limit_seconds(&plan.facts, &launches[0], 1), 0.5, 1e-12);
    EXPECT_NEAR(launch_limit_seconds(&plan.facts, &launches[1], 1), 1, 1e-12);
    step_limit_init(&limit, NULL, &plan, DT_BF16, 1);
    EXPECT_NEAR(step_limit_seconds(&limit, &work, 10), 1.5, 1e-12);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(documents_and_padding_ask_for_less), TEST(a_step_that_beats_a_measurement_is_a_better_one),
                                     TEST(an_unknown_rate_has_no_limit), TEST(a_launch_over_packed_documents_has_a_lower_limit),
                                     TEST(products_of_fewer_bits_have_a_lower_limit)};
    return test_run(cases, sizeof cases / sizeof cases[0], argc, argv);
}
