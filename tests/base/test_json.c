/* The JSON reader and writer. */
#include "base/json_edit.h"
#include "test.h"

#include <math.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static Arena arena;

static Status parse(const char *text, JsonValue *out)
{
    return json_parse(&arena, "t.json", text, strlen(text), out);
}

static void values_of_every_type(void)
{
    JsonValue   v;
    const char *text;
    int64_t     integer;
    double      number;
    bool        boolean;
    EXPECT_OK(parse(" {\"s\":\"a\\u0041\\n\",\"i\":-42,\"d\":2.5e-3,\"t\":true,\"f\":false,\"n\":null,\"a\":[1,[],{}]} ", &v));
    EXPECT_INT(v.type, JSON_OBJECT);
    EXPECT_INT(v.count, 7);
    EXPECT(json_get_str(&v, "s", &text) && strcmp(text, "aA\n") == 0);
    EXPECT(json_get_int(&v, "i", &integer) && integer == -42);
    EXPECT(json_get_double(&v, "i", &number) && number == -42);
    EXPECT(json_get_double(&v, "d", &number) && number == 2.5e-3);
    EXPECT(json_get_bool(&v, "t", &boolean) && boolean);
    EXPECT(json_get_bool(&v, "f", &boolean) && !boolean);
    EXPECT_INT(json_get(&v, "n")->type, JSON_NULL);
    EXPECT_INT(json_get(&v, "a")->count, 3);
    EXPECT_INT(json_get(&v, "a")->items[2].type, JSON_OBJECT);
    EXPECT(!json_get(&v, "absent"));
    EXPECT(!json_get(NULL, "absent"));
    EXPECT(!json_get_int(&v, "d", &integer));
    EXPECT(!json_get_str(&v, "i", &text));
    EXPECT(!json_get_bool(&v, "i", &boolean));
    EXPECT(!json_get_double(&v, "s", &number));
}

static void numbers_beyond_int64_become_doubles(void)
{
    JsonValue v;
    EXPECT_OK(parse("[9223372036854775807,-9223372036854775808,9223372036854775808,-0,1.0,0.1,123456789012345678901234]", &v));
    EXPECT_INT(v.items[0].type, JSON_INT);
    EXPECT_INT(v.items[0].integer, INT64_MAX);
    EXPECT_INT(v.items[1].integer, INT64_MIN);
    EXPECT_INT(v.items[2].type, JSON_DOUBLE);
    EXPECT(v.items[2].number == 9223372036854775808.0);
    EXPECT(v.items[3].type == JSON_DOUBLE && signbit(v.items[3].number));
    EXPECT_INT(v.items[4].type, JSON_DOUBLE);
    EXPECT(v.items[5].number == 0.1);
    EXPECT(v.items[6].number == 123456789012345678901234.0);
}

static void whole_numbers_keep_their_digits(void)
{
    static const char text[] = "[18446744073709551615, -170141183460469231731687303715884105728, {\"a\": 9223372036854775808}]";
    StrBuf            out = {0}, many = {0};
    Arena             arena = {0};
    JsonValue         v;
    EXPECT_OK(parse(text, &v));
    json_write(&out, &v, -1);
    EXPECT_STR(strbuf_cstr(&out), text);
    for (int i = 0; i < 400; i++) strbuf_putc(&many, '7');
    EXPECT_FAILS(json_parse(&arena, "m", many.data, many.len, &v), ERR_INVALID, "too large");
    EXPECT_OK(json_parse_row(&arena, "m", many.data, many.len, &v));
    strbuf_clear(&out);
    json_write(&out, &v, -1);
    EXPECT_STR(strbuf_cstr(&out), strbuf_cstr(&many));
    strbuf_puts(&many, ".0");
    EXPECT_OK(json_parse_row(&arena, "m", many.data, many.len, &v));
    EXPECT_INT(v.type, JSON_NULL);
    strbuf_deinit(&out);
    strbuf_deinit(&many);
    arena_deinit(&arena);
}

static void positions_are_those_of_last_bytes(void)
{
    const char *text = "{\n \"a\": 123,\n \"b\": [true]\n}";
    JsonValue   v;
    EXPECT_OK(parse(text, &v));
    EXPECT_INT(text[v.members[0].value.offset], '3');
    EXPECT_INT(text[v.members[1].value.offset], ']');
    EXPECT_INT(text[v.members[1].value.items[0].offset], 'e');
    EXPECT_INT(text[v.offset], '}');
    EXPECT_INT(v.offset, strlen(text) - 1);
    int line, column;
    json_position(text, strlen(text), v.members[1].value.offset, &line, &column);
    EXPECT_INT(line, 3);
    EXPECT_INT(column, 12);
    json_position(text, strlen(text), 1000, &line, &column);
    EXPECT_INT(line, 4);
}

