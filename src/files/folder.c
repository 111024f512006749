/* Renaming is what makes a folder appear at once. One that is there can't be replaced so: it may be a mount point, the working folder, or
 * hold files of the user. */
#include "files/folder.h"

#include "base/strbuf.h"
#include "files/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* "a/b/" is "a/.b.partial", "/b" "/.b.partial". */
static const char *name_beside(Arena *arena, const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    size_t base = len;
    while (base > 0 && path[base - 1] != '/') base--;
    return arena_printf(arena, "%.*s.%.*s.partial", (int)base, path, (int)(len - base), path + base);
}

static const char *folder_of(Arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? "." : slash == path ? "/" : arena_strndup(arena, path, (size_t)(slash - path));
}

/* Each entry of `dir` to `act`, with a path that begins with `dir`. */
static Status for_each_entry(const char *dir, void *context, Status (*act)(void *context, const char *name, const char *path))
{
    Arena  arena = {0};
    Status status = OK;
    DIR   *open = opendir(dir);
    if (!open) return file_fail("open the folder", dir);
    for (struct dirent *entry; status == OK && (entry = readdir(open));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = act(context, entry->d_name, arena_printf(&arena, "%s/%s", dir, entry->d_name));
    closedir(open);
    arena_deinit(&arena);
    return status;
}

static Status remove_entry(void *context, const char *name, const char *path)
{
    (void)context, (void)name;
    return file_remove_tree(path);
}

/* The last message, with the folder's own name in place of the hidden one. */
static Status name_as_asked(const FolderWriter *writer, Status status)
{
    StrBuf text = {0};
    char   message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status_message());
    const char *at = message;
    for (const char *found; (found = strstr(at, writer->partial)); at = found + strlen(writer->partial)) {
        strbuf_append(&text, at, (size_t)(found - at));
        strbuf_puts(&text, writer->path);
    }
    strbuf_puts(&text, at);
    status = status_fail(status, "%s", strbuf_cstr(&text));
    strbuf_deinit(&text);
    return status;
}

Status folder_begin(Arena *arena, const char *path, FolderWriter *out)
{
    bool is_there;
    *out = (FolderWriter){.path = arena_strdup(arena, path), .lock = -1};
    FAIL_IF(!*path, ERR_INVALID, "an empty name for a folder");
    TRY(file_exists(path, &is_there));
    TRY(file_is_dir(path, &out->is_there));
    FAIL_IF(!out->is_there && is_there, ERR_INVALID, "%s is a file; expected the name of a new folder", path);
    out->partial = out->is_there ? arena_printf(arena, "%s/.partial", path) : name_beside(arena, path);
    Status status = file_make_dirs(out->partial);
    if (status == OK && (out->lock = open(out->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        status = file_fail("open the folder", out->partial);
    if (status == OK && flock(out->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        status = status_fail(ERR_INVALID, "another process is writing %s; wait for it, or name another folder", path);
    if (status == OK) status = for_each_entry(out->partial, NULL, remove_entry);
    if (status == OK) return OK;
    if (out->lock >= 0) close(out->lock);
    return name_as_asked(out, status);
}

typedef struct Move {
    const char *to, *last;
    bool        is_last; /* which of them are moved now */
} Move;

static Status move_entry(void *context, const char *name, const char *path)
{
    const Move *move = context;
    Arena       arena = {0};
    Status      status = OK;
    if ((strcmp(name, move->last) == 0) == move->is_last) {
        const char *to = arena_printf(&arena, "%s/%s", move->to, name);
        bool        is_dir = false;
        status = file_is_dir(to, &is_dir);
        if (status == OK && is_dir) status = file_remove_tree(to);
        if (status == OK && rename(path, to) != 0) status = file_fail("rename to", to);
    }
    arena_deinit(&arena);
    return status;
}

static Status move_files(const FolderWriter *writer, const char *last)
{
    Move move = {.to = writer->path, .last = last};
    TRY(for_each_entry(writer->partial, &move, move_entry));
    TRY(file_sync_dir(writer->path));
    move.is_last = true;
    TRY(for_each_entry(writer->partial, &move, move_entry));
    if (rmdir(writer->partial) != 0) return file_fail("remove", writer->partial);
    return file_sync_dir(writer->path);
}

Status folder_finish(FolderWriter *writer, const char *last)
{
    Arena  arena = {0};
    Status status = file_sync_dir(writer->partial);
    if (status == OK && writer->is_there)
        status = move_files(writer, last);
    else if (status == OK && rename(writer->partial, writer->path) != 0)
        status = file_fail("rename to", writer->path);
    else if (status == OK)
        status = file_sync_dir(folder_of(&arena, writer->partial));
    arena_deinit(&arena);
    if (status != OK) return folder_abandon(writer, status);
    close(writer->lock);
    return OK;
}

Status folder_abandon(FolderWriter *writer, Status status)
{
    status = name_as_asked(writer, status);
    char message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status_message());
    Status removed = file_remove_tree(writer->partial);
    (void)removed; /* the first failure is the one to tell */
    close(writer->lock);
    return status_fail(status, "%s", message);
}
