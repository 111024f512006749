/* Readers: every format and compression gives the same rows; bad input is reported with its place. */
#include "data/record.h"
#include "data_util.h"
#include "data/record_internal.h"
#include "files/hub.h"

#include <locale.h>
#include <bzlib.h>
#include <lzma.h>
#include <time.h>
#include <zlib.h>
#include <zstd.h>

static void write_file(const char *path, const char *text)
{
    EXPECT_OK(file_write_atomic(path, text, strlen(text)));
}

/* All records of a file as JSON, one per line, followed by the message of the error that ended the file, if any. */
static const char *read_all(const char *path)
{
    static StrBuf text;
    Arena         arena = {0};
    char         *paths[] = {(char *)path};
    Reader       *reader;
    Record        record;
    bool          has = true;
    strbuf_clear(&text);
    Status status = reader_open(paths, 1, &reader);
    while (status == OK && has) {
        JsonValue value;
        status = reader_next(reader, &record, &has);
        if (status == OK && has) status = record_parse(&arena, &record, &value);
        if (status == OK && has) {
            json_write(&text, &value, -1);
            strbuf_putc(&text, '\n');
        }
    }
    if (status != OK) strbuf_puts(&text, status_message());
    reader_close(reader);
    arena_deinit(&arena);
    return strbuf_cstr(&text);
}

static void formats_give_equal_rows(void)
{
    const char *dir = scratch_dir(), *want = "{\"a\": \"1\", \"b\": \"x, \\\"y\\\"\\n\"}\n{\"a\": \"\", \"b\": \"z\"}\n";
    write_file(path_in(dir, "x.jsonl"), "{\"a\": \"1\", \"b\": \"x, \\\"y\\\"\\n\"}\r\n\n {\"a\":\"\",\"b\":\"z\"}");
    EXPECT_STR(read_all(path_in(dir, "x.jsonl")), want);
    write_file(path_in(dir, "x.json"), " [ {\"a\":\"1\",\n \"b\":\"x, \\\"y\\\"\\n\"} ,\n{\"a\":\"\",\"b\":\"z\"}\n]\n");
    EXPECT_STR(read_all(path_in(dir, "x.json")), want);
    write_file(path_in(dir, "y.json"), "{\"a\":\"1\",\"b\":\"x, \\\"y\\\"\\n\"}\n{\"a\":\"\",\"b\":\"z\"}\n");
    EXPECT_STR(read_all(path_in(dir, "y.json")), want);
    write_file(path_in(dir, "y.jsonl"), "\n[\n {\"a\":\"1\", \"b\":\"x, \\\"y\\\"\\n\"},\n {\"a\":\"\",\"b\":\"z\"}\n]\n");
    EXPECT_STR(read_all(path_in(dir, "y.jsonl")), want);
    write_file(path_in(dir, "x.csv"), "\xef\xbb\xbf"
                                      "a,b\r\n1,\"x, \"\"y\"\"\n\"\r\n\r\n,z");
    EXPECT_STR(read_all(path_in(dir, "x.csv")), want);
    write_file(path_in(dir, "x.tsv"), "a\tb\n1\t\"x, \"\"y\"\"\n\"\n\"\"\tz\n");
    EXPECT_STR(read_all(path_in(dir, "x.tsv")), want);
    write_file(path_in(dir, "x.txt"), "one\ntwo");
    EXPECT_STR(read_all(path_in(dir, "x.txt")), "{\"text\": \"one\\ntwo\"}\n");
    write_file(path_in(dir, "empty.txt"), "");
    EXPECT_STR(read_all(path_in(dir, "empty.txt")), "");
    write_file(path_in(dir, "blank.txt"), " \n\t\r\n ");
    EXPECT_STR(read_all(path_in(dir, "blank.txt")), "");
    write_file(path_in(dir, "empty.json"), "[]");
    EXPECT_STR(read_all(path_in(dir, "empty.json")), "");
    EXPECT_OK(file_remove_tree(dir));
}

