/* The checkpoints of an output folder: listing, replacing, setting aside and removing them. */
#include "store/checkpoint_internal.h"

#include "base/compare.h"
#include "base/log.h"
#include "base/scoped.h"
#include "store/output_lock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "checkpoint-"
#define PARTIAL_PREFIX ".checkpoint-" /* begins the names of checkpoints while they are written, removed or replaced */

const char *checkpoint_path(Arena *arena, const char *output_dir, int64_t step)
{
    return arena_printf(arena, "%s/" PREFIX "%lld", output_dir, (long long)step);
}

/* The hidden folder for a step's checkpoint while it is written (`end` is ".partial"), removed (".removed") or replaced (".replaced"). */
static const char *hidden_path(Arena *arena, const char *output_dir, int64_t step, const char *end)
{
    return arena_printf(arena, "%s/" PARTIAL_PREFIX "%lld%s", output_dir, (long long)step, end);
}

const char *checkpoint_partial_path(Arena *arena, const char *output_dir, int64_t step)
{
    return hidden_path(arena, output_dir, step, ".partial");
}

/* The step in a name made of `prefix`, a number and `end`; -1: the name isn't of this form. */
static int64_t step_of(const char *name, const char *prefix, const char *end)
{
    size_t len = strlen(prefix);
    if (strncmp(name, prefix, len) != 0) return -1;
    size_t digits = strspn(name + len, "0123456789");
    return digits && strcmp(name + len + digits, end) == 0 ? strtoll(name + len, NULL, 10) : -1;
}

int64_t checkpoint_step_of(Arena *arena, const char *path, const char **out_dir)
{
    char  *dir = arena_strdup(arena, path);
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') dir[--len] = 0;
    char   *slash = strrchr(dir, '/');
    int64_t step = step_of(slash ? slash + 1 : dir, PREFIX, "");
    if (slash) *slash = 0;
    *out_dir = !slash ? "." : slash == dir ? "/" : dir;
    return step;
}

Status checkpoint_list(Arena *arena, const char *output_dir, int64_t **out_steps, size_t *out_count)
{
    const char **names;
    size_t       num_names, count = 0;
    TRY(file_list_if_there(arena, output_dir, &names, &num_names));
    int64_t *steps = arena_array(arena, int64_t, num_names + 1);
    for (size_t i = 0; i < num_names; i++) {
        steps[count] = step_of(names[i], PREFIX, "");
        count += steps[count] >= 0;
    }
    qsort(steps, count, sizeof *steps, compare_int64s);
    *out_steps = steps;
    *out_count = count;
    return OK;
}

/* Like checkpoint_list, but lists only whole checkpoints of this program. */
static Status list_ours(Arena *arena, const char *output_dir, int64_t **out_steps, size_t *out_count)
{
    size_t count;
    *out_count = 0;
    TRY(checkpoint_list(arena, output_dir, out_steps, &count));
    for (size_t i = 0; i < count; i++) {
        int64_t step = (*out_steps)[i];
        bool    is_ours;
        TRY(checkpoint_is_ours(checkpoint_path(arena, output_dir, step), &is_ours));
        if (is_ours) (*out_steps)[(*out_count)++] = step;
    }
    return OK;
}

Status checkpoint_held(const char *output_dir, int64_t step, CheckpointsHeld *out)
{
    SCOPED_ARENA(arena);
    int64_t *steps;
    size_t   count;
    *out = (CheckpointsHeld){0};
    TRY(list_ours(&arena, output_dir, &steps, &count));
    for (size_t i = 0; i < count; i++) {
        out->count += steps[i] <= step;
        out->bytes += file_tree_bytes(checkpoint_path(&arena, output_dir, steps[i]));
    }
    return OK;
}

/* ---- removing and setting aside ---- */

/* Renames a checkpoint to a hidden name before removing it, so that nobody sees a half-removed one. */
static Status remove_checkpoint(Arena *arena, const char *output_dir, int64_t step)
{
    const char *from = checkpoint_path(arena, output_dir, step), *to = hidden_path(arena, output_dir, step, ".removed");
    if (rename(from, to) != 0 && errno != ENOENT) return file_fail("rename", from);
    return file_remove_tree(to);
}

/* Checkpoints of later steps than `step` don't count: they are of a branch that this run has left. */
Status checkpoint_prune(const char *output_dir, int64_t keep, int64_t best, int64_t step)
{
    SCOPED_ARENA(arena);
    int64_t *steps;
    size_t   count;
    if (keep <= 0) return OK;
    TRY(list_ours(&arena, output_dir, &steps, &count));
    while (count > 0 && steps[count - 1] > step) count--;
    for (size_t i = 0; i + (size_t)keep < count; i++)
        if (!best || steps[i] != best) TRY(remove_checkpoint(&arena, output_dir, steps[i]));
    return OK;
}

