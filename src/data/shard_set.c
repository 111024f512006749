/* Folders of shards. */
#include "data/shard.h"

#include "data/shard_format.h"
#include "files/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Status set_add(ShardSet *set, const char *path)
{
    Shard *shard;
    TRY(shard_open(path, &shard));
    const ShardInfo *info = shard_info(shard);
    set->shards = realloc_or_end(set->shards, sizeof *set->shards * (size_t)(set->num_shards + 1));
    set->shards[set->num_shards++] = shard;
    if (set->num_shards == 1) {
        set->tokenizer_hash = info->tokenizer_hash;
        set->vocab_size = info->vocab_size;
    }
    FAIL_IF(set->tokenizer_hash != info->tokenizer_hash || set->vocab_size != info->vocab_size, ERR_INVALID,
            "%s: written with another tokenizer than the shards before it", path);
    set->num_tokens += info->num_tokens;
    set->num_documents += info->num_documents;
    set->num_trained += info->num_trained;
    set->has_mask |= info->has_mask;
    return OK;
}

static Status set_load(ShardSet *set, const char *dir)
{
    bool is_dir;
    TRY(file_is_dir(dir, &is_dir));
    if (!is_dir) return set_add(set, dir);
    Arena  names = {0};
    Status status = OK;
    for (int i = 0; status == OK; i++) {
        const char *path = arena_printf(&names, "%s/" SHARD_NAME, dir, i);
        bool        is_there;
        status = file_exists(path, &is_there);
        if (status != OK || !is_there) break;
        status = set_add(set, path);
    }
    arena_deinit(&names);
    if (status == OK && set->num_shards == 0) status = status_fail(ERR_NOT_FOUND, "%s: no token shards here (shard-00000.tokens)", dir);
    return status;
}

Status shard_set_open(const char *dir, ShardSet *out_set)
{
    *out_set = (ShardSet){0};
    Status status = set_load(out_set, dir);
    if (status != OK) shard_set_close(out_set);
    return status;
}

int shard_set_column(const ShardSet *set, const char *input, ShardColumn *out)
{
    int count, found = -1;
    for (int s = 0; s < set->num_shards; s++) {
        const ShardColumn *columns = shard_columns(set->shards[s], &count);
        int                at = 0;
        while (at < count && strcmp(columns[at].name, input) != 0) at++;
        if (at == count || (s && at != found)) return -1;
        found = at;
        if (!out) continue;
        if (s == 0) *out = columns[at];
        if (columns[at].size != out->size) return -1;
        out->has_fractions |= columns[at].has_fractions;
        out->has_ignored |= columns[at].has_ignored;
        out->least = fmin(out->least, columns[at].least);
        out->most = fmax(out->most, columns[at].most);
    }
    return found;
}

void shard_set_close(ShardSet *set)
{
    for (int i = 0; i < set->num_shards; i++) shard_close(set->shards[i]);
    free(set->shards);
    *set = (ShardSet){0};
}