static void bad_input_says_where(void)
{
    static const char *const cases[][3] = {
        {"a.jsonl", "{\"a\":1}\n{\"a\":}\n", "a.jsonl:2:6"},
        {"a.ndjson", "\n  {\"a\":}\n", "a.ndjson:2:8"},
        {"b.jsonl", "\n [{\"a\":1},\n {\"a\":}]", "b.jsonl:3:7"},
        {"c.jsonl", "[{\"a\":1}]\n[{\"a\":2}]\n", "c.jsonl:2:1: text after the end of the array"},
        {"b.json", "[{\"a\":1},\n  {\"a\":\n x}]", "b.json:3:2"},
        {"c.json", "[{\"a\":1}\n {\"a\":2}]", "c.json:2:2: expected ',' or ']'"},
        {"d.json", "[{\"a\":1},\n]", "d.json:2:1: expected a value"},
        {"e.json", "[{\"a\":1}", "e.json:1:9: the array is never closed"},
        {"f.json", "[] x", "f.json:1:4: text after"},
        {"g.json", "[{\"a\": \"unclosed", "g.json:1:"},
        {"h.csv", "a,b\n1,2\n3\n", "h.csv:3: 1 fields, the header has 2"},
        {"i.csv", "a,b\n1,x\"y\n", "i.csv:2: column 4: a quote inside"},
        {"j.csv", "a,b\n1,\"x\"y\n", "j.csv:2: column 5: a closing quote"},
        {"k.csv", "a,b\n\n1,\"x\n", "k.csv:3: column 3: the quote that opens here"},
        {"l.csv", "a,a\n", "l.csv:1: two columns are named \"a\""},
        {"m.csv", "", "m.csv: empty"},
        {"n.txt",
         "\xff\xfe"
         "x",
         "n.txt: UTF-16"},
        {"o.json", "]", "o.json:1:1: expected a JSON value"},
        {"p.parquet", "PAR1 and nothing more", "p.parquet: the end of a parquet file is missing"},
    };
    const char *dir = scratch_dir();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(path_in(dir, cases[i][0]), cases[i][1]);
        EXPECT_CONTAINS(read_all(path_in(dir, cases[i][0])), cases[i][2]);
    }
    EXPECT_CONTAINS(read_all(path_in(dir, "absent.jsonl")), "cannot open");
    EXPECT_OK(file_remove_tree(dir));
}

static size_t gzip_bytes(const void *data, size_t len, char *out, size_t room)
{
    z_stream stream = {0};
    deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
    stream.next_in = (unsigned char *)data;
    stream.avail_in = (unsigned)len;
    stream.next_out = (unsigned char *)out;
    stream.avail_out = (unsigned)room;
    EXPECT_INT(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    return room - stream.avail_out;
}

static void compressed_files_are_read(void)
{
    const char *dir = scratch_dir(), *part = "{\"a\":1}\n", *want = "{\"a\": 1}\n{\"a\": 1}\n";
    char        bytes[4096];
    size_t      n = gzip_bytes(part, strlen(part), bytes, sizeof bytes);
    n += gzip_bytes(part, strlen(part), bytes + n, sizeof bytes - n); /* two members */
    EXPECT_OK(file_write_atomic(path_in(dir, "x.jsonl.gz"), bytes, n));
    EXPECT_STR(read_all(path_in(dir, "x.jsonl.gz")), want);
    EXPECT_OK(file_write_atomic(path_in(dir, "cut.jsonl.gz"), bytes, n - 9));
    EXPECT_CONTAINS(read_all(path_in(dir, "cut.jsonl.gz")), "the file was cut");
    bytes[n / 2 + 12] ^= 0x10;
    EXPECT_OK(file_write_atomic(path_in(dir, "bad.jsonl.gz"), bytes, n));
    EXPECT_CONTAINS(read_all(path_in(dir, "bad.jsonl.gz")), "damaged gzip");
    n = ZSTD_compress(bytes, sizeof bytes, part, strlen(part), 3);
    n += ZSTD_compress(bytes + n, sizeof bytes - n, part, strlen(part), 3);
    EXPECT_OK(file_write_atomic(path_in(dir, "x.jsonl.zst"), bytes, n));
    EXPECT_STR(read_all(path_in(dir, "x.jsonl.zst")), want);
    EXPECT_OK(file_write_atomic(path_in(dir, "cut.jsonl.zst"), bytes, n - 3));
    EXPECT_CONTAINS(read_all(path_in(dir, "cut.jsonl.zst")), "the file was cut");
    EXPECT_OK(file_remove_tree(dir));
}

static size_t xz_bytes(const void *data, size_t len, char *out, size_t room)
{
    size_t n = 0;
    EXPECT_INT(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, NULL, data, len, (unsigned char *)out, &n, room), LZMA_OK);
    return n;
}

