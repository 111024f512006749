/* The built-in chat templates render like their originals: tests/fixtures/templates.json, written by tests/oracle/check_templates.py. */
#include "text/template/template.h"
#include "base/arena.h"
#include "base/strbuf.h"
#include "files/file.h"
#include "test.h"

#include <string.h>

#define TEMPLATE(id, name) {name, #id},
#define ALSO(name, id) {name, #id},
static const struct {
    const char *name, *file;
} names[] = {
#include "text/template/templates.def"
};
enum { NUM_NAMES = sizeof names / sizeof names[0] };

/* The rendered text, or the message of the error, allocated in `arena`. */
static const char *rendered(Arena *arena, const char *name, const char *json)
{
    Str            source = template_builtin(name);
    JsonValue     *variables = arena_new(arena, JsonValue);
    Template      *tmpl;
    TemplateOutput out = {0};
    EXPECT(source.data);
    EXPECT_OK(json_parse(arena, "variables", json, strlen(json), variables));
    EXPECT_OK(template_parse(name, source.data, source.len, &tmpl));
    TemplateInput input = {.messages = json_get(variables, "messages"), .tools = json_get(variables, "tools"), .variables = variables};
    if (input.tools && input.tools->type == JSON_NULL) input.tools = NULL;
    Status      status = template_render(tmpl, &input, &out);
    const char *text = arena_strdup(arena, status == OK ? strbuf_cstr(&out.text) : status_message());
    template_output_deinit(&out);
    template_destroy(tmpl);
    return text;
}

static const char *name_of(const char *file)
{
    for (size_t i = 0; i < NUM_NAMES; i++)
        if (strcmp(names[i].file, file) == 0) return names[i].name;
    return NULL;
}

static void originals_agree(void)
{
    Arena     arena = {0};
    Str       text;
    JsonValue cases;
    bool      seen[NUM_NAMES] = {0};
    EXPECT_OK(file_read(&arena, "tests/fixtures/templates.json", 1 << 24, &text));
    EXPECT_OK(json_parse(&arena, "templates.json", text.data, text.len, &cases));
    EXPECT(cases.count > 150);
    for (uint32_t i = 0; i < cases.count; i++) {
        const JsonValue *row = &cases.items[i];
        StrBuf           variables = {0};
        const char      *name = name_of(json_get(row, "name")->string.data);
        if (!name) test_fail(__FILE__, __LINE__, "no template %s", json_get(row, "name")->string.data);
        json_write(&variables, json_get(row, "variables"), 0);
        if (name) EXPECT_STR(rendered(&arena, name, strbuf_cstr(&variables)), json_get(row, "text")->string.data);
        for (size_t k = 0; name && k < NUM_NAMES; k++) seen[k] |= strcmp(names[k].file, json_get(row, "name")->string.data) == 0;
        strbuf_deinit(&variables);
    }
    for (size_t k = 0; k < NUM_NAMES; k++)
        if (!seen[k]) test_fail(__FILE__, __LINE__, "no talk for %s", names[k].name);
    arena_deinit(&arena);
}

/* Messages that a template has no place for aren't left out silently: all templates refuse them, except those that print any role. */
static void what_has_no_place_is_refused(void)
{
    static const char tool_row[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"critic\", \"content\": \"b\"}]}";
    static const char tools[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"name\": \"f\"}]}";
    static const char *const any_role[] = {"chatml", "smollm2", "qwen2_5", "qwen3", "qwen3_nothink"};
    for (size_t i = 0; i < NUM_NAMES; i++) {
        Arena arena = {0};
        bool  prints_any = false;
        for (size_t k = 0; k < sizeof any_role / sizeof any_role[0]; k++) prints_any |= strcmp(names[i].file, any_role[k]) == 0;
        const char *text = rendered(&arena, names[i].name, tool_row);
        EXPECT((strstr(text, "no role critic") != NULL) != prints_any);
        text = rendered(&arena, names[i].name, tools);
        bool has_tools = strncmp(names[i].file, "qwen", 4) == 0;
        EXPECT((strstr(text, "no place for tools") != NULL) != (has_tools || strcmp(names[i].file, "chatml") == 0));
        if (has_tools) EXPECT(strstr(text, "<tools>\n{\"name\": \"f\"}\n</tools>"));
        arena_deinit(&arena);
    }
}

static void names_are_listed(void)
{
    StrBuf list = {0};
    template_builtin_names(&list);
    EXPECT(strncmp(strbuf_cstr(&list), "chatml, llama3, mistral_v1, ", 28) == 0);
    EXPECT(strstr(list.data, "qwen2.5, qwen3, "));
    EXPECT(!strstr(list.data, "qwen_25"));
    EXPECT(!template_builtin("llama").data);
    strbuf_deinit(&list);
    Arena arena = {0};
    Str   docs;
    EXPECT_OK(file_read(&arena, "docs/templates.md", 1 << 20, &docs));
    for (size_t i = 0; i < NUM_NAMES; i++)
        if (!strstr(docs.data, arena_printf(&arena, "`%s`", names[i].name)))
            test_fail(__FILE__, __LINE__, "docs/templates.md lacks %s", names[i].name);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(originals_agree), TEST(what_has_no_place_is_refused), TEST(names_are_listed))
