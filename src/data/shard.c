/* Reading shards. Everything that the header says is checked against the file's size before it is used. The index is checked once at
 * opening, so that look-ups need no checks of their own. */
#include "data/shard.h"

#include "base/hash.h"
#include "data/shard_format.h"
#include "files/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Shard {
    char              *path;
    FileMap            map;
    bool               is_mapped;
    ShardHeader        header;
    ShardInfo          info;
    const uint64_t    *mask;    /* NULL: all tokens are trained */
    const uint64_t    *index;   /* (num_documents + 1) */
    const ShardColumn *columns; /* (header.num_columns) */
    const float       *numbers; /* (num_tokens, header.token_numbers) */
};

uint64_t shard_fold(uint64_t hash, const void *data, size_t size)
{
    return hash_bytes(data, size, hash);
}

uint64_t shard_header_checksum(const ShardHeader *header)
{
    return hash_bytes(header, offsetof(ShardHeader, header_checksum), SHARD_VERSION);
}

static Status check_header(const char *path, const ShardHeader *h, size_t size)
{
    FAIL_IF(memcmp(h->magic, SHARD_MAGIC, sizeof h->magic) != 0, ERR_INVALID, "%s: not a token shard", path);
    FAIL_IF(h->version != SHARD_VERSION, ERR_INVALID, "%s: shard format %u, this program reads %d; tokenize the data again", path,
            h->version, SHARD_VERSION);
    FAIL_IF(h->header_checksum != shard_header_checksum(h), ERR_INVALID, "%s: the header is damaged", path);
    FAIL_IF((h->token_bytes != 2 && h->token_bytes != 4) || h->vocab_size < 1 || h->vocab_size > INT32_MAX ||
                (h->flags & ~(uint32_t)(SHARD_HAS_MASK | SHARD_HAS_COLUMNS)),
            ERR_INVALID, "%s: impossible header (token bytes %u, vocabulary %u, flags %u)", path, h->token_bytes, h->vocab_size, h->flags);
    FAIL_IF(h->file_size != size, ERR_INVALID, "%s: %zu bytes, the header says %" PRIu64 "; the file was cut", path, size, h->file_size);
    uint64_t room = size - SHARD_HEADER_BYTES;
    FAIL_IF(h->num_tokens > room / h->token_bytes || h->num_documents > room / 8 || h->num_trained > h->num_tokens, ERR_INVALID,
            "%s: impossible counts (%" PRIu64 " tokens, %" PRIu64 " documents)", path, h->num_tokens, h->num_documents);
    bool has_columns = h->flags & SHARD_HAS_COLUMNS;
    FAIL_IF(has_columns != (h->num_columns > 0) || has_columns != (h->token_numbers > 0) || h->num_columns > SHARD_MOST_COLUMNS ||
                h->token_numbers > (uint64_t)SHARD_MOST_COLUMNS * OWN_MOST_SIZE ||
                (has_columns && h->num_tokens > room / sizeof(float) / h->token_numbers),
            ERR_INVALID, "%s: impossible columns (%" PRIu64 ", %" PRIu64 " numbers a token)", path, h->num_columns, h->token_numbers);
    ShardLayout layout = shard_layout(h);
    FAIL_IF(layout.end != size, ERR_INVALID, "%s: %zu bytes, its counts need %" PRIu64, path, size, layout.end);
    return OK;
}

static Status check_index(const Shard *shard)
{
    const uint64_t *index = shard->index;
    uint64_t        last = (uint64_t)shard->info.num_documents;
    bool            rising = index[0] == 0 && index[last] == (uint64_t)shard->info.num_tokens;
    for (uint64_t i = 0; i < last; i++) rising &= index[i] < index[i + 1];
    FAIL_IF(!rising, ERR_INVALID, "%s: the document index is damaged", shard->path);
    return OK;
}

static Status check_columns(const Shard *shard)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < shard->header.num_columns; i++) {
        const ShardColumn *column = &shard->columns[i];
        bool               is_sound = memchr(column->name, 0, sizeof column->name) && column->size >= 1 && column->size <= OWN_MOST_SIZE;
        FAIL_IF(!is_sound, ERR_INVALID, "%s: the table of columns is damaged", shard->path);
        sum += (uint64_t)column->size;
    }
    FAIL_IF(sum != shard->header.token_numbers, ERR_INVALID, "%s: the table of columns is damaged", shard->path);
    return OK;
}