static void malformed_texts_are_named_with_their_place(void)
{
    JsonValue v;
    EXPECT_FAILS(parse("", &v), ERR_INVALID, "t.json:1:1: ");
    EXPECT_FAILS(parse("{\n  \"a\": 1,\n  \"a\": 2\n}", &v), ERR_INVALID, "t.json:3:8: the key \"a\" occurs twice");
    const char *bad[] = {"[1,]",
                         "{\"a\":1,}",
                         "[1] 2",
                         "NaN",
                         "[Infinity]",
                         "// c\n1",
                         "{a:1}",
                         "[01]",
                         "[1.]",
                         "[.5]",
                         "[+1]",
                         "\"a",
                         "\"\\x\"",
                         "\"\n\"",
                         "\"\xff\"",
                         "\"\xc0\xaf\"",
                         "\"\xed\xa0\x80\"",
                         "[1 2]",
                         "{\"a\" 1}",
                         "[",
                         "{",
                         "]",
                         "tru",
                         "-",
                         "\"\\u12g4\"",
                         "1e999",
                         "18e307",
                         "[-18e307]",
                         "\"a\\",
                         "\"\\ud83d\\ude0",
                         "{\"a\":}",
                         "'a'",
                         "\xef\xbb\xbf[]",
                         "{\"a\":1,\"a\":1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(bad[i], &v) != ERR_INVALID) test_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
        EXPECT_CONTAINS(status_message(), "t.json:1:");
    }
    EXPECT(json_parse(&arena, "t", "[1]\0", 4, &v) == ERR_INVALID);
    EXPECT(json_parse(&arena, "t", "[1\0]", 4, &v) == ERR_INVALID);
    EXPECT(json_parse(&arena, "t", NULL, 0, &v) == ERR_INVALID);
    EXPECT_FAILS(json_parse(&arena, "t", "\xef\xbb\xbf{}", 5, &v), ERR_INVALID, "t:1:1: a byte order mark");
}

static void nul_escapes_are_kept(void)
{
    JsonValue   v;
    const char *text;
    EXPECT_OK(parse("{\"k\":\"a\\u0000b\"}", &v));
    EXPECT_INT(v.members[0].value.string.len, 3);
    EXPECT(!json_get_str(&v, "k", &text));
}

static void lone_surrogates_become_replacement_characters(void)
{
    JsonValue v;
    EXPECT_OK(parse("[\"\\ud800\",\"\\udc00x\",\"\\ud83d\\ude00\",\"\\ud800\\ud83d\\ude00\",\"\\\\ud800\",\"\\ud800\\n\"]", &v));
    EXPECT_STR(v.items[0].string.data, "\xEF\xBF\xBD");
    EXPECT_STR(v.items[1].string.data, "\xEF\xBF\xBDx");
    EXPECT_STR(v.items[2].string.data, "\xF0\x9F\x98\x80");
    EXPECT_STR(v.items[3].string.data, "\xEF\xBF\xBD\xF0\x9F\x98\x80");
    EXPECT_STR(v.items[4].string.data, "\\ud800");
    EXPECT_STR(v.items[5].string.data, "\xEF\xBF\xBD\n");
    EXPECT_FAILS(parse("[\"\\ud800\"", &v), ERR_INVALID, "t.json:1:10");
    EXPECT_FAILS(parse("\"\\ud8", &v), ERR_INVALID, "t.json:1:");
}

static void nesting_is_bounded(void)
{
    StrBuf    text = {0};
    JsonValue v;
    for (int i = 0; i < JSON_MAX_DEPTH; i++) strbuf_putc(&text, '[');
    for (int i = 0; i < JSON_MAX_DEPTH; i++) strbuf_putc(&text, ']');
    EXPECT_OK(json_parse(&arena, "t", text.data, text.len, &v));
    StrBuf again = {0};
    json_write(&again, &v, -1);
    EXPECT_STR(again.data, text.data);
    strbuf_clear(&text);
    for (int i = 0; i < 1000000; i++) strbuf_putc(&text, '[');
    EXPECT_FAILS(json_parse(&arena, "t", text.data, text.len, &v), ERR_INVALID, "t:1:257: nested deeper than 256");
    strbuf_deinit(&text);
    strbuf_deinit(&again);
}

