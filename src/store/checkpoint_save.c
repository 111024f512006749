/* Writing a checkpoint: everything into a hidden folder, each file synced, the manifest last; then one rename. */
#include "store/checkpoint_internal.h"

#include "base/log.h"
#include "model/peft.h"
#include "model/stop_token.h"
#include "model/weights.h"
#include "passes/adapt_whole.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t checkpoint_model_bytes(const Plan *plan, bool adapters)
{
    return weights_bytes(plan, adapters) + (1 << 16);
}

int64_t checkpoint_bytes(const Plan *plan, bool adapters)
{
    return checkpoint_model_bytes(plan, adapters) + (1 << 16) + checkpoint_states_bytes(plan);
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* `all-linear` as the names it stands for: not every reader of adapters knows the word. Paths where it leaves layers out, whose names
 * others may share. */
static void expand_targets(Arena *arena, const Plan *plan, LoraOptions *lora)
{
    bool has_all = false;
    for (int i = 0; i < lora->num_targets; i++) has_all |= strcmp(lora->targets[i], "all-linear") == 0;
    if (!has_all) return;
    const char **names = arena_array(arena, const char *, plan->num_params);
    int          count = 0;
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (!param->is_adapter || param->is_whole || !param->module) continue;
        const char *dot = strrchr(param->module, '.'), *name = dot && !lora->num_left_out ? dot + 1 : param->module;
        int         k = 0;
        while (k < count && strcmp(names[k], name) != 0) k++;
        if (k == count) names[count++] = name;
    }
    qsort(names, (size_t)count, sizeof *names, compare_text);
    lora->targets = names;
    lora->num_targets = count;
}

/* Of an embedding that stays the head, modules_to_save names the embedding: PEFT ties the head to it. */
static void name_tied(Arena *arena, const Plan *plan, LoraOptions *lora)
{
    const char **names = arena_array(arena, const char *, lora->num_whole + 1);
    for (int k = 0; k < lora->num_whole; k++) {
        LoraOptions one = {.num_whole = 1, .whole = &lora->whole[k]};
        names[k] = lora->whole[k];
        for (int i = 0; i < plan->num_params; i++) {
            const Param *param = plan->params[i];
            const char  *dot = param->is_whole && param->untied ? strrchr(param->untied, '.') : NULL;
            if (!dot || !whole_has(&one, arena_strndup(arena, param->untied, (size_t)(dot - param->untied)), NULL)) continue;
            names[k] = whole_path(arena, param);
        }
    }
    lora->whole = names;
}

static Status write_adapter_config(const SaveContext *c, const char *folder)
{
    Arena       arena = {0};
    LoraOptions lora = c->pairs ? lora_pairs_saved(&arena, c->lora) : *c->lora;
    expand_targets(&arena, session_plan(c->session), &lora);
    if (lora.tie_whole) name_tied(&arena, session_plan(c->session), &lora);
    Status status = peft_write_config(&lora, c->base_model, folder);
    if (status == OK) status = peft_write_base_format(c->base_format, folder);
    arena_deinit(&arena);
    return status;
}

/* The tokenizer's files and the chat template: what is trained is what is served. A template of the run file lays out
 * conversations with tools too, so that the folder's other templates stay behind. */
static Status save_tokenizer(const SaveContext *c, const char *folder)
{
    HfSideFiles files = *c->side_files;
    if (c->chat_template.data) files.num_templates = 0;
    TRY(hf_write_side_files(&files, folder));
    if (c->stop >= 0) TRY(stop_token_save(c->stop, c->eos, folder));
    if (!c->chat_template.data) return OK;
    Arena  arena = {0};
    Status status = file_write_atomic(arena_printf(&arena, "%s/chat_template.jinja", folder), c->chat_template.data, c->chat_template.len);
    arena_deinit(&arena);
    return status;
}

/* What is done once is rank 0's. */
static bool leads(const SaveContext *c)
{
    return comm_rank(c->comm) == 0;
}

static Status save_beside_weights(const SaveContext *c, const char *folder)
{
    const Plan *plan = session_plan(c->session);
    if (c->lora->enabled)
        TRY(write_adapter_config(c, folder));
    else
        TRY(hf_model_write_config(c->model, plan->params[0]->type.dtype, folder));
    return save_tokenizer(c, folder);
}

Status checkpoint_save_model(const SaveContext *c, const char *folder)
{
    bool    adapters = c->lora->enabled;
    int64_t most = adapters ? INT64_MAX : c->max_shard_bytes; /* readers of adapters take one file */
    TRY(weights_save(c->session, c->model, adapters, c->comm, folder, adapters ? "adapter_model" : "model", most, c->pairs));
    return comm_agree(c->comm, leads(c) ? save_beside_weights(c, folder) : OK);
}

