/* Files and folders: one file, or the shards that an index names. */
#include "base/json.h"
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

/* Opens each file that the index names, once, in order of first mention. */
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
        bool        known = false;
        for (size_t j = file->num_shards; j > 0 && !known; j--) known = strcmp(file->shards[j - 1].path, path) == 0;
        if (known) continue;
        FAIL_IF(!file_exists(path), ERR_NOT_FOUND, "the shard %s is missing; %s names it for tensor \"%.200s\"", path, index_path,
                member->key.data);
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
    Arena     scratch = {0};
    Str       text;
    Status    status = file_read(&scratch, index_path, ST_MAX_HEADER_BYTES, &text);
    JsonValue index;
    if (status == OK) status = json_parse(&scratch, index_path, text.data, text.len, &index);
    if (status == OK) {
        const JsonValue *map = json_get(&index, "weight_map");
        if (!map || map->type != JSON_OBJECT)
            status = status_fail(ERR_INVALID, "%s: no \"weight_map\" object", index_path);
        else
            status = open_shards(file, folder, index_path, map);
    }
    arena_deinit(&scratch);
    return status;
}

static Status open_path(StFile *file, const char *path)
{
    const char *single = path;
    if (file_is_dir(path)) {
        single = arena_printf(&file->arena, "%s/model.safetensors", path);
        const char *index = arena_printf(&file->arena, "%s/model.safetensors.index.json", path);
        if (!file_exists(single) && file_exists(index)) return open_index(file, path, index);
        const char *adapter = arena_printf(&file->arena, "%s/adapter_model.safetensors", path);
        if (!file_exists(single) && file_exists(adapter)) single = adapter;
        FAIL_IF(!file_exists(single) && file_exists(arena_printf(&file->arena, "%s/adapter_model.bin", path)), ERR_UNSUPPORTED,
                "%s has its weights as adapter_model.bin only, a Python pickle, which isn't read; load and save the adapter once with a "
                "current PEFT, "
                "which writes adapter_model.safetensors",
                path);
        FAIL_IF(!file_exists(single), ERR_NOT_FOUND,
                "%s holds no model.safetensors, model.safetensors.index.json or adapter_model.safetensors", path);
    }
    file->shards = arena_array(&file->arena, Shard, 1);
    TRY(add_shard(file, single));
    return st_build_table(file);
}

Status st_open(const char *path, StFile **out)
{
    StFile *file = st_new(path);
    Status  status = open_path(file, path);
    if (status == OK)
        *out = file;
    else
        st_close(file);
    return status;
}
