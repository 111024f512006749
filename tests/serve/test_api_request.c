/* Reading requests: defaults, values, and errors that name the field. */
#include "test.h"
#include "tiny_model.h"

static TinyModel model;

static Status read(int route, const char *body, ApiRequest *out)
{
    if (route == API_TOKENS) return api_read_tokenize(&model.api, str_of(body), out);
    return api_read(&model.api, route, str_of(body), out);
}

static void defaults_are_openais(void)
{
    ApiRequest q;
    EXPECT_OK(read(API_TEXT, "{\"model\": \"base\", \"prompt\": \"abc\"}", &q));
    EXPECT_INT(q.adapter, 0);
    EXPECT_INT(q.num_prompts, 1);
    EXPECT_INT(q.ids.len, 3);
    EXPECT_INT(q.max_tokens, 16);
    EXPECT_INT(q.num, 1);
    EXPECT(q.sample.temperature == 1 && q.sample.top_p == 1 && q.sample.repetition == 1 && !q.wants_logprobs && !q.streams);
    api_request_deinit(&q);
    EXPECT_OK(read(API_CHAT, "{\"model\": \"tuned\", \"messages\": [{\"role\": \"a\", \"content\": \"bc\"}]}", &q));
    EXPECT_INT(q.adapter, 1);
    EXPECT_INT(q.ids.len, 3);
    EXPECT_INT(q.max_tokens, 32);
    EXPECT(!q.calls_tools);
    api_request_deinit(&q);
}

static void seeds_are_drawn_where_none_is_said(void)
{
    ApiRequest a, b;
    EXPECT_OK(read(API_TEXT, "{\"model\": \"base\", \"prompt\": \"a\"}", &a));
    EXPECT_OK(read(API_TEXT, "{\"model\": \"base\", \"prompt\": \"a\"}", &b));
    EXPECT(a.sample.seed != b.sample.seed);
    api_request_deinit(&a);
    api_request_deinit(&b);
    EXPECT_OK(read(API_TEXT, "{\"model\": \"base\", \"prompt\": \"a\", \"seed\": -3}", &a));
    EXPECT(a.sample.seed == (uint64_t)-3);
    api_request_deinit(&a);
}

static void prompts_come_in_four_forms(void)
{
    static const char *const forms[] = {"\"ab\"", "[\"ab\", \"c\"]", "[0, 1]", "[[0, 1], [2]]"};
    for (int i = 0; i < 4; i++) {
        char       body[128];
        ApiRequest q;
        snprintf(body, sizeof body, "{\"model\": \"base\", \"prompt\": %s}", forms[i]);
        EXPECT_OK(read(API_TEXT, body, &q));
        EXPECT_INT(q.num_prompts, 1 + i % 2);
        EXPECT_INT(q.prompts[0].num, 2);
        EXPECT_INT(q.ids.data[1], 1);
        api_request_deinit(&q);
    }
}

static void messages_become_what_templates_take(void)
{
    ApiRequest q;
    EXPECT_OK(
        read(API_CHAT,
             "{\"model\": \"base\", \"chat_template_kwargs\": {\"letter\": \"z\"}, \"tools\": [{\"type\": \"function\", \"function\": "
             "{\"name\": \"f\"}}], \"messages\": [{\"role\": \"u\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
             "\"text\", \"text\": \"b\"}]}, {\"role\": \"s\", \"content\": \"\", \"tool_calls\": [{\"id\": \"1\", \"type\": "
             "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"q\\\"}\"}}]}]}",
             &q));
    StrBuf text = {0};
    EXPECT_OK(tokenizer_decode(model.infer.tokenizer, q.ids.data, q.ids.len, false, &text));
    EXPECT_STR(strbuf_cstr(&text), "uabsqfz");
    EXPECT(q.calls_tools);
    strbuf_deinit(&text);
    api_request_deinit(&q);
}