/* ---- the rest ---- */

static Status save_state(const TrainState *s, const char *path)
{
    StrBuf text = {0};
    strbuf_printf(&text,
                  "{\n  \"version\": 1,\n  \"step\": %lld,\n  \"applied\": %lld,\n  \"skipped\": %lld,\n  \"bad_in_row\": %lld,\n"
                  "  \"total_tokens\": %lld,\n  \"total_trained\": %lld,\n  \"metrics_bytes\": %lld,\n  \"metrics_hash\": \"%016llx\",\n  "
                  "\"eval_pending\": %s,\n  \"settings_hash\": \"%016llx\",\n"
                  "  \"data_hash\": \"%016llx\"",
                  (long long)s->step, (long long)s->applied, (long long)s->skipped, (long long)s->bad_in_row, (long long)s->total_tokens,
                  (long long)s->total_trained, (long long)s->metrics_bytes, (unsigned long long)s->metrics_hash,
                  s->eval_pending ? "true" : "false", (unsigned long long)s->settings_hash, (unsigned long long)s->data_hash);
    if (s->rows >= 0) strbuf_printf(&text, ",\n  \"rows\": %lld", (long long)s->rows);
    if (s->best.step) {
        strbuf_printf(&text, ",\n  \"best_step\": %lld,\n  \"best_loss\": ", (long long)s->best.step);
        json_write_double(&text, s->best.loss);
    }
    if (s->evals_since) strbuf_printf(&text, ",\n  \"evals_since_best\": %lld", (long long)s->evals_since);
    strbuf_puts(&text, "\n}\n");
    Status status = file_write_atomic(path, text.data, text.len);
    strbuf_deinit(&text);
    return status;
}

static void write_sums(const TensorSums *sums, StrBuf *out)
{
    strbuf_puts(out, ", \"tensors\": {");
    for (size_t i = 0; i < sums->count; i++) {
        strbuf_puts(out, i ? ",\n      " : "\n      ");
        json_write_string(out, sums->items[i].name, strlen(sums->items[i].name));
        strbuf_printf(out, ": \"%016llx\"", (unsigned long long)sums->items[i].sum);
    }
    strbuf_puts(out, "\n    }");
}

enum { MAX_FILES = 65536 };

static Status add_files(Arena *arena, const char *folder, const char *inner, const char **names, size_t *count)
{
    const char **found;
    size_t       num;
    TRY(file_list(arena, arena_printf(arena, "%s/%s", folder, inner), &found, &num));
    for (size_t i = 0; i < num && *count < MAX_FILES; i++)
        if (found[i][0] != '.') names[(*count)++] = arena_printf(arena, "%s%s", inner, found[i]);
    return OK;
}

/* Files of a folder by name, with those of the templates' folder, the hidden ones left out. */
static Status list_files(Arena *arena, const char *folder, const char ***out_names, size_t *out_count)
{
    const char **names = arena_array(arena, const char *, MAX_FILES);
    size_t       count = 0, kept = 0;
    bool         has_templates = false;
    TRY(add_files(arena, folder, "", names, &count));
    for (size_t i = 0; i < count; i++) {
        bool is_folder = strcmp(names[i], HF_TEMPLATE_FOLDER) == 0;
        has_templates |= is_folder;
        if (!is_folder) names[kept++] = names[i];
    }
    if (has_templates) TRY(add_files(arena, folder, HF_TEMPLATE_FOLDER "/", names, &kept));
    qsort(names, kept, sizeof *names, compare_text);
    *out_names = names;
    *out_count = kept;
    return OK;
}

/* The hashes of a file's parts, each read by one of the ranks; all get them all. */
static Status hash_parts_together(Comm *comm, Arena *arena, const char *path, FileParts *out)
{
    size_t  begin, end, size = (size_t)comm_size(comm);
    int64_t bytes;
    TRY(comm_agree(comm, file_size(path, &bytes)));
    FileParts parts = {.count = (size_t)(bytes + FILE_HASH_PART_BYTES - 1) / FILE_HASH_PART_BYTES};
    comm_own_bytes(comm, parts.count, &begin, &end);
    size_t    most = (parts.count + size - 1) / size;
    uint64_t *own = arena_array(arena, uint64_t, most + 1), *all = arena_array(arena, uint64_t, most * size + 1);
    Status    status = OK;
    for (size_t i = begin; i < end && status == OK; i++) {
        comm_beat(comm, "saving");
        status = file_hash_range(path, i, i + 1, own + i - begin);
    }
    TRY(comm_agree(comm, status));
    if (most) TRY(comm_all_gather(comm, own, all, most * sizeof *own));
    parts.hashes = arena_array(arena, uint64_t, parts.count + 1);
    for (size_t i = 0, rank = 0, at = 0; i < parts.count; i++, at++) {
        if (at == parts.count / size + (rank < parts.count % size)) rank++, at = 0;
        parts.hashes[i] = all[rank * most + at];
    }
    *out = parts;
    return OK;
}

