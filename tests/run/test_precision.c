/* The FP8 recipe in whole programs: its scales follow the formula, its gradients are near those of bf16, and neither recomputation nor the
 * number of micro-batches changes them. */
#include "base/philox.h"
#include "family.h"
#include "ops/lowbit/fp8.h"
#include "run/scales.h"

enum { ROWS = 4, TOKENS = ROWS * FAMILY_T };

static CompileOptions make_nvfp4(int64_t rows)
{
    CompileOptions options = compile_defaults();
    compile_add_training(&options, rows, FAMILY_T);
    options.adamw_beta2 = 0.95;
    options.model_dtype = DT_BF16;
    options.precision.forward = options.precision.backward = DT_E2M1;
    return options;
}

static CompileOptions make_options(bool fp8, int64_t rows)
{
    CompileOptions options = compile_defaults();
    compile_add_training(&options, rows, FAMILY_T);
    if (fp8) compile_add(&options, &entry_calibrate, rows, FAMILY_T);
    options.adamw_beta2 = 0.95;
    options.model_dtype = DT_BF16;
    if (fp8) options.precision = (PrecisionOptions){.forward = DT_E4M3, .backward = DT_E5M2, .amax_history = 8};
    return options;
}

/* Weights of a new run, and adapters as after some training; the fixture's values are larger than those of any real model. */
static Status new_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    float std = param->is_adapter ? 0.1f : param->init_std, most = std * 1.7320508f;
    (void)context;
    for (int64_t i = 0; i < count; i++) {
        Philox4 random = philox4x32((uint32_t)(first + i), (uint32_t)philox_name_key(param->name), 0, 0, 11);
        bool    is_drawn = param->is_adapter || param->init == INIT_NORMAL;
        out[i] = is_drawn ? (2 * philox_uniform(random.v[0]) - 1) * most : param->init == INIT_ONES ? 1.0f : 0.0f;
    }
    return OK;
}

static const DeviceApi *api_as_it_is;

static Status facts_with_fp4(Device *device, DeviceFacts *out)
{
    TRY(api_as_it_is->facts(device, out));
    out->fp4_blocks = true;
    return OK;
}

/* A device that reports FP4 products, and computes them with its generic kernels. */
static Device *device_with_fp4(void)
{
    static DeviceApi api;
    Device          *device = family_device(2);
    api_as_it_is = device->api;
    api = *device->api;
    api.facts = facts_with_fp4;
    device->api = &api;
    return device;
}

static void load_new(Family *f)
{
    LoadSource source = {.values = new_values};
    EXPECT_OK(session_load(f->session, false, &source));
    EXPECT_OK(session_load(f->session, true, &source));
}

/* "wide": llama with dims that allow FP4 products; "wide_fp4": on a device that computes them. */
static void open_config(Family *f, const char *family, const char *config, CompileOptions *options)
{
    bool wide = strncmp(family, "wide", 4) == 0;
    if (wide)
        family_open_on(f, "llama", "config_wide.json", options, strcmp(family, "wide") == 0 ? family_device(2) : device_with_fp4(), NULL);
    else
        family_open(f, family, config, options, 2);
    load_new(f);
}

static void open_family(Family *f, const char *family, CompileOptions *options)
{
    open_config(f, family, "config.json", options);
}

/* Writes rows [first, first + count) of the four that step `step` trains; every third step draws new rows. */
static void write_rows(Family *f, int step, int first, int count)
{
    int32_t ids[TOKENS], labels[TOKENS], positions[TOKENS], doc_start[TOKENS] = {0};
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)(philox4x32((uint32_t)i, (uint32_t)(step / 3), 0, 0, 7).v[0] % FAMILY_V);
        labels[i] = (ids[i] * 5 + 3) % FAMILY_V;
        positions[i] = i % FAMILY_T;
    }
    family_batch(f, ids, labels, positions, doc_start, first, count, 1.0f / TOKENS, step);
}