Status checkpoint_remove_all(const char *output_dir)
{
    SCOPED_ARENA(arena);
    int64_t *steps;
    size_t   count;
    TRY(checkpoint_list(&arena, output_dir, &steps, &count));
    for (size_t i = 0; i < count; i++) {
        const char *path = checkpoint_path(&arena, output_dir, steps[i]);
        bool        is_ours;
        TRY(checkpoint_is_ours(path, &is_ours));
        if (is_ours)
            TRY(remove_checkpoint(&arena, output_dir, steps[i]));
        else
            log_warn("%s stays: it is not a whole checkpoint of this program", path);
    }
    return OK;
}

/* Renames `path` to PATH.aside, or PATH.aside2, ...; its content stays. */
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

/* The oldest first: until all are renamed, the newest checkpoint is still one of the branch that was left. */
Status checkpoint_leave_branch(const char *output_dir, int64_t step)
{
    SCOPED_ARENA(arena);
    int64_t *steps;
    size_t   count;
    TRY(list_ours(&arena, output_dir, &steps, &count));
    if (!count || steps[count - 1] <= step) return OK;
    const char *why = arena_printf(&arena, "isn't of this run, which went on from step %lld", (long long)step);
    for (size_t i = 0; i < count; i++)
        if (steps[i] > step) TRY(set_aside(&arena, checkpoint_path(&arena, output_dir, steps[i]), why));
    return file_sync_dir(output_dir);
}

/* ---- replacing and publishing ---- */

/* The old or the new checkpoint always exists: where the file system can't exchange two folders at once, checkpoint_restore finds the old
 * one. The replaced checkpoint gets a name that checkpoint_clean removes. */
static Status replace(Arena *arena, const char *output_dir, const char *partial, const char *path, int64_t step)
{
    const char *old = hidden_path(arena, output_dir, step, ".replaced");
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

Status checkpoint_publish(const SaveContext *c, int64_t step)
{
    SCOPED_ARENA(arena);
    const char *path = checkpoint_path(&arena, c->output_dir, step), *partial = checkpoint_partial_path(&arena, c->output_dir, step);
    bool        is_ours, is_there;
    TRY(checkpoint_leave_branch(c->output_dir, c->branch));
    TRY(checkpoint_is_ours(path, &is_ours));
    TRY(file_exists(path, &is_there));
    if (is_ours) return replace(&arena, c->output_dir, partial, path, step); /* the folder is of an earlier run, or damaged */
    if (is_there) TRY(set_aside(&arena, path, "was not a whole checkpoint of this program"));
    if (rename(partial, path) != 0) return file_fail("rename to", path);
    return file_sync_dir(c->output_dir);
}

/* ---- cleaning up after a kill ---- */

static Status restore(Arena *arena, const char *output_dir, int64_t step)
{
    const char *old = hidden_path(arena, output_dir, step, ".replaced"), *path = checkpoint_path(arena, output_dir, step);
    bool        is_there;
    TRY(file_exists(path, &is_there));
    if (is_there) return OK;
    if (rename(old, path) != 0) return file_fail("rename", old);
    log_warn("a save was killed while it replaced %s: the old one is there again", path);
    return file_sync_dir(output_dir);
}

Status checkpoint_restore(const char *output_dir)
{
    SCOPED_ARENA(arena);
    const char **names;
    size_t       count;
    TRY(file_list_if_there(&arena, output_dir, &names, &count));
    for (size_t i = 0; i < count; i++) {
        int64_t step = step_of(names[i], PARTIAL_PREFIX, ".replaced");
        if (step >= 0) TRY(restore(&arena, output_dir, step));
    }
    return OK;
}

Status checkpoint_restore_named(const char *path)
{
    SCOPED_ARENA(arena);
    bool        is_there;
    int         lock = OUTPUT_LOCK_NONE;
    const char *dir;
    int64_t     step = checkpoint_step_of(&arena, path, &dir);
    TRY(file_exists(path, &is_there));
    if (is_there || step < 0) return OK;
    TRY(file_exists(hidden_path(&arena, dir, step, ".replaced"), &is_there));
    if (!is_there) return OK;
    TRY(output_lock_take(dir, &lock));
    Status status = checkpoint_restore(dir);
    output_lock_release(dir, &lock);
    return status;
}

static bool is_left_over(const char *name)
{
    static const char *const ends[] = {".partial", ".removed", ".replaced"};
    for (int i = 0; i < 3; i++)
        if (step_of(name, PARTIAL_PREFIX, ends[i]) >= 0) return true;
    return false;
}

Status checkpoint_clean(const char *output_dir)
{
    return file_remove_in(output_dir, is_left_over);
}
