/* Writing shards: tokens go through one block buffer to PATH.tmp, the header is written at the front when all is known. Then fsync and
 * rename: PATH is either absent or whole.
 *
 * Full blocks bypass the page cache (O_DIRECT) if the file system can do that: copying them into fresh pages of the cache costs more than
 * the rest of writing, and evicts files that are being read. For O_DIRECT the offset of every write in the file is a multiple of the block
 * size. As hashed blocks begin after the header, a written block begins SHARD_HEADER_BYTES before a hashed one. */
#include "data/shard_format.h"
#include "base/array.h"
#include "base/avx2.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIRECT_ALIGN = 4096 }; /* alignment of buffers: the largest that devices ask for */

struct ShardWriter {
    char       *path, *temporary;
    int         fd;
    ShardHeader header;
    char       *buffer; /* bytes to write: SHARD_HEADER_BYTES from before the current hashed block, then that block */
    size_t      block_used;
    bool        is_direct; /* writes bypass the page cache */
    uint64_t   *mask;      /* heap, grows */
    size_t      mask_words;
    uint64_t   *index; /* heap, grows: first token of each ended document */
    size_t      index_capacity;
    uint64_t    document_begin;
    ShardColumn columns[SHARD_MOST_COLUMNS];
    float      *numbers; /* heap, grows: (num_tokens, header.token_numbers) */
    size_t      num_numbers, number_capacity;
};

static void set_direct(ShardWriter *writer, bool is_direct)
{
    writer->is_direct = fcntl(writer->fd, F_SETFL, is_direct ? O_DIRECT : 0) == 0 && is_direct;
}

static Status write_all(ShardWriter *writer, const void *data, size_t size)
{
    const char *from = data;
    while (size > 0) {
        ssize_t n = write(writer->fd, from, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL && writer->is_direct) { /* the file system wants another alignment */
            set_direct(writer, false);
            continue;
        }
        if (n < 0) return file_fail("write", writer->temporary);
        from += n;
        size -= (size_t)n;
    }
    return OK;
}

static void hash_block(ShardWriter *writer)
{
    writer->header.data_checksum = shard_fold(writer->header.data_checksum, writer->buffer + SHARD_HEADER_BYTES, writer->block_used);
}

static Status flush_block(ShardWriter *writer)
{
    hash_block(writer);
    writer->block_used = 0;
    TRY(write_all(writer, writer->buffer, SHARD_BLOCK_BYTES));
    memcpy(writer->buffer, writer->buffer + SHARD_BLOCK_BYTES, SHARD_HEADER_BYTES);
    return OK;
}

/* Writes the buffer's rest, which isn't a whole block and so can't bypass the page cache. */
static Status flush_rest(ShardWriter *writer)
{
    if (writer->block_used > 0) hash_block(writer);
    set_direct(writer, false);
    return write_all(writer, writer->buffer, SHARD_HEADER_BYTES + writer->block_used);
}

static Status put(ShardWriter *writer, const void *data, size_t size)
{
    const char *from = data;
    while (size > 0) {
        size_t room = SHARD_BLOCK_BYTES - writer->block_used;
        size_t n = size < room ? size : room;
        memcpy(writer->buffer + SHARD_HEADER_BYTES + writer->block_used, from, n);
        writer->block_used += n;
        from += n;
        size -= n;
        if (writer->block_used == SHARD_BLOCK_BYTES) TRY(flush_block(writer));
    }
    return OK;
}

static void writer_free(ShardWriter *writer)
{
    if (writer->fd >= 0) close(writer->fd);
    free(writer->path);
    free(writer->temporary);
    free(writer->buffer);
    free(writer->mask);
    free(writer->index);
    free(writer->numbers);
    free(writer);
}