static size_t bzip2_bytes(const void *data, size_t len, char *out, size_t room)
{
    unsigned n = (unsigned)room;
    EXPECT_INT(BZ2_bzBuffToBuffCompress(out, &n, (char *)data, (unsigned)len, 9, 0, 0), BZ_OK);
    return n;
}

/* Files of two compressed members: whole, cut, damaged, and with zero bytes between and after the members. */
static void xz_and_bzip2_are_read(void)
{
    typedef size_t (*Pack)(const void *data, size_t len, char *out, size_t room);
    static const Pack        packs[] = {xz_bytes, bzip2_bytes, gzip_bytes};
    static const char *const endings[] = {"xz", "bz2", "gz"}, *const names[] = {"xz", "bzip2", "gzip"};
    const char *dir = scratch_dir(), *part = "{\"a\":1}\n", *want = "{\"a\": 1}\n{\"a\": 1}\n";
    for (int i = 0; i < 3; i++) {
        char   bytes[4096] = {0}, name[64], damaged[64];
        size_t n = packs[i](part, strlen(part), bytes, sizeof bytes), one = n;
        n += packs[i](part, strlen(part), bytes + n, sizeof bytes - n);
        snprintf(name, sizeof name, "x.jsonl.%s", endings[i]);
        EXPECT_OK(file_write_atomic(path_in(dir, name), bytes, n));
        EXPECT_STR(read_all(path_in(dir, name)), want);
        EXPECT_OK(file_write_atomic(path_in(dir, name), bytes, n - 3));
        EXPECT_CONTAINS(read_all(path_in(dir, name)), "the file was cut");
        memset(bytes + n, 0, 512);
        EXPECT_OK(file_write_atomic(path_in(dir, name), bytes, n + 512));
        EXPECT_STR(read_all(path_in(dir, name)), want);
        memmove(bytes + one + 8, bytes + one, n - one);
        memset(bytes + one, 0, 8);
        EXPECT_OK(file_write_atomic(path_in(dir, name), bytes, n + 8));
        EXPECT_STR(read_all(path_in(dir, name)), want);
        bytes[n + 8] = 'x';
        EXPECT_OK(file_write_atomic(path_in(dir, name), bytes, n + 9));
        const char *said = read_all(path_in(dir, name)); /* 'x' begins another member, which is cut or damaged */
        EXPECT(strstr(said, "the file was cut") || strstr(said, "damaged"));
        bytes[one / 2] ^= 0x10;
        EXPECT_OK(file_write_atomic(path_in(dir, name), bytes, n + 8));
        snprintf(damaged, sizeof damaged, "damaged %s data", names[i]);
        EXPECT_CONTAINS(read_all(path_in(dir, name)), damaged);
    }
    write_file(path_in(dir, "BZh91.txt"), "BZh91AY is how bzip2 begins");
    EXPECT_STR(read_all(path_in(dir, "BZh91.txt")), "{\"text\": \"BZh91AY is how bzip2 begins\"}\n");
    EXPECT_OK(file_remove_tree(dir));
}

/* The first member ends with a backslash; the character that it escapes is alone in the next member. */
static void members_may_end_within_an_escape(void)
{
    static const char *const members[] = {"[\"a\\", "\"", "\"]"};
    const char              *dir = scratch_dir();
    char                     bytes[512];
    size_t                   n = 0;
    for (int i = 0; i < 3; i++) n += gzip_bytes(members[i], strlen(members[i]), bytes + n, sizeof bytes - n);
    EXPECT_OK(file_write_atomic(path_in(dir, "x.json.gz"), bytes, n));
    EXPECT_STR(read_all(path_in(dir, "x.json.gz")), "\"a\\\"\"\n");
    write_file(path_in(dir, "cut.json"), "[\"a\\");
    EXPECT_CONTAINS(read_all(path_in(dir, "cut.json")), "cut.json:1:");
    EXPECT_OK(file_remove_tree(dir));
}

