/* Every parquet file in ../shared, compared with the rows that other readers gave. */
#include "base/json.h"
#include "data/parquet.h"
#include "data_util.h"

#include <dirent.h>

static double number_of(const JsonValue *value)
{
    return value->type == JSON_INT ? (double)value->integer : value->number;
}

static bool is_number(const JsonValue *value)
{
    return value->type == JSON_INT || value->type == JSON_DOUBLE;
}

/* A day, and a time at the first instant of that day, count as equal. */
static bool equal_strings(Str got, Str want)
{
    if (got.len == 10 && want.len == 24 && memcmp(want.data + 10, "T00:00:00.000Z", 14) == 0) want.len = 10;
    /* the expected file has only milliseconds */
    if (got.len > 24 && want.len == 24 && want.data[23] == 'Z' && got.data[got.len - 1] == 'Z') {
        got.len = 23;
        want.len = 23;
    }
    return got.len == want.len && memcmp(got.data, want.data, got.len) == 0;
}

/* The expected rows are objects (absent members are null), or arrays of the members in order. Null members of structs are left out of our
 * rows. */
static bool equal_values(const JsonValue *got, const JsonValue *want)
{
    if (!want) return got->type == JSON_NULL;
    if (!got) return want->type == JSON_NULL;
    if (is_number(got) && is_number(want)) return number_of(got) == number_of(want);
    if (got->type == JSON_OBJECT && want->type == JSON_OBJECT) {
        for (uint32_t i = 0; i < got->count; i++)
            if (!equal_values(&got->members[i].value, json_get(want, got->members[i].key.data))) return false;
        for (uint32_t i = 0; i < want->count; i++)
            if (!equal_values(json_get(got, want->members[i].key.data), &want->members[i].value)) return false;
        return true;
    }
    if (got->type != want->type) return false;
    if (got->type == JSON_STRING) return equal_strings(got->string, want->string);
    if (got->type == JSON_BOOL) return got->boolean == want->boolean;
    if (got->type != JSON_ARRAY) return true;
    if (got->count != want->count) return false;
    for (uint32_t i = 0; i < got->count; i++)
        if (!equal_values(&got->items[i], &want->items[i])) return false;
    return true;
}

static bool equal_rows(const JsonValue *got, const JsonValue *want)
{
    if (want->type == JSON_OBJECT) return equal_values(got, want);
    if (got->count != want->count) return false;
    for (uint32_t i = 0; i < got->count; i++)
        if (!equal_values(&got->members[i].value, &want->items[i])) return false;
    return true;
}

static void compare_with_json(const char *path, const char *expected_path)
{
    Arena          arena = {0};
    JsonValue      want;
    Str            text;
    StrBuf         row = {0};
    ParquetReader *reader = NULL;
    EXPECT_OK(file_read(&arena, expected_path, 1 << 24, &text));
    EXPECT_OK(json_parse(&arena, expected_path, text.data, text.len, &want));
    EXPECT_OK(parquet_open(path, &reader));
    uint32_t count = 0;
    for (bool has = reader != NULL; has; count++) {
        JsonValue got;
        strbuf_clear(&row);
        Status status = parquet_next(reader, &row, &has);
        if (status != OK) test_fail(__FILE__, __LINE__, "%s: %s", path, status_message());
        if (status != OK || !has) break;
        EXPECT_OK(json_parse_row(&arena, path, row.data, row.len, &got));
        if (count < want.count && !equal_rows(&got, &want.items[count]))
            test_fail(__FILE__, __LINE__, "%s: row %u is %s", path, count, row.data);
    }
    if (count != want.count) test_fail(__FILE__, __LINE__, "%s: %u rows, expected %u", path, count, want.count);
    parquet_close(reader);
    strbuf_deinit(&row);
    arena_deinit(&arena);
}

