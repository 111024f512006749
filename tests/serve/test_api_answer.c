/* The JSON of answers: whole and streamed answers say the same; tool calls; log-probabilities of tokens that are parts of characters. */
#include "base/json.h"
#include "serve/api_answer.h"
#include "serve/api_echo.h"

#include "test.h"
#include "tiny_tokenizer.h"

#include <string.h>

typedef struct Case {
    Tokenizer *tokenizer;
    ApiRequest request;
    ApiPrompt  prompt;
    ApiChoice  choice;
    ApiAnswer  answer;
    StrBuf     streamed;
} Case;

static void begin_with(Case *c, ApiRequest request, const char *tokenizer)
{
    *c = (Case){.request = request};
    EXPECT_OK(tokenizer_parse("test", tokenizer, strlen(tokenizer), &c->tokenizer));
    c->request.model = "m";
    c->request.num = 1;
    token_ids_push(&c->request.ids, 0);
    token_ids_push(&c->request.ids, 1);
    c->prompt = (ApiPrompt){.num = 2};
    if (request.echoes) api_echo(&c->request.arena, c->tokenizer, c->request.ids.data, &c->prompt);
    c->answer = (ApiAnswer){.request = &c->request, .id = "id", .created = 7, .choices = &c->choice, .num_choices = 1};
    api_choice_init(&c->choice, &c->request, c->tokenizer, &c->prompt, 0);
}

static void begin(Case *c, ApiRequest request)
{
    begin_with(c, request, tiny_tokenizer);
}

static void take(Case *c, EngineEvent event)
{
    api_choice_take(&c->choice, &event);
    if (c->request.streams) api_write_parts(&c->answer, &c->choice, &c->streamed);
}

static void take_text(Case *c, const char *text)
{
    take(c, (EngineEvent){.text = str_of(text)});
}

static void end(Case *c, const char *text, const char *reason)
{
    take(c, (EngineEvent){.kind = ENGINE_END, .text = str_of(text), .reason = reason});
    if (c->request.streams) api_write_end(&c->answer, &c->streamed);
}

static void finish(Case *c)
{
    api_choice_deinit(&c->choice);
    api_request_deinit(&c->request);
    tokenizer_destroy(c->tokenizer);
    strbuf_deinit(&c->streamed);
}

static void expect_whole(Case *c, const char *want)
{
    StrBuf    out = {0};
    Arena     arena = {0};
    JsonValue value;
    api_write(&c->answer, &out);
    EXPECT_OK(json_parse(&arena, "answer", out.data, out.len, &value));
    if (!strstr(out.data, want)) test_fail(__FILE__, __LINE__, "expected %s in %s", want, out.data);
    arena_deinit(&arena);
    strbuf_deinit(&out);
}

/* Every line is an event with JSON, or the last line [DONE]. */
static void expect_stream(Case *c, const char *want)
{
    Arena     arena = {0};
    JsonValue value;
    for (const char *at = c->streamed.data; *at;) {
        const char *stop = strstr(at, "\n\n");
        EXPECT(stop && strncmp(at, "data: ", 6) == 0);
        if (!stop) break;
        if (stop[2]) EXPECT_OK(json_parse(&arena, "part", at + 6, (size_t)(stop - at) - 6, &value));
        if (!stop[2]) EXPECT(strncmp(at, "data: [DONE]", 12) == 0);
        at = stop + 2;
    }
    if (!strstr(c->streamed.data, want)) test_fail(__FILE__, __LINE__, "expected %s in %s", want, c->streamed.data);
    arena_deinit(&arena);
}

static const char *const call_parts[] = {"hello <tool", "_call>{\"name\": \"add\", \"argum", "ents\": {\"a\": 1}}</tool_call", ">"};

static void take_call(Case *c)
{
    for (size_t i = 0; i < sizeof call_parts / sizeof *call_parts; i++) take_text(c, call_parts[i]);
    end(c, "", "eos");
}

