/* See output_dir.h. */
#include "train/output_dir.h"

#include "files/file.h"
#include "model/hf_model.h"
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a run writes at its end, beside checkpoints, log and what is copied from the model (hf_is_side_file). */
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
#define PARTIAL_END ".partial" /* a name's file, or merged's folder, while it is written */
/* What else mustn't be there when no run of ours was. */
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

/* The first two names that are in the way, in the order of the folder. */
static void name_foreign(DIR *dir, StrBuf *out)
{
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!is_output(entry->d_name) && !matches(others, entry->d_name)) continue;
        if (++count <= 2) strbuf_printf(out, "%s%s", count > 1 ? ", " : "", entry->d_name);
    }
    if (count > 2) strbuf_printf(out, " and %d more", count - 2);
}

Status output_dir_check(const char *path)
{
    Arena arena = {0};
    bool  is_ours = file_exists(arena_printf(&arena, "%s/run.json", path)) || checkpoint_any_is_ours(path);
    arena_deinit(&arena);
    DIR *dir = is_ours ? NULL : opendir(path);
    if (!dir) return OK;
    StrBuf names = {0};
    name_foreign(dir, &names);
    closedir(dir);
    Status status = OK;
    if (names.len)
        status = status_fail(ERR_INVALID,
                             "output_dir %s holds %s, which no run of this program left there (it has no run.json); a run would write "
                             "over them. Name another output_dir, or an empty folder",
                             path, names.data);
    strbuf_deinit(&names);
    return status;
}

Status output_dir_check_source(const char *path, const char *source)
{
    FAIL_IF(file_is_same(path, source), ERR_INVALID,
            "output_dir is the model's own folder, %s, whose files would be overwritten; name another", source);
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

int64_t output_dir_bytes(const char *path)
{
    Arena   arena = {0};
    DIR    *dir = opendir(path);
    int64_t bytes = 0;
    if (!dir) return 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (is_output(entry->d_name)) bytes += file_tree_bytes(arena_printf(&arena, "%s/%s", path, entry->d_name));
    closedir(dir);
    arena_deinit(&arena);
    return bytes;
}

/* model.safetensors.partial and the like, and the folder of a merge. */
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
    Arena  arena = {0};
    DIR   *dir = opendir(path);
    Status status = OK;
    if (!dir) return OK;
    for (struct dirent *entry; status == OK && (entry = readdir(dir));)
        if (is_left_over(entry->d_name)) status = file_remove_tree(arena_printf(&arena, "%s/%s", path, entry->d_name));
    closedir(dir);
    arena_deinit(&arena);
    return status;
}

Status output_dir_clear(const char *path)
{
    Arena  arena = {0};
    DIR   *dir = opendir(path);
    Status status = OK;
    if (!dir) return file_fail("list", path);
    for (struct dirent *entry; status == OK && (entry = readdir(dir));)
        if (is_output(entry->d_name)) status = file_remove_tree(arena_printf(&arena, "%s/%s", path, entry->d_name));
    closedir(dir);
    arena_deinit(&arena);
    return status;
}
