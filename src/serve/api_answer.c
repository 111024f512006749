/* See api_answer.h. */
#include "serve/api_answer.h"

#include "base/array.h"
#include "base/json.h"
#include "base/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { LEAST_LOGPROB = -9999 }; /* the value sent for -inf (a token that can't be chosen): JSON has no infinity */

/* ---- what is told of a text ---- */

static void take_text(void *context, Str text)
{
    ApiChoice *c = context;
    strbuf_append(&c->content, text.data, text.len);
}

static void take_call(void *context, Str name, Str arguments)
{
    ApiChoice *c = context;
    uint64_t   id[2] = {0};
    if (getrandom(id, sizeof id, 0) < 0) id[0] = (uint64_t)c->num_calls;
    if (c->num_calls) strbuf_putc(&c->calls, ',');
    strbuf_putc(&c->calls, '{');
    if (c->request->streams) strbuf_printf(&c->calls, "\"index\":%d,", c->num_calls);
    strbuf_printf(&c->calls, "\"id\":\"call_%016llx%08llx\",\"type\":\"function\",\"function\":{\"name\":", (unsigned long long)id[0],
                  (unsigned long long)(id[1] & UINT32_MAX));
    json_write_string(&c->calls, name.data, name.len);
    strbuf_puts(&c->calls, ",\"arguments\":");
    json_write_string(&c->calls, arguments.data, arguments.len);
    strbuf_puts(&c->calls, "}}");
    c->num_calls++;
}

/* Writes the forced call with its arguments so far, even if they are incomplete; writes nothing if its name is incomplete. */
static void tell_forced(ApiChoice *c)
{
    Str arguments;
    int call = forced_call_read(&c->request->forced, strbuf_str(&c->forced), &arguments);
    if (call >= 0) take_call(c, str_of(c->request->forced.names[call]), arguments);
    c->is_cut = !forced_call_is_whole(arguments);
}

void api_choice_init(ApiChoice *c, const ApiRequest *request, const Tokenizer *tokenizer, const ApiPrompt *prompt, int index)
{
    *c = (ApiChoice){.request = request, .tokenizer = tokenizer, .prompt = prompt, .index = index};
    tool_reader_init(&c->reader, (ToolSink){c, take_text, take_call});
    if (request->echoes) strbuf_append(&c->content, prompt->echo.data, prompt->echo.len);
}

void api_choice_deinit(ApiChoice *c)
{
    tool_reader_deinit(&c->reader);
    strbuf_deinit(&c->content);
    strbuf_deinit(&c->calls);
    strbuf_deinit(&c->forced);
    free(c->tokens);
    free(c->tops);
    *c = (ApiChoice){0};
}

static void take_token(ApiChoice *c, const EngineEvent *event)
{
    size_t top = (size_t)event->top;
    c->tokens = array_room(c->tokens, c->num_tokens + 1, &c->capacity, sizeof *c->tokens);
    c->tops = array_room(c->tops, c->num_tops + top, &c->tops_capacity, sizeof *c->tops);
    c->tokens[c->num_tokens++] = (ApiToken){
        .own = {event->id, event->logprob}, .first_top = c->num_tops, .num_top = event->top, .at = event->at, .is_given = event->is_given};
    for (size_t i = 0; i < top; i++) c->tops[c->num_tops++] = (ApiTop){event->top_ids[i], event->top_logprobs[i]};
}

void api_choice_take(ApiChoice *c, const EngineEvent *event)
{
    bool is_token = event->kind == ENGINE_TOKEN;
    if (is_token) c->count += !event->is_given && !event->is_last;
    if (is_token && c->request->wants_logprobs && (!event->is_last || c->request->route == API_TEXT)) take_token(c, event);
    c->text_bytes += event->text.len;
    if (c->request->forced.num)
        strbuf_append(&c->forced, event->text.data, event->text.len);
    else if (c->request->calls_tools)
        tool_reader_push(&c->reader, event->text);
    else
        take_text(c, event->text);
    if (is_token) return;
    if (c->request->forced.num)
        tell_forced(c);
    else if (c->request->calls_tools)
        tool_reader_end(&c->reader);
    c->reason = event->reason ? event->reason : "stopped";
    bool at_stop_text = strcmp(c->reason, "stop") == 0; /* the tokens of the stop text are no part of the text */
    while (at_stop_text && c->num_tokens && !c->tokens[c->num_tokens - 1].is_given && c->tokens[c->num_tokens - 1].at >= c->text_bytes)
        c->num_tokens--;
}