static void run_rows(Family *f, int step, const Program *first, const Program *next)
{
    int rows = (int)plan_micro(f->plan, 0, 2)->spec.batch;
    for (int row = 0; row < ROWS; row += rows) {
        write_rows(f, step, row, rows);
        EXPECT_OK(session_run(f->session, row ? next : first));
    }
}

static void calibrate(Family *f, int64_t margin)
{
    if (!f->plan->num_scaled) return;
    run_rows(f, 0, plan_program(f->plan, &entry_calibrate), plan_program(f->plan, &entry_calibrate));
    EXPECT_OK(scales_begin(f->session, NULL, margin));
}

/* Runs the optimizer's program of a step; *out_loss may be NULL. */
static bool update(Family *f, float *out_loss)
{
    const Program *program = plan_program(f->plan, &entry_optimizer);
    float          hyper[HYPER_COUNT] = {[HYPER_LR] = 3e-4f, [HYPER_INV_TOKENS] = 1.0f / TOKENS}, loss, applied;
    EXPECT_OK(session_write(f->session, "hyper", hyper, sizeof hyper));
    EXPECT_OK(session_run(f->session, program));
    EXPECT_OK(session_output(f->session, program, "loss", &loss, sizeof loss));
    EXPECT_OK(session_output(f->session, program, "applied", &applied, sizeof applied));
    if (out_loss) *out_loss = loss;
    return applied == 1;
}

static float train_step(Family *f, int step)
{
    float loss;
    run_rows(f, step, plan_micro(f->plan, 0, 2), plan_micro(f->plan, 1, 3));
    EXPECT(update(f, &loss));
    return loss;
}

static float *read_floats(Family *f, const char *name, int64_t *out_count)
{
    const PlanEntry *entry = plan_find(f->plan, name);
    int64_t          numel = type_numel(&entry->type);
    void            *stored = arena_alloc(&f->arena, (size_t)entry->place.bytes);
    float           *values = arena_array(&f->arena, float, numel);
    EXPECT_OK(session_read(f->session, name, stored, (size_t)entry->place.bytes));
    dtype_convert(values, DT_F32, stored, entry->type.dtype, numel);
    if (out_count) *out_count = numel;
    return values;
}

static double cosine(const float *a, const float *b, int64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) ab += (double)a[i] * (double)b[i], aa += (double)a[i] * (double)a[i], bb += (double)b[i] * (double)b[i];
    return ab / sqrt(aa * bb);
}

/* ---- scales ---- */

/* Makes steps with a history of 8; one step isn't applied. Compares scales with the formula over the recorded values. */
static void follow(const char *family, int64_t margin, bool most_recent)
{
    enum { STEPS = 50, HISTORY = 8, BAD = 21 };
    CompileOptions options = make_options(true, 2);
    Family         f;
    options.precision.margin = margin;
    options.precision.most_recent = most_recent;
    open_family(&f, family, &options);
    calibrate(&f, margin);
    int    num = f.plan->num_scaled, applied = 0;
    float *history = arena_array(&f.arena, float, HISTORY *num), *want = read_floats(&f, PRECISION_SCALES, NULL);
    for (int i = 0; i < num; i++) EXPECT(want[4 * i] > 0 && want[4 * i + 1] > 0);
    for (int step = 0; step < STEPS; step++) {
        run_rows(&f, step, plan_micro(f.plan, 0, 2), plan_micro(f.plan, 1, 3));
        const float *now = read_floats(&f, PRECISION_NOW, NULL);
        float        bad = NAN;
        if (step == BAD) EXPECT_OK(session_write(f.session, "loss.sum", &bad, sizeof bad));
        bool done = update(&f, NULL);
        EXPECT(done == (step != BAD));
        for (int i = 0; i < num && done; i++) {
            float amax = history[applied % HISTORY * num + i] = now[i];
            for (int h = 0; h < HISTORY && !most_recent; h++) amax = fmaxf(amax, history[h * num + i]);
            if (!(amax > 0)) continue;
            float scale = (f.plan->scaled[i].dtype == DT_E4M3 ? 448.0f : 57344.0f) / amax / (float)(1 << margin);
            want[4 * i] = 1 / scale;
            want[4 * i + 1] = scale;
        }
        applied += done;
        const float *scales = read_floats(&f, PRECISION_SCALES, NULL), *after = read_floats(&f, PRECISION_NOW, NULL);
        for (int i = 0; i < num; i++) {
            EXPECT(after[i] == 0);
            EXPECT(now[i] > 0 && isfinite(now[i]));
        }
        if (memcmp(scales, want, (size_t)num * 4 * sizeof *want) != 0)
            test_fail(__FILE__, __LINE__, "%s step %d: scales differ from the formula's", family, step);
    }
    EXPECT(memcmp(history, read_floats(&f, PRECISION_HISTORY, NULL), sizeof *history * (size_t)(HISTORY * num)) == 0);
    family_close(&f);
}