/* A record one byte above the limit is refused, though the window has room for it. */
static void long_records_are_refused(void)
{
    static const char *const cases[][3] = {{"x.jsonl", "\"", "\"\n1\n"}, {"x.json", "\"", "\"\n1\n"}, {"x.csv", "a\n", "\nb\n"}};
    size_t                   limit = (size_t)64 << 20;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        StrBuf text = {0};
        strbuf_puts(&text, cases[i][1]);
        size_t quotes = i < 2 ? 2 : 0, begin = text.len;
        for (int more = 0; more < 2; more++) {
            Reader *reader;
            Record  record;
            bool    has;
            text.len = begin;
            strbuf_reserve(&text, limit + 64);
            memset(text.data + begin, 'x', limit + (size_t)more - quotes);
            text.len += limit + (size_t)more - quotes;
            strbuf_puts(&text, cases[i][2]);
            EXPECT_OK(reader_open_bytes(cases[i][0], (Str){text.data, text.len}, &reader));
            if (more)
                EXPECT_FAILS(reader_next(reader, &record, &has), ERR_INVALID, "a record of 67108865 bytes, more than 64 MiB");
            else
                EXPECT_OK(reader_next(reader, &record, &has));
            reader_close(reader);
        }
        strbuf_deinit(&text);
    }
}

static void many_columns_cost_their_number(void)
{
    enum { COLUMNS = 40000 };
    StrBuf  text = {0};
    Arena   arena = {0};
    Reader *reader;
    Record  record;
    bool    has;
    for (int line = 0; line < 2; line++) {
        for (int i = 0; i < COLUMNS; i++) strbuf_printf(&text, "%s\"c%d\"", i ? "," : "", i);
        strbuf_putc(&text, '\n');
    }
    clock_t begin = clock();
    EXPECT_OK(reader_open_bytes("x.csv", (Str){text.data, text.len}, &reader));
    EXPECT_OK(reader_next(reader, &record, &has));
    JsonValue value;
    EXPECT_OK(record_parse(&arena, &record, &value));
    EXPECT_INT(value.count, COLUMNS);
    EXPECT_STR(value.members[COLUMNS - 1].value.string.data, "c39999");
    EXPECT((double)(clock() - begin) / CLOCKS_PER_SEC < 1);
    EXPECT(arena.used_bytes < (size_t)COLUMNS * 256);
    reader_close(reader);
    arena_deinit(&arena);
    strbuf_deinit(&text);
}

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define TALK "[" SAYS("user", "a") ", " SAYS("assistant", "b") "]"

static void a_list_of_messages_is_one_record(void)
{
    const char *dir = scratch_dir();
    write_file(path_in(dir, "one.json"), "\n[ " SAYS("user", "a") ",\n" SAYS("assistant", "b") "]\n");
    EXPECT_STR(read_all(path_in(dir, "one.json")), TALK "\n");
    write_file(path_in(dir, "some.json"), "[" TALK ",\n" TALK "]");
    EXPECT_STR(read_all(path_in(dir, "some.json")), TALK "\n" TALK "\n");
    write_file(path_in(dir, "lines.jsonl"), TALK "\n\n" TALK "\n");
    EXPECT_STR(read_all(path_in(dir, "lines.jsonl")), TALK "\n" TALK "\n");
    write_file(path_in(dir, "second.jsonl"), "{\"messages\": " TALK "}\n" TALK "\n");
    EXPECT_STR(read_all(path_in(dir, "second.jsonl")), "{\"messages\": " TALK "}\n" TALK "\n");
    write_file(path_in(dir, "sharegpt.json"), "[{\"from\": \"human\", \"value\": \"a\"}]");
    EXPECT_STR(read_all(path_in(dir, "sharegpt.json")), "[{\"from\": \"human\", \"value\": \"a\"}]\n");
    write_file(path_in(dir, "rows.json"), "[{\"role\": \"Pilot\", \"content\": \"a\"}, {\"role\": \"Nurse\", \"content\": \"b\"}]");
    EXPECT_STR(read_all(path_in(dir, "rows.json")),
               "{\"role\": \"Pilot\", \"content\": \"a\"}\n{\"role\": \"Nurse\", \"content\": \"b\"}\n");
    write_file(path_in(dir, "bad.json"), "[" SAYS("user", "a") ",\n{\"role\": }]");
    EXPECT_CONTAINS(read_all(path_in(dir, "bad.json")), "bad.json:2:10");
    EXPECT_OK(file_remove_tree(dir));
}

