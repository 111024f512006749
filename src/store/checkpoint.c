/* Finding, checking and loading checkpoints. */
#include "store/checkpoint_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/scoped.h"
#include "files/json_file.h"
#include "model/weights.h"
#include "store/output_lock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JSON_BYTES = 64 << 20 };

bool checkpoint_get_hash(const JsonValue *object, const char *key, uint64_t *out)
{
    const char *text;
    return json_get_str(object, key, &text) && hash_parse(text, out);
}

/* Checks the file part by part: several ranks wrote it, and the manifest has a checksum for each part. */
static Status verify_parts(Arena *arena, const char *path, const JsonValue *parts)
{
    uint64_t want, have;
    int64_t  bytes;
    TRY(file_size(path, &bytes));
    FAIL_IF(parts->type != JSON_ARRAY || (int64_t)parts->count != (bytes + FILE_HASH_PART_BYTES - 1) / FILE_HASH_PART_BYTES, ERR_CHECKPOINT,
            "%s: the manifest has another number of parts", path);
    for (uint32_t i = 0; i < parts->count; i++) {
        const JsonValue *part = &parts->items[i];
        size_t           begin = (size_t)i * FILE_HASH_PART_BYTES, end = begin + FILE_HASH_PART_BYTES;
        FAIL_IF(part->type != JSON_STRING || !hash_parse(part->string.data, &want), ERR_CHECKPOINT,
                "%s: part %u of the manifest is no checksum", path, i);
        TRY(file_hash_range(path, i, i + 1, &have));
        if (have == want) continue;
        const char *tensor = checkpoint_states_at(arena, path, begin, end);
        FAIL(ERR_CHECKPOINT, "%s was changed or damaged in bytes %zu to %zu%s%s: their checksum is %016llx, the manifest says %016llx",
             path, begin, end, tensor ? ", where there is tensor " : "", tensor ? tensor : "", (unsigned long long)have,
             (unsigned long long)want);
    }
    return OK;
}

/* Whether `name` is a file of the checkpoint folder itself, or of its folder of chat templates. */
static bool is_inside(const char *name)
{
    size_t inner = strlen(HF_TEMPLATE_FOLDER "/");
    if (strncmp(name, HF_TEMPLATE_FOLDER "/", inner) == 0) name += inner;
    return *name && !strchr(name, '/') && strcmp(name, "..") != 0;
}

static Status verify_file(Arena *arena, const char *folder, const JsonValue *entry)
{
    const char      *name;
    int64_t          bytes;
    uint64_t         want = 0, have;
    const JsonValue *parts = json_get(entry, "xxh3_parts");
    FAIL_IF(!json_get_str(entry, "name", &name) || !json_get_int(entry, "bytes", &bytes) ||
                (!parts && !checkpoint_get_hash(entry, "xxh3", &want)),
            ERR_CHECKPOINT, "%s/" MANIFEST_NAME ": an entry without name, bytes or xxh3", folder);
    FAIL_IF(!is_inside(name), ERR_CHECKPOINT, "%s/" MANIFEST_NAME ": \"%s\" is no file of this folder", folder, name);
    const char *path = arena_printf(arena, "%s/%s", folder, name);
    int64_t     size;
    TRY(file_size(path, &size));
    FAIL_IF(size < 0, ERR_CHECKPOINT, "%s is missing", path);
    FAIL_IF(size != bytes, ERR_CHECKPOINT, "%s has %lld bytes, the manifest says %lld", path, (long long)size, (long long)bytes);
    if (parts) return verify_parts(arena, path, parts);
    TRY(file_hash(path, &have));
    if (have == want) return OK;
    const JsonValue *sums = json_get(entry, "tensors");
    const char      *tensor = sums && sums->type == JSON_OBJECT ? checkpoint_states_damaged(arena, path, sums) : NULL;
    FAIL(ERR_CHECKPOINT, "%s was changed or damaged%s%s: its checksum is %016llx, the manifest says %016llx", path,
         tensor ? ", in tensor " : "", tensor ? tensor : "", (unsigned long long)have, (unsigned long long)want);
}

/* Whether the entry is a file that using the model or adapter needs. The other files are needed only to resume. */
static bool is_of_model(const JsonValue *entry)
{
    const char *name;
    return json_get_str(entry, "name", &name) && (strncmp(name, "model", 5) == 0 || strncmp(name, "adapter", 7) == 0 ||
                                                  strncmp(name, "tokenizer", 9) == 0 || strcmp(name, "config.json") == 0);
}