static void write_parts(const FileParts *parts, StrBuf *out)
{
    strbuf_puts(out, ", \"xxh3_parts\": [");
    for (size_t i = 0; i < parts->count; i++) strbuf_printf(out, "%s\"%016llx\"", i ? ", " : "", (unsigned long long)parts->hashes[i]);
    strbuf_putc(out, ']');
}

static bool is_written_together(const SaveContext *c, const char *name)
{
    const char *end = strrchr(name, '.');
    return c->comm && end && strcmp(end, ".safetensors") == 0;
}

static Status add_entry(const SaveContext *c, Arena *arena, const char *folder, const char *name, const TensorSums *sums, StrBuf *out)
{
    const char *path = arena_printf(arena, "%s/%s", folder, name);
    uint64_t    hash;
    FileParts   parts;
    int64_t     bytes;
    TRY(comm_agree(c->comm, file_size(path, &bytes)));
    json_write_string(out, name, strlen(name));
    strbuf_printf(out, ", \"bytes\": %lld", (long long)bytes);
    if (is_written_together(c, name)) {
        TRY(hash_parts_together(c->comm, arena, path, &parts));
        write_parts(&parts, out);
        return OK;
    }
    TRY(comm_agree(c->comm, leads(c) ? file_hash(path, &hash) : OK));
    strbuf_printf(out, ", \"xxh3\": \"%016llx\"", (unsigned long long)hash);
    if (strcmp(name, OPTIMIZER_NAME) == 0) write_sums(sums, out);
    return OK;
}

/* Every file of the folder, by name, with size and checksum of what the disk gives back. */
static Status save_manifest(const SaveContext *c, Arena *arena, const char *folder, const TensorSums *sums)
{
    const char **names;
    size_t       count = 0;
    StrBuf       text = {0};
    Status       status = comm_agree(c->comm, list_files(arena, folder, &names, &count));
    strbuf_puts(&text, "{\n  \"version\": 1,\n  \"files\": [");
    for (size_t i = 0; i < count && status == OK; i++) {
        strbuf_puts(&text, i ? ",\n    {\"name\": " : "\n    {\"name\": ");
        status = add_entry(c, arena, folder, names[i], sums, &text);
        strbuf_putc(&text, '}');
    }
    strbuf_puts(&text, "\n  ]\n}\n");
    if (status == OK && leads(c)) status = file_write_atomic(arena_printf(arena, "%s/" MANIFEST_NAME, folder), text.data, text.len);
    if (status == OK && leads(c)) status = file_sync_dir(folder);
    strbuf_deinit(&text);
    return status;
}

/* The kernels that were chosen by measurement here: a run that goes on from this checkpoint takes the same. */
static Status save_tuning(Session *session, Arena *arena, const char *path)
{
    enum { TUNING_BYTES = 1 << 20 };
    Device *device = session_device(session);
    if (!device->api->tuning_get) return OK;
    char *text = arena_alloc(arena, TUNING_BYTES);
    device->api->tuning_get(device, text, TUNING_BYTES);
    return file_write_atomic(path, text, strlen(text));
}

static Status save_small_files(const SaveContext *c, const TrainState *state, Arena *arena, const char *folder)
{
    TRY(save_state(state, arena_printf(arena, "%s/" STATE_NAME, folder)));
    TRY(file_write_atomic(arena_printf(arena, "%s/trainer_state.json", folder), c->trainer_state, strlen(c->trainer_state)));
    return save_tuning(c->session, arena, arena_printf(arena, "%s/" TUNING_NAME, folder));
}

static Status write_files(const SaveContext *c, const TrainState *state, Arena *arena, const char *folder)
{
    TensorSums sums;
    TRY(checkpoint_save_model(c, folder));
    TRY(checkpoint_states_save(arena, c->session, c->comm, arena_printf(arena, "%s/" OPTIMIZER_NAME, folder), &sums));
    TRY(comm_agree(c->comm, leads(c) ? save_small_files(c, state, arena, folder) : OK));
    return save_manifest(c, arena, folder, &sums);
}