static void many_members_keep_order_and_find_duplicates(void)
{
    enum { COUNT = 150000 };
    StrBuf    text = {0};
    JsonValue v;
    strbuf_putc(&text, '{');
    for (int i = 0; i < COUNT; i++) strbuf_printf(&text, "%s\"token%d\":%d", i ? "," : "", i * 7, i);
    size_t len = text.len;
    strbuf_putc(&text, '}');
    EXPECT_OK(json_parse(&arena, "vocab", text.data, text.len, &v));
    EXPECT_INT(v.count, COUNT);
    EXPECT_STR(v.members[COUNT - 1].key.data, "token1049993");
    EXPECT_INT(v.members[COUNT - 1].value.integer, COUNT - 1);
    text.len = len;
    strbuf_puts(&text, ",\"token70\":1}");
    EXPECT_FAILS(json_parse(&arena, "vocab", text.data, text.len, &v), ERR_INVALID, "\"token70\" occurs twice");
    strbuf_deinit(&text);
}

/* An object of 2^17 keys that collide in an unseeded FNV-1a hash of 48 bits. Each key consists of 17 blocks, each chosen from two.
 * Comparing every key with all keys before it would take minutes. */
static void keys_made_to_collide_take_no_longer(void)
{
    enum { BLOCKS = 17, BLOCK_BYTES = 6, MOST_SECONDS = 20 };
    static const char *const blocks[BLOCKS][2] = {
        {"Sn8RP1", "spqVt4"}, {"Qf1MZq", "qdnO2t"}, {"4y04av", "TwkpgK"}, {"xmbqhh", "Xk97tm"}, {"Qu9JyR", "qsnrGW"}, {"vjb0Oq", "Vh9L1t"},
        {"hwo12J", "Hu8wRW"}, {"Ejcswt", "el41Qk"}, {"Jqf027", "jw3tZ2"}, {"Yx3G85", "9zvUD6"}, {"ivawOC", "Ip8EqF"}, {"Qf1MZq", "qdnO2t"},
        {"4y04av", "TwkpgK"}, {"xmbqhh", "Xk97tm"}, {"Qu9JyR", "qsnrGW"}, {"vjb0Oq", "Vh9L1t"}, {"hwo12J", "Hu8wRW"},
    };
    StrBuf    text = {0};
    JsonValue v;
    for (int i = 0; i < 1 << BLOCKS; i++) {
        strbuf_puts(&text, i ? ",\"" : "{\"");
        for (int b = 0; b < BLOCKS; b++) strbuf_append(&text, blocks[b][i >> b & 1], BLOCK_BYTES);
        strbuf_puts(&text, "\":0");
    }
    strbuf_putc(&text, '}');
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CPU, &(struct rlimit){MOST_SECONDS, MOST_SECONDS});
        _exit(json_parse(&arena, "vocab", text.data, text.len, &v) != OK || v.count != 1 << BLOCKS);
    }
    int state;
    EXPECT(waitpid(child, &state, 0) == child);
    EXPECT(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    strbuf_deinit(&text);
}

static void rows_may_hold_what_python_writes(void)
{
    JsonValue         v;
    static const char row[] = "{\"text\": \"a\", \"score\": NaN, \"more\": [Infinity, -Infinity, 1e999, -1]}";
    EXPECT_OK(json_parse_row(&arena, "row", row, sizeof row - 1, &v));
    EXPECT_INT(json_get(&v, "score")->type, JSON_NULL);
    const JsonValue *more = json_get(&v, "more");
    for (int i = 0; i < 3; i++) EXPECT_INT(more->items[i].type, JSON_NULL);
    EXPECT(isnan(json_get(&v, "score")->number));
    for (int i = 0; i < 3; i++) EXPECT(isinf(more->items[i].number) && (more->items[i].number < 0) == (i == 1));
    EXPECT_INT(more->items[3].integer, -1);
    EXPECT_FAILS(parse(row, &v), ERR_INVALID, "expected a value");
    EXPECT_FAILS(json_parse_row(&arena, "row", "[nan]", 5, &v), ERR_INVALID, "expected a value");
    EXPECT_FAILS(json_parse_row(&arena, "row", "[NaN1]", 6, &v), ERR_INVALID, "expected ','");
}

static void writing_then_reading_is_identity(void)
{
    const char *text = "{\"a\": [1, 2.5, -3, 1e+300, 5e-324, 0.1, 1.0, 1e-06], \"s\": \"q\\\"\\\\\\n\\r\\t\\u0001\xC3\xA9/\", "
                       "\"e\": {}, \"l\": [], \"n\": null, \"b\": [true, false]}";
    JsonValue   v;
    StrBuf      out = {0};
    EXPECT_OK(parse(text, &v));
    json_write(&out, &v, -1);
    EXPECT_STR(strbuf_cstr(&out), text);
    strbuf_clear(&out);
    json_write(&out, &v, 2);
    EXPECT_CONTAINS(strbuf_cstr(&out), "{\n  \"a\": [\n    1,\n    2.5,");
    EXPECT_CONTAINS(strbuf_cstr(&out), "\"e\": {},\n");
    JsonValue again;
    EXPECT_OK(parse(strbuf_cstr(&out), &again));
    strbuf_clear(&out);
    json_write(&out, &again, -1);
    EXPECT_STR(strbuf_cstr(&out), text);
    strbuf_deinit(&out);
}

