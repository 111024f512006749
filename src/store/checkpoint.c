/* Finding, checking and loading checkpoints. */
#include "store/checkpoint_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "model/weights.h"
#include "store/output_lock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JSON_BYTES = 64 << 20 };

const char *checkpoint_path(Arena *arena, const char *output_dir, int64_t step)
{
    return arena_printf(arena, "%s/checkpoint-%lld", output_dir, (long long)step);
}

static int compare_steps(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

Status checkpoint_list(Arena *arena, const char *output_dir, int64_t **out_steps, size_t *out_count)
{
    const char **names;
    size_t       num_names, count = 0;
    *out_steps = NULL;
    *out_count = 0;
    TRY(file_list_if_there(arena, output_dir, &names, &num_names));
    int64_t *steps = arena_array(arena, int64_t, num_names + 1);
    for (size_t i = 0; i < num_names; i++) {
        char *end;
        if (strncmp(names[i], "checkpoint-", 11) != 0 || names[i][11] < '0' || names[i][11] > '9') continue;
        steps[count] = strtoll(names[i] + 11, &end, 10);
        count += *end == 0;
    }
    qsort(steps, count, sizeof *steps, compare_steps);
    *out_steps = steps;
    *out_count = count;
    return OK;
}

static Status read_json(Arena *arena, const char *path, JsonValue *out)
{
    Str text;
    TRY(file_read(arena, path, MAX_JSON_BYTES, &text));
    return json_parse(arena, path, text.data, text.len, out);
}

bool checkpoint_get_hash(const JsonValue *object, const char *key, uint64_t *out)
{
    const char *text;
    return json_get_str(object, key, &text) && hash_parse(text, out);
}

/* Part by part, as several ranks wrote it. */
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

/* A file of a checkpoint, or of its folder of templates. */
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

/* Files without which the model or adapter can't be used; the others are for going on. */
static bool is_of_model(const JsonValue *entry)
{
    const char *name;
    return json_get_str(entry, "name", &name) && (strncmp(name, "model", 5) == 0 || strncmp(name, "adapter", 7) == 0 ||
                                                  strncmp(name, "tokenizer", 9) == 0 || strcmp(name, "config.json") == 0);
}

/* Files of this program say version 1, or nothing. */
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
    TRY(read_json(arena, name, &manifest));
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

static Status is_ours(Arena *arena, const char *path, bool *out)
{
    const char *name, *manifest_name = arena_printf(arena, "%s/" MANIFEST_NAME, path);
    JsonValue   manifest;
    int64_t     bytes, size;
    bool        has_state = false;
    *out = false;
    Status status = read_json(arena, manifest_name, &manifest);
    if (status == ERR_IO) return status;
    if (status != OK) return OK; /* absent, or another program's */
    const JsonValue *files = json_get(&manifest, "files");
    if (!files || files->type != JSON_ARRAY) return OK;
    for (uint32_t i = 0; i < files->count; i++) {
        if (!json_get_str(&files->items[i], "name", &name) || !json_get_int(&files->items[i], "bytes", &bytes)) return OK;
        TRY(file_size(arena_printf(arena, "%s/%s", path, name), &size));
        if (size != bytes) return OK;
        has_state |= strcmp(name, STATE_NAME) == 0;
    }
    *out = has_state;
    return OK;
}

Status checkpoint_is_ours(const char *path, bool *out)
{
    Arena  arena = {0};
    Status status = is_ours(&arena, path, out);
    arena_deinit(&arena);
    if (status == OK) status_clear();
    return status;
}

Status checkpoint_any_is_ours(const char *output_dir, bool *out)
{
    Arena    arena = {0};
    int64_t *steps;
    size_t   count;
    *out = false;
    Status status = checkpoint_list(&arena, output_dir, &steps, &count);
    for (size_t i = 0; i < count && status == OK && !*out; i++)
        status = checkpoint_is_ours(checkpoint_path(&arena, output_dir, steps[i]), out);
    arena_deinit(&arena);
    return status;
}

Status checkpoint_held(const char *output_dir, int64_t step, CheckpointsHeld *out)
{
    Arena    arena = {0};
    int64_t *steps;
    size_t   count;
    *out = (CheckpointsHeld){0};
    Status status = checkpoint_list(&arena, output_dir, &steps, &count);
    for (size_t i = 0; i < count && status == OK; i++) {
        const char *path = checkpoint_path(&arena, output_dir, steps[i]);
        bool        is_ours;
        status = checkpoint_is_ours(path, &is_ours);
        if (status != OK || !is_ours) continue;
        out->count += steps[i] <= step;
        out->bytes += file_tree_bytes(path);
    }
    arena_deinit(&arena);
    return status;
}

Status checkpoint_load_tuning(const char *path, Device *device)
{
    Arena       arena = {0};
    Str         text;
    const char *name = arena_printf(&arena, "%s/" TUNING_NAME, path);
    bool        is_there;
    Status      status = file_exists(name, &is_there);
    if (status == OK && device->api->tuning_set && is_there) {
        status = file_read(&arena, name, 1 << 20, &text);
        if (status == OK) device->api->tuning_set(device, text.data);
    }
    arena_deinit(&arena);
    return status;
}

/* The N of a folder checkpoint-N; -1: it has another name. */
static int64_t step_of_name(Arena *arena, const char *path)
{
    char  *copy = arena_strdup(arena, path);
    size_t len = strlen(copy);
    while (len > 1 && copy[len - 1] == '/') copy[--len] = 0;
    const char *slash = strrchr(copy, '/'), *name = slash ? slash + 1 : copy;
    size_t      digits = strncmp(name, "checkpoint-", 11) == 0 ? strspn(name + 11, "0123456789") : 0;
    return digits && !name[11 + digits] ? strtoll(name + 11, NULL, 10) : -1;
}

static Status restore_named(Arena *arena, const char *path)
{
    bool        is_there;
    int         lock = OUTPUT_LOCK_NONE;
    int64_t     step = step_of_name(arena, path);
    char       *dir = arena_strdup(arena, path);
    const char *old;
    TRY(file_exists(path, &is_there));
    if (is_there || step < 0) return OK;
    char *name = strstr(dir, "checkpoint-");
    for (char *next; (next = strstr(name + 1, "checkpoint-"));) name = next;
    if (name > dir + 1)
        name[-1] = 0;
    else
        strcpy(name, ".");
    old = arena_printf(arena, "%s/" PARTIAL_PREFIX "%lld.replaced", dir, (long long)step);
    TRY(file_exists(old, &is_there));
    if (!is_there) return OK;
    TRY(output_lock_take(dir, &lock));
    Status status = checkpoint_restore(dir);
    output_lock_release(dir, &lock);
    return status;
}

Status checkpoint_restore_named(const char *path)
{
    Arena  arena = {0};
    Status status = restore_named(&arena, path);
    arena_deinit(&arena);
    return status;
}

/* What no run writes, whatever the checksums say. */
static Status check_state(Arena *arena, const char *folder, const char *name, const TrainState *s)
{
    int64_t named = step_of_name(arena, folder);
    FAIL_IF(s->step < 0 || s->applied < 0 || s->skipped < 0 || s->bad_in_row < 0 || s->total_tokens < 0 || s->total_trained < 0 ||
                s->metrics_bytes < 0,
            ERR_CHECKPOINT, "%s: a count below 0", name);
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

/* What older checkpoints lack, and those of runs that didn't evaluate. */
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

static Status read_state(Arena *arena, const char *folder, TrainState *s)
{
    JsonValue   root;
    const char *name = arena_printf(arena, "%s/" STATE_NAME, folder);
    *s = (TrainState){0};
    TRY(read_json(arena, name, &root));
    TRY(check_version(name, &root));
    const struct {
        const char *key;
        int64_t    *out;
    } counts[] = {{"step", &s->step},
                  {"applied", &s->applied},
                  {"skipped", &s->skipped},
                  {"bad_in_row", &s->bad_in_row},
                  {"total_tokens", &s->total_tokens},
                  {"metrics_bytes", &s->metrics_bytes}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        FAIL_IF(!json_get_int(&root, counts[i].key, counts[i].out), ERR_CHECKPOINT, "%s: %s is missing, or no whole number", name,
                counts[i].key);
    FAIL_IF(!json_get_bool(&root, "eval_pending", &s->eval_pending), ERR_CHECKPOINT,
            "%s: eval_pending is missing, or neither true nor false", name);
    FAIL_IF(!checkpoint_get_hash(&root, "settings_hash", &s->settings_hash) || !checkpoint_get_hash(&root, "data_hash", &s->data_hash) ||
                (json_get(&root, "metrics_hash") && !checkpoint_get_hash(&root, "metrics_hash", &s->metrics_hash)),
            ERR_CHECKPOINT, "%s: settings_hash, data_hash or metrics_hash isn't 16 hexadecimal digits", name);
    if (!json_get(&root, "total_trained"))
        s->total_trained = s->total_tokens; /* the only count of older checkpoints */
    else
        FAIL_IF(!json_get_int(&root, "total_trained", &s->total_trained), ERR_CHECKPOINT, "%s: total_trained is no whole number", name);
    s->rows = -1;
    FAIL_IF(json_get(&root, "rows") && !(json_get_int(&root, "rows", &s->rows) && s->rows >= 0), ERR_CHECKPOINT, "%s: \"rows\" is no count",
            name);
    TRY(read_best(&root, name, s));
    return check_state(arena, folder, name, s);
}

Status checkpoint_read_state(const char *path, TrainState *out)
{
    Arena  arena = {0};
    Status status = read_state(&arena, path, out);
    arena_deinit(&arena);
    return status;
}

Status checkpoint_has_best(const char *output_dir, const BestEval *best, bool *out)
{
    Arena       arena = {0};
    TrainState  state;
    const char *path = checkpoint_path(&arena, output_dir, best->step);
    Status      status = checkpoint_is_ours(path, out);
    if (status == OK && *out)
        *out = checkpoint_read_state(path, &state) == OK && state.best.step == best->step && state.best.loss == best->loss;
    if (status == OK) status_clear();
    arena_deinit(&arena);
    return status;
}

Status checkpoint_verify(const char *path)
{
    Arena      arena = {0};
    TrainState state;
    Status     status = verify_files(&arena, path, false);
    if (status == OK) status = read_state(&arena, path, &state);
    arena_deinit(&arena);
    return status == OK ? OK : ERR_CHECKPOINT;
}

Status checkpoint_newest(const char *output_dir, char *out_path, size_t path_bytes)
{
    Arena    arena = {0};
    int64_t *steps;
    size_t   count;
    Status   status = checkpoint_list(&arena, output_dir, &steps, &count);
    out_path[0] = 0;
    while (status == OK && count-- > 0) {
        snprintf(out_path, path_bytes, "%s", checkpoint_path(&arena, output_dir, steps[count]));
        if (checkpoint_verify(out_path) == OK) break;
        log_warn("skipping %s: %s", out_path, status_message());
        status_clear();
        out_path[0] = 0;
    }
    arena_deinit(&arena);
    return status;
}

/* Whether this program left it, however little of it is there. */
static Status was_ours(Arena *arena, const char *path, bool *out)
{
    TRY(file_exists(arena_printf(arena, "%s/" MANIFEST_NAME, path), out));
    return *out ? OK : file_exists(arena_printf(arena, "%s/" STATE_NAME, path), out);
}

Status checkpoint_refuse_damaged(const char *output_dir)
{
    Arena       arena = {0};
    int64_t    *steps;
    size_t      count;
    const char *newest = NULL, *usable = NULL;
    Status      status = checkpoint_list(&arena, output_dir, &steps, &count);
    while (status == OK && count-- > 0 && !usable) {
        const char *path = checkpoint_path(&arena, output_dir, steps[count]);
        bool        is_ours;
        status = was_ours(&arena, path, &is_ours);
        if (status != OK || !is_ours) continue;
        if (!newest) newest = path;
        if (verify_files(&arena, path, true) == OK) usable = path;
        status_clear();
    }
    if (status == OK && newest && checkpoint_verify(newest) != OK)
        status = status_prefix(
            ERR_CHECKPOINT,
            "%s holds no valid checkpoint, but damaged ones; nothing was touched. To start anew, name another output_dir or set "
            "resume_from_checkpoint: false. %s%s%s. The newest",
            output_dir, usable ? "The model in " : "None of them has a whole model", usable ? usable : "",
            usable ? " is whole: another run can start from it" : "");
    arena_deinit(&arena);
    return status;
}

/* ---- loading ---- */

static Status load_model(Arena *arena, const char *path, Session *session)
{
    HfModel *model;
    StFile  *states = NULL;
    TRY(hf_model_open(arena, path, &model));
    Status status = hf_model_open_weights(model);
    if (status == OK) status = checkpoint_states_widen(arena, path, session_plan(session), model->weights, &states);
    if (status == OK) status = weights_load(session, model);
    hf_model_close(model);
    st_close(states);
    return status;
}

Status checkpoint_load(const char *path, Session *session, bool adapters, bool *out_has_scales)
{
    Arena  arena = {0};
    Status status = adapters ? weights_load_adapter(session, path) : load_model(&arena, path, session);
    if (status == OK) status = checkpoint_states_load(path, session, out_has_scales);
    arena_deinit(&arena);
    return status;
}
