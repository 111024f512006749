/* The HTTP server over real sockets: what clients receive, whatever other clients do. */
#include "base/json.h"
#include "http_fixture.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define ECHO(length, body) "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: " length "\r\n\r\n" body

/* Sends a request and compares status and body. */
static void expect_reply(Client *client, const char *request, int status, const char *body)
{
    Reply reply = client_ask(client, request);
    EXPECT_INT(reply.status, status);
    if (body) EXPECT_STR(strbuf_cstr(&reply.body), body);
    reply_clear(&reply);
}

static void expect_next(Client *client, int status, const char *body)
{
    expect_reply(client, "", status, body);
}

/* A new connection is served. */
static void expect_serves(Fixture *server)
{
    Client client = client_open(server->port);
    expect_reply(&client, ECHO("5", "hello"), 200, "hello");
    client_close(&client);
}

static void connections_are_kept(void)
{
    Fixture *server = fixture_start(NULL);
    Client   client = client_open(server->port);
    expect_reply(&client, ECHO("3", "abc"), 200, "abc");
    expect_reply(&client, ECHO("0", ""), 200, "");
    expect_reply(&client, GET("/what?a=b"), 200, "GET /what?a=b host localhost");
    expect_reply(&client, GET("/stream"), 200, "one two three");
    expect_reply(&client, GET("/nothing"), 404, NULL);
    expect_reply(&client, ECHO("3", "abc"), 200, "abc");
    expect_reply(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", 200, "x");
    EXPECT(client_was_closed(&client));
    client_close(&client);
    fixture_stop(server);
}

static void heads_of_answers(void)
{
    Fixture *server = fixture_start(NULL);
    Client   client = client_open(server->port);
    Reply    reply = client_ask(&client, GET("/what"));
    EXPECT_CONTAINS(strbuf_cstr(&reply.head), "HTTP/1.1 200 OK\nDate: ");
    EXPECT_CONTAINS(strbuf_cstr(&reply.head), " GMT\nContent-Type: text/plain\nCache-Control: no-store\n");
    EXPECT_CONTAINS(strbuf_cstr(&reply.head), "\nX-Test: yes\nContent-Length: 25\n");
    EXPECT(!reply.closes);
    reply_clear(&reply);
    reply = client_ask(&client, "HEAD /what HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_CONTAINS(strbuf_cstr(&reply.head), "\nContent-Length: 25\n");
    reply_clear(&reply);
    reply = client_ask(&client, "HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_CONTAINS(strbuf_cstr(&reply.head), "\nTransfer-Encoding: chunked\n");
    reply_clear(&reply);
    reply = client_ask(&client, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_INT(reply.status, 204);
    EXPECT_CONTAINS(strbuf_cstr(&reply.head), "\nAllow: GET, HEAD, POST");
    reply_clear(&reply);
    expect_reply(&client, GET("/stream"), 200, "one two three"); /* no bytes were left between answers */
    client_close(&client);
    fixture_stop(server);
}

static void http_1_0(void)
{
    Fixture *server = fixture_start(NULL);
    Client   client = client_open(server->port);
    expect_reply(&client, "POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", 200, "x");
    Reply reply = client_ask(
        &client, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"); /* the end of the body is the end of the connection */
    EXPECT_STR(strbuf_cstr(&reply.body), "one two three");
    EXPECT(reply.closes);
    reply_clear(&reply);
    client_close(&client);
    client = client_open(server->port);
    expect_reply(&client, "GET /what HTTP/1.0\r\n\r\n", 200, "GET /what? host ");
    EXPECT(client_was_closed(&client));
    client_close(&client);
    fixture_stop(server);
}

static void bodies_come_in_any_way(void)
{
    Fixture   *server = fixture_start(NULL);
    Client     client = client_open(server->port);
    const char chunked[] =
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWiki\r\n5;x=y\r\npedia\r\n0\r\nA: b\r\n\r\n";
    expect_reply(&client, chunked, 200, "Wikipedia");
    for (size_t i = 0; i < sizeof chunked - 1; i++) {
        client_send(&client, chunked + i, 1);
        if (i % 8 == 0) client_sleep(.001);
    }
    expect_next(&client, 200, "Wikipedia");
    client_puts(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    StrBuf line = {0};
    EXPECT(client_line(&client, &line));
    EXPECT_STR(strbuf_cstr(&line), "HTTP/1.1 100 Continue");
    EXPECT(client_line(&client, NULL));
    strbuf_deinit(&line);
    client_puts(&client, "ok");
    expect_next(&client, 200, "ok");
    StrBuf large = {0}; /* 4 MiB, the limit */
    strbuf_printf(&large, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 4 << 20);
    for (int i = 0; i < 4 << 20; i++) strbuf_putc(&large, (char)('a' + i % 23));
    EXPECT(client_send(&client, large.data, large.len));
    Reply reply = client_reply(&client, true);
    EXPECT_INT(reply.body.len, 4 << 20);
    EXPECT(reply.body.len == 4 << 20 && memcmp(reply.body.data, large.data + large.len - (4 << 20), 4 << 20) == 0);
    reply_clear(&reply);
    strbuf_deinit(&large);
    client_close(&client);
    fixture_stop(server);
}

static void pipelined_requests_are_answered_in_order(void)
{
    Fixture *server = fixture_start(NULL);
    Client   client = client_open(server->port);
    client_puts(&client, ECHO("1", "a") GET("/keep") ECHO("1", "b") GET("/stream") GET("/keep") ECHO("1", "c"));
    expect_next(&client, 200, "a");
    for (int i = 0; i < 2; i++) {
        EXPECT(fixture_wait(&server->waiting, 1));
        http_server_post(server->server, fixture_let_go, server);
        expect_next(&client, 200, "late");
        expect_next(&client, 200, i == 0 ? "b" : "c");
        if (i == 0) expect_next(&client, 200, "one two three");
    }
    client_close(&client);
    fixture_stop(server);
}

/* Thousands of requests at once, more than the server reads ahead; the client reads the answers only after sending all. */
static void many_pipelined_requests(void)
{
    enum { COUNT = 4000 };
    Fixture *server = fixture_start(NULL);
    Client   client = client_open(server->port);
    StrBuf   text = {0};
    for (int i = 0; i < COUNT; i++) strbuf_puts(&text, ECHO("3", "abc"));
    EXPECT(client_send(&client, text.data, text.len));
    for (int i = 0; i < COUNT; i++) expect_next(&client, 200, "abc");
    strbuf_deinit(&text);
    client_close(&client);
    fixture_stop(server);
}

static void expect_error(const char *request, int status, Fixture *server)
{
    Client           client = client_open(server->port);
    Reply            reply = client_ask(&client, request);
    Arena            arena = {0};
    JsonValue        document;
    const JsonValue *error = NULL;
    const char      *message, *type;
    EXPECT_INT(reply.status, status);
    EXPECT(reply.closes || status == 404);
    EXPECT_CONTAINS(strbuf_cstr(&reply.head), "\nContent-Type: application/json\n");
    EXPECT_OK(json_parse(&arena, "body", strbuf_cstr(&reply.body), reply.body.len, &document));
    error = json_get(&document, "error");
    EXPECT(error && error->count == 4 && json_get_str(error, "message", &message) && json_get_str(error, "type", &type));
    EXPECT(error && json_get(error, "param") && json_get(error, "code"));
    EXPECT(status == 404 || client_was_closed(&client));
    EXPECT(status == 404 || atomic_load(&server->refused_status) == status);
    arena_deinit(&arena);
    reply_clear(&reply);
    client_close(&client);
}

static void errors_look_alike(void)
{
    Fixture *server = fixture_start(NULL);
    StrBuf   target = {0}, fields = {0};
    strbuf_puts(&target, "GET /");
    strbuf_puts(&fields, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    for (int i = 0; i < 20000; i++) strbuf_putc(i < 0 ? &fields : &target, 'a');
    strbuf_append(&fields, target.data, target.len);
    expect_error("nonsense\r\n\r\n", 400, server);
    expect_error("GET / HTTP/1.1\r\n\r\n", 400, server);
    expect_error(GET("/nothing"), 404, server);
    expect_error("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4194305\r\n\r\n", 413, server);
    expect_error("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4194305\r\n\r\n", 413, server);
    expect_error(strbuf_cstr(&target), 414, server);
    expect_error("POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n\r\n", 415, server);
    expect_error("POST / HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 417, server);
    expect_error(strbuf_cstr(&fields), 431, server);
    expect_error("BREW / HTTP/1.1\r\n\r\n", 501, server);
    expect_error("GET / HTTP/3.0\r\n\r\n", 505, server);
    EXPECT_INT(atomic_load(&server->refused), 10); /* all except the handler's own refusals */
    strbuf_deinit(&target);
    strbuf_deinit(&fields);
    fixture_stop(server);
}

/* ---- slow and vanishing clients ---- */

/* Instrumented code is slow, and so are busy machines. */
#define UNIT (TEST_IS_WATCHED ? 3. : 1.)

static HttpLimits quick_limits(void)
{
    HttpLimits limits = http_default_limits;
    limits.head_seconds = limits.body_seconds = .8 * UNIT;
    limits.idle_seconds = UNIT;
    limits.write_seconds = .5 * UNIT;
    return limits;
}

/* Sends `fast` at once, then a byte of `slow` every 50 ms: a limit on the time between bytes wouldn't end it. */
static void expect_timeout(Fixture *server, const char *fast, const char *slow)
{
    Client client = client_open(server->port);
    double begin = client_now();
    client_puts(&client, fast);
    for (; *slow && !client_more(&client, .05); slow++) client_send(&client, slow, 1);
    expect_next(&client, 408, NULL);
    EXPECT(client_now() - begin < CLIENT_SECONDS / 4.);
    EXPECT(client_was_closed(&client));
    client_close(&client);
}

static void slow_clients(void)
{
    HttpLimits limits = quick_limits();
    Fixture   *server = fixture_start(&limits);
    const char text[] = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n";
    expect_timeout(server, "", text);
    expect_timeout(server, text, "0123456789012345678901234567890123456789");
    expect_timeout(server, ECHO("100", ""), "0123456789012345678901234567890123456789");
    Client silent = client_open(server->port), idle = client_open(server->port);
    expect_reply(&idle, ECHO("1", "x"), 200, "x");
    EXPECT(client_was_closed(&silent));
    EXPECT(client_was_closed(&idle));
    client_close(&silent);
    client_close(&idle);
    Client again = client_open(server->port); /* the first request's time doesn't count for the second */
    client_sleep(.5 * UNIT);
    expect_reply(&again, ECHO("1", "x"), 200, "x");
    client_sleep(.2);
    client_puts(&again, "P");
    client_sleep(.5 * UNIT);
    expect_reply(&again, &ECHO("1", "x")[1], 200, "x");
    client_close(&again);
    expect_serves(server);
    fixture_stop(server);
}

static void bodies_have_a_time_of_their_own(void)
{
    HttpLimits limits = http_default_limits;
    limits.head_seconds = .5 * UNIT;
    Fixture *server = fixture_start(&limits);
    Client   client = client_open(server->port);
    client_puts(&client, ECHO("6", "sl"));
    client_sleep(.4 * UNIT);
    client_puts(&client, "ow");
    client_sleep(.4 * UNIT);
    client_puts(&client, "ly");
    expect_next(&client, 200, "slowly");
    client_close(&client);
    fixture_stop(server);
}

static void vanished_clients(void)
{
    Fixture *server = fixture_start(NULL);
    for (int way = 0; way < 4; way++) {
        Client client = client_open(server->port);
        StrBuf more = {0};
        client_puts(&client, GET("/keep"));
        EXPECT(fixture_wait(&server->waiting, 1));
        if (way >= 2) { /* more than is read ahead: the end of the body comes after that */
            for (int i = 0; i < 3 << 15; i++) strbuf_putc(&more, 'x');
            send(client.fd, more.data, more.len, MSG_NOSIGNAL | MSG_DONTWAIT);
            client_sleep(.1);
        }
        strbuf_deinit(&more);
        if (way % 2 == 0) client_close(&client);
        if (way % 2 == 1) client_reset(&client);
        EXPECT(fixture_wait(&server->gone, way + 1));
        EXPECT(fixture_wait(&server->waiting, 0));
    }
    EXPECT(fixture_has_connections(server, 0));
    expect_serves(server);
    fixture_stop(server);
}

static void half_closed_clients(void)
{
    Fixture *server = fixture_start(NULL);
    Client   client = client_open(server->port);
    client_puts(&client, ECHO("1", "a") GET("/stream") ECHO("1", "b"));
    shutdown(client.fd, SHUT_WR);
    expect_next(&client, 200, "a");
    expect_next(&client, 200, "one two three");
    expect_next(&client, 200, "b");
    EXPECT(client_was_closed(&client));
    client_close(&client);
    client = client_open(server->port); /* within a request */
    client_puts(&client, "GET / HT");
    shutdown(client.fd, SHUT_WR);
    EXPECT(client_was_closed(&client));
    client_close(&client);
    client = client_open(server->port); /* the answer isn't ready: the client counts as gone */
    client_puts(&client, ECHO("1", "a") GET("/keep"));
    shutdown(client.fd, SHUT_WR);
    expect_next(&client, 200, "a");
    EXPECT(fixture_wait(&server->gone, 1));
    EXPECT(client_was_closed(&client));
    client_close(&client);
    fixture_stop(server);
}

static void slow_readers(void)
{
    HttpLimits limits = quick_limits();
    limits.write_seconds = 3600;
    Fixture *server = fixture_start(&limits);
    Client   client = client_open(server->port);
    client_puts(&client, GET("/flood")); /* more bytes wait for the client than allowed */
    EXPECT(fixture_wait(&server->gone, 1));
    client_close(&client);
    fixture_stop(server);
    limits = quick_limits();
    limits.unsent = (size_t)1 << 40;
    limits.body_seconds = 3600;
    server = fixture_start(&limits);
    StrBuf text = {0}; /* an answer that has ended but isn't read: 4 MiB don't fit into the sockets' buffers */
    int    small = 4096;
    strbuf_printf(&text, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 4 << 20);
    for (int i = 0; i < 4 << 20; i++) strbuf_putc(&text, 'x');
    client = client_open(server->port);
    setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    EXPECT(client_send(&client, text.data, text.len));
    EXPECT(fixture_has_connections(server, 1));
    EXPECT(fixture_has_connections(server, 0));
    EXPECT_INT(atomic_load(&server->gone), 0);
    strbuf_deinit(&text);
    client_close(&client);
    expect_serves(server);
    fixture_stop(server);
}

/* ---- too much ---- */

static void bodies_of_a_gigabyte(void)
{
    Fixture *server = fixture_start(NULL);
    Client   client = client_open(server->port);
    expect_reply(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1073741824\r\n\r\n", 413, NULL);
    StrBuf chunk = {0};
    strbuf_puts(&chunk, "10000\r\n");
    for (int i = 0; i < 1 << 16; i++) strbuf_putc(&chunk, 'x');
    strbuf_puts(&chunk, "\r\n");
    for (int i = 0; i < 16; i++)
        EXPECT(client_send(&client, chunk.data, chunk.len)); /* a client that first sends and then reads isn't reset */
    client_close(&client);
    client = client_open(server->port);
    client_puts(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    int sent = 0;
    while (sent < 1 << 14 && client_send(&client, chunk.data, chunk.len)) sent++;
    EXPECT(sent < 1 << 12); /* the server discards only a limited number of bytes */
    expect_next(&client, 413, NULL);
    strbuf_deinit(&chunk);
    client_close(&client);
    EXPECT_INT(atomic_load(&server->requests), 0);
    expect_serves(server);
    fixture_stop(server);
}

static void too_many_connections(void)
{
    enum { MOST = 4, MORE = 200 };
    HttpLimits limits = http_default_limits;
    limits.connections = MOST;
    Fixture *server = fixture_start(&limits);
    Client   served[MOST], more[MORE];
    for (int i = 0; i < MOST; i++) {
        served[i] = client_open(server->port);
        expect_reply(&served[i], ECHO("1", "x"), 200, "x");
    }
    for (int i = 0; i < MORE; i++) more[i] = client_open(server->port);
    for (int i = 0; i < MORE; i++) {
        expect_next(&more[i], 503, NULL);
        EXPECT(client_was_closed(&more[i]));
    }
    for (int i = 0; i < MOST; i++) expect_reply(&served[i], ECHO("1", "x"), 200, "x");
    Client refused = client_open(server->port);
    expect_reply(&refused, ECHO("1", "x"), 503, NULL); /* the server reads what the client sends, so that it isn't reset */
    EXPECT_INT(atomic_load(&server->refused), MORE + 1);
    client_close(&refused);
    for (int i = 0; i < MORE; i++) client_close(&more[i]);
    client_close(&served[0]);
    EXPECT(fixture_has_connections(server, MOST - 1));
    expect_serves(server);
    for (int i = 1; i < MOST; i++) client_close(&served[i]);
    fixture_stop(server);
}

/* ---- ends ---- */

static void finishing(void)
{
    Fixture *server = fixture_start(NULL);
    Client   waits = client_open(server->port), idle = client_open(server->port), begun = client_open(server->port);
    expect_reply(&idle, ECHO("1", "x"), 200, "x");
    client_puts(&waits, GET("/keep") GET("/keep"));
    client_puts(&begun, "GET /ec");
    EXPECT(fixture_wait(&server->waiting, 1));
    EXPECT(fixture_has_connections(server, 3));
    http_server_finish(server->server);
    EXPECT(client_was_closed(&idle));
    Client late = client_open(server->port);
    Reply  reply = client_reply(&late, true);
    EXPECT_INT(reply.status, 503);
    EXPECT_CONTAINS(strbuf_cstr(&reply.body), "shutting_down");
    reply_clear(&reply);
    reply = client_ask(&begun, "ho HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_INT(reply.status, 503);
    EXPECT_CONTAINS(strbuf_cstr(&reply.body), "shutting_down");
    reply_clear(&reply);
    http_server_post(server->server, fixture_let_go, server);
    reply = client_reply(&waits, true);
    EXPECT_STR(strbuf_cstr(&reply.body), "late");
    EXPECT(reply.closes);
    reply_clear(&reply);
    EXPECT_INT(atomic_load(&server->gone), 0);
    EXPECT_INT(atomic_load(&server->refused), 2);
    EXPECT_INT(atomic_load(&server->refused_status), 503);
    fixture_join(server); /* the server ended by itself */
    client_close(&waits);
    client_close(&idle);
    client_close(&begun);
    client_close(&late);
}

static void stopping(void)
{
    Fixture *server = fixture_start(NULL);
    Client   waits = client_open(server->port), other = client_open(server->port);
    client_puts(&waits, GET("/keep"));
    client_puts(&other, "GET /ec");
    EXPECT(fixture_wait(&server->waiting, 1));
    http_server_finish(server->server);
    http_server_stop(server->server);
    EXPECT(client_was_closed(&waits));
    fixture_join(server);
    client_close(&waits);
    client_close(&other);
    server = fixture_start(NULL); /* no answer is unfinished */
    http_server_finish(server->server);
    fixture_join(server);
}

/* ---- calls from other threads ---- */

enum { POSTERS = 4, POSTS = 2000 };

typedef struct Poster {
    HttpServer *server;
    int         made, wrong;
} Poster;

typedef struct Posted {
    Poster *poster;
    int     number;
} Posted;

static void count_post(void *context)
{
    Posted *posted = context;
    posted->poster->wrong += posted->number != posted->poster->made++;
    free(posted);
}

static void *post_all(void *context)
{
    for (int i = 0; i < POSTS; i++) {
        Posted *posted = malloc(sizeof *posted);
        *posted = (Posted){context, i};
        http_server_post(((Poster *)context)->server, count_post, posted);
    }
    return NULL;
}

static void posted_calls(void)
{
    Fixture  *server = fixture_start(NULL);
    Poster    posters[POSTERS] = {0};
    pthread_t threads[POSTERS];
    for (int i = 0; i < POSTERS; i++) {
        posters[i].server = server->server;
        pthread_create(&threads[i], NULL, post_all, &posters[i]);
    }
    for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
    fixture_stop(server); /* answers that are still pending are sent */
    for (int i = 0; i < POSTERS; i++) {
        EXPECT_INT(posters[i].made, POSTS);
        EXPECT_INT(posters[i].wrong, 0);
    }
}

static void bad_settings(void)
{
    HttpServer       *server = NULL, *other = NULL;
    const HttpHandler handler = {0};
    HttpLimits        limits = http_default_limits;
    limits.connections = 1 << 30;
    EXPECT_FAILS(http_server_create(&limits, &handler, &server), ERR_INVALID, "ulimit -n");
    limits.connections = 0;
    EXPECT_FAILS(http_server_create(&limits, &handler, &server), ERR_INVALID, "a connection");
    limits = http_default_limits;
    limits.idle_seconds = 0;
    EXPECT_FAILS(http_server_create(&limits, &handler, &server), ERR_INVALID, "more than 0 seconds");
    EXPECT_OK(http_server_create(&http_default_limits, &handler, &server));
    EXPECT_FAILS(http_server_listen(server, "127.0.0.1", 70000), ERR_INVALID, "port 70000");
    EXPECT_FAILS(http_server_listen(server, "256.1.1.1", 0), ERR_INVALID, "256.1.1.1");
    EXPECT_FAILS(http_server_listen(server, "192.0.2.1", 0), ERR_IO, "192.0.2.1");
    EXPECT_OK(http_server_listen(server, "localhost", 0));
    EXPECT_OK(http_server_create(&http_default_limits, &handler, &other));
    EXPECT_FAILS(http_server_listen(other, "localhost", http_server_port(server)), ERR_IO, "in use");
    http_server_destroy(server);
    http_server_destroy(other);
    http_server_destroy(NULL);
}

TEST_MAIN(TEST(connections_are_kept), TEST(heads_of_answers), TEST(http_1_0), TEST(bodies_come_in_any_way),
          TEST(pipelined_requests_are_answered_in_order), TEST(many_pipelined_requests), TEST(errors_look_alike), TEST(slow_clients),
          TEST(bodies_have_a_time_of_their_own), TEST(vanished_clients), TEST(half_closed_clients), TEST(slow_readers),
          TEST(bodies_of_a_gigabyte), TEST(too_many_connections), TEST(finishing), TEST(stopping), TEST(posted_calls), TEST(bad_settings))