int64_t api_prompt_tokens(const ApiAnswer *a)
{
    return (int64_t)a->request->ids.len;
}

int64_t api_text_tokens(const ApiAnswer *a)
{
    int64_t count = 0;
    for (int i = 0; i < a->num_choices; i++) count += a->choices[i].count;
    return count;
}

/* ---- log-probabilities ---- */

static void put_logprob(StrBuf *out, float logprob)
{
    if (isfinite(logprob))
        strbuf_printf(out, "%.9g", (double)logprob);
    else
        strbuf_printf(out, "%d", LEAST_LOGPROB);
}

/* Bytes of a token. A token whose text depends on the token before it is decoded as if it were alone. */
static void token_bytes(const ApiChoice *c, int32_t id, StrBuf *out)
{
    strbuf_clear(out);
    if (tokenizer_append_bytes(c->tokenizer, id, out) == OK) return;
    status_clear();
    if (tokenizer_decode(c->tokenizer, &id, 1, false, out) != OK) status_clear();
}

static bool is_utf8(const StrBuf *bytes)
{
    StrBuf quoted = {0};
    json_write_string(&quoted, strbuf_cstr(bytes), bytes->len); /* bytes that aren't UTF-8 become U+FFFD */
    bool is_whole =
        !memmem(strbuf_cstr(&quoted), quoted.len, "\xEF\xBF\xBD", 3) || memmem(strbuf_cstr(bytes), bytes->len, "\xEF\xBF\xBD", 3);
    strbuf_deinit(&quoted);
    return is_whole;
}

/* A token as a JSON string; bytes that aren't whole characters are written as "bytes:\xe2\x80". */
static void put_token(const ApiChoice *c, int32_t id, StrBuf *out)
{
    StrBuf bytes = {0}, name = {0};
    token_bytes(c, id, &bytes);
    if (!is_utf8(&bytes)) {
        strbuf_puts(&name, "bytes:");
        for (size_t i = 0; i < bytes.len; i++) strbuf_printf(&name, "\\x%02x", (unsigned char)bytes.data[i]);
        json_write_string(out, name.data, name.len);
    } else {
        json_write_string(out, strbuf_cstr(&bytes), bytes.len);
    }
    strbuf_deinit(&bytes);
    strbuf_deinit(&name);
}

/* Number of tokens that may be sent: their text is settled. */
static size_t ready_tokens(const ApiChoice *c)
{
    size_t count = c->num_tokens;
    while (!c->reason && count > c->sent_tokens && !c->tokens[count - 1].is_given && c->tokens[count - 1].at >= c->text_bytes) count--;
    return count;
}

/* {"token": logprob, ...} of the likeliest tokens and the chosen one. A token whose name is already in the object is left out. */
static void put_top_object(const ApiChoice *c, const ApiToken *token, StrBuf *out)
{
    StrBuf one = {0}, names = {0}; /* the names written so far, each between newlines; JSON escapes newlines within a name */
    bool   has_own = false, has_one = false;
    strbuf_putc(&names, '\n');
    strbuf_putc(out, '{');
    for (int i = 0; i <= token->num_top; i++) {
        bool          is_own = i == token->num_top;
        const ApiTop *top = is_own ? &token->own : &c->tops[token->first_top + (size_t)i];
        if (is_own && has_own) break;
        has_own |= top->id == token->own.id;
        strbuf_clear(&one);
        strbuf_putc(&one, '\n');
        put_token(c, top->id, &one);
        strbuf_putc(&one, '\n');
        if (memmem(names.data, names.len, one.data, one.len)) continue;
        strbuf_append(&names, one.data + 1, one.len - 1);
        if (has_one) strbuf_putc(out, ',');
        has_one = true;
        strbuf_append(out, one.data + 1, one.len - 2);
        strbuf_putc(out, ':');
        put_logprob(out, top->logprob);
    }
    strbuf_putc(out, '}');
    strbuf_deinit(&one);
    strbuf_deinit(&names);
}

