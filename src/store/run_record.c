/* See run_record.h. */
#include "store/run_record.h"

#include "base/hash.h"
#include "base/pool.h"
#include "base/scoped.h"
#include "config/options.h"
#include "files/json_file.h"
#include "model/peft.h"
#include "model/weights.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RECORD_BYTES = 16 << 20 };

static size_t line_length(const char *text)
{
    size_t len = strcspn(text, "\n");
    return len + (text[len] == '\n');
}

/* Whether the key of a run file's line has the effect `least`, or an effect that comes later in OptionEffect. */
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

/* Appends the resolved run file without keys of effect `least` or later, and without the lines that belong to those keys. */
static void print_without(const Config *config, OptionEffect least, StrBuf *out)
{
    SCOPED_STRBUF(all);
    bool keep = true;
    config_print(config, &all);
    for (const char *line = strbuf_cstr(&all); *line; line += line_length(line)) {
        size_t len = line_length(line);
        if (*line != ' ' && *line != '-')
            keep = *line != '#' && *line != '\n' && !has_effect(line, len, least); /* other lines continue the key above */
        if (keep) strbuf_append(out, line, len);
    }
}

void run_record_shared(const Config *config, StrBuf *out)
{
    print_without(config, EFFECT_PLACE, out);
}

static uint64_t settings_hash(const RunRecord *record, const StrBuf *settings)
{
    return hash_bytes(record->model.data, record->model.len, hash_bytes(settings->data, settings->len, 0));
}

/* Appends the resolved run file in which every key has its default, including the keys of a dataset. */
static void print_defaults(StrBuf *out)
{
    SCOPED(config_deinit) Config config;
    CHECK(config_parse("defaults", "datasets: [.]", sizeof "datasets: [.]" - 1, NULL, 0, &config, NULL) == OK);
    config_print(&config, out);
}

/* Whether a line of `text` begins with these bytes. */
static bool has_line(const char *text, const char *begin, size_t len)
{
    for (const char *line = text; *line; line += line_length(line))
        if (strncmp(line, begin, len) == 0) return true;
    return false;
}

/* The lines of `now`, without keys that have their default and that `before` lacks: the program that wrote `before` had no such keys. */
static void print_as_before(const char *before, const char *now, StrBuf *out)
{
    SCOPED_STRBUF(defaults);
    print_defaults(&defaults);
    for (const char *line = now; *line; line += line_length(line)) {
        size_t len = line_length(line), key = strcspn(line, ":");
        if (has_line(before, line, key < len ? key + 1 : len) || !has_line(strbuf_cstr(&defaults), line, len))
            strbuf_append(out, line, len);
    }
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
    SCOPED_STRBUF(said);
    print_as_before("", strbuf_cstr(&out->settings), &said);
    out->said_hash = settings_hash(out, &said);
    char *folder = getcwd(NULL, 0);
    if (folder) strbuf_puts(&out->folder, folder);
    free(folder);
}

/* The whole number that the settings give for a key; 0: the key isn't there. */
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

/* Where the lines of the key at `text` end. */
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

/* The path in a line `model: PATH` or `- path: PATH`; data NULL: the line has none, or one in quotes with escapes. */
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

/* The absolute path without links and dots. If the path doesn't exist, as a glob doesn't, only the part before the last slash is resolved.
 * NULL: that part doesn't exist either. */
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
    SCOPED_ARENA(arena);
    if (!there.data || !here.data) return false;
    const char *a = place_of(&arena, there, &before->folder), *b = place_of(&arena, here, &now->folder);
    return a && b && strcmp(a, b) == 0;
}

/* The settings of `before`, with a path spelled as in `here` (this run's settings) if both lead to the same place. */
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

/* Whether the settings are the same, with `before`'s paths respelled, and the model's config.json hasn't changed (by hash). */
static bool same_settings(const RunRecord *before, const RunRecord *now, const StrBuf *respelled, const StrBuf *here)
{
    return strcmp(strbuf_cstr(respelled), strbuf_cstr(here)) == 0 && settings_hash(now, &before->settings) == before->hash;
}

bool run_record_same_settings(const RunRecord *before, const RunRecord *now, StrBuf *difference)
{
    SCOPED_STRBUF(respelled);
    SCOPED_STRBUF(here);
    if (before->hash == now->hash) return true;
    print_as_before(strbuf_cstr(&before->settings), strbuf_cstr(&now->settings), &here);
    respell(before, now, strbuf_cstr(&here), &respelled);
    bool same = same_settings(before, now, &respelled, &here);
    if (!same) run_record_difference(strbuf_cstr(&respelled), strbuf_cstr(&here), difference);
    if (same) return true;
    if (strstr(strbuf_cstr(difference), "\"gradient_accumulation_steps:"))
        strbuf_puts(difference, ", each that of all ranks: gpus times the key; change both");
    return false;
}

