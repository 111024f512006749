/* See output_dir.h. */
#include "store/output_dir.h"

#include "base/scoped.h"
#include "files/file.h"
#include "model/hf_model.h"
#include "store/checkpoint.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files that a run writes at its end, besides checkpoints, log and copies of the model's files (hf_is_side_file). */
static const char *const outputs[] = {
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "surogate_ir.json",
    "adapter_model.safetensors",
    "adapter_model-*-of-*.safetensors",
    "adapter_model.safetensors.index.json",
    "adapter_config.json",
    "base_format.json",
    "trainer_state.json",
    "report.html",
    "merged",
    ".merged.partial",
    NULL,
};
#define PARTIAL_END ".partial" /* end of a file's name, or of merged's folder, while it is being written */
/* Other names that a folder mustn't contain if no run of ours was there. */
static const char *const others[] = {"checkpoint-*", "adapter_*", "pytorch_model*", "metrics.jsonl", NULL};

static bool matches(const char *const *patterns, const char *name)
{
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, name, 0) == 0) return true;
    return false;
}

static bool is_output(const char *name)
{
    return matches(outputs, name) || hf_is_side_file(name);
}

/* Appends the first two names that a run would write over, and how many more there are. */
static void name_foreign(const char *const *names, size_t num_names, StrBuf *out)
{
    int count = 0;
    for (size_t i = 0; i < num_names; i++) {
        if (!is_output(names[i]) && !matches(others, names[i])) continue;
        if (++count <= 2) strbuf_printf(out, "%s%s", count > 1 ? ", " : "", names[i]);
    }
    if (count > 2) strbuf_printf(out, " and %d more", count - 2);
}

Status output_dir_check(const char *path)
{
    SCOPED_ARENA(arena);
    SCOPED_STRBUF(names);
    const char    **found;
    size_t          count;
    bool            has_record;
    CheckpointsHeld held;
    TRY(file_exists(arena_printf(&arena, "%s/run.json", path), &has_record));
    if (has_record) return OK;
    TRY(checkpoint_held(path, INT64_MAX, &held));
    if (held.count) return OK;
    TRY(file_list_if_there(&arena, path, &found, &count));
    name_foreign(found, count, &names);
    FAIL_IF(names.len, ERR_INVALID,
            "output_dir %s holds %s, which no run of this program left there (it has no run.json); a run would write "
            "over them. Name another output_dir, or an empty folder",
            path, names.data);
    return OK;
}

Status output_dir_check_source(const char *path, const char *source, const char *whose)
{
    bool is_same;
    TRY(file_is_same(path, source, &is_same));
    FAIL_IF(is_same, ERR_INVALID, "output_dir is the %s's own folder, %s, whose files would be overwritten; name another", whose, source);
    char  *dir = realpath(path, NULL), *inner = realpath(source, NULL), name[256] = "";
    size_t len = dir ? strlen(dir) : 0;
    if (dir && inner && strncmp(inner, dir, len) == 0 && inner[len] == '/')
        snprintf(name, sizeof name, "%.*s", (int)strcspn(inner + len + 1, "/"), inner + len + 1);
    free(dir);
    free(inner);
    FAIL_IF(is_output(name) || matches(others, name), ERR_INVALID,
            "%s lies in output_dir %s, among what a run writes and removes there; name another output_dir", source, path);
    return OK;
}

Status output_dir_bytes(const char *path, int64_t *out)
{
    SCOPED_ARENA(arena);
    const char **names;
    size_t       count;
    *out = 0;
    TRY(file_list_if_there(&arena, path, &names, &count));
    for (size_t i = 0; i < count; i++)
        if (is_output(names[i])) *out += file_tree_bytes(arena_printf(&arena, "%s/%s", path, names[i]));
    return OK;
}

/* Whether the name is model.safetensors.partial or the like, or the unfinished folder of a merge. */
static bool is_left_over(const char *name)
{
    char   whole[256];
    size_t len = strlen(name), tail = strlen(PARTIAL_END);
    if (len <= tail || len - tail >= sizeof whole || strcmp(name + len - tail, PARTIAL_END) != 0) return false;
    snprintf(whole, sizeof whole, "%.*s", (int)(len - tail), name);
    return strcmp(whole, ".merged") == 0 || strcmp(whole, "run.json") == 0 || is_output(whole);
}

Status output_dir_clean(const char *path)
{
    return file_remove_in(path, is_left_over);
}

Status output_dir_clear(const char *path)
{
    return file_remove_in(path, is_output);
}
