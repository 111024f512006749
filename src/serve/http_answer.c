/* Answers: the head, a body that is whole or comes in chunks, and the form of errors. Bytes go into the connection's output buffer, which
 * the server's loop sends; nothing here closes a connection. */
#include "serve/http_server_internal.h"

#include "base/json.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct StatusName {
    int         status;
    const char *name;
} StatusName;

static const char *status_name(int status)
{
    static const StatusName names[] = {
        {200, "OK"},
        {201, "Created"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].status == status) return names[i].name;
    }
    return "Other";
}

/* ---- errors ---- */

static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static void write_text(StrBuf *out, const char *text)
{
    if (text) {
        json_write_string(out, text, strlen(text));
    } else {
        strbuf_puts(out, "null");
    }
}

void http_error_json(StrBuf *out, int status, const char *message, const char *param, const char *code)
{
    strbuf_puts(out, "{\"error\": {\"message\": ");
    write_text(out, message);
    strbuf_printf(out, ", \"type\": \"%s\", \"param\": ", error_type(status));
    write_text(out, param);
    strbuf_puts(out, ", \"code\": ");
    write_text(out, code);
    strbuf_puts(out, "}}");
}

/* ---- heads ---- */

/* The date as RFC 9110 writes it, whatever the locale. */
static void write_date(StrBuf *out)
{
    static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t                   now = time(NULL);
    struct tm                t;
    gmtime_r(&now, &t);
    strbuf_printf(out, "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", days[t.tm_wday], t.tm_mday, months[t.tm_mon], t.tm_year + 1900,
                  t.tm_hour, t.tm_min, t.tm_sec);
}

static void write_head(StrBuf *out, int status, const char *type)
{
    strbuf_printf(out, "HTTP/1.1 %d %s\r\n", status, status_name(status));
    write_date(out);
    if (type) strbuf_printf(out, "Content-Type: %s\r\n", type);
    strbuf_puts(out, "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n");
}

static void write_connection(StrBuf *out, const HttpExchange *exchange)
{
    if (!exchange->keeps) {
        strbuf_puts(out, "Connection: close\r\n");
    } else if (exchange->is_http_1_0) {
        strbuf_puts(out, "Connection: keep-alive\r\n");
    }
}

void http_tell_refusal(const HttpServer *server, int status, const char *message)
{
    if (server->handler.refused) server->handler.refused(server->handler.context, status, message);
}

void http_refusal(const HttpServer *server, StrBuf *out)
{
    bool        ends = server->is_finishing;
    const char *message = ends ? HTTP_FINISHES_MESSAGE : "the server has as many connections as it may have; try again later";
    StrBuf      body = {0};
    http_tell_refusal(server, 503, message);
    http_error_json(&body, 503, message, NULL, ends ? HTTP_FINISHES_CODE : "too_many_connections");
    write_head(out, 503, "application/json");
    strbuf_printf(out, "Retry-After: 1\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", body.len, body.data);
    strbuf_deinit(&body);
}

static bool is_plain_text(const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return false;
    }
    return true;
}

void http_add_field(HttpExchange *exchange, const char *name, const char *value)
{
    CHECK(exchange->state == CONNECTION_ANSWERS && !exchange->began);
    CHECK(is_plain_text(name) && is_plain_text(value));
    strbuf_printf(&exchange->fields, "%s: %s\r\n", name, value);
}

/* ---- answers ---- */

static struct evbuffer *output_of(HttpExchange *exchange)
{
    return bufferevent_get_output(exchange->stream);
}

static void put(HttpExchange *exchange, Str text)
{
    if (text.len && evbuffer_add(output_of(exchange), text.data, text.len) != 0) fatal_out_of_memory(text.len);
}

/* Sends the head: status and type, the added fields, then `end`, the field that says where the body ends. */
static void put_head(HttpExchange *exchange, int status, const char *type, const char *end)
{
    CHECK(exchange->state == CONNECTION_ANSWERS && !exchange->began);
    StrBuf head = {0};
    if (exchange->server->is_finishing) exchange->keeps = false;
    write_head(&head, status, type);
    strbuf_append(&head, exchange->fields.data, exchange->fields.len);
    write_connection(&head, exchange);
    strbuf_puts(&head, end);
    strbuf_puts(&head, "\r\n");
    put(exchange, strbuf_str(&head));
    strbuf_deinit(&head);
    strbuf_deinit(&exchange->fields);
    exchange->fields = (StrBuf){0};
    exchange->began = true;
}

/* Ends the exchange. The connection of a client that was too slow is closed by its timer. */
static void end(HttpExchange *exchange)
{
    if (!exchange->is_late) evtimer_del(exchange->timer);
    http_set_state(exchange, exchange->is_late ? CONNECTION_DROPPED : CONNECTION_FLUSHES);
}

void http_set_user(HttpExchange *exchange, void *user)
{
    exchange->user = user;
}

void http_reply(HttpExchange *exchange, int status, const char *type, Str body)
{
    char length[64] = "";
    if (status != 204 && status != 304) snprintf(length, sizeof length, "Content-Length: %zu\r\n", body.len);
    put_head(exchange, status, type, length);
    if (!exchange->is_head_request && length[0]) put(exchange, body);
    end(exchange);
}

void http_reply_error(HttpExchange *exchange, int status, const char *message, const char *param, const char *code)
{
    StrBuf body = {0};
    http_error_json(&body, status, message, param, code);
    http_reply(exchange, status, "application/json", strbuf_str(&body));
    strbuf_deinit(&body);
}

void http_begin(HttpExchange *exchange, int status, const char *type)
{
    exchange->is_chunked = !exchange->is_http_1_0;
    if (!exchange->is_chunked) exchange->keeps = false; /* the end of the connection marks the end of the body */
    put_head(exchange, status, type, exchange->is_chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

void http_send(HttpExchange *exchange, Str part)
{
    CHECK(exchange->state == CONNECTION_ANSWERS && exchange->began);
    if (part.len == 0 || exchange->is_head_request || exchange->is_late) return;
    if (evbuffer_get_length(output_of(exchange)) > exchange->server->limits.unsent) {
        exchange->is_late = true;
        event_active(exchange->timer, EV_TIMEOUT, 0); /* `gone` is called from the loop, never from within this call */
        return;
    }
    char size[32];
    snprintf(size, sizeof size, "%zx\r\n", part.len);
    if (exchange->is_chunked) put(exchange, str_of(size));
    put(exchange, part);
    if (exchange->is_chunked) put(exchange, str_of("\r\n"));
}

void http_end(HttpExchange *exchange)
{
    CHECK(exchange->state == CONNECTION_ANSWERS && exchange->began);
    if (exchange->is_chunked && !exchange->is_head_request && !exchange->is_late) put(exchange, str_of("0\r\n\r\n"));
    end(exchange);
}