/* This program's files have version 1, or no version. */
static Status check_version(const char *name, const JsonValue *root)
{
    int64_t          version;
    const JsonValue *value = json_get(root, "version");
    FAIL_IF(value && !(json_get_int(root, "version", &version) && version == 1), ERR_CHECKPOINT,
            "%s is of another version; this program reads version 1", name);
    return OK;
}

static Status verify_files(Arena *arena, const char *path, bool only_model)
{
    const char *name = arena_printf(arena, "%s/" MANIFEST_NAME, path), *file;
    JsonValue   manifest;
    bool        has_states = false, has_weights = false, is_there;
    TRY(file_exists(name, &is_there));
    FAIL_IF(!is_there, ERR_CHECKPOINT, "%s has no " MANIFEST_NAME ": it is not a whole checkpoint of this program", path);
    TRY(json_file_read(arena, name, MAX_JSON_BYTES, &manifest));
    TRY(check_version(name, &manifest));
    const JsonValue *files = json_get(&manifest, "files");
    FAIL_IF(!files || files->type != JSON_ARRAY || files->count == 0, ERR_CHECKPOINT, "%s: expected a list under \"files\"", name);
    for (uint32_t i = 0; i < files->count; i++) {
        if (!only_model || is_of_model(&files->items[i])) TRY(verify_file(arena, path, &files->items[i]));
        if (!json_get_str(&files->items[i], "name", &file)) continue;
        has_states |= strcmp(file, OPTIMIZER_NAME) == 0;
        has_weights |= is_of_model(&files->items[i]) && strstr(file, ".safetensors");
    }
    FAIL_IF(!has_weights || (!has_states && !only_model), ERR_CHECKPOINT, "%s: it lists no %s", name,
            has_weights ? OPTIMIZER_NAME : "safetensors of weights");
    return OK;
}

Status checkpoint_is_ours(const char *path, bool *out)
{
    SCOPED_ARENA(arena);
    const char *name;
    JsonValue   manifest;
    int64_t     bytes, size;
    bool        has_state = false;
    *out = false;
    Status status = json_file_read(&arena, arena_printf(&arena, "%s/" MANIFEST_NAME, path), MAX_JSON_BYTES, &manifest);
    if (status == ERR_IO) return status;
    status_clear();
    const JsonValue *files = status == OK ? json_get(&manifest, "files") : NULL;
    if (!files || files->type != JSON_ARRAY) return OK; /* no manifest, or another program's */
    for (uint32_t i = 0; i < files->count; i++) {
        if (!json_get_str(&files->items[i], "name", &name) || !json_get_int(&files->items[i], "bytes", &bytes)) return OK;
        TRY(file_size(arena_printf(&arena, "%s/%s", path, name), &size));
        if (size != bytes) return OK;
        has_state |= strcmp(name, STATE_NAME) == 0;
    }
    *out = has_state;
    return OK;
}

Status checkpoint_load_tuning(const char *path, Device *device)
{
    SCOPED_ARENA(arena);
    Str         text;
    const char *name = arena_printf(&arena, "%s/" TUNING_NAME, path);
    bool        is_there;
    TRY(file_exists(name, &is_there));
    if (!device->api->tuning_set || !is_there) return OK;
    TRY(file_read(&arena, name, 1 << 20, &text));
    device->api->tuning_set(device, text.data);
    return OK;
}

/* ---- run_state.json ---- */

/* The counts of run_state.json, in the order of that file. */
static const struct {
    const char *key;
    size_t      offset; /* offset of the field in TrainState */
} counts[] = {
    {"step", offsetof(TrainState, step)},
    {"applied", offsetof(TrainState, applied)},
    {"skipped", offsetof(TrainState, skipped)},
    {"bad_in_row", offsetof(TrainState, bad_in_row)},
    {"total_tokens", offsetof(TrainState, total_tokens)},
    {"total_trained", offsetof(TrainState, total_trained)},
    {"metrics_bytes", offsetof(TrainState, metrics_bytes)},
};
enum { NUM_COUNTS = sizeof counts / sizeof *counts };

static int64_t *count_at(const TrainState *s, int index)
{
    return (int64_t *)((char *)s + counts[index].offset);
}