static void files_give_the_expected_rows(void)
{
    const char *shared = test_shared_dir();
    if (!shared) SKIP("no ../shared");
    char           dir[4096], path[8192], expected[8192];
    struct dirent *entry;
    int            compared = 0;
    snprintf(dir, sizeof dir, "%s/data/parquet", shared);
    DIR *folder = opendir(dir);
    while (folder && (entry = readdir(folder))) {
        size_t len = strlen(entry->d_name);
        if (len < 8 || strcmp(entry->d_name + len - 8, ".parquet") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        snprintf(expected, sizeof expected, "%s/%.*s.json", dir, (int)len - 8, entry->d_name);
        if (!is_there(expected)) continue; /* the two files with a .csv are in test_csv */
        compare_with_json(path, expected);
        compared++;
    }
    if (folder) closedir(folder);
    EXPECT(compared >= 20);
}

/* A file that is cut anywhere or has a changed byte is an error or gives other rows, never a crash. */
static void damaged_files_are_errors(void)
{
    const char *shared = test_shared_dir();
    if (!shared) SKIP("no ../shared");
    char  path[4200];
    Arena arena = {0};
    Str   text;
    snprintf(path, sizeof path, "%s/data/parquet/nested_maps.snappy.parquet", shared);
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    char *copy = arena_strndup(&arena, text.data, text.len);
    for (size_t i = 0; i < 2 * text.len; i++) {
        ParquetReader *reader = NULL;
        size_t         at = i / 2, len = i % 2 ? text.len : at;
        char          *exact = malloc(len + 1); /* an exact copy, so that the sanitizer sees reads beyond it */
        copy[at] ^= i % 2 ? 0x55 : 0;
        memcpy(exact, copy, len);
        copy[at] ^= i % 2 ? 0x55 : 0;
        Status status = parquet_open_bytes("x", exact, len, &reader);
        StrBuf row = {0};
        for (bool has = true; status == OK && has;) {
            strbuf_clear(&row);
            status = parquet_next(reader, &row, &has);
        }
        if (i % 2 == 0) EXPECT(status == ERR_INVALID);
        parquet_close(reader);
        strbuf_deinit(&row);
        free(exact);
    }
    arena_deinit(&arena);
}

static void other_files_are_named(void)
{
    ParquetReader *reader;
    EXPECT_FAILS(parquet_open_bytes("a.parquet", "hello, world", 12, &reader), ERR_INVALID, "a.parquet: not a parquet file");
    EXPECT_FAILS(parquet_open_bytes("a", "PAR1\0\0\0\0PARE", 12, &reader), ERR_UNSUPPORTED, "encrypted");
    EXPECT_FAILS(parquet_open_bytes("a", "PAR1\0\0\0\0PAR", 11, &reader), ERR_INVALID, "not a parquet");
}

/* ---- files made here: one optional column x, by hand, as some writers make them ---- */

enum { BOOLEAN = 0, INT32 = 1, FLOAT = 4, BYTES = 6, FIXED = 7 };
enum { PLAIN = 0, RLE = 3, BIT_PACKED = 4, DELTA = 5, DELTA_BYTES = 7, DICT = 8 };
enum { T_INT = 6, T_BINARY = 8, T_LIST = 9, T_STRUCT = 12 }; /* Thrift's codes of types */
enum { DATA_V1 = 5, DICTIONARY = 7, DATA_V2 = 8 };           /* field ids in a page header */

/* Writes the head of a field; *last: id of the field before it in its struct. */
static void put_head(StrBuf *out, int *last, int id, int type)
{
    strbuf_putc(out, (char)((id - *last) << 4 | type));
    *last = id;
}

static void put_varint(StrBuf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) strbuf_putc(out, (char)(value | 0x80));
    strbuf_putc(out, (char)value);
}

