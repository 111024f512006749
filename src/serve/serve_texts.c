/* Requests for texts. A generation is one such request, with a choice for each text that it asks for. It lives until the engine has
 * reported the end of all its texts, even if its client goes earlier. */
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "serve/api_answer.h"
#include "serve/serve_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

typedef struct Text {
    Generation *generation;
    uint64_t    handle;
    bool        has_ended;
} Text;

struct Generation {
    Call          call;
    HttpExchange *exchange; /* NULL: it has been answered, or its client has gone */
    ApiRequest    request;
    ApiAnswer     answer;
    ApiChoice    *choices; /* (num_texts) answer.choices */
    Text         *texts;
    int           num_texts, num_open;
    bool          has_token, has_begun;
    Generation   *next;
};

/* ---- its life ---- */

static ApiChoice *choice_of(const Text *text)
{
    return &text->generation->choices[text - text->generation->texts];
}

static void destroy(Generation *g)
{
    Generation **at = &g->call.serve->generations;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    for (int i = 0; i < g->num_texts; i++) api_choice_deinit(&g->choices[i]);
    api_request_deinit(&g->request);
    free(g->choices);
    free(g->texts);
    free(g);
}

void texts_drop(Serve *serve)
{
    while (serve->generations) destroy(serve->generations);
}

static void cancel_rest(Generation *g)
{
    for (int i = 0; i < g->num_texts; i++)
        if (!g->texts[i].has_ended) engine_cancel(g->call.serve->engine, g->texts[i].handle);
}

void texts_gone(void *context, HttpExchange *exchange, void *user)
{
    Generation *g = user;
    (void)context;
    (void)exchange;
    if (!g) return;
    g->exchange = NULL;
    g->call.serve->metrics.num_gone++;
    serve_count(&g->call, 499, api_text_tokens(&g->answer));
    cancel_rest(g);
}

/* ---- answering ---- */

static void end_answer(Generation *g)
{
    Serve *serve = g->call.serve;
    if (!g->exchange) return;
    http_set_user(g->exchange, NULL);
    g->exchange = NULL;
    serve->metrics.prompt_tokens += api_prompt_tokens(&g->answer);
    serve->metrics.text_tokens += api_text_tokens(&g->answer);
    metrics_time(&serve->metrics.duration, clock_seconds() - g->call.begun);
}

static void answer_error(Generation *g, const EngineEvent *event)
{
    HttpExchange *exchange = g->exchange;
    int           status = event->is_refused ? 400 : 500;
    if (!exchange) return;
    end_answer(g);
    if (g->has_begun) { /* the status was sent */
        StrBuf part = {0};
        strbuf_puts(&part, "data: ");
        http_error_json(&part, status, event->error, NULL, NULL);
        strbuf_puts(&part, "\n\n");
        http_send(exchange, strbuf_str(&part));
        http_end(exchange);
        strbuf_deinit(&part);
        serve_count(&g->call, status, api_text_tokens(&g->answer));
    } else {
        serve_refuse(&g->call, exchange, status, event->error, NULL, NULL);
    }
    cancel_rest(g);
}

static void answer_part(Generation *g, ApiChoice *choice)
{
    StrBuf        part = {0};
    HttpExchange *exchange = g->exchange;
    if (!exchange) return;
    api_write_parts(&g->answer, choice, &part);
    if (!g->num_open) api_write_end(&g->answer, &part);
    if (part.len && !g->has_begun) http_begin(exchange, 200, "text/event-stream");
    g->has_begun |= part.len > 0;
    if (part.len) http_send(exchange, strbuf_str(&part));
    strbuf_deinit(&part);
    if (g->num_open) return;
    end_answer(g);
    http_end(exchange);
    serve_count(&g->call, 200, api_text_tokens(&g->answer));
}

static void answer_whole(Generation *g)
{
    StrBuf        body = {0};
    HttpExchange *exchange = g->exchange;
    if (!exchange) return;
    api_write(&g->answer, &body);
    end_answer(g);
    serve_count(&g->call, 200, api_text_tokens(&g->answer));
    http_reply(exchange, 200, "application/json", strbuf_str(&body));
    strbuf_deinit(&body);
}

/* Logs the text in one line, with newlines escaped; the log itself escapes other control characters. */
static void log_line(const Generation *g, const char *what, Str text)
{
    StrBuf line = {0};
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (c == '\n' || c == '\r')
            strbuf_puts(&line, c == '\n' ? "\\n" : "\\r");
        else
            strbuf_putc(&line, c);
    }
    log_info("%s %s: %s", g->answer.id, what, strbuf_cstr(&line));
    strbuf_deinit(&line);
}

static void log_text(const Generation *g, const ApiChoice *choice)
{
    char what[32];
    if (!g->call.serve->options.logs_requests) return;
    snprintf(what, sizeof what, "choice %d", choice->index);
    log_line(g, what, strbuf_str(&choice->content));
}

/* If the device failed, keeps the error and lets the server finish: a lost device doesn't come back. */
static void note_failure(Serve *serve, const EngineEvent *event)
{
    if (serve->failure.len || !engine_stats(serve->engine).has_failed) return;
    strbuf_puts(&serve->failure, event->error);
    http_server_finish(serve->http);
}

void texts_take(void *context, const EngineEvent *event)
{
    Text       *text = event->user;
    Generation *g = text->generation;
    Serve      *serve = context;
    if (event->kind == ENGINE_TOKEN && !g->has_token) metrics_time(&serve->metrics.first_token, clock_seconds() - g->call.begun);
    g->has_token |= event->kind == ENGINE_TOKEN;
    if (event->kind == ENGINE_END) {
        text->has_ended = true;
        g->num_open--;
        serve->num_texts--;
    }
    if (event->error) {
        note_failure(serve, event);
        answer_error(g, event);
    } else if (g->exchange) {
        api_choice_take(choice_of(text), event);
        if (text->has_ended) log_text(g, choice_of(text));
        if (g->request.streams)
            answer_part(g, choice_of(text));
        else if (!g->num_open)
            answer_whole(g);
    }
    if (!g->num_open) destroy(g);
}

