/* Turns the run file's datasets into loaders. */
#include "train/run_data.h"

#include "base/hash.h"
#include "base/log.h"
#include "config/options.h"
#include "data/tokenize.h"
#include "files/file.h"
#include "store/run_record.h"
#include "train/few_steps.h"
#include "train/signals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TIME_FILE "time.txt" /* in the cache folder: the time that chat templates print */

enum { PREFETCH = 4, MAX_TEMPLATE_BYTES = 4 << 20 };

/* ---- options of a dataset ---- */

static DatasetType dataset_type(Choice choice)
{
    switch (choice) {
    case OPT_DATASET_TEXT:
        return DATASET_TEXT;
    case OPT_DATASET_INSTRUCTION:
        return DATASET_INSTRUCTION;
    case OPT_DATASET_CONVERSATION:
        return DATASET_CONVERSATION;
    case OPT_DATASET_TOKENS:
        return DATASET_TOKENS;
    default:
        return DATASET_AUTO;
    }
}

static TrainOn train_on(Choice choice)
{
    return choice == OPT_TRAIN_ON_ALL ? TRAIN_ON_ALL : choice == OPT_TRAIN_ON_LAST_TURN ? TRAIN_ON_LAST_TURN : TRAIN_ON_ASSISTANT;
}

static SystemPromptType system_prompt_type(Choice choice)
{
    switch (choice) {
    case OPT_PROMPT_NONE:
        return SYSTEM_PROMPT_NONE;
    case OPT_PROMPT_FIXED:
        return SYSTEM_PROMPT_FIXED;
    case OPT_PROMPT_FIELD:
        return SYSTEM_PROMPT_FIELD;
    default:
        return SYSTEM_PROMPT_DEFAULT;
    }
}

static const char *mapped(const StrMap *map, const char *key)
{
    for (size_t i = 0; i < map->count; i++)
        if (strcmp(map->keys[i], key) == 0) return map->values[i];
    return NULL;
}

static Status check_mappings(const Dataset *dataset)
{
    static const char *const names[] = {"role", "content"};
    const StrMap            *map = &dataset->message_property_mappings;
    for (size_t i = 0; i < map->count; i++) {
        if (strcmp(map->keys[i], names[0]) == 0 || strcmp(map->keys[i], names[1]) == 0) continue;
        Status status = status_fail(ERR_INVALID, "message_property_mappings: unknown key %.100s%s; want role and content", map->keys[i],
                                    did_you_mean(", ", map->keys[i], names, 2));
        return config_at(dataset->origin, KEY_dataset_message_property_mappings, status);
    }
    return OK;
}

static Status take_inputs(const Dataset *dataset, DatasetOptions *out)
{
    const StrMap *map = &dataset->inputs;
    Status        status = OK;
    if (map->count > FEED_MOST_OWN)
        status = status_fail(ERR_INVALID, "inputs: %zu of them; a program has at most %d", map->count, FEED_MOST_OWN);
    for (size_t i = 0; i < map->count && status == OK; i++) {
        if (strlen(map->keys[i]) >= SHARD_NAME_MAX)
            status = status_fail(ERR_INVALID, "inputs: a name of %zu bytes; expected at most %d", strlen(map->keys[i]), SHARD_NAME_MAX - 1);
        else
            out->inputs[out->num_inputs++] = (DatasetInput){map->keys[i], map->values[i]};
    }
    return config_at(dataset->origin, KEY_dataset_inputs, status);
}