static void scales_follow_the_formula(void)
{
    follow("llama", 0, false);
    follow("qwen3", 1, false);
    follow("qwen2", 0, true);
}

/* ---- gradients ---- */

static void use_lora(CompileOptions *options)
{
    static const char *const all[] = {"all-linear"};
    options->lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .targets = all, .num_targets = 1};
    options->train_base = false;
}

/* Cosines between the gradients of one step of `other` and of `family`: for each linear layer, and for all together. */
static void compare_families(const char *family, CompileOptions *bf16, const char *other, CompileOptions *fp8, double least,
                             double least_of_all)
{
    Family a, b;
    double ab = 0, aa = 0, bb = 0;
    open_family(&a, family, bf16);
    open_family(&b, other, fp8);
    calibrate(&b, 0);
    run_rows(&a, 0, plan_micro(a.plan, 0, 2), plan_micro(a.plan, 1, 3));
    run_rows(&b, 0, plan_micro(b.plan, 0, 2), plan_micro(b.plan, 1, 3));
    for (int i = 0; i < a.plan->num_trained; i++) {
        const char *name = arena_printf(&a.arena, "grad.%s", a.plan->trained_params[i]->name);
        int64_t     n;
        float      *want = read_floats(&a, name, &n), *got = read_floats(&b, name, NULL);
        double      norm = 0, norm_bf16 = 0;
        for (int64_t k = 0; k < n; k++) {
            norm += (double)got[k] * (double)got[k];
            norm_bf16 += (double)want[k] * (double)want[k];
            ab += (double)want[k] * (double)got[k];
        }
        aa += norm_bf16;
        bb += norm;
        if (!(norm_bf16 > 0) || !(a.plan->trained_params[i]->is_linear || a.plan->trained_params[i]->is_adapter)) continue;
        if (!(norm > 0)) test_fail(__FILE__, __LINE__, "%s: %s is all zeros", family, name);
        double cos = cosine(want, got, n);
        if (!(cos >= least)) test_fail(__FILE__, __LINE__, "%s: cosine of %s is %.5f, expected %.4f", family, name, cos, least);
    }
    double all = ab / sqrt(aa * bb);
    if (!(all >= least_of_all)) test_fail(__FILE__, __LINE__, "%s: cosine of all is %.5f", family, all);
    family_close(&a);
    family_close(&b);
}

static void compare_gradients(const char *family, CompileOptions *bf16, CompileOptions *fp8, double least, double least_of_all)
{
    compare_families(family, bf16, family, fp8, least, least_of_all);
}

static void the_first_gradients_are_near_those_of_bf16(void)
{
    static const char *const families[] = {"llama", "qwen3", "qwen2"};
    for (int i = 0; i < 3; i++) {
        CompileOptions bf16 = make_options(false, 2), fp8 = make_options(true, 2);
        compare_gradients(families[i], &bf16, &fp8, 0.98, 0.98);
    }
}

