/* Writing a checkpoint: all files go into a hidden folder and are synced, the manifest last; then one rename. */
#include "store/checkpoint_internal.h"

#include "base/compare.h"
#include "base/log.h"
#include "base/scoped.h"
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

/* Replaces `all-linear` by the names of the layers, since some readers of adapters don't know the word. If layers were left out, the names
 * are full paths: a layer that was left out may share its name with an adapted one. */
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
    qsort(names, (size_t)count, sizeof *names, compare_texts);
    lora->targets = names;
    lora->num_targets = count;
}

/* If an embedding stays tied to the head, modules_to_save names the embedding, and PEFT ties the head to it. */
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
    SCOPED_ARENA(arena);
    LoraOptions lora = c->pairs ? lora_pairs_saved(&arena, c->lora) : *c->lora;
    expand_targets(&arena, session_plan(c->session), &lora);
    if (lora.tie_whole) name_tied(&arena, session_plan(c->session), &lora);
    TRY(peft_write_config(&lora, c->base_model, folder));
    return peft_write_base_format(c->base_format, folder);
}

/* Writes the tokenizer's files and the chat template, so that serving uses the ones of training. If the run file gives a template, it also
 * covers conversations with tools; the model folder's other templates aren't copied then. */
static Status save_tokenizer(const SaveContext *c, const char *folder)
{
    HfSideFiles files = *c->side_files;
    if (c->chat_template.data) files.num_templates = 0;
    TRY(hf_write_side_files(&files, folder));
    if (c->stop >= 0) TRY(stop_token_save(c->stop, c->eos, folder));
    if (!c->chat_template.data) return OK;
    SCOPED_ARENA(arena);
    return file_write_atomic(arena_printf(&arena, "%s/chat_template.jinja", folder), c->chat_template.data, c->chat_template.len);
}

/* Whether this rank does the work that is done once: rank 0. */
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
    int64_t most = adapters ? INT64_MAX : c->max_shard_bytes; /* adapters: one file, because their readers take only one */
    TRY(weights_save(c->session, c->model, adapters, c->comm, folder, adapters ? "adapter_model" : "model", most, c->pairs));
    return comm_agree(c->comm, leads(c) ? save_beside_weights(c, folder) : OK);
}

/* ---- the manifest and publishing ---- */

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

/* The names of a folder's files and of the files of its template folder, sorted; hidden files are left out. */
static Status list_files(Arena *arena, const char *folder, const char ***out_names, size_t *out_count)
{
    const char **outer, **inner;
    size_t       num_outer, num_inner, count = 0;
    TRY(file_list(arena, folder, &outer, &num_outer));
    TRY(file_list_if_there(arena, arena_printf(arena, "%s/" HF_TEMPLATE_FOLDER, folder), &inner, &num_inner));
    const char **names = arena_array(arena, const char *, num_outer + num_inner);
    for (size_t i = 0; i < num_outer; i++)
        if (outer[i][0] != '.' && strcmp(outer[i], HF_TEMPLATE_FOLDER) != 0) names[count++] = outer[i];
    for (size_t i = 0; i < num_inner; i++)
        if (inner[i][0] != '.') names[count++] = arena_printf(arena, HF_TEMPLATE_FOLDER "/%s", inner[i]);
    qsort(names, count, sizeof *names, compare_texts);
    *out_names = names;
    *out_count = count;
    return OK;
}

/* Appends the hashes of the file's parts of FILE_HASH_PART_BYTES. Each rank reads its share of the parts; then all ranks have all
 * hashes. */
static Status add_parts(Comm *comm, Arena *arena, const char *path, int64_t bytes, StrBuf *out)
{
    size_t begin, end, size = (size_t)comm_size(comm), count = (size_t)(bytes + FILE_HASH_PART_BYTES - 1) / FILE_HASH_PART_BYTES;
    comm_own_bytes(comm, count, &begin, &end);
    size_t    most = (count + size - 1) / size;
    uint64_t *own = arena_array(arena, uint64_t, most + 1), *all = arena_array(arena, uint64_t, most * size + 1);
    Status    status = OK;
    for (size_t i = begin; i < end && status == OK; i++) {
        comm_beat(comm, "saving");
        status = file_hash_range(path, i, i + 1, own + i - begin);
    }
    TRY(comm_agree(comm, status));
    if (most) TRY(comm_all_gather(comm, own, all, most * sizeof *own));
    strbuf_puts(out, ", \"xxh3_parts\": [");
    for (size_t i = 0, rank = 0, at = 0; i < count; i++, at++) {
        if (at == count / size + (rank < count % size)) rank++, at = 0;
        strbuf_printf(out, "%s\"%016llx\"", i ? ", " : "", (unsigned long long)all[rank * most + at]);
    }
    strbuf_putc(out, ']');
    return OK;
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
    int64_t     bytes;
    TRY(comm_agree(c->comm, file_size(path, &bytes)));
    json_write_string(out, name, strlen(name));
    strbuf_printf(out, ", \"bytes\": %lld", (long long)bytes);
    if (is_written_together(c, name)) return add_parts(c->comm, arena, path, bytes, out);
    TRY(comm_agree(c->comm, leads(c) ? file_hash(path, &hash) : OK));
    strbuf_printf(out, ", \"xxh3\": \"%016llx\"", (unsigned long long)hash);
    if (strcmp(name, OPTIMIZER_NAME) == 0) write_sums(sums, out);
    return OK;
}

/* Writes the manifest: each file of the folder by name, with its size and the checksum of its bytes as read back from disk. */
static Status save_manifest(const SaveContext *c, Arena *arena, const char *folder, const TensorSums *sums)
{
    const char **names;
    size_t       count = 0;
    SCOPED_STRBUF(text);
    Status status = comm_agree(c->comm, list_files(arena, folder, &names, &count));
    strbuf_puts(&text, "{\n  \"version\": 1,\n  \"files\": [");
    for (size_t i = 0; i < count && status == OK; i++) {
        strbuf_puts(&text, i ? ",\n    {\"name\": " : "\n    {\"name\": ");
        status = add_entry(c, arena, folder, names[i], sums, &text);
        strbuf_putc(&text, '}');
    }
    strbuf_puts(&text, "\n  ]\n}\n");
    if (status == OK && leads(c)) status = file_write_atomic(arena_printf(arena, "%s/" MANIFEST_NAME, folder), text.data, text.len);
    if (status == OK && leads(c)) status = file_sync_dir(folder);
    return status;
}

/* Saves which kernels were chosen by measurement, so that a run that resumes from this checkpoint uses the same. */
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
    TRY(checkpoint_write_state(folder, state));
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

static Status begin_folder(const char *output_dir, const char *partial)
{
    TRY(checkpoint_restore(output_dir));
    TRY(checkpoint_clean(output_dir));
    return file_make_dirs(partial);
}

Status checkpoint_save(const SaveContext *c, const TrainState *state)
{
    SCOPED_ARENA(arena);
    const char *partial = checkpoint_partial_path(&arena, c->output_dir, state->step);
    Status      status = comm_agree(c->comm, leads(c) ? begin_folder(c->output_dir, partial) : OK);
    if (status == OK) status = comm_agree(c->comm, write_files(c, state, &arena, partial));
    if (status == OK && leads(c)) status = checkpoint_publish(c, state->step);
    status = comm_agree(c->comm, status);
    if (!leads(c)) return status;
    if (status != OK)
        file_remove_behind(partial);
    else if (checkpoint_prune(c->output_dir, c->keep, c->best, state->step) != OK)
        log_warn("an old checkpoint couldn't be removed: %s", status_message());
    return status;
}
