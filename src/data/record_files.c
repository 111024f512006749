/* Which files a dataset path means. */
#include "base/array.h"
#include "data/record.h"
#include "data/record_internal.h"
#include "data/split.h"
#include "files/file.h"
#include "files/hub.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FIND_MAX_DEPTH = 16 };

/* The endings that file_format knows. */
#define ENDINGS ".jsonl .ndjson .json .csv .tsv .parquet .txt .text .md, each but .parquet also with .gz, .zst, .xz or .bz2"

static void push_path(PathList *list, const char *path)
{
    list->paths = arena_room(list->arena, list->paths, (size_t)list->count + 1, &list->capacity, sizeof *list->paths);
    list->paths[list->count++] = arena_strdup(list->arena, path);
}

static bool ends_with(const char *name, size_t len, const char *ending)
{
    size_t n = strlen(ending);
    return len > n && strncasecmp(name + len - n, ending, n) == 0;
}

FileFormat file_format(const char *path, bool *out_is_known)
{
    static const struct {
        const char *ending;
        FileFormat  format;
    } endings[] = {
        {".jsonl", FILE_JSONL},     {".ndjson", FILE_JSONL}, {".json", FILE_JSON}, {".csv", FILE_CSV}, {".tsv", FILE_TSV},
        {".parquet", FILE_PARQUET}, {".txt", FILE_TEXT},     {".text", FILE_TEXT}, {".md", FILE_TEXT},
    };
    static const char *const packings[] = {".gz", ".zst", ".xz", ".bz2"};
    size_t                   all = strlen(path), len = all;
    for (size_t i = 0; i < sizeof packings / sizeof packings[0]; i++)
        if (ends_with(path, all, packings[i])) len = all - strlen(packings[i]);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (ends_with(path, len, endings[i].ending)) {
            *out_is_known = true;
            return endings[i].format;
        }
    *out_is_known = false;
    return FILE_TEXT;
}

/* Hidden files and folders (caches, version control) are left out. */
static Status find_below(PathList *list, PathList *about, const char *dir, int depth)
{
    FAIL_IF(depth > FIND_MAX_DEPTH, ERR_INVALID, "%s: folders nested more than %d deep", dir, FIND_MAX_DEPTH);
    const char **names;
    size_t       count;
    TRY(file_list(list->arena, dir, &names, &count));
    for (size_t i = 0; i < count; i++) {
        const char *path = arena_printf(list->arena, "%s/%s", dir, names[i]);
        bool        is_known, is_dir;
        if (names[i][0] == '.') continue;
        (void)file_format(names[i], &is_known);
        TRY(file_is_dir(path, &is_dir));
        if (is_dir)
            TRY(find_below(list, about, path, depth + 1));
        else if (is_known)
            push_path(file_is_about(names[i]) ? about : list, path);
    }
    return OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_paths(PathList *list)
{
    if (list->count) qsort(list->paths, (size_t)list->count, sizeof *list->paths, compare_paths);
}

static Status find_in_folder(PathList *list, const char *dir, const char *split, StrBuf *notes)
{
    PathList about = {.arena = list->arena};
    TRY(find_below(list, &about, dir, 0));
    sort_paths(&about);
    FAIL_IF(list->count == 0 && about.count > 0, ERR_NOT_FOUND,
            "%s: no data files here but %s, which is about the dataset; to train on it name it as the path", dir, about.paths[0]);
    FAIL_IF(list->count == 0, ERR_NOT_FOUND, "%s: no data files here (" ENDINGS ")", dir);
    sort_paths(list);
    note_about(notes, dir, &about);
    return split ? keep_split(list, dir, split, notes) : OK;
}

/* glob skips folders that don't exist, and stops at a folder that can't be read. */
static int fail_unless_absent(const char *path, int error)
{
    (void)path;
    errno = error;
    return error != ENOENT && error != ENOTDIR;
}

/* Sorts the matches itself: glob would sort them by the process's locale, on which the order of rows must not depend. */
static Status find_glob(PathList *list, const char *path)
{
    glob_t found;
    int    code = glob(path, GLOB_NOSORT, fail_unless_absent, &found);
    Status status = OK;
    for (size_t i = 0; code == 0 && i < found.gl_pathc && status == OK; i++) {
        bool is_dir = false;
        status = file_is_dir(found.gl_pathv[i], &is_dir);
        if (status == OK && !is_dir) push_path(list, found.gl_pathv[i]);
    }
    if (code == GLOB_ABORTED) status = file_fail("list the folders of", path);
    globfree(&found);
    TRY(status);
    FAIL_IF(list->count == 0, ERR_NOT_FOUND, "%s: no file matches", path);
    sort_paths(list);
    return OK;
}

static Status check_endings(const PathList *list)
{
    for (int i = 0; i < list->count; i++) {
        bool is_known;
        (void)file_format(list->paths[i], &is_known);
        FAIL_IF(!is_known, ERR_INVALID,
                "%s: what is in it can't be told from its ending; expected " ENDINGS " (type: text reads any file as text)",
                list->paths[i]);
    }
    return OK;
}

Status reader_find_files(Arena *arena, const char *path, const char *split, bool any_ending, StrBuf *notes, char ***out_paths,
                         int *out_count)
{
    PathList list = {.arena = arena};
    bool     is_there, is_dir;
    Split    part;
    TRY(split_parse(split, &part));
    TRY(file_exists(path, &is_there));
    TRY(file_is_dir(path, &is_dir));
    if (is_dir) {
        TRY(find_in_folder(&list, path, part.name[0] ? part.name : NULL, notes));
    } else if (is_there) {
        push_path(&list, path);
        note_no_split(notes, path, part.name, "the path is one file; its rows are taken whatever the split is");
    } else {
        StrBuf local = {0};
        Status status = strpbrk(path, "*?[") ? OK : hub_local_path(HUB_DATASET, path, &local);
        if (local.len) path = arena_strdup(arena, strbuf_cstr(&local));
        strbuf_deinit(&local);
        TRY(status);
        TRY(file_is_dir(path, &is_dir));
        if (is_dir) return reader_find_files(arena, path, split, any_ending, notes, out_paths, out_count);
        TRY(find_glob(&list, path));
        note_no_split(notes, path, part.name, "the pattern alone chooses the files; the rows of all are taken");
    }
    if (!any_ending) TRY(check_endings(&list));
    *out_paths = list.paths;
    *out_count = list.count;
    return OK;
}
