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
    bool      to_host;     /* moves what lasts, or what is_live says, to the host; the device computes no less */
    bool      is_live;
    ConfigKey unless;                      /* another value than the first has no effect where this flag is set; 0: always */
    bool (*applies)(const Config *config); /* NULL: to all runs */
} Dimension;

static bool has_master(const Config *config)
{
    return config->lora || config->master_dtype == OPT_FLOAT_FP32;
}

static bool has_codes(const Config *config)
{
    return config->qlora != OPT_QLORA_NONE || config->recipe == OPT_RECIPE_FP8_HYBRID;
}

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
    FLAG(offload_residual, .to_host = true, .is_live = true),
    FLAG(offload_optimizer, .to_host = true),
    FLAG(offload_master, .to_host = true, .applies = has_master),
    FLAG(offload_weights, .to_host = true),
    FLAG(offload_quants, .to_host = true, .applies = has_codes),
    {.key = KEY_run_head_chunks, .count = 6, .values = {0, 2, 4, 8, 16, 32}, .memory_only = true},
};
#undef FLAG
enum { NUM_DIMS = sizeof dims / sizeof dims[0] };

/* A combination, or, until it is split, all that differ from it in dimensions that are to_host. Either way all values of memory_only ones
 * count. */
typedef struct Candidate {
    int64_t  batch; /* sequences of a micro-batch */
    int      at[NUM_DIMS];
    bool     is_split;
    int64_t  order; /* in the grid: of equally fast ones the first is chosen */
    PlanSize size;  /* bounds */
} Candidate;

typedef struct Search {
    const Config  *config;
    int64_t        rows; /* sequences of an optimizer step */
    Depths         depths;
    int64_t        limit, host_limit; /* 0: unknown */
    bool           is_host;           /* the device's memory is the host's */
    Candidate     *items;             /* that may fit */
    size_t         count, capacity;
    Candidate      smallest;
    int64_t        order[MEMORY_CHOICES]; /* of those in `found` */
    MemoryChoices *found;
} Search;

/* ---- the grid ---- */

