/* A GGUF file given in place of a model's folder: the folder is made once, in the hub's cache. */
#include "base/hash.h"
#include "base/log.h"
#include "files/folder.h"
#include "files/hub.h"
#include "model/gguf_import.h"

enum { LAYOUT = 1 }; /* version of the folders' layout, part of their hash: a program with another layout finds none of these folders */

static Status unpack(void *context, const char *folder)
{
    const char *const *paths = context; /* [0] path of the GGUF file, [1] of the finished folder */
    log_info("%s: unpacking into %s", paths[0], paths[1]);
    return gguf_import(paths[0], DT_BF16, folder);
}

Status gguf_local_dir(Arena *arena, const char *path, const char **out_dir)
{
    uint64_t hash;
    bool     is_gguf;
    *out_dir = path;
    TRY(gguf_is_file(path, &is_gguf));
    if (!is_gguf) return OK;
    TRY(file_fingerprint(path, LAYOUT, &hash));
    TRY(hub_derived_path(arena, UNPACKED_PREFIX, hash, path, out_dir));
    const char *paths[] = {path, *out_dir};
    return folder_make_once(arena, *out_dir, "config.json", "waiting for another process that unpacks the model", unpack, paths);
}
