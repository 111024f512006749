/* Any bytes are a parquet file with rows of JSON, or an error. */
#include "base/json.h"
#include "data/parquet.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { MOST_ROWS = 300 };
    ParquetReader *reader;
    if (parquet_open_bytes("fuzz", data, size, &reader) != OK) return 0;
    StrBuf    row = {0};
    Arena     arena = {0};
    JsonValue value;
    bool      has = true;
    for (int i = 0; i < MOST_ROWS && has; i++) {
        strbuf_clear(&row);
        if (parquet_next(reader, &row, &has) != OK || !has || row.len > 1 << 20) break;
        /* the one fault of a file that makes its row invalid JSON here: a key that occurs twice */
        if (json_parse_row(&arena, "row", row.data, row.len, &value) != OK && !__builtin_strstr(status_message(), "twice") &&
            !__builtin_strstr(status_message(), "uplicate"))
            abort();
        arena_reset(&arena);
    }
    if (parquet_num_rows(reader) < 0) abort();
    parquet_close(reader);
    strbuf_deinit(&row);
    arena_deinit(&arena);
    return 0;
}
