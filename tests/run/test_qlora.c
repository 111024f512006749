/* A quantised base gives the same bits as a model whose weights were quantised and dequantised beforehand: losses, logits and the adapters'
 * gradients, fused or not, recomputed or not, with any number of threads. No other copy of those weights is kept. */
#include "base/philox.h"
#include "family.h"
#include "ops/op_case.h"

typedef struct Case {
    DType               dtype;
    const WeightFormat *format; /* NULL: the reference, with dequantised weights */
    uint32_t            recompute, no_fuse;
    int                 threads;
} Case;

static const char *const all_linear[] = {"all-linear"};

/* Replaces a weight's values by its quantised and dequantised ones. */
static void make_again(const WeightFormat *format, const TensorType *type, float *values)
{
    TensorType      in[NODE_MAX_IN] = {*type}, types[NODE_MAX_IN] = {0};
    DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(DT_F32)};
    OpCase          q, d;
    in[0].dtype = DT_F32;
    EXPECT_OK(op_case_make(&q, format->quantise, format->attrs, in));
    memcpy(q.in[0].data, values, q.in[0].bytes);
    EXPECT_OK(op_case_run(&q, &format->quantise->cpu[0], 1, format->name));
    for (int k = 0; k < format->num_parts; k++) types[k] = q.all_out[k]->type;
    EXPECT_OK(op_case_make(&d, format->dequantise, &attrs, types));
    for (int k = 0; k < format->num_parts; k++) memcpy(d.in[k].data, q.out[k].data, d.in[k].bytes);
    EXPECT_OK(op_case_run(&d, &format->dequantise->cpu[0], 1, format->name));
    memcpy(values, d.out[0].data, d.out[0].bytes);
    op_case_free(&q);
    op_case_free(&d);
}

/* Every weight's values depend on its name; magnitudes differ from row to row. */
typedef struct Source {
    const WeightFormat *again; /* NULL: unchanged */
    float              *whole; /* whole weight of the parameter being read */
} Source;

static Status begin(void *context, const Param *param)
{
    Source  *source = context;
    int64_t  n = type_numel(&param->type), cols = type_cols(&param->type);
    uint32_t key = 0;
    source->whole = realloc(source->whole, (size_t)n * sizeof(float));
    for (const char *p = param->name; *p; p++) key = key * 31 + (unsigned char)*p;
    for (int64_t k = 0; k < n; k++)
        source->whole[k] = (philox_uniform(philox4x32((uint32_t)k, key, 0, 0, 1).v[0]) - 0.5f) * 0.2f * (float)(1 + k / cols % 4);
    if (source->again && weight_is_quantised(param)) make_again(source->again, &param->type, source->whole);
    return OK;
}

static Status values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    const Source *source = context;
    (void)param;
    memcpy(out, source->whole + first, (size_t)count * sizeof(float));
    return OK;
}

static void open_case(Family *f, const char *family, const Case *c, const WeightFormat *again)
{
    CompileOptions options = compile_defaults();
    compile_add_training(&options, 1, FAMILY_T);
    compile_add(&options, &entry_eval, FAMILY_B, FAMILY_T);
    compile_add(&options, &entry_prefill, 1, 8);
    options.cache_len = 32;
    options.model_dtype = c->dtype;
    options.recompute = c->recompute;
    options.no_fuse = c->no_fuse;
    options.weight_format = c->format;
    options.train_base = false;
    options.master_weights = c->dtype == DT_BF16;
    options.lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .targets = all_linear, .num_targets = 1};
    family_open(f, family, "config.json", &options, c->threads);
    Source     source = {.again = c->format ? NULL : again};
    LoadSource load = {.context = &source, .begin = begin, .values = values};
    EXPECT_OK(session_load(f->session, false, &load));
    EXPECT_OK(session_load(f->session, true, &load));
    free(source.whole);
}

typedef struct Results {
    float   losses[FAMILY_TOKENS], loss, logits[FAMILY_V];
    uint8_t gradients[1 << 19];
    size_t  gradient_bytes;
} Results;