static void bombs_are_refused(void)
{
    const char *dir = scratch_dir();
    size_t      len = (size_t)100 << 20;
    char       *blanks = malloc(len), *packed = malloc(1 << 20);
    memset(blanks, '\n', len);
    size_t n = gzip_bytes(blanks, len, packed, 1 << 20);
    EXPECT_OK(file_write_atomic(path_in(dir, "bomb.jsonl.gz"), packed, n));
    EXPECT_CONTAINS(read_all(path_in(dir, "bomb.jsonl.gz")), "decompression bomb");
    memset(blanks, 'a', len);
    n = ZSTD_compress(packed, 1 << 20, blanks, len, 1);
    EXPECT_OK(file_write_atomic(path_in(dir, "long.jsonl.zst"), packed, n));
    EXPECT_CONTAINS(read_all(path_in(dir, "long.jsonl.zst")), "long.jsonl.zst: ");
    free(blanks);
    free(packed);
    EXPECT_OK(file_remove_tree(dir));
}

static void paths_mean_files(void)
{
    const char *dir = scratch_dir();
    Arena       arena = {0};
    char      **paths;
    int         count;
    EXPECT_OK(file_make_dirs(path_in(dir, "data")));
    write_file(path_in(dir, "data/train-1.jsonl"), "");
    write_file(path_in(dir, "data/train-0.jsonl"), "");
    write_file(path_in(dir, "data/test.jsonl"), "");
    write_file(path_in(dir, "README.bin"), "");
    EXPECT_OK(reader_find_files(&arena, dir, NULL, false, NULL, &paths, &count));
    EXPECT_INT(count, 3);
    EXPECT_OK(reader_find_files(&arena, dir, "train", false, NULL, &paths, &count));
    EXPECT_INT(count, 2);
    EXPECT_CONTAINS(paths[0], "train-0.jsonl");
    EXPECT_FAILS(reader_find_files(&arena, dir, "validation", false, NULL, &paths, &count), ERR_NOT_FOUND, "no file of split");
    EXPECT_OK(reader_find_files(&arena, path_in(dir, "data/t*.jsonl"), NULL, false, NULL, &paths, &count));
    EXPECT_INT(count, 3);
    EXPECT_FAILS(reader_find_files(&arena, path_in(dir, "*.nope"), NULL, false, NULL, &paths, &count), ERR_NOT_FOUND, "no file matches");
    EXPECT_FAILS(reader_find_files(&arena, path_in(dir, "README.bin"), NULL, false, NULL, &paths, &count), ERR_INVALID, "README.bin: ");
    EXPECT_FAILS(reader_find_files(&arena, path_in(dir, "*.bin"), NULL, false, NULL, &paths, &count), ERR_INVALID, ".parquet");
    EXPECT_OK(reader_find_files(&arena, path_in(dir, "README.bin"), NULL, true, NULL, &paths, &count));
    EXPECT_FAILS(reader_find_files(&arena, path_in(dir, "nope"), NULL, false, NULL, &paths, &count), ERR_NOT_FOUND, "no such file");
    arena_deinit(&arena);
    EXPECT_OK(file_remove_tree(dir));
}

/* The names of the files that `split` selects from a folder of these files, then '|' and the notes about them. */
static const char *chosen(const char *const *names, const char *split)
{
    static StrBuf text;
    const char   *dir = scratch_dir();
    Arena         arena = {0};
    StrBuf        notes = {0};
    char        **paths;
    int           count;
    strbuf_clear(&text);
    for (; *names; names++) {
        const char *slash = strrchr(*names, '/');
        if (slash) EXPECT_OK(file_make_dirs(path_in(dir, arena_strndup(&arena, *names, (size_t)(slash - *names)))));
        write_file(path_in(dir, *names), "");
    }
    Status status = reader_find_files(&arena, dir, split, false, &notes, &paths, &count);
    for (int i = 0; status == OK && i < count; i++) strbuf_printf(&text, "%s%s", i ? " " : "", paths[i] + strlen(dir) + 1);
    if (status != OK) strbuf_puts(&text, status_message());
    strbuf_printf(&text, "|%s", strbuf_cstr(&notes));
    strbuf_deinit(&notes);
    arena_deinit(&arena);
    EXPECT_OK(file_remove_tree(dir));
    return strbuf_cstr(&text);
}