/* Layers of the fixture whose dims aren't multiples of 16 stay in bf16, but the values that they read come from quantised products. */
static void the_first_gradients_of_nvfp4_are_near_those_of_bf16(void)
{
    CompileOptions bf16 = make_options(false, 2), nvfp4 = make_nvfp4(2), again;
    compare_gradients("llama", &bf16, &nvfp4, 0.93, 0.95);
    again = make_nvfp4(2);
    again.precision.fp4_hadamard = again.precision.fp4_four_six = false;
    again.precision.fp4_nearest = true;
    compare_gradients("llama", &bf16, &again, 0.93, 0.95);
}

static void adapters_have_the_gradients_of_bf16(void)
{
    static const char *const families[] = {"llama", "qwen3"};
    for (int i = 0; i < 2; i++) {
        CompileOptions bf16 = make_options(false, 2), fp8 = make_options(true, 2);
        bf16.max_layers = fp8.max_layers = 1;
        use_lora(&bf16);
        use_lora(&fp8);
        compare_gradients(families[i], &bf16, &fp8, 0.998, 0.999);
    }
}

/* Options for a base in FP8 with scales of tiles; unpacked, because packed weights of the fixture don't divide into whole tiles. */
static CompileOptions make_tiles(bool recipe)
{
    CompileOptions options = make_options(recipe, 2);
    use_lora(&options);
    options.weight_format = weight_format_find("fp8");
    options.no_fuse = 1u << FUSE_QKV | 1u << FUSE_GATE_UP;
    return options;
}

static int count_nodes(const Program *program, const OpDef *op)
{
    int count = 0;
    for (const Node *node = program->graph->first; node; node = node->next) count += node->op == op;
    return count;
}

/* On a device with FP4 products, all products of the layers read codes. Their gradients equal those of emulated products in fp32, and are
 * similar in bf16. Tested in full training, and with frozen weights that are kept as codes only. */
static void products_by_fp4_codes_have_the_gradients_of_emulated_ones(void)
{
    for (int lora = 0; lora < 2; lora++) {
        CompileOptions bf16 = make_options(false, ROWS), emulated = make_nvfp4(ROWS), by_codes = make_nvfp4(ROWS);
        Family         f;
        if (lora) use_lora(&bf16), use_lora(&emulated), use_lora(&by_codes);
        compare_families("wide", &bf16, "wide", &emulated, 0.9, 0.95);
        compare_families("wide", &bf16, "wide_fp4", &by_codes, 0.9, 0.95);
        emulated.model_dtype = by_codes.model_dtype = DT_F32;
        compare_families("wide", &emulated, "wide_fp4", &by_codes, 0.999, 0.999);
        open_family(&f, "wide_fp4", &by_codes);
        int layers = f.plan->num_coded;
        EXPECT(layers == 8);
        EXPECT(count_nodes(plan_micro(f.plan, 0, 2), &op_fp4_linear) == (lora ? 2 * layers - 1 : 3 * layers));
        EXPECT(count_nodes(plan_micro(f.plan, 0, 2), &op_nvfp4_dequantise) == 0);
        for (int i = 0; i < f.plan->num_params; i++) {
            const Param *param = f.plan->params[i];
            bool         frozen = param->is_linear && !param->is_head && !param->trained;
            EXPECT((plan_find(f.plan, param->name)->type.dtype == DT_E2M1) == frozen);
        }
        family_close(&f);
    }
}

static void adapters_over_fp8_tiles_have_the_gradients_of_bf16(void)
{
    static const char *const families[] = {"llama", "llama3"};
    for (int i = 0; i < 2; i++) {
        CompileOptions over[] = {make_options(false, 2), make_tiles(false)}, fp8 = make_tiles(true);
        Family         f;
        use_lora(&over[0]);
        fp8.max_layers = 1;
        for (int k = 0; k < 2; k++) {
            over[k].max_layers = 1;
            compare_gradients(families[i], &over[k], &fp8, 0.99, 0.995);
        }
        open_family(&f, families[i], &fp8);
        bool by_codes = f.plan->facts.fp8_blocks;
        EXPECT(f.plan->num_coded == (by_codes ? 4 : 0) && !f.plan->num_scaled);
        EXPECT(count_nodes(plan_micro(f.plan, 0, 2), &op_block_linear) > 4 || !by_codes);
        EXPECT(count_nodes(plan_program(f.plan, &entry_calibrate), &op_block_linear) > 4 || !by_codes);
        family_close(&f);
    }
}