static Status shard_load(Shard *shard)
{
    FAIL_IF(shard->map.size < SHARD_HEADER_BYTES, ERR_INVALID, "%s: %zu bytes are too few for a token shard", shard->path, shard->map.size);
    ShardHeader *h = &shard->header;
    memcpy(h, shard->map.data, sizeof *h);
    TRY(check_header(shard->path, h, shard->map.size));
    ShardLayout layout = shard_layout(h);
    shard->info = (ShardInfo){
        .tokenizer_hash = h->tokenizer_hash,
        .num_tokens = (int64_t)h->num_tokens,
        .num_documents = (int64_t)h->num_documents,
        .num_trained = (int64_t)h->num_trained,
        .vocab_size = (int32_t)h->vocab_size,
        .token_bytes = (int)h->token_bytes,
        .has_mask = h->flags & SHARD_HAS_MASK,
    };
    if (shard->info.has_mask) shard->mask = (const uint64_t *)(shard->map.data + layout.mask);
    shard->index = (const uint64_t *)(shard->map.data + layout.index);
    shard->columns = (const ShardColumn *)(shard->map.data + layout.columns);
    shard->numbers = (const float *)(shard->map.data + layout.numbers);
    TRY(check_columns(shard));
    return check_index(shard);
}

Status shard_open_bytes(const char *name, const void *data, size_t size, Shard **out_shard)
{
    *out_shard = NULL;
    Shard *shard = calloc_or_end(1, sizeof *shard);
    shard->path = strdup(name);
    if (!shard->path) fatal_out_of_memory(strlen(name));
    shard->map = (FileMap){data, size};
    Status status = shard_load(shard);
    if (status != OK)
        shard_close(shard);
    else
        *out_shard = shard;
    return status;
}

Status shard_open(const char *path, Shard **out_shard)
{
    FileMap map;
    *out_shard = NULL;
    TRY(file_map(path, &map));
    Status status = shard_open_bytes(path, map.data, map.size, out_shard);
    if (status != OK)
        file_unmap(&map);
    else
        (*out_shard)->is_mapped = true;
    return status;
}

void shard_close(Shard *shard)
{
    if (!shard) return;
    if (shard->is_mapped) file_unmap(&shard->map);
    free(shard->path);
    free(shard);
}

const ShardInfo *shard_info(const Shard *shard)
{
    return &shard->info;
}

const uint64_t *shard_mask(const Shard *shard)
{
    return shard->mask;
}

Status shard_verify(const Shard *shard)
{
    const char *data = shard->map.data + SHARD_HEADER_BYTES;
    size_t      left = shard->map.size - SHARD_HEADER_BYTES;
    uint64_t    hash = 0;
    while (left > 0) {
        size_t n = left < SHARD_BLOCK_BYTES ? left : SHARD_BLOCK_BYTES;
        hash = shard_fold(hash, data, n);
        data += n;
        left -= n;
    }
    FAIL_IF(hash != shard->header.data_checksum, ERR_INVALID, "%s: checksum differs, the file is damaged", shard->path);
    return OK;
}

void shard_document(const Shard *shard, int64_t document, int64_t *out_begin, int64_t *out_count)
{
    CHECK(document >= 0 && document < shard->info.num_documents);
    *out_begin = (int64_t)shard->index[document];
    *out_count = (int64_t)(shard->index[document + 1] - shard->index[document]);
}

Status shard_read(const Shard *shard, int64_t begin, int64_t count, int32_t *out_ids)
{
    CHECK(begin >= 0 && count >= 0 && count <= shard->info.num_tokens - begin);
    const char *data = shard->map.data + SHARD_HEADER_BYTES;
    uint32_t    most = 0;
    if (shard->info.token_bytes == 2) {
        const uint16_t *ids = (const uint16_t *)data + begin;
        for (int64_t i = 0; i < count; i++) {
            uint32_t id = ids[i];
            most = id > most ? id : most;
            out_ids[i] = (int32_t)id;
        }
    } else {
        const uint32_t *ids = (const uint32_t *)data + begin;
        for (int64_t i = 0; i < count; i++) {
            uint32_t id = ids[i];
            most = id > most ? id : most;
            out_ids[i] = (int32_t)id;
        }
    }
    FAIL_IF(most >= (uint32_t)shard->info.vocab_size, ERR_INVALID,
            "%s: token id %u in tokens %" PRId64 "..%" PRId64 " is beyond the vocabulary of %d; the file is damaged", shard->path, most,
            begin, begin + count - 1, shard->info.vocab_size);
    return OK;
}

const ShardColumn *shard_columns(const Shard *shard, int *out_count)
{
    *out_count = (int)shard->header.num_columns;
    return shard->columns;
}

void shard_read_column(const Shard *shard, int column, int64_t begin, int64_t count, float *out_numbers)
{
    CHECK(column >= 0 && (uint64_t)column < shard->header.num_columns && begin >= 0 && count <= shard->info.num_tokens - begin);
    int64_t stride = (int64_t)shard->header.token_numbers, size = shard->columns[column].size, first = 0;
    for (int i = 0; i < column; i++) first += shard->columns[i].size;
    for (int64_t t = 0; t < count; t++)
        memcpy(out_numbers + t * size, shard->numbers + (begin + t) * stride + first, sizeof(float) * (size_t)size);
}