static void calls_are_told_apart(void)
{
    Case c;
    begin(&c, (ApiRequest){.route = API_CHAT, .calls_tools = true});
    take_call(&c);
    expect_whole(&c, "\"content\":\"hello\",");
    expect_whole(&c, "\"function\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"}}]},");
    expect_whole(&c, "\"finish_reason\":\"tool_calls\"");
    finish(&c);
    begin(&c, (ApiRequest){.route = API_CHAT, .calls_tools = true, .streams = true});
    take_call(&c);
    expect_stream(&c, "\"delta\":{\"content\":\"hello\"}");
    expect_stream(&c, "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_");
    expect_stream(&c, "\"arguments\":\"{\\\"a\\\": 1}\"}}]}");
    expect_stream(&c, "\"finish_reason\":\"tool_calls\"");
    EXPECT(!strstr(c.streamed.data, "tool_call>"));
    finish(&c);
}

static void without_tools_a_call_is_text(void)
{
    Case c;
    begin(&c, (ApiRequest){.route = API_CHAT});
    take_call(&c);
    expect_whole(&c, "<tool_call>{");
    expect_whole(&c, "\"finish_reason\":\"stop\"");
    finish(&c);
}

static void a_call_that_is_cut_is_of_length(void)
{
    Case c;
    begin(&c, (ApiRequest){.route = API_CHAT, .calls_tools = true});
    take_text(&c, "<tool_call>{\"name\": \"add\"");
    end(&c, "", "length");
    expect_whole(&c, "\"content\":\"<tool_call>{");
    expect_whole(&c, "\"finish_reason\":\"length\"");
    finish(&c);
}

/* Forces a call of a function: the text then is only its arguments. */
static void force(Case *c, bool streams, const char *text, const char *reason)
{
    static const char *name = "add";
    static Str         lead = {"", 0};
    begin(c, (ApiRequest){.route = API_CHAT, .streams = streams, .forced = {.num = 1, .names = &name, .leads = &lead}});
    take_text(c, text);
    end(c, "", reason);
}

static void a_forced_call_that_is_cut_is_no_call(void)
{
    static const char *const reasons[][2] = {{"stop", "\"finish_reason\":\"stop\""}, {"length", "\"finish_reason\":\"length\""}};
    Case                     c;
    for (int i = 0; i < 2; i++) {
        force(&c, false, "{\"a", reasons[i][0]);
        expect_whole(&c, "\"arguments\":\"{\\\"a\"");
        expect_whole(&c, reasons[i][1]);
        finish(&c);
        force(&c, true, "{\"a", reasons[i][0]);
        expect_stream(&c, reasons[i][1]);
        finish(&c);
    }
    force(&c, false, "{\"a\": 1}", "eos");
    expect_whole(&c, "\"finish_reason\":\"tool_calls\"");
    finish(&c);
    force(&c, true, "{\"a\": 1}", "eos");
    expect_stream(&c, "\"finish_reason\":\"tool_calls\"");
    finish(&c);
}

static EngineEvent token_of(int32_t id, float logprob, size_t at, const char *text)
{
    return (EngineEvent){.id = id, .logprob = logprob, .at = at, .text = str_of(text)};
}

static void take_character(Case *c)
{
    static const int32_t ids[] = {TINY_E_FIRST, 3};
    static const float   logprobs[] = {-0.5f, -INFINITY};
    EngineEvent          event = token_of(TINY_E_FIRST, -0.5f, 0, "");
    event.top = 2;
    event.top_ids = ids;
    event.top_logprobs = logprobs;
    take(c, event);
    take(c, token_of(TINY_E_SECOND, -1, 0, "\xC3\xA9"));
    take(c, token_of(2, -2, 2, "c"));
    EngineEvent last = token_of(TINY_END, -3, 3, "");
    last.is_last = true;
    take(c, last);
    end(c, "", "eos");
}

