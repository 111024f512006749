/* memory: auto. Settings that change memory and time but not what is learned form a grid; the fastest that fit are found by compiling.
 * Bounds from plans of the model's first layers (depths.h) rule out most of the grid: settings that can't fit, and settings that can't be
 * among the fastest that fit. For the rest, lowest time bound first, all layers are planned. If the time of that plan is among the lowest,
 * the settings are compiled as a run would be.
 *
 * Micro-steps and the update are planned apart, each once for all settings that don't change it. */
#include "fit/depths.h"

#include "base/json.h"
#include "base/log.h"
#include "comm/agree.h"
#include "config/options.h"

#include <stdlib.h>
#include <string.h>

/* A key of the grid with its values, the plainest first. A key that the run file sets keeps its value. */
enum { MAX_VALUES = 6 };
typedef struct Dimension {
    ConfigKey key;
    int       count;
    int64_t   values[MAX_VALUES];
    bool      memory_only; /* launches and their times are the same for all values */
    bool      to_host;     /* moves lasting memory (if is_live: activations) to the host; the device computes no less */
    bool      is_live;
    PlanPart  only;                        /* the part of a plan that the key changes; PLAN_ALL: both parts */
    ConfigKey unless;                      /* a flag: if it is set, only the first value has an effect; 0: none */
    bool (*applies)(const Config *config); /* whether the key has an effect in this run; NULL: in all runs */
    bool (*allows)(const Config *config);  /* whether these settings allow another value than the first; NULL: always */
} Dimension;

static bool has_master(const Config *config)
{
    return config->lora || config->master_dtype == OPT_FLOAT_FP32;
}

static bool has_codes(const Config *config)
{
    return config->qlora != OPT_QLORA_NONE || config->recipe == OPT_RECIPE_FP8_HYBRID;
}

static bool has_ranks(const Config *config)
{
    const char *const *origin = config->origin;
    return setup_world(config) > 1 && !origin[KEY_run_shard_gradients] && !origin[KEY_run_shard_weights];
}

/* Whether weights can be offloaded. They can if there is one rank, if each rank keeps only its share (passes/offload.c says why), or if
 * they are frozen. */
static bool can_send_weights(const Config *config)
{
    return setup_world(config) == 1 || setup_zero_level(config) == 3 || config->lora;
}

#define FLAG(name, ...) \
    { \
        .key = KEY_run_##name, .count = 2, .values = {false, true}, __VA_ARGS__ \
    }
static const Dimension dims[] = {
    {.key = KEY_run_zero_level, .count = 3, .values = {1, 2, 3}, .applies = has_ranks},
    FLAG(recompute_block, .only = PLAN_MICRO),
    FLAG(recompute_att, .only = PLAN_MICRO, .unless = KEY_run_recompute_block),
    FLAG(recompute_ffn, .only = PLAN_MICRO, .unless = KEY_run_recompute_block),
    FLAG(recompute_qkv, .only = PLAN_MICRO, .unless = KEY_run_recompute_block),
    FLAG(recompute_swiglu, .only = PLAN_MICRO, .unless = KEY_run_recompute_block),
    FLAG(recompute_rmsnorm, .only = PLAN_MICRO, .unless = KEY_run_recompute_block),
    FLAG(offload_residual, .to_host = true, .is_live = true, .only = PLAN_MICRO),
    FLAG(offload_optimizer, .to_host = true, .only = PLAN_UPDATE),
    FLAG(offload_master, .to_host = true, .only = PLAN_UPDATE, .applies = has_master),
    FLAG(offload_weights, .to_host = true, .allows = can_send_weights),
    FLAG(offload_quants, .to_host = true, .applies = has_codes),
    {.key = KEY_run_head_chunks, .count = 6, .values = {0, 2, 4, 8, 16, 32}, .only = PLAN_MICRO, .memory_only = true},
};
#undef FLAG
enum { NUM_DIMS = sizeof dims / sizeof dims[0] };

/* A combination of values. It stands for all combinations that differ from it only in memory_only dimensions and, until it is split, in
 * to_host dimensions. */