bool run_record_has_hash(const RunRecord *record, uint64_t hash)
{
    return hash == record->said_hash || hash == record->hash; /* older checkpoints have the hash of all lines */
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

/* Folds the hash of each of a model's files into *hash. */
static Status fold_files(const StFile *file, ThreadPool *pool, uint64_t *hash)
{
    const char *path;
    for (size_t i = 0; (path = st_path_at(file, i)); i++) {
        uint64_t value;
        TRY(file_hash_parts(pool, path, &value));
        *hash = hash_bytes(&value, sizeof value, *hash);
    }
    return OK;
}

/* One stamp of all the model's files; 0: the stamp of one of them isn't known. */
static uint64_t stamp_files(const StFile *file)
{
    const char *path;
    uint64_t    stamp = 0;
    for (size_t i = 0; (path = st_path_at(file, i)); i++) {
        uint64_t value = file_stamp(path);
        if (!value) return 0;
        stamp = hash_bytes(&value, sizeof value, stamp);
    }
    return stamp;
}

Status run_record_base(HfModel *model, const RunRecord *before, int threads, RunRecord *out)
{
    ThreadPool *pool;
    TRY(hf_model_open_weights(model));
    out->base_stamp = stamp_files(model->weights);
    if (out->base_stamp && out->base_stamp == before->base_stamp) {
        out->base = before->base;
        return OK;
    }
    TRY(pool_create(threads, &pool));
    Status status = fold_files(model->weights, pool, &out->base);
    if (status == OK) status = weights_check_finite(model, pool);
    pool_destroy(pool);
    return status;
}

Status run_record_adapter(const char *dir, RunRecord *out)
{
    SCOPED(st_close_at) StFile *tensors = NULL;
    SCOPED_ARENA(arena);
    uint64_t config = 0;
    TRY(file_hash_parts(NULL, arena_printf(&arena, "%s/adapter_config.json", dir), &config));
    TRY(peft_open_tensors(dir, &tensors));
    out->adapter = hash_bytes(&config, sizeof config, 0);
    return fold_files(tensors, NULL, &out->adapter);
}

/* ---- reading and writing run.json ---- */

/* A hash in run.json. */
typedef struct HashKey {
    const char *key;
    size_t      offset;  /* offset of the field in RunRecord */
    bool        is_rare; /* not written if the hash is 0 */
} HashKey;

static const HashKey hash_keys[] = {
    {"settings_hash", offsetof(RunRecord, hash), false},
    {"base", offsetof(RunRecord, base), false},
    {"base_stamp", offsetof(RunRecord, base_stamp), false},
    {"tokenizer", offsetof(RunRecord, tokenizer), false},
    {"data", offsetof(RunRecord, data), false},
    {"adapter", offsetof(RunRecord, adapter), true},
    {"objective", offsetof(RunRecord, objective), true},
};
enum { NUM_HASHES = sizeof hash_keys / sizeof *hash_keys };

static uint64_t *hash_at(const RunRecord *record, const HashKey *key)
{
    return (uint64_t *)((char *)record + key->offset);
}

/* A missing version counts as 1. If `began` is missing, *began stays unchanged. */
static bool get_numbers(const JsonValue *root, int64_t *began)
{
    int64_t version = 1;
    if (json_get(root, "version") && !(json_get_int(root, "version", &version) && version == 1)) return false;
    return !json_get(root, "began") || (json_get_int(root, "began", began) && *began >= 0);
}

/* A missing hash counts as 0. Only settings_hash is required. */
static bool get_hashes(const JsonValue *root, RunRecord *out)
{
    for (int i = 0; i < NUM_HASHES; i++) {
        const char *key = hash_keys[i].key, *text;
        if (json_get(root, key) && !(json_get_str(root, key, &text) && hash_parse(text, hash_at(out, &hash_keys[i])))) return false;
    }
    return json_get(root, hash_keys[0].key);
}

Status run_record_read(const char *output_dir, RunPresence *out, RunRecord *before)
{
    SCOPED_ARENA(arena);
    const char *path = arena_printf(&arena, "%s/run.json", output_dir), *settings, *folder;
    JsonValue   root;
    bool        finished, is_there;
    *out = RUN_ABSENT;
    *before = (RunRecord){0};
    TRY(file_exists(path, &is_there));
    if (!is_there) return OK;
    TRY(json_file_read(&arena, path, MAX_RECORD_BYTES, &root));
    FAIL_IF(!json_get_bool(&root, "finished", &finished) || !json_get_str(&root, "settings", &settings) || !get_hashes(&root, before) ||
                !get_numbers(&root, &before->began),
            ERR_INVALID, "%s isn't a record of this program; name another output_dir, or remove it", path);
    *out = finished ? RUN_FINISHED : RUN_UNFINISHED;
    strbuf_puts(&before->settings, settings);
    if (json_get_str(&root, "folder", &folder)) strbuf_puts(&before->folder, folder);
    if (!json_get_int(&root, "batch", &before->batch))
        before->batch = setting(settings, "per_device_train_batch_size") * setting(settings, "gradient_accumulation_steps");
    return OK;
}

Status run_record_write(const char *output_dir, const RunRecord *record, bool finished)
{
    SCOPED_ARENA(arena);
    SCOPED_STRBUF(text);
    strbuf_printf(&text, "{\n  \"version\": 1,\n  \"finished\": %s", finished ? "true" : "false");
    for (int i = 0; i < NUM_HASHES; i++) {
        uint64_t hash = *hash_at(record, &hash_keys[i]);
        if (hash || !hash_keys[i].is_rare) strbuf_printf(&text, ",\n  \"%s\": \"%016llx\"", hash_keys[i].key, (unsigned long long)hash);
    }
    strbuf_printf(&text, ",\n  \"began\": %lld,\n  \"folder\": ", (long long)record->began);
    json_write_string(&text, strbuf_cstr(&record->folder), record->folder.len);
    strbuf_printf(&text, ",\n  \"batch\": %lld,\n  \"settings\": ", (long long)record->batch);
    json_write_string(&text, record->settings.data, record->settings.len);
    strbuf_puts(&text, "\n}\n");
    return file_write_atomic(arena_printf(&arena, "%s/run.json", output_dir), text.data, text.len);
}
