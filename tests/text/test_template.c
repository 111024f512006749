/* The chat template engine: Jinja2's own results (tests/fixtures/template_cases.json and template_families.json, written by
 * tests/oracle/template_random.py), texts of real models, limits, and the folder's template. */
#include "text/template/memo.h"

#include "files/file.h"
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

static Status load_json(Arena *arena, const char *path, JsonValue *out)
{
    Str text;
    TRY(file_read(arena, path, 64 << 20, &text));
    return json_parse(arena, path, text.data, text.len, out);
}

/* Renders the source with an object of variables. */
static Status render(const char *source, size_t len, const JsonValue *variables, TemplateOutput *out)
{
    Template     *tmpl;
    TemplateInput input = {.variables = variables, .now_unix = 1700000000};
    *out = (TemplateOutput){0};
    TRY(template_parse("t", source, len, &tmpl));
    Status status = template_render(tmpl, &input, out);
    template_destroy(tmpl);
    return status;
}

static Status render_text(const char *source, TemplateOutput *out)
{
    return render(source, strlen(source), NULL, out);
}

#define EXPECT_RENDERS(source, want) \
    do { \
        TemplateOutput out_; \
        EXPECT_OK(render_text((source), &out_)); \
        EXPECT_STR(strbuf_cstr(&out_.text), (want)); \
        template_output_deinit(&out_); \
    } while (0)
#define EXPECT_REFUSED(source, part) \
    do { \
        TemplateOutput out_; \
        EXPECT_FAILS(render_text((source), &out_), ERR_INVALID, (part)); \
    } while (0)

/* expected NULL: rendering must fail. */
static void check(const char *label, Str source, const JsonValue *variables, const JsonValue *expected)
{
    TemplateOutput out;
    Status         status = render(source.data, source.len, variables, &out);
    bool           wants_text = expected && expected->type == JSON_STRING;
    if ((status == OK) != wants_text) {
        test_fail(__FILE__, __LINE__, "%s: %s", label, status == OK ? "renders, an error was expected" : status_message());
    } else if (wants_text &&
               (out.text.len != expected->string.len || memcmp(strbuf_cstr(&out.text), expected->string.data, out.text.len) != 0)) {
        test_fail(__FILE__, __LINE__, "%s gives\n  %s\nexpected\n  %s", label, strbuf_cstr(&out.text), expected->string.data);
    }
    if (status != OK && !strchr(status_message(), ':')) test_fail(__FILE__, __LINE__, "%s: no line in: %s", label, status_message());
    template_output_deinit(&out);
}

static void snippets_give_what_jinja_gives(void)
{
    Arena     arena = {0};
    JsonValue fixture;
    EXPECT_OK(load_json(&arena, "tests/fixtures/template_cases.json", &fixture));
    const JsonValue *cases = json_get(&fixture, "cases");
    EXPECT(cases && cases->count > 300);
    for (uint32_t i = 0; cases && i < cases->count; i++) {
        const JsonValue *source = json_get(&cases->items[i], "template");
        check(source->string.data, source->string, json_get(&fixture, "context"), json_get(&cases->items[i], "text"));
    }
    arena_deinit(&arena);
}

static void families_give_what_jinja_gives(void)
{
    Arena     arena = {0};
    JsonValue fixture;
    EXPECT_OK(load_json(&arena, "tests/fixtures/template_families.json", &fixture));
    const JsonValue *cases = json_get(&fixture, "cases"), *templates = json_get(&fixture, "templates");
    EXPECT(cases && cases->count >= 20);
    for (uint32_t i = 0; cases && i < cases->count; i++) {
        const char *name = json_get(&cases->items[i], "template")->string.data;
        check(arena_printf(&arena, "%s, case %u", name, i), json_get(templates, name)->string, json_get(&cases->items[i], "context"),
              json_get(&cases->items[i], "text"));
    }
    arena_deinit(&arena);
}

static void check_cases(const char *dir, const char *file)
{
    Arena     arena = {0};
    JsonValue cases;
    EXPECT_OK(load_json(&arena, arena_printf(&arena, "%s/data/chat/%s", dir, file), &cases));
    EXPECT(cases.count > 0);
    for (uint32_t i = 0; i < cases.count; i++) {
        const JsonValue *row = &cases.items[i];
        check(json_get(row, "name")->string.data, json_get(row, "template")->string, row, json_get(row, "expected"));
    }
    arena_deinit(&arena);
}

static void published_cases_agree(void)
{
    const char *dir = test_shared_dir();
    if (!dir) SKIP("no shared data");
    check_cases(dir, "cases_llama_cpp.json");
    check_cases(dir, "cases_onnxruntime.json");
}

static void real_templates_agree(void)
{
    const char *dir = test_shared_dir();
    Arena       arena = {0};
    JsonValue   cases;
    if (!dir) SKIP("no shared data");
    EXPECT_OK(load_json(&arena, arena_printf(&arena, "%s/data/chat/goldens_jinja2.json", dir), &cases));
    EXPECT_INT(cases.count, 99);
    for (uint32_t i = 0; i < cases.count; i++) {
        const JsonValue *row = &cases.items[i];
        const char      *name = json_get(row, "template")->string.data;
        Str              source;
        EXPECT_OK(file_read(&arena, arena_printf(&arena, "%s/data/chat/templates/%s.jinja", dir, name), 1 << 20, &source));
        check(arena_printf(&arena, "%s, %s", name, json_get(row, "title")->string.data), source, json_get(row, "args"),
              json_get(row, "expected"));
    }
    arena_deinit(&arena);
}

static void messages_and_variables_reach_the_template(void)
{
    static const char source[] = "{{ messages[0].role }} {{ tools }} {{ documents }} {{ add_generation_prompt }} {{ x }}";
    static const char json[] = "[{\"role\": \"user\"}]", variables[] = "{\"x\": 5}";
    Arena             arena = {0};
    JsonValue         messages, more;
    Template         *tmpl;
    TemplateOutput    out;
    EXPECT_OK(json_parse(&arena, "m", json, strlen(json), &messages));
    EXPECT_OK(json_parse(&arena, "v", variables, strlen(variables), &more));
    EXPECT_OK(template_parse("t", source, strlen(source), &tmpl));
    TemplateInput input = {.messages = &messages, .variables = &more, .add_generation_prompt = true};
    EXPECT_OK(template_render(tmpl, &input, &out));
    EXPECT_STR(strbuf_cstr(&out.text), "user None None True 5");
    template_output_deinit(&out);
    template_destroy(tmpl);
    arena_deinit(&arena);
}