static size_t count_characters(const char *text, size_t len)
{
    size_t count = 0;
    for (size_t i = 0; i < len; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* Appends for each token in [first, end) how many characters of the text precede it; the text includes an echoed prompt. Tokens that are
 * given are the prompt's tokens, in order. */
static void put_offsets(const ApiChoice *c, size_t first, size_t end, size_t prompt_bytes, StrBuf *out)
{
    size_t done = 0, characters = 0, num_given = 0;
    for (size_t i = 0; i < end; i++) {
        const ApiToken *token = &c->tokens[i];
        size_t          begin = prompt_bytes + token->at, offset;
        if (token->is_given) {
            num_given++; /* the first given token is the prompt's second: the prompt's first token has no log-probability */
            offset = c->prompt->offsets[num_given];
        } else {
            if (begin > c->content.len) begin = c->content.len;
            if (begin > done) characters += count_characters(c->content.data + done, begin - done);
            if (begin > done) done = begin;
            offset = characters;
        }
        if (i >= first) strbuf_printf(out, "%s%zu", out->data[out->len - 1] == '[' ? "" : ",", offset);
    }
}

/* The log-probabilities of /v1/completions: four lists. The first token of an echoed prompt has no log-probability. */
static void put_text_logprobs(const ApiChoice *c, size_t first, size_t end, StrBuf *out)
{
    bool   has_first = c->request->echoes && !c->has_told_prompt;
    size_t prompt_bytes = c->content.len - c->text_bytes;
    strbuf_puts(out, "{\"tokens\":[");
    if (has_first) put_token(c, c->request->ids.data[c->prompt->first], out);
    for (size_t i = first; i < end; i++) {
        if (i > first || has_first) strbuf_putc(out, ',');
        put_token(c, c->tokens[i].own.id, out);
    }
    strbuf_printf(out, "],\"token_logprobs\":[%s", has_first ? "null" : "");
    for (size_t i = first; i < end; i++) {
        if (i > first || has_first) strbuf_putc(out, ',');
        put_logprob(out, c->tokens[i].own.logprob);
    }
    strbuf_printf(out, "],\"top_logprobs\":[%s", has_first ? "null" : "");
    for (size_t i = first; i < end; i++) {
        if (i > first || has_first) strbuf_putc(out, ',');
        put_top_object(c, &c->tokens[i], out);
    }
    strbuf_printf(out, "],\"text_offset\":[%s", has_first ? "0" : "");
    put_offsets(c, first, end, prompt_bytes, out);
    strbuf_puts(out, "]}");
}

static void put_chat_token(const ApiChoice *c, const ApiTop *top, StrBuf *out)
{
    StrBuf bytes = {0};
    token_bytes(c, top->id, &bytes);
    strbuf_puts(out, "{\"token\":");
    json_write_string(out, strbuf_cstr(&bytes), bytes.len);
    strbuf_puts(out, ",\"logprob\":");
    put_logprob(out, top->logprob);
    strbuf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++) strbuf_printf(out, "%s%d", i ? "," : "", (unsigned char)bytes.data[i]);
    strbuf_putc(out, ']');
    strbuf_deinit(&bytes);
}

static void put_chat_logprobs(const ApiChoice *c, size_t first, size_t end, StrBuf *out)
{
    strbuf_puts(out, "{\"content\":[");
    for (size_t i = first; i < end; i++) {
        const ApiToken *token = &c->tokens[i];
        if (i > first) strbuf_putc(out, ',');
        put_chat_token(c, &token->own, out);
        strbuf_puts(out, ",\"top_logprobs\":[");
        for (int k = 0; k < token->num_top; k++) {
            if (k) strbuf_putc(out, ',');
            put_chat_token(c, &c->tops[token->first_top + (size_t)k], out);
            strbuf_putc(out, '}');
        }
        strbuf_puts(out, "]}");
    }
    strbuf_puts(out, "],\"refusal\":null}");
}

static void put_logprobs(const ApiChoice *c, size_t first, size_t end, StrBuf *out)
{
    strbuf_puts(out, ",\"logprobs\":");
    if (!c->request->wants_logprobs)
        strbuf_puts(out, "null");
    else if (c->request->route == API_CHAT)
        put_chat_logprobs(c, first, end, out);
    else
        put_text_logprobs(c, first, end, out);
}

/* ---- answers ---- */

/* OpenAI's word for the reason. */
static const char *finish_reason(const ApiChoice *c)
{
    if (strcmp(c->reason, "length") == 0 || strcmp(c->reason, "context") == 0) return "length";
    return c->num_calls && !c->is_cut ? "tool_calls" : "stop";
}

static void put_head(const ApiAnswer *a, bool is_part, StrBuf *out)
{
    bool is_chat = a->request->route == API_CHAT;
    strbuf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", a->id,
                  !is_chat  ? "text_completion"
                  : is_part ? "chat.completion.chunk"
                            : "chat.completion",
                  (long long)a->created);
    json_write_string(out, a->request->model, strlen(a->request->model));
    strbuf_puts(out, ",\"choices\":[");
}

