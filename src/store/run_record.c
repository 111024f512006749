/* See run_record.h. */
#include "store/run_record.h"

#include "base/hash.h"
#include "base/pool.h"
#include "config/options.h"
#include "files/file.h"
#include "model/peft.h"
#include "model/weights.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RECORD_BYTES = 16 << 20 };

/* Whether the key of a line of a run file is of this effect, or of one behind it. */
static bool has_effect(const char *line, size_t len, OptionEffect least)
{
    char   name[64];
    size_t n = strcspn(line, ":");
    if (n >= len || n >= sizeof name) return false;
    memcpy(name, line, n);
    name[n] = 0;
    const OptionInfo *option = option_find(SCOPE_run, name);
    return option && option->effect >= least;
}

/* The resolved run file less the keys of these effects, with what belongs to them. */
static void print_without(const Config *config, OptionEffect least, StrBuf *out)
{
    StrBuf all = {0};
    bool   keep = true;
    config_print(config, &all);
    for (const char *line = strbuf_cstr(&all); *line;) {
        size_t len = strcspn(line, "\n");
        len += line[len] == '\n';
        if (*line != ' ' && *line != '-')
            keep = *line != '#' && *line != '\n' && !has_effect(line, len, least); /* else it goes on with the key above */
        if (keep) strbuf_append(out, line, len);
        line += len;
    }
    strbuf_deinit(&all);
}

void run_record_shared(const Config *config, StrBuf *out)
{
    print_without(config, EFFECT_PLACE, out);
}

static uint64_t settings_hash(const RunRecord *record, const StrBuf *settings)
{
    return hash_bytes(record->model.data, record->model.len, hash_bytes(settings->data, settings->len, 0));
}

/* Lines of a resolved run file, of a dataset's keys too, as they are where nothing is said. */
static void print_defaults(StrBuf *out)
{
    Config config;
    Status status = config_parse("defaults", "datasets: [.]", sizeof "datasets: [.]" - 1, NULL, 0, &config, NULL);
    CHECK(status == OK);
    config_print(&config, out);
    config_deinit(&config);
}

static size_t line_length(const char *text)
{
    size_t len = strcspn(text, "\n");
    return len + (text[len] == '\n');
}

/* Whether a line of `text` begins with these bytes. */
static bool has_line(const char *text, const char *begin, size_t len)
{
    for (const char *line = text; *line; line += line_length(line))
        if (strncmp(line, begin, len) == 0) return true;
    return false;
}

/* The lines of `now` without those of keys that `before` lacks and that have their default: a program that had no such key wrote it. */
static void print_as_before(const char *before, const char *now, StrBuf *out)
{
    StrBuf defaults = {0};
    print_defaults(&defaults);
    for (const char *line = now; *line; line += line_length(line)) {
        size_t len = line_length(line), key = strcspn(line, ":");
        if (has_line(before, line, key < len ? key + 1 : len) || !has_line(strbuf_cstr(&defaults), line, len))
            strbuf_append(out, line, len);
    }
    strbuf_deinit(&defaults);
}

void run_record_make(const Config *config, const HfModel *model, int world, int64_t began, RunRecord *out)
{
    Config alone = *config;
    alone.gradient_accumulation_steps *= world;
    *out = (RunRecord){.began = began};
    print_without(&alone, EFFECT_FREE, &out->settings);
    out->model = model->config_text;
    out->hash = settings_hash(out, &out->settings);
    if (model->module->objective) out->objective = hash_bytes(model->module->objective->text, model->module->objective->len, 0);
    for (int i = 0; i < model->num_namespaces; i++)
        out->objective = hash_bytes(model->namespaces[i]->config_text.data, model->namespaces[i]->config_text.len, out->objective);
    StrBuf said = {0};
    print_as_before("", strbuf_cstr(&out->settings), &said);
    out->said_hash = settings_hash(out, &said);
    strbuf_deinit(&said);
    char *folder = getcwd(NULL, 0);
    if (folder) strbuf_puts(&out->folder, folder);
    free(folder);
}