static void run_case(Family *f, Results *out)
{
    const int32_t *ids = fixture_ints(f, "plain.ids"), *labels = ids;
    int32_t        positions[FAMILY_TOKENS], doc_start[FAMILY_TOKENS] = {0}, row = 5;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < FAMILY_TOKENS; i++) positions[i] = i % FAMILY_T;
    family_batch(f, ids, labels, positions, doc_start, 0, FAMILY_B, 1.0f / FAMILY_TOKENS, 0);
    EXPECT_OK(session_run(f->session, plan_program(f->plan, &entry_eval)));
    EXPECT_OK(session_output(f->session, plan_program(f->plan, &entry_eval), "losses", out->losses, sizeof out->losses));
    for (int first = 0; first < FAMILY_B; first++) {
        const Program *micro = plan_micro(f->plan, first > 0, 3);
        family_batch(f, ids, labels, positions, doc_start, first, 1, 1.0f / FAMILY_TOKENS, 0);
        EXPECT_OK(session_run(f->session, micro));
        EXPECT_OK(session_output(f->session, micro, "loss", &out->loss, sizeof out->loss));
    }
    for (int i = 0; i < f->plan->num_buckets; i++) {
        const PlanEntry *grads = plan_find(f->plan, f->plan->buckets[i].grads);
        EXPECT(out->gradient_bytes + (size_t)grads->place.bytes <= sizeof out->gradients);
        EXPECT_OK(session_read(f->session, grads->name, out->gradients + out->gradient_bytes, (size_t)grads->place.bytes));
        out->gradient_bytes += (size_t)grads->place.bytes;
    }
    EXPECT_OK(session_write(f->session, "row", &row, sizeof row));
    EXPECT_OK(session_run(f->session, plan_program(f->plan, &entry_prefill)));
    EXPECT_OK(session_output(f->session, plan_program(f->plan, &entry_prefill), "logits", out->logits, sizeof out->logits));
}

/* No copy of a quantised weight in another dtype lasts; the graph has only copies made at use. */
static void check_kept(const Family *f, const WeightFormat *format)
{
    for (int i = 0; i < f->plan->num_params; i++) {
        const Param *param = f->plan->params[i];
        bool         matrix = param->layer >= 0 && !param->is_adapter && param->type.ndim == 2;
        EXPECT(matrix == (param->format != NULL));
        EXPECT(!plan_find(f->plan, param->name) == (param->format != NULL));
    }
    for (int p = 0; p < f->plan->num_programs; p++)
        for (const Node *node = f->plan->programs[p].graph->first; node; node = node->next)
            EXPECT((node->op == format->dequantise) == ((node->flags & NODE_AT_USE) != 0));
}

/* A product with int8 codes multiplies sums by the scales, but a dequantised weight contains the scales. The two round differently, and in
 * bf16 the weight is rounded once more. Training dequantises the weight. */
static bool is_near(const Case *c, const float *got, const float *want, int64_t count)
{
    double error = 0, most = 0, limit = c->dtype == DT_BF16 ? 0x1p-5 : 1e-5;
    if (c->format->product != &op_int8_linear) return memcmp(got, want, (size_t)count * sizeof *got) == 0;
    for (int64_t i = 0; i < count; i++) {
        error = fmax(error, fabs((double)got[i] - (double)want[i]));
        most = fmax(most, fabs((double)want[i]));
    }
    return error <= limit * most;
}

static void compare(const char *family, const Case *c)
{
    static Results got, want;
    Family         quantised, plain;
    Case           reference = *c;
    reference.format = NULL;
    reference.threads = 2;
    open_case(&quantised, family, c, NULL);
    open_case(&plain, family, &reference, c->format);
    check_kept(&quantised, c->format);
    run_case(&quantised, &got);
    run_case(&plain, &want);
    EXPECT(got.loss > 1 && got.loss < 10);
    EXPECT_INT(got.gradient_bytes, want.gradient_bytes);
    bool same[] = {is_near(c, got.losses, want.losses, FAMILY_TOKENS), got.loss == want.loss, is_near(c, got.logits, want.logits, FAMILY_V),
                   memcmp(got.gradients, want.gradients, got.gradient_bytes) == 0};
    if (!same[0] || !same[1] || !same[2] || !same[3])
        test_fail(__FILE__, __LINE__, "%s in %s of %s, recompute %x, no_fuse %x: losses %d, loss %d, logits %d, gradients %d", family,
                  c->format->name, dtype_info(c->dtype)->name, c->recompute, c->no_fuse, same[0], same[1], same[2], same[3]);
    family_close(&quantised);
    family_close(&plain);
}

/* A fixture whose matrices suit every format: rows are whole blocks of 16. One of its packed matrices has members with fewer rows than a
 * tile. */
#define QLORA "../qlora"

static void each_format(const char *family, DType dtype)
{
    const WeightFormat *format;
    for (int i = 0; (format = weight_format_at(i)); i++) {
        if (format->quantise == &op_nvfp4_quantise && strcmp(family, QLORA) != 0) continue;
        compare(family, &(Case){dtype, format, 0, 0, 1});
        compare(family, &(Case){dtype, format, 1u << PART_BLOCK, 0, 3});
        compare(family, &(Case){dtype, format, 1u << PART_FFN | 1u << PART_QKV, 0, 2});
        compare(family, &(Case){dtype, format, 0, (1u << FUSION_COUNT) - 1, 2});
    }
}

