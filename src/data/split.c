#include "data/split.h"

#include "data/parquet.h"
#include "data/record_internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing a split ---- */

/* Parses a number of at most 18 digits, or nothing; *at moves after it. false: too long, or a wrong percentage. */
static bool parse_end(const char **at, SplitEnd *out)
{
    const char *digits = *at + (**at == '-');
    char       *end;
    *out = (SplitEnd){0};
    if (digits == *at && !isdigit((unsigned char)*digits)) return true;
    long long value = strtoll(*at, &end, 10);
    if (!isdigit((unsigned char)*digits) || end - digits > 18) return false;
    *out = (SplitEnd){.is_set = true, .is_percent = *end == '%', .value = value};
    *at = end + out->is_percent;
    return !out->is_percent || (value >= -100 && value <= 100);
}

static bool parse_slice(const char *at, Split *out)
{
    bool is_slice = *at++ == '[' && parse_end(&at, &out->from) && *at++ == ':' && parse_end(&at, &out->to);
    bool is_mixed = out->from.is_set && out->to.is_set && out->from.is_percent != out->to.is_percent;
    return is_slice && !is_mixed && strcmp(at, "]") == 0;
}

Status split_parse(const char *text, Split *out)
{
    *out = (Split){0};
    if (!text) return OK;
    size_t len = strcspn(text, "[+(");
    FAIL_IF(len >= sizeof out->name, ERR_INVALID, "split: %.60s...: the name is too long", text);
    memcpy(out->name, text, len);
    FAIL_IF(text[len] && !parse_slice(text + len, out), ERR_INVALID,
            "split: %.100s: expected a name, or a name and one slice, as train[:1000], train[500:] or train[10%%:20%%]; for several slices "
            "list the dataset several times",
            text);
    return OK;
}

/* ---- the rows of a split ---- */

static Status open_rows(const DatasetOptions *dataset, char *const *paths, int count, Reader **out)
{
    TRY(reader_open(paths, count, out));
    if (dataset->type == DATASET_TEXT) reader_split_talks(*out);
    return OK;
}

/* Reads up to `most` documents; *out_count: the number read. */
static Status skip_documents(Reader *reader, int64_t most, int64_t *out_count)
{
    Record record;
    bool   has = true;
    *out_count = 0;
    while (*out_count < most) {
        TRY(reader_next(reader, &record, &has));
        if (!has) return OK;
        *out_count += !record.continues;
    }
    return OK;
}

static Status count_rows(const DatasetOptions *dataset, char *const *paths, int count, int64_t *out)
{
    *out = 0;
    for (int i = 0; i < count; i++) {
        Reader        *reader;
        ParquetReader *parquet;
        int64_t        rows;
        bool           is_known;
        if (file_format(paths[i], &is_known) == FILE_PARQUET) {
            TRY(parquet_open(paths[i], &parquet));
            *out += parquet_num_rows(parquet);
            parquet_close(parquet);
            continue;
        }
        TRY(open_rows(dataset, &paths[i], 1, &reader));
        Status status = skip_documents(reader, INT64_MAX, &rows);
        reader_close(reader);
        TRY(status);
        *out += rows;
    }
    return OK;
}

/* The end of a slice as the index of a row, rounded as the datasets library does. */
static int64_t place_of(SplitEnd end, int64_t rows)
{
    int64_t at = end.is_percent ? (int64_t)rint((double)end.value * (double)rows / 100.0) : end.value;
    if (at < 0) at += rows;
    return at < 0 ? 0 : at;
}

static Status find_range(const DatasetOptions *dataset, const Split *split, char *const *paths, int count, int64_t *begin, int64_t *end)
{
    int64_t rows = 0;
    bool    needs_rows = split->from.is_percent || split->to.is_percent || split->from.value < 0 || split->to.value < 0;
    if (needs_rows) TRY(count_rows(dataset, paths, count, &rows));
    *begin = split->from.is_set ? place_of(split->from, rows) : 0;
    *end = split->to.is_set ? place_of(split->to, rows) : INT64_MAX;
    FAIL_IF(*begin >= *end || (needs_rows && *begin >= rows), ERR_INVALID, "split: %s: no row of %s lies in this slice", dataset->split,
            dataset->path);
    return OK;
}

Status dataset_reader_open(const DatasetOptions *dataset, char *const *paths, int count, Reader **out_reader, int64_t *out_most)
{
    Split   split;
    int64_t begin, end, skipped = 0;
    *out_reader = NULL;
    TRY(split_parse(dataset->split, &split));
    TRY(find_range(dataset, &split, paths, count, &begin, &end));
    *out_most = end == INT64_MAX ? dataset->samples : end - begin;
    if (dataset->samples > 0 && dataset->samples < *out_most) *out_most = dataset->samples;
    TRY(open_rows(dataset, paths, count, out_reader));
    Status status = skip_documents(*out_reader, begin, &skipped);
    if (status == OK && skipped < begin)
        status = status_fail(ERR_INVALID, "split: %s: %s has only %lld rows", dataset->split, dataset->path, (long long)skipped);
    if (status == OK) return OK;
    reader_close(*out_reader);
    *out_reader = NULL;
    return status;
}
