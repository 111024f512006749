/* A parquet file's footer: the schema as a tree, and where each column chunk is. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef enum ParquetType { PQ_BOOLEAN, PQ_INT32, PQ_INT64, PQ_INT96, PQ_FLOAT, PQ_DOUBLE, PQ_BYTES, PQ_FIXED } ParquetType;
typedef enum ParquetRepetition { PQ_REQUIRED, PQ_OPTIONAL, PQ_REPEATED } ParquetRepetition;

/* What a value means, from its logical or converted type. */
typedef enum ParquetMeaning {
    PQ_PLAIN,
    PQ_STRING,
    PQ_LIST,
    PQ_MAP,
    PQ_DECIMAL,
    PQ_DATE,
    PQ_TIME,
    PQ_TIMESTAMP,
    PQ_UNSIGNED,
    PQ_FLOAT16,
    PQ_UUID
} ParquetMeaning;

typedef struct ParquetNode ParquetNode;
struct ParquetNode {
    char             *name; /* NUL-terminated; name_len bytes */
    size_t            name_len;
    ParquetRepetition repetition;
    ParquetMeaning    meaning;
    int32_t           type;       /* ParquetType of a leaf */
    int32_t           type_bytes; /* PQ_FIXED: bytes of a value */
    int32_t           scale;      /* PQ_DECIMAL: digits after the decimal point */
    int32_t           unit;       /* PQ_TIMESTAMP and PQ_TIME: decimals of a second: 3, 6 or 9 */
    ParquetNode     **children;
    int32_t           num_children;         /* 0: a leaf */
    int32_t           leaf;                 /* column of a leaf; of another node: the first column below it */
    int32_t           def_level, rep_level; /* least definition level at which the node is present; number of repeated nodes down to it */
};

typedef struct ParquetChunk {
    int32_t codec;
    int64_t num_values;
    int64_t begin, size; /* pages in the file, the dictionary page included */
    bool    has_crypto, is_elsewhere;
} ParquetChunk;

typedef struct ParquetGroup {
    int64_t       num_rows;
    ParquetChunk *chunks; /* (num_leaves) */
} ParquetGroup;

typedef struct ParquetMeta {
    ParquetNode  *root;
    ParquetNode **leaves;
    int32_t       num_leaves;
    ParquetGroup *groups;
    int32_t       num_groups;
    int64_t       num_rows;
} ParquetMeta;

/* *out is in the arena, with copies of names. ERR_INVALID, ERR_UNSUPPORTED: the message begins with `path`. */
NODISCARD Status parquet_meta_read(Arena *arena, const char *path, const uint8_t *file, size_t size, ParquetMeta *out);
