/* What would fit where a plan doesn't: settings are changed one by one, then together, and each change is planned. */
#include "setup/setup.h"

#include "config/options.h"

typedef enum Change {
    CHANGE_BATCH, /* smaller, with as many micro-steps more */
    CHANGE_RECOMPUTE,
    CHANGE_MOMENTS,
    CHANGE_MODEL,
    CHANGE_LORA,
    CHANGE_COUNT,
} Change;

/* Random weights are no base for adapters. */
static bool may_adapt(const Config *config)
{
    return !config->lora && !config->from_scratch;
}

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
        if (!may_adapt(config)) return false;
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
    const Plan    *plan; /* of config, which doesn't fit */
    int64_t        limit;
    StrBuf         lines;
} Fit;

/* What these settings take at the least, known without a plan: neither micro-batches, recomputation nor sequences change what weights,
 * gradients and optimizer take. */
static int64_t lasting_bytes(const Fit *fit, const Config *config)
{
    const Config  *base = fit->config;
    const int64_t *region = fit->plan->region_bytes[SPACE_DEVICE];
    int64_t        bytes = fit->plan->total_numel * (config->model_dtype == OPT_FLOAT_BF16 ? 2 : 4);
    if (config->model_dtype != base->model_dtype || config->lora != base->lora) return bytes;
    bytes += region[REGION_GRADS];
    return config->moment_dtype == base->moment_dtype ? bytes + region[REGION_OPTIMIZER] : bytes;
}

/* The bytes of the plan of these settings, of these of its programs; -1 when they don't go together. */
static int64_t planned_bytes(const Fit *fit, const Config *config, uint32_t programs)
{
    Arena          arena = { 0 };
    CompileOptions options;
    Plan          *plan;
    Status         status = setup_options(config, fit->model, &options);
    options.programs &= programs;
    if (status == OK)
        status = setup_plan(&arena, fit->model, &options, fit->device, &plan);
    int64_t bytes = status == OK ? plan_total_bytes(plan) : -1;
    status_clear();
    arena_deinit(&arena);
    return bytes;
}

/* False where what is known without a plan, or that of the first micro-step alone, takes too much already. */
static bool may_fit(const Fit *fit, const Config *config)
{
    if (lasting_bytes(fit, config) > fit->limit) return false;
    int64_t bytes = planned_bytes(fit, config, 1u << PROGRAM_MICRO_FIRST);
    return bytes >= 0 && bytes <= fit->limit;
}

/* The bytes of the plan of settings that fit; 0 where they don't. */
static int64_t fitting_bytes(const Fit *fit, const Config *config)
{
    int64_t bytes = may_fit(fit, config) ? planned_bytes(fit, config, ~0u) : -1;
    return bytes > fit->limit || bytes < 0 ? 0 : bytes;
}

/* What fits becomes a line. */
static bool tell(Fit *fit, int64_t bytes, const StrBuf *said)
{
    char text[32];
    if (bytes) strbuf_printf(&fit->lines, "\n  %s:%.*s", size_text(bytes, text), (int)said->len, said->data);
    return bytes > 0;
}

static bool try_settings(Fit *fit, const Config *config, const StrBuf *said)
{
    return tell(fit, fitting_bytes(fit, config), said);
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

/* One change more. The first alone was tried before. */
static bool try_more(Fit *fit, Config *config, Change change, StrBuf *said)
{
    bool is_first = said->len == 0;
    return make_change(config, change, said) && !is_first && try_settings(fit, config, said);
}

/* Sequences halved until they fit; where even the shortest don't, *config and `said` are of those. */
static bool try_shorter(Fit *fit, Config *config, StrBuf *said)
{
    enum { LEAST_SEQUENCE = 256 };
    int64_t longest = setup_sequence_len(config, fit->model), shortest = longest, bytes = 0;
    while (shortest / 2 >= LEAST_SEQUENCE) shortest /= 2;
    if (shortest == longest) return false;
    config->sequence_len = shortest;
    bool may = may_fit(fit, config); /* first, as most often none does where this one doesn't */
    for (int64_t length = longest / 2; may && !bytes && length >= shortest; length /= 2) {
        config->sequence_len = length;
        bytes = fitting_bytes(fit, config);
    }
    strbuf_printf(said, " sequence_len=%lld", (long long)config->sequence_len);
    return tell(fit, bytes, said);
}

/* One change after the other, until they fit together. Where nothing does, *config and `said` are what takes least. */
static bool try_together(Fit *fit, Config *config, StrBuf *said)
{
    if (try_more(fit, config, CHANGE_BATCH, said) || try_more(fit, config, CHANGE_RECOMPUTE, said) ||
        try_more(fit, config, CHANGE_MODEL, said))
        return true;
    Config adapted = *config;
    size_t len = said->len;
    if (try_more(fit, config, CHANGE_MOMENTS, said)) return true;
    if (may_adapt(&adapted)) { /* without moments of the base */
        *config = adapted;
        said->len = len;
        if (try_more(fit, config, CHANGE_LORA, said)) return true;
    }
    return try_shorter(fit, config, said);
}

Status setup_check_memory(const Config *config, const HfModel *model, Device *device, const Plan *plan, bool with_table)
{
    int64_t limit = setup_memory_limit(config, plan), need = plan_total_bytes(plan);
    if (!limit || need <= limit) return OK;
    Fit    fit = { .config = config, .model = model, .device = device, .plan = plan, .limit = limit };
    StrBuf text = { 0 }, said = { 0 };
    Config least = *config;
    char   a[32], b[32], c[32];
    strbuf_printf(&text, "the plan takes %s, there are %s%s", size_text(need, a), size_text(limit, b),
                  config->memory_limit == limit ? " (memory_limit)" : "");
    if (with_table) {
        strbuf_putc(&text, '\n');
        setup_print_plan(config, plan, &text);
    }
    try_alone(&fit);
    if (fit.lines.len || try_together(&fit, &least, &said)) {
        strbuf_printf(&text, "\nwhat fits:%s", strbuf_cstr(&fit.lines));
    } else {
        int64_t bytes = planned_bytes(&fit, &least, ~0u);
        strbuf_printf(&text, "\nno settings make it fit: it takes %s at the least%s%s; train a smaller model, or on a device with more memory",
                      size_text(bytes < 0 ? need : bytes, c), said.len ? ", with" : "", strbuf_cstr(&said));
    }
    Status status = status_fail(ERR_NO_FIT, "%s", text.data);
    strbuf_deinit(&text);
    strbuf_deinit(&said);
    strbuf_deinit(&fit.lines);
    return config->memory_limit == limit ? config_at(config->origin, KEY_run_memory_limit, status) : status;
}
