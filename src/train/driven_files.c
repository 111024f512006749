/* See driven.h: checkpoints, exports, and trained tensors. */
#include "train/driven_internal.h"

#include "files/folder.h"
#include "store/output_dir.h"

#include <stdio.h>
#include <string.h>

/* ---- checkpoints ---- */

/* Awaits all steps, and checks that `dir` is a folder that may be written. */
static Status check_folder(Driven *d, const char *dir)
{
    const Trainer *t = driven_trainer(d);
    TRY(driven_settle(d, "saving"));
    TRY(trainer_check_length(t, dir, t->state.step));
    return output_dir_check_source(dir, t->model->dir, "model");
}

static Status save_context(Trainer *t, StrBuf *text, SaveContext *out)
{
    TRY(stepper_gather(&t->stepper));
    return trainer_context(t, false, text, out);
}

static Status save_rank(DrivenRank *rank, void *job)
{
    Trainer    *t = rank->trainer;
    SaveContext context;
    StrBuf      text = {0};
    Status      status = save_context(t, &text, &context);
    context.output_dir = job;
    t->state.settings_hash = t->record.said_hash;
    t->state.rows = -1; /* unknown: rows come from the caller, who must track them */
    if (status == OK) status = checkpoint_save(&context, &t->state);
    if (status == OK && t->branch != INT64_MAX) t->branch = t->state.step;
    strbuf_deinit(&text);
    return status;
}

Status driven_save(Driven *d, const char *dir)
{
    int lock = OUTPUT_LOCK_NONE;
    if (!dir) dir = driven_config(d)->output_dir;
    TRY(check_folder(d, dir));
    TRY(file_make_dirs(dir));
    TRY(output_lock_take(dir, &lock)); /* no run may be writing there */
    Status status = driven_run(d, save_rank, (void *)dir, "saving");
    output_lock_release(dir, &lock);
    return status;
}

static Status load_rank(DrivenRank *rank, void *job)
{
    (void)job;
    weight_list_destroy(rank->tensors);
    rank->tensors = NULL;
    session_destroy(rank->trainer->session);
    rank->trainer->session = NULL;
    return driven_start_session(rank);
}

static void go_on_from(Trainer *t, const char *path, const TrainState *state)
{
    snprintf(t->resume_path, sizeof t->resume_path, "%s", path);
    t->state = *state;
    t->branch = state->step;
    t->num_queued = 0;
}

Status driven_load(Driven *d, const char *path)
{
    Trainer   *t = driven_trainer(d);
    TrainState state;
    bool       is_dir;
    FAIL_IF(strlen(path) >= sizeof t->resume_path, ERR_INVALID, "the path of the checkpoint is too long");
    TRY(checkpoint_restore_named(path));
    TRY(file_is_dir(path, &is_dir));
    FAIL_IF(!is_dir, ERR_CHECKPOINT, "there is no folder %s; expected a checkpoint's, such as output/checkpoint-100", path);
    TRY(checkpoint_verify(path));
    TRY(checkpoint_read_state(path, &state));
    strcpy(t->resume_path, path);
    TRY(trainer_refuse_other_kind(t));
    for (int r = 0; r < d->world; r++) go_on_from(d->ranks[r].trainer, path, &state);
    d->num_results = 0;
    d->num_taken = d->num_trained = 0;
    d->is_summed = d->has_gradients = false;
    Status status = driven_run(d, load_rank, NULL, "loading");
    d->is_broken = status != OK;
    return status;
}

/* ---- exports ---- */

static Status export_rank(DrivenRank *rank, void *job)
{
    SaveContext context;
    StrBuf      text = {0};
    Status      status = save_context(rank->trainer, &text, &context);
    if (status == OK) status = checkpoint_save_model(&context, job);
    strbuf_deinit(&text);
    return status;
}

/* Removes weights in the other form (one file, or several with an index): readers of a folder with both forms would load the old one. */
static Status remove_other_form(Arena *arena, const FolderWriter *writer)
{
    const char *one = "model.safetensors", *index = "model.safetensors.index.json";
    bool        is_one;
    TRY(file_exists(arena_printf(arena, "%s/%s", writer->partial, one), &is_one));
    return file_remove_tree(arena_printf(arena, "%s/%s", writer->path, is_one ? index : one));
}

/* Exports the adapter into a folder within `folder`, and merges it into the base there. */
static Status export_merged(Driven *d, Arena *arena, const char *folder)
{
    char *adapter = arena_printf(arena, "%s/.adapter.partial", folder);
    TRY(file_make_dirs(adapter));
    TRY(driven_run(d, export_rank, adapter, "saving"));
    TRY(trainer_merge(driven_trainer(d), adapter, folder));
    return file_remove_tree(adapter);
}

static Status export_folder(Driven *d, Arena *arena, const char *dir, bool whole)
{
    FolderWriter writer;
    TRY(folder_begin(arena, dir, &writer));
    bool   merges = whole && driven_config(d)->lora;
    Status status = merges ? export_merged(d, arena, writer.partial) : driven_run(d, export_rank, (void *)writer.partial, "saving");
    if (status == OK && whole && writer.is_there) status = remove_other_form(arena, &writer);
    if (status != OK) return folder_abandon(&writer, status);
    return folder_finish(&writer, whole ? "config.json" : "adapter_config.json");
}

Status driven_export(Driven *d, const char *dir, bool whole)
{
    Arena arena = {0};
    int   lock = OUTPUT_LOCK_NONE;
    bool  is_there;
    FAIL_IF(!whole && !driven_config(d)->lora, ERR_INVALID, "this run trains no adapter: export the model, or set lora: true");
    TRY(check_folder(d, dir));
    TRY(file_is_dir(dir, &is_there));
    if (is_there) TRY(output_lock_take(dir, &lock));
    Status status = export_folder(d, &arena, dir, whole);
    if (is_there) output_lock_release(dir, &lock);
    arena_deinit(&arena);
    return status;
}

/* ---- trained tensors ---- */

static Status list_rank(DrivenRank *rank, void *job)
{
    Trainer *t = rank->trainer;
    (void)job;
    return rank->tensors ? OK : weight_list_create(t->session, t->model, t->options.lora.enabled, &rank->tensors);
}

Status driven_tensors(Driven *d, const WeightList **out)
{
    TRY(driven_settle(d, NULL));
    TRY(driven_run(d, list_rank, NULL, NULL));
    *out = d->ranks[0].tensors;
    return OK;
}

typedef struct ReadJob {
    size_t  index;
    bool    gradient;
    float  *values;
    int64_t numel;
} ReadJob;

/* Writes the elements that this rank is responsible for. */
static Status read_rank(DrivenRank *rank, void *job)
{
    const ReadJob *read = job;
    return weight_list_read(rank->tensors, read->index, read->gradient, read->values, read->numel);
}

Status driven_read(Driven *d, size_t index, bool gradient, float *values, int64_t numel)
{
    const WeightList *list;
    TRY(driven_tensors(d, &list));
    FAIL_IF(gradient && !d->has_gradients, ERR_INVALID, "there are no gradients yet: call backward or update first");
    return driven_run(d, read_rank, &(ReadJob){index, gradient, values, numel}, NULL);
}
