/* The chat template engine: Jinja2's own results (tests/fixtures/template_cases.json, written by
 * tests/oracle/template_random.py), texts of real models, limits, and the folder's template. */
#include "text/template.h"

#include "files/file.h"
#include "test.h"

#include <unistd.h>

static Status load_json(Arena *arena, const char *path, JsonValue *out)
{
    Str text;
    TRY(file_read(arena, path, 64 << 20, &text));
    return json_parse(arena, path, text.data, text.len, out);
}

/* Renders with an object of variables. */
static Status render(const char *source, size_t len, const JsonValue *variables, TemplateOutput *out)
{
    Template *tmpl;
    TemplateInput input = { .variables = variables, .now_unix = 1700000000 };
    *out = (TemplateOutput){ 0 };
    TRY(template_parse("t", source, len, &tmpl));
    Status status = template_render(tmpl, &input, out);
    template_destroy(tmpl);
    return status;
}

static Status render_text(const char *source, TemplateOutput *out)
{
    return render(source, strlen(source), NULL, out);
}

#define EXPECT_RENDERS(source, want)                                    \
    do {                                                                \
        TemplateOutput out_;                                            \
        EXPECT_OK(render_text((source), &out_));                        \
        EXPECT_STR(strbuf_cstr(&out_.text), (want));                    \
        template_output_deinit(&out_);                                  \
    } while (0)
#define EXPECT_REFUSED(source, part)                                    \
    do {                                                                \
        TemplateOutput out_;                                            \
        EXPECT_FAILS(render_text((source), &out_), ERR_INVALID, (part)); \
    } while (0)

/* expected NULL: an error is expected. */
static void check(const char *label, Str source, const JsonValue *variables, const JsonValue *expected)
{
    TemplateOutput out;
    Status status = render(source.data, source.len, variables, &out);
    bool   wants_text = expected && expected->type == JSON_STRING;
    if ((status == OK) != wants_text) {
        test_fail(__FILE__, __LINE__, "%s: %s", label, status == OK ? "renders, an error was expected" : status_message());
    } else if (wants_text && (out.text.len != expected->string.len || memcmp(strbuf_cstr(&out.text), expected->string.data, out.text.len) != 0)) {
        test_fail(__FILE__, __LINE__, "%s gives\n  %s\nexpected\n  %s", label, strbuf_cstr(&out.text), expected->string.data);
    }
    if (status != OK && !strchr(status_message(), ':')) test_fail(__FILE__, __LINE__, "%s: no line in: %s", label, status_message());
    template_output_deinit(&out);
}

static void snippets_give_what_jinja_gives(void)
{
    Arena     arena = { 0 };
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

static void check_cases(const char *dir, const char *file)
{
    Arena     arena = { 0 };
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
    Arena       arena = { 0 };
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
    Arena          arena = { 0 };
    JsonValue      messages, more;
    Template      *tmpl;
    TemplateOutput out;
    EXPECT_OK(json_parse(&arena, "m", json, strlen(json), &messages));
    EXPECT_OK(json_parse(&arena, "v", variables, strlen(variables), &more));
    EXPECT_OK(template_parse("t", source, strlen(source), &tmpl));
    TemplateInput input = { .messages = &messages, .variables = &more, .add_generation_prompt = true };
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
}

static void bombs_are_errors(void)
{
    EXPECT_REFUSED("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps");
    EXPECT_REFUSED("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested");
    EXPECT_REFUSED("{{ 'x' * 100000000 }}", "grows beyond");
    EXPECT_REFUSED("{{ range(100001) }}", "range");
    EXPECT_REFUSED("{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "t:1:");
    EXPECT_REFUSED("{% set ns = namespace(l=[]) %}{% for i in range(2000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}", "nested");
    EXPECT_REFUSED("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "nested");
    EXPECT_REFUSED("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", "t:1:");
    EXPECT_REFUSED("{{ 9223372036854775807 + 1 }}", "64 bits");
    EXPECT_REFUSED("{{ '%1000000000d' % 1 }}", "grows beyond");
    EXPECT_REFUSED("{{ '{:1000000000}'.format(1) }}", "grows beyond");
    EXPECT_REFUSED("{{ 'x'.center(1000000000) }}", "grows beyond");
    EXPECT_REFUSED("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested");
}

static void deep_templates_are_errors(void)
{
    StrBuf source = { 0 };
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
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    EXPECT_OK(file_write_atomic(path, text, strlen(text)));
}

static void expect_folder(const char *dir, const char *which, bool has_tools, const char *want)
{
    Template *tmpl = NULL;
    TemplateOutput out = { 0 };
    TemplateInput input = { 0 };
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
    char dir[] = "/tmp/template_XXXXXX";
    Template *tmpl;
    if (!mkdtemp(dir)) SKIP("no temporary folder");
    expect_folder(dir, NULL, false, NULL);
    write_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null}");
    expect_folder(dir, NULL, false, NULL);
    write_file(dir, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, "
               "\"chat_template\": \"{{ bos_token }}c{{ eos_token }}{{ pad_token is defined }}\"}");
    expect_folder(dir, NULL, false, "<s>c</s>False");
    EXPECT_FAILS(template_load(dir, "rag", false, &tmpl), ERR_NOT_FOUND, "rag");
    write_file(dir, "chat_template.jinja", "{{ eos_token }}file\n");
    expect_folder(dir, NULL, false, "</s>file");
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}, "
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
    EXPECT_FAILS(template_load(dir, NULL, false, &tmpl), ERR_INVALID, "expected a text or a list");
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
    Template      *tmpl;
    TemplateInput  input = { 0 };
    const char    *source = "{% set ns = namespace(x=0) %}{% for i in range(3) %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}";
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

TEST_MAIN(TEST(snippets_give_what_jinja_gives), TEST(published_cases_agree), TEST(real_templates_agree),
          TEST(messages_and_variables_reach_the_template), TEST(generation_marks_its_bytes), TEST(captured_generation_marks_nothing),
          TEST(errors_name_the_line), TEST(bombs_are_errors), TEST(deep_templates_are_errors), TEST(time_is_the_one_given),
          TEST(folder_template_is_found), TEST(same_source_same_hash), TEST(inner_state_does_not_leak_between_renders),
          TEST(white_space_control))
