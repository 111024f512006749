/* Each format is a function that finds the next record in the stream's window; all else is the same for all formats. */
#include "data/record.h"

#include "base/str.h"
#include "data/format.h"
#include "data/parquet.h"
#include "data/record_internal.h"
#include "data/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INVALID_SHARE = 10 }; /* at most 1 / MAX_INVALID_SHARE of a text's bytes may be invalid UTF-8 */

struct Reader {
    char *const   *paths;
    int            count, next; /* number of paths; index of the path to open next */
    char          *name;        /* reader_open_bytes: the only path; `paths` points here */
    Str            bytes;
    Arena          arena; /* RecordFiles and headers */
    RecordFile    *file;  /* the open file; NULL: none */
    FileFormat     format;
    Stream         stream;
    ParquetReader *parquet;
    StrBuf         row;  /* parquet: the current row as JSON */
    int64_t        line; /* line of stream.begin, from 1; parquet: number of the next row */
    int            column;
    int64_t        offset;                      /* text files: byte offset of stream.begin in the text */
    bool           in_array, is_over, is_first; /* JSON; is_first: if an array comes next, it is the list of rows */
    bool           splits_talks;
};

/* Consumes n bytes of the window, counting lines. */
static void consume(Reader *reader, size_t n)
{
    const char *at = reader->stream.data + reader->stream.begin, *end = at + n;
    for (const char *found; at < end && (found = memchr(at, '\n', (size_t)(end - at))); at = found + 1) {
        reader->line++;
        reader->column = 1;
    }
    reader->column += (int)(end - at);
    reader->stream.begin += n;
}

static Status next_jsonl(Reader *reader, Record *out, bool *out_has)
{
    Str line;
    do {
        out->line = reader->line++;
        out->column = reader->column;
        reader->column = 1;
        TRY(stream_line(&reader->stream, &line, out_has));
    } while (*out_has && str_trim(line).len == 0);
    out->kind = RECORD_JSON;
    out->bytes = line;
    return OK;
}

/* ---- JSON: an array of values, or values one after the other ---- */

/* Skips blanks. *out: the next byte, which isn't consumed; -1 at the end. */
static Status peek_byte(Reader *reader, int *out)
{
    Stream *stream = &reader->stream;
    for (;;) {
        size_t n = 0, room = stream->end - stream->begin;
        while (n < room && strchr(" \t\r\n", stream->data[stream->begin + n]) && stream->data[stream->begin + n]) n++;
        consume(reader, n);
        *out = n < room ? (unsigned char)stream->data[stream->begin] : -1;
        if (*out >= 0 || stream->at_end) return OK;
        TRY(stream_more(stream));
    }
}

/* Is there a byte at offset `at` of the window? Reads more of the file if needed. */
static Status has_byte(Stream *stream, size_t at, bool *out_has)
{
    while (stream->begin + at >= stream->end && !stream->at_end) TRY(stream_more(stream));
    *out_has = stream->begin + at < stream->end;
    return OK;
}

/* Finds the end of the value that starts at offset `from` of the window: after its closing bracket or quote, before a separator or
 * at the end of the text. *out_end is an offset of the window, too. The parser checks whether the value is valid. */
