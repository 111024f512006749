/* See resumable_file.h. */
#include "infer/resumable_file.h"

#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SETTINGS_BYTES = 1 << 20 };

/* ---- settings ---- */

static void put_value(StrBuf *out, const JsonValue *value)
{
    if (value)
        json_write(out, value, -1);
    else
        strbuf_puts(out, "not given");
}

/* Appends "key was A and is B" if the values differ; either may be NULL. */
static void compare_values(StrBuf *out, Str key, const JsonValue *was, const JsonValue *is)
{
    StrBuf before = {0}, now = {0};
    put_value(&before, was);
    put_value(&now, is);
    if (strcmp(strbuf_cstr(&before), strbuf_cstr(&now)) != 0)
        strbuf_printf(out, "%s%.*s was %.200s and is %.200s", out->len ? ", " : "", (int)key.len, key.data, strbuf_cstr(&before),
                      strbuf_cstr(&now));
    strbuf_deinit(&before);
    strbuf_deinit(&now);
}

static Status compare(const char *path, Str was_text, Str is_text, StrBuf *out)
{
    Arena     arena = {0};
    JsonValue was, is;
    Status    status = json_parse(&arena, path, was_text.data, was_text.len, &was);
    if (status == OK) status = json_parse(&arena, path, is_text.data, is_text.len, &is);
    if (status == OK && was.type != JSON_OBJECT) status = status_fail(ERR_INVALID, "%s: expected an object of settings", path);
    for (uint32_t i = 0; status == OK && i < is.count; i++)
        compare_values(out, is.members[i].key, json_find(&was, is.members[i].key), &is.members[i].value);
    for (uint32_t i = 0; status == OK && i < was.count; i++)
        if (!json_find(&is, was.members[i].key)) compare_values(out, was.members[i].key, &was.members[i].value, NULL);
    arena_deinit(&arena);
    return status;
}

/* Appends how the settings that `file` was made with differ from `settings`. */
static Status compare_file(const ResumableFile *f, const char *file, Str settings, StrBuf *out)
{
    Arena  arena = {0};
    Str    was;
    Status status = file_read(&arena, f->settings_path, MAX_SETTINGS_BYTES, &was);
    if (status == ERR_NOT_FOUND)
        status = status_fail(ERR_INVALID,
                             "%s is there already, and %s isn't, which would say what it was made with: choose another --out, or remove it",
                             file, f->settings_path);
    if (status == OK) status = compare(f->settings_path, was, settings, out);
    arena_deinit(&arena);
    return status;
}

static Status refuse_others(const ResumableFile *f, const char *file, bool is_part, Str settings)
{
    StrBuf differences = {0};
    Status status = compare_file(f, file, settings, &differences);
    if (status == OK && differences.len)
        status =
            status_fail(ERR_INVALID, "%s was %s with other settings: %s. %s, or remove %s and %s to begin anew", file,
                        is_part ? "begun" : "made", strbuf_cstr(&differences),
                        is_part ? "Give the same settings to go on, choose another --out" : "Choose another --out", file, f->settings_path);
    strbuf_deinit(&differences);
    return status;
}

/* ---- the file ---- */

static Status look_for_whole(ResumableFile *f, Str settings, bool *out_is_there)
{
    bool is_dir;
    FAIL_IF(!*f->path, ERR_INVALID, "the name of the file to write is empty");
    TRY(file_is_dir(f->path, &is_dir));
    FAIL_IF(is_dir, ERR_INVALID, "%s is a folder; expected the name of a file", f->path);
    TRY(file_exists(f->path, out_is_there));
    return *out_is_there ? refuse_others(f, f->path, false, settings) : OK;
}

static Status make_folder(Arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash != path ? file_make_dirs(arena_strndup(arena, path, (size_t)(slash - path))) : OK;
}

/* Call with the .part file locked: before that, another process may have finished and renamed it. */
static Status begin_or_go_on(ResumableFile *f, Str settings)
{
    int64_t size;
    bool    is_there;
    TRY(look_for_whole(f, settings, &is_there));
    if (is_there) {
        resumable_file_close(f);
        return OK;
    }
    TRY(file_size(f->part, &size));
    if (size > 0) return refuse_others(f, f->part, true, settings);
    return file_write_atomic(f->settings_path, settings.data, settings.len);
}

Status resumable_file_open(Arena *arena, const char *path, Str settings, ResumableFile *out)
{
    bool is_there;
    *out = (ResumableFile){.path = path,
                           .part = arena_printf(arena, "%s.part", path),
                           .settings_path = arena_printf(arena, "%s.settings.json", path),
                           .fd = -1};
    TRY(look_for_whole(out, settings, &is_there));
    if (is_there) return OK;
    TRY(make_folder(arena, path));
    TRY(file_lock(out->part, arena_printf(arena, "waiting: another process writes %s", out->part), &out->fd));
    Status status = begin_or_go_on(out, settings);
    if (status != OK) resumable_file_close(out);
    return status;
}

void resumable_file_close(ResumableFile *f)
{
    if (f->fd >= 0) file_close(f->fd);
    f->fd = -1;
}

Status resumable_file_cut(ResumableFile *f, size_t size)
{
    if (file_truncate(f->fd, (int64_t)size) != 0) return file_fail("shorten", f->part);
    if (lseek(f->fd, (off_t)size, SEEK_SET) < 0) return file_fail("write", f->part);
    return OK;
}

Status resumable_file_append(ResumableFile *f, const StrBuf *lines)
{
    for (size_t at = 0; at < lines->len;) {
        ssize_t count = write(f->fd, lines->data + at, lines->len - at);
        if (count < 0 && errno != EINTR) return file_fail("write", f->part);
        if (count > 0) at += (size_t)count;
    }
    return OK;
}

Status resumable_file_finish(ResumableFile *f)
{
    if (file_fsync(f->fd) != 0) return file_fail("write", f->part);
    if (rename(f->part, f->path) != 0) return file_fail("rename to", f->path);
    resumable_file_close(f);
    return file_sync_above(f->path);
}
