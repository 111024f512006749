/* Requests: who may ask, which route they take (routes.def), and the routes that are answered at once. */
#include "serve/serve_internal.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "serve/chat_page.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char json_type[] = "application/json";

/* ---- answers ---- */

void serve_count(const Call *call, int status, int64_t tokens)
{
    double ms = 1e3 * (clock_seconds() - call->begun);
    metrics_count(&call->serve->metrics, call->route, status);
    if (tokens >= 0)
        log_info("%s %s %d, %lld tokens, %.0f ms", call->method, call->path, status, (long long)tokens, ms);
    else
        log_info("%s %s %d, %.0f ms", call->method, call->path, status, ms);
}

void serve_reply(const Call *call, HttpExchange *exchange, int status, const char *type, const StrBuf *body)
{
    serve_count(call, status, -1);
    http_reply(exchange, status, type, strbuf_str(body));
}

void serve_refuse(const Call *call, HttpExchange *exchange, int status, const char *message, const char *param, const char *code)
{
    serve_count(call, status, -1);
    http_reply_error(exchange, status, message, param, code);
}

void serve_refuse_request(const Call *call, HttpExchange *exchange, const ApiRequest *request)
{
    serve_refuse(call, exchange, request->status, status_message(), request->param, request->code);
    status_clear();
}

/* ---- routes ---- */

static void get_page(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    (void)request;
    StrBuf policy = {0};
    chat_page_policy(&policy);
    http_add_field(exchange, "Content-Security-Policy", strbuf_cstr(&policy));
    strbuf_deinit(&policy);
    serve_count(call, 200, -1);
    http_reply(exchange, 200, "text/html; charset=utf-8", chat_page());
}

static void get_health(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    StrBuf body = {0};
    bool   has_failed = engine_stats(call->serve->engine).has_failed;
    (void)request;
    strbuf_printf(&body, "{\"status\":\"%s\"}\n", has_failed ? "failed" : "ok");
    serve_reply(call, exchange, has_failed ? 503 : 200, json_type, &body);
    strbuf_deinit(&body);
}

static const char *const paths[] = {
#define ROUTE(method, path, function, needs_key) path,
#include "serve/routes.def"
#undef ROUTE
};
enum { NUM_ROUTES = sizeof paths / sizeof *paths };
_Static_assert((int)NUM_ROUTES <= (int)METRICS_MOST_ROUTES, "metrics have a place for each route");

static void get_metrics(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    StrBuf     body = {0};
    MetricsNow now = {engine_stats(call->serve->engine), http_server_connections(call->serve->http)};
    (void)request;
    metrics_write(&call->serve->metrics, &now, paths, NUM_ROUTES, &body);
    serve_reply(call, exchange, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
    strbuf_deinit(&body);
}

/* Appends the JSON of a model: index 0 is the base, then the adapters. */
static void put_model(const Serve *serve, int index, StrBuf *out)
{
    const InferModel *infer = serve->infer;
    const char       *name = index ? infer->row_adapters[index - 1].name : serve->model.name;
    strbuf_puts(out, "{\"id\":");
    json_write_string(out, name, strlen(name));
    strbuf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"surogate\",\"max_model_len\":%lld,\"parent\":",
                  (long long)serve->created, (long long)serve->model.context);
    if (index)
        json_write_string(out, serve->model.name, strlen(serve->model.name));
    else
        strbuf_puts(out, "null");
    strbuf_putc(out, '}');
}

static void get_models(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    StrBuf body = {0};
    (void)request;
    strbuf_puts(&body, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i <= call->serve->infer->num_row_adapters; i++) {
        if (i) strbuf_putc(&body, ',');
        put_model(call->serve, i, &body);
    }
    strbuf_puts(&body, "]}\n");
    serve_reply(call, exchange, 200, json_type, &body);
    strbuf_deinit(&body);
}

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    return -1;
}

/* Decodes the end of a path: %2F and other escapes. */
static void decode_path(Str path, StrBuf *out)
{
    for (size_t i = 0; i < path.len; i++) {
        int high = i + 2 < path.len && path.data[i] == '%' ? hex_of(path.data[i + 1]) : -1, low = high >= 0 ? hex_of(path.data[i + 2]) : -1;
        strbuf_putc(out, low >= 0 ? (char)(high * 16 + low) : path.data[i]);
        if (low >= 0) i += 2;
    }
}