typedef struct Candidate {
    int64_t  batch; /* sequences in a micro-batch */
    int      at[NUM_DIMS];
    bool     is_split;
    int64_t  order; /* index in the grid: among equally fast candidates the lowest is chosen */
    PlanSize size;  /* bounds of memory and time */
} Candidate;

/* The size of a part of a plan, under the values that it depends on. */
typedef struct Planned {
    PlanPart part;
    bool     is_whole; /* the size is of all layers; else it is bounds from the first layers */
    int64_t  batch;
    int      at[NUM_DIMS]; /* 0 for dimensions that don't change the part */
    PlanSize size;
} Planned;

typedef struct Search {
    const Config  *config;
    int64_t        rows; /* sequences in an optimizer step */
    Depths         depths;
    int64_t        limit, device_limit, host_limit; /* bytes; 0: unknown. limit: the smaller of device_limit and the run's limit */
    bool           is_host;                         /* the device's memory is the host's */
    Candidate     *items;                           /* candidates that may fit */
    size_t         count, capacity;
    Candidate      smallest; /* candidate that takes the least memory, for when none fits */
    Planned       *parts;    /* the parts planned so far */
    size_t         num_parts, cap_parts;
    int64_t        order[MEMORY_CHOICES]; /* Candidate.order of each choice in `found` */
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

/* The run's config with a candidate's settings. False: one of the settings has no effect, or isn't allowed, together with the others. */
static bool make_config(const Search *s, const Candidate *c, Config *out)
{
    *out = *s->config;
    out->per_device_train_batch_size = c->batch;
    out->gradient_accumulation_steps = s->rows / c->batch;
    for (int d = 0; d < NUM_DIMS; d++)
        if (!out->origin[dims[d].key]) set_value(out, dims[d].key, dims[d].values[c->at[d]]);
    for (int d = 0; d < NUM_DIMS; d++)
        if (c->at[d] && ((dims[d].unless && get_value(out, dims[d].unless)) || (dims[d].allows && !dims[d].allows(out)))) return false;
    return true;
}

typedef enum Kind { OF_DEVICE, OF_HOST, OF_MEMORY } Kind;

static Kind kind_of(int dim)
{
    return dims[dim].memory_only ? OF_MEMORY : dims[dim].to_host ? OF_HOST : OF_DEVICE;
}

/* Steps to the next combination of a kind's dimensions; the last dimension changes fastest. False: this was the last combination, and all
 * dimensions are back at their first value. */
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

/* Sets each dimension of a kind to its last value, unless that value has no effect together with the others. */
static void take_last(const Search *s, Candidate *c, Kind kind)
{
    Config config;
    for (int d = 0; d < NUM_DIMS; d++) {
        int before = c->at[d];
        if (kind_of(d) != kind) continue;
        c->at[d] = num_values(s, d) - 1;
        if (!make_config(s, c, &config)) c->at[d] = before;
    }
}

/* ---- bounds ---- */

static bool fits(const Search *s, int64_t bytes)
{
    return bytes >= 0 && (!s->limit || bytes <= s->limit);
}

/* Returns `items` with room for one more item. */
static void *grow(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) return items;
    *capacity = *capacity ? 2 * *capacity : 256;
    return realloc_or_end(items, *capacity * size);
}

static void add_candidate(Search *s, const Candidate *c)
{
    s->items = grow(s->items, s->count, &s->capacity, sizeof *s->items);
    s->items[s->count++] = *c;
}

static bool is_same_part(const Planned *a, const Planned *b)
{
    return a->part == b->part && a->is_whole == b->is_whole && a->batch == b->batch && memcmp(a->at, b->at, sizeof a->at) == 0;
}