/* Takes a checkpoint out of sight before removing it, so that half of one is never seen. */
static Status remove_checkpoint(Arena *arena, const char *output_dir, int64_t step)
{
    const char *from = checkpoint_path(arena, output_dir, step);
    const char *to = arena_printf(arena, "%s/" PARTIAL_PREFIX "%lld.removed", output_dir, (long long)step);
    if (rename(from, to) != 0 && errno != ENOENT) return file_fail("rename", from);
    return file_remove_tree(to);
}

/* Only whole checkpoints of ours count. Those of a later step are of a run that this one leaves behind. */
static Status prune(Arena *arena, const char *output_dir, int64_t keep, int64_t best, int64_t step)
{
    if (keep <= 0) return OK;
    int64_t *steps;
    size_t   count, num_ours = 0;
    TRY(checkpoint_list(arena, output_dir, &steps, &count));
    for (size_t i = 0; i < count && steps[i] <= step; i++) {
        bool is_ours;
        TRY(checkpoint_is_ours(checkpoint_path(arena, output_dir, steps[i]), &is_ours));
        if (is_ours) steps[num_ours++] = steps[i];
    }
    for (size_t i = 0; i + (size_t)keep < num_ours; i++)
        if (!best || steps[i] != best) TRY(remove_checkpoint(arena, output_dir, steps[i]));
    return OK;
}

Status checkpoint_prune(const char *output_dir, int64_t keep, int64_t best, int64_t step)
{
    Arena  arena = {0};
    Status status = prune(&arena, output_dir, keep, best, step);
    arena_deinit(&arena);
    return status;
}

/* It keeps its content under another name. */
static Status set_aside(Arena *arena, const char *path, const char *why)
{
    const char *to = arena_printf(arena, "%s.aside", path);
    bool        is_there;
    TRY(file_exists(to, &is_there));
    for (int i = 2; is_there; i++) {
        to = arena_printf(arena, "%s.aside%d", path, i);
        TRY(file_exists(to, &is_there));
    }
    if (rename(path, to) != 0) return file_fail("rename", path);
    log_warn("%s %s; it is now %s", path, why, to);
    return OK;
}

/* The oldest first: until the last of them has gone, the newest one is still of the branch that is left. */
static Status leave_branch(Arena *arena, const char *output_dir, int64_t step)
{
    int64_t *steps;
    size_t   count;
    bool     any = false;
    TRY(checkpoint_list(arena, output_dir, &steps, &count));
    for (size_t i = 0; i < count; i++) {
        const char *path = checkpoint_path(arena, output_dir, steps[i]);
        bool        is_ours;
        if (steps[i] <= step) continue;
        TRY(checkpoint_is_ours(path, &is_ours));
        if (!is_ours) continue;
        TRY(set_aside(arena, path, arena_printf(arena, "isn't of this run, which went on from step %lld", (long long)step)));
        any = true;
    }
    return any ? file_sync_dir(output_dir) : OK;
}

Status checkpoint_leave_branch(const char *output_dir, int64_t step)
{
    Arena  arena = {0};
    Status status = leave_branch(&arena, output_dir, step);
    arena_deinit(&arena);
    return status;
}

/* One of the two is always there: where the file system can't exchange them at once, checkpoint_restore finds the old one. The one that
 * goes lies where checkpoint_clean finds it. */
static Status replace(Arena *arena, const char *output_dir, const char *partial, const char *path, int64_t step)
{
    const char *old = arena_printf(arena, "%s/" PARTIAL_PREFIX "%lld.replaced", output_dir, (long long)step);
    bool        is_exchanged;
    TRY(file_exchange(partial, path, &is_exchanged));
    if (is_exchanged) {
        old = partial;
    } else {
        if (rename(path, old) != 0) return file_fail("rename", path);
        Status status = rename(partial, path) != 0 ? file_fail("rename to", path) : OK;
        if (status != OK) (void)!rename(old, path);
        TRY(status);
    }
    TRY(file_sync_dir(output_dir));
    if (file_remove_tree(old) != OK) log_warn("the checkpoint that was replaced couldn't be removed: %s", status_message());
    return OK;
}

