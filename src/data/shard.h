/* Token shards: tokenizing leaves them on disk, and training maps them into memory.
 *
 * A shard file is little-endian. It holds a 128-byte header; the token ids (u16 if the vocabulary fits, else u32); one mask bit per token
 * (left out if every token is trained); the index of each document's first token; and columns of numbers for inputs of a program's own. A
 * document is found in O(1). A dataset folder holds shard-00000.tokens, shard-00001.tokens, ... and dataset.json, written last. */
#pragma once

#include "data/feeds.h"

#include <stdint.h>

enum { SHARD_VERSION = 1, SHARD_HEADER_BYTES = 128, SHARD_NAME_MAX = 64, SHARD_MOST_COLUMNS = FEED_MOST_OWN };

typedef struct Shard Shard;

/* A column: `size` floats for each token, for an input of a program's own. NaN: the data gave no number. */
typedef struct ShardColumn {
    char    name[SHARD_NAME_MAX]; /* the input's name */
    int64_t size;
    int64_t has_fractions; /* 0: all numbers are whole */
    int64_t has_ignored;   /* LABEL_IGNORE is among the numbers */
    double  least, most;   /* smallest and largest number, except NaN and LABEL_IGNORE; least > most: no such number */
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
/* Like shard_open, for a file in memory, borrowed until shard_close, at an address that is a multiple of 8. Errors call it `name`. */
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
/* The mask: bit i says that token i is trained. NULL: every token is trained. */
const uint64_t *shard_mask(const Shard *shard);

/* The columns, in the order of their numbers within a token. */
const ShardColumn *shard_columns(const Shard *shard, int *out_count);
/* Copies a column's numbers of tokens [begin, begin + count) to out_numbers, (count, column's size). */
void shard_read_column(const Shard *shard, int column, int64_t begin, int64_t count, float *out_numbers);

/* Writing: append tokens, end documents, then commit (fsync, rename) or abort; either frees the writer. Tokens stream to
 * disk; masks, the index and columns wait in memory. */
typedef struct ShardWriter ShardWriter;
NODISCARD Status shard_writer_open(const char *path, uint64_t tokenizer_hash, int32_t vocab_size, bool has_mask, ShardWriter **out_writer);
/* mask: one byte per token, 0 or 1; NULL: all are trained. Ids must be within the vocabulary (CHECK). */
NODISCARD Status shard_writer_append(ShardWriter *writer, const int32_t *ids, const uint8_t *mask, int64_t count);
NODISCARD Status shard_writer_end_document(ShardWriter *writer);
/* Call set_columns before appending the first token; it reads names and sizes only. append_numbers gets the numbers of every appended
 * token: the first token's numbers of the first column, of the second, and so on, then the next token's. */
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
    bool     has_mask; /* some shard has a mask */
} ShardSet;

/* The index of an input's column, the same in all shards. -1: some shard has it at another index or lacks it. *out (may be NULL): the
 * column, with facts over all shards together; with `out`, -1 also means that shards differ in its size. */
int shard_set_column(const ShardSet *set, const char *input, ShardColumn *out);

/* dir: a dataset folder, or one shard file. Shards are opened up to the first number that is missing. ERR_NOT_FOUND: there is no shard.
 * ERR_INVALID: the shards' tokenizers differ. */
NODISCARD Status shard_set_open(const char *dir, ShardSet *out_set);
void             shard_set_close(ShardSet *set);
