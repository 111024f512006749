/* Sums of many micro-steps' gradients. */
#include "base/philox.h"
#include "family.h"

static CompileOptions bf16_options(void)
{
    CompileOptions options = compile_defaults();
    options.batch = 1;
    options.seq = FAMILY_T;
    options.beta2 = 0.95;
    options.weight_decay = 0.1;
    options.max_grad_norm = 1.0;
    options.model_dtype = DT_BF16;
    return options;
}

static void use_lora(CompileOptions *options)
{
    static const char *const all[] = { "all-linear" };
    options->lora = (LoraOptions){ .enabled = true, .r = 4, .alpha = 8, .targets = all, .num_targets = 1 };
    options->train_base = false;
}

/* Micro-step `step`: one of the four rows of the fixture's `plain` and `packed` batches, its loss scaled by a number of its own. */
static void run_micro_step(Family *f, int step, ProgramKind kind)
{
    static const char *const what[2][4] = { { "plain.ids", "plain.labels", "plain.position_ids", "plain.doc_start" },
                                            { "packed.ids", "packed.labels", "packed.position_ids", "packed.doc_start" } };
    const int32_t           *data[4];
    float                    scale = 0.5f + philox_uniform(philox4x32((uint32_t)step, 0, 0, 0, 1).v[0]);
    for (int i = 0; i < 4; i++) data[i] = fixture_ints(f, what[step / 2 % 2][i]);
    family_batch(f, data[0], data[1], data[2], data[3], step % 2, 1, scale / 1024, 0);
    EXPECT_OK(session_run(f->session, kind));
}

/* Adds all gradients, parameter after parameter in the order of the plan. */
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

/* Every weight from its place in the list of parameters. */
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

/* |what memory holds after `steps` micro-steps - fp64 sum of the same| / |sum|. What a micro-step adds doesn't depend on what is
 * there: each is measured alone first. */
static double sum_error(const char *family, bool lora, bool fp32_grads, int steps)
{
    CompileOptions options = bf16_options();
    Family         f;
    double         error = 0, scale = 0;
    options.fp32_grads = fp32_grads;
    if (lora) use_lora(&options);
    family_open(&f, family, "config.json", &options, 1);
    if (lora) fill_weights(&f);
    else family_load(&f);
    int64_t n = f.plan->trained_numel;
    double *exact = calloc((size_t)n, sizeof *exact), *kept = calloc((size_t)n, sizeof *kept);
    for (int step = 0; step < steps; step++) {
        run_micro_step(&f, step, PROGRAM_MICRO_FIRST);
        add_gradients(&f, exact);
    }
    for (int step = 0; step < steps; step++) run_micro_step(&f, step, step ? PROGRAM_MICRO_NEXT : PROGRAM_MICRO_FIRST);
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
    static const char *const families[] = { "llama", "qwen3", "qwen2" };
    for (int i = 0; i < 3; i++)
        for (int lora = 0; lora < 2; lora++) {
            double narrow = sum_error(families[i], lora, false, 1024), wide = sum_error(families[i], lora, true, 1024);
            if (!(wide <= 1e-6)) test_fail(__FILE__, __LINE__, "%s: fp32 sums are off by %.3g", families[i], wide);
            if (!(narrow > 1e-2)) test_fail(__FILE__, __LINE__, "%s: bf16 sums are off by %.3g alone", families[i], narrow);
        }
}

TEST_MAIN(TEST(fp32_sums_keep_what_bf16_sums_lose))
