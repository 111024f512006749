/* What would fit where a plan doesn't: settings are changed one by one, then together, and each change is planned: of a deep model only
 * the first layers, of which all the others are taken to be repetitions. */
#include "train/setup.h"

#include "config/options.h"

#include <math.h>

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

enum { FEW_LAYERS = 3, MORE_LAYERS = 5 };

typedef struct Fit {
    const Config  *config;
    const HfModel *model;
    Device        *device;
    int64_t        limit, least; /* least: of the plans so far */
    bool           whole;        /* the model isn't deep, or isn't like its first layers: all of it is planned */
    double         turns;        /* from MORE_LAYERS to all layers, in steps of as many as from FEW_LAYERS to MORE_LAYERS */
    StrBuf         lines;
} Fit;

typedef struct Size {
    int64_t bytes, numel;
} Size;

/* Of the plan of these settings for the first max_layers layers (0: all); bytes -1 when they don't go together. */
static Size plan_size(const Fit *fit, const Config *config, int64_t max_layers)
{
    const uint32_t both = 1u << PROGRAM_MICRO_FIRST | 1u << PROGRAM_MICRO_NEXT;
    Arena          arena = { 0 };
    CompileOptions options;
    Plan          *plan;
    Status         status = setup_options(&arena, config, fit->model, &options);
    options.max_layers = max_layers;
    if ((options.programs & both) == both) options.programs &= ~(1u << PROGRAM_MICRO_FIRST); /* its memory is the other's */
    if (status == OK)
        status = compile_plan(&arena, fit->model->module, &fit->model->config, fit->model->config_name, &options, fit->device, &plan);
    Size size = status == OK ? (Size){ plan_total_bytes(plan), plan->total_numel } : (Size){ -1, 0 };
    status_clear();
    arena_deinit(&arena);
    return size;
}

static int64_t planned_bytes(const Fit *fit, const Config *config)
{
    if (fit->whole) return plan_size(fit, config, 0).bytes;
    int64_t few = plan_size(fit, config, FEW_LAYERS).bytes, more = plan_size(fit, config, MORE_LAYERS).bytes;
    return few < 0 || more < 0 ? -1 : more + (int64_t)(fit->turns * (double)(more - few));
}

/* Whether a plan of the first layers tells the bytes of the whole model's is seen from the plan that there is: `need`, `numel`. */
static void compare_depths(Fit *fit, int64_t need, int64_t numel)
{
    Size few = plan_size(fit, fit->config, FEW_LAYERS), more = plan_size(fit, fit->config, MORE_LAYERS);
    fit->whole = more.numel == few.numel || more.numel == numel;
    if (fit->whole) return;
    fit->turns = (double)(numel - more.numel) / (double)(more.numel - few.numel);
    double told = (double)more.bytes + fit->turns * (double)(more.bytes - few.bytes);
    fit->whole = fabs(told - (double)need) > 0.01 * (double)need;
}

/* The bytes of these settings if they fit, with 1 % to spare where only the first layers were planned; else -1. */
static int64_t fitting_bytes(Fit *fit, const Config *config)
{
    int64_t bytes = planned_bytes(fit, config);
    if (bytes < 0) return -1;
    if (bytes < fit->least) fit->least = bytes;
    return bytes > fit->limit - (fit->whole ? 0 : bytes / 100) ? -1 : bytes;
}

static void add_line(Fit *fit, int64_t bytes, const StrBuf *said)
{
    char text[32];
    strbuf_printf(&fit->lines, "\n  %s%s:%.*s", fit->whole ? "" : "about ", size_text(bytes, text), (int)said->len, said->data);
}

static void try_settings(Fit *fit, const Config *config, const StrBuf *said)
{
    int64_t bytes = fitting_bytes(fit, config);
    if (bytes >= 0) add_line(fit, bytes, said);
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

/* One change after the other, until they fit together; the first `known` together don't. */
static void try_together(Fit *fit, Config *config, const Change changes[4], int known, StrBuf *said)
{
    for (int i = 0; i < 4 && !fit->lines.len; i++)
        if (make_change(config, changes[i], said) && i >= known) try_settings(fit, config, said);
}

/* The longest sequences that fit, of half the length, a quarter, ... */
static void try_shorter(Fit *fit, Config *config, StrBuf *said)
{
    enum { LEAST_SEQUENCE = 256 };
    int64_t full = setup_sequence_len(config, fit->model);
    int     low = 1, high = 0; /* halvings: the fewest that fit are from low to high */
    while (full >> (high + 1) >= LEAST_SEQUENCE) high++;
    config->sequence_len = full >> high;
    int64_t bytes = high ? fitting_bytes(fit, config) : -1;
    if (bytes < 0) return;
    while (low < high) {
        int middle = (low + high) / 2;
        config->sequence_len = full >> middle;
        int64_t found = fitting_bytes(fit, config);
        if (found < 0) {
            low = middle + 1;
        } else {
            high = middle;
            bytes = found;
        }
    }
    strbuf_printf(said, " sequence_len=%lld", (long long)(full >> high));
    add_line(fit, bytes, said);
}

static void try_all(Fit *fit)
{
    static const Change full[] = { CHANGE_BATCH, CHANGE_RECOMPUTE, CHANGE_MODEL, CHANGE_MOMENTS },
                        lora[] = { CHANGE_BATCH, CHANGE_RECOMPUTE, CHANGE_MODEL, CHANGE_LORA };
    Config with_full = *fit->config, with_lora = *fit->config;
    StrBuf full_said = { 0 }, lora_said = { 0 };
    try_alone(fit);
    if (!fit->lines.len) try_together(fit, &with_full, full, 1, &full_said);
    if (!fit->lines.len) try_together(fit, &with_lora, lora, 3, &lora_said);
    if (!fit->lines.len) try_shorter(fit, &with_lora, &lora_said);
    strbuf_deinit(&full_said);
    strbuf_deinit(&lora_said);
}

Status setup_check_memory(const Config *config, const HfModel *model, Device *device, const Plan *plan, bool with_table)
{
    int64_t limit = setup_memory_limit(config, plan), need = plan_total_bytes(plan);
    if (!limit || need <= limit) return OK;
    Fit    fit = { .config = config, .model = model, .device = device, .limit = limit, .least = need };
    StrBuf table = { 0 };
    char   a[32], b[32], c[32];
    compare_depths(&fit, need, plan->total_numel);
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
