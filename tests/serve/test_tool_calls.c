/* Answers of every form, whole and cut at every byte: content and calls, in order. */
#include "serve/tool_calls.h"

#include "test.h"

/* Collects the reported parts as one text: content unchanged, {f|arguments} for each call. */
static void put_text(void *context, Str text)
{
    strbuf_append(context, text.data, text.len);
}

static void put_call(void *context, Str name, Str arguments)
{
    StrBuf *out = context;
    strbuf_puts(out, "\xC2\xAB");
    strbuf_append(out, name.data, name.len);
    strbuf_putc(out, '|');
    strbuf_append(out, arguments.data, arguments.len);
    strbuf_puts(out, "\xC2\xBB");
}

/* Reads the text in pieces: one up to `cut`, then pieces of `step` bytes. */
static void read_cut(Str text, size_t cut, size_t step, StrBuf *out)
{
    ToolReader reader;
    tool_reader_init(&reader, (ToolSink){out, put_text, put_call});
    tool_reader_push(&reader, (Str){text.data, cut});
    for (size_t at = cut; at < text.len; at += step)
        tool_reader_push(&reader, (Str){text.data + at, text.len - at < step ? text.len - at : step});
    tool_reader_end(&reader);
    tool_reader_deinit(&reader);
}

static void expect_told(const char *text, const char *want)
{
    Str whole = str_of(text);
    for (size_t cut = 0; cut <= whole.len; cut++) {
        StrBuf told = {0};
        read_cut(whole, cut, cut % 3 ? whole.len : 1, &told);
        if (!str_equal((Str){strbuf_cstr(&told), told.len}, want))
            test_fail(__FILE__, __LINE__, "\"%s\" cut at %zu: \"%s\", expected \"%s\"", text, cut, strbuf_cstr(&told), want);
        strbuf_deinit(&told);
    }
}

#define A "{\"city\": \"M\xC3\xBCnchen \\\"<tool_call>\\\" }\", \"n\": [1, {\"x\": 2.50e1}]}"

static void calls_of_hermes_are_read(void)
{
    expect_told("<tool_call>\n{\"name\": \"f\", \"arguments\": " A "}\n</tool_call>", "\xC2\xAB"
                                                                                      "f|" A "\xC2\xBB");
    expect_told("Let me see.\n<tool_call>{\"arguments\":" A
                " , \"name\":\"g.h-1\"}</tool_call>\n<tool_call>\n{\"name\":\"f\"}\n</tool_call>\n",
                "Let me see.\xC2\xAB"
                "g.h-1|" A "\xC2\xBB\xC2\xAB"
                "f|{}\xC2\xBB");
    expect_told("<tool_call>{\"name\":\"f\",\"arguments\":{}}", "\xC2\xAB"
                                                                "f|{}\xC2\xBB");
    expect_told("<tool_call>{\"name\":\"f\",\"arguments\":{}} then <", "\xC2\xAB"
                                                                       "f|{}\xC2\xBB"
                                                                       "then <");
    expect_told("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_", "\xC2\xAB"
                                                                       "f|{}\xC2\xBB</tool_");
    expect_told("<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", "\xC2\xAB"
                                                                                           "f|{\"a\":1}\xC2\xBB");
    expect_told("<tool_call>{\"name\":\"f\\u00e9\",\"extra\":[\"]\"],\"parameters\":{\"a\" : 1 }}</tool_call> done",
                "\xC2\xAB"
                "f\xC3\xA9|{\"a\" : 1 }\xC2\xBB"
                "done");
}

static void calls_of_mistral_are_read(void)
{
    expect_told("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": " A "}, {\"name\": \"g\", \"arguments\": {}, \"id\": \"123456789\"}]",
                "\xC2\xAB"
                "f|" A "\xC2\xBB\xC2\xAB"
                "g|{}\xC2\xBB");
    expect_told("One moment. [TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{}}] ", "One moment.\xC2\xAB"
                                                                                 "f|{}\xC2\xBB");
    expect_told("[TOOL_CALLS]get_it[ARGS]" A "[TOOL_CALLS]g[CALL_ID]a1b2c3d4e[ARGS]{ }", "\xC2\xAB"
                                                                                         "get_it|" A "\xC2\xBB\xC2\xAB"
                                                                                         "g|{ }\xC2\xBB");
    expect_told("[TOOL_CALLS]{\"name\":\"f\",\"arguments\":{}}", "\xC2\xAB"
                                                                 "f|{}\xC2\xBB");
    expect_told(" [{\"name\": \"f\", \"arguments\": {}}]\n", "\xC2\xAB"
                                                             "f|{}\xC2\xBB");
}