static void get_model(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    StrBuf name = {0}, body = {0};
    size_t skip = strlen(paths[call->route]);
    decode_path((Str){request->path.data + skip, request->path.len - skip}, &name);
    int index = api_find_model(&call->serve->model, strbuf_str(&name));
    if (index < 0) {
        strbuf_printf(&body, "there is no model %.100s; GET /v1/models lists them", strbuf_cstr(&name));
        serve_refuse(call, exchange, 404, body.data, "model", "model_not_found");
    } else {
        put_model(call->serve, index, &body);
        serve_reply(call, exchange, 200, json_type, &body);
    }
    strbuf_deinit(&name);
    strbuf_deinit(&body);
}

static void post_text(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    texts_begin(call, exchange, API_TEXT, request->body);
}

static void post_chat(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    texts_begin(call, exchange, API_CHAT, request->body);
}

static void post_tokenize(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    ApiRequest read;
    StrBuf     body = {0};
    if (api_read_tokenize(&call->serve->model, request->body, &read) == OK) {
        strbuf_printf(&body, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":[", read.ids.len, (long long)call->serve->model.context);
        for (size_t i = 0; i < read.ids.len; i++) strbuf_printf(&body, "%s%d", i ? "," : "", read.ids.data[i]);
        strbuf_puts(&body, "]}\n");
        serve_reply(call, exchange, 200, json_type, &body);
    } else {
        serve_refuse_request(call, exchange, &read);
    }
    strbuf_deinit(&body);
    api_request_deinit(&read);
}

static void post_detokenize(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    ApiRequest read;
    StrBuf     body = {0}, text = {0};
    Status     status = api_read_detokenize(&call->serve->model, request->body, &read);
    if (status == OK) status = tokenizer_decode(call->serve->infer->tokenizer, read.ids.data, read.ids.len, false, &text);
    if (status == OK) {
        strbuf_puts(&body, "{\"prompt\":");
        json_write_string(&body, strbuf_cstr(&text), text.len);
        strbuf_puts(&body, "}\n");
        serve_reply(call, exchange, 200, json_type, &body);
    } else {
        serve_refuse_request(call, exchange, &read);
    }
    strbuf_deinit(&body);
    strbuf_deinit(&text);
    api_request_deinit(&read);
}

static void refuse_embeddings(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    (void)request;
    serve_refuse(call, exchange, 404, "this server makes no embeddings: its models write text (/v1/completions, /v1/chat/completions)",
                 NULL, NULL);
}

static void refuse_responses(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    (void)request;
    serve_refuse(call, exchange, 404, "this server has no /v1/responses: use /v1/chat/completions", NULL, NULL);
}

typedef struct Route {
    const char *method;
    void (*run)(const Call *call, HttpExchange *exchange, const HttpRequest *request);
    bool needs_key;
} Route;

static const Route routes[] = {
#define ROUTE(method, path, function, needs_key) {#method, function, needs_key},
#include "serve/routes.def"
#undef ROUTE
};

static bool takes_path(int route, Str path)
{
    size_t len = strlen(paths[route]);
    bool   is_prefix = len > 1 && paths[route][len - 1] == '/';
    return is_prefix ? path.len > len && memcmp(path.data, paths[route], len) == 0 : str_equal(path, paths[route]);
}

/* ---- who may ask ---- */

/* Removes the port of "name:port" or "[address]:port"; other hosts stay the same. */
static Str without_port(Str host)
{
    const char *bracket = host.len && host.data[0] == '[' ? memchr(host.data, ']', host.len) : NULL;
    const char *from = bracket ? bracket : host.data;
    const char *colon = host.len ? memchr(from, ':', host.len - (size_t)(from - host.data)) : NULL;
    return colon ? (Str){host.data, (size_t)(colon - host.data)} : host;
}

static bool equals_name(Str host, Str name)
{
    return host.len == name.len && strncasecmp(host.data, name.data, name.len) == 0;
}

/* Whether the Host field names this server. A foreign page whose name resolves to this machine (DNS rebinding) sends its own name. */
static bool knows_host(const Serve *serve, Str host)
{
    const StrList *hosts = serve->options.hosts;
    if (!serve->is_local || http_is_local_name(host)) return true;
    for (size_t i = 0; hosts && i < hosts->count; i++)
        if (equals_name(without_port(host), str_of(hosts->items[i]))) return true;
    return false;
}