/* ---- same bits ---- */

static void train_config(const char *family, const char *config, CompileOptions *options, int steps, float *losses, Family *f)
{
    open_config(f, family, config, options);
    calibrate(f, 0);
    for (int step = 0; step < steps; step++) losses[step] = train_step(f, step);
}

static void train(const char *family, CompileOptions *options, int steps, float *losses, Family *f)
{
    train_config(family, "config.json", options, steps, losses, f);
}

static void expect_same(Family *a, Family *b, const char *what)
{
    int64_t      n;
    const float *x, *y;
    if (a->plan->num_scaled) {
        x = read_floats(a, PRECISION_HISTORY, &n);
        y = read_floats(b, PRECISION_HISTORY, NULL);
        if (memcmp(x, y, (size_t)n * sizeof *x) != 0) test_fail(__FILE__, __LINE__, "%s: histories differ", what);
    }
    for (int i = 0; i < a->plan->num_trained; i++) {
        const char *name = a->plan->trained_params[i]->name;
        x = read_floats(a, name, &n);
        y = read_floats(b, name, NULL);
        if (memcmp(x, y, (size_t)n * sizeof *x) != 0) test_fail(__FILE__, __LINE__, "%s: %s differs", what, name);
    }
}

static void recomputation_changes_no_bit(void)
{
    static const uint32_t parts[] = {1u << PART_BLOCK, 1u << PART_NORM, 1u << PART_SWIGLU | 1u << PART_ATT,
                                     1u << PART_FFN | 1u << PART_QKV};
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < 4; i++) {
            bool           lora = kind & 1, fp4 = kind & 2;
            CompileOptions keep = fp4 ? make_nvfp4(2) : make_options(true, 2), again = keep;
            Arena          arena = {0};
            Family         a, b;
            float          losses[2][6];
            again.recompute = parts[i];
            if (lora) use_lora(&keep), use_lora(&again);
            train("llama", &keep, 6, losses[0], &a);
            train("llama", &again, 6, losses[1], &b);
            EXPECT(memcmp(losses[0], losses[1], sizeof losses[0]) == 0);
            expect_same(&a, &b, arena_printf(&arena, "recompute %x, lora %d, fp4 %d", parts[i], lora, fp4));
            family_close(&a);
            family_close(&b);
            arena_deinit(&arena);
        }
}

static void recomputation_of_products_by_fp4_codes_changes_no_bit(void)
{
    for (int lora = 0; lora < 2; lora++) {
        CompileOptions keep = make_nvfp4(ROWS / 2), again;
        Family         a, b;
        float          losses[2][6];
        if (lora) use_lora(&keep);
        again = keep;
        again.recompute = 1u << PART_BLOCK;
        train("wide_fp4", &keep, 6, losses[0], &a);
        train("wide_fp4", &again, 6, losses[1], &b);
        EXPECT(memcmp(losses[0], losses[1], sizeof losses[0]) == 0);
        EXPECT(count_nodes(plan_micro(b.plan, 1, 3), &op_fp4_linear) > count_nodes(plan_micro(a.plan, 1, 3), &op_fp4_linear));
        expect_same(&a, &b, "recomputation of products by FP4 codes");
        family_close(&a);
        family_close(&b);
    }
}

static void recomputation_over_fp8_tiles_changes_no_bit(void)
{
    CompileOptions keep = make_tiles(true), again = keep;
    Family         a, b;
    float          losses[2][6];
    again.recompute = 1u << PART_BLOCK;
    train("llama", &keep, 6, losses[0], &a);
    train("llama", &again, 6, losses[1], &b);
    EXPECT(memcmp(losses[0], losses[1], sizeof losses[0]) == 0);
    int kept = count_nodes(plan_micro(a.plan, 0, 2), &op_block_linear);
    EXPECT(count_nodes(plan_micro(b.plan, 0, 2), &op_block_linear) > kept || !a.plan->facts.fp8_blocks);
    expect_same(&a, &b, "recomputation over FP8 tiles");
    family_close(&a);
    family_close(&b);
}

