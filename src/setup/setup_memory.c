/* memory: auto. The settings that change memory and time but not what is learned make a grid; the fastest that fit are looked for by
 * compiling. Most of the grid is left out by bounds from plans of the model's first layers (depths.h): what has no chance of fitting, and
 * what can't be faster than enough others that fit. The rest is compiled as a run would be, the lowest bound first. */
#include "setup/depths.h"

#include "base/json.h"
#include "base/log.h"
#include "config/options.h"

#include <stdlib.h>
#include <string.h>

/* A key of the grid with its values; the first one counts as the plainest. A key that the run file sets keeps its value. */
enum { MAX_VALUES = 6 };
typedef struct Dimension {
    ConfigKey key;
    int       count;
    int64_t   values[MAX_VALUES];
    bool      memory_only; /* launches and their times are the same for all values */
    ConfigKey unless;      /* another value than the first has no effect where this flag is set; 0: always */
} Dimension;

#define FLAG(name, ...) \
    { \
        .key = KEY_run_##name, .count = 2, .values = {false, true}, __VA_ARGS__ \
    }
static const Dimension dims[] = {
    FLAG(recompute_block),
    FLAG(recompute_att, .unless = KEY_run_recompute_block),
    FLAG(recompute_ffn, .unless = KEY_run_recompute_block),
    FLAG(recompute_qkv, .unless = KEY_run_recompute_block),
    FLAG(recompute_swiglu, .unless = KEY_run_recompute_block),
    FLAG(recompute_rmsnorm, .unless = KEY_run_recompute_block),
    {.key = KEY_run_head_chunks, .count = 6, .values = {0, 2, 4, 8, 16, 32}, .memory_only = true},
};
#undef FLAG
enum { NUM_DIMS = sizeof dims / sizeof dims[0] };

typedef struct Candidate {
    int64_t  batch; /* sequences of a micro-batch */
    int      at[NUM_DIMS];
    int      order; /* in the grid: of equally fast ones the first is chosen */
    PlanSize size;  /* bounds */
} Candidate;

typedef struct Search {
    const Config  *config;
    int64_t        rows; /* sequences of an optimizer step */
    Depths         depths;
    int64_t        limit;
    Candidate     *items; /* that may fit */
    size_t         count, capacity;
    Candidate      smallest;
    int            order[MEMORY_CHOICES]; /* of those in `found` */
    MemoryChoices *found;
} Search;

/* ---- the grid ---- */

static int num_values(const Config *config, int dim)
{
    return config->origin[dims[dim].key] ? 1 : dims[dim].count;
}

static int64_t get_value(const Config *config, ConfigKey key)
{
    const char *field = (const char *)config + options[key].offset;
    return options[key].kind == KIND_BOOL ? *(const bool *)field : *(const int64_t *)field;
}

static void set_value(Config *config, ConfigKey key, int64_t value)
{
    char *field = (char *)config + options[key].offset;
    if (options[key].kind == KIND_BOOL)
        *(bool *)field = value != 0;
    else
        *(int64_t *)field = value;
}

/* The run with a candidate's settings; false: some have no effect beside the others. */
static bool make_config(const Search *s, const Candidate *c, Config *out)
{
    *out = *s->config;
    out->per_device_train_batch_size = c->batch;
    out->gradient_accumulation_steps = s->rows / c->batch;
    for (int d = 0; d < NUM_DIMS; d++)
        if (!out->origin[dims[d].key]) set_value(out, dims[d].key, dims[d].values[c->at[d]]);
    for (int d = 0; d < NUM_DIMS; d++)
        if (c->at[d] && dims[d].unless && get_value(out, dims[d].unless)) return false;
    return true;
}

/* Moves on among the dimensions that are memory_only, or among the others, the last of them first. False: that was the last. */
static bool next_values(const Search *s, Candidate *c, bool memory_only)
{
    for (int d = NUM_DIMS - 1; d >= 0; d--) {
        if (dims[d].memory_only != memory_only) continue;
        if (++c->at[d] < num_values(s->config, d)) return true;
        c->at[d] = 0;
    }
    return false;
}

/* ---- bounds ---- */

static bool fits(const Search *s, int64_t bytes)
{
    return bytes >= 0 && (!s->limit || bytes <= s->limit);
}

