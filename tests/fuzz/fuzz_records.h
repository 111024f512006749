/* Reads bytes as a file of the given name, parsing every record and laying it out as training would. */
#pragma once

#include "data/format.h"
#include "data/record.h"

#include <stdlib.h>

static void fuzz_records(const char *name, const uint8_t *data, size_t size)
{
    Reader        *reader;
    Record         record;
    RowFormat      format;
    Sample         sample;
    JsonValue      row;
    bool           has = true, has_format = false;
    Arena          row_arena = { 0 };
    DatasetOptions options = { .system_prompt = "s" };
    if (reader_open_bytes(name, (Str){ (const char *)data, size }, &reader) != OK) return;
    for (int i = 0; i < 24 && has; i++) {
        if (reader_next(reader, &record, &has) != OK || !has) break;
        if (record.line < 1 || record.column < 1 || !(reader_fraction(reader) >= 0)) abort();
        arena_reset(&row_arena);
        if (record_parse(&row_arena, &record, &row) != OK) continue;
        if (!has_format) has_format = format_detect(&options, &row, &format) == OK;
        if (has_format && format_row(&row_arena, &options, &format, &row, i % 2, &sample) == OK && sample.messages &&
            sample.messages->type != JSON_ARRAY)
            abort();
    }
    reader_close(reader);
    arena_deinit(&row_arena);
}