static const OpDef *const makers[] = {&op_rms_norm, &op_add_rms_norm, &op_swiglu, &op_rms_norm_bwd, &op_swiglu_bwd, &op_qkv_norm_rope_bwd};
enum { ALL_MAKERS = 0x3F };

/* Separate quantise nodes may read only the reshaped output of attention: other values come with their codes. expected: a bit for each op
 * of `makers` that makes codes. */
static void expect_codes_with_numbers(const Family *f, int expected)
{
    int made = 0;
    for (const Node *node = plan_micro(f->plan, 1, 3)->graph->first; node; node = node->next) {
        bool         quantises = node->op == &op_fp8_rows_quantise || node->op == &op_fp8_quantise;
        const OpDef *from = quantises && node->in[0]->producer ? node->in[0]->producer->op : &op_reshape;
        EXPECT(from == &op_reshape);
        for (int i = 0; i < (int)(sizeof makers / sizeof *makers); i++)
            if (node->op == makers[i] && node->out[node->op->codes.out]) made |= 1 << i;
    }
    EXPECT_INT(made, expected);
}

/* In wide.json rows are whole blocks, and packed weights divide into whole tiles. */
static void codes_made_with_their_numbers_change_no_bit_when_recomputed(void)
{
    CompileOptions keep = make_tiles(true), again = keep;
    Family         a, b;
    float          losses[2][4];
    keep.no_fuse = again.no_fuse = 0;
    again.recompute = 1u << PART_BLOCK;
    train_config("qwen3", "wide.json", &keep, 4, losses[0], &a);
    train_config("qwen3", "wide.json", &again, 4, losses[1], &b);
    EXPECT(memcmp(losses[0], losses[1], sizeof losses[0]) == 0);
    expect_codes_with_numbers(&a, a.plan->facts.fp8_blocks ? ALL_MAKERS : 0);
    expect_codes_with_numbers(&b, a.plan->facts.fp8_blocks ? ALL_MAKERS : 0);
    expect_same(&a, &b, "codes made with their numbers");
    family_close(&a);
    family_close(&b);
}

/* Trained weights need codes of the transpose too. */
static void codes_under_one_scale_are_made_with_their_numbers(void)
{
    for (int lora = 0; lora < 2; lora++) {
        CompileOptions keep = make_options(true, ROWS / 2), again;
        Family         a, b;
        float          losses[2][4];
        keep.no_fuse = 0;
        if (lora) use_lora(&keep);
        again = keep;
        again.recompute = 1u << PART_BLOCK;
        train_config("qwen3", "wide.json", &keep, 4, losses[0], &a);
        train_config("qwen3", "wide.json", &again, 4, losses[1], &b);
        EXPECT(memcmp(losses[0], losses[1], sizeof losses[0]) == 0);
        expect_codes_with_numbers(&a, ALL_MAKERS);
        expect_codes_with_numbers(&b, ALL_MAKERS);
        expect_same(&a, &b, "codes under one scale, made with their numbers");
        family_close(&a);
        family_close(&b);
    }
}

/* ---- micro-batches, packing, the loss ---- */