/* The tokens route gives the same ids as a chat's prompt, also for a prompt longer than the context. */
static void messages_are_tokenized_as_a_chat_lays_them_out(void)
{
    static const char fields[] = "\"chat_template_kwargs\": {\"letter\": \"z\"}, \"tools\": [{\"type\": \"function\", \"function\": "
                                 "{\"name\": \"f\"}}], \"messages\": [{\"role\": \"u\", \"content\": \"ab\"}]";
    char              body[512];
    ApiRequest        chat, tokens;
    snprintf(body, sizeof body, "{\"model\": \"base\", %s}", fields);
    EXPECT_OK(read(API_CHAT, body, &chat));
    EXPECT_OK(read(API_TOKENS, body, &tokens));
    EXPECT_INT(tokens.ids.len, 5);
    EXPECT(tokens.ids.len == chat.ids.len && memcmp(tokens.ids.data, chat.ids.data, chat.ids.len * sizeof *chat.ids.data) == 0);
    api_request_deinit(&tokens);
    api_request_deinit(&chat);
    snprintf(body, sizeof body, "{\"tool_choice\": \"none\", %s}", fields);
    EXPECT_OK(read(API_TOKENS, body, &tokens));
    EXPECT_INT(tokens.ids.len, 4);
    api_request_deinit(&tokens);
    snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"u\", \"content\": \"%0100d\"}]}", 0);
    memset(strstr(body, "000"), 'a', 100);
    EXPECT_OK(read(API_TOKENS, body, &tokens));
    EXPECT_INT(tokens.ids.len, 101);
    api_request_deinit(&tokens);
}

/* Only a small part of a body stays in memory until its answer ends. */
static void a_large_body_is_let_go(void)
{
    enum { ITEMS = 100000 };
    StrBuf     body = {0};
    ApiRequest q;
    strbuf_puts(&body, "{\"model\": \"base\", \"prompt\": \"ab\", \"echo\": true, \"stop\": [\"c\", \"de\"], \"user\": [0");
    for (int i = 0; i < ITEMS; i++) strbuf_puts(&body, ",0");
    strbuf_puts(&body, "]}");
    EXPECT_OK(read(API_TEXT, body.data, &q));
    memset(body.data, 'x', body.len);
    EXPECT(q.arena.used_bytes < 4096);
    EXPECT_INT(q.stops.count, 2);
    EXPECT_STR(q.stops.items[1], "de");
    EXPECT_STR(q.prompts[0].echo.data, "ab");
    api_request_deinit(&q);
    strbuf_deinit(&body);
}

/* A chat's text under a template; if it is refused, the field and the message. */
static void lay_out(const char *source, const char *messages, StrBuf *out)
{
    StrBuf     body = {0};
    ApiRequest q;
    template_destroy(model.api.tmpl);
    EXPECT_OK(template_parse("test", source, strlen(source), &model.api.tmpl));
    strbuf_printf(&body, "{\"model\": \"base\", \"messages\": [%s]}", messages);
    strbuf_clear(out);
    if (read(API_CHAT, strbuf_cstr(&body), &q) == OK)
        EXPECT_OK(tokenizer_decode(model.infer.tokenizer, q.ids.data, q.ids.len, false, out));
    else
        strbuf_printf(out, "%s: %s", q.param, status_message());
    status_clear();
    api_request_deinit(&q);
    strbuf_deinit(&body);
}

#define MESSAGE(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"
#define IF_ROLES(roles) "{% for m in messages %}{% if m.role in " roles " %}{{ m.role[0] }}{{ m.content }}{% endif %}{% endfor %}"

static void roles_that_no_template_prints_are_refused(void)
{
    static const struct {
        const char *source, *messages, *text;
    } cases[] = {
        {IF_ROLES("['system', 'user']"), MESSAGE("developer", "ab") ", " MESSAGE("user", "c"), "sabuc"},
        {IF_ROLES("['system', 'user', 'developer']"), MESSAGE("developer", "ab") ", " MESSAGE("user", "c"), "dabuc"},
        {"{% for m in messages %}{% if m.role not in ['system', 'user'] %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}",
         MESSAGE("developer", "ab") ", " MESSAGE("user", "c"), "abc"},
        {IF_ROLES("['user']"), MESSAGE("user", "c") ", " MESSAGE("developer", "ab"), "messages[1].role: "},
        {IF_ROLES("['user']"), MESSAGE("user", "c") ", " MESSAGE("system", "a"), "messages[1].role: "},
        {IF_ROLES("['system', 'user']"), MESSAGE("user", "c") ", " MESSAGE("tool", "a"), "messages[1].role: "},
        {IF_ROLES("['system', 'user']"), MESSAGE("system", "a") ", " MESSAGE("user", "c") ", " MESSAGE("wizard", "a"),
         "messages[2].role: "},
        {IF_ROLES("['user']"), MESSAGE("system", "") ", " MESSAGE("user", "c"), "uc"},
        /* Templates that are accepted: one prints other content if there is no system message, one prints roles without contents. */
        {"{{ messages[0].content if messages[0].role == 'system' else 'a' }}{{ messages[-1].content }}",
         MESSAGE("system", "a") ", " MESSAGE("user", "c"), "ac"},
        {"{% for m in messages %}{{ m.role }}{% endfor %}", MESSAGE("wizard", "a") ", " MESSAGE("user", "c"), "wizarduser"},
    };
    StrBuf text = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len = strlen(cases[i].text);
        lay_out(cases[i].source, cases[i].messages, &text);
        if (cases[i].text[len - 1] == ' ' && text.len > len) text.data[text.len = len] = 0;
        EXPECT_STR(strbuf_cstr(&text), cases[i].text);
    }
    lay_out(
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.a or 'e' }}{% endfor %}{% endfor %}",
        MESSAGE("user", "c") ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", "
                             "\"function\": {\"name\": \"f\", \"arguments\": \"\"}}]}",
        &text);
    EXPECT_STR(strbuf_cstr(&text), "ce");
    strbuf_deinit(&text);
}

