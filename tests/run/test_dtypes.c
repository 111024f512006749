/* Gradients, weights and adapters with mixed dtypes: sums of gradients over many micro-steps, fp32 norms in a bf16 model, fp32 adapters
 * over a bf16 base. */
#include "base/philox.h"
#include "family.h"

static CompileOptions bf16_options(void)
{
    CompileOptions options = compile_defaults();
    compile_add_training(&options, 1, FAMILY_T);
    options.adamw_beta2 = 0.95;
    options.weight_decay = 0.1;
    options.max_grad_norm = 1.0;
    options.model_dtype = DT_BF16;
    return options;
}

static void use_lora(CompileOptions *options)
{
    static const char *const all[] = {"all-linear"};
    options->lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .targets = all, .num_targets = 1};
    options->train_base = false;
}

/* Runs micro-step `step`: one of the four rows of the fixture's `plain` and `packed` batches, its loss scaled by a factor that depends on
 * the step. */
static void run_micro_step(Family *f, int step, const Program *program)
{
    static const char *const what[2][4] = {{"plain.ids", "plain.labels", "plain.position_ids", "plain.doc_start"},
                                           {"packed.ids", "packed.labels", "packed.position_ids", "packed.doc_start"}};
    const int32_t           *data[4];
    float                    scale = 0.5f + philox_uniform(philox4x32((uint32_t)step, 0, 0, 0, 1).v[0]);
    for (int i = 0; i < 4; i++) data[i] = fixture_ints(f, what[step / 2 % 2][i]);
    family_batch(f, data[0], data[1], data[2], data[3], step % 2, 1, scale / 1024, 0);
    EXPECT_OK(session_run(f->session, program));
}

/* Adds all gradients to `sum`, parameters in the plan's order. */
static void add_gradients(Family *f, double *sum)
{
    for (int i = 0; i < f->plan->num_trained; i++) {
        char name[256];
        snprintf(name, sizeof name, "grad.%s", f->plan->trained_params[i]->name);
        const PlanEntry *entry = plan_find(f->plan, name);
        int64_t          numel = type_numel(&entry->type);
        char            *stored = malloc((size_t)entry->place.bytes);
        float           *values = malloc((size_t)numel * sizeof *values);
        EXPECT_OK(session_read(f->session, name, stored, (size_t)entry->place.bytes));
        dtype_convert(values, DT_F32, stored, entry->type.dtype, numel);
        for (int64_t k = 0; k < numel; k++) sum[k] += (double)values[k];
        sum += numel;
        free(stored);
        free(values);
    }
}

/* Each weight's values depend on its index in the list of parameters. */
static void fill_weights(Family *f)
{
    for (int i = 0; i < f->plan->num_params; i++) {
        const Param *param = f->plan->params[i];
        int64_t      numel = type_numel(&param->type);
        uint16_t    *values = arena_array(&f->arena, uint16_t, numel);
        for (int64_t k = 0; k < numel; k++) values[k] = bf16_from_f32(0.3f * sinf((float)(k * 7 + i)));
        EXPECT_OK(session_write(f->session, param->name, values, (size_t)numel * 2));
    }
}

/* |gradients added up over `steps` micro-steps - fp64 sum of their gradients| / |fp64 sum|. Each micro-step's gradient is first measured
 * alone; it doesn't depend on the sum so far. */
static double sum_error(const char *family, bool lora, bool fp32_grads, int steps)
{
    CompileOptions options = bf16_options();
    Family         f;
    double         error = 0, scale = 0;
    options.fp32_grads = fp32_grads;
    if (lora) use_lora(&options);
    family_open(&f, family, "config.json", &options, 1);
    if (lora)
        fill_weights(&f);
    else
        family_load(&f);
    int64_t n = f.plan->trained_numel;
    double *exact = calloc((size_t)n, sizeof *exact), *kept = calloc((size_t)n, sizeof *kept);
    for (int step = 0; step < steps; step++) {
        run_micro_step(&f, step, plan_micro(f.plan, 0, 2));
        add_gradients(&f, exact);
    }
    for (int step = 0; step < steps; step++) run_micro_step(&f, step, plan_micro(f.plan, step > 0, 3));
    add_gradients(&f, kept);
    for (int64_t i = 0; i < n; i++) {
        error += (kept[i] - exact[i]) * (kept[i] - exact[i]);
        scale += exact[i] * exact[i];
    }
    free(exact);
    free(kept);
    family_close(&f);
    return sqrt(error / scale);
}

static void fp32_sums_keep_what_bf16_sums_lose(void)
{
    static const char *const families[] = {"llama", "qwen3", "qwen2"};
    for (int i = 0; i < 3; i++)
        for (int lora = 0; lora < 2; lora++) {
            double narrow = sum_error(families[i], lora, false, 1024), wide = sum_error(families[i], lora, true, 1024);
            if (!(wide <= 1e-6)) test_fail(__FILE__, __LINE__, "%s: fp32 sums are off by %.3g", families[i], wide);
            if (!(narrow > 1e-2)) test_fail(__FILE__, __LINE__, "%s: bf16 sums are off by %.3g alone", families[i], narrow);
        }
}

