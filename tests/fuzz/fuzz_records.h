/* Reads bytes as a file with the given name: parses every record and lays it out as training would. */
#pragma once

#include "data/format.h"
#include "data/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void fuzz_record(Arena *arena, const Record *record, const DatasetOptions *options, bool *has_format, RowFormat *format)
{
    static const TemplateTraits traits;
    JsonValue                   row;
    Sample                      sample;
    if (record_parse(arena, record, &row) != OK) return;
    if (!*has_format) *has_format = format_detect(options, &row, format) == OK;
    for (int has_template = 0; has_template < 2 && *has_format; has_template++)
        if (format_row(arena, options, format, &row, has_template ? &traits : NULL, &sample) == OK && sample.messages &&
            sample.messages->type != JSON_ARRAY)
            abort();
}

/* Reads all records and returns their number; -1: an error ended the reading, after a number of records that depends on the size of reads.
 * Closes the reader. */
static int fuzz_reader(Reader *reader, const DatasetOptions *options)
{
    enum { MOST_RECORDS = 24 };
    Record    record;
    RowFormat format;
    Status    status;
    bool      has = true, has_format = false;
    int       count = 0;
    Arena     arena = {0};
    while ((status = reader_next(reader, &record, &has)) == OK && has && count < MOST_RECORDS) {
        if (record.line < 1 || record.column < 1 || !(reader_fraction(reader) >= 0)) abort();
        arena_reset(&arena);
        fuzz_record(&arena, &record, options, &has_format, &format);
        count++;
    }
    reader_close(reader);
    arena_deinit(&arena);
    return status == OK ? count : -1;
}

/* Some inputs are also read from a file, which must give the same number of records if nothing is damaged. */
static void fuzz_records(const char *name, const uint8_t *data, size_t size)
{
    Reader        *reader;
    DatasetOptions options = {.system_prompt = "s"};
    if (size % 4 == 1) options.prompt_format = "{x} {system}{instruction} {input}";
    if (size % 4 == 2) options.system_prompt_type = SYSTEM_PROMPT_NONE;
    if (reader_open_bytes(name, (Str){(const char *)data, size}, &reader) != OK) return;
    int count = fuzz_reader(reader, &options);
    if (size % 64 != 7) return;
    char path[64], *paths[] = {path};
    snprintf(path, sizeof path, "/dev/shm/fuzz-%d-%s", (int)getpid(), name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) abort();
    if (reader_open(paths, 1, &reader) != OK) abort();
    int again = fuzz_reader(reader, &options);
    if (again != count && again >= 0 && count >= 0) abort();
    unlink(path);
}