static void generation_marks_its_bytes(void)
{
    TemplateOutput out;
    EXPECT_OK(render_text("ab{% for i in [1, 2] %}<{% generation %}é{{ i }}{% endgeneration %}>{% endfor %}", &out));
    EXPECT_STR(strbuf_cstr(&out.text), "ab<é1><é2>");
    EXPECT_INT(out.num_spans, 2);
    if (out.num_spans == 2) {
        EXPECT_INT(out.spans[0].begin, 3);
        EXPECT_INT(out.spans[0].end, 6);
        EXPECT_INT(out.spans[1].begin, 8);
        EXPECT_INT(out.spans[1].end, 11);
    }
    template_output_deinit(&out);
}

static void captured_generation_marks_nothing(void)
{
    TemplateOutput out;
    EXPECT_OK(render_text("{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}", &out));
    EXPECT_INT(out.num_spans, 0);
    template_output_deinit(&out);
}

static void errors_name_the_line(void)
{
    EXPECT_REFUSED("a\n{{ 1 +\n }}", "t:3: unexpected '}}'");
    EXPECT_REFUSED("\n\n{{ foo.bar }}", "t:3: 'foo' is undefined");
    EXPECT_REFUSED("\n{{ raise_exception('no ' ~ 1) }}", "t:2: no 1");
    EXPECT_REFUSED("{% if x %}\n", "endif");
    EXPECT_REFUSED("{% for x in [] %}{% endif %}", "t:1: unknown tag 'endif'");
    EXPECT_REFUSED("\xff", "UTF-8");
    TemplateOutput out;
    EXPECT_FAILS(render_text("\n{{ 1|uper }}", &out), ERR_UNSUPPORTED, "t:2: no filter named 'uper'; did you mean 'upper'?");
    EXPECT_FAILS(render_text("{% include 'x' %}", &out), ERR_UNSUPPORTED, "include");
    EXPECT_FAILS(render_text("\n{{ 'x'|wordwrap }}", &out), ERR_UNSUPPORTED, "t:2: the filter 'wordwrap' is not supported");
    EXPECT_REFUSED("\n{{ 'x'.encode() }}", "t:2: the method encode() is not supported");
    EXPECT_REFUSED("\n{{ {}.keys() - [] }}", "t:2: sets, as of a dict's keys, are not supported");
}

/* A filter of a block sees the names inside the block, even if nothing else mentions them. */
static void filters_of_blocks_see_their_names(void)
{
    EXPECT_RENDERS("{% set y|replace('a', x) %}{% set x = 'W' %}abc{% endset %}{{ y }}", "Wbc");
    EXPECT_RENDERS("{% set y|replace('a', 'b' if x is defined else 'c') %}abc{% endset %}{{ y }}", "cbc");
    EXPECT_RENDERS("{% filter replace('a', 'b' if x is defined else 'c') %}abc{% endfilter %}", "cbc");
}

/* Features of Jinja and Python that chat templates don't use are refused by name, before the first render if possible. */
static void what_is_missing_is_named(void)
{
    static const char *const filters[] = {"attr('x')", "batch(2)", "center",    "filesizeformat", "groupby('x')",
                                          "pprint",    "random",   "slice(2)",  "striptags",      "truncate(3)",
                                          "urlencode", "urlize",   "wordcount", "wordwrap",       "xmlattr"};
    static const char *const expressions[] = {
        "'a'.center(5)",
        "'a'.zfill(5)",
        "'a'.casefold()",
        "'a'.isnumeric()",
        "'ab'.find('b', 1)",
        "'ab'.startswith('b', 1)",
        "'a b'.rsplit(none, 1)",
        "'{:^5}'.format('a')",
        "'{:,}'.format(5)",
        "'{!a}'.format('a')",
        "'%c' % 65",
        "'%*d' % (5, 3)",
        "7.5 // 2",
        "7.5 % 2",
        "'ff'|int(0, 16)",
        "'1_0'|int",
        "15|round(-1)",
        "[]|sort(attribute='a,b')",
        "cycler(1)",
        "joiner()",
        "lipsum()",
        "range(5).start",
        "range(3) == range(3)",
        "{}.keys() == {}.keys()",
        "{}.copy()",
        "5 .real",
        "'%(a)s' % {'a': 1}",
        "'%(a)s'|format(a=1)",
        "1.5|round(0, 'floor')",
        "'a'.swapcase()",
        "'a'.isalpha()",
        "'a'.islower()",
        "'a'.rfind('b')",
        "'a'.rpartition('b')",
        "'\u00b2'.isdigit()",
        "'\u0663'|int",
    };
    static const char *const unread[] = {"2 ** 3",       "1_000",        "0x1F",           "0b1",      "007", "1.5_0",
                                         "'a' is lower", "'a' is upper", "'a' is escaped", "[1][0, 1]"};
    TemplateOutput           out;
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++) {
        char source[80];
        snprintf(source, sizeof source, "\n{{ %s }}", unread[i]);
        EXPECT_FAILS(render_text(source, &out), ERR_UNSUPPORTED, "supported");
    }
    static const char *const textless[] = {"range(3)", "{}.items()", "namespace(a=1)", "[1]|map('string')", "range"};
    for (size_t i = 0; i < sizeof textless / sizeof textless[0]; i++) {
        char source[80];
        snprintf(source, sizeof source, "\n{{ %s }}", textless[i]);
        EXPECT_FAILS(render_text(source, &out), ERR_INVALID, " has no text");
    }
    EXPECT_FAILS(render_text("\n{% print 1 %}", &out), ERR_UNSUPPORTED, "t:2: the tag 'print' is not supported");
    EXPECT_REFUSED("{{ 'a\\\u00e9' }}", "a backslash before a character beyond ASCII is not supported");
    EXPECT_FAILS(render_text("{{ \u00e9 }}", &out), ERR_INVALID, "names of characters beyond ASCII are not supported");
    EXPECT_REFUSED("{% for i in [1] %}\n{% for j in loop %}{% endfor %}{% endfor %}", "t:2: iterating over loop is not supported");
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        char source[80], name[80];
        snprintf(source, sizeof source, "\n{{ 'x'|%s }}", filters[i]);
        snprintf(name, sizeof name, "t:2: the filter '%.*s' is not supported", (int)strcspn(filters[i], "("), filters[i]);
        EXPECT_FAILS(render_text(source, &out), ERR_UNSUPPORTED, name);
    }
    for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++) {
        char source[80];
        snprintf(source, sizeof source, "\n{{ %s }}", expressions[i]);
        EXPECT_FAILS(render_text(source, &out), ERR_INVALID, "not supported");
    }
}