Status run_data_options(const Config *config, const Dataset *d, DatasetOptions *out)
{
    TRY(check_mappings(d));
    *out = (DatasetOptions){
        .path = d->path,
        .split = d->split,
        .type = dataset_type(d->type),
        .samples = d->samples,
        .text_field = d->text_field,
        .instruction_field = d->instruction_field,
        .input_field = d->input_field,
        .output_field = d->output_field,
        .system_prompt_type = system_prompt_type(d->system_prompt_type),
        .system_prompt = d->system_prompt,
        .system_prompt_field = d->system_prompt_field,
        .prompt_format = d->prompt_format,
        .prompt_format_no_input = d->prompt_format_no_input,
        .messages_field = d->messages_field,
        .tools_field = d->tools_field,
        .role_property = mapped(&d->message_property_mappings, "role"),
        .content_property = mapped(&d->message_property_mappings, "content"),
        .train_on = train_on(d->train_on != OPT_UNSET ? d->train_on : config->train_on),
        .skip_bad_rows = d->on_bad_row == OPT_BAD_ROW_SKIP,
    };
    return take_inputs(d, out);
}

/* ---- tokenizing ---- */

typedef struct Tokenizing {
    const Config    *config;
    const Tokenizer *tokenizer;
    Template        *tmpl;
    const char      *cache_dir;
    int64_t          now_unix;
    StrBuf          *notes; /* NULL: notes are only logged */
    Arena            arena;
} Tokenizing;

Status run_data_template_text(Arena *arena, const Config *config, Str *out)
{
    const char *given = config->chat_template;
    bool        is_there = false, is_dir = false;
    *out = given ? str_of(given) : (Str){0};
    if (!given || strchr(given, '{')) return OK;
    if (strcmp(given, "chatml") != 0) { /* a file takes precedence over a built-in template of the same name, except chatml */
        TRY(file_exists(given, &is_there));
        TRY(file_is_dir(given, &is_dir));
    }
    if (!is_there || is_dir) {
        *out = template_builtin(given);
        if (out->data) return OK;
    }
    Status status = file_read(arena, given, MAX_TEMPLATE_BYTES, out);
    StrBuf names = {0};
    if (status == OK) return OK;
    template_builtin_names(&names);
    status = status_prefix(status, "chat_template: expected a Jinja text, the path of one, or a built-in one: %s", strbuf_cstr(&names));
    strbuf_deinit(&names);
    return config_at(config->origin, KEY_run_chat_template, status);
}

Status run_data_template(const Config *config, const char *tokenizer_dir, int64_t now_unix, Template **out_template)
{
    const char *given = config->chat_template;
    Arena       arena = {0};
    Str         text;
    *out_template = NULL;
    Status status = given ? run_data_template_text(&arena, config, &text) : template_load(tokenizer_dir, NULL, false, out_template);
    if (status == OK && given) status = template_parse(strchr(given, '{') ? "chat_template" : given, text.data, text.len, out_template);
    if (status == OK && given) status = template_use_folder(*out_template, tokenizer_dir);
    if (status == OK && *out_template) template_stop_clock(*out_template, now_unix);
    arena_deinit(&arena);
    if (status == OK) return OK;
    if (*out_template) template_destroy(*out_template);
    *out_template = NULL;
    return status;
}

static bool show_progress(void *context, int64_t rows, int64_t tokens, double fraction)
{
    const Config *config = context;
    char          line[128];
    if (log_is_terminal()) {
        snprintf(line, sizeof line, "tokenizing: %.0f%%, %lld rows, %lld tokens", 100 * fraction, (long long)rows, (long long)tokens);
        log_status(fraction < 1 ? line : "");
    }
    return !signals_pending(config->begun);
}

static void report_unused(StrBuf *notes, const char *path, const FieldSet *unused)
{
    StrBuf names = {0};
    field_set_put(unused, &names);
    if (unused->count) log_note(notes, false, "%s: fields of its rows that nothing is made of: %s", path, strbuf_cstr(&names));
    strbuf_deinit(&names);
}