static Status publish(Arena *arena, const SaveContext *c, const char *partial, int64_t step)
{
    const char *path = checkpoint_path(arena, c->output_dir, step);
    bool        is_ours, is_there;
    TRY(leave_branch(arena, c->output_dir, c->branch));
    TRY(checkpoint_is_ours(path, &is_ours));
    TRY(file_exists(path, &is_there));
    if (is_ours) return replace(arena, c->output_dir, partial, path, step); /* of an earlier run, or damaged */
    if (is_there) TRY(set_aside(arena, path, "was not a whole checkpoint of this program"));
    if (rename(partial, path) != 0) return file_fail("rename to", path);
    return file_sync_dir(c->output_dir);
}

/* Of PARTIAL_PREFIX, a step, and this end. */
static bool is_hidden(const char *name, const char *wanted)
{
    size_t      len = strlen(PARTIAL_PREFIX);
    const char *digits = name + len;
    if (strncmp(name, PARTIAL_PREFIX, len) != 0) return false;
    const char *end = digits + strspn(digits, "0123456789");
    return end > digits && strcmp(end, wanted) == 0;
}

static bool is_partial(const char *name)
{
    return is_hidden(name, ".partial") || is_hidden(name, ".removed") || is_hidden(name, ".replaced");
}

static Status restore(Arena *arena, const char *output_dir, const char *name)
{
    const char *step = name + strlen(PARTIAL_PREFIX), *old = arena_printf(arena, "%s/%s", output_dir, name);
    const char *path = arena_printf(arena, "%s/checkpoint-%.*s", output_dir, (int)strspn(step, "0123456789"), step);
    bool        is_there;
    TRY(file_exists(path, &is_there));
    if (is_there) return OK;
    if (rename(old, path) != 0) return file_fail("rename", old);
    log_warn("a save was killed while it replaced %s: the old one is there again", path);
    return file_sync_dir(output_dir);
}

Status checkpoint_restore(const char *output_dir)
{
    Arena        arena = {0};
    const char **names;
    size_t       count;
    Status       status = file_list_if_there(&arena, output_dir, &names, &count);
    for (size_t i = 0; i < count && status == OK; i++)
        if (is_hidden(names[i], ".replaced")) status = restore(&arena, output_dir, names[i]);
    arena_deinit(&arena);
    return status;
}

Status checkpoint_clean(const char *output_dir)
{
    Arena        arena = {0};
    const char **names;
    size_t       count;
    Status       status = file_list_if_there(&arena, output_dir, &names, &count);
    for (size_t i = 0; i < count && status == OK; i++)
        if (is_partial(names[i])) status = file_remove_tree(arena_printf(&arena, "%s/%s", output_dir, names[i]));
    arena_deinit(&arena);
    return status;
}

static Status begin_folder(const char *output_dir, const char *partial)
{
    TRY(checkpoint_restore(output_dir));
    TRY(checkpoint_clean(output_dir));
    return file_make_dirs(partial);
}

static void remove_partial(const char *partial)
{
    char message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status_message());
    Status ignored = file_remove_tree(partial);
    ignored = status_fail(ERR_INTERNAL, "%s", message);
    (void)ignored;
}

Status checkpoint_save(const SaveContext *c, const TrainState *state)
{
    Arena       arena = {0};
    const char *partial = arena_printf(&arena, "%s/" PARTIAL_PREFIX "%lld.partial", c->output_dir, (long long)state->step);
    Status      status = comm_agree(c->comm, leads(c) ? begin_folder(c->output_dir, partial) : OK);
    if (status == OK) status = comm_agree(c->comm, write_files(c, state, &arena, partial));
    if (status == OK && leads(c)) status = publish(&arena, c, partial, state->step);
    status = comm_agree(c->comm, status);
    if (status != OK && leads(c)) remove_partial(partial);
    if (status == OK && leads(c) && prune(&arena, c->output_dir, c->keep, c->best, state->step) != OK)
        log_warn("an old checkpoint couldn't be removed: %s", status_message());
    arena_deinit(&arena);
    return status;
}

static Status remove_ours(Arena *arena, const char *output_dir)
{
    int64_t *steps;
    size_t   count;
    TRY(checkpoint_list(arena, output_dir, &steps, &count));
    for (size_t i = 0; i < count; i++) {
        const char *path = checkpoint_path(arena, output_dir, steps[i]);
        bool        is_ours;
        TRY(checkpoint_is_ours(path, &is_ours));
        if (is_ours)
            TRY(remove_checkpoint(arena, output_dir, steps[i]));
        else
            log_warn("%s stays: it is not a whole checkpoint of this program", path);
    }
    return OK;
}

Status checkpoint_remove_all(const char *output_dir)
{
    Arena  arena = {0};
    Status status = remove_ours(&arena, output_dir);
    arena_deinit(&arena);
    return status;
}
