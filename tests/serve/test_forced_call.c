/* Forced tool calls: where the templates of families let a call begin, and which call a guided text makes. */
#include "serve/forced_call.h"
#include "test.h"
#include "tiny_tokenizer.h"

#include <string.h>

static const char asked[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Look there.\"}], \"tools\": [{\"type\": \"function\", "
                            "\"function\": {\"name\": \"look\", \"description\": \"Looks.\", \"parameters\": {\"type\": \"object\", "
                            "\"properties\": {\"at\": {\"type\": \"string\", \"description\": \"Where.\"}}, \"required\": [\"at\"]}}}]}";

/* Finds the form of calls in a template's source for these names; the result points into the arena. */
static Status find(Arena *arena, Str source, const char *const *names, int num_names, ForcedCall *out)
{
    JsonValue *json = arena_new(arena, JsonValue);
    Tokenizer *tokenizer;
    Template  *tmpl;
    StrList    list = {0};
    for (int i = 0; i < num_names; i++) str_list_push(arena, &list, names[i]);
    EXPECT_OK(json_parse(arena, "asked", asked, sizeof asked - 1, json));
    EXPECT_OK(tokenizer_parse("tiny", tiny_tokenizer, sizeof tiny_tokenizer - 1, &tokenizer));
    EXPECT_OK(template_parse("test", source.data, source.len, &tmpl));
    ChatMessages chat = {.messages = json_get(json, "messages"), .tools = json_get(json, "tools")};
    Status       status = forced_call_find(arena, tmpl, tokenizer, &chat, &list, out);
    template_destroy(tmpl);
    tokenizer_destroy(tokenizer);
    return status;
}

static const char *const both[] = {"look", "look_up"};

/* The part of the call that the prompt holds, then '|' and the beginning of the model's text; or the reason for a refusal. */
static const char *form(Arena *arena, Str source, int num_names)
{
    ForcedCall forced;
    if (find(arena, source, both, num_names, &forced) != OK) {
        const char *message = arena_strdup(arena, status_message());
        status_clear();
        return message;
    }
    EXPECT_INT(forced.num, num_names);
    EXPECT_STR(forced.names[0], "look");
    return arena_printf(arena, "%.*s|%.*s", (int)forced.opening.len, forced.opening.data, (int)forced.leads[num_names - 1].len,
                        forced.leads[num_names - 1].data);
}

static const char *form_of_call(Arena *arena, const char *call, int num_names)
{
    const char *source =
        arena_printf(arena,
                     "{%% for m in messages %%}<{{ m.role }}>{{ m.content }}{%% for c in m.tool_calls or [] %%}%s{%% endfor "
                     "%%}{%% endfor %%}{%% if add_generation_prompt %%}<assistant>{%% endif %%}",
                     call);
    return form(arena, str_of(source), num_names);
}

#define CALLED "{{ c.function.name }}"
#define GIVEN "{{ c.function.arguments | tojson }}"

static void forms_of_families_are_found(void)
{
    Arena arena = {0};
    EXPECT_STR(form(&arena, template_builtin("qwen2.5"), 1), "<tool_call>\n{\"name\": \"look\", \"arguments\":| ");
    EXPECT_STR(form(&arena, template_builtin("qwen2.5"), 2), "<tool_call>\n{\"name\": \"|look_up\", \"arguments\": ");
    EXPECT_STR(form(&arena, template_builtin("qwen3"), 2), "<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"|look_up\", \"arguments\": ");
    EXPECT_STR(form_of_call(&arena, "{\"name\": \"" CALLED "\", \"parameters\": " GIVEN "}", 2), /* Llama 3 */
               "{\"name\": \"|look_up\", \"parameters\": ");
    EXPECT_STR(form_of_call(&arena, "[TOOL_CALLS] [{\"name\": \"" CALLED "\", \"arguments\":" GIVEN ", \"id\": \"{{ c.id }}\"}]", 1),
               "[TOOL_CALLS] [{\"name\": \"look\", \"arguments\":|");
    EXPECT_STR(form_of_call(&arena, "[TOOL_CALLS]" CALLED "<end>" GIVEN, 1), "[TOOL_CALLS]look<end>|");
    EXPECT_STR(form_of_call(&arena, "<call>" CALLED "{{ '\njson\n' + c.function.arguments }}", 2), "<call>|look_up\njson\n"); /* DeepSeek */
    arena_deinit(&arena);
}

static void other_forms_are_refused(void)
{
    Arena arena = {0};
    EXPECT_CONTAINS(form(&arena, template_builtin("chatml"), 1), "shows none as a name with a JSON object");
    EXPECT_CONTAINS(form_of_call(&arena, GIVEN " for " CALLED, 1), "shows none");
    EXPECT_CONTAINS(form_of_call(&arena, CALLED "({% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %})", 1),
                    "shows none");
    EXPECT_CONTAINS(form_of_call(&arena, CALLED "{{ c.function.arguments | tojson | tojson }}", 1), "shows none");
    EXPECT_CONTAINS(form_of_call(&arena, "{{ raise_exception('no calls') }}", 1), "shows none");
    const char                                                                            *earlier =
        "{% for m in messages %}{{ loop.length }}{% for c in m.tool_calls or [] %}" CALLED GIVEN "{% endfor %}{% endfor %}";
    EXPECT_CONTAINS(form(&arena, str_of(earlier), 1), "shows none");
    EXPECT_CONTAINS(form_of_call(&arena, "[TOOL_CALLS]" CALLED "<end>" GIVEN, 2), "special token between");
    ForcedCall        forced;
    const char *const quoted[] = {"a \"name\""};
    EXPECT_FAILS(find(&arena, template_builtin("qwen3"), quoted, 1, &forced), ERR_UNSUPPORTED, "can't be forced: its name");
    EXPECT_INT(forced.num, 0);
    arena_deinit(&arena);
}

/* A template that prints a call's arguments right after its name, without a separator. */
static void a_name_may_begin_another(void)
{
    static const char                                                                         source[] =
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}CALL " CALLED GIVEN "{% endfor %}{% endfor %}";
    Arena                                                                                     arena = {0};
    ForcedCall                                                                                forced;
    Str                                                                                       arguments;
    EXPECT_OK(find(&arena, str_of(source), both, 2, &forced));
    EXPECT_INT(forced_call_read(&forced, str_of("look{\"a\": 1}"), &arguments), 0);
    EXPECT_STR(arguments.data, "{\"a\": 1}");
    EXPECT_INT(forced_call_read(&forced, str_of("look_up{\"a"), &arguments), 1);
    EXPECT_STR(arguments.data, "{\"a");
    EXPECT_INT(forced_call_read(&forced, str_of("look"), &arguments), -1);
    EXPECT_INT(forced_call_read(&forced, str_of("look_"), &arguments), -1);
    EXPECT_INT(arguments.len, 0);
    arena_deinit(&arena);
}