static void report(StrBuf *notes, const char *path, const TokenizeReport *r)
{
    log_lines(notes, r->file_notes);
    log_note(notes, false, "%s: %s, %lld documents, %lld tokens%s", path, r->format, (long long)r->num_documents, (long long)r->num_tokens,
             r->was_cached ? " (cached)" : "");
    report_unused(notes, path, &r->unused);
    if (r->num_bad_rows)
        log_note(notes, true, "%s: %lld bad rows were skipped%s", path, (long long)r->num_bad_rows, r->num_examples ? ", the first:" : "");
    for (int i = 0; i < r->num_examples; i++) log_note(notes, false, "  %s", r->examples[i]);
    if (r->num_untrained) log_note(notes, true, "%s: %lld rows without a trained token were left out", path, (long long)r->num_untrained);
    if (r->num_without_stop)
        log_note(
            notes, true,
            "%s: %lld trained turns end without a stop token: the model won't learn to stop there; end them in the chat template with a "
            "special token (eos_token)",
            path, (long long)r->num_without_stop);
    if (r->num_without_calls)
        log_note(notes, true,
                 "%s: %lld trained turns have tool calls that the chat template doesn't print: they aren't learnt; set chat_template to "
                 "one that "
                 "has tool_calls",
                 path, (long long)r->num_without_calls);
    if (r->num_unprinted)
        log_note(notes, true,
                 "%s: %lld messages have a content that the chat template doesn't print: nothing of it is learnt; the first: %s. `surogate "
                 "inspect` shows what is printed",
                 path, (long long)r->num_unprinted, r->first_unprinted);
    if (r->num_empty)
        log_note(notes, true,
                 "%s: %lld trained turns have neither content nor tool calls: the model learns to answer nothing there; leave these rows "
                 "out, or "
                 "mark the messages with \"train\": false",
                 path, (long long)r->num_empty);
}

/* The type of the rows. For a dataset from the cache only a description is known, which begins with the type. */
static Choice type_of(const TokenizeReport *r)
{
    static const Choice types[] = {OPT_DATASET_TEXT, OPT_DATASET_INSTRUCTION, OPT_DATASET_CONVERSATION, OPT_DATASET_TOKENS};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strncmp(r->format, choice_text(types[i]), strlen(choice_text(types[i]))) == 0) return types[i];
    return OPT_DATASET_AUTO;
}

/* Notes the keys that only affect rows of another type. If the run file gives the type, these keys were noted when it was read. */
static void report_idle(StrBuf *notes, const Dataset *given, const TokenizeReport *r)
{
    Dataset typed = *given;
    StrBuf  names = {0};
    typed.type = type_of(r);
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        bool is_set = options[i].scope == SCOPE_dataset && given->origin[i];
        bool is_idle = !option_unmet((ConfigKey)i, given) && option_unmet((ConfigKey)i, &typed);
        is_idle |= i == KEY_dataset_train_on && typed.type == OPT_DATASET_TEXT && given->train_on != OPT_TRAIN_ON_ALL;
        if (is_set && is_idle) strbuf_printf(&names, "%s%s", names.len ? ", " : "", options[i].name);
    }
    if (names.len)
        log_note(notes, true, "%s: no effect on its rows, which are of type %s: %s", given->path, choice_text(typed.type), names.data);
    strbuf_deinit(&names);
}

static TokenizeJob make_job(const Tokenizing *t, const DatasetOptions *options)
{
    return (TokenizeJob){.dataset = options,
                         .tokenizer = t->tokenizer,
                         .tmpl = t->tmpl,
                         .cache_dir = t->cache_dir,
                         .num_threads = (int)t->config->threads,
                         .progress = show_progress,
                         .context = (void *)t->config};
}

static const char *cache_dir(Arena *arena, const Config *config)
{
    return config->dataset_cache_dir ? config->dataset_cache_dir : arena_printf(arena, "%s/data", config->output_dir);
}