static void add_candidate(Search *s, const Candidate *c)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->items = realloc(s->items, s->capacity * sizeof *s->items);
        if (!s->items) fatal_out_of_memory(s->capacity * sizeof *s->items);
    }
    s->items[s->count++] = *c;
}

/* Bounds of a candidate and of all that differ from it in memory_only dimensions, whose last values take least. */
static void bound_candidate(Search *s, Candidate *c)
{
    Config    config;
    Candidate least = *c;
    for (int d = 0; d < NUM_DIMS; d++)
        if (dims[d].memory_only) least.at[d] = num_values(s->config, d) - 1;
    if (!make_config(s, &least, &config)) return;
    c->size = least.size = depths_size(&s->depths, &config, true);
    if (c->size.bytes < 0) return;
    if (s->smallest.size.least_bytes < 0 || c->size.least_bytes < s->smallest.size.least_bytes) s->smallest = least;
    if (fits(s, c->size.least_bytes)) add_candidate(s, c);
}

static void bound_grid(Search *s)
{
    const int64_t most_batch = (int64_t)options[KEY_run_per_device_train_batch_size].limits.max,
                  most_steps = (int64_t)options[KEY_run_gradient_accumulation_steps].limits.max;
    int order = 0;
    for (int64_t batch = s->rows < most_batch ? s->rows : most_batch; batch >= 1; batch--) {
        Candidate c = {.batch = batch};
        if (s->rows % batch || s->rows / batch > most_steps) continue;
        do {
            c.order = order++;
            bound_candidate(s, &c);
        } while (next_values(s, &c, false));
    }
}

static int by_bound(const void *a, const void *b)
{
    const Candidate *x = a, *y = b;
    if (x->size.least_seconds != y->size.least_seconds) return x->size.least_seconds < y->size.least_seconds ? -1 : 1;
    return x->order - y->order;
}

/* ---- those that fit ---- */

static bool is_faster(const MemoryChoice *a, int order_of_a, const MemoryChoice *b, int order_of_b)
{
    return a->seconds != b->seconds ? a->seconds < b->seconds : order_of_a < order_of_b;
}

static void add_choice(Search *s, const MemoryChoice *choice, int order)
{
    MemoryChoices *found = s->found;
    int            at = found->count;
    while (at > 0 && is_faster(choice, order, &found->items[at - 1], s->order[at - 1])) at--;
    if (at == MEMORY_CHOICES) return;
    if (found->count < MEMORY_CHOICES) found->count++;
    for (int i = found->count - 1; i > at; i--) {
        found->items[i] = found->items[i - 1];
        s->order[i] = s->order[i - 1];
    }
    found->items[at] = *choice;
    s->order[at] = order;
}

/* All layers are compiled where the first ones leave it open whether they fit. */
static bool compile_fits(const Search *s, const Config *config, PlanSize *out)
{
    *out = depths_size(&s->depths, config, true);
    if (out->bytes < 0 || !fits(s, out->least_bytes)) return false;
    if (!s->depths.whole) *out = depths_plan(&s->depths, config, 0, true);
    return fits(s, out->bytes);
}

/* The first values of the memory_only dimensions with which all layers fit. */
static void try_candidate(Search *s, Candidate *c)
{
    MemoryChoice choice;
    PlanSize     size;
    do {
        if (!make_config(s, c, &choice.config) || !compile_fits(s, &choice.config, &size)) continue;
        choice.bytes = size.bytes;
        choice.seconds = size.seconds;
        add_choice(s, &choice, c->order);
        return;
    } while (next_values(s, c, true));
}

static void try_candidates(Search *s)
{
    qsort(s->items, s->count, sizeof *s->items, by_bound);
    for (size_t i = 0; i < s->count; i++) {
        bool enough = s->found->count == MEMORY_CHOICES;
        if (enough && s->items[i].size.least_seconds > s->found->items[MEMORY_CHOICES - 1].seconds) break;
        try_candidate(s, &s->items[i]);
    }
}

/* The size of the run file's own settings, which says how far the first layers can be trusted. */
static Status open_search(Search *s)
{
    Arena          arena = {0};
    CompileOptions compile;
    Plan          *plan;
    const HfModel *model = s->depths.model;
    TRY(setup_options(s->config, model, &compile));
    Status status = compile_plan(&arena, model->module, &model->config, model->config_name, &compile, s->depths.device, &plan);
    if (status == OK) {
        PlanSize whole = plan_size(plan, s->config->gradient_accumulation_steps);
        s->limit = setup_memory_limit(s->config, plan, NULL);
        depths_compare(&s->depths, s->config, &whole, true);
    }
    arena_deinit(&arena);
    return status;
}