static PlanSize size_of_part(Search *s, const Candidate *c, PlanPart part, bool is_whole)
{
    Planned wanted = {.part = part, .is_whole = is_whole || s->depths.whole, .batch = c->batch};
    Config  config;
    for (int d = 0; d < NUM_DIMS; d++)
        if (dims[d].only == PLAN_ALL || dims[d].only == part) wanted.at[d] = c->at[d];
    for (size_t i = 0; i < s->num_parts; i++)
        if (is_same_part(&s->parts[i], &wanted)) return s->parts[i].size;
    Candidate alone = {.batch = c->batch};
    memcpy(alone.at, wanted.at, sizeof alone.at);
    if (!make_config(s, &alone, &config)) return (PlanSize){.bytes = -1};
    wanted.size = wanted.is_whole ? depths_plan(&s->depths, &config, 0, part) : depths_size(&s->depths, &config, part);
    s->parts = grow(s->parts, s->num_parts, &s->cap_parts, sizeof *s->parts);
    s->parts[s->num_parts++] = wanted;
    return wanted.size;
}

static PlanSize size_of(Search *s, const Candidate *c, bool is_whole)
{
    PlanSize micro = size_of_part(s, c, PLAN_MICRO, is_whole);
    if (micro.bytes < 0) return micro;
    PlanSize update = size_of_part(s, c, PLAN_UPDATE, is_whole);
    return plan_join(&micro, &update);
}

/* Bounds that hold for all values of memory_only dimensions: their last values take the least memory. */
static PlanSize bounds_of(Search *s, Candidate c)
{
    take_last(s, &c, OF_MEMORY);
    return size_of(s, &c, false);
}

/* Bounds that hold for all combinations of to_host dimensions. The time bound leaves out copies to and from the host. If memory doesn't fit
 * without offloading, the memory bound counts only what can't leave the device and, with_live, the fewest activations (this takes one more
 * plan). */
static PlanSize bounds_of_all(Search *s, const Candidate *c, bool with_live)
{
    Candidate all = *c, live = *c;
    take_last(s, &all, OF_HOST);
    PlanSize update = size_of_part(s, &all, PLAN_UPDATE, false), without = {0}, size;
    for (int i = 0; i < REGION_COUNT; i++) without.lasting[i] = update.lasting[i];
    plan_bound(&without);
    if (!fits(s, without.least_bytes)) return without;
    size = bounds_of(s, *c);
    if (size.bytes < 0 || c->is_split || fits(s, size.least_bytes)) return size;
    for (int d = 0; d < NUM_DIMS; d++)
        if (dims[d].is_live) live.at[d] = all.at[d];
    take_last(s, &live, OF_MEMORY);
    if (with_live) {
        PlanSize moved = size_of_part(s, &live, PLAN_MICRO, false);
        without.live_bytes = moved.bytes >= 0 && moved.live_bytes < size.live_bytes ? moved.live_bytes : size.live_bytes;
        plan_bound(&without);
    }
    size.least_bytes = without.least_bytes;
    return size;
}

/* Visits all combinations of batches and of dimensions that are neither to_host nor memory_only. */
static void visit_grid(Search *s, void (*visit)(Search *s, Candidate *c))
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
            visit(s, &c);
        } while (next_values(s, &c, OF_DEVICE));
    }
}

static void bound_candidate(Search *s, Candidate *c)
{
    c->size = bounds_of_all(s, c, false);
    if (c->size.bytes >= 0 && fits(s, c->size.least_bytes)) add_candidate(s, c);
}

/* Keeps the candidate as s->smallest if it takes less memory than all before, when everything that can be on the host is there. */
static void bound_smallest(Search *s, Candidate *c)
{
    Candidate last = *c;
    int64_t   least = s->smallest.batch ? s->smallest.size.least_bytes : INT64_MAX;
    take_last(s, &last, OF_HOST);
    take_last(s, &last, OF_MEMORY);
    last.size = size_of_part(s, &last, PLAN_UPDATE, false);
    last.size.update_bytes = 0;
    plan_bound(&last.size);
    if (last.size.bytes < 0 || last.size.least_bytes >= least) return;
    last.size = size_of(s, &last, false);
    if (last.size.bytes >= 0 && last.size.least_bytes < least) s->smallest = last;
}