/* ---- beginning ---- */

static void make_texts(Generation *g)
{
    const ApiRequest *q = &g->request;
    unsigned char     id[12] = {0};
    g->num_texts = g->num_open = (int)(q->num_prompts * q->num);
    g->texts = calloc_or_end((size_t)g->num_texts, sizeof *g->texts);
    g->choices = calloc_or_end((size_t)g->num_texts, sizeof *g->choices);
    g->answer = (ApiAnswer){.request = q, .created = time(NULL), .choices = g->choices, .num_choices = g->num_texts};
    if (getrandom(id, sizeof id, 0) < 0) memcpy(id, &g, sizeof g);
    int len = snprintf(g->answer.id, sizeof g->answer.id, "%s", q->route == API_CHAT ? "chatcmpl-" : "cmpl-");
    for (size_t i = 0; i < sizeof id; i++) len += snprintf(g->answer.id + len, sizeof g->answer.id - (size_t)len, "%02x", id[i]);
    for (int i = 0; i < g->num_texts; i++) {
        g->texts[i].generation = g;
        api_choice_init(&g->choices[i], q, g->call.serve->infer->tokenizer, &q->prompts[i / q->num], i);
    }
}

static void submit(Generation *g, int i)
{
    Serve            *serve = g->call.serve;
    const ApiRequest *q = &g->request;
    const ApiPrompt  *prompt = &q->prompts[i / q->num];
    EngineText        text = {.prompt = q->ids.data + prompt->first,
                              .prompt_len = prompt->num,
                              .given = q->echoes && q->wants_logprobs ? prompt->num - 1 : 0,
                              .max_tokens = q->max_tokens,
                              .sample = q->sample,
                              .stops = &q->stops,
                              .ignore_eos = q->ignore_eos,
                              .adapter = q->adapter,
                              .top = q->top < serve->best ? (int)q->top : serve->best,
                              .wants_json = q->wants_json || q->forced.num,
                              .leads = q->forced.leads,
                              .num_leads = q->forced.num,
                              .calls_tools = q->calls_tools,
                              .user = &g->texts[i]};
    text.sample.number = (uint32_t)(i % q->num);
    g->texts[i].handle = engine_submit(serve->engine, &text);
    serve->num_texts++;
}

/* Whether the answer is only the echoed prompt, and no token needs a log-probability: then the model isn't needed. */
static bool is_echo_alone(const Generation *g, int i)
{
    const ApiRequest *q = &g->request;
    return !q->max_tokens && !(q->wants_logprobs && q->prompts[i / q->num].num > 1);
}

static bool has_room(const Serve *serve, const ApiRequest *q)
{
    return serve->num_texts + q->num_prompts * q->num <= serve->options.places + serve->options.max_queue;
}

static void refuse_more(const Call *call, HttpExchange *exchange, const ApiRequest *q)
{
    const ServeOptions *o = &call->serve->options;
    char                message[256];
    bool                never = q->num_prompts * q->num > o->places + o->max_queue;
    snprintf(message, sizeof message,
             never ? "the request asks for %lld texts; expected at most %lld, all places and the queue"
                   : "the queue is full: %lld texts are asked for, and at most %lld may be made or wait; try again later",
             (long long)(q->num_prompts * q->num), (long long)(o->places + o->max_queue));
    if (!never) http_add_field(exchange, "Retry-After", "1");
    serve_refuse(call, exchange, never ? 400 : 429, message, NULL, never ? NULL : "queue_full");
}

static void log_prompt(const Generation *g)
{
    StrBuf text = {0};
    if (!g->call.serve->options.logs_requests) return;
    if (tokenizer_decode(g->call.serve->infer->tokenizer, g->request.ids.data, g->request.ids.len, false, &text) != OK) status_clear();
    log_line(g, "prompt", strbuf_str(&text));
    strbuf_deinit(&text);
}

/* Ends the texts that are only an echoed prompt; the engine makes all other texts. */
static void end_echoes(Generation *g)
{
    const EngineEvent end = {.kind = ENGINE_END, .reason = "length"};
    for (int i = 0; i < g->num_texts; i++) {
        if (!is_echo_alone(g, i)) continue;
        g->num_open--;
        g->texts[i].has_ended = true;
        api_choice_take(&g->choices[i], &end);
        if (g->request.streams) answer_part(g, &g->choices[i]);
    }
    if (g->num_open) return;
    if (!g->request.streams) answer_whole(g);
    destroy(g);
}

void texts_begin(const Call *call, HttpExchange *exchange, int route, Str body)
{
    Serve     *serve = call->serve;
    ApiRequest request;
    Status     status = api_read(&serve->model, route, body, &request);
    if (status != OK || !has_room(serve, &request)) {
        if (status != OK)
            serve_refuse_request(call, exchange, &request);
        else
            refuse_more(call, exchange, &request);
        api_request_deinit(&request);
        return;
    }
    Generation *g = calloc_or_end(1, sizeof *g);
    *g = (Generation){.call = *call, .exchange = exchange, .request = request, .next = serve->generations};
    serve->generations = g;
    make_texts(g);
    http_set_user(exchange, g);
    log_prompt(g);
    for (int i = 0; i < g->num_texts; i++)
        if (!is_echo_alone(g, i)) submit(g, i);
    end_echoes(g);
}