static void calls_of_llama_are_read(void)
{
    expect_told("{\"name\": \"f\", \"parameters\": " A "}", "\xC2\xAB"
                                                            "f|" A "\xC2\xBB");
    expect_told("<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "\xC2\xAB"
                                                                                               "f|{}\xC2\xBB");
    expect_told("\n{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}\n{\"name\": \"h\", \"parameters\": {}}\n",
                "\xC2\xAB"
                "f|{}\xC2\xBB\xC2\xAB"
                "g|{}\xC2\xBB\xC2\xAB"
                "h|{}\xC2\xBB");
}

/* Each text is reported unchanged. */
static void what_is_no_call_stays_text(void)
{
    static const char *const texts[] = {
        "",
        " \n ",
        "Plain text, [1] and <b>.\n",
        "{\"answer\": 42}",
        "{\"name\": \"Ada\", \"age\": 36}",
        "{\"name\": \"Ada\"}",
        "{\"name\": \"f\", \"parameters\": {}} is what I would call",
        "{\"name\": \"f\", \"parameters\": {}",
        "[{\"name\": \"f\", \"arguments\": {}}, 1]",
        "[{\"name\": \"f\", \"arguments\": {}}] it is",
        "[1, 2]",
        "<tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\"}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argument\\u0073\": {}}</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>",
        "a <tool_call> b",
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS]f{\"a\":1}",
        "[TOOL_CALLS]f[ARGS][1]",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]{\"a\": 1, \"a\": 2}",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}; 1]",
        "<|python_tag|>print(1)",
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {}} more",
        "1 <tool_cal",
        "x [TOOL",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) expect_told(texts[i], texts[i]);
}

static void a_call_behind_a_broken_one_is_read(void)
{
    expect_told("<tool_call>{\"name\": </tool_call> <tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>{\"name\": </tool_call>\xC2\xAB"
                                                                                              "f|{}\xC2\xBB");
    expect_told("<tool_call><tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>\xC2\xAB"
                                                                      "f|{}\xC2\xBB");
    expect_told("{\"x\": 1} <tool_call>{\"name\":\"f\"}</tool_call>", "{\"x\": 1}\xC2\xAB"
                                                                      "f|{}\xC2\xBB");
}

/* Text that can't be a call is reported at once; a call as soon as it is whole. */
static void nothing_is_held_back_for_long(void)
{
    static const char *const pieces[] = {
        "Hello", " world", "<too", "ls>", "{\"a\"", "\n<tool_call>{\"name\":\"f\",", "\"arguments\":{}}</tool_call>", " ok"};
    static const char *const told[] = {"Hello",
                                       "Hello world",
                                       "Hello world",
                                       "Hello world<tools>",
                                       "Hello world<tools>{\"a\"",
                                       "Hello world<tools>{\"a\"",
                                       "Hello world<tools>{\"a\"\xC2\xAB"
                                       "f|{}\xC2\xBB",
                                       "Hello world<tools>{\"a\"\xC2\xAB"
                                       "f|{}\xC2\xBB"
                                       "ok"};
    StrBuf                   out = {0};
    ToolReader               reader;
    tool_reader_init(&reader, (ToolSink){&out, put_text, put_call});
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        tool_reader_push(&reader, str_of(pieces[i]));
        EXPECT_STR(strbuf_cstr(&out), told[i]);
    }
    tool_reader_end(&reader);
    EXPECT_STR(strbuf_cstr(&out), told[7]);
    strbuf_clear(&out);
    tool_reader_deinit(&reader);
    tool_reader_init(&reader, (ToolSink){&out, put_text, put_call});
    tool_reader_push(&reader, str_of("{\"title\""));
    EXPECT_STR(strbuf_cstr(&out), "{\"title\"");
    tool_reader_deinit(&reader);
    strbuf_deinit(&out);
}

/* Reading a long call byte by byte takes time about proportional to its length. */
static void a_long_call_is_read(void)
{
    StrBuf text = {0}, told = {0};
    strbuf_puts(&text, "<tool_call>{\"name\":\"f\",\"arguments\":{\"code\":\"");
    for (int i = 0; i < 4000; i++) strbuf_puts(&text, "} ]<tool_call>");
    strbuf_puts(&text, "\"}}</tool_call>");
    read_cut((Str){text.data, text.len}, 0, 1, &told);
    EXPECT_INT(told.len, text.len - strlen("<tool_call>{\"name\":\"f\",\"arguments\":}</tool_call>") + 6);
    strbuf_clear(&told);
    text.len -= strlen("\"}}</tool_call>");
    read_cut((Str){text.data, text.len}, 0, 1, &told);
    EXPECT(told.len == text.len && memcmp(told.data, text.data, text.len) == 0);
    strbuf_deinit(&text);
    strbuf_deinit(&told);
}

TEST_MAIN(TEST(calls_of_hermes_are_read), TEST(calls_of_mistral_are_read), TEST(calls_of_llama_are_read), TEST(what_is_no_call_stays_text),
          TEST(a_call_behind_a_broken_one_is_read), TEST(nothing_is_held_back_for_long), TEST(a_long_call_is_read))