Status shard_writer_open(const char *path, uint64_t tokenizer_hash, int32_t vocab_size, bool has_mask, ShardWriter **out_writer)
{
    *out_writer = NULL;
    FAIL_IF(vocab_size < 1, ERR_INVALID, "%s: a vocabulary of %d tokens", path, vocab_size);
    ShardWriter *writer = calloc_or_end(1, sizeof *writer);
    size_t       len = strlen(path);
    writer->path = strdup(path);
    writer->temporary = malloc_or_end(len + 5);
    writer->buffer = aligned_alloc(DIRECT_ALIGN, DIRECT_ALIGN + SHARD_BLOCK_BYTES);
    if (!writer->path || !writer->buffer) fatal_out_of_memory(SHARD_BLOCK_BYTES);
    memset(writer->buffer, 0, SHARD_HEADER_BYTES); /* room for the header */
    memcpy(writer->temporary, path, len);
    memcpy(writer->temporary + len, ".tmp", 5);
    ShardHeader *h = &writer->header;
    memcpy(h->magic, SHARD_MAGIC, sizeof h->magic);
    h->version = SHARD_VERSION;
    h->token_bytes = vocab_size <= 65536 ? 2 : 4;
    h->vocab_size = (uint32_t)vocab_size;
    h->flags = has_mask ? SHARD_HAS_MASK : 0;
    h->tokenizer_hash = tokenizer_hash;
    writer->fd = file_open(writer->temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (writer->fd < 0) {
        Status status = file_fail("create", writer->temporary);
        writer_free(writer);
        return status;
    }
    set_direct(writer, true);
    *out_writer = writer;
    return OK;
}

/* The first `count` <= 64 flags as bits, from the lowest. */
static uint64_t flag_bits(const uint8_t *mask, int64_t count)
{
    uint64_t bits = 0;
    int64_t  i = 0;
    for (; count - i >= 32; i += 32) {
        __m256i zero = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(mask + i)), _mm256_setzero_si256());
        bits |= (uint64_t)(uint32_t)~_mm256_movemask_epi8(zero) << i;
    }
    for (; i < count; i++) bits |= (uint64_t)(mask[i] != 0) << i;
    return bits;
}

/* Appends flags of `count` tokens; mask NULL: all are trained. Returns the number of trained tokens. */
static uint64_t append_mask(ShardWriter *writer, const uint8_t *mask, int64_t count)
{
    uint64_t at = writer->header.num_tokens, trained = 0;
    size_t   had_words = writer->mask_words;
    writer->mask = array_room(writer->mask, (size_t)(at + (uint64_t)count + 63) / 64 + 1, &writer->mask_words, sizeof *writer->mask);
    memset(writer->mask + had_words, 0, (writer->mask_words - had_words) * sizeof *writer->mask);
    for (int64_t i = 0; i < count; i += 64, at += 64) {
        int64_t  n = count - i < 64 ? count - i : 64;
        uint64_t bits = mask ? flag_bits(mask + i, n) : UINT64_MAX >> (64 - n);
        trained += (uint64_t)__builtin_popcountll(bits);
        writer->mask[at >> 6] |= bits << (at & 63);
        if (at & 63) writer->mask[(at >> 6) + 1] |= bits >> (64 - (at & 63));
    }
    return trained;
}

static bool are_ids(const int32_t *ids, int64_t count, uint32_t vocab_size)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++) most = (uint32_t)ids[i] > most ? (uint32_t)ids[i] : most;
    return count == 0 || most < vocab_size;
}

Status shard_writer_append(ShardWriter *writer, const int32_t *ids, const uint8_t *mask, int64_t count)
{
    ShardHeader *h = &writer->header;
    CHECK(are_ids(ids, count, h->vocab_size));
    bool has_mask = h->flags & SHARD_HAS_MASK, has_first = count > 0 && h->num_tokens == writer->document_begin;
    h->num_trained += has_mask ? append_mask(writer, mask, count) : (uint64_t)count;
    if (has_first) h->num_trained -= !has_mask || !mask || mask[0]; /* a document's first token is no label */
    if (h->token_bytes == 4) {
        TRY(put(writer, ids, (size_t)count * 4));
    } else {
        uint16_t part[2048];
        for (int64_t done = 0; done < count;) {
            int64_t n = count - done < 2048 ? count - done : 2048;
            for (int64_t i = 0; i < n; i++) part[i] = (uint16_t)ids[done + i];
            TRY(put(writer, part, (size_t)n * 2));
            done += n;
        }
    }
    h->num_tokens += (uint64_t)count;
    return OK;
}

Status shard_writer_end_document(ShardWriter *writer)
{
    ShardHeader *h = &writer->header;
    if (h->num_tokens == writer->document_begin) return OK; /* an empty document leaves no trace */
    writer->index = array_room(writer->index, h->num_documents + 2, &writer->index_capacity, sizeof *writer->index);
    writer->index[h->num_documents++] = writer->document_begin;
    writer->document_begin = h->num_tokens;
    return OK;
}

void shard_writer_set_columns(ShardWriter *writer, const ShardColumn *columns, int count)
{
    ShardHeader *h = &writer->header;
    CHECK(count <= SHARD_MOST_COLUMNS && h->num_tokens == 0);
    for (int i = 0; i < count; i++) {
        ShardColumn *column = &writer->columns[i];
        *column = (ShardColumn){.size = columns[i].size, .least = INFINITY, .most = -INFINITY};
        snprintf(column->name, sizeof column->name, "%s", columns[i].name);
        h->token_numbers += (uint64_t)column->size;
    }
    h->num_columns = (uint64_t)count;
    if (count) h->flags |= SHARD_HAS_COLUMNS;
}