/* The whole number of a key in the settings, 0: none. */
static int64_t setting(const char *settings, const char *key)
{
    size_t len = strlen(key);
    for (const char *line = settings; *line; line += line_length(line))
        if (strncmp(line, key, len) == 0 && line[len] == ':') return strtoll(line + len + 1, NULL, 10);
    return 0;
}

void run_record_deinit(RunRecord *record)
{
    strbuf_deinit(&record->settings);
    strbuf_deinit(&record->folder);
}

/* A key with what belongs to it. */
static const char *entry_end(const char *text)
{
    do text += line_length(text);
    while (*text == ' ' || *text == '-');
    return text;
}

static void tell_line(StrBuf *out, const char *where, const char *line, const char *end)
{
    while (*line == ' ') line++;
    if (line < end)
        strbuf_printf(out, "%s \"%.*s\"", where, (int)strcspn(line, "\n"), line);
    else
        strbuf_printf(out, "%s nothing", where);
}

void run_record_difference(const char *before, const char *now, StrBuf *out)
{
    while (*before || *now) {
        const char *key = *before ? before : now, *begin = before, *end_before = entry_end(before), *end_now = entry_end(now);
        while (before < end_before && now < end_now) {
            size_t len = line_length(before);
            if (len != line_length(now) || memcmp(before, now, len) != 0) break;
            before += len;
            now += len;
        }
        if (before == end_before && now == end_now) continue;
        if (before != begin) strbuf_printf(out, "%.*s: ", (int)strcspn(key, ":"), key);
        tell_line(out, "there", before, end_before);
        tell_line(out, ", here", now, end_now);
        return;
    }
    strbuf_puts(out, "the model's config.json differs");
}

/* The path of a line `model: PATH` or `  - path: PATH`; data NULL: it has none, or one in quotes with escapes. */
static Str path_of(const char *line, size_t len)
{
    static const char *const keys[] = {
        "model: ", "tokenizer: ", "ir: ", "objective: ", "teacher_model: ", "chat_template: ", "adapter: ", "path: "};
    Str none = {0};
    while (len && (*line == ' ' || *line == '-')) line++, len--;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t n = strlen(keys[i]);
        if (len <= n || strncmp(line, keys[i], n) != 0) continue;
        Str path = {line + n, len - n};
        if (path.data[path.len - 1] == '\n') path.len--;
        if (path.len < 2 || *path.data != '"') return path;
        path = (Str){path.data + 1, path.len - 2};
        return memchr(path.data, '\\', path.len) ? none : path;
    }
    return none;
}

/* Where it leads, without links and dots; of a glob the part before its last slash. NULL: to nothing that is there. */
static const char *place_of(Arena *arena, Str path, const StrBuf *folder)
{
    char        found[PATH_MAX];
    bool        is_relative = path.len && path.data[0] != '/' && folder->len;
    const char *whole = arena_printf(arena, "%s%s%.*s", is_relative ? folder->data : "", is_relative ? "/" : "", (int)path.len, path.data);
    if (realpath(whole, found)) return arena_strdup(arena, found);
    char *slash = strrchr(whole, '/');
    if (!slash || !slash[1] || slash == whole) return NULL;
    *slash = 0;
    return realpath(whole, found) ? arena_printf(arena, "%s/%s", found, slash + 1) : NULL;
}

static bool is_same_place(const RunRecord *before, Str there, const RunRecord *now, Str here)
{
    Arena arena = {0};
    if (!there.data || !here.data) return false;
    const char *a = place_of(&arena, there, &before->folder), *b = place_of(&arena, here, &now->folder);
    bool        same = a && b && strcmp(a, b) == 0;
    arena_deinit(&arena);
    return same;
}

/* The settings of before, with the paths of this run's spelling where they lead to the same place. here: this run's settings. */
static void respell(const RunRecord *before, const RunRecord *now, const char *here, StrBuf *out)
{
    const char *there = strbuf_cstr(&before->settings);
    while (*there) {
        size_t len = line_length(there), len_here = line_length(here);
        if (is_same_place(before, path_of(there, len), now, path_of(here, len_here)))
            strbuf_append(out, here, len_here);
        else
            strbuf_append(out, there, len);
        there += len;
        here += len_here;
    }
}

