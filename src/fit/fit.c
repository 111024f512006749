/* Finds settings that fit where a plan doesn't. Settings are changed one by one, then together with those of memory: auto, and each change
 * is planned. Only the first layers of a deep model are planned; later layers are assumed to repeat them. */
#include "fit/depths.h"

#include "config/options.h"

#include <stdlib.h>

typedef enum Change {
    CHANGE_BATCH, /* micro-batches of one sequence; micro-steps multiplied by the former batch size, up to the key's limit */
    CHANGE_RECOMPUTE,
    CHANGE_OPTIMIZER, /* 8-bit moments take less than bf16 ones */
    CHANGE_MOMENTS,
    CHANGE_MODEL,
    CHANGE_LORA,
    CHANGE_QLORA, /* quantises a base that is frozen already */
    CHANGE_COUNT,
} Change;

/* Random weights are no base for adapters. */
static bool may_adapt(const Config *config)
{
    return !config->lora && !config->from_scratch;
}

/* Makes a change and appends it as key=value. False: the change is made already, or the run file sets a key that would have to change with
 * it. */
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
        strbuf_printf(said, " per_device_train_batch_size=1 gradient_accumulation_steps=%lld",
                      (long long)config->gradient_accumulation_steps);
        return true;
    case CHANGE_RECOMPUTE:
        if (config->recompute_block) return false;
        config->recompute_block = true;
        strbuf_puts(said, " recompute_block=true");
        return true;
    case CHANGE_OPTIMIZER:
        if (config->optimizer != OPT_OPTIMIZER_ADAMW || config->lora) return false;
        config->optimizer = OPT_OPTIMIZER_ADAMW_8BIT;
        strbuf_puts(said, " optimizer=adamw_8bit");
        return true;
    case CHANGE_MOMENTS:
        if (config->moment_dtype == OPT_FLOAT_BF16 || config->lora || config->optimizer == OPT_OPTIMIZER_ADAMW_8BIT) return false;
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
    case CHANGE_QLORA:
        if (!config->lora || config->qlora != OPT_QLORA_NONE || origin[KEY_run_qlora]) return false;
        if (config->lora_init == OPT_LORA_INIT_PISSA || config->lora_init == OPT_LORA_INIT_OLORA) return false;
        config->qlora = OPT_QLORA_NF4;
        strbuf_puts(said, " qlora=nf4");
        return true;
    default:
        return false;
    }
}

typedef struct Fit {
    const Config *config;
    Depths        depths;
    int64_t       limit;
    bool          is_host; /* the device's memory is the host's */
    StrBuf        lines;
} Fit;

static PlanSize planned_size(const Fit *fit, const Config *config)
{
    return depths_size(&fit->depths, config, PLAN_MEMORY);
}

/* The size of these settings; bytes -1: the settings don't fit. All layers are planned if the estimate from the first ones is within 1 % of
 * the limit. */
static PlanSize fitting_size(Fit *fit, const Config *config)
{
    PlanSize size = planned_size(fit, config);
    if (size.bytes >= 0 && !fit->depths.whole && llabs(size.bytes - fit->limit) < fit->limit / 100)
        size = depths_plan(&fit->depths, config, 0, PLAN_MEMORY);
    if (size.bytes > fit->limit) size.bytes = -1;
    return size;
}

static void add_line(Fit *fit, const PlanSize *size, const StrBuf *said)
{
    enum { LEAST_PINNED = 1 << 20 };
    char text[32];
    strbuf_printf(&fit->lines, "\n  %s%s", fit->depths.whole ? "" : "about ", size_text(size->bytes, text));
    if (size->host_bytes > LEAST_PINNED && !fit->is_host)
        strbuf_printf(&fit->lines, " and %s of the host's memory", size_text(size->host_bytes, text));
    strbuf_printf(&fit->lines, ":%.*s", (int)said->len, said->data);
}

/* Adds a line for these settings if they fit. Returns whether they do. */
static bool try_settings(Fit *fit, const Config *config, const StrBuf *said)
{
    PlanSize size = fitting_size(fit, config);
    if (size.bytes >= 0) add_line(fit, &size, said);
    return size.bytes >= 0;
}

static void try_alone(Fit *fit)
{
    for (int change = 0; change < CHANGE_COUNT; change++) {
        Config config = *fit->config;
        StrBuf said = {0};
        if (make_change(&config, (Change)change, &said)) try_settings(fit, &config, &said);
        strbuf_deinit(&said);
    }
}

/* Makes one more change and tries it. The first change isn't tried again: try_alone did. */
static bool try_more(Fit *fit, Config *config, Change change, StrBuf *said)
{
    bool is_first = said->len == 0;
    return make_change(config, change, said) && !is_first && try_settings(fit, config, said);
}

/* Gives each key of memory: auto its least value, then takes back the changes that aren't needed, from the last key to the first. If
 * nothing fits, *config and `said` keep all changes. */