/* Stores the time in the cache folder, so that runs which share the cache on different days share its rows. */
static Status keep_time(Arena *arena, const char *cache, int64_t now_unix)
{
    const char *path = arena_printf(arena, "%s/" TIME_FILE, cache), *text = arena_printf(arena, "%lld\n", (long long)now_unix);
    int         lock;
    bool        is_there;
    TRY(file_exists(path, &is_there));
    if (is_there) return OK;
    TRY(file_make_dirs(cache));
    TRY(file_lock(arena_printf(arena, "%s/.lock", cache), "another process writes into the cache; waiting for it", &lock));
    Status status = file_exists(path, &is_there);
    if (status == OK && !is_there) status = file_write_atomic(path, text, strlen(text));
    close(lock);
    return status;
}

static Status tokenize_one(Tokenizing *t, const Dataset *dataset, TokenizeReport *out)
{
    DatasetOptions set;
    TRY(run_data_options(t->config, dataset, &set));
    FAIL_IF(!set.path, ERR_INVALID, "datasets: an item has no path");
    TokenizeJob job = make_job(t, &set);
    if (t->tmpl && template_asks_time(t->tmpl)) TRY(keep_time(&t->arena, t->cache_dir, t->now_unix));
    TRY(tokenize_dataset(&job, out));
    report(t->notes, set.path, out);
    report_idle(t->notes, dataset, out);
    return OK;
}

static Status open_tokenizing(const Config *config, const Tokenizer *tokenizer, const char *tokenizer_dir, int64_t now_unix, Tokenizing *t)
{
    *t = (Tokenizing){.config = config, .tokenizer = tokenizer, .now_unix = now_unix};
    t->cache_dir = cache_dir(&t->arena, config);
    return run_data_template(config, tokenizer_dir, now_unix, &t->tmpl);
}

static void close_tokenizing(Tokenizing *t)
{
    if (t->tmpl) template_destroy(t->tmpl);
    arena_deinit(&t->arena);
}

Status run_data_tokenize(const Config *config, const Tokenizer *tokenizer, const char *tokenizer_dir, int64_t now_unix)
{
    Tokenizing      t;
    TokenizeReport *out = malloc_or_end(sizeof *out);
    Status          status = open_tokenizing(config, tokenizer, tokenizer_dir, now_unix, &t);
    for (size_t i = 0; i < config->datasets.count && status == OK; i++) status = tokenize_one(&t, &config->datasets.items[i], out);
    for (size_t i = 0; i < config->validation_datasets.count && status == OK; i++)
        status = tokenize_one(&t, &config->validation_datasets.items[i], out);
    close_tokenizing(&t);
    free(out);
    return status;
}

/* The time stored in the cache folder: chat templates printed it in the rows there. 0: none is stored. */
static Status cached_time(const Config *config, int64_t *out)
{
    Arena       arena = {0};
    const char *path = arena_printf(&arena, "%s/" TIME_FILE, cache_dir(&arena, config));
    Str         text = {0};
    bool        is_there = false;
    Status      status = file_exists(path, &is_there);
    if (status == OK && is_there) status = file_read(&arena, path, 64, &text);
    *out = text.data ? strtoll(text.data, NULL, 10) : 0;
    arena_deinit(&arena);
    return status;
}

static int64_t noon_of_today(void)
{
    struct tm day;
    time_t    now = time(NULL);
    localtime_r(&now, &day);
    day.tm_hour = 12;
    day.tm_min = day.tm_sec = 0;
    day.tm_isdst = -1;
    return mktime(&day);
}

Status run_data_began(const Config *config, int64_t *out)
{
    RunPresence presence;
    RunRecord   before = {0};
    Status      status = run_record_read(config->output_dir, &presence, &before);
    *out = before.began;
    run_record_deinit(&before);
    if (status == ERR_IO) return status;
    status_clear(); /* the trainer reports a damaged record */
    if (!*out) TRY(cached_time(config, out));
    if (!*out) *out = noon_of_today();
    return OK;
}

static uint64_t fold_key(uint64_t keys, const char *dir)
{
    const char *name = strrchr(dir, '/') + 1;
    return hash_bytes(name, strlen(name), keys);
}