/* Arguments are an object if the template uses one; otherwise the text of the request. */
static void arguments_come_as_the_template_takes_them(void)
{
    static const char *const cases[][2] = {
        {"{{ c.function.arguments.a }}", "cq"},
        {"{{ 'x' + c.function.arguments }}", "cxaq"},
        {"{% if c.function.arguments is string %}x{% else %}y{% endif %}", "cy"},
    };
    static const char messages[] = MESSAGE("user", "c") ", {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\", "
                                                        "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                                                        "\"{\\\"a\\\": \\\"q\\\"}\"}}]}";
    StrBuf            text = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char source[256];
        snprintf(source, sizeof source,
                 "{%% for m in messages %%}{{ m.content or '' }}{%% for c in m.tool_calls or [] %%}%s{%% endfor %%}{%% endfor %%}",
                 cases[i][0]);
        lay_out(source, messages, &text);
        EXPECT_STR(strbuf_cstr(&text), cases[i][1]);
    }
    lay_out("{{ raise_exception('no calls') }}", messages, &text);
    EXPECT_CONTAINS(strbuf_cstr(&text), "messages: ");
    EXPECT_CONTAINS(strbuf_cstr(&text), "no calls");
    strbuf_deinit(&text);
}

typedef struct Wrong {
    int         route, status;
    const char *body, *param, *text;
} Wrong;

static const Wrong wrongs[] = {
    {API_TEXT, 400, "", NULL, "the body"},
    {API_TEXT, 400, "{\"model\": \"base\", \"model\": \"base\"}", NULL, "model"},
    {API_TEXT, 404, "{\"model\": \"x\"}", "model", "expected one of base, tuned"},
    {API_TEXT, 400, "{\"model\": 3}", "model", "expected the name"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": []}", "prompt", "empty list"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": [[]]}", "prompt", "at least one token"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": [0, \"a\"]}", "prompt", "among token ids"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": [29]}", "prompt", "0 to 28"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": [-1]}", "prompt", "0 to 28"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"max_tokens\": 33}", "max_tokens", "at most 32"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"top_k\": -1}", "top_k", "from 0"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"stream\": 1}", "stream", "true or false"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"seed\": 1e30}", "seed", "whole number"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"stop\": [\"a\\u0000\"]}", "stop", "NUL"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"logprobs\": true}", "logprobs", "whole number"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"logit_bias\": {\"1\": 101}}", "logit_bias", "-100 to 100"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"logit_bias\": {\"1\": 1, \"01\": 1}}", "logit_bias", "twice"},
    {API_TEXT, 400, "{\"model\": \"base\", \"prompt\": \"a\", \"logit_bias\": {\"29\": 1}}", "logit_bias", "\"28\""},
    {API_CHAT, 400, "{\"model\": \"base\", \"messages\": [{\"content\": \"a\"}]}", "messages", "message 0 has no role"},
    {API_CHAT, 400, "{\"model\": \"base\", \"messages\": [{\"role\": \"a\"}]}", "messages", "no content"},
    {API_CHAT, 400, "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"tool_calls\": [{\"function\": {\"arguments\": \"{\"}}]}]}",
     "messages", "its arguments"},
    {API_CHAT, 400, "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"tools\": [{}]}", "tools", "item 0"},
    {API_CHAT, 400,
     "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"parallel_tool_calls\": false}",
     "parallel_tool_calls", "expected true"},
    {API_CHAT, 400, "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"tool_choice\": \"required\"}",
     "tool_choice", "there are no tools"},
    {API_CHAT, 400,
     "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"tool_choice\": \"required\"}",
     "tool_choice", "can't be forced"},
    {API_CHAT, 400,
     "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"tool_choice\": {\"type\": \"function\", \"function\": 3}}",
     "tool_choice", "expected \"auto\""},
    {API_TOKENS, 400, "{\"prompt\": \"a\", \"tool_choice\": \"required\"}", "tool_choice", "goes with messages"},
    {API_CHAT, 400, "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"modalities\": [\"audio\"]}",
     "modalities", "text"},
    {API_CHAT, 400,
     "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"chat_template_kwargs\": {\"messages\": []}}",
     "chat_template_kwargs", "it has messages"},
    {API_CHAT, 400,
     "{\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"chat_template_kwargs\": {\"tools\": null}}",
     "chat_template_kwargs", "it has tools"},
    {API_TEXT, 400,
     "{\"model\": \"base\", \"prompt\": [\"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\"], "
     "\"n\": 128, \"max_tokens\": 32, \"logprobs\": 20}",
     "logprobs", "at most 1048576"},
    {API_TOKENS, 400, "{}", NULL, "either prompt"},
    {API_TOKENS, 400, "{\"prompt\": \"a\", \"messages\": []}", NULL, "either prompt"},
    {API_TOKENS, 400, "{\"prompt\": [\"a\"]}", "prompt", "expected a text"},
    {API_TOKENS, 400, "{\"prompt\": \"a\", \"temperature\": 1}", "temperature", "no such field"},
    {API_TOKENS, 404, "{\"prompt\": \"a\", \"model\": \"x\"}", "model", "expected one of base, tuned"},
    {API_TOKENS, 400, "{\"prompt\": \"a\", \"chat_template_kwargs\": {}}", "chat_template_kwargs", "goes with messages"},
    {API_TOKENS, 400, "{\"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"add_special_tokens\": false}", "add_special_tokens",
     "goes with prompt"},
};

