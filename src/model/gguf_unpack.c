/* GGUF files where a model's folder is expected: the folder is made once, in the hub's cache. */
#include "base/hash.h"
#include "base/log.h"
#include "files/folder.h"
#include "files/hub.h"
#include "model/gguf_import.h"

#include <string.h>
#include <sys/stat.h>

enum { LAYOUT = 1 }; /* of the folders: a version that writes other ones has another number, and finds none of these */

/* Another one for any other file, and after any write to it. */
static Status fingerprint(const char *path, uint64_t *out)
{
    struct stat info;
    if (stat(path, &info) != 0) return file_fail("look at", path);
    uint64_t facts[] = {(uint64_t)info.st_dev, (uint64_t)info.st_ino, (uint64_t)info.st_size, (uint64_t)info.st_mtim.tv_sec,
                        (uint64_t)info.st_mtim.tv_nsec};
    *out = hash_bytes(facts, sizeof facts, LAYOUT);
    return OK;
}

static Status unpack(Arena *arena, const char *path, const char *folder)
{
    FolderWriter writer;
    log_info("%s: unpacking into %s", path, folder);
    TRY(folder_begin(arena, folder, &writer));
    Status status = gguf_import(path, DT_BF16, writer.partial);
    return status == OK ? folder_finish(&writer, "config.json") : folder_abandon(&writer, status);
}

/* One process, or thread, unpacks and the others wait. */
static Status unpack_once(Arena *arena, const char *path, const char *folder)
{
    int    lock = -1;
    bool   is_there = false;
    Status status = file_lock(arena_printf(arena, "%s.lock", folder), "waiting for another process that unpacks the model", &lock);
    if (status == OK) status = file_exists(arena_printf(arena, "%s/config.json", folder), &is_there);
    if (status == OK && !is_there) status = unpack(arena, path, folder);
    if (lock >= 0) file_close(lock);
    return status;
}

Status gguf_local_dir(Arena *arena, const char *path, const char **out_dir)
{
    HubOptions hub;
    uint64_t   hash = 0;
    bool       is_gguf;
    *out_dir = path;
    TRY(gguf_is_file(path, &is_gguf));
    if (!is_gguf) return OK;
    TRY(fingerprint(path, &hash));
    TRY(hub_options_init(&hub));
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *folder = arena_printf(arena, "%s/" UNPACKED_PREFIX "%016llx--%s", hub.cache, (unsigned long long)hash, name);
    Status      status = file_make_dirs(hub.cache);
    hub_options_deinit(&hub);
    if (status == OK) status = unpack_once(arena, path, folder);
    *out_dir = folder;
    return status;
}