Status checkpoint_write_state(const char *folder, const TrainState *s)
{
    SCOPED_ARENA(arena);
    SCOPED_STRBUF(text);
    strbuf_puts(&text, "{\n  \"version\": 1");
    for (int i = 0; i < NUM_COUNTS; i++) strbuf_printf(&text, ",\n  \"%s\": %lld", counts[i].key, (long long)*count_at(s, i));
    strbuf_printf(&text,
                  ",\n  \"metrics_hash\": \"%016llx\",\n  \"eval_pending\": %s,\n  \"settings_hash\": \"%016llx\",\n"
                  "  \"data_hash\": \"%016llx\"",
                  (unsigned long long)s->metrics_hash, s->eval_pending ? "true" : "false", (unsigned long long)s->settings_hash,
                  (unsigned long long)s->data_hash);
    if (s->rows >= 0) strbuf_printf(&text, ",\n  \"rows\": %lld", (long long)s->rows);
    if (s->best.step) {
        strbuf_printf(&text, ",\n  \"best_step\": %lld,\n  \"best_loss\": ", (long long)s->best.step);
        json_write_double(&text, s->best.loss);
    }
    if (s->evals_since) strbuf_printf(&text, ",\n  \"evals_since_best\": %lld", (long long)s->evals_since);
    strbuf_puts(&text, "\n}\n");
    return file_write_atomic(arena_printf(&arena, "%s/" STATE_NAME, folder), text.data, text.len);
}

/* Refuses a state that no run writes, even if its checksum is right. */
static Status check_state(Arena *arena, const char *folder, const char *name, const TrainState *s)
{
    const char *dir;
    int64_t     named = checkpoint_step_of(arena, folder, &dir);
    for (int i = 0; i < NUM_COUNTS; i++) FAIL_IF(*count_at(s, i) < 0, ERR_CHECKPOINT, "%s: %s is below 0", name, counts[i].key);
    FAIL_IF(s->applied > s->step || s->skipped != s->step - s->applied, ERR_CHECKPOINT,
            "%s: applied %lld and skipped %lld aren't step %lld together", name, (long long)s->applied, (long long)s->skipped,
            (long long)s->step);
    FAIL_IF(s->bad_in_row > s->skipped, ERR_CHECKPOINT, "%s: bad_in_row %lld, but only %lld steps were skipped", name,
            (long long)s->bad_in_row, (long long)s->skipped);
    FAIL_IF(s->total_trained > s->total_tokens, ERR_CHECKPOINT, "%s: %lld tokens were trained, but only %lld were read", name,
            (long long)s->total_trained, (long long)s->total_tokens);
    FAIL_IF(s->best.step < 0 || s->best.step > s->step || s->evals_since < 0, ERR_CHECKPOINT,
            "%s: best_step %lld with evals_since_best %lld at step %lld", name, (long long)s->best.step, (long long)s->evals_since,
            (long long)s->step);
    FAIL_IF(named >= 0 && named != s->step, ERR_CHECKPOINT, "%s is of step %lld, its folder is checkpoint-%lld", name, (long long)s->step,
            (long long)named);
    return OK;
}

/* Reads the keys of the best evaluation. Checkpoints lack them if they are older, or if the run hasn't evaluated. */
static Status read_best(const JsonValue *root, const char *name, TrainState *s)
{
    FAIL_IF(json_get(root, "evals_since_best") && !json_get_int(root, "evals_since_best", &s->evals_since), ERR_CHECKPOINT,
            "%s: evals_since_best is no whole number", name);
    if (!json_get(root, "best_step")) return OK;
    FAIL_IF(!json_get_int(root, "best_step", &s->best.step) || !json_get_double(root, "best_loss", &s->best.loss) ||
                !isfinite(s->best.loss),
            ERR_CHECKPOINT, "%s: best_step and best_loss aren't a whole number and a number", name);
    return OK;
}