/* As hashes tell it: before's settings may be spelled in another way, and the model's config.json is the one of then. */
static bool same_settings(const RunRecord *before, const RunRecord *now, const StrBuf *respelled, const StrBuf *here)
{
    return strcmp(strbuf_cstr(respelled), strbuf_cstr(here)) == 0 && settings_hash(now, &before->settings) == before->hash;
}

bool run_record_same_settings(const RunRecord *before, const RunRecord *now, StrBuf *difference)
{
    StrBuf respelled = {0}, here = {0};
    if (before->hash == now->hash) return true;
    print_as_before(strbuf_cstr(&before->settings), strbuf_cstr(&now->settings), &here);
    respell(before, now, strbuf_cstr(&here), &respelled);
    bool same = same_settings(before, now, &respelled, &here);
    if (!same) run_record_difference(strbuf_cstr(&respelled), strbuf_cstr(&here), difference);
    strbuf_deinit(&respelled);
    strbuf_deinit(&here);
    if (same) return true;
    if (strstr(strbuf_cstr(difference), "\"gradient_accumulation_steps:"))
        strbuf_puts(difference, ", each that of all ranks: gpus times the key; change both");
    return false;
}

bool run_record_has_hash(const RunRecord *record, uint64_t hash)
{
    return hash == record->said_hash || hash == record->hash; /* older ones have that of all lines */
}

static bool differ(uint64_t a, uint64_t b)
{
    return a && b && a != b;
}

const char *run_record_changed_input(const RunRecord *before, const RunRecord *now)
{
    if (differ(before->base, now->base)) return "the model's weights";
    if (differ(before->adapter, now->adapter)) return "the files of the adapter that it goes on from";
    if (differ(before->objective, now->objective)) return "the objective, or the config.json of a model that it reads,";
    if (differ(before->tokenizer, now->tokenizer)) return "the tokenizer's files";
    return differ(before->data, now->data) ? "the datasets, or how they are tokenized," : NULL;
}

static Status fold_files(const StFile *file, ThreadPool *pool, uint64_t *hash, uint64_t *stamp)
{
    const char *path;
    bool        settled = true;
    for (size_t i = 0; (path = st_path_at(file, i)); i++) {
        uint64_t value = 0;
        if (hash)
            TRY(file_hash_parts(pool, path, &value));
        else
            value = file_stamp(path);
        settled &= value != 0;
        if (hash)
            *hash = hash_bytes(&value, sizeof value, *hash);
        else
            *stamp = hash_bytes(&value, sizeof value, *stamp);
    }
    if (stamp && !settled) *stamp = 0;
    return OK;
}

Status run_record_base(HfModel *model, const RunRecord *before, int threads, RunRecord *out)
{
    ThreadPool *pool;
    TRY(hf_model_open_weights(model));
    TRY(fold_files(model->weights, NULL, NULL, &out->base_stamp));
    if (out->base_stamp && out->base_stamp == before->base_stamp) {
        out->base = before->base;
        return OK;
    }
    TRY(pool_create(threads, &pool));
    Status status = fold_files(model->weights, pool, &out->base, NULL);
    if (status == OK) status = weights_check_finite(model, pool);
    pool_destroy(pool);
    return status;
}

Status run_record_adapter(const char *dir, RunRecord *out)
{
    StFile  *tensors;
    char     path[4096];
    uint64_t config = 0;
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    TRY(file_hash_parts(NULL, path, &config));
    TRY(peft_open_tensors(dir, &tensors));
    out->adapter = hash_bytes(&config, sizeof config, 0);
    Status status = fold_files(tensors, NULL, &out->adapter, NULL);
    st_close(tensors);
    return status;
}