/* Makes ten steps, whose losses must be near the fixture's fp64 losses; *norm: gradient norm of the last step. */
static void check_steps(Family *f, const char *losses_name, double *norm)
{
    float *losses = fixture_floats(f, losses_name, NULL);
    for (int step = 0; step < 10; step++) {
        double loss = step_once(f, step, norm);
        if (!(fabs(loss - (double)losses[step]) <= 0.01 * (double)losses[step]))
            test_fail(__FILE__, __LINE__, "%s step %d: loss %.7g, expected %.7g", f->dir, step, loss, (double)losses[step]);
    }
}

static DType dtype_of(const Family *f, const char *prefix, const Param *param)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", prefix, param->name);
    return plan_find(f->plan, name)->type.dtype;
}

/* Whether norm weights are around 1: only those are found by "norm_dtype". */
static bool has_plain_norms(const char *family)
{
    return strcmp(family, "gpt2") != 0 && strncmp(family, "gemma", 5) != 0;
}

static void fp32_norms_train_beside_bf16_matrices(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) {
        CompileOptions options = bf16_options();
        Family         f;
        double         norm, squares = 0;
        if (!has_plain_norms(family_names[i])) continue;
        family_open_mixed(&f, family_names[i], "config.json", &options, 2, "f32");
        family_load(&f);
        EXPECT_INT(f.plan->num_buckets, 2);
        int norms = 0, moved = 0;
        for (int k = 0; k < f.plan->num_trained; k++) {
            const Param *param = f.plan->trained_params[k];
            DType        want = param->init == INIT_ONES ? DT_F32 : DT_BF16;
            EXPECT_INT(dtype_of(&f, "", param), want);
            EXPECT_INT(dtype_of(&f, "grad.", param), want);
            norms += param->init == INIT_ONES;
        }
        check_steps(&f, "steps.loss", &norm);
        double *grads = calloc((size_t)f.plan->trained_numel, sizeof *grads);
        add_gradients(&f, grads);
        for (int64_t k = 0; k < f.plan->trained_numel; k++) squares += grads[k] * grads[k];
        EXPECT_NEAR(norm, sqrt(squares), 1e-5 * norm);
        free(grads);
        for (int k = 0; k < f.plan->num_trained; k++) { /* sets values that bf16 can't represent */
            const Param *param = f.plan->trained_params[k];
            float        weights[64];
            if (param->init != INIT_ONES) continue;
            EXPECT_OK(session_read(f.session, param->name, weights, (size_t)type_bytes(&param->type)));
            moved += weights[0] != bf16_to_f32(bf16_from_f32(weights[0]));
        }
        EXPECT(norms > 4 && moved == norms);
        family_close(&f);
    }
}

/* As PEFT under autocast: master weights, gradients and moments in fp32, products in bf16. */
static void fp32_adapters_train_over_a_bf16_base(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) {
        CompileOptions options = bf16_options();
        Arena          arena = {0};
        Family         f;
        double         norm;
        int64_t        at;
        use_adapter(family_names[i], &options, &arena);
        options.master_weights = options.fp32_grads = true;
        family_open(&f, family_names[i], "config.json", &options, 2);
        family_load(&f);
        check_steps(&f, "lora.steps.loss", &norm);
        for (int k = 0; k < f.plan->num_trained; k++) {
            const Param     *param = f.plan->trained_params[k];
            int64_t          n = type_numel(&param->type), off = 0;
            const PlanEntry *master = plan_master(f.plan, param, &at);
            EXPECT_INT(dtype_of(&f, "", param), DT_BF16);
            EXPECT_INT(dtype_of(&f, "grad.", param), DT_F32);
            EXPECT(master && master->type.dtype == DT_F32);
            float    *wide = arena_array(&arena, float, n);
            uint16_t *copy = arena_array(&arena, uint16_t, n);
            EXPECT_OK(session_read_range(f.session, master->name, (size_t)at * 4, wide, (size_t)n * 4));
            EXPECT_OK(session_read(f.session, param->name, copy, (size_t)n * 2));
            for (int64_t e = 0; e < n; e++) off += copy[e] != bf16_from_f32(wide[e]);
            EXPECT_INT(off, 0);
        }
        family_close(&f);
        arena_deinit(&arena);
    }
}

/* Squared distances from the fp64 result, for ours and for PEFT's. */
typedef struct Distances {
    double ours, pefts;
} Distances;