static Status fold_keys(const Tokenizing *t, const DatasetList *list, uint64_t *keys)
{
    char dir[4096];
    for (size_t i = 0; i < list->count; i++) {
        DatasetOptions options;
        TRY(run_data_options(t->config, &list->items[i], &options));
        TokenizeJob job = make_job(t, &options);
        TRY(tokenize_find(&job, dir, sizeof dir, NULL));
        *keys = fold_key(*keys, dir);
    }
    return OK;
}

Status run_data_keys(const Config *config, const Tokenizer *tokenizer, const char *tokenizer_dir, int64_t now_unix, uint64_t *out_keys)
{
    Tokenizing t;
    *out_keys = 0;
    Status status = open_tokenizing(config, tokenizer, tokenizer_dir, now_unix, &t);
    if (status == OK) status = fold_keys(&t, &config->datasets, out_keys);
    if (status == OK) status = fold_keys(&t, &config->validation_datasets, out_keys);
    close_tokenizing(&t);
    return status;
}

static Status open_sets(RunData *data, Tokenizing *t, const DatasetList *list, ShardSet **out_sets, int *out_count)
{
    *out_sets = arena_array(&data->arena, ShardSet, list->count + 1);
    *out_count = 0;
    TokenizeReport *tokenized = malloc_or_end(sizeof *tokenized);
    Status          status = OK;
    for (size_t i = 0; i < list->count && status == OK; i++) {
        status = tokenize_one(t, &list->items[i], tokenized);
        if (status == OK) status = shard_set_open(tokenized->dir, &(*out_sets)[i]);
        if (status != OK) break;
        ++*out_count;
        const ShardSet *set = &(*out_sets)[i];
        int64_t         facts[] = {set->num_tokens, set->num_documents, set->num_trained, (int64_t)set->tokenizer_hash};
        data->hash = hash_bytes(facts, sizeof facts, fold_key(data->hash, tokenized->dir));
        data->keys = fold_key(data->keys, tokenized->dir);
    }
    free(tokenized);
    return status;
}

/* ---- loaders ---- */

static LoaderMode loader_mode(const Config *config, const ShardSet *sets, int count)
{
    if (!config->sample_packing) return LOADER_PADDED;
    for (int i = 0; i < count; i++)
        if (sets[i].has_mask) return LOADER_PACKED;
    return LOADER_STREAM;
}

static Status make_loader(RunData *data, const LoaderOptions *options, const ShardSet *sets, int count, const DatasetList *list,
                          Loader **out)
{
    LoaderSource *sources = arena_array(&data->arena, LoaderSource, count + 1);
    for (int i = 0; i < count; i++) sources[i] = (LoaderSource){&sets[i], list->items[i].weight, list->items[i].path};
    return loader_create(options, sources, count, out);
}

static LongSamples long_samples(Choice choice)
{
    return choice == OPT_LONG_DROP ? LONG_DROP : choice == OPT_LONG_SPLIT ? LONG_SPLIT : LONG_TRUNCATE;
}

InspectPacking run_data_packing(const Config *config, int64_t seq_len)
{
    bool is_error = config->on_long_sample == OPT_LONG_ERROR;
    return (InspectPacking){.seq_len = (int32_t)seq_len,
                            .is_padded = !config->sample_packing,
                            .long_samples = is_error ? LONG_ERROR : long_samples(config->on_long_sample)};
}