/* Adds all combinations of to_host dimensions that may fit, each with its own bounds. */
static void split(Search *s, Candidate c)
{
    c.size = bounds_of_all(s, &c, true);
    if (!fits(s, c.size.least_bytes)) return;
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

/* Removes and returns the candidate with the lowest bound of time. */
static Candidate take_first(Search *s)
{
    size_t first = 0;
    for (size_t i = 1; i < s->count; i++)
        if (comes_before(&s->items[i], &s->items[first])) first = i;
    Candidate taken = s->items[first];
    s->items[first] = s->items[--s->count];
    return taken;
}

/* ---- candidates that fit ---- */

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

/* Compiles all layers if the bounds from the first ones don't rule the candidate out. True: the candidate fits. */
static bool compile_fits(Search *s, const Candidate *c, const Config *config, PlanSize *out)
{
    PlanSize bounds = size_of(s, c, false);
    if (bounds.bytes < 0 || !fits(s, bounds.least_bytes)) return false;
    *out = depths_plan(&s->depths, config, 0, PLAN_ALL);
    return fits(s, out->bytes) && (!s->host_limit || out->host_bytes <= s->host_limit);
}

static bool is_enough(const Search *s, double seconds)
{
    return s->found->count == MEMORY_CHOICES && seconds > s->found->items[MEMORY_CHOICES - 1].seconds;
}

/* Adds the candidate with the first values of memory_only dimensions with which all layers fit. */
static void try_candidate(Search *s, Candidate *c)
{
    MemoryChoice choice;
    PlanSize     size = size_of(s, c, true);
    if (size.bytes < 0 || is_enough(s, size.seconds)) return;
    do {
        if (!make_config(s, c, &choice.config) || !compile_fits(s, c, &choice.config, &size)) continue;
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
        if (is_enough(s, c.size.least_seconds)) break;
        if (c.is_split)
            try_candidate(s, &c);
        else
            split(s, c);
    }
}

/* Plans all layers with the run file's own settings. Comparing it with plans of the first layers tells how far these can be trusted. */
static Status open_search(Search *s)
{
    CompileOptions compile;
    Plan          *plan;
    const HfModel *model = s->depths.model;
    Arena         *arena = s->depths.arena;
    TRY(setup_options(arena, s->config, model, &compile));
    TRY(compile_plan(arena, model->module, &model->config, model->config_name, &compile, s->depths.device, &plan));
    PlanSize whole = plan_size(plan, s->config->gradient_accumulation_steps);
    s->limit = setup_memory_limit(s->config, plan, NULL);
    if (s->device_limit && s->device_limit < s->limit) s->limit = s->device_limit;
    s->is_host = plan->facts.is_host;
    arena_reset(arena);
    depths_compare(&s->depths, s->config, &whole, true);
    return OK;
}

static Status search(Search *s)
{
    TRY(open_search(s));
    visit_grid(s, bound_candidate);
    try_candidates(s);
    if (!s->found->count) visit_grid(s, bound_smallest);
    if (s->smallest.batch) make_config(s, &s->smallest, &s->found->items[0].config);
    free(s->items);
    free(s->parts);
    return OK;
}

/* Memory available to a rank, in bytes; 0: unknown. */
typedef struct Room {
    int64_t device, host;
} Room;

static Status find_room(Device *device, int ranks_here, Room *out)
{
    DeviceFacts facts;
    TRY(device->api->facts(device, &facts));
    bool is_gpu = device_is(device, "cuda");
    out->device = facts.memory_bytes;
    if (is_gpu) out->host = device_host_available() / ranks_here;
    return OK;
}

static Status search_within(const Config *config, const HfModel *model, Device *device, const Room *room, MemoryChoices *out)
{
    Arena  arena = {0};
    Search s = {.config = config,
                .rows = config->per_device_train_batch_size * config->gradient_accumulation_steps,
                .depths = {.model = model, .device = device, .arena = &arena},
                .device_limit = room->device,
                .host_limit = room->host,
                .found = out};
    *out = (MemoryChoices){.items[0].config = *config, .tokens = s.rows * setup_world(config) * setup_sequence_len(config, model)};
    Device *null = NULL;
    if (device_is(device, "cuda")) { /* the GPU takes long to choose its kernels, and a null device makes the same plans */
        TRY(device_null_of(device, &null));
        s.depths.device = null;
    }
    Status status = search(&s);
    arena_deinit(&arena);
    if (null) null->api->destroy(null);
    return status;
}

Status fit_search(const Config *config, const HfModel *model, Device *device, MemoryChoices *out)
{
    Room room = {0};
    TRY(find_room(device, (int)config->gpus, &room));
    return search_within(config, model, device, &room, out);
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

/* Appends as " key=value" the keys whose values differ from those in `from`. `from` NULL: appends the keys whose values aren't the
 * plainest, except keys that the run file sets. */
static void say_values(const Config *config, const Config *from, StrBuf *out)
{
    for (int d = 0; d < NUM_DIMS; d++) {
        ConfigKey key = dims[d].key;
        if (!from && config->origin[key]) continue;
        if (get_value(config, key) == (from ? get_value(from, key) : dims[d].values[0])) continue;
        strbuf_printf(out, " %s=", options[key].name);
        print_value(config, key, out);
    }
}

void fit_print_choices(const MemoryChoices *choices, StrBuf *out)
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
        say_values(&choice->config, NULL, out);
        strbuf_putc(out, '\n');
    }
}