#define FILES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void splits_are_told_by_names(void)
{
    EXPECT_CONTAINS(chosen(FILES("test/a.jsonl", "train/a.jsonl"), "train"), "train/a.jsonl|");
    EXPECT_CONTAINS(chosen(FILES("test/a.jsonl", "train/a.jsonl"), "test"), "test/a.jsonl|");
    EXPECT_CONTAINS(chosen(FILES("my-test.jsonl", "my-train.jsonl"), "train"), "my-train.jsonl|");
    EXPECT_CONTAINS(chosen(FILES("my-test.jsonl", "my-train.jsonl"), "train"), "1 of 2 files are read, those of split \"train\"");
    EXPECT_CONTAINS(chosen(FILES("en/x_test.csv", "en/x_train.csv", "fr/x_train.csv"), "train"), "en/x_train.csv fr/x_train.csv|");
    EXPECT_CONTAINS(chosen(FILES("data/train-0.parquet", "data/training-test.parquet"), "train"),
                    "data/train-0.parquet data/training-test");
    EXPECT_CONTAINS(chosen(FILES("Train/a.csv", "Test/a.csv"), "train"), "Train/a.csv|");
    EXPECT_CONTAINS(chosen(FILES("dev/a.csv", "train/a.csv"), "validation"), "dev/a.csv|");
    EXPECT_CONTAINS(chosen(FILES("train/a.csv", "train/test.csv", "test/b.csv"), "train"), "train/a.csv|");
    EXPECT_CONTAINS(chosen(FILES("wiki.test.txt", "wiki.train.txt"), "train"), "wiki.train.txt|");
    EXPECT_CONTAINS(chosen(FILES("my-sft.csv", "my-dpo.csv"), "sft"), "my-sft.csv|");
    EXPECT_CONTAINS(chosen(FILES("latest.csv", "strain.csv"), "train"), "latest.csv strain.csv|");
    EXPECT_CONTAINS(chosen(FILES("testset.csv", "b.csv"), "validation"), "no file of split");
}

/* If names don't say which split every file belongs to, all files of the path are read, with a warning. */
static void doubtful_splits_are_warned_of(void)
{
    EXPECT_CONTAINS(chosen(FILES("how-to-test.md", "how-to-train.md", "intro.md"), "train"),
                    "how-to-test.md how-to-train.md intro.md|warning: ");
    EXPECT_CONTAINS(chosen(FILES("a.jsonl", "test.jsonl"), "train"), "a.jsonl test.jsonl|warning: ");
    EXPECT_CONTAINS(chosen(FILES("a.jsonl", "test.jsonl"), "train"), "all 2 files are read, test.jsonl too");
    EXPECT_STR(chosen(FILES("a.jsonl", "b.jsonl"), "train"), "a.jsonl b.jsonl|");
    EXPECT_STR(chosen(FILES("my-train.jsonl", "more.jsonl"), "train"), "more.jsonl my-train.jsonl|");
    EXPECT_CONTAINS(chosen(FILES("a.jsonl", "b.jsonl"), "validation"), "a.jsonl b.jsonl|warning: ");
    EXPECT_CONTAINS(chosen(FILES("a.jsonl"), "mine"), ": no split \"mine\": no file of the folder tells one by its name");
    EXPECT_STR(chosen(FILES("a.jsonl"), "training"), "a.jsonl|");
}

/* Files that the path names itself are read whatever the split is, with a note. */
static void files_and_patterns_have_no_split(void)
{
    const char *dir = scratch_dir();
    Arena       arena = {0};
    StrBuf      notes = {0};
    char      **paths;
    int         count;
    write_file(path_in(dir, "a.jsonl"), "");
    EXPECT_OK(reader_find_files(&arena, path_in(dir, "a.jsonl"), "train[:5]", false, &notes, &paths, &count));
    EXPECT_OK(reader_find_files(&arena, path_in(dir, "a.jsonl"), NULL, false, &notes, &paths, &count));
    EXPECT_STR(strbuf_cstr(&notes), "");
    EXPECT_OK(reader_find_files(&arena, path_in(dir, "a.jsonl"), "test[:5]", false, &notes, &paths, &count));
    EXPECT_CONTAINS(strbuf_cstr(&notes), "a.jsonl: no split \"test\": the path is one file");
    EXPECT_OK(reader_find_files(&arena, path_in(dir, "*.jsonl"), "test", false, &notes, &paths, &count));
    EXPECT_CONTAINS(strbuf_cstr(&notes), "*.jsonl: no split \"test\": the pattern alone");
    strbuf_deinit(&notes);
    arena_deinit(&arena);
    EXPECT_OK(file_remove_tree(dir));
}