/* Notes how much is trained on: documents that remain after cuts, and sequences as the weights choose them. */
static void tell_rows(RunData *data, int64_t seq_len)
{
    const LoaderStats *stats = loader_stats(data->train);
    int64_t            per_step = loader_rows_per_step(data->train);
    char               weighted[64] = "";
    bool               is_whole = stats->rows_an_epoch == (double)stats->rows_per_epoch;
    if (stats->rows_an_epoch != (double)stats->num_rows)
        snprintf(weighted, sizeof weighted, ", by weight %s%.*f of them an epoch", is_whole ? "" : "about ", is_whole ? 0 : 1,
                 stats->rows_an_epoch);
    log_note(
        &data->notes, false,
        "training on %lld documents, %lld tokens (%.1f%% of them trained), %lld sequences of %lld (%.1f%% filled)%s: %lld steps of %lld",
        (long long)stats->num_used, (long long)stats->num_tokens, 100 * (double)stats->num_trained / (double)stats->num_tokens,
        (long long)stats->num_rows, (long long)seq_len, 100 * stats->efficiency, weighted, (long long)data->total_steps,
        (long long)per_step);
}

/* Notes how many samples were cut or left out. */
static void tell_cuts(StrBuf *notes, const LoaderStats *stats)
{
    if (stats->num_split)
        log_note(notes, false, "%lld samples longer than sequence_len were split over several sequences", (long long)stats->num_split);
    if (stats->num_truncated || stats->num_dropped_long)
        log_note(notes, true, "%lld samples longer than sequence_len were cut and %lld left out, %lld tokens in all",
                 (long long)stats->num_truncated, (long long)stats->num_dropped_long, (long long)stats->tokens_cut);
    if (stats->num_dropped_empty)
        log_note(notes, true, "%lld samples were left out: no trained token remained of them", (long long)stats->num_dropped_empty);
}

static Status open_train(const Config *config, const LoaderOptions *base, RunData *data)
{
    LoaderOptions options = *base;
    options.batch_size *= (int32_t)config->per_device_train_batch_size;
    options.grad_accum_steps = (int32_t)config->gradient_accumulation_steps;
    options.num_epochs = config->max_steps > 0 ? 0 : config->num_epochs;
    if (config->on_long_sample == OPT_LONG_ERROR) options.long_samples = LONG_ERROR;
    options.shuffle = true;
    options.prefetch = PREFETCH;
    options.part = config->validation_datasets.count == 0 && config->validation_split_ratio > 0 ? LOADER_TRAIN : LOADER_ALL;
    TRY(make_loader(data, &options, data->train_sets, data->num_train_sets, &config->datasets, &data->train));
    data->total_steps = config->max_steps > 0 ? config->max_steps : loader_num_steps(data->train);
    const char *unseen = loader_unseen(data->train, data->total_steps);
    FAIL_IF(
        unseen, ERR_INVALID,
        "%s: its weight is so small that not one of its samples comes in this run of %lld steps: raise weight, or leave the dataset out",
        unseen, (long long)data->total_steps);
    tell_rows(data, base->seq_len);
    tell_cuts(&data->notes, loader_stats(data->train));
    few_steps_tell(config, data->train, data->total_steps, &data->notes);
    return OK;
}

static Status open_eval(const Config *config, const CompileOptions *compile, const LoaderOptions *base, RunData *data)
{
    LoaderOptions options = *base;
    bool          split = config->validation_datasets.count == 0;
    if (split && !(config->validation_split_ratio > 0)) return OK;
    const ProgramSpec *spec = compile_spec(compile, &entry_eval);
    options.batch_size *= (int32_t)spec->batch;
    options.grad_accum_steps = 1;
    options.num_epochs = 1;
    options.at_least_one = true;
    options.part = split ? LOADER_VALIDATION : LOADER_ALL;
    const ShardSet *sets = split ? data->train_sets : data->eval_sets;
    int             count = split ? data->num_train_sets : data->num_eval_sets;
    options.mode = loader_mode(config, sets, count);
    TRY(make_loader(data, &options, sets, count, split ? &config->datasets : &config->validation_datasets, &data->eval));
    data->losses = arena_array(&data->arena, float, spec->batch * spec->seq);
    return OK;
}

