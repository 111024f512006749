/* Files and folders: one file, or the shards that an index names. */
#include "base/scoped.h"
#include "files/json_file.h"
#include "files/safetensors_internal.h"

#include <string.h>

static Status add_shard(StFile *file, const char *name)
{
    Shard *shard = &file->shards[file->num_shards];
    shard->path = arena_strdup(&file->arena, name);
    TRY(file_map(name, &shard->map));
    file->num_shards++;
    return st_read_bytes(file, shard->path, &shard->map);
}

/* Opens each file that the index names, once, in the order in which they are first named. */
static Status open_shards(StFile *file, const char *folder, const char *index_path, const JsonValue *map)
{
    file->shards = arena_array(&file->arena, Shard, map->count);
    for (uint32_t i = 0; i < map->count; i++) {
        const JsonMember *member = &map->members[i];
        FAIL_IF(member->value.type != JSON_STRING, ERR_INVALID, "%s: weight_map \"%.200s\" is no file name", index_path, member->key.data);
        const char *name = member->value.string.data;
        FAIL_IF(strchr(name, '/') || !*name, ERR_INVALID, "%s: weight_map \"%.200s\": \"%.200s\" is no plain file name", index_path,
                member->key.data, name);
        const char *path = arena_printf(&file->arena, "%s/%s", folder, name);
        bool        known = false, is_there;
        for (size_t j = file->num_shards; j > 0 && !known; j--) known = strcmp(file->shards[j - 1].path, path) == 0;
        if (known) continue;
        TRY(file_exists(path, &is_there));
        FAIL_IF(!is_there, ERR_NOT_FOUND, "the shard %s is missing; %s names it for tensor \"%.200s\"", path, index_path, member->key.data);
        TRY(add_shard(file, path));
    }
    TRY(st_build_table(file));
    for (uint32_t i = 0; i < map->count; i++) {
        const JsonMember *member = &map->members[i];
        const StTensor   *tensor = st_find(file, member->key.data);
        const char       *name = member->value.string.data;
        FAIL_IF(!tensor || strcmp(strrchr(tensor->path, '/') + 1, name) != 0, ERR_INVALID,
                "%s: tensor \"%.200s\" isn't in %s, where the index puts it", index_path, member->key.data, name);
    }
    return OK;
}

static Status open_index(StFile *file, const char *folder, const char *index_path)
{
    SCOPED_ARENA(scratch);
    JsonValue index;
    TRY(json_file_read(&scratch, index_path, ST_MAX_HEADER_BYTES, &index));
    const JsonValue *map = json_get(&index, "weight_map");
    FAIL_IF(!map || map->type != JSON_OBJECT, ERR_INVALID, "%s: no \"weight_map\" object", index_path);
    return open_shards(file, folder, index_path, map);
}

static Status open_single(StFile *file, const char *path)
{
    file->shards = arena_array(&file->arena, Shard, 1);
    TRY(add_shard(file, path));
    return st_build_table(file);
}

static Status open_folder(StFile *file, const char *folder)
{
    enum { SINGLE, INDEX, ADAPTER, PICKLE, NUM_NAMES };
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors",
                                        "adapter_model.bin"};
    for (int i = 0; i < NUM_NAMES; i++) {
        const char *path = arena_printf(&file->arena, "%s/%s", folder, names[i]);
        bool        is_there;
        TRY(file_exists(path, &is_there));
        if (!is_there) continue;
        FAIL_IF(i == PICKLE, ERR_UNSUPPORTED,
                "%s has its weights as adapter_model.bin only, a Python pickle, which isn't read; load and save the adapter once with a "
                "current PEFT, which writes adapter_model.safetensors",
                folder);
        return i == INDEX ? open_index(file, folder, path) : open_single(file, path);
    }
    FAIL(ERR_NOT_FOUND, "%s holds no model.safetensors, model.safetensors.index.json or adapter_model.safetensors", folder);
}

static Status open_path(StFile *file, const char *path)
{
    bool is_dir;
    TRY(file_is_dir(path, &is_dir));
    return is_dir ? open_folder(file, path) : open_single(file, path);
}

Status st_open(const char *path, StFile **out)
{
    SCOPED(st_close_at) StFile *file = st_new(path);
    TRY(open_path(file, path));
    *out = file;
    file = NULL;
    return OK;
}