static int num_values(const Search *s, int dim)
{
    const Dimension *d = &dims[dim];
    bool             has_effect = !(d->to_host && s->is_host) && (!d->applies || d->applies(s->config));
    return has_effect && !s->config->origin[d->key] ? d->count : 1;
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

typedef enum Kind { OF_DEVICE, OF_HOST, OF_MEMORY } Kind;

static Kind kind_of(int dim)
{
    return dims[dim].memory_only ? OF_MEMORY : dims[dim].to_host ? OF_HOST : OF_DEVICE;
}

/* Moves on among the dimensions of a kind, the last of them first. False: that was the last; all are at their first value again. */
static bool next_values(const Search *s, Candidate *c, Kind kind)
{
    for (int d = NUM_DIMS - 1; d >= 0; d--) {
        if (kind_of(d) != kind) continue;
        if (++c->at[d] < num_values(s, d)) return true;
        c->at[d] = 0;
    }
    return false;
}

/* How many combinations a kind has. */
static int64_t num_combinations(const Search *s, Kind kind)
{
    int64_t count = 1;
    for (int d = 0; d < NUM_DIMS; d++)
        if (kind_of(d) == kind) count *= num_values(s, d);
    return count;
}

static void take_last(const Search *s, Candidate *c, Kind kind)
{
    for (int d = 0; d < NUM_DIMS; d++)
        if (kind_of(d) == kind) c->at[d] = num_values(s, d) - 1;
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

/* Bounds of what settings take, whatever those of memory_only dimensions are: their last values take least. */
static PlanSize bounds_of(Search *s, Candidate c)
{
    Config config;
    take_last(s, &c, OF_MEMORY);
    if (!make_config(s, &c, &config)) return (PlanSize){.bytes = -1};
    c.size = depths_size(&s->depths, &config, true);
    bool is_smallest = !s->smallest.batch || c.size.least_bytes < s->smallest.size.least_bytes;
    if (c.size.bytes >= 0 && is_smallest) s->smallest = c;
    return c.size;
}

/* Bounds of all combinations of to_host dimensions: no copies, what lasts without all that can leave, and of what is alive the least. */
static PlanSize bounds_of_all(Search *s, const Candidate *c)
{
    Candidate all = *c, live = *c;
    PlanSize  size = bounds_of(s, *c);
    take_last(s, &all, OF_HOST);
    if (size.bytes < 0 || num_combinations(s, OF_HOST) == 1) return size;
    for (int d = 0; d < NUM_DIMS; d++)
        if (dims[d].is_live) live.at[d] = all.at[d];
    PlanSize without = bounds_of(s, all), moved = bounds_of(s, live);
    if (without.bytes < 0) return size;
    int64_t alive = moved.bytes >= 0 && moved.live_bytes < size.live_bytes ? moved.live_bytes : size.live_bytes;
    size.least_bytes = without.least_bytes - without.live_bytes + alive;
    return size;
}

static void bound_grid(Search *s)
{
    const int64_t most_batch = (int64_t)options[KEY_run_per_device_train_batch_size].limits.max,
                  most_steps = (int64_t)options[KEY_run_gradient_accumulation_steps].limits.max, step = num_combinations(s, OF_HOST);
    int64_t order = 0;
    for (int64_t batch = s->rows < most_batch ? s->rows : most_batch; batch >= 1; batch--) {
        Candidate c = {.batch = batch, .is_split = step == 1};
        if (s->rows % batch || s->rows / batch > most_steps) continue;
        do {
            c.order = order;
            order += step;
            c.size = bounds_of_all(s, &c);
            if (fits(s, c.size.least_bytes) && c.size.bytes >= 0) add_candidate(s, &c);
        } while (next_values(s, &c, OF_DEVICE));
    }
}

/* All combinations of to_host dimensions, each with bounds of its own. */
static void split(Search *s, Candidate c)
{
    c.is_split = true;
    do {
        c.size = bounds_of(s, c);
        if (fits(s, c.size.least_bytes) && c.size.bytes >= 0) add_candidate(s, &c);
        c.order++;
    } while (next_values(s, &c, OF_HOST));
}

static bool comes_before(const Candidate *a, const Candidate *b)
{
    if (a->size.least_seconds != b->size.least_seconds) return a->size.least_seconds < b->size.least_seconds;
    return a->order < b->order;
}

/* Takes the one with the lowest bound of time out. */
static Candidate take_first(Search *s)
{
    size_t first = 0;
    for (size_t i = 1; i < s->count; i++)
        if (comes_before(&s->items[i], &s->items[first])) first = i;
    Candidate taken = s->items[first];
    s->items[first] = s->items[--s->count];
    return taken;
}

/* ---- those that fit ---- */

static bool is_faster(const MemoryChoice *a, int64_t order_of_a, const MemoryChoice *b, int64_t order_of_b)
{
    return a->seconds != b->seconds ? a->seconds < b->seconds : order_of_a < order_of_b;
}

static void add_choice(Search *s, const MemoryChoice *choice, int64_t order)
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
    return fits(s, out->bytes) && (!s->host_limit || out->host_bytes <= s->host_limit);
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
    } while (next_values(s, c, OF_MEMORY));
}

static void try_candidates(Search *s)
{
    while (s->count) {
        Candidate c = take_first(s);
        bool      enough = s->found->count == MEMORY_CHOICES;
        if (enough && c.size.least_seconds > s->found->items[MEMORY_CHOICES - 1].seconds) break;
        if (c.is_split)
            try_candidate(s, &c);
        else
            split(s, c);
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
        s->is_host = plan->facts.is_host;
        depths_compare(&s->depths, s->config, &whole, true);
    }
    arena_deinit(&arena);
    return status;
}

static Status search(Search *s)
{
    TRY(open_search(s));
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
        s.host_limit = device_host_available() / config->gpus;
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

Status setup_settle(Arena *arena, const Config *config, const HfModel *model, Device *device, bool tell, const Config **out)
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
    if (tell && table.len) log_info("%.*s", (int)table.len - 1, table.data);
    strbuf_deinit(&table);
    return OK;
}
