/* A server on a thread of its own, whose handler answers by path:
 *   /echo    the body, unchanged                  /what    what was read of the request
 *   /health  "ok"
 *   /keep    waits until the test lets it go       /stream  three parts
 *   /flood   parts without an end, as fast as they are read
 * Everything else is 404. */
#pragma once

#include "http_client.h"
#include "serve/http_server.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST_KEPT = 1024 };

typedef struct Fixture {
    HttpServer   *server;
    pthread_t     thread;
    int           port;
    Status        status;                    /* status of http_server_run */
    HttpExchange *kept[MOST_KEPT], *flooded; /* used by the server's thread and by posted calls */
    int           num_kept;
    atomic_int    requests, gone, waiting;
    atomic_int    refused, refused_status; /* number of refused requests; status of the last one */
    atomic_int    connections;             /* number of connections that the server reported last */
} Fixture;

static Str fixture_part(void)
{
    static char part[1 << 14];
    if (!part[0]) memset(part, 'x', sizeof part);
    return (Str){part, sizeof part};
}

static void fixture_flood(void *context)
{
    Fixture *self = context;
    if (!self->flooded) return;
    http_send(self->flooded, fixture_part());
    http_server_post(self->server, fixture_flood, self);
}

static void fixture_stream(HttpExchange *exchange)
{
    http_begin(exchange, 200, "text/event-stream");
    http_send(exchange, str_of("one "));
    http_send(exchange, str_of(""));
    http_send(exchange, str_of("two "));
    http_send(exchange, str_of("three"));
    http_end(exchange);
}

static void fixture_keep(Fixture *self, HttpExchange *exchange)
{
    http_set_user(exchange, self);
    self->kept[self->num_kept++] = exchange;
    atomic_fetch_add(&self->waiting, 1);
}

static void fixture_what(HttpExchange *exchange, const HttpRequest *request)
{
    StrBuf text = {0};
    strbuf_printf(&text, "%.*s %.*s?%.*s host %.*s", (int)request->method.len, request->method.data, (int)request->path.len,
                  request->path.data, (int)request->query.len, request->query.data, (int)request->host.len, request->host.data);
    http_add_field(exchange, "X-Test", "yes");
    http_reply(exchange, 200, "text/plain", (Str){text.data, text.len});
    strbuf_deinit(&text);
}

static void fixture_request(void *context, HttpExchange *exchange, const HttpRequest *request)
{
    Fixture *self = context;
    atomic_fetch_add(&self->requests, 1);
    if (str_equal(request->path, "/echo")) {
        http_reply(exchange, 200, "text/plain", request->body);
    } else if (str_equal(request->path, "/health")) {
        http_reply(exchange, 200, "text/plain", str_of("ok"));
    } else if (str_equal(request->path, "/what")) {
        fixture_what(exchange, request);
    } else if (str_equal(request->path, "/keep") && self->num_kept < MOST_KEPT) {
        fixture_keep(self, exchange);
    } else if (str_equal(request->path, "/stream")) {
        fixture_stream(exchange);
    } else if (str_equal(request->path, "/flood") && !self->flooded) {
        http_begin(exchange, 200, "text/plain");
        self->flooded = exchange;
        fixture_flood(self);
    } else {
        http_reply_error(exchange, 404, "there is nothing", NULL, "not_found");
    }
}

static void fixture_gone(void *context, HttpExchange *exchange, void *user)
{
    Fixture *self = context;
    if (self->flooded == exchange) self->flooded = NULL;
    for (int i = 0; i < self->num_kept; i++) {
        if (self->kept[i] != exchange) continue;
        EXPECT(user == self);
        self->kept[i] = self->kept[--self->num_kept];
        atomic_fetch_sub(&self->waiting, 1);
    }
    atomic_fetch_add(&self->gone, 1);
}

static void fixture_refused(void *context, int status, const char *message)
{
    Fixture *self = context;
    EXPECT(message && message[0]);
    atomic_store(&self->refused_status, status);
    atomic_fetch_add(&self->refused, 1);
}

/* Posted: answers all requests that were kept. */
__attribute__((unused)) static void fixture_let_go(void *context)
{
    Fixture *self = context;
    while (self->num_kept > 0) {
        HttpExchange *exchange = self->kept[--self->num_kept];
        atomic_fetch_sub(&self->waiting, 1);
        http_reply(exchange, 200, "text/plain", str_of("late"));
    }
}

static void fixture_count(void *context)
{
    Fixture *self = context;
    atomic_store(&self->connections, http_server_connections(self->server));
}

static void *fixture_run(void *context)
{
    Fixture *self = context;
    self->status = http_server_run(self->server);
    return NULL;
}

/* limits: NULL for the defaults. */
__attribute__((unused)) static Fixture *fixture_start(const HttpLimits *limits)
{
    Fixture          *self = calloc(1, sizeof *self);
    const HttpHandler handler = {self, fixture_request, fixture_gone, fixture_refused};
    EXPECT_OK(http_server_create(limits ? limits : &http_default_limits, &handler, &self->server));
    EXPECT_OK(http_server_listen(self->server, "127.0.0.1", 0));
    self->port = http_server_port(self->server);
    pthread_create(&self->thread, NULL, fixture_run, self);
    return self;
}

__attribute__((unused)) static void fixture_join(Fixture *self)
{
    pthread_join(self->thread, NULL);
    EXPECT_INT(self->status, OK);
    EXPECT_INT(atomic_load(&self->waiting), 0);
    EXPECT(!self->flooded);
    http_server_destroy(self->server);
    free(self);
}

__attribute__((unused)) static void fixture_stop(Fixture *self)
{
    http_server_stop(self->server);
    fixture_join(self);
}

/* Waits until a counter has the value. */
__attribute__((unused)) static bool fixture_wait(atomic_int *counter, int value)
{
    double end = client_now() + CLIENT_SECONDS;
    while (atomic_load(counter) != value && client_now() < end) client_sleep(.002);
    return atomic_load(counter) == value;
}

/* Waits until the server has this number of connections. */
__attribute__((unused)) static bool fixture_has_connections(Fixture *self, int value)
{
    double end = client_now() + CLIENT_SECONDS;
    do {
        http_server_post(self->server, fixture_count, self);
        client_sleep(.005);
    } while (atomic_load(&self->connections) != value && client_now() < end);
    return atomic_load(&self->connections) == value;
}