static void parts_of_characters_have_bytes(void)
{
    Case c;
    begin(&c, (ApiRequest){.route = API_CHAT, .wants_logprobs = true, .top = 2});
    take_character(&c);
    expect_whole(
        &c, "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,\"bytes\":[195],\"top_logprobs\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,"
            "\"bytes\":[195]},{\"token\":\"d\",\"logprob\":-9999,\"bytes\":[100]}]}");
    expect_whole(&c,
                 "{\"token\":\"c\",\"logprob\":-2,\"bytes\":[99],\"top_logprobs\":[]}],\"refusal\":null}"); /* the end token isn't listed */
    expect_whole(&c, "\"completion_tokens\":3,");
    finish(&c);
    begin(&c, (ApiRequest){.route = API_TEXT, .wants_logprobs = true, .top = 2, .echoes = true});
    EngineEvent given = token_of(1, -4, 0, "");
    given.is_given = true;
    take(&c, given);
    take_character(&c);
    expect_whole(&c, "\"text\":\"ab\xC3\xA9"
                     "c\"");
    expect_whole(&c,
                 "{\"tokens\":[\"a\",\"b\",\"bytes:\\\\xc3\",\"bytes:\\\\xa9\",\"c\",\"<end>\"],\"token_logprobs\":[null,-4,-0.5,-1,-2,-3],"
                 "\"top_logprobs\":[null,{\"b\":-4},{\"bytes:\\\\xc3\":-0.5,\"d\":-9999},{\"bytes:\\\\xa9\":-1},{\"c\":-2},{\"<end>\":-3}],"
                 "\"text_offset\":[0,1,2,2,3,4]}");
    expect_whole(&c, "\"prompt_tokens\":2,\"completion_tokens\":3,\"total_tokens\":5");
    finish(&c);
}

static void streamed_log_probabilities_come_with_their_text(void)
{
    Case c;
    begin(&c, (ApiRequest){.route = API_TEXT, .wants_logprobs = true, .streams = true, .echoes = true, .tells_usage = true});
    take_character(&c);
    expect_stream(
        &c, "\"text\":\"ab\",\"logprobs\":{\"tokens\":[\"a\"],\"token_logprobs\":[null],\"top_logprobs\":[null],\"text_offset\":[0]}");
    expect_stream(&c, "\"text\":\"\xC3\xA9\",\"logprobs\":{\"tokens\":[\"bytes:\\\\xc3\",\"bytes:\\\\xa9\"],");
    expect_stream(
        &c, "\"text\":\"c\",\"logprobs\":{\"tokens\":[\"c\"],\"token_logprobs\":[-2],\"top_logprobs\":[{\"c\":-2}],\"text_offset\":[3]}");
    expect_stream(&c, "\"choices\":[],\"usage\":{\"prompt_tokens\":2,");
    finish(&c);
}

static void tokens_of_a_stop_text_are_left_out(void)
{
    Case c;
    begin(&c, (ApiRequest){.route = API_TEXT, .wants_logprobs = true});
    take(&c, token_of(0, -1, 0, "a"));
    take(&c, token_of(1, -2, 1, "")); /* held back until the character is complete */
    take(&c, token_of(2, -3, 2, ""));
    end(&c, "", "stop");
    expect_whole(&c, "{\"tokens\":[\"a\"],");
    expect_whole(&c, "\"completion_tokens\":3,");
    finish(&c);
}

/* One token is a quote and a colon, another the colon alone: the first one's text contains the other's. */
static const char quotes[] =
    "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"post_processor\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,\"\\\"\":1,\":\":2,\"\\\":\":3},\"merges\":[\"\\\" :\"]}}";

static void likeliest_tokens_are_told_by_whole_names(void)
{
    static const int32_t ids[] = {3, 2, 1};
    static const float   logprobs[] = {-0.5f, -1, -2};
    Case                 c;
    begin_with(&c, (ApiRequest){.route = API_TEXT, .wants_logprobs = true, .top = 3}, quotes);
    EngineEvent event = token_of(2, -3, 0, ":");
    event.top = 3;
    event.top_ids = ids;
    event.top_logprobs = logprobs;
    take(&c, event);
    event = token_of(2, -3, 1, ":");
    event.top = 1;
    event.top_ids = ids;
    event.top_logprobs = logprobs;
    take(&c, event);
    end(&c, "", "length");
    expect_whole(&c, "\"top_logprobs\":[{\"\\\":\":-0.5,\":\":-1,\"\\\"\":-2},{\"\\\":\":-0.5,\":\":-3}]");
    finish(&c);
}

TEST_MAIN(TEST(calls_are_told_apart), TEST(without_tools_a_call_is_text), TEST(a_call_that_is_cut_is_of_length),
          TEST(a_forced_call_that_is_cut_is_no_call), TEST(parts_of_characters_have_bytes),
          TEST(streamed_log_probabilities_come_with_their_text), TEST(tokens_of_a_stop_text_are_left_out),
          TEST(likeliest_tokens_are_told_by_whole_names))