Status run_data_open(const Config *config, const CompileOptions *compile, const Tokenizer *tokenizer, const char *tokenizer_dir,
                     int64_t now_unix, const HfModel *model, RowShare share, RunData *out)
{
    Tokenizing t;
    *out = (RunData){0};
    Status status = open_tokenizing(config, tokenizer, tokenizer_dir, now_unix, &t);
    t.notes = &out->notes;
    if (status == OK && !t.tmpl && tokenizer_eos_id(tokenizer) < 0)
        log_note(t.notes, true,
                 "the tokenizer of %s has no EOS: documents end without one, and the model won't learn to stop; set eos_token in "
                 "tokenizer_config.json",
                 tokenizer_dir);
    if (status == OK) status = open_sets(out, &t, &config->datasets, &out->train_sets, &out->num_train_sets);
    if (status == OK) status = open_sets(out, &t, &config->validation_datasets, &out->eval_sets, &out->num_eval_sets);
    close_tokenizing(&t);
    TRY(status);
    int32_t       pad = tokenizer_pad_id(tokenizer);
    LoaderOptions base = {.mode = loader_mode(config, out->train_sets, out->num_train_sets),
                          .batch_size = share.together ? share.together : 1,
                          .long_samples = long_samples(config->on_long_sample),
                          .validation_ratio = config->validation_datasets.count ? 0 : config->validation_split_ratio,
                          .seq_len = (int32_t)compile_spec(compile, &entry_micro)->seq,
                          .seed = (uint64_t)config->seed,
                          .pad_id = pad >= 0 ? pad : 0,
                          .vocab_size = (int32_t)model->vocab_size,
                          .inputs = model->module->inputs,
                          .num_inputs = model->module->num_inputs,
                          .rank = share.rank,
                          .world_size = share.world};
    TRY(open_train(config, &base, out));
    return open_eval(config, compile, &base, out);
}

/* Checks that an input's values are from 0 to `bound` - 1. They index the rows of a table that a program reads. bound INT64_MAX: no program
 * uses them as indices. */
static Status check_set(const ShardSet *set, const Dataset *dataset, const OwnInput *input, int64_t bound)
{
    ShardColumn column;
    if (bound == INT64_MAX || shard_set_column(set, input->name, &column) < 0) return OK;
    bool takes_ignored = input->pad == LABEL_IGNORE, is_ignored = column.has_ignored && !takes_ignored,
         is_empty = column.least > column.most;
    if (!is_ignored && (is_empty || (column.least >= 0 && column.most < (double)bound))) return OK;
    Status status =
        status_fail(ERR_INVALID, "%s: inputs: %s has numbers from %g to %g; expected 0 to %lld%s", dataset->path, input->name,
                    is_ignored ? LABEL_IGNORE : column.least, column.most, (long long)bound - 1, takes_ignored ? ", or -100" : "");
    return config_at(dataset->origin, KEY_dataset_inputs, status);
}

Status run_data_check_inputs(const RunData *data, const Config *config, const HfModel *model, const Plan *plan)
{
    for (int i = 0; i < model->module->num_inputs; i++) {
        const OwnInput *input = &model->module->inputs[i];
        int64_t         bound = compile_index_bound(plan, input->name);
        if (input->dtype != DT_I32) continue;
        for (int s = 0; s < data->num_train_sets; s++) TRY(check_set(&data->train_sets[s], &config->datasets.items[s], input, bound));
        for (int s = 0; s < data->num_eval_sets; s++)
            TRY(check_set(&data->eval_sets[s], &config->validation_datasets.items[s], input, bound));
    }
    return OK;
}

void run_data_close(RunData *data)
{
    loader_destroy(data->train);
    loader_destroy(data->eval);
    strbuf_deinit(&data->notes);
    for (int i = 0; i < data->num_train_sets; i++) shard_set_close(&data->train_sets[i]);
    for (int i = 0; i < data->num_eval_sets; i++) shard_set_close(&data->eval_sets[i]);
    arena_deinit(&data->arena);
    *data = (RunData){0};
}