static void bombs_are_errors(void)
{
    EXPECT_REFUSED("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps");
    EXPECT_REFUSED("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested");
    EXPECT_REFUSED("{{ 'x' * 100000000 }}", "grows beyond");
    EXPECT_REFUSED("{{ range(100001) }}", "range");
    EXPECT_REFUSED("{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "t:1:");
    EXPECT_REFUSED("{% set ns = namespace(l=[]) %}{% for i in range(2000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}", "nested");
    EXPECT_REFUSED("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "has no text");
    EXPECT_REFUSED("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "t:1:");
    EXPECT_REFUSED("{{ 9223372036854775807 + 1 }}", "64 bits");
    EXPECT_REFUSED("{{ '%1000000000d' % 1 }}", "grows beyond");
    EXPECT_REFUSED("{{ '{:1000000000}'.format(1) }}", "grows beyond");
    EXPECT_REFUSED("{{ '%1000000000s' % 'x' }}", "grows beyond");
    EXPECT_REFUSED("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested");
    EXPECT_REFUSED("{% set ns = namespace(g=[1]) %}{% for i in range(90000) %}{% set ns.g = ns.g|map('int') %}{% endfor %}{{ ns.g|list }}",
                   "nested");
    EXPECT_REFUSED("{% set ns = namespace(g=[1]) %}{% for i in range(90000) %}{% set ns.g = ns.g|unique %}{% endfor %}{{ ns.g|list }}",
                   "nested");
}

/* The JSON reader turns integers beyond 64 bits into doubles: printing them as text would be wrong. */
static void large_integers_are_not_rounded(void)
{
    static const char        json[] = "{\"big\": 18446744073709551615, \"real\": 18446744073709551615.0, \"zero\": -0}";
    static const char *const refused[] = {
        "{{ big }}",        "{{ {'maximum': big}|tojson }}", "{{ big + 1 }}", "{{ -big }}",
        "{{ '%d' % big }}", "{{ '{:,}'.format(big) }}",      "{{ big|abs }}", "{{ big|round }}",
        "{{ big|int }}",
    };
    Arena          arena = {0};
    JsonValue      variables;
    TemplateOutput out;
    EXPECT_OK(json_parse(&arena, "v", json, strlen(json), &variables));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        EXPECT_FAILS(render(refused[i], strlen(refused[i]), &variables, &out), ERR_INVALID, "64 bits");
    static const char fine[] = "{{ big is integer }} {{ big is float }} {{ big > 5 }} {{ real }} {{ zero }}";
    EXPECT_OK(render(fine, strlen(fine), &variables, &out));
    EXPECT_STR(strbuf_cstr(&out.text), "True False True 1.8446744073709552e+19 0");
    template_output_deinit(&out);
    arena_deinit(&arena);
}

static void deep_templates_are_errors(void)
{
    StrBuf         source = {0};
    TemplateOutput out;
    for (int i = 0; i < 100000; i++) strbuf_puts(&source, "{% if true %}");
    EXPECT_FAILS(render(source.data, source.len, NULL, &out), ERR_INVALID, "nested deeper");
    strbuf_clear(&source);
    strbuf_puts(&source, "{{ ");
    for (int i = 0; i < 100000; i++) strbuf_putc(&source, '(');
    EXPECT_FAILS(render(source.data, source.len, NULL, &out), ERR_INVALID, "nested deeper");
    strbuf_clear(&source);
    strbuf_puts(&source, "{{ 1");
    for (int i = 0; i < 100000; i++) strbuf_puts(&source, " + 1");
    strbuf_puts(&source, " }}");
    EXPECT_FAILS(render(source.data, source.len, NULL, &out), ERR_INVALID, "nested deeper");
    strbuf_deinit(&source);
}

static void time_is_the_one_given(void)
{
    TemplateOutput out;
    EXPECT_OK(render_text("{{ strftime_now('%Y') }}", &out));
    EXPECT_STR(strbuf_cstr(&out.text), "2023");
    template_output_deinit(&out);
    EXPECT_REFUSED("{{ strftime_now(5) }}", "format");
    EXPECT_REFUSED("{{ strftime_now('%99999Y') }}", "longer");
}

static void time_of_the_clock_has_microseconds(void)
{
    static const char source[] = "{{ strftime_now('%f') }}";
    Template         *tmpl;
    TemplateInput     input = {0};
    TemplateOutput    out = {0};
    EXPECT_OK(template_parse("t", source, strlen(source), &tmpl));
    EXPECT_OK(template_render(tmpl, &input, &out));
    EXPECT_INT(out.text.len, 6);
    EXPECT_INT(strspn(strbuf_cstr(&out.text), "0123456789"), 6);
    template_output_deinit(&out);
    template_destroy(tmpl);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    EXPECT_OK(file_write_atomic(path, text, strlen(text)));
}

static void expect_folder(const char *dir, const char *which, bool has_tools, const char *want)
{
    Template      *tmpl = NULL;
    TemplateOutput out = {0};
    TemplateInput  input = {0};
    EXPECT_OK(template_load(dir, which, has_tools, &tmpl));
    if (!tmpl) {
        EXPECT(want == NULL);
        return;
    }
    EXPECT_OK(template_render(tmpl, &input, &out));
    EXPECT_STR(strbuf_cstr(&out.text), want);
    template_output_deinit(&out);
    template_destroy(tmpl);
}

static void folder_template_is_found(void)
{
    char      dir[] = "/tmp/template_XXXXXX";
    Template *tmpl;
    if (!mkdtemp(dir)) SKIP("no temporary folder");
    expect_folder(dir, NULL, false, NULL);
    write_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null}");
    expect_folder(dir, NULL, false, NULL);
    write_file(dir, "tokenizer_config.json",
               "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, "
               "\"chat_template\": \"{{ bos_token }}c{{ eos_token }}{{ pad_token is defined }}\"}");
    expect_folder(dir, NULL, false, "<s>c</s>False");
    EXPECT_FAILS(template_load(dir, "rag", false, &tmpl), ERR_NOT_FOUND, "rag");
    write_file(dir, "chat_template.jinja", "{{ eos_token }}file\n");
    expect_folder(dir, NULL, false, "</s>file");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}, "
               "{\"name\": \"tool_use\", \"template\": \"t\"}, {\"name\": \"rag\", \"template\": \"r\"}]}");
    expect_folder(dir, NULL, true, "file");
    expect_folder(dir, "rag", false, "r");
    char path[256];
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    EXPECT_OK(file_remove_tree(path));
    expect_folder(dir, NULL, false, "d");
    expect_folder(dir, NULL, true, "t");
    expect_folder(dir, "default", true, "d");
    EXPECT_FAILS(template_load(dir, "nope", false, &tmpl), ERR_NOT_FOUND, "nope");
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": 5}");
    EXPECT_FAILS(template_load(dir, NULL, false, &tmpl), ERR_INVALID, "expected a text, a list or an object");
    EXPECT_OK(file_remove_tree(dir));
}