static void put_usage(const ApiAnswer *a, StrBuf *out)
{
    long long prompt = (long long)api_prompt_tokens(a), text = (long long)api_text_tokens(a);
    strbuf_printf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld}", prompt, text, prompt + text);
}

static void put_content(const ApiChoice *c, StrBuf *out)
{
    bool is_chat = c->request->route == API_CHAT;
    strbuf_puts(out, is_chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"text\":");
    if (c->num_calls && !c->content.len)
        strbuf_puts(out, "null");
    else
        json_write_string(out, strbuf_cstr(&c->content), c->content.len);
    if (is_chat) strbuf_puts(out, ",\"refusal\":null");
    if (c->num_calls) strbuf_printf(out, ",\"tool_calls\":[%s]", c->calls.data);
    if (is_chat) strbuf_putc(out, '}');
}

void api_write(const ApiAnswer *a, StrBuf *out)
{
    put_head(a, false, out);
    for (int i = 0; i < a->num_choices; i++) {
        const ApiChoice *c = &a->choices[i];
        strbuf_printf(out, "%s{\"index\":%d", i ? "," : "", c->index);
        put_content(c, out);
        put_logprobs(c, 0, c->num_tokens, out);
        strbuf_printf(out, ",\"finish_reason\":\"%s\"}", finish_reason(c));
    }
    strbuf_putc(out, ']');
    put_usage(a, out);
    strbuf_putc(out, '}');
}

static void begin_part(const ApiAnswer *a, const ApiChoice *c, StrBuf *out)
{
    strbuf_puts(out, "data: ");
    put_head(a, true, out);
    strbuf_printf(out, "{\"index\":%d", c->index);
}

static void end_part(const ApiAnswer *a, const char *reason, StrBuf *out)
{
    strbuf_puts(out, ",\"finish_reason\":");
    if (reason)
        strbuf_printf(out, "\"%s\"}]", reason);
    else
        strbuf_puts(out, "null}]");
    strbuf_puts(out, a->request->tells_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void put_new_content(ApiChoice *c, StrBuf *out)
{
    bool is_chat = c->request->route == API_CHAT;
    strbuf_puts(out, is_chat ? ",\"delta\":{\"content\":" : ",\"text\":");
    json_write_string(out, strbuf_cstr(&c->content) + c->sent_content, c->content.len - c->sent_content);
    if (is_chat) strbuf_putc(out, '}');
    c->sent_content = c->content.len;
}

static void write_content(const ApiAnswer *a, ApiChoice *c, StrBuf *out)
{
    size_t end = ready_tokens(c);
    bool   has_tokens = c->request->wants_logprobs && end > c->sent_tokens;
    if (c->content.len == c->sent_content && !has_tokens) return;
    begin_part(a, c, out);
    put_new_content(c, out);
    put_logprobs(c, c->sent_tokens, end, out);
    c->has_told_prompt = true;
    c->sent_tokens = end;
    end_part(a, NULL, out);
}

static void write_calls(const ApiAnswer *a, ApiChoice *c, StrBuf *out)
{
    size_t begin = c->sent_calls + (c->sent_calls > 0); /* skips the comma after the calls already sent */
    if (c->calls.len == c->sent_calls) return;
    begin_part(a, c, out);
    strbuf_printf(out, ",\"delta\":{\"tool_calls\":[%s]},\"logprobs\":null", c->calls.data + begin);
    c->sent_calls = c->calls.len;
    end_part(a, NULL, out);
}

void api_write_parts(const ApiAnswer *a, ApiChoice *c, StrBuf *out)
{
    bool is_chat = a->request->route == API_CHAT;
    if (!c->has_begun && is_chat) {
        begin_part(a, c, out);
        strbuf_puts(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
        end_part(a, NULL, out);
    }
    c->has_begun = true;
    write_content(a, c, out);
    write_calls(a, c, out);
    if (!c->reason) return;
    begin_part(a, c, out);
    strbuf_printf(out, ",%s,\"logprobs\":null", is_chat ? "\"delta\":{}" : "\"text\":\"\"");
    end_part(a, finish_reason(c), out);
}

void api_write_end(const ApiAnswer *a, StrBuf *out)
{
    if (a->request->tells_usage) {
        strbuf_puts(out, "data: ");
        put_head(a, true, out);
        strbuf_putc(out, ']');
        put_usage(a, out);
        strbuf_puts(out, "}\n\n");
    }
    strbuf_puts(out, "data: [DONE]\n\n");
}
