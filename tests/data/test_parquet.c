/* Every parquet file that stands beside the checkout, against the rows other readers got. */
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

/* A day written as the first instant of it is the same day. */
static bool equal_strings(Str got, Str want)
{
    if (got.len == 10 && want.len == 24 && memcmp(want.data + 10, "T00:00:00.000Z", 14) == 0) want.len = 10;
    /* the expected file keeps milliseconds only */
    if (got.len > 24 && want.len == 24 && want.data[23] == 'Z' && got.data[got.len - 1] == 'Z') {
        got.len = 23;
        want.len = 23;
    }
    return got.len == want.len && memcmp(got.data, want.data, got.len) == 0;
}

/* The expected rows are objects (absent members are nulls), or arrays of the members in order. */
static bool equal_values(const JsonValue *got, const JsonValue *want)
{
    if (!want) return got->type == JSON_NULL;
    if (is_number(got) && is_number(want)) return number_of(got) == number_of(want);
    if (got->type == JSON_OBJECT && want->type == JSON_OBJECT) {
        uint32_t found = 0;
        for (uint32_t i = 0; i < got->count; i++) {
            const JsonValue *other = json_get(want, got->members[i].key.data);
            found += other != NULL;
            if (!equal_values(&got->members[i].value, other)) return false;
        }
        return found == want->count;
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
    Arena          arena = { 0 };
    JsonValue      want;
    Str            text;
    StrBuf         row = { 0 };
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
        EXPECT_OK(json_parse(&arena, path, row.data, row.len, &got));
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
        if (!file_exists(expected)) continue; /* the two with a .csv: test_csv */
        compare_with_json(path, expected);
        compared++;
    }
    if (folder) closedir(folder);
    EXPECT(compared >= 20);
}

/* Cut anywhere or with a byte changed, a file is an error or gives other rows, never a crash. */
static void damaged_files_are_errors(void)
{
    const char *shared = test_shared_dir();
    if (!shared) SKIP("no ../shared");
    char  path[4200];
    Arena arena = { 0 };
    Str   text;
    snprintf(path, sizeof path, "%s/data/parquet/nested_maps.snappy.parquet", shared);
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    char *copy = arena_strndup(&arena, text.data, text.len);
    for (size_t i = 0; i < 2 * text.len; i++) {
        ParquetReader *reader = NULL;
        size_t         at = i / 2, len = i % 2 ? text.len : at;
        char          *exact = malloc(len + 1); /* so that reading beyond is seen by the sanitizer */
        copy[at] ^= i % 2 ? 0x55 : 0;
        memcpy(exact, copy, len);
        copy[at] ^= i % 2 ? 0x55 : 0;
        Status status = parquet_open_bytes("x", exact, len, &reader);
        StrBuf row = { 0 };
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

TEST_MAIN(TEST(files_give_the_expected_rows), TEST(damaged_files_are_errors), TEST(other_files_are_named))