static bool try_auto(Fit *fit, Config *config, StrBuf *said)
{
    const Config start = *config;
    bool         changed = false;
    for (int k = 0; k < memory_num_keys(); k++) changed |= memory_take_least(config, k, fit->is_host);
    if (!changed) return false;
    PlanSize size = fitting_size(fit, config);
    for (int k = memory_num_keys() - 1; k >= 0 && size.bytes >= 0; k--) {
        Config without = *config;
        if (!memory_take_back(&without, &start, k)) continue;
        PlanSize found = fitting_size(fit, &without);
        if (found.bytes < 0) continue;
        *config = without;
        size = found;
    }
    memory_say_changes(config, &start, said);
    if (size.bytes >= 0) add_line(fit, &size, said);
    return size.bytes >= 0;
}

/* Finds the longest sequence that fits: half the length, a quarter, ... If none fits, *config and `said` have the shortest. */
static bool try_shorter(Fit *fit, Config *config, StrBuf *said)
{
    enum { LEAST_SEQUENCE = 256 };
    int64_t full = setup_sequence_len(config, fit->depths.model);
    int     low = 1, high = 0; /* bounds of the smallest number of halvings with which the run fits */
    while (full >> (high + 1) >= LEAST_SEQUENCE) high++;
    if (!high) return false;
    config->sequence_len = full >> high;
    PlanSize size = fitting_size(fit, config);
    while (size.bytes >= 0 && low < high) {
        int middle = (low + high) / 2;
        config->sequence_len = full >> middle;
        PlanSize found = fitting_size(fit, config);
        if (found.bytes < 0) {
            low = middle + 1;
        } else {
            high = middle;
            size = found;
        }
    }
    config->sequence_len = full >> high;
    strbuf_printf(said, " sequence_len=%lld", (long long)config->sequence_len);
    if (size.bytes >= 0) add_line(fit, &size, said);
    return size.bytes >= 0;
}

/* Like try_auto, but if nothing fits, *config and `said` stay unchanged. */
static bool try_auto_first(Fit *fit, Config *config, StrBuf *said)
{
    const Config before = *config;
    size_t       len = said->len;
    if (try_auto(fit, config, said)) return true;
    *config = before;
    said->len = len;
    return false;
}

/* Makes one change after the other until the settings fit; changes to what is learned come last. If nothing fits, *config and `said` hold
 * the settings that take the least memory. */
static bool try_together(Fit *fit, Config *config, StrBuf *said)
{
    if (try_more(fit, config, CHANGE_BATCH, said) || try_more(fit, config, CHANGE_RECOMPUTE, said) || try_auto_first(fit, config, said) ||
        try_more(fit, config, CHANGE_MODEL, said))
        return true;
    Config adapted = *config;
    size_t len = said->len;
    if (try_more(fit, config, CHANGE_OPTIMIZER, said) || try_more(fit, config, CHANGE_MOMENTS, said)) return true;
    if (may_adapt(&adapted)) { /* adapters are tried without the optimizer's changes: a frozen base has no moments */
        *config = adapted;
        said->len = len;
        if (try_more(fit, config, CHANGE_LORA, said)) return true;
    }
    if (try_more(fit, config, CHANGE_QLORA, said) || try_auto(fit, config, said)) return true;
    return try_shorter(fit, config, said);
}

Status fit_check_memory(const Config *config, const HfModel *model, Device *device, const Plan *plan, bool with_table)
{
    ConfigKey key;
    int64_t   limit = setup_memory_limit(config, plan, &key), need = setup_needed_bytes(plan);
    if (!limit || need <= limit) return OK;
    Arena arena = {0};
    Fit   fit = {
          .config = config, .depths = {.model = model, .device = device, .arena = &arena}, .limit = limit, .is_host = plan->facts.is_host};
    PlanSize whole = plan_size(plan, config->gradient_accumulation_steps);
    StrBuf   text = {0}, said = {0};
    Config   least = *config;
    char     a[32], b[32], c[32];
    bool     is_device = key == CONFIG_KEY_COUNT;
    strbuf_printf(&text, "the plan takes %s, there are %s", size_text(need, a), size_text(limit, b));
    if (!is_device) strbuf_printf(&text, " (%s)", options[key].name);
    if (with_table) {
        strbuf_putc(&text, '\n');
        fit_print_plan(config, plan, &text);
    }
    depths_compare(&fit.depths, config, &whole, false);
    try_alone(&fit);
    if (fit.lines.len || try_together(&fit, &least, &said)) {
        strbuf_printf(&text, "\nwhat fits:%s", strbuf_cstr(&fit.lines));
    } else {
        int64_t bytes = planned_size(&fit, &least).bytes;
        strbuf_printf(
            &text, "\nno settings make it fit: it takes %s%s at the least%s%s; train a smaller model, or on a device with more memory",
            fit.depths.whole ? "" : "about ", size_text(bytes < 0 ? need : bytes, c), said.len ? ", with" : "", strbuf_cstr(&said));
    }
    Status status = status_fail(ERR_NO_FIT, "%s", text.data);
    strbuf_deinit(&text);
    strbuf_deinit(&said);
    strbuf_deinit(&fit.lines);
    arena_deinit(&arena);
    return is_device ? status : config_at(config->origin, key, status);
}
