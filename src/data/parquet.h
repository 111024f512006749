/* Parquet files, row by row as JSON objects. Own reader: every encoding of parquet-format 2.10 but the deprecated
 * bit-packed levels; snappy, gzip, brotli, zstd, lz4. Not supported, by clear error: encryption, LZO, columns in other
 * files. Memory: a page of each column. */
#pragma once

#include "base/strbuf.h"

#include <stdint.h>

typedef struct ParquetReader ParquetReader;

NODISCARD Status parquet_open(const char *path, ParquetReader **out_reader); /* path is copied */
/* The same over bytes that stay valid; `name` starts errors. */
NODISCARD Status parquet_open_bytes(const char *name, const void *data, size_t size, ParquetReader **out_reader);
void             parquet_close(ParquetReader *reader); /* NULL is fine */
int64_t          parquet_num_rows(const ParquetReader *reader);

/* Appends the next row to `out` as one JSON object; *out_has false at the end. Lists are arrays, structs and maps objects
 * (keys as strings), missing values null (a struct's missing fields are left out), NaN and infinities as json_parse_row reads them,
 * decimals numbers, dates "2009-03-01", timestamps "2009-03-01T00:00:00.000Z" with 3, 6 or 9 digits as needed, bytes strings (bytes
 * that aren't UTF-8: U+FFFD). */
NODISCARD Status parquet_next(ParquetReader *reader, StrBuf *out, bool *out_has);