/* The same tokens as in transformers 5. */
static void folder_tokens_are_found(void)
{
    static const char show[] = "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ add_bos_token is defined }}";
    char              dir[] = "/tmp/template_XXXXXX";
    Template         *before, *after;
    if (!mkdtemp(dir)) SKIP("no temporary folder");
    write_file(dir, "chat_template.jinja", show);
    write_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"image_token\": \"<i>\", \"add_bos_token\": true}");
    expect_folder(dir, NULL, false, "<s><i>False");
    EXPECT_OK(template_load(dir, NULL, false, &before));
    write_file(dir, "tokenizer_config.json",
               "{\"bos_token\": \"<s>\", \"extra_special_tokens\": {\"image_token\": {\"content\": \"<x>\"}, \"n\": 5}}");
    expect_folder(dir, NULL, false, "<s><x>False");
    write_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"extra_special_tokens\": [\"<x>\"]}");
    expect_folder(dir, NULL, false, "<s>False");
    write_file(dir, "special_tokens_map.json", "{\"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": \"<e>\"}");
    expect_folder(dir, NULL, false, "<b><e>False");
    EXPECT_OK(template_load(dir, NULL, false, &after));
    EXPECT(template_hash(before) != template_hash(after));
    template_destroy(before);
    template_destroy(after);
    write_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"added_tokens_decoder\": {}}");
    expect_folder(dir, NULL, false, "<s>False");
    write_file(dir, "tokenizer_config.json", "{}");
    write_file(dir, "special_tokens_map.json", "{");
    EXPECT_FAILS(template_load(dir, NULL, false, &after), ERR_INVALID, "special_tokens_map.json");
    EXPECT_OK(file_remove_tree(dir));
}

static void additional_templates_are_found(void)
{
    char dir[] = "/tmp/template_XXXXXX", path[128];
    if (!mkdtemp(dir)) SKIP("no temporary folder");
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": {\"default\": \"d\", \"tool_use\": \"t\"}}");
    expect_folder(dir, NULL, false, "d");
    expect_folder(dir, NULL, true, "t");
    write_file(dir, "chat_template.jinja", "file");
    expect_folder(dir, NULL, true, "file");
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    EXPECT_INT(mkdir(path, 0777), 0);
    write_file(path, "tool_use.jinja", "tools");
    write_file(path, "rag.jinja", "rag");
    expect_folder(dir, NULL, false, "file");
    expect_folder(dir, NULL, true, "tools");
    expect_folder(dir, "rag", true, "rag");
    expect_folder(dir, "default", true, "file");
    EXPECT_OK(file_remove_tree(dir));
}

/* Expects "message: text" for each turn, "~" if the template also looked at other messages. */
static void expect_turns(const char *source, const char *want)
{
    static const char said[] =
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}]";
    Template      *tmpl;
    TemplateOutput out;
    Arena          arena = {0};
    JsonValue      messages;
    StrBuf         got = {0};
    EXPECT_OK(json_parse(&arena, "messages", said, strlen(said), &messages));
    EXPECT_OK(template_parse("t", source, strlen(source), &tmpl));
    EXPECT_OK(template_render(tmpl, &(TemplateInput){.messages = &messages, .marks_turns = true}, &out));
    for (size_t i = 0; i < out.num_turns; i++) {
        TemplateSpan span = out.turns[i].span;
        strbuf_printf(&got, "%s%u: %.*s%s", i ? ", " : "", out.turns[i].message, (int)(span.end - span.begin), out.text.data + span.begin,
                      out.turns[i].looks_around ? "~" : "");
    }
    EXPECT_STR(strbuf_cstr(&got), want);
    template_output_deinit(&out);
    template_destroy(tmpl);
    strbuf_deinit(&got);
    arena_deinit(&arena);
}

static void turns_are_what_loops_print(void)
{
    expect_turns("<{% for m in messages %}[{{ m.content }}]{% endfor %}>", "0: [a], 1: [b], 2: [c]");
    expect_turns("{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% endfor %}", "0: 1a, 2: 2c");
    expect_turns("{% for m in messages[1:] %}{% if loop.last or loop.nextitem.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}",
                 "1: b, 2: c");
    expect_turns("{% for m in messages %}{{ m.content }}{{ loop.nextitem.content if not loop.last }}{% endfor %}", "0: ab~, 1: bc~, 2: c");
    expect_turns("{% for m in messages %}{% for n in messages[loop.index:] %}{{ n.content }}{% endfor %}{% endfor %}", "0: bc~, 1: c~");
    expect_turns("{% for m in messages %}{{ m.content }}{{ messages[0] | tojson }}{% endfor %}",
                 "0: a{\"role\": \"user\", \"content\": \"a\"}, 1: b{\"role\": \"user\", \"content\": \"a\"}~, "
                 "2: c{\"role\": \"user\", \"content\": \"a\"}~");
    expect_turns("{% for m in messages %}{{ dict(messages[0]).content }}{% endfor %}", "0: a, 1: a~, 2: a~");
    expect_turns("{% for m in messages %}{{ messages | map(attribute='content') | first }}{% endfor %}", "0: a, 1: a~, 2: a~");
    expect_turns("{% macro all() %}{% for m in messages %}{{ m.content }}{% endfor %}{% endmacro %}x{{ all() }}", "");
    expect_turns("{% set s %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ s }}", "");
    expect_turns("{% macro one(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ one(m) }}{% endfor %}", "0: a, 1: b, 2: c");
}