/* An absent version is 1, an absent time isn't known. */
static bool get_numbers(const JsonValue *root, int64_t *began)
{
    int64_t version = 1;
    if (json_get(root, "version") && !(json_get_int(root, "version", &version) && version == 1)) return false;
    return !json_get(root, "began") || (json_get_int(root, "began", began) && *began >= 0);
}

/* An absent hash is 0. */
static bool get_hash(const JsonValue *root, const char *key, uint64_t *out)
{
    const char *text;
    *out = 0;
    return !json_get(root, key) || (json_get_str(root, key, &text) && hash_parse(text, out));
}

Status run_record_read(const char *output_dir, RunPresence *out, RunRecord *before)
{
    Arena       arena = {0};
    const char *path = arena_printf(&arena, "%s/run.json", output_dir), *settings = "", *folder = "";
    Str         text;
    JsonValue   root;
    bool        finished = false;
    *out = RUN_ABSENT;
    *before = (RunRecord){0};
    bool   is_there;
    Status status = file_exists(path, &is_there);
    if (status != OK || !is_there) {
        arena_deinit(&arena);
        return status;
    }
    status = file_read(&arena, path, MAX_RECORD_BYTES, &text);
    if (status == OK) status = json_parse(&arena, path, text.data, text.len, &root);
    if (status == OK &&
        !(json_get_bool(&root, "finished", &finished) && json_get_str(&root, "settings", &settings) && json_get(&root, "settings_hash") &&
          get_hash(&root, "settings_hash", &before->hash) && get_hash(&root, "base", &before->base) &&
          get_hash(&root, "base_stamp", &before->base_stamp) && get_hash(&root, "tokenizer", &before->tokenizer) &&
          get_hash(&root, "adapter", &before->adapter) && get_hash(&root, "objective", &before->objective) &&
          get_hash(&root, "data", &before->data) && get_numbers(&root, &before->began)))
        status = status_fail(ERR_INVALID, "%s isn't a record of this program; name another output_dir, or remove it", path);
    if (status == OK) *out = finished ? RUN_FINISHED : RUN_UNFINISHED;
    if (status == OK) strbuf_puts(&before->settings, settings);
    if (status == OK && json_get_str(&root, "folder", &folder)) strbuf_puts(&before->folder, folder);
    if (status == OK && !json_get_int(&root, "batch", &before->batch))
        before->batch = setting(settings, "per_device_train_batch_size") * setting(settings, "gradient_accumulation_steps");
    arena_deinit(&arena);
    return status;
}

static void put_hash(StrBuf *out, const char *key, uint64_t hash)
{
    strbuf_printf(out, ",\n  \"%s\": \"%016llx\"", key, (unsigned long long)hash);
}

Status run_record_write(const char *output_dir, const RunRecord *record, bool finished)
{
    StrBuf text = {0};
    char   path[4096];
    snprintf(path, sizeof path, "%s/run.json", output_dir);
    strbuf_printf(&text, "{\n  \"version\": 1,\n  \"finished\": %s", finished ? "true" : "false");
    put_hash(&text, "settings_hash", record->hash);
    put_hash(&text, "base", record->base);
    put_hash(&text, "base_stamp", record->base_stamp);
    put_hash(&text, "tokenizer", record->tokenizer);
    put_hash(&text, "data", record->data);
    if (record->adapter) put_hash(&text, "adapter", record->adapter);
    if (record->objective) put_hash(&text, "objective", record->objective);
    strbuf_printf(&text, ",\n  \"began\": %lld", (long long)record->began);
    strbuf_puts(&text, ",\n  \"folder\": ");
    json_write_string(&text, strbuf_cstr(&record->folder), record->folder.len);
    strbuf_printf(&text, ",\n  \"batch\": %lld", (long long)record->batch);
    strbuf_puts(&text, ",\n  \"settings\": ");
    json_write_string(&text, record->settings.data, record->settings.len);
    strbuf_puts(&text, "\n}\n");
    Status status = file_write_atomic(path, text.data, text.len);
    strbuf_deinit(&text);
    return status;
}