Status checkpoint_read_state(const char *folder, TrainState *s)
{
    SCOPED_ARENA(arena);
    JsonValue   root;
    const char *name = arena_printf(&arena, "%s/" STATE_NAME, folder);
    *s = (TrainState){0};
    TRY(json_file_read(&arena, name, MAX_JSON_BYTES, &root));
    TRY(check_version(name, &root));
    for (int i = 0; i < NUM_COUNTS; i++) {
        const char *key = counts[i].key;
        bool        is_old = count_at(s, i) == &s->total_trained && !json_get(&root, key);
        if (is_old) s->total_trained = s->total_tokens; /* older checkpoints have only total_tokens */
        FAIL_IF(!is_old && !json_get_int(&root, key, count_at(s, i)), ERR_CHECKPOINT, "%s: %s is missing, or no whole number", name, key);
    }
    FAIL_IF(!json_get_bool(&root, "eval_pending", &s->eval_pending), ERR_CHECKPOINT,
            "%s: eval_pending is missing, or neither true nor false", name);
    FAIL_IF(!checkpoint_get_hash(&root, "settings_hash", &s->settings_hash) || !checkpoint_get_hash(&root, "data_hash", &s->data_hash) ||
                (json_get(&root, "metrics_hash") && !checkpoint_get_hash(&root, "metrics_hash", &s->metrics_hash)),
            ERR_CHECKPOINT, "%s: settings_hash, data_hash or metrics_hash isn't 16 hexadecimal digits", name);
    s->rows = -1;
    FAIL_IF(json_get(&root, "rows") && !(json_get_int(&root, "rows", &s->rows) && s->rows >= 0), ERR_CHECKPOINT, "%s: \"rows\" is no count",
            name);
    TRY(read_best(&root, name, s));
    return check_state(&arena, folder, name, s);
}

Status checkpoint_has_best(const char *output_dir, const BestEval *best, bool *out)
{
    SCOPED_ARENA(arena);
    TrainState  state;
    const char *path = checkpoint_path(&arena, output_dir, best->step);
    TRY(checkpoint_is_ours(path, out));
    *out = *out && checkpoint_read_state(path, &state) == OK && state.best.step == best->step && state.best.loss == best->loss;
    status_clear();
    return OK;
}

Status checkpoint_verify(const char *path)
{
    SCOPED_ARENA(arena);
    TrainState state;
    return verify_files(&arena, path, false) == OK && checkpoint_read_state(path, &state) == OK ? OK : ERR_CHECKPOINT;
}

Status checkpoint_newest(const char *output_dir, char *out_path, size_t path_bytes)
{
    SCOPED_ARENA(arena);
    int64_t *steps;
    size_t   count;
    out_path[0] = 0;
    TRY(checkpoint_list(&arena, output_dir, &steps, &count));
    while (count-- > 0) {
        const char *path = checkpoint_path(&arena, output_dir, steps[count]);
        if (checkpoint_verify(path) == OK) {
            snprintf(out_path, path_bytes, "%s", path);
            return OK;
        }
        log_warn("skipping %s: %s", path, status_message());
        status_clear();
    }
    return OK;
}

/* *out: whether this program wrote the folder, even if most of its files are gone. */
static Status was_ours(Arena *arena, const char *path, bool *out)
{
    TRY(file_exists(arena_printf(arena, "%s/" MANIFEST_NAME, path), out));
    return *out ? OK : file_exists(arena_printf(arena, "%s/" STATE_NAME, path), out);
}

Status checkpoint_refuse_damaged(const char *output_dir)
{
    SCOPED_ARENA(arena);
    int64_t    *steps;
    size_t      count;
    const char *newest = NULL, *usable = NULL;
    TRY(checkpoint_list(&arena, output_dir, &steps, &count));
    while (count-- > 0 && !usable) {
        const char *path = checkpoint_path(&arena, output_dir, steps[count]);
        bool        is_ours;
        TRY(was_ours(&arena, path, &is_ours));
        if (!is_ours) continue;
        if (!newest) newest = path;
        if (verify_files(&arena, path, true) == OK) usable = path;
        status_clear();
    }
    if (!newest || checkpoint_verify(newest) == OK) return OK;
    return status_prefix(
        ERR_CHECKPOINT,
        "%s holds no valid checkpoint, but damaged ones; nothing was touched. To start anew, name another output_dir or set "
        "resume_from_checkpoint: false. %s%s%s. The newest",
        output_dir, usable ? "The model in " : "None of them has a whole model", usable ? usable : "",
        usable ? " is whole: another run can start from it" : "");
}

/* ---- loading a checkpoint ---- */

static Status load_model(Arena *arena, const char *path, Session *session)
{
    SCOPED(hf_model_close_at) HfModel *model = NULL;
    SCOPED(st_close_at) StFile        *states = NULL;
    TRY(hf_model_open(arena, path, &model));
    TRY(hf_model_open_weights(model));
    TRY(checkpoint_states_widen(arena, path, session_plan(session), model->weights, &states));
    return weights_load(session, model);
}

Status checkpoint_load(const char *path, Session *session, bool adapters, bool *out_has_scales)
{
    SCOPED_ARENA(arena);
    TRY(adapters ? weights_load_adapter(session, path) : load_model(&arena, path, session));
    return checkpoint_states_load(path, session, out_has_scales);
}
