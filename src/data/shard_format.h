/* The bytes of a shard file, for its reader and its writer.
 *
 *   header      128 bytes
 *   tokens      num_tokens x token_bytes, padded with zeros to 8 bytes
 *   mask        ceil(num_tokens / 64) words, bit i of word i / 64: token i is trained; only with SHARD_HAS_MASK
 *   documents   (num_documents + 1) words: first token of each document, and num_tokens
 *   columns     num_columns x ShardColumn; only with SHARD_HAS_COLUMNS, like the numbers
 *   numbers     num_tokens x token_numbers floats, padded with zeros to 8 bytes
 *
 * data_checksum folds XXH3 over consecutive blocks of SHARD_BLOCK_BYTES of the bytes after the header, each block seeded with
 * the hash of the blocks before it. */
#pragma once

#include "data/shard.h"

#define SHARD_MAGIC "SGTOKENS"
#define SHARD_NAME "shard-%05d.tokens"

enum { SHARD_HAS_MASK = 1, SHARD_HAS_COLUMNS = 2, SHARD_BLOCK_BYTES = 1 << 20 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian and are mapped as they are");

typedef struct ShardHeader {
    char     magic[8];
    uint32_t version, token_bytes, vocab_size, flags;
    uint64_t tokenizer_hash;
    uint64_t num_tokens, num_documents, num_trained;
    uint64_t file_size;
    uint64_t data_checksum;
    uint64_t num_columns, token_numbers; /* token_numbers: numbers per token, of all columns together */
    uint64_t reserved[4];
    uint64_t header_checksum; /* hash of all fields before it */
} ShardHeader;
_Static_assert(sizeof(ShardHeader) == SHARD_HEADER_BYTES, "header size");

typedef struct ShardLayout {
    uint64_t mask, index, columns, numbers, end; /* byte offsets in the file */
} ShardLayout;

/* The caller has checked the counts against the file's size, so that nothing overflows. */
static inline ShardLayout shard_layout(const ShardHeader *h)
{
    ShardLayout out;
    out.mask = SHARD_HEADER_BYTES + ((h->num_tokens * h->token_bytes + 7) & ~(uint64_t)7);
    out.index = out.mask + (h->flags & SHARD_HAS_MASK ? (h->num_tokens + 63) / 64 * 8 : 0);
    out.columns = out.index + (h->num_documents + 1) * 8;
    out.numbers = out.columns + h->num_columns * sizeof(ShardColumn);
    out.end = out.numbers + ((h->num_tokens * h->token_numbers * sizeof(float) + 7) & ~(uint64_t)7);
    return out;
}

uint64_t shard_fold(uint64_t hash, const void *data, size_t size);
uint64_t shard_header_checksum(const ShardHeader *header);