static Status search(Search *s)
{
    TRY(open_search(s));
    s->smallest.size.least_bytes = -1;
    bound_grid(s);
    try_candidates(s);
    if (!s->found->count && s->smallest.batch) make_config(s, &s->smallest, &s->found->items[0].config);
    free(s->items);
    return OK;
}

Status setup_search(const Config *config, const HfModel *model, Device *device, MemoryChoices *out)
{
    Search s = {.config = config,
                .rows = config->per_device_train_batch_size * config->gradient_accumulation_steps,
                .depths = {.model = model, .device = device},
                .found = out};
    *out = (MemoryChoices){.items[0].config = *config, .tokens = s.rows * setup_sequence_len(config, model)};
    Device *null = NULL;
    if (strcmp(device->api->name, "cuda") == 0) { /* its kernels take long to choose; plans are the same */
        TRY(device_null_of(device, &null));
        s.depths.device = null;
    }
    Status status = search(&s);
    if (null) null->api->destroy(null);
    return status;
}

/* ---- for people ---- */

static void print_value(const Config *config, ConfigKey key, StrBuf *out)
{
    int64_t value = get_value(config, key);
    if (options[key].kind == KIND_BOOL)
        strbuf_puts(out, value ? "true" : "false");
    else
        strbuf_printf(out, "%lld", (long long)value);
}

/* Those that aren't the plainest. */
static void print_settings(const Config *config, StrBuf *out)
{
    for (int d = 0; d < NUM_DIMS; d++) {
        ConfigKey key = dims[d].key;
        if (config->origin[key] || get_value(config, key) == dims[d].values[0]) continue;
        strbuf_printf(out, " %s=", options[key].name);
        print_value(config, key, out);
    }
}

void setup_print_choices(const MemoryChoices *choices, StrBuf *out)
{
    char text[32];
    if (!choices->count) return;
    strbuf_puts(out, "memory: auto  batch x steps       memory          step   tokens/s  settings\n");
    for (int i = 0; i < choices->count; i++) {
        const MemoryChoice *choice = &choices->items[i];
        strbuf_printf(out, "  %-9s  %6lld x %-6lld", i ? "" : "chosen", (long long)choice->config.per_device_train_batch_size,
                      (long long)choice->config.gradient_accumulation_steps);
        strbuf_printf(out, " %11s %10.3f ms %10.0f ", size_text(choice->bytes, text), 1e3 * choice->seconds,
                      (double)choices->tokens / choice->seconds);
        print_settings(&choice->config, out);
        strbuf_putc(out, '\n');
    }
}

void setup_write_choices(const MemoryChoices *choices, StrBuf *out)
{
    strbuf_putc(out, '[');
    for (int i = 0; i < choices->count; i++) {
        const MemoryChoice *choice = &choices->items[i];
        strbuf_printf(out, "%s{\"per_device_train_batch_size\": %lld, \"gradient_accumulation_steps\": %lld", i ? ", " : "",
                      (long long)choice->config.per_device_train_batch_size, (long long)choice->config.gradient_accumulation_steps);
        for (int d = 0; d < NUM_DIMS; d++) {
            strbuf_printf(out, ", \"%s\": ", options[dims[d].key].name);
            print_value(&choice->config, dims[d].key, out);
        }
        strbuf_printf(out, ", \"total_bytes\": %lld, \"step_seconds\": ", (long long)choice->bytes);
        json_write_double(out, choice->seconds);
        strbuf_putc(out, '}');
    }
    strbuf_putc(out, ']');
}

Status setup_settle(Arena *arena, const Config *config, const HfModel *model, Device *device, const Config **out)
{
    MemoryChoices choices;
    StrBuf        table = {0};
    *out = config;
    if (config->memory != OPT_MEMORY_AUTO) return OK;
    TRY(setup_search(config, model, device, &choices));
    Config *settled = arena_new(arena, Config);
    *settled = choices.items[0].config;
    *out = settled;
    setup_print_choices(&choices, &table);
    if (table.len) log_info("%.*s", (int)table.len - 1, table.data);
    strbuf_deinit(&table);
    return OK;
}