static void micro_batches_leave_the_first_amax_and_hardly_change_the_rest(void)
{
    enum { STEPS = 50 };
#ifdef FAMILY_CUDA
    /* Products of other shapes sum in another order, and a flipped code is a clearly different value: on one H200, scales of gradients
     * differ by up to 6 % after 50 steps. */
    const float rounding = 0.01f, most_apart = 0.1f;
#else
    const float rounding = 0, most_apart = 0.02f;
#endif
    static float losses[3][STEPS];
    Family       f[3];
    for (int i = 0; i < 3; i++) {
        CompileOptions options = make_options(true, ROWS >> i);
        options.precision.amax_history = 64;
        options.fp32_grads = true;
        train("qwen3", &options, STEPS, losses[i], &f[i]);
    }
    int          num = f[0].plan->num_scaled;
    const float *history = read_floats(&f[0], PRECISION_HISTORY, NULL), *scales = read_floats(&f[0], PRECISION_SCALES, NULL);
    for (int i = 1; i < 3; i++) {
        const float *other = read_floats(&f[i], PRECISION_HISTORY, NULL), *its = read_floats(&f[i], PRECISION_SCALES, NULL);
        for (int k = 0; k < num; k++) {
            bool is_forward = f[0].plan->scaled[k].dtype == DT_E4M3;
            if (is_forward && !(fabsf(other[k] - history[k]) <= rounding * history[k]))
                test_fail(__FILE__, __LINE__, "%d micro-steps: amax of %s is %g, not %g", 1 << i, f[0].plan->scaled[k].name,
                          (double)other[k], (double)history[k]);
            if (!(fabsf(its[4 * k + 1] / scales[4 * k + 1] - 1) <= most_apart))
                test_fail(__FILE__, __LINE__, "%d micro-steps: scale of %s is %g, not %g", 1 << i, f[0].plan->scaled[k].name,
                          (double)its[4 * k + 1], (double)scales[4 * k + 1]);
        }
        for (int step = 0; step < STEPS; step++)
            if (!(fabsf(losses[i][step] / losses[0][step] - 1) <= 0.002f))
                test_fail(__FILE__, __LINE__, "%d micro-steps, step %d: loss %g, not %g", 1 << i, step, (double)losses[i][step],
                          (double)losses[0][step]);
    }
    for (int i = 0; i < 3; i++) family_close(&f[i]);
}

/* The last of 30 losses is near that of bf16, packed or not, and in FP4. */
static void the_loss_is_near_that_of_bf16(void)
{
    enum { STEPS = 30 };
    float          losses[4][STEPS];
    CompileOptions bf16 = make_options(false, 2), packed = make_options(true, 2), apart = make_options(true, 2), nvfp4 = make_nvfp4(2);
    Family         f;
    apart.no_fuse = (1u << FUSION_COUNT) - 1;
    open_family(&f, "llama", &bf16);
    for (int step = 0; step < STEPS; step++) losses[0][step] = train_step(&f, step);
    family_close(&f);
    train("llama", &packed, STEPS, losses[1], &f);
    int num_packed = f.plan->num_scaled;
    family_close(&f);
    train("llama", &apart, STEPS, losses[2], &f);
    EXPECT(f.plan->num_scaled > num_packed);
    family_close(&f);
    train("llama", &nvfp4, STEPS, losses[3], &f);
    family_close(&f);
    for (int i = 1; i < 4; i++)
        if (!(fabsf(losses[i][STEPS - 1] / losses[0][STEPS - 1] - 1) <= 0.01f))
            test_fail(__FILE__, __LINE__, "loss %g, of bf16 %g", (double)losses[i][STEPS - 1], (double)losses[0][STEPS - 1]);
    EXPECT(losses[0][STEPS - 1] < losses[0][0]);
}

TEST_MAIN(TEST(scales_follow_the_formula), TEST(the_first_gradients_are_near_those_of_bf16), TEST(adapters_have_the_gradients_of_bf16),
          TEST(adapters_over_fp8_tiles_have_the_gradients_of_bf16), TEST(the_first_gradients_of_nvfp4_are_near_those_of_bf16),
          TEST(products_by_fp4_codes_have_the_gradients_of_emulated_ones), TEST(recomputation_of_products_by_fp4_codes_changes_no_bit),
          TEST(recomputation_changes_no_bit), TEST(recomputation_over_fp8_tiles_changes_no_bit),
          TEST(codes_made_with_their_numbers_change_no_bit_when_recomputed), TEST(codes_under_one_scale_are_made_with_their_numbers),
          TEST(micro_batches_leave_the_first_amax_and_hardly_change_the_rest), TEST(the_loss_is_near_that_of_bf16))