/* Adds the distances of `n` values of ours; the file has FAMILY.truth.NAME and FAMILY.peft.NAME. */
static void add_distances(Distances *sum, Arena *arena, const StFile *file, const char *family, const char *name, const float *ours,
                          int64_t n)
{
    const StTensor *found[2] = {st_find(file, arena_printf(arena, "%s.truth.%s", family, name)),
                                st_find(file, arena_printf(arena, "%s.peft.%s", family, name))};
    if (!found[0] || !found[1] || found[0]->numel != n || found[1]->numel != n) {
        test_fail(__FILE__, __LINE__, "mixed_types.safetensors: no %s of %s", name, family);
        return;
    }
    const float *truth = found[0]->data, *peft = found[1]->data;
    for (int64_t i = 0; i < n; i++) {
        sum->ours += ((double)ours[i] - (double)truth[i]) * ((double)ours[i] - (double)truth[i]);
        sum->pefts += ((double)peft[i] - (double)truth[i]) * ((double)peft[i] - (double)truth[i]);
    }
}

/* We and PEFT round the same values to bf16, by at most 2^-8, but add them in different orders. */
static void expect_as_near(const char *family, const char *what, Distances d)
{
    double most = 1.5;
    if (!(d.ours <= most * most * d.pefts))
        test_fail(__FILE__, __LINE__, "%s: %s are off by %.3g, PEFT's by %.3g", family, what, sqrt(d.ours), sqrt(d.pefts));
}

/* Checks the packed batch. */
static void check_batch(Family *f, const char *family, const StFile *file, Distances *losses)
{
    static const char *const what[] = {"packed.ids", "packed.labels", "packed.position_ids", "packed.doc_start"};
    const int32_t           *data[4];
    Distances                grads = {0};
    float                    loss;
    for (int i = 0; i < 4; i++) data[i] = fixture_ints(f, what[i]);
    family_batch(f, data[0], data[1], data[2], data[3], 0, FAMILY_B, 1.0f / (float)count_labels(data[1], FAMILY_TOKENS), 0);
    EXPECT_OK(session_run(f->session, plan_micro(f->plan, 0, 2)));
    EXPECT_OK(session_output(f->session, plan_micro(f->plan, 0, 2), "loss", &loss, sizeof loss));
    add_distances(losses, &f->arena, file, family, "loss", &loss, 1);
    for (int k = 0; k < f->plan->num_trained; k++) {
        const Param *param = f->plan->trained_params[k];
        int64_t      n = type_numel(&param->type);
        float       *grad = arena_array(&f->arena, float, n);
        EXPECT_OK(session_read(f->session, arena_printf(&f->arena, "grad.%s", param->name), grad, (size_t)n * sizeof *grad));
        add_distances(&grads, &f->arena, file, family, arena_printf(&f->arena, "grad.base_model.model.%s", param->hf.names[0]), grad, n);
    }
    expect_as_near(family, "gradients", grads);
}

/* The dtypes of PEFT's setup, compared with fp64 from the same bf16 base: our result is no further from fp64 than PEFT's.
 * tests/oracle/make_mixed_types.py wrote both. */
static void fp32_adapters_are_as_true_as_pefts(void)
{
    enum { NUM_STEPS = 5 };
    static const char *const families[] = {"llama", "qwen3"};
    StFile                  *file;
    EXPECT_OK(st_open("tests/fixtures/mixed_types.safetensors", &file));
    for (int i = 0; i < 2; i++) {
        CompileOptions options = bf16_options();
        Arena          arena = {0};
        Family         f;
        Distances      losses = {0}, adapters = {0};
        float          loss[NUM_STEPS];
        double         norm;
        int64_t        at;
        use_adapter(families[i], &options, &arena);
        options.num_programs = 0;
        compile_add_training(&options, FAMILY_B, FAMILY_T);
        options.master_weights = options.fp32_grads = true;
        family_open(&f, families[i], "config.json", &options, 2);
        family_load(&f);
        check_batch(&f, families[i], file, &losses);
        for (int step = 0; step < NUM_STEPS; step++) loss[step] = (float)step_once(&f, step, &norm);
        add_distances(&losses, &arena, file, families[i], "steps.loss", loss, NUM_STEPS);
        expect_as_near(families[i], "losses", losses);
        for (int k = 0; k < f.plan->num_trained; k++) {
            const Param     *param = f.plan->trained_params[k];
            int64_t          n = type_numel(&param->type);
            float           *values = arena_array(&arena, float, n);
            const PlanEntry *master = plan_master(f.plan, param, &at);
            EXPECT_OK(session_read_range(f.session, master->name, (size_t)at * 4, values, (size_t)n * 4));
            add_distances(&adapters, &arena, file, families[i], arena_printf(&arena, "after.base_model.model.%s", param->hf.names[0]),
                          values, n);
        }
        expect_as_near(families[i], "adapters", adapters);
        family_close(&f);
        arena_deinit(&arena);
    }
    st_close(file);
}

TEST_MAIN(TEST(fp32_sums_keep_what_bf16_sums_lose), TEST(fp32_norms_train_beside_bf16_matrices), TEST(fp32_adapters_train_over_a_bf16_base),
          TEST(fp32_adapters_are_as_true_as_pefts))