static void note_number(ShardColumn *column, float number)
{
    if (isnan(number)) return;
    if (number == (float)LABEL_IGNORE) {
        column->has_ignored = true;
        return;
    }
    column->has_fractions |= number != floorf(number);
    column->least = fmin(column->least, (double)number);
    column->most = fmax(column->most, (double)number);
}

void shard_writer_append_numbers(ShardWriter *writer, const float *numbers, int64_t num_tokens)
{
    size_t count = (size_t)writer->header.token_numbers * (size_t)num_tokens;
    if (count == 0) return;
    writer->numbers = array_room(writer->numbers, writer->num_numbers + count, &writer->number_capacity, sizeof *numbers);
    memcpy(writer->numbers + writer->num_numbers, numbers, count * sizeof *numbers);
    writer->num_numbers += count;
    for (int64_t t = 0; t < num_tokens; t++)
        for (uint64_t c = 0; c < writer->header.num_columns; c++)
            for (int64_t k = 0; k < writer->columns[c].size; k++) note_number(&writer->columns[c], *numbers++);
}

int64_t shard_writer_tokens(const ShardWriter *writer)
{
    return (int64_t)writer->header.num_tokens;
}

int64_t shard_writer_documents(const ShardWriter *writer)
{
    return (int64_t)writer->header.num_documents;
}

static Status write_tail(ShardWriter *writer)
{
    static const char zeros[8];
    ShardHeader      *h = &writer->header;
    uint64_t          token_bytes = h->num_tokens * h->token_bytes;
    TRY(put(writer, zeros, (size_t)(-token_bytes & 7)));
    if (h->flags & SHARD_HAS_MASK) TRY(put(writer, writer->mask, (size_t)((h->num_tokens + 63) / 64 * 8)));
    writer->index = array_room(writer->index, h->num_documents + 1, &writer->index_capacity, sizeof *writer->index);
    writer->index[h->num_documents] = h->num_tokens;
    TRY(put(writer, writer->index, (size_t)(h->num_documents + 1) * 8));
    CHECK(writer->num_numbers == h->num_tokens * h->token_numbers);
    size_t number_bytes = writer->num_numbers * sizeof(float);
    TRY(put(writer, writer->columns, (size_t)h->num_columns * sizeof *writer->columns));
    TRY(put(writer, writer->numbers, number_bytes));
    TRY(put(writer, zeros, -number_bytes & 7));
    return flush_rest(writer);
}

static Status write_whole(ShardWriter *writer)
{
    ShardHeader *h = &writer->header;
    TRY(shard_writer_end_document(writer));
    TRY(write_tail(writer));
    h->file_size = shard_layout(h).end;
    h->header_checksum = shard_header_checksum(h);
    if (lseek(writer->fd, 0, SEEK_SET) < 0) return file_fail("write", writer->temporary);
    TRY(write_all(writer, h, sizeof *h));
    if (file_fsync(writer->fd) != 0) return file_fail("fsync", writer->temporary);
    if (rename(writer->temporary, writer->path) != 0) return file_fail("rename to", writer->path);
    return OK;
}

static Status sync_folder_of(const char *path)
{
    Arena       names = {0};
    const char *slash = strrchr(path, '/');
    Status      status = file_sync_dir(slash ? arena_strndup(&names, path, (size_t)(slash - path) + (slash == path)) : ".");
    arena_deinit(&names);
    return status;
}

Status shard_writer_commit(ShardWriter *writer, ShardInfo *out_info)
{
    Status status = write_whole(writer);
    if (status != OK) {
        shard_writer_abort(writer);
        return status;
    }
    const ShardHeader *h = &writer->header;
    if (out_info)
        *out_info = (ShardInfo){.tokenizer_hash = h->tokenizer_hash,
                                .num_tokens = (int64_t)h->num_tokens,
                                .num_documents = (int64_t)h->num_documents,
                                .num_trained = (int64_t)h->num_trained,
                                .vocab_size = (int32_t)h->vocab_size,
                                .token_bytes = (int)h->token_bytes,
                                .has_mask = h->flags & SHARD_HAS_MASK};
    status = sync_folder_of(writer->path);
    writer_free(writer);
    return status;
}

void shard_writer_abort(ShardWriter *writer)
{
    if (!writer) return;
    unlink(writer->temporary);
    writer_free(writer);
}
