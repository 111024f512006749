/* What would fit where a plan doesn't: settings are changed one by one, then together, and each change is planned. */
#include "train/setup.h"

#include "config/options.h"

typedef enum Change {
    CHANGE_BATCH, /* smaller, with as many micro-steps more */
    CHANGE_RECOMPUTE,
    CHANGE_MOMENTS,
    CHANGE_MODEL,
    CHANGE_LORA,
    CHANGE_COUNT,
} Change;

/* Makes a change and says it as key=value; false when the run file is so already, or fixes what would have to change too. */
static bool make_change(Config *config, Change change, StrBuf *said)
{
    const char *const *origin = config->origin;
    int64_t            most = (int64_t)options[KEY_run_gradient_accumulation_steps].limits.max;
    switch (change) {
    case CHANGE_BATCH:
        if (config->per_device_train_batch_size == 1) return false;
        config->gradient_accumulation_steps *= config->per_device_train_batch_size;
        if (config->gradient_accumulation_steps > most) config->gradient_accumulation_steps = most;
        config->per_device_train_batch_size = 1;
        strbuf_printf(said, " per_device_train_batch_size=1 gradient_accumulation_steps=%lld", (long long)config->gradient_accumulation_steps);
        return true;
    case CHANGE_RECOMPUTE:
        if (config->recompute_block) return false;
        config->recompute_block = true;
        strbuf_puts(said, " recompute_block=true");
        return true;
    case CHANGE_MOMENTS:
        if (config->moment_dtype == OPT_FLOAT_BF16 || config->lora) return false;
        config->moment_dtype = OPT_FLOAT_BF16;
        strbuf_puts(said, " moment_dtype=bf16");
        return true;
    case CHANGE_MODEL:
        if (config->model_dtype == OPT_FLOAT_BF16 || origin[KEY_run_gradient_dtype] || origin[KEY_run_matmul_dtype]) return false;
        config->model_dtype = OPT_FLOAT_BF16;
        strbuf_puts(said, " model_dtype=bf16");
        return true;
    case CHANGE_LORA:
        if (config->lora || config->from_scratch) return false;
        config->lora = true;
        strbuf_puts(said, " lora=true");
        return true;
    default: return false;
    }
}

typedef struct Fit {
    const Config  *config;
    const HfModel *model;
    Device        *device;
    int64_t        limit, least; /* least: of the plans so far */
    StrBuf         lines;
} Fit;

/* The bytes of the plan of these settings; -1 when they don't go together. */
static int64_t planned_bytes(const Fit *fit, const Config *config)
{
    Arena          arena = { 0 };
    CompileOptions options;
    Plan          *plan;
    Status         status = setup_options(&arena, config, fit->model, &options);
    if (status == OK)
        status = compile_plan(&arena, fit->model->module, &fit->model->config, fit->model->config_name, &options, fit->device, &plan);
    int64_t bytes = status == OK ? plan_total_bytes(plan) : -1;
    status_clear();
    arena_deinit(&arena);
    return bytes;
}

/* Adds a line when the settings fit. */
static bool try_settings(Fit *fit, const Config *config, const StrBuf *said)
{
    char    text[32];
    int64_t bytes = planned_bytes(fit, config);
    if (bytes < 0) return false;
    if (bytes < fit->least) fit->least = bytes;
    if (bytes > fit->limit) return false;
    strbuf_printf(&fit->lines, "\n  %s:%.*s", size_text(bytes, text), (int)said->len, said->data);
    return true;
}

static void try_alone(Fit *fit)
{
    for (int change = 0; change < CHANGE_COUNT; change++) {
        Config config = *fit->config;
        StrBuf said = { 0 };
        if (make_change(&config, (Change)change, &said)) try_settings(fit, &config, &said);
        strbuf_deinit(&said);
    }
}

/* One change after the other, until they fit together; then, if it may be, shorter and shorter sequences. */
static void try_together(Fit *fit, const Change changes[4], bool may_shorten)
{
    enum { LEAST_SEQUENCE = 256 };
    Config config = *fit->config;
    StrBuf said = { 0 };
    bool   fits = false;
    for (int i = 0; i < 4 && !fits; i++)
        if (make_change(&config, changes[i], &said)) fits = try_settings(fit, &config, &said);
    size_t len = said.len;
    config.sequence_len = setup_sequence_len(&config, fit->model);
    while (!fits && may_shorten && config.sequence_len / 2 >= LEAST_SEQUENCE) {
        config.sequence_len /= 2;
        said.len = len;
        strbuf_printf(&said, " sequence_len=%lld", (long long)config.sequence_len);
        fits = try_settings(fit, &config, &said);
    }
    strbuf_deinit(&said);
}

static void try_all(Fit *fit)
{
    static const Change full[] = { CHANGE_BATCH, CHANGE_RECOMPUTE, CHANGE_MODEL, CHANGE_MOMENTS },
                        lora[] = { CHANGE_BATCH, CHANGE_RECOMPUTE, CHANGE_MODEL, CHANGE_LORA };
    try_alone(fit);
    if (!fit->lines.len) try_together(fit, full, false);
    if (!fit->lines.len) try_together(fit, lora, true);
}

Status setup_check_memory(const Config *config, const HfModel *model, Device *device, const Plan *plan, bool with_table)
{
    int64_t limit = setup_memory_limit(config, plan), need = plan_total_bytes(plan);
    if (!limit || need <= limit) return OK;
    Fit    fit = { .config = config, .model = model, .device = device, .limit = limit, .least = need };
    StrBuf table = { 0 };
    char   a[32], b[32], c[32];
    try_all(&fit);
    if (with_table) {
        strbuf_putc(&table, '\n');
        setup_print_plan(config, plan, &table);
    }
    bool   is_ours = config->memory_limit == limit;
    Status status =
        fit.lines.len
            ? status_fail(ERR_NO_FIT, "the plan takes %s, there are %s%s%s\nwhat fits:%s", size_text(need, a), size_text(limit, b),
                          is_ours ? " (memory_limit)" : "", strbuf_cstr(&table), strbuf_cstr(&fit.lines))
            : status_fail(ERR_NO_FIT,
                          "the plan takes %s, there are %s%s%s\nno settings make it fit: it takes %s at the least (micro-batches of one sequence, "
                          "recompute_block, bf16, LoRA, short sequences); train a smaller model, or on a device with more memory",
                          size_text(need, a), size_text(limit, b), is_ours ? " (memory_limit)" : "", strbuf_cstr(&table), size_text(fit.least, c));
    strbuf_deinit(&table);
    strbuf_deinit(&fit.lines);
    return is_ours ? config_at(config->origin, KEY_run_memory_limit, status) : status;
}