void fit_write_choices(const MemoryChoices *choices, StrBuf *out)
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

/* ---- one key after the other (fit.c) ---- */

int memory_num_keys(void)
{
    return NUM_DIMS;
}

bool memory_take_least(Config *config, int index, bool is_host)
{
    const Dimension *d = &dims[index];
    int64_t          least = d->values[d->count - 1];
    bool             has_effect =
        !((d->to_host || d->memory_only) && is_host) && (!d->applies || d->applies(config)) && (!d->allows || d->allows(config));
    if (!has_effect || config->origin[d->key] || get_value(config, d->key) == least) return false;
    if (d->unless && get_value(config, d->unless)) return false;
    set_value(config, d->key, least);
    return true;
}

bool memory_take_back(Config *config, const Config *from, int index)
{
    int64_t value = get_value(from, dims[index].key);
    if (get_value(config, dims[index].key) == value) return false;
    set_value(config, dims[index].key, value);
    return true;
}

void memory_say_changes(const Config *config, const Config *from, StrBuf *out)
{
    say_values(config, from, out);
}

/* ---- all ranks ---- */

/* Gives every rank the room of the rank that has the least. */
static Status agree_on_room(Comm *comm, Device *device, int ranks_here, Room *room)
{
    int64_t device_lacks, host_lacks;
    TRY(comm_agree(comm, find_room(device, ranks_here, room)));
    device_lacks = -room->device, host_lacks = -room->host;
    TRY(comm_agree_most(comm, &device_lacks));
    TRY(comm_agree_most(comm, &host_lacks));
    *room = (Room){-device_lacks, -host_lacks};
    return OK;
}

/* Gives all ranks rank 0's choice. */
static Status share_choice(Comm *comm, Config *chosen)
{
    int64_t values[NUM_DIMS + 2] = {chosen->per_device_train_batch_size, chosen->gradient_accumulation_steps};
    for (int d = 0; d < NUM_DIMS; d++) values[d + 2] = get_value(chosen, dims[d].key);
    TRY(comm_broadcast(comm, 0, values, sizeof values));
    chosen->per_device_train_batch_size = values[0];
    chosen->gradient_accumulation_steps = values[1];
    for (int d = 0; d < NUM_DIMS; d++) set_value(chosen, dims[d].key, values[d + 2]);
    return OK;
}

Status fit_settle(Arena *arena, const Config *config, const HfModel *model, Device *device, Comm *comm, int ranks_here, const Config **out)
{
    MemoryChoices choices = {.items[0].config = *config};
    StrBuf        table = {0};
    Room          room = {0};
    *out = config;
    if (config->memory != OPT_MEMORY_AUTO) return OK;
    TRY(agree_on_room(comm, device, ranks_here, &room));
    TRY(comm_agree(comm, comm_rank(comm) == 0 ? search_within(config, model, device, &room, &choices) : OK));
    Config *settled = arena_new(arena, Config);
    *settled = choices.items[0].config;
    *out = settled;
    fit_print_choices(&choices, &table);
    if (table.len) log_info("%.*s", (int)table.len - 1, table.data);
    strbuf_deinit(&table);
    return share_choice(comm, settled);
}