static void a_quantised_base_computes_as_its_weights_made_again(void)
{
    each_format(QLORA, DT_F32);
    for (int i = 0; i < NUM_FAMILIES; i++) each_format(family_names[i], DT_F32);
}

static void in_bf16_too(void)
{
    each_format(QLORA, DT_BF16);
    for (int i = 0; i < NUM_FAMILIES; i++) each_format(family_names[i], DT_BF16);
}

/* Recomputing gives the same bits. */
static void recomputation_changes_no_bit(void)
{
    static Results one, other;
    Family         f;
    open_case(&f, "qwen3", &(Case){DT_F32, weight_format_at(0), 0, 0, 1}, NULL);
    run_case(&f, &one);
    family_close(&f);
    open_case(&f, "qwen3", &(Case){DT_F32, weight_format_at(0), ~0u, 0, 4}, NULL);
    run_case(&f, &other);
    family_close(&f);
    EXPECT(memcmp(one.losses, other.losses, sizeof one.losses) == 0);
    EXPECT(memcmp(one.gradients, other.gradients, sizeof one.gradients) == 0);
}

/* ---- against transformers and PEFT over bitsandbytes' base (tests/oracle/make_qlora.py) ---- */

static Status fixture_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    const StTensor *tensor = family_tensor(context, param);
    FAIL_IF(!tensor, ERR_NOT_FOUND, "%s isn't in the fixture", param->name);
    return st_to_f32(tensor, first, count, out);
}

static void check_losses(Family *f, const char *name)
{
    const int32_t *ids = fixture_ints(f, "plain.ids");
    int32_t        labels[FAMILY_TOKENS], positions[FAMILY_TOKENS], doc_start[FAMILY_TOKENS] = {0};
    float          got[FAMILY_TOKENS], *want = fixture_floats(f, name, NULL);
    for (int i = 0; i < FAMILY_TOKENS; i++) {
        positions[i] = i % FAMILY_T;
        labels[i] = positions[i] + 1 < FAMILY_T ? ids[i + 1] : IGNORE_INDEX;
    }
    family_batch(f, ids, labels, positions, doc_start, 0, FAMILY_B, 1.0f / (FAMILY_B * (FAMILY_T - 1)), 0);
    EXPECT_OK(session_run(f->session, plan_program(f->plan, &entry_eval)));
    EXPECT_OK(session_output(f->session, plan_program(f->plan, &entry_eval), "losses", got, sizeof got));
    for (int b = 0; b < FAMILY_B; b++) {
        double error = max_error(got + b * FAMILY_T, want + b * (FAMILY_T - 1), FAMILY_T - 1);
        if (!(error <= 1e-5)) test_fail(__FILE__, __LINE__, "%s: error %.3g", name, error);
    }
}

static void check_oracle(const WeightFormat *format, bool adapted, const char *losses)
{
    Family         f;
    Arena          arena = {0};
    CompileOptions options = compile_defaults();
    LoadSource     load = {.context = &f, .values = fixture_values};
    compile_add(&options, &entry_eval, FAMILY_B, FAMILY_T);
    if (adapted) compile_add_micro(&options, 0, 2, FAMILY_B, FAMILY_T);
    options.train_base = false;
    options.weight_format = format;
    if (adapted) use_adapter(QLORA, &options, &arena);
    family_open(&f, QLORA, "config.json", &options, 2);
    EXPECT_OK(session_load(f.session, false, &load));
    EXPECT_OK(session_load(f.session, true, &load));
    check_losses(&f, losses);
    if (adapted) EXPECT_OK(session_run(f.session, plan_micro(f.plan, 0, 2)));
    EXPECT_INT(f.plan->num_trained, adapted ? 28 : 0);
    for (int i = 0; i < f.plan->num_trained; i++) {
        const Param *param = f.plan->trained_params[i];
        int64_t      n;
        float       *want = fixture_floats(&f, arena_printf(&arena, "grad.base_model.model.%s", param->hf.names[0]), &n);
        float       *got = arena_array(&arena, float, n);
        EXPECT_OK(session_read(f.session, arena_printf(&arena, "grad.%s", param->name), got, (size_t)n * sizeof *got));
        double error = l2_error(got, want, n);
        if (!(error <= 1e-5)) test_fail(__FILE__, __LINE__, "gradient of %s: error %.3g", param->name, error);
    }
    family_close(&f);
    arena_deinit(&arena);
}

static void nf4_is_that_of_transformers_and_peft(void)
{
    check_oracle(NULL, false, "plain.losses");
    check_oracle(weight_format_find("nf4"), false, "nf4.losses");
    check_oracle(weight_format_find("nf4"), true, "adapted.losses");
}

TEST_MAIN(TEST(nf4_is_that_of_transformers_and_peft), TEST(a_quantised_base_computes_as_its_weights_made_again), TEST(in_bf16_too),
          TEST(recomputation_changes_no_bit))
