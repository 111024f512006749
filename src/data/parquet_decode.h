/* Parquet's value encodings as iterators over the bytes of one page. Memory is constant whatever a page claims to hold; every read is
 * checked against the page's end. */
#pragma once

#include "base/strbuf.h"
#include "data/parquet_meta.h"

#include <stdint.h>

typedef union PqValue {
    int64_t integer; /* PQ_BOOLEAN, PQ_INT32, PQ_INT64 */
    double  number;  /* PQ_FLOAT, PQ_DOUBLE */
    Str     bytes;   /* PQ_BYTES, PQ_FIXED, PQ_INT96 (12 bytes); valid until the next value is read */
} PqValue;

/* Runs and bit-packed groups mixed (Parquet's "RLE"), for levels, dictionary indices and booleans. */
typedef struct RleDecoder {
    const uint8_t *at, *end;
    int            width;                    /* bits of a value, 0..32 */
    bool           is_packed, is_high_first; /* is_high_first: packed from the highest bit of each byte (BIT_PACKED) */
    uint64_t       left;                     /* values of the current run not read yet */
    uint64_t       bit;                      /* is_packed: the next bit, counted from `at` */
    uint32_t       value;                    /* !is_packed: the run's value */
} RleDecoder;
bool rle_next(RleDecoder *rle, uint32_t *out); /* false when the data ends */

/* DELTA_BINARY_PACKED. */
typedef struct DeltaDecoder {
    const uint8_t *at, *end;
    uint64_t       left;  /* values not read yet */
    uint64_t       value; /* the next value (wraps around) */
    uint64_t       min_delta;
    uint32_t       mini_size;       /* values of a miniblock */
    uint32_t       num_minis, mini; /* miniblocks per block; index of the current miniblock */
    const uint8_t *widths;          /* (num_minis) bits of a value in each miniblock */
    uint32_t       mini_left;
    uint64_t       bit;
} DeltaDecoder;

enum { /* Encodings, numbered as in Parquet */
       PQ_ENC_PLAIN = 0,
       PQ_ENC_PLAIN_DICTIONARY = 2,
       PQ_ENC_RLE = 3,
       PQ_ENC_BIT_PACKED = 4,
       PQ_ENC_DELTA = 5,
       PQ_ENC_DELTA_LENGTH = 6,
       PQ_ENC_DELTA_BYTES = 7,
       PQ_ENC_DICTIONARY = 8,
       PQ_ENC_SPLIT = 9
};

/* The values of one page, one after the other. */
typedef struct ValueDecoder {
    const ParquetNode *leaf;
    int                encoding;
    const uint8_t     *at, *end;
    uint64_t           bit; /* PLAIN booleans: the next bit */
    RleDecoder         rle;
    DeltaDecoder       delta, prefix;
    uint64_t           split_count, split_index;
    StrBuf             buffer; /* DELTA_BYTES: the last value; SPLIT: the current value. Reused for all pages */
    const PqValue     *dictionary;
    uint32_t           dictionary_len;
} ValueDecoder;

/* Starts a page of values [at, end). ERR_UNSUPPORTED, ERR_INVALID: the caller adds file and column. dictionary stays as it is. */
NODISCARD Status values_init(ValueDecoder *values, const ParquetNode *leaf, int encoding, const uint8_t *at, const uint8_t *end);
bool             values_next(ValueDecoder *values, PqValue *out); /* false: the page ends too early or is damaged */