static void put_int(StrBuf *out, int *last, int id, int64_t value)
{
    put_head(out, last, id, T_INT);
    put_varint(out, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

static void put_text(StrBuf *out, int *last, int id, const char *text)
{
    put_head(out, last, id, T_BINARY);
    put_varint(out, strlen(text));
    strbuf_puts(out, text);
}

/* Writes a page of `values` values; in a version 2 page the first `levels` bytes are levels. */
static void put_page(StrBuf *out, int kind, int64_t values, int encoding, int level_encoding, int levels, const char *bytes, size_t len)
{
    int head = 0, body = 0;
    put_int(out, &head, 1, kind == DATA_V1 ? 0 : kind == DICTIONARY ? 2 : 3);
    put_int(out, &head, 2, (int64_t)len);
    put_int(out, &head, 3, (int64_t)len);
    put_head(out, &head, kind, T_STRUCT);
    put_int(out, &body, 1, values);
    if (kind == DATA_V2) put_int(out, &body, 3, values);
    put_int(out, &body, kind == DATA_V2 ? 4 : 2, encoding);
    if (kind == DATA_V1) put_int(out, &body, 3, level_encoding);
    if (kind == DATA_V1) put_int(out, &body, 4, level_encoding);
    if (kind == DATA_V2) put_int(out, &body, 5, levels);
    if (kind == DATA_V2) put_int(out, &body, 6, 0);
    strbuf_append(out, "\0\0", 2); /* ends of both structs */
    strbuf_append(out, bytes, len);
}

static void put_element(StrBuf *out, const char *name, int type, int converted, int scale, int children)
{
    int last = 0;
    if (!children) put_int(out, &last, 1, type);
    if (type == FIXED) put_int(out, &last, 2, 20); /* FIXED_LEN_BYTE_ARRAY(20) */
    if (!children) put_int(out, &last, 3, 1);      /* optional */
    put_text(out, &last, 4, name);
    if (children) put_int(out, &last, 5, children);
    if (converted >= 0) put_int(out, &last, 6, converted);
    if (scale) put_int(out, &last, 7, scale);
    strbuf_putc(out, 0);
}

typedef struct Made {
    int     type, codec, converted, scale;
    int64_t rows, values;
    int64_t data_at, dictionary_at; /* offsets of pages in the file; 0: no such page */
    int64_t size;                   /* bytes of the pages, as the footer states them */
} Made;

/* Writes the footer after the pages. */
static void put_footer(StrBuf *file, const Made *made)
{
    size_t begin = file->len;
    int    last = 0, group = 0, chunk = 0, meta = 0;
    put_int(file, &last, 1, 1);
    put_head(file, &last, 2, T_LIST);
    strbuf_putc(file, (char)(2 << 4 | T_STRUCT));
    put_element(file, "schema", 0, -1, 0, 1);
    put_element(file, "x", made->type, made->converted, made->scale, 0);
    put_int(file, &last, 3, made->rows);
    put_head(file, &last, 4, T_LIST);
    strbuf_putc(file, (char)(1 << 4 | T_STRUCT));
    put_head(file, &group, 1, T_LIST);
    strbuf_putc(file, (char)(1 << 4 | T_STRUCT));
    put_head(file, &chunk, 3, T_STRUCT);
    put_int(file, &meta, 4, made->codec);
    put_int(file, &meta, 5, made->values);
    put_int(file, &meta, 7, made->size);
    put_int(file, &meta, 9, made->data_at);
    if (made->dictionary_at) put_int(file, &meta, 11, made->dictionary_at);
    strbuf_append(file, "\0\0", 2);
    put_int(file, &group, 2, 0);
    put_int(file, &group, 3, made->rows);
    strbuf_append(file, "\0\0", 2);
    uint32_t len = (uint32_t)(file->len - begin);
    strbuf_append(file, (const char *)&len, 4);
    strbuf_puts(file, "PAR1");
}

/* Expects the values of x in all rows, separated by blanks, from a file of these pages. The file so far begins with PAR1. */
static void expect_values(const char *what, StrBuf *file, Made made, const char *want)
{
    ParquetReader *reader = NULL;
    StrBuf         got = {0}, row = {0};
    if (made.size == 0 && made.data_at) made.size = (int64_t)file->len - 4;
    put_footer(file, &made);
    Status status = parquet_open_bytes("made", file->data, file->len, &reader);
    for (bool has = true; status == OK && has;) {
        strbuf_clear(&row);
        status = parquet_next(reader, &row, &has);
        if (status == OK && has) strbuf_printf(&got, "%s%.*s", got.len ? " " : "", (int)row.len - 6, row.data + 5); /* {"x":...} */
    }
    if (status != OK)
        test_fail(__FILE__, __LINE__, "%s: %s", what, status_message());
    else if (strcmp(strbuf_cstr(&got), want) != 0)
        test_fail(__FILE__, __LINE__, "%s: %s, expected %s", what, strbuf_cstr(&got), want);
    parquet_close(reader);
    strbuf_deinit(&got);
    strbuf_deinit(&row);
    file->len = 0;
    strbuf_puts(file, "PAR1");
}

#define PAGE(file, kind, values, encoding, level_encoding, levels, bytes) \
    put_page(file, kind, values, encoding, level_encoding, levels, bytes, sizeof bytes - 1)
#define NO_LEVELS "\x02\0\0\0\x06\0"    /* levels of three absent values: 4 bytes of length, then RLE */
#define ALL_LEVELS "\x02\0\0\0\x06\x01" /* levels of three present values */

static void what_writers_leave_out_is_not_missed(void)
{
    StrBuf file = {0};
    strbuf_puts(&file, "PAR1");
    Made rows = {.type = INT32, .converted = -1, .rows = 3, .values = 3, .data_at = 4};
    expect_values("no rows", &file, (Made){.type = INT32, .converted = -1}, "");
    PAGE(&file, DATA_V1, 3, DICT, RLE, 0, NO_LEVELS);
    expect_values("nulls without a dictionary", &file, rows, "null null null");
    PAGE(&file, DATA_V1, 3, DELTA, RLE, 0, NO_LEVELS);
    expect_values("nulls without deltas", &file, rows, "null null null");
    PAGE(&file, DATA_V2, 3, DELTA, RLE, 2, "\x06\0");
    expect_values("nulls without deltas, version 2", &file, rows, "null null null");
    rows.type = BYTES;
    PAGE(&file, DATA_V1, 3, DELTA_BYTES, RLE, 0, NO_LEVELS);
    expect_values("nulls without texts", &file, rows, "null null null");
    rows.type = BOOLEAN;
    PAGE(&file, DATA_V1, 3, RLE, RLE, 0, NO_LEVELS);
    expect_values("nulls without booleans", &file, rows, "null null null");
    rows.type = INT32;
    PAGE(&file, DATA_V1, 3, PLAIN, RLE, 0, ALL_LEVELS "\1\0\0\0\2\0\0\0\3\0\0\0");
    rows.size = (int64_t)file.len - 4 - 14; /* as if the dictionary page's header weren't counted */
    expect_values("a column that is longer than the footer says", &file, rows, "1 2 3");
    strbuf_deinit(&file);
}

static void numbers_that_are_not_finite_are_kept(void)
{
    StrBuf file = {0};
    strbuf_puts(&file, "PAR1");
    PAGE(&file, DATA_V1, 3, PLAIN, RLE, 0, ALL_LEVELS "\0\0\xC0\x7F\0\0\x80\x7F\0\0\x80\xFF");
    expect_values("fp32", &file, (Made){.type = FLOAT, .converted = -1, .rows = 3, .values = 3, .data_at = 4}, "NaN Infinity -Infinity");
    strbuf_deinit(&file);
}

static void old_and_rare_encodings_are_read(void)
{
    StrBuf file = {0};
    strbuf_puts(&file, "PAR1");
    Made rows = {.type = INT32, .converted = -1, .rows = 3, .values = 3, .data_at = 4};
    PAGE(&file, DATA_V1, 3, PLAIN, BIT_PACKED, 0,
         "\xA0"
         "\7\0\0\0\x9\0\0\0");
    expect_values("bit-packed levels", &file, rows, "7 null 9");
    PAGE(&file, DICTIONARY, 2, PLAIN, RLE, 0, "\2");
    int64_t data_at = (int64_t)file.len;
    PAGE(&file, DATA_V1, 3, DICT, RLE, 0, ALL_LEVELS "\1\3\6");
    expect_values("a dictionary of booleans", &file,
                  (Made){.type = BOOLEAN,
                         .converted = -1,
                         .rows = 3,
                         .values = 3,
                         .data_at = data_at,
                         .dictionary_at = 4,
                         .size = (int64_t)file.len - 4},
                  "false true true");
    PAGE(&file, DATA_V1, 3, PLAIN, RLE, 0,
         ALL_LEVELS "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x7D"                                       /* 125 */
                    "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFB" /* -5 */
                    "\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");                                     /* 2^144 */
    expect_values("decimals of 20 bytes", &file, (Made){.type = FIXED, .converted = 5, .scale = 2, .rows = 3, .values = 3, .data_at = 4},
                  "1.25 -0.05 223007451985306231415357182726483615059804.16");
    strbuf_deinit(&file);
}

/* Parquet lets a map hold a key more than once: the last one counts. */
static void of_equal_keys_in_a_map_the_last_counts(void)
{
    /* pyarrow's: [{"a": 1, "b": 2, "a": 3}, {"c": 4}, {}] */
    static const unsigned char file[] = {
        80,  65,  82,  49,  21,  0,   21,  66,  21,  66,  44,  21,  10, 21,  0,   21,  6,   21,  6,   28,  0,   0,   0,   2,   0,   0,
        0,   3,   6,   3,   0,   0,   0,   3,   170, 1,   1,   0,   0,  0,   97,  1,   0,   0,   0,   98,  1,   0,   0,   0,   97,  1,
        0,   0,   0,   99,  21,  0,   21,  90,  21,  90,  44,  21,  10, 21,  0,   21,  6,   21,  6,   28,  0,   0,   0,   2,   0,   0,
        0,   3,   6,   3,   0,   0,   0,   3,   255, 1,   1,   0,   0,  0,   0,   0,   0,   0,   2,   0,   0,   0,   0,   0,   0,   0,
        3,   0,   0,   0,   0,   0,   0,   0,   4,   0,   0,   0,   0,  0,   0,   0,   21,  4,   25,  92,  53,  0,   24,  6,   115, 99,
        104, 101, 109, 97,  21,  2,   0,   53,  2,   24,  1,   109, 21, 2,   21,  2,   76,  44,  0,   0,   0,   53,  4,   24,  9,   107,
        101, 121, 95,  118, 97,  108, 117, 101, 21,  4,   0,   21,  12, 37,  0,   24,  3,   107, 101, 121, 37,  0,   76,  28,  0,   0,
        0,   21,  4,   37,  2,   24,  5,   118, 97,  108, 117, 101, 0,  22,  6,   25,  28,  25,  44,  38,  0,   28,  21,  12,  25,  37,
        6,   0,   25,  56,  1,   109, 9,   107, 101, 121, 95,  118, 97, 108, 117, 101, 3,   107, 101, 121, 21,  0,   22,  10,  22,  104,
        22,  104, 38,  8,   73,  28,  21,  0,   21,  0,   21,  2,   0,  60,  22,  8,   25,  38,  6,   4,   25,  54,  0,   2,   8,   0,
        0,   0,   38,  0,   28,  21,  4,   25,  37,  6,   0,   25,  56, 1,   109, 9,   107, 101, 121, 95,  118, 97,  108, 117, 101, 5,
        118, 97,  108, 117, 101, 21,  0,   22,  10,  22,  128, 1,   22, 128, 1,   38,  112, 73,  28,  21,  0,   21,  0,   21,  2,   0,
        60,  41,  38,  6,   4,   25,  70,  0,   2,   0,   8,   0,   0,  0,   22,  232, 1,   22,  6,   38,  8,   22,  232, 1,   0,   40,
        32,  112, 97,  114, 113, 117, 101, 116, 45,  99,  112, 112, 45, 97,  114, 114, 111, 119, 32,  118, 101, 114, 115, 105, 111, 110,
        32,  50,  54,  46,  48,  46,  49,  25,  44,  28,  0,   0,   28, 0,   0,   0,   4,   1,   0,   0,   80,  65,  82,  49,
    };
    static const char *const want[] = {"{\"m\":{\"b\":2,\"a\":3}}", "{\"m\":{\"c\":4}}", "{\"m\":{}}"};
    ParquetReader           *reader = NULL;
    StrBuf                   row = {0};
    bool                     has;
    EXPECT_OK(parquet_open_bytes("map", file, sizeof file, &reader));
    for (int i = 0; i < 3; i++) {
        strbuf_clear(&row);
        EXPECT_OK(parquet_next(reader, &row, &has));
        EXPECT(has);
        EXPECT_STR(strbuf_cstr(&row), want[i]);
    }
    parquet_close(reader);
    strbuf_deinit(&row);
}

/* Structs of a column share one type, so a field that a row lacks is null in the file. Such fields are left out, at any depth; nulls of
 * columns, lists and maps stay. */
static void structs_lack_what_is_null(void)
{
    static const char *const want[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"weather\",\"arguments\":{\"city\":\"A\"}}}]},{\"role\":\"tool\",\"content\":\"hot\",\"tool_call_id\":\"1\"},"
        "{\"role\":\"assistant\",\"content\":\"b\",\"loss\":false}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\","
        "\"parameters\":{\"properties\":{\"city\":{\"type\":\"string\"}}}}}],\"asked\":\"{\\\"city\\\": null}\",\"scores\":null}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":{"
        "\"name\":\"search\",\"arguments\":{\"q\":\"x\",\"deep\":[{\"n\":1},{\"m\":2},null]}}}]}],\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"search\",\"parameters\":{\"properties\":{\"q\":{\"type\":\"string\"}}}}}],\"asked\":null,"
        "\"scores\":{\"k\":null,\"l\":2}}",
    };
    ParquetReader *reader = NULL;
    StrBuf         row = {0};
    bool           has;
    EXPECT_OK(parquet_open("tests/fixtures/chats.parquet", &reader));
    for (int i = 0; i < 2; i++) {
        strbuf_clear(&row);
        EXPECT_OK(parquet_next(reader, &row, &has));
        EXPECT_STR(strbuf_cstr(&row), want[i]);
    }
    parquet_close(reader);
    strbuf_deinit(&row);
}

TEST_MAIN(TEST(structs_lack_what_is_null), TEST(files_give_the_expected_rows), TEST(damaged_files_are_errors), TEST(other_files_are_named),
          TEST(what_writers_leave_out_is_not_missed), TEST(numbers_that_are_not_finite_are_kept), TEST(old_and_rare_encodings_are_read),
          TEST(of_equal_keys_in_a_map_the_last_counts))