enum { LONG = 1 << 18, MANY = 1 << 14 };

/* a and b: equal lists of MANY numbers; d and e: equal dicts of 4096 keys; text and same: LONG bytes; spaces. */
static JsonValue long_variables(Arena *arena)
{
    StrBuf json = {0};
    for (const char *name = "ab"; *name; name++) {
        strbuf_printf(&json, "%s\"%c\": [", json.len ? ", " : "{", *name);
        for (int i = 0; i < MANY; i++) strbuf_printf(&json, "%s%d", i ? "," : "", i);
        strbuf_putc(&json, ']');
    }
    for (const char *name = "de"; *name; name++) {
        strbuf_printf(&json, ", \"%c\": {", *name);
        for (int i = 0; i < 4096; i++) strbuf_printf(&json, "%s\"k%d\": %d", i ? "," : "", i, i);
        strbuf_putc(&json, '}');
    }
    strbuf_puts(&json, ", \"text\": \"");
    for (int i = 0; i < LONG; i++) strbuf_putc(&json, 'x');
    strbuf_puts(&json, "\", \"same\": \"");
    for (int i = 0; i < LONG; i++) strbuf_putc(&json, 'x');
    strbuf_puts(&json, "\", \"spaces\": \"");
    for (int i = 0; i < LONG; i++) strbuf_putc(&json, ' ');
    strbuf_puts(&json, "\"}");
    const char *text = arena_strndup(arena, json.data, json.len);
    JsonValue   value;
    EXPECT_OK(json_parse(arena, "variables", text, json.len, &value));
    strbuf_deinit(&json);
    return value;
}

static void expect_too_many_steps(const char *source, const JsonValue *variables)
{
    Template      *tmpl;
    TemplateOutput out;
    TemplateInput  input = {.variables = variables, .max_steps = 100 * 1000};
    EXPECT_OK(template_parse("t", source, strlen(source), &tmpl));
    if (template_render(tmpl, &input, &out) == OK || !strstr(status_message(), "more than 100000 steps"))
        test_fail(__FILE__, __LINE__, "%.200s: not too many steps: %s", source, status_message());
    template_output_deinit(&out);
    template_destroy(tmpl);
}

/* Slow operations count as more steps, so that rendering ends in bounded time. */
static void every_operation_is_counted(void)
{
    static const char *const operations[] = {
        "a == b",
        "a != b",
        "[a] == [b]",
        "a < b",
        "d == e",
        "(1, a) in [(1, b)]",
        "text == same ~ ''",
        "'y' in text",
        "text.find('y')",
        "text.index('x') + text.count('x')",
        "text.startswith(same)",
        "text.endswith(('y', same))",
        "text.removeprefix(same)",
        "text.removesuffix(same)",
        "text.strip('x')",
        "spaces.strip()",
        "spaces | trim",
        "spaces.split()",
        "text.split('y')",
        "text.rsplit('y')",
        "text.rsplit(same, 1)",
        "text.splitlines()",
        "text.partition('y')",
        "text.replace('x', '')",
        "text.isdigit()",
        "spaces.isspace()",
        "text.upper()",
        "text | title",
        "text | length",
        "text[7]",
        "spaces | int",
        "spaces | float",
        "a | map(attribute=text) | first",
        "a | sort | first",
        "text | tojson",
        "a | list",
        "a + b",
        "text ~ same",
        "'%s' % a",
        "a | join",
        "a.count(-1)",
        "a.index(16383)",
        "a | unique | list",
        "-1 in a",
    };
    Arena     arena = {0};
    JsonValue variables = long_variables(&arena);
    StrBuf    source = {0};
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        strbuf_clear(&source);
        strbuf_printf(&source, "{%% for i in range(500) %%}{%% set _ = %s %%}{%% endfor %%}", operations[i]);
        expect_too_many_steps(source.data, &variables);
    }
    expect_too_many_steps("{% macro f() %}{{ kwargs.k9 }}{% endmacro %}{% for i in range(500) %}{% set _ = f(**d) %}{% endfor %}",
                          &variables);
    strbuf_clear(&source); /* the names are looked up */
    for (int i = 0; i < 4000; i++) strbuf_printf(&source, "{%% set v%d = 0 %%}", i);
    strbuf_puts(&source, "{% for i in range(3000) %}{% set _ = v3999 %}{% endfor %}");
    expect_too_many_steps(source.data, &variables);
    strbuf_deinit(&source);
    arena_deinit(&arena);
}

static void expect_rendered(const Template *tmpl, const JsonValue *tools, const char *want)
{
    TemplateOutput out;
    EXPECT_OK(template_render(tmpl, &(TemplateInput){.tools = tools}, &out));
    EXPECT_STR(strbuf_cstr(&out.text), want);
    template_output_deinit(&out);
}

