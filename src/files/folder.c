/* A folder appears at once by being renamed. A folder that already exists can't be replaced like that: it may be a mount point, the working
 * folder, or hold files of the user. */
#include "files/folder.h"

#include "base/scoped.h"
#include "base/strbuf.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The hidden name beside `path`: "a/b/" gives "a/.b.partial", "/b" gives "/.b.partial". */
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

/* Calls `act` for each entry of `dir`. `path` is DIR/NAME. */
static Status for_each_entry(const char *dir, void *context, Status (*act)(void *context, const char *name, const char *path))
{
    SCOPED_ARENA(arena);
    const char **names;
    size_t       count;
    TRY(file_list(&arena, dir, &names, &count));
    for (size_t i = 0; i < count; i++) TRY(act(context, names[i], arena_printf(&arena, "%s/%s", dir, names[i])));
    return OK;
}

static Status remove_entry(void *context, const char *name, const char *path)
{
    (void)context, (void)name;
    return file_remove_tree(path);
}

/* Fails with the last message, in which the folder's own name replaces the hidden name. */
static Status name_as_asked(const FolderWriter *writer, Status status)
{
    SCOPED_STRBUF(text);
    char message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status_message());
    const char *at = message;
    for (const char *found; (found = strstr(at, writer->partial)); at = found + strlen(writer->partial)) {
        strbuf_append(&text, at, (size_t)(found - at));
        strbuf_puts(&text, writer->path);
    }
    strbuf_puts(&text, at);
    return status_fail(status, "%s", strbuf_cstr(&text));
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
    bool        is_last; /* move only `last`; false: move all other entries */
} Move;

static Status move_entry(void *context, const char *name, const char *path)
{
    const Move *move = context;
    SCOPED_ARENA(arena);
    const char *to = arena_printf(&arena, "%s/%s", move->to, name);
    bool        is_dir;
    if ((strcmp(name, move->last) == 0) != move->is_last) return OK;
    TRY(file_is_dir(to, &is_dir));
    if (is_dir) TRY(file_remove_tree(to));
    return rename(path, to) != 0 ? file_fail("rename to", to) : OK;
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
    SCOPED_ARENA(arena);
    Status status = file_sync_dir(writer->partial);
    if (status == OK && writer->is_there)
        status = move_files(writer, last);
    else if (status == OK && rename(writer->partial, writer->path) != 0)
        status = file_fail("rename to", writer->path);
    else if (status == OK)
        status = file_sync_dir(folder_of(&arena, writer->partial));
    if (status != OK) return folder_abandon(writer, status);
    close(writer->lock);
    return OK;
}

Status folder_abandon(FolderWriter *writer, Status status)
{
    status = name_as_asked(writer, status);
    file_remove_behind(writer->partial);
    close(writer->lock);
    return status;
}

static Status make_now(Arena *arena, const char *folder, const char *last, Status (*make)(void *context, const char *partial),
                       void *context)
{
    FolderWriter writer;
    TRY(folder_begin(arena, folder, &writer));
    Status status = make(context, writer.partial);
    return status == OK ? folder_finish(&writer, last) : folder_abandon(&writer, status);
}

Status folder_make_once(Arena *arena, const char *folder, const char *last, const char *waiting,
                        Status (*make)(void *context, const char *partial), void *context)
{
    SCOPED(file_close_at) int lock = -1;
    bool                      is_there;
    TRY(file_lock(arena_printf(arena, "%s.lock", folder), waiting, &lock));
    TRY(file_exists(arena_printf(arena, "%s/%s", folder, last), &is_there));
    return is_there ? OK : make_now(arena, folder, last, make, context);
}