/* A browser tells in Origin which page asks. Only this server's own page may. */
static bool knows_origin(Str origin, Str host)
{
    if (!origin.len) return true;
    const char *name = memmem(origin.data, origin.len, "://", 3);
    return name && equals_name((Str){name + 3, origin.len - (size_t)(name + 3 - origin.data)}, host);
}

/* Compares in a time that doesn't depend on where the keys differ. */
static bool equals_key(Str given, const char *key)
{
    size_t   len = strlen(key);
    unsigned differs = given.len != len;
    for (size_t i = 0; i < given.len; i++) differs |= (unsigned char)given.data[i] ^ (unsigned char)key[len ? i % len : 0];
    return differs == 0;
}

static bool has_key(const Serve *serve, Str authorization)
{
    static const char scheme[] = "Bearer ";
    const size_t      skip = sizeof scheme - 1;
    bool              found = false;
    if (authorization.len < skip || strncasecmp(authorization.data, scheme, skip) != 0) return false;
    for (size_t i = 0; i < serve->keys.count; i++)
        found |= equals_key((Str){authorization.data + skip, authorization.len - skip}, serve->keys.items[i]);
    return found;
}

static bool is_json(Str type)
{
    return type.len >= sizeof json_type - 1 && strncasecmp(type.data, json_type, sizeof json_type - 1) == 0;
}

/* ---- requests ---- */

static void refuse_path(Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    char        message[256];
    const char *allowed = NULL;
    for (int i = 0; i < NUM_ROUTES; i++)
        if (takes_path(i, request->path)) allowed = routes[i].method;
    if (allowed) {
        http_add_field(exchange, "Allow", strcmp(allowed, "GET") == 0 ? "GET, HEAD" : allowed);
        snprintf(message, sizeof message, "%s: expected %s, not %s", call->path, allowed, call->method);
    } else {
        snprintf(message, sizeof message, "there is no %s here; see /v1/models, /v1/completions and /v1/chat/completions", call->path);
    }
    serve_refuse(call, exchange, allowed ? 405 : 404, message, NULL, NULL);
}

static void refuse_key(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    http_add_field(exchange, "WWW-Authenticate", "Bearer");
    serve_refuse(call, exchange, 401,
                 request->authorization.len ? "the API key isn't one of this server's" : "an API key is needed: Authorization: Bearer KEY",
                 NULL, "invalid_api_key");
}

static bool refuse_stranger(const Call *call, HttpExchange *exchange, const HttpRequest *request)
{
    char message[256];
    bool is_known = knows_host(call->serve, request->host);
    if (is_known && knows_origin(request->origin, request->host)) return false;
    if (is_known)
        snprintf(message, sizeof message, "pages of %.100s may not ask this server", strndupa(request->origin.data, request->origin.len));
    else
        snprintf(message, sizeof message, "the Host %.100s isn't a name of this server: start it with --allow-host, or --host",
                 request->host.len ? strndupa(request->host.data, request->host.len) : "(none)");
    serve_refuse(call, exchange, 403, message, NULL, NULL);
    return true;
}

void serve_refused(void *context, int status, const char *message)
{
    Serve *serve = context;
    metrics_count(&serve->metrics, NUM_ROUTES, status);
    log_info("refused, %d: %s", status, message);
}

void serve_request(void *context, HttpExchange *exchange, const HttpRequest *request)
{
    Serve *serve = context;
    Call   call = {.serve = serve, .route = NUM_ROUTES, .begun = clock_seconds()};
    snprintf(call.method, sizeof call.method, "%.*s", (int)(request->method.len < 8 ? request->method.len : 7), request->method.data);
    snprintf(call.path, sizeof call.path, "%.*s", (int)(request->path.len < 64 ? request->path.len : 63), request->path.data);
    for (int i = 0; i < NUM_ROUTES && call.route == NUM_ROUTES; i++)
        if (takes_path(i, request->path) && str_equal(request->method, routes[i].method)) call.route = i;
    if (refuse_stranger(&call, exchange, request)) return;
    if (call.route == NUM_ROUTES) {
        refuse_path(&call, exchange, request);
        return;
    }
    const Route *route = &routes[call.route];
    if (route->needs_key && serve->keys.count && !has_key(serve, request->authorization))
        refuse_key(&call, exchange, request);
    else if (strcmp(route->method, "POST") == 0 && !is_json(request->content_type))
        serve_refuse(&call, exchange, 415, "the body's type isn't JSON: expected the header Content-Type: application/json", NULL, NULL);
    else
        route->run(&call, exchange, request);
}