static void tools_template_comes_along(void)
{
    char           dir[] = "/tmp/template_XXXXXX", path[128];
    JsonValue      tools = {.type = JSON_ARRAY};
    Template      *plain, *both;
    TemplateOutput out;
    if (!mkdtemp(dir)) SKIP("no temporary folder");
    write_file(dir, "tokenizer_config.json", "{\"eos_token\": \"<e>\", \"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}]}");
    EXPECT_OK(template_load(dir, NULL, false, &plain));
    expect_rendered(plain, &tools, "d");
    EXPECT(!template_with_tools(plain));
    write_file(dir, "tokenizer_config.json",
               "{\"eos_token\": \"<e>\", \"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}, "
               "{\"name\": \"tool_use\", \"template\": \"t{{ eos_token }}{{ strftime_now('%S') }}\"}]}");
    EXPECT_OK(template_load(dir, NULL, false, &both));
    template_stop_clock(both, 7);
    EXPECT(template_asks_time(both));
    EXPECT(template_with_tools(both) != NULL);
    EXPECT(template_hash(both) != template_hash(plain));
    expect_rendered(both, NULL, "d");
    expect_rendered(both, &tools, "t<e>07");
    template_destroy(both);
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    EXPECT_INT(mkdir(path, 0777), 0);
    write_file(path, "tool_use.jinja", "{{ 1 +");
    EXPECT_OK(template_load(dir, NULL, false, &both));
    expect_rendered(both, NULL, "d");
    EXPECT_FAILS(template_render(both, &(TemplateInput){.tools = &tools}, &out), ERR_INVALID, "tool_use.jinja:1:");
    template_destroy(both);
    EXPECT_OK(template_load(dir, "default", false, &both)); /* a template that was asked for by name renders everything */
    expect_rendered(both, &tools, "d");
    template_destroy(both);
    template_destroy(plain);
    EXPECT_OK(file_remove_tree(dir));
}

static void same_source_same_hash(void)
{
    Template *a, *b, *c;
    EXPECT_OK(template_parse("a", "x", 1, &a));
    EXPECT_OK(template_parse("b", "x", 1, &b));
    EXPECT_OK(template_parse("c", "y", 1, &c));
    EXPECT(template_hash(a) == template_hash(b));
    EXPECT(template_hash(a) != template_hash(c));
    template_destroy(a);
    template_destroy(b);
    template_destroy(c);
}

static void inner_state_does_not_leak_between_renders(void)
{
    Template     *tmpl;
    TemplateInput input = {0};
    const char   *source = "{% set ns = namespace(x=0) %}{% for i in range(3) %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}";
    EXPECT_OK(template_parse("t", source, strlen(source), &tmpl));
    for (int i = 0; i < 2; i++) {
        TemplateOutput out;
        EXPECT_OK(template_render(tmpl, &input, &out));
        EXPECT_STR(strbuf_cstr(&out.text), "3");
        template_output_deinit(&out);
    }
    template_destroy(tmpl);
}

static void white_space_control(void)
{
    EXPECT_RENDERS("  {% if true %}\n  x\n  {%- endif +%}\n y\n", "  x\n y");
    EXPECT_RENDERS("a \n {{- 1 -}} \n b", "a1b");
}

/* ---- the memo ---- */

/* Makes conversation number n: shapes of conversations repeat, texts don't. */
static void make_conversation(Arena *arena, uint64_t n, JsonValue *out)
{
    static const char *const texts[] = {"",
                                        "a",
                                        " b ",
                                        "<x>yes</x>",
                                        "\n\nline",
                                        "1",
                                        "no",
                                        "yes",
                                        "\xC3\xA9t\xC3\xA9",
                                        "\xE2\x80\x83wide",
                                        "<think>\nwhy\n</think>\n\nbecause",
                                        "</think>",
                                        "user",
                                        "content",
                                        "trail\n",
                                        "A b C"};
    static const char *const roles[] = {"user", "assistant", "system", "tool"};
    uint64_t                 state = n * 0x9E3779B97F4A7C15u + 1;
#define NEXT(most) (state = state * 6364136223846793005u + 1442695040888963407u, (uint32_t)((state >> 33) % (most)))
    uint32_t count = 1 + (uint32_t)(n % 4);
    *out = (JsonValue){.type = JSON_ARRAY, .count = count, .items = arena_array(arena, JsonValue, count)};
    for (uint32_t i = 0; i < count; i++) {
        JsonMember *members = arena_array(arena, JsonMember, 4);
        uint32_t    num = 2;
        members[0] = (JsonMember){str_of("role"), {.type = JSON_STRING, .string = str_of(roles[n % 8 < 6 ? i % 2 : NEXT(4)])}};
        members[1] = (JsonMember){str_of("content"), {.type = JSON_STRING, .string = str_of(texts[NEXT(16)])}};
        if (n % 8 == 7) members[1].value = (JsonValue){.type = JSON_NULL};
        if (n % 16 > 10) members[num++] = (JsonMember){str_of("name"), {.type = JSON_STRING, .string = str_of(texts[NEXT(16)])}};
        if (n % 16 == 14) /* the same number, written as an integer and as a float */
            members[num++] = (JsonMember){str_of("weight"), {.type = JSON_DOUBLE, .number = 1e19, .count = NEXT(2)}};
        if (n % 16 == 13) members[num++] = (JsonMember){str_of("weight"), {.type = JSON_INT, .integer = NEXT(2)}};
        out->items[i] = (JsonValue){.type = JSON_OBJECT, .count = num, .members = members};
    }
#undef NEXT
}

static bool parts_are(const TemplateParts *parts, const TemplateOutput *whole)
{
    size_t at = 0;
    bool   same = parts->len == whole->text.len && parts->num_spans == whole->num_spans;
    for (uint32_t i = 0; same && i < parts->num_parts; at += parts->parts[i++].len)
        same = parts->parts[i].len == 0 || memcmp(whole->text.data + at, parts->parts[i].data, parts->parts[i].len) == 0;
    for (size_t i = 0; same && i < parts->num_spans; i++)
        same = parts->spans[i].begin == whole->spans[i].begin && parts->spans[i].end == whole->spans[i].end;
    return same;
}

