/* Token shards: what tokenizing leaves on disk and training maps into memory.
 *
 * A shard file is little-endian: a 128-byte header, the token ids (u16 when the vocabulary fits, else u32), one mask bit
 * a token where not every token is trained, the documents' first tokens, and the columns of numbers that tokens have besides. A document
 * is reached in O(1).
 * A dataset folder holds shard-00000.tokens, shard-00001.tokens, ... and dataset.json, written last. */
#pragma once

#include "data/feeds.h"

#include <stdint.h>

enum { SHARD_VERSION = 1, SHARD_HEADER_BYTES = 128, SHARD_NAME_MAX = 64, SHARD_MOST_COLUMNS = FEED_MOST_OWN };

typedef struct Shard Shard;

/* Numbers of each token, for an input of a program's own: `size` of them a token, floats; NaN: the data gave none. */
typedef struct ShardColumn {
    char    name[SHARD_NAME_MAX]; /* of the input */
    int64_t size;
    int64_t has_fractions; /* 0: all are whole */
    int64_t has_ignored;   /* LABEL_IGNORE is among them */
    double  least, most;   /* of the others; least > most: there are none */
} ShardColumn;

/* What the header says. */
typedef struct ShardInfo {
    uint64_t tokenizer_hash;
    int64_t  num_tokens, num_documents;
    int64_t  num_trained; /* labels that count: trained tokens that aren't the first of their document */
    int32_t  vocab_size;
    int      token_bytes; /* 2 or 4 */
    bool     has_mask;    /* false: every token is trained */
} ShardInfo;

/* Maps a shard and checks header, sizes and index. ERR_INVALID names the file and what is wrong. */
NODISCARD Status shard_open(const char *path, Shard **out_shard);
/* The same over bytes that stay valid, at an address that is a multiple of 8; `name` is the path in errors. */
NODISCARD Status shard_open_bytes(const char *name, const void *data, size_t size, Shard **out_shard);
void             shard_close(Shard *shard); /* NULL is fine */
const ShardInfo *shard_info(const Shard *shard);

/* Reads the whole file and compares its checksum. */
NODISCARD Status shard_verify(const Shard *shard);

/* First token and length of a document, in O(1). */
void shard_document(const Shard *shard, int64_t document, int64_t *out_begin, int64_t *out_count);

/* Copies tokens [begin, begin + count). ERR_INVALID when one is outside the vocabulary. */
NODISCARD Status shard_read(const Shard *shard, int64_t begin, int64_t count, int32_t *out_ids);

static inline bool mask_bit(const uint64_t *words, int64_t index)
{
    return words[index >> 6] >> (index & 63) & 1;
}
/* Bit i says that token i is trained; NULL when every one is. */
const uint64_t *shard_mask(const Shard *shard);

/* The columns, in the order in which a token has their numbers. */
const ShardColumn *shard_columns(const Shard *shard, int *out_count);
/* Copies a column's numbers of tokens [begin, begin + count), row by row. */
void shard_read_column(const Shard *shard, int column, int64_t begin, int64_t count, float *out_numbers);

/* Writing: append tokens, end documents, then commit (fsync, rename) or abort; either frees the writer. Tokens stream to
 * disk; masks, the index and columns wait in memory. */
typedef struct ShardWriter ShardWriter;
NODISCARD Status shard_writer_open(const char *path, uint64_t tokenizer_hash, int32_t vocab_size, bool has_mask, ShardWriter **out_writer);
/* mask: a byte a token, 0 or 1; NULL: all trained. Ids must be within the vocabulary (CHECK). */
NODISCARD Status shard_writer_append(ShardWriter *writer, const int32_t *ids, const uint8_t *mask, int64_t count);
NODISCARD Status shard_writer_end_document(ShardWriter *writer);
/* Before the first token: names and sizes count. Then of every token that is appended the numbers of all columns, one after the other. */
void             shard_writer_set_columns(ShardWriter *writer, const ShardColumn *columns, int count);
void             shard_writer_append_numbers(ShardWriter *writer, const float *numbers, int64_t num_tokens);
int64_t          shard_writer_tokens(const ShardWriter *writer);
int64_t          shard_writer_documents(const ShardWriter *writer);
NODISCARD Status shard_writer_commit(ShardWriter *writer, ShardInfo *out_info);
void             shard_writer_abort(ShardWriter *writer); /* removes the temporary file; NULL is fine */

/* All shards of a dataset folder, in order. */
typedef struct ShardSet {
    Shard  **shards;
    int      num_shards;
    int64_t  num_tokens, num_documents, num_trained;
    uint64_t tokenizer_hash;
    int32_t  vocab_size;
    bool     has_mask; /* of any shard */
} ShardSet;

/* The index of the column for the input of that name, which all shards of a set have alike; -1: there is none. *out (NULL: not asked for):
 * what is true of all shards together. */
int shard_set_column(const ShardSet *set, const char *input, ShardColumn *out);

/* dir: a dataset folder, or one shard file. ERR_NOT_FOUND when it holds none; ERR_INVALID when the shards' tokenizers
 * differ or one is missing in the row of numbers. */
NODISCARD Status shard_set_open(const char *dir, ShardSet *out_set);
void             shard_set_close(ShardSet *set);