static void files_about_a_dataset_are_left_out(void)
{
    EXPECT_CONTAINS(chosen(FILES("a.jsonl", "README.md", "LICENSE.txt", "data/LICENSE-MIT.txt", "dataset_infos.json"), "train"),
                    "a.jsonl|");
    EXPECT_CONTAINS(chosen(FILES("a.txt", "README.md"), "train"), ": left out, as files about the dataset: README.md; ");
    EXPECT_STR(chosen(FILES("licensed.txt", "notice-7.txt", "readme.jsonl"), "train"), "licensed.txt notice-7.txt readme.jsonl|");
    EXPECT_CONTAINS(chosen(FILES("README.md"), "train"), "no data files here but ");
    const char *dir = scratch_dir();
    Arena       arena = {0};
    char      **paths;
    int         count;
    write_file(path_in(dir, "README.md"), "what is meant");
    EXPECT_OK(reader_find_files(&arena, path_in(dir, "README.md"), "train", false, NULL, &paths, &count));
    EXPECT_INT(count, 1);
    arena_deinit(&arena);
    EXPECT_OK(file_remove_tree(dir));
}

/* glob() sorts by the locale, which may put small letters before capitals. */
static void globs_sort_by_bytes(void)
{
    const char *dir = scratch_dir();
    char        command[4400];
    Arena       arena = {0};
    char      **paths;
    int         count;
    snprintf(command, sizeof command, "localedef -i en_US -f UTF-8 %s/en_US 2> /dev/null", dir);
    setenv("LOCPATH", dir, 1);
    bool has = system(command) == 0 && setlocale(LC_ALL, "en_US") && strcoll("a", "B") < 0;
    unsetenv("LOCPATH");
    if (has) {
        write_file(path_in(dir, "a.jsonl"), "");
        write_file(path_in(dir, "B.jsonl"), "");
        EXPECT_OK(reader_find_files(&arena, path_in(dir, "*.jsonl"), "train", false, NULL, &paths, &count));
        EXPECT_INT(count, 2);
        EXPECT_CONTAINS(paths[0], "/B.jsonl");
    }
    setlocale(LC_ALL, "C");
    arena_deinit(&arena);
    EXPECT_OK(file_remove_tree(dir));
    if (!has) SKIP("no locale en_US can be made");
}

static void texts_are_utf8(void)
{
    const char *dir = scratch_dir();
    EXPECT_OK(file_write_atomic(path_in(dir, "nul.txt"), "abcdefghi\0jkl", 13));
    EXPECT_CONTAINS(read_all(path_in(dir, "nul.txt")), "NUL byte at offset 9");
    write_file(path_in(dir, "koi8.txt"), "abcdefghijk \xf0\xd2\xc9\xd7\xc5\xd4");
    EXPECT_CONTAINS(read_all(path_in(dir, "koi8.txt")), "6 of 18 bytes aren't UTF-8, the first at offset 12");
    write_file(path_in(dir, "one.txt"), "a text of some length with a byte or so \xe9 that isn't UTF-8");
    EXPECT_CONTAINS(read_all(path_in(dir, "one.txt")), "{\"text\": ");
    write_file(path_in(dir, "two.txt"), "\xd0\x9f\xd1\x80\xd0\xb8\xe4\xbd\xa0\xf0\x9f\x99\x82");
    EXPECT_CONTAINS(read_all(path_in(dir, "two.txt")), "\xf0\x9f\x99\x82\"}");
    EXPECT_OK(file_remove_tree(dir));
}

static void long_text_comes_in_parts_at_lines(void)
{
    const char *dir = scratch_dir();
    size_t      len = (size_t)TEXT_PART_BYTES * 2 + 1000;
    char       *text = malloc(len);
    for (size_t i = 0; i < len; i++) text[i] = i % 61 == 60 ? '\n' : 'x';
    EXPECT_OK(file_write_atomic(path_in(dir, "x.txt"), text, len));
    char   *paths[] = {(char *)path_in(dir, "x.txt")};
    Reader *reader;
    Record  record;
    bool    has = true;
    size_t  at = 0;
    int     parts = 0;
    EXPECT_OK(reader_open(paths, 1, &reader));
    for (;; parts++) {
        EXPECT_OK(reader_next(reader, &record, &has));
        if (!has) break;
        EXPECT(memcmp(text + at, record.bytes.data, record.bytes.len) == 0);
        at += record.bytes.len;
        EXPECT_INT(record.continues, at < len);
        if (at < len) EXPECT(text[at - 1] == '\n');
    }
    EXPECT_INT(at, len);
    EXPECT_INT(parts, 3);
    reader_close(reader);
    free(text);
    EXPECT_OK(file_remove_tree(dir));
}