/* Renders many conversations and their beginnings with the memo and with the template. Returns how many the memo could render. */
static int compare_memo(const char *source, int conversations)
{
    Template *tmpl;
    int       known = 0;
    Arena     arena = {0};
    EXPECT_OK(template_parse("t", source, strlen(source), &tmpl));
    TemplateMemo *memo = template_memo_create(tmpl, 1700000000);
    for (int n = 0; n < conversations; n++) {
        JsonValue messages;
        arena_reset(&arena);
        make_conversation(&arena, (uint64_t)n, &messages);
        EXPECT(template_memo_start(memo, &messages));
        for (uint32_t k = 2; k < 2 * messages.count + 2; k++) {
            JsonValue      some = messages;
            TemplateInput  input = {.messages = &some, .add_generation_prompt = k & 1, .now_unix = 1700000000};
            TemplateOutput whole;
            TemplateParts  parts;
            some.count = k / 2;
            if (!template_memo_render(memo, k / 2, k & 1, &arena, &parts)) continue;
            known++;
            Status status = template_render(tmpl, &input, &whole);
            if (status != OK || !parts_are(&parts, &whole))
                test_fail(__FILE__, __LINE__, "%s: conversation %d, %u messages: the memo gives another text (%s)", source, n, k / 2,
                          status == OK ? strbuf_cstr(&whole.text) : status_message());
            template_output_deinit(&whole);
        }
    }
    template_memo_destroy(memo);
    template_destroy(tmpl);
    arena_deinit(&arena);
    return known;
}

/* Whatever a template does with the texts, the memo gives the rendered text, or nothing. */
static void memo_is_right_or_silent(void)
{
    static const char *const uses[] = {
        "{{ %s|FILTER }}",
        "{{ [%s]|FILTER }}",
        "{{ {%s: 1}|FILTER }}",
        "{{ (%s ~ 'x')|FILTER }}",
        "{{ messages|map(attribute='content')|FILTER }}",
        "{{ messages|FILTER }}",
        "{{ loop|FILTER }}",
    };
    static const char *const filters[] = {
        "abs",
        "capitalize",
        "count",
        "default('d')",
        "default('d', true)",
        "dictsort",
        "escape",
        "first",
        "float",
        "forceescape",
        "indent",
        "int",
        "items",
        "join(',')",
        "last",
        "length",
        "list",
        "lower",
        "max",
        "min",
        "replace('a', 'b')",
        "reverse",
        "round",
        "safe",
        "sort",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "trim('e')",
        "unique",
        "upper",
        "select",
        "reject",
        "map('trim')",
        "format",
        "selectattr('content')",
        "map(attribute='content')|join",
        "first|length",
        "trim|trim('a')",
        "default(m.content)",
    };
    static const char *const values[] = {"m.content", "m['content']", "m.get('name')", "(m.content + '!')"};
    int                      known = 0;
    for (size_t u = 0; u < sizeof uses / sizeof uses[0]; u++)
        for (size_t f = 0; f < sizeof filters / sizeof filters[0]; f++)
            for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                char        use[300], source[600];
                const char *at = strstr(uses[u], "FILTER");
                snprintf(use, sizeof use, "%.*s%s%s", (int)(at - uses[u]), uses[u], filters[f], at + 6);
                const char *place = strstr(use, "%s");
                if (!place && v > 0) break;
                snprintf(source, sizeof source, "{%% for m in messages %%}%.*s%s%s;{%% endfor %%}",
                         place ? (int)(place - use) : (int)strlen(use), use, place ? values[v] : "", place ? place + 2 : "");
                known += compare_memo(source, 24);
            }
    EXPECT(known > 1000);
    static const char *const snippets[] = {
        "{{ m.content is defined }}{{ m.content is string }}{{ m.content is mapping }}{{ m.content is iterable }}{{ m.content is none }}",
        "{{ m.content is sequence }}{{ m.content is number }}{{ m.content is callable }}",
        "{{ m.content is eq 'yes' }}",
        "{{ m.content is in ['yes', 'no'] }}",
        "{{ m.content in ['yes', 'no'] }}",
        "{{ m.content in 'yes' }}",
        "{{ 'yes' in m.content }}",
        "{{ 'yes' in m }}",
        "{{ 'content' in m }}",
        "{{ m.content in m }}",
        "{{ m.content == 'yes' }}",
        "{{ m.content != m.name }}",
        "{{ m.content == 1 }}",
        "{{ m.content < 'b' }}",
        "{{ m.content and 'x' }}",
        "{{ not m.content }}",
        "{{ 'x' if m.content else 'y' }}",
        "{% if m.content|trim %}x{% endif %}",
        "{{ m.content * 2 }}",
        "{{ m.content % 1 }}",
        "{{ '%s' % m.content }}",
        "{{ '%s' % [m.content] }}",
        "{{ m.content[0] }}",
        "{{ m.content[1:] }}",
        "{{ m.content['x'] }}",
        "{{ m[m.content] }}",
        "{{ m.content.x }}",
        "{{ m.content.x is defined }}",
        "{{ m.content.upper() }}",
        "{{ m.content.strip() }}",
        "{{ m.content.strip('\n') }}",
        "{{ m.content.lstrip('\n').rstrip() }}",
        "{{ m.content.rstrip() ~ m.content.lstrip() }}",
        "{{ m.content.split('x') }}",
        "{{ m.content.startswith('<') }}",
        "{{ m.content.startswith(('<', 'y')) }}",
        "{{ m.content.endswith('>') }}",
        "{{ m.content.startswith('y', 1) }}",
        "{{ m.content.startswith(prefix='y') }}",
        "{{ m.content.startswith(m.content) }}",
        "{{ m.content.replace('a', 'b') }}",
        "{{ m.content.split('</think>')[-1] }}",
        "{{ 'a'.join([m.content]) }}",
        "{{ ','.join(m.content) }}",
        "{{ 'a'.replace('a', m.content) }}",
        "{% set f = m.content.strip %}{{ f() }}",
        "{{ m.content.nothing() }}",
        "{% for c in m.content %}{{ c }}{% endfor %}",
        "{% set a, b = m.content %}",
        "{{ loop.changed(m.content) }}",
        "{{ loop.changed(m.role) }}",
        "{{ loop.cycle('a', m.content) }}",
        "{{ loop.previtem.content }}{{ loop.nextitem.content }}",
        "{{ m.values()|list|length }}",
        "{{ m.items()|list|first|first }}",
        "{{ m.items()|list }}",
        "{% for k, v in m.items() %}{{ k }}={{ v }}{% endfor %}",
        "{{ dict(a=m.content).a }}",
        "{{ namespace(a=m.content).a }}",
        "{{ dict([[m.content, 1]]) }}",
        "{{ {m.content: 1} }}",
        "{{ {'a': m.content}.a }}",
        "{{ [m.content, 'x'] }}",
        "{{ [m.content, 'x'][0] }}",
        "{{ (m.content, 1) == (m.content, 1) }}",
        "{{ [m.content] == ['yes'] }}",
        "{{ range(3)|length }}",
        "{{ range(m.content) }}",
        "{{ strftime_now('%Y') }}",
        "{{ strftime_now(m.content) }}",
        "{{ raise_exception(m.content) }}",
        "{% if m.content == 'no' %}{{ raise_exception('no') }}{% endif %}",
        "{% if m.role == 'tool' %}{{ raise_exception('tool') }}{% endif %}x",
        "{% set x %}[{{ m.content }}]{% endset %}{{ x }}{{ x }}",
        "{% set x | trim %} {{ m.content }} {% endset %}{{ x }}",
        "{% filter upper %}{{ m.content }}{% endfilter %}",
        "{% filter trim %}{{ m.content }}{% endfilter %}",
        "{% macro f(t) %}<{{ t }}>{% endmacro %}{{ f(m.content) }}{{ f(f(m.content)) }}",
        "{% macro f(t) %}{{ t }}{% endmacro %}{{ f(m.content)|trim }}{{ f(m.content) == 'yes' }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ m.content }}{% endcall %}",
        "{% generation %}{{ m.content }}{% endgeneration %}",
        "{% generation %}a{{ m.content }}{{ m.content }}{% endgeneration %}b{% generation %}{% endgeneration %}",
        "{% macro f(t) %}{% generation %}{{ t }}{% endgeneration %}{% endmacro %}{{ m.content }}{{ f(m.content) }}",
        "{% macro f(t) %}{% generation %}{{ t }}{% endgeneration %}{% endmacro %}{% set y = f(m.content) %}{{ m.role }}{{ m.name }}{{ y }}{{ y }}",
        "{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}{{ x }}",
        "{{ m.content ~ 1 ~ none ~ m.role }}",
        "{{ m.content ~ [m.content] }}",
        "{{ m.content|safe + m.content }}",
        "{{ '<'|e + m.content }}",
        "{{ m.weight }}{{ m.weight == 1 }}",
        "{{ m.weight is integer }}",
        "{{ m.content is sameas m.content }}",
        "{{ -m.content }}",
        "{{ m.content + 1 }}",
        "{{ messages[-1].content }}{{ messages[::-1][0].content }}",
        "{% if messages[0].role == 'system' %}{% set messages = messages[1:] %}{% endif %}{{ messages|length }}",
        "{% for k in messages if k.content %}{{ k.content }}{% endfor %}",
        "{% for k in messages|sort(attribute='content') %}{{ k.content }}{% endfor %}",
        "{% for k in messages recursive %}{{ k.content }}{% if loop.depth0 < 1 %}{{ loop([k]) }}{% endif %}{% endfor %}",
        "{{ m }}",
        "{{ messages }}",
    };
    for (size_t i = 0; i < sizeof snippets / sizeof snippets[0]; i++) {
        char source[600];
        snprintf(source, sizeof source, "{%% for m in messages %%}%s;{%% endfor %%}{%% if add_generation_prompt %%}go{%% endif %%}",
                 snippets[i]);
        compare_memo(source, 400);
    }
}