static void odd_bytes_are_written_as_valid_utf8(void)
{
    StrBuf out = {0};
    json_write_string(&out, "a\xff\xe2\x82z\xed\xa0\x80\xf4\x90\x80\x80\xf0\x9f\x98\x80\xc3", 17);
    EXPECT_CONTAINS(out.data, "\"a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
    JsonValue v;
    EXPECT_OK(parse(out.data, &v));
    EXPECT_CONTAINS(v.string.data, "\xF0\x9F\x98\x80\xEF\xBF\xBD");
    strbuf_clear(&out);
    json_write_double(&out, NAN);
    json_write_double(&out, INFINITY);
    EXPECT_STR(out.data, "nullnull");
    strbuf_clear(&out);
    json_write_string(&out, NULL, 0);
    EXPECT_STR(out.data, "\"\"");
    strbuf_deinit(&out);
}

static void doubles_are_written_as_python_does(void)
{
    static const double values[] = {0.0, -0.0, 0.1, 100, 1e15, 1e16, 1e-4, 1.5e-5, 5e-324, 0x1p-44, 123456789012345680.0, -2.5e300};
    StrBuf              out = {0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        json_write_double(&out, values[i]);
        strbuf_putc(&out, ' ');
    }
    EXPECT_STR(out.data, "0.0 -0.0 0.1 100.0 1000000000000000.0 1e+16 0.0001 1.5e-05 5e-324 5.684341886080802e-14 1.2345678901234568e+17 "
                         "-2.5e+300 ");
    strbuf_deinit(&out);
}

static void doubles_survive_a_round_trip(void)
{
    StrBuf   out = {0};
    uint64_t state = 1;
    for (int i = 0; i < 20000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double value, back;
        memcpy(&value, &state, 8);
        if (!isfinite(value)) continue;
        strbuf_clear(&out);
        json_write_double(&out, value);
        JsonValue v;
        EXPECT_OK(parse(out.data, &v));
        EXPECT_INT(v.type, JSON_DOUBLE);
        back = v.number;
        EXPECT(memcmp(&back, &value, 8) == 0);
    }
    strbuf_deinit(&out);
}

static const char *member_order(const JsonValue *object)
{
    StrBuf out = {0};
    json_write(&out, object, -1);
    const char *text = arena_strdup(&arena, out.data);
    strbuf_deinit(&out);
    return text;
}

static void members_are_set_in_place_and_removed(void)
{
    JsonValue v, was, one = {.type = JSON_INT, .integer = 1};
    EXPECT_OK(parse("{\"a\": [], \"b\": 2, \"c\": null}", &v));
    JsonValue copy = json_copy_object(&arena, &v, 1);
    json_set(&copy, str_of("b"), one);
    json_set(&copy, str_of("d"), one);
    EXPECT_STR(member_order(&copy), "{\"a\": [], \"b\": 1, \"c\": null, \"d\": 1}");
    EXPECT(json_remove(&copy, "a", &was) && was.type == JSON_ARRAY);
    EXPECT(json_remove(&copy, "d", NULL) && !json_remove(&copy, "d", &was));
    EXPECT_STR(member_order(&copy), "{\"b\": 1, \"c\": null}");
    EXPECT_STR(member_order(&v), "{\"a\": [], \"b\": 2, \"c\": null}");
    copy = json_copy_object(&arena, NULL, 1);
    json_set(&copy, str_of("x"), one);
    EXPECT_STR(member_order(&copy), "{\"x\": 1}");
}

TEST_MAIN(TEST(values_of_every_type), TEST(numbers_beyond_int64_become_doubles), TEST(whole_numbers_keep_their_digits),
          TEST(positions_are_those_of_last_bytes), TEST(malformed_texts_are_named_with_their_place), TEST(nul_escapes_are_kept),
          TEST(lone_surrogates_become_replacement_characters), TEST(nesting_is_bounded), TEST(many_members_keep_order_and_find_duplicates),
          TEST(keys_made_to_collide_take_no_longer), TEST(rows_may_hold_what_python_writes), TEST(writing_then_reading_is_identity),
          TEST(odd_bytes_are_written_as_valid_utf8), TEST(doubles_are_written_as_python_does), TEST(doubles_survive_a_round_trip),
          TEST(members_are_set_in_place_and_removed))