static void texts_tell_which_function_they_call(void)
{
    Arena      arena = {0};
    ForcedCall forced;
    Str        arguments;
    EXPECT_OK(find(&arena, template_builtin("qwen2.5"), both, 2, &forced));
    EXPECT_INT(forced_call_read(&forced, str_of("look\", \"arguments\": {\"a\": 1}"), &arguments), 0);
    EXPECT_STR(arguments.data, "{\"a\": 1}");
    EXPECT_INT(forced_call_read(&forced, str_of("look_up\", \"arguments\": {\"a"), &arguments), 1);
    EXPECT_STR(arguments.data, "{\"a");
    EXPECT_INT(forced_call_read(&forced, str_of("look_up\", \"arg"), &arguments), -1);
    EXPECT_OK(find(&arena, template_builtin("qwen2.5"), both, 1, &forced));
    EXPECT_INT(forced_call_read(&forced, str_of(" {}"), &arguments), 0);
    EXPECT_STR(arguments.data, "{}");
    EXPECT_INT(forced_call_read(&forced, str_of(""), &arguments), 0);
    EXPECT_INT(arguments.len, 0);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(forms_of_families_are_found), TEST(other_forms_are_refused), TEST(a_name_may_begin_another),
          TEST(texts_tell_which_function_they_call))