/* The memo can render what chat templates usually do. */
static void memo_knows_usual_templates(void)
{
    static const char *const usual[] = {
        ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
        "{% macro show(m) %}{{ m.role ~ ': ' }}{{ m['content'] | trim }}{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
        "{% for m in messages %}{% if m.content is string and '</think>' in m.content %}!{% endif %}{% generation %}{{ m.content }}{% "
        "endgeneration %}{% endfor %}",
        "{{ strftime_now('%d') }}{% for m in messages %}{% if m.content.startswith('<x>') and m.content.endswith('</x>') %}x{% endif %}{{ "
        "m.role }}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) EXPECT(compare_memo(usual[i], 400) > 1500);
    static const char *const builtins[] = {"chatml", "llama3", "mistral", "gemma", "phi3", "qwen2.5", "olmo2", "zephyr", "alpaca"};
    for (size_t i = 0; i < sizeof builtins / sizeof builtins[0]; i++) EXPECT(compare_memo(template_builtin(builtins[i]).data, 400) > 600);
    if (!test_shared_dir()) return;
    static const char *const real[] = {"Qwen-Qwen3-0.6B",
                                       "Qwen-Qwen2.5-7B-Instruct",
                                       "Qwen3.5-4B",
                                       "meta-llama-Llama-3.2-3B-Instruct",
                                       "HuggingFaceTB-SmolLM3-3B",
                                       "google-gemma-2-2b-it",
                                       "microsoft-Phi-3.5-mini-instruct",
                                       "mistralai-Mistral-Nemo-Instruct-2407",
                                       "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
                                       "Qwen-QwQ-32B",
                                       "Qwen3-from-tokenizer_config"};
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
        Arena arena = {0};
        Str   source;
        EXPECT_OK(file_read(&arena, arena_printf(&arena, "%s/data/chat/templates/%s.jinja", test_shared_dir(), real[i]), 1 << 20, &source));
        EXPECT(compare_memo(source.data, 400) >
               600); /* conversations of 1 to 4 messages, with and without the prompt; some templates refuse roles */
        arena_deinit(&arena);
    }
}

TEST_MAIN(TEST(snippets_give_what_jinja_gives), TEST(families_give_what_jinja_gives), TEST(published_cases_agree),
          TEST(real_templates_agree), TEST(memo_is_right_or_silent), TEST(memo_knows_usual_templates),
          TEST(messages_and_variables_reach_the_template), TEST(generation_marks_its_bytes), TEST(captured_generation_marks_nothing),
          TEST(errors_name_the_line), TEST(what_is_missing_is_named), TEST(filters_of_blocks_see_their_names), TEST(bombs_are_errors),
          TEST(deep_templates_are_errors), TEST(large_integers_are_not_rounded), TEST(time_is_the_one_given),
          TEST(time_of_the_clock_has_microseconds), TEST(folder_template_is_found), TEST(folder_tokens_are_found),
          TEST(additional_templates_are_found), TEST(tools_template_comes_along), TEST(every_operation_is_counted),
          TEST(turns_are_what_loops_print), TEST(same_source_same_hash), TEST(inner_state_does_not_leak_between_renders),
          TEST(white_space_control))