/* The text that opens the call is a part of the prompt, and all reported parts of the call outlive the body. */
static void a_call_that_is_forced_opens_the_answer(void)
{
    static const char form[] =
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% for c in "
        "m.tool_calls or [] %}call{{ c.function.name }}with{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    char       body[512];
    ApiRequest q;
    StrBuf     text = {0};
    snprintf(
        body, sizeof body, "{%s, \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}}",
        "\"model\": \"base\", \"messages\": [{\"role\": \"a\", \"content\": \"a\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    template_destroy(model.api.tmpl);
    EXPECT_OK(template_parse("form", form, strlen(form), &model.api.tmpl));
    EXPECT_OK(read(API_CHAT, body, &q));
    memset(body, 'x', sizeof body);
    EXPECT_OK(tokenizer_decode(model.infer.tokenizer, q.ids.data, q.ids.len, false, &text));
    EXPECT_STR(strbuf_cstr(&text), "facallfwith");
    EXPECT_INT(q.forced.num, 1);
    EXPECT_STR(q.forced.names[0], "f");
    EXPECT(q.calls_tools && !q.wants_json);
    api_request_deinit(&q);
    strbuf_deinit(&text);
}

static void what_is_wrong_is_said_by_name(void)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        const Wrong *w = &wrongs[i];
        ApiRequest   q;
        EXPECT(read(w->route, w->body, &q) != OK);
        bool same_param = w->param ? q.param && strcmp(q.param, w->param) == 0 : !q.param;
        if (q.status != w->status || !same_param || !strstr(status_message(), w->text))
            test_fail(__FILE__, __LINE__, "%s: %d %s %s", w->body, q.status, q.param, status_message());
        api_request_deinit(&q);
        status_clear();
    }
}

static void open_and_run(void (*run)(void))
{
    tiny_model_open(&model);
    run();
    tiny_model_close(&model);
}

#define OVER_MODEL(name) \
    static void with_##name(void) \
    { \
        open_and_run(name); \
    }
OVER_MODEL(defaults_are_openais)
OVER_MODEL(seeds_are_drawn_where_none_is_said)
OVER_MODEL(prompts_come_in_four_forms)
OVER_MODEL(messages_become_what_templates_take)
OVER_MODEL(messages_are_tokenized_as_a_chat_lays_them_out)
OVER_MODEL(a_large_body_is_let_go)
OVER_MODEL(roles_that_no_template_prints_are_refused)
OVER_MODEL(arguments_come_as_the_template_takes_them)
OVER_MODEL(a_call_that_is_forced_opens_the_answer)
OVER_MODEL(what_is_wrong_is_said_by_name)

TEST_MAIN(TEST(with_defaults_are_openais), TEST(with_seeds_are_drawn_where_none_is_said), TEST(with_prompts_come_in_four_forms),
          TEST(with_messages_become_what_templates_take), TEST(with_roles_that_no_template_prints_are_refused),
          TEST(with_arguments_come_as_the_template_takes_them), TEST(with_messages_are_tokenized_as_a_chat_lays_them_out),
          TEST(with_a_large_body_is_let_go), TEST(with_a_call_that_is_forced_opens_the_answer), TEST(with_what_is_wrong_is_said_by_name))