/* Two parquet files with delta encodings, compared with the CSV files from their writers. */
static void parquet_equals_its_csv(void)
{
    const char *shared = test_shared_dir();
    if (!shared) SKIP("no ../shared");
    static const char *const names[] = {"delta_binary_packed", "delta_byte_array"};
    for (int f = 0; f < 2; f++) {
        char    path[2][4200], *paths[2] = {path[0], path[1]};
        Reader *readers[2];
        Arena   arena = {0};
        int     rows = 0;
        snprintf(path[0], sizeof path[0], "%s/data/parquet/%s.parquet", shared, names[f]);
        snprintf(path[1], sizeof path[1], "%s/data/parquet/%s_expect.csv", shared, names[f]);
        for (int k = 0; k < 2; k++) EXPECT_OK(reader_open(&paths[k], 1, &readers[k]));
        for (;; rows++) {
            Record    record[2];
            bool      has[2];
            JsonValue value[2];
            for (int k = 0; k < 2; k++) EXPECT_OK(reader_next(readers[k], &record[k], &has[k]));
            EXPECT_INT(has[0], has[1]);
            if (!has[0] || !has[1]) break;
            for (int k = 0; k < 2; k++) EXPECT_OK(record_parse(&arena, &record[k], &value[k]));
            EXPECT_INT(value[0].count, value[1].count);
            for (uint32_t i = 0; i < value[0].count; i++) {
                const JsonValue *got = &value[0].members[i].value, *want = &value[1].members[i].value;
                StrBuf           text = {0};
                if (got->type == JSON_STRING)
                    strbuf_puts(&text, got->string.data);
                else if (got->type != JSON_NULL)
                    json_write(&text, got, -1);
                EXPECT_STR(strbuf_cstr(&text), want->string.data);
                strbuf_deinit(&text);
            }
        }
        EXPECT(rows >= 200);
        for (int k = 0; k < 2; k++) reader_close(readers[k]);
        arena_deinit(&arena);
    }
}

static void what_is_read_is_pulled(void)
{
    static const char *const formats[] = {"json", "jsonl", "ndjson", "csv", "tsv", "txt", "text"};
    static const char *const codings[] = {"", ".gz", ".zst", ".xz", ".bz2"};
    char                     name[64];
    bool                     is_known;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (size_t j = 0; j < sizeof codings / sizeof *codings; j++) {
            snprintf(name, sizeof name, "data/train.%s%s", formats[i], codings[j]);
            (void)file_format(name, &is_known);
            if (!is_known || !hub_wants(name, hub_dataset_files)) test_fail(__FILE__, __LINE__, "%s is read or pulled alone", name);
        }
    EXPECT(hub_wants("a/b.parquet", hub_dataset_files) && hub_wants("TRAIN.CSV", hub_dataset_files));
    EXPECT(!hub_wants("README.md", hub_dataset_files) && !hub_wants("data/LICENSE.txt", hub_dataset_files));
    EXPECT(!hub_wants("dataset_infos.json", hub_dataset_files) && !hub_wants("a.png", hub_dataset_files));
    EXPECT(hub_wants("additional_chat_templates/tool_use.jinja", hub_model_files));
    EXPECT(hub_wants("chat_template.jinja", hub_model_files) && !hub_wants("onnx/model.safetensors", hub_model_files));
}

TEST_MAIN(TEST(formats_give_equal_rows), TEST(xz_and_bzip2_are_read), TEST(members_may_end_within_an_escape),
          TEST(long_records_are_refused), TEST(many_columns_cost_their_number), TEST(a_list_of_messages_is_one_record),
          TEST(bad_input_says_where), TEST(compressed_files_are_read), TEST(bombs_are_refused), TEST(paths_mean_files),
          TEST(what_is_read_is_pulled), TEST(splits_are_told_by_names), TEST(doubtful_splits_are_warned_of),
          TEST(files_and_patterns_have_no_split), TEST(files_about_a_dataset_are_left_out), TEST(globs_sort_by_bytes), TEST(texts_are_utf8),
          TEST(long_text_comes_in_parts_at_lines), TEST(parquet_equals_its_csv))
