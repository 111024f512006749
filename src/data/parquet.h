/* Parquet files, row by row as JSON objects. Own reader: every encoding of parquet-format 2.10, even the deprecated
 * bit-packed levels; snappy, gzip, brotli, zstd, lz4. Encryption, LZO, and columns in other files are errors. Memory: a page
 * of each column. */
#pragma once

#include "base/strbuf.h"

#include <stdint.h>

typedef struct ParquetReader ParquetReader;

NODISCARD Status parquet_open(const char *path, ParquetReader **out_reader); /* path is copied */
/* Like parquet_open, for a file in memory, borrowed until parquet_close; errors begin with `name`. */
NODISCARD Status parquet_open_bytes(const char *name, const void *data, size_t size, ParquetReader **out_reader);
void             parquet_close(ParquetReader *reader); /* NULL is fine */
int64_t          parquet_num_rows(const ParquetReader *reader);

/* Appends the next row to `out` as one JSON object; *out_has false at the end. A list becomes an array, a struct an object, a map an object
 * whose keys are strings, a decimal a number. A missing value becomes null; in a struct it is left out. A date becomes "2009-03-01", a
 * timestamp "2009-03-01T00:00:00.000Z" with 3, 6 or 9 digits as needed. Bytes become a string, with U+FFFD for bytes that aren't UTF-8. NaN
 * and infinities are written as json_parse_row reads them. */
NODISCARD Status parquet_next(ParquetReader *reader, StrBuf *out, bool *out_has);