static Status scan_value(Stream *stream, size_t from, size_t *out_end)
{
    size_t at = from;
    int    depth = 0;
    bool   in_string = false, has = true, is_over = false;
    for (; !is_over; at++) {
        if (stream->begin + at >= stream->end) TRY(has_byte(stream, at, &has));
        if (!has) break;
        char c = stream->data[stream->begin + at];
        if (in_string) {
            if (c == '\\') {
                at++;
            } else if (c == '"') {
                in_string = false;
                is_over = depth == 0;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (--depth < 0) break;
            is_over = depth == 0;
        } else if (depth == 0 && strchr(", \t\r\n", c) && c) {
            break;
        }
    }
    *out_end = has ? at : stream->end - stream->begin; /* `at` may be past the end, after a backslash */
    return OK;
}

/* Does the file begin with a list of messages? Such a list is one conversation, not a list of rows. */
static Status find_talk(Reader *reader)
{
    Stream *stream = &reader->stream;
    size_t  begin = 0, end;
    int     c;
    bool    has;
    TRY(peek_byte(reader, &c));
    if (c != '[') return OK;
    do {
        TRY(has_byte(stream, ++begin, &has));
    } while (has && stream->data[stream->begin + begin] && strchr(" \t\r\n", stream->data[stream->begin + begin]));
    if (!has || stream->data[stream->begin + begin] != '{') return OK;
    TRY(scan_value(stream, begin, &end));
    JsonValue first;
    Arena     arena = {0};
    bool      is_read = json_parse_row(&arena, "", stream->data + stream->begin + begin, end - begin, &first) == OK;
    reader->is_first = !(is_read && format_is_message(&first));
    status_clear();
    arena_deinit(&arena);
    return OK;
}

/* A .jsonl file that begins with a list is read as .json: either the list holds the rows, or the file holds lists of messages, each of
 * which is a conversation. */
static Status open_json(Reader *reader)
{
    int c;
    TRY(peek_byte(reader, &c));
    if (c == '[') reader->format = FILE_JSON;
    return reader->splits_talks ? OK : find_talk(reader);
}

#define FAIL_HERE(...) \
    return status_prefix(status_fail(ERR_INVALID, __VA_ARGS__), "%s:%lld:%d", reader->file->path, (long long)reader->line, reader->column)

static Status next_json(Reader *reader, Record *out, bool *out_has)
{
    int c;
    *out_has = false;
    TRY(peek_byte(reader, &c));
    if (reader->is_first && c == '[') {
        reader->in_array = true;
        consume(reader, 1);
        TRY(peek_byte(reader, &c));
    } else if (reader->in_array && !reader->is_over && !reader->is_first) {
        if (c >= 0 && c != ',' && c != ']') FAIL_HERE("expected ',' or ']' after an element of the array");
        if (c == ',') {
            consume(reader, 1);
            TRY(peek_byte(reader, &c));
            if (c == ']') FAIL_HERE("expected a value after ','");
        }
    }
    reader->is_first = false;
    if (reader->in_array && !reader->is_over && c == ']') {
        reader->is_over = true;
        consume(reader, 1);
        TRY(peek_byte(reader, &c));
    }
    if (c < 0) {
        if (reader->in_array && !reader->is_over) FAIL_HERE("the array is never closed; was the file cut?");
        return OK;
    }
    if (reader->is_over) FAIL_HERE("text after the end of the array");
    out->kind = RECORD_JSON;
    out->line = reader->line;
    out->column = reader->column;
    size_t len;
    TRY(scan_value(&reader->stream, 0, &len));
    if (len == 0) FAIL_HERE("expected a JSON value");
    out->bytes = (Str){reader->stream.data + reader->stream.begin, len};
    consume(reader, len);
    *out_has = true;
    return OK;
}

/* ---- CSV ---- */

/* A record ends at the first line end outside quotes. */
static Status next_csv_record(Reader *reader, Record *out, bool *out_has)
{
    Stream *stream = &reader->stream;
    size_t  at = 0;
    bool    in_quotes = false;
    for (;; at++) {
        bool has = true;
        if (stream->begin + at >= stream->end) TRY(has_byte(stream, at, &has));
        if (!has) break;
        char c = stream->data[stream->begin + at];
        if (c == '"') in_quotes = !in_quotes;
        if (c == '\n' && !in_quotes) break;
    }
    *out_has = at > 0 || stream->begin + at < stream->end;
    out->kind = RECORD_CSV;
    out->line = reader->line;
    out->column = 1;
    out->bytes = (Str){stream->data + stream->begin, at};
    consume(reader, at + (stream->begin + at < stream->end));
    if (out->bytes.len > 0 && out->bytes.data[out->bytes.len - 1] == '\r') out->bytes.len--;
    return OK;
}

static Status next_csv(Reader *reader, Record *out, bool *out_has)
{
    do {
        TRY(next_csv_record(reader, out, out_has));
    } while (*out_has && out->bytes.len == 0);
    return OK;
}

static int by_bytes(const void *a, const void *b)
{
    const Str *left = a, *right = b;
    int        order = memcmp(left->data, right->data, left->len < right->len ? left->len : right->len);
    return order ? order : left->len < right->len ? -1 : left->len > right->len;
}

/* A name that the list holds twice; NULL: none. */
static const char *repeated_name(Arena *arena, const JsonValue *names)
{
    Str *sorted = arena_array(arena, Str, names->count);
    for (uint32_t i = 0; i < names->count; i++) sorted[i] = names->items[i].string;
    qsort(sorted, names->count, sizeof *sorted, by_bytes);
    for (uint32_t i = 1; i < names->count; i++)
        if (by_bytes(&sorted[i - 1], &sorted[i]) == 0) return sorted[i].data;
    return NULL;
}

static Status read_csv_header(Reader *reader)
{
    Record     record;
    bool       has;
    JsonValue *header = arena_new(&reader->arena, JsonValue);
    TRY(next_csv(reader, &record, &has));
    FAIL_IF(!has, ERR_INVALID, "%s: empty, want a line of column names", reader->file->path);
    Status status = csv_parse(&reader->arena, record.bytes, reader->file->delimiter, header);
    if (status != OK) return status_prefix(status, "%s:%lld", reader->file->path, (long long)record.line);
    const char *repeated = repeated_name(&reader->arena, header);
    FAIL_IF(repeated, ERR_INVALID, "%s:%lld: two columns are named \"%s\"", reader->file->path, (long long)record.line, repeated);
    reader->file->header = header;
    return OK;
}

/* ---- text records ---- */

/* Length of the UTF-8 sequence at `at`; 0: it isn't UTF-8. */
static size_t sequence_bytes(const unsigned char *at, const unsigned char *end)
{
    size_t n = *at < 0x80 ? 1 : *at >= 0xc2 && *at < 0xe0 ? 2 : *at >= 0xe0 && *at < 0xf0 ? 3 : *at >= 0xf0 && *at < 0xf5 ? 4 : 0;
    if (n == 0 || (size_t)(end - at) < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    return n;
}

/* Counts bytes that aren't UTF-8. *out_first: offset of the first of them; not set if there is none. */
static size_t count_invalid(Str text, size_t *out_first)
{
    const unsigned char *begin = (const unsigned char *)text.data, *at = begin, *end = begin + text.len;
    size_t               invalid = 0;
    while (at < end) {
        uint64_t word;
        while (end - at >= 8 && (memcpy(&word, at, 8), (word & 0x8080808080808080u) == 0)) at += 8;
        if (at == end) break;
        size_t n = sequence_bytes(at, end);
        if (n == 0 && invalid++ == 0) *out_first = (size_t)(at - begin);
        at += n ? n : 1;
    }
    return invalid;
}

/* Refuses a binary file, or a text in another encoding: nobody means to train on those. */
static Status check_text(const Reader *reader, Str text)
{
    const char *nul = memchr(text.data, 0, text.len), *path = reader->file->path;
    size_t      first = 0;
    FAIL_IF(nul, ERR_INVALID, "%s: a NUL byte at offset %lld: this is no text, or one in UTF-16; expected UTF-8", path,
            (long long)(reader->offset + (nul - text.data)));
    size_t invalid = count_invalid(text, &first);
    FAIL_IF(invalid > text.len / MAX_INVALID_SHARE, ERR_INVALID,
            "%s: %zu of %zu bytes aren't UTF-8, the first at offset %lld: this is no text, or one in another encoding; convert it to UTF-8",
            path, invalid, text.len, (long long)(reader->offset + (int64_t)first));
    return OK;
}

static Status next_text(Reader *reader, Record *out, bool *out_has)
{
    Stream *stream = &reader->stream;
    while (!stream->at_end && stream->end - stream->begin <= TEXT_PART_BYTES) TRY(stream_more(stream));
    size_t len = stream->end - stream->begin;
    /* A part ends before a line that doesn't start with a blank: no pre-tokenizer joins text across such a line end. */
    if (len > TEXT_PART_BYTES) {
        const char *data = stream->data + stream->begin;
        len = TEXT_PART_BYTES;
        while (len > TEXT_PART_BYTES / 2 && !(data[len - 1] == '\n' && !strchr(" \t\r\n", data[len]))) len--;
        while (len > TEXT_PART_BYTES / 2 - 4 && ((unsigned char)data[len] & 0xc0) == 0x80) len--; /* don't cut within a UTF-8 character */
    }
    out->kind = RECORD_TEXT;
    out->bytes = (Str){stream->data + stream->begin, len};
    out->line = reader->line;
    out->column = reader->column;
    TRY(check_text(reader, out->bytes));
    out->continues = stream->begin + len < stream->end;
    *out_has = len > 0 && (reader->offset > 0 || out->continues || str_trim(out->bytes).len > 0); /* a file of blanks has no record */
    reader->offset += (int64_t)len;
    consume(reader, len);
    return OK;
}

/* ---- all formats ---- */

static Status next_parquet(Reader *reader, Record *out, bool *out_has)
{
    strbuf_clear(&reader->row);
    TRY(parquet_next(reader->parquet, &reader->row, out_has));
    out->kind = RECORD_JSON;
    out->bytes = strbuf_str(&reader->row);
    out->line = reader->line++;
    out->column = 1;
    return OK;
}

static void close_file(Reader *reader)
{
    stream_close(&reader->stream);
    parquet_close(reader->parquet);
    reader->parquet = NULL;
    reader->file = NULL;
}

static Status open_next(Reader *reader)
{
    const char *path = reader->paths[reader->next++];
    bool        is_known;
    RecordFile *file = arena_new(&reader->arena, RecordFile);
    reader->format = file_format(path, &is_known);
    file->path = path;
    file->is_rows = reader->format == FILE_PARQUET;
    file->delimiter = reader->format == FILE_TSV ? '\t' : ',';
    reader->line = reader->column = 1;
    reader->offset = 0;
    reader->in_array = reader->is_over = false;
    reader->is_first = true;
    bool is_memory = reader->name != NULL;
    if (reader->format == FILE_PARQUET)
        TRY(is_memory ? parquet_open_bytes(path, reader->bytes.data, reader->bytes.len, &reader->parquet)
                      : parquet_open(path, &reader->parquet));
    else
        TRY(is_memory ? stream_open_bytes(path, reader->bytes, &reader->stream) : stream_open(path, &reader->stream));
    reader->file = file;
    if (reader->format == FILE_JSONL || reader->format == FILE_JSON) return open_json(reader);
    return reader->format == FILE_CSV || reader->format == FILE_TSV ? read_csv_header(reader) : OK;
}

Status reader_open(char *const *paths, int count, Reader **out_reader)
{
    Reader *reader = calloc_or_end(1, sizeof *reader);
    reader->paths = paths;
    reader->count = count;
    *out_reader = reader;
    return OK;
}

Status reader_open_bytes(const char *name, Str bytes, Reader **out_reader)
{
    TRY(reader_open(NULL, 1, out_reader));
    Reader *reader = *out_reader;
    reader->name = arena_strdup(&reader->arena, name);
    reader->paths = &reader->name;
    reader->bytes = bytes;
    return OK;
}

void reader_split_talks(Reader *reader)
{
    reader->splits_talks = true;
}

void reader_close(Reader *reader)
{
    if (!reader) return;
    close_file(reader);
    arena_deinit(&reader->arena);
    strbuf_deinit(&reader->row);
    free(reader);
}

Status reader_next(Reader *reader, Record *out, bool *out_has)
{
    typedef Status (*Next)(Reader *, Record *, bool *);
    static const Next by_format[] = {[FILE_TEXT] = next_text, [FILE_JSONL] = next_jsonl, [FILE_JSON] = next_json,
                                     [FILE_CSV] = next_csv,   [FILE_TSV] = next_csv,     [FILE_PARQUET] = next_parquet};
    for (;;) {
        *out_has = false;
        if (!reader->file) {
            if (reader->next == reader->count) return OK;
            TRY(open_next(reader));
        }
        *out = (Record){.file = reader->file};
        TRY(by_format[reader->format](reader, out, out_has));
        FAIL_IF(*out_has && out->bytes.len > RECORD_MAX_BYTES, ERR_INVALID, "%s:%lld: a record of %zu bytes, more than %d MiB",
                reader->file->path, (long long)out->line, out->bytes.len, RECORD_MAX_BYTES >> 20);
        if (*out_has) return OK;
        close_file(reader);
    }
}

double reader_fraction(const Reader *reader)
{
    if (reader->count == 0) return 1;
    double rows = reader->parquet ? (double)parquet_num_rows(reader->parquet) : 0;
    double part = rows > 0 ? (double)(reader->line - 1) / rows : stream_fraction(&reader->stream);
    return (reader->next - (reader->file != NULL) + (reader->file ? part : 0)) / (double)reader->count;
}

/* ---- parsing ---- */

static Status parse_json(Arena *arena, const Record *record, JsonValue *out)
{
    if (record->file->is_rows) {
        char name[4096];
        snprintf(name, sizeof name, "%s: row %lld", record->file->path, (long long)record->line);
        return json_parse_row(arena, name, record->bytes.data, record->bytes.len, out);
    }
    Status status = json_parse_row(arena, "", record->bytes.data, record->bytes.len, out);
    if (status == OK) return OK;
    /* the message begins with :line:column: in the record; replace both by line and column in the file */
    char      message[STATUS_MESSAGE_BYTES];
    long long line, column;
    int       used = 0;
    snprintf(message, sizeof message, "%s", status_message());
    if (sscanf(message, ":%lld:%lld%n", &line, &column, &used) < 2) return status_prefix(status, "%s", record->file->path);
    FAIL(status, "%s:%lld:%lld%s", record->file->path, (long long)record->line + line - 1, line == 1 ? column + record->column - 1 : column,
         message + used);
}

static Status parse_csv(Arena *arena, const Record *record, JsonValue *out)
{
    const RecordFile *file = record->file;
    JsonValue         fields;
    Status            status = csv_parse(arena, record->bytes, file->delimiter, &fields);
    if (status != OK) return status_prefix(status, "%s:%lld", file->path, (long long)record->line);
    FAIL_IF(fields.count != file->header->count, ERR_INVALID, "%s:%lld: %u fields, the header has %u", file->path, (long long)record->line,
            fields.count, file->header->count);
    *out = (JsonValue){.type = JSON_OBJECT, .count = fields.count, .members = arena_array(arena, JsonMember, fields.count)};
    for (uint32_t i = 0; i < fields.count; i++) out->members[i] = (JsonMember){file->header->items[i].string, fields.items[i]};
    return OK;
}

Status record_parse(Arena *arena, const Record *record, JsonValue *out)
{
    if (record->kind == RECORD_JSON) return parse_json(arena, record, out);
    if (record->kind == RECORD_CSV) return parse_csv(arena, record, out);
    *out = (JsonValue){.type = JSON_OBJECT, .count = 1, .members = arena_new(arena, JsonMember)};
    out->members[0] = (JsonMember){str_of("text"), {.type = JSON_STRING, .string = record->bytes}};
    return OK;
}
