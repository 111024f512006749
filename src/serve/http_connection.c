/* The life of a connection: it reads a request, the handler answers, the answer is sent, and it reads the next one. A connection is freed
 * only in callbacks of the server's loop, never within a call that the handler makes; so an exchange stays valid while the handler works
 * with it. */
#include "serve/http_server_internal.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

/* While an answer is made and reading is paused, the loop doesn't see that a client has gone. So the socket is checked this often. */
#define HANGUP_SECONDS 1.0

/* ---- state ---- */

static bool is_busy(ConnectionState state)
{
    return state == CONNECTION_ANSWERS || state == CONNECTION_FLUSHES;
}

void http_set_state(HttpExchange *connection, ConnectionState state)
{
    HttpServer *server = connection->server;
    server->num_busy += is_busy(state) - is_busy(connection->state);
    connection->state = state;
    if (server->is_finishing && server->num_busy == 0) event_base_loopbreak(server->base);
}

void http_set_timer(HttpExchange *connection, double seconds)
{
    struct timeval time = http_timeval(seconds);
    evtimer_add(connection->timer, &time);
}

static struct evbuffer *input_of(HttpExchange *connection)
{
    return bufferevent_get_input(connection->stream);
}

/* Makes the kernel discard unsent bytes when the socket of a dropped client is closed. */
static void forget_unsent(HttpExchange *connection)
{
    struct linger at_once = {.l_onoff = 1};
    setsockopt(bufferevent_getfd(connection->stream), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void http_connection_close(HttpExchange *connection)
{
    HttpServer *server = connection->server;
    bool        is_gone = connection->state == CONNECTION_ANSWERS;
    http_set_state(connection, CONNECTION_DROPPED);
    if (is_gone && server->handler.gone) server->handler.gone(server->handler.context, connection, connection->user);
    if (connection->previous) connection->previous->next = connection->next;
    if (connection->next) connection->next->previous = connection->previous;
    if (server->connections == connection) server->connections = connection->next;
    server->num_refused -= connection->is_refused;
    server->num_connections -= !connection->is_refused;
    event_free(connection->timer);
    bufferevent_free(connection->stream);
    http_reader_deinit(&connection->reader);
    strbuf_deinit(&connection->fields);
    free(connection);
}

/* ---- requests ---- */

/* Answers instead of the handler; the connection closes after this answer. */
static void answer_error(HttpExchange *connection, int status, const char *message, const char *code)
{
    const HttpReader *reader = &connection->reader;
    connection->keeps = false;
    connection->lingers = true;
    connection->is_http_1_0 = reader->is_http_1_0;
    connection->is_head_request = reader->is_head_request;
    connection->began = false;
    evtimer_del(connection->timer);
    http_set_state(connection, CONNECTION_ANSWERS);
    http_tell_refusal(connection->server, status, message);
    if (status == 503) http_add_field(connection, "Retry-After", "1");
    http_reply_error(connection, status, message, NULL, code);
    http_reader_next(&connection->reader);
}

static void answer_options(HttpExchange *connection)
{
    http_add_field(connection, "Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    http_reply(connection, 204, NULL, (Str){"", 0});
}

/* The request is complete: gives it to the handler. */
static void hand_over(HttpExchange *connection)
{
    HttpServer *server = connection->server;
    HttpReader *reader = &connection->reader;
    HttpRequest request;
    if (server->is_finishing) {
        answer_error(connection, 503, HTTP_FINISHES_MESSAGE, HTTP_FINISHES_CODE);
        return;
    }
    connection->keeps = reader->keeps_connection;
    connection->lingers = false;
    connection->is_http_1_0 = reader->is_http_1_0;
    connection->is_head_request = reader->is_head_request;
    connection->began = connection->is_chunked = false;
    connection->user = NULL;
    evtimer_del(connection->timer);
    http_set_state(connection, CONNECTION_ANSWERS);
    http_reader_request(reader, &request);
    if (str_equal(request.path, "*")) {
        answer_options(connection);
    } else {
        server->handler.request(server->handler.context, connection, &request);
    }
    http_reader_next(reader);
}

/* Feeds the reader with the bytes received; sends "100 Continue" if the request waits for it. */
static void feed(HttpExchange *connection)
{
    HttpReader           *reader = &connection->reader;
    struct evbuffer      *input = input_of(connection);
    struct evbuffer_iovec piece;
    HttpReading           before = reader->reading;
    bool                  had_begun = reader->began;
    if (evbuffer_peek(input, -1, NULL, &piece, 1) < 1) return;
    evbuffer_drain(input, http_reader_feed(reader, piece.iov_base, piece.iov_len));
    if (!had_begun && connection->had_request) http_set_timer(connection, connection->server->limits.head_seconds);
    if (reader->reading != HTTP_READS_BODY) return;
    if (before == HTTP_READS_HEAD) http_set_timer(connection, connection->server->limits.body_seconds);
    if (reader->expects_continue && reader->body.len == 0 && evbuffer_get_length(input) == 0) {
        evbuffer_add(bufferevent_get_output(connection->stream), "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    reader->expects_continue = false;
}

/* Whether the client ended its input or has gone; unread bytes may still be waiting. */
static bool has_hung_up(HttpExchange *connection)
{
    struct pollfd socket = {.fd = bufferevent_getfd(connection->stream), .events = POLLRDHUP};
    return poll(&socket, 1, 0) > 0;
}

/* Processes the received input as far as the connection's state allows. May close the connection. */
static void advance(HttpExchange *connection)
{
    while (connection->state == CONNECTION_READS && evbuffer_get_length(input_of(connection)) > 0) {
        feed(connection);
        if (connection->reader.reading == HTTP_HAS_REQUEST) {
            hand_over(connection);
        } else if (connection->reader.reading == HTTP_REFUSES) {
            answer_error(connection, connection->reader.status, connection->reader.reason, "bad_http");
        }
    }
    bool waits = connection->state == CONNECTION_READS || connection->state == CONNECTION_ANSWERS;
    if (waits && connection->input_ended) {
        http_connection_close(connection);
    } else if (evbuffer_get_length(input_of(connection)) >= HTTP_READ_AHEAD) {
        /* A high watermark wouldn't do: libevent 2.1.12 calls back again and again while it is reached. */
        bufferevent_disable(connection->stream, EV_READ);
        if (connection->state == CONNECTION_ANSWERS) http_set_timer(connection, HANGUP_SECONDS);
    }
}

/* ---- what the loop tells ---- */

static void throw_away(HttpExchange *connection)
{
    struct evbuffer *input = input_of(connection);
    size_t           len = evbuffer_get_length(input);
    evbuffer_drain(input, len);
    connection->thrown_away += len;
    if (connection->thrown_away > HTTP_LINGER_BYTES) http_connection_close(connection);
}

static void on_input(struct bufferevent *stream, void *context)
{
    (void)stream;
    HttpExchange *connection = context;
    if (connection->state == CONNECTION_LINGERS) {
        throw_away(connection);
    } else {
        advance(connection);
    }
}

/* The answer is sent: reads the next request, or closes the connection. */
static void end_flush(HttpExchange *connection)
{
    HttpServer *server = connection->server;
    if (connection->keeps && !server->is_finishing) {
        connection->had_request = true;
        http_set_timer(connection, server->limits.idle_seconds);
        http_set_state(connection, CONNECTION_READS);
        if (!connection->input_ended) bufferevent_enable(connection->stream, EV_READ);
        advance(connection);
    } else if (connection->lingers && !connection->input_ended) {
        /* Closing with bytes unread would reset the connection, and the client might lose the answer. */
        shutdown(bufferevent_getfd(connection->stream), SHUT_WR);
        http_set_timer(connection, HTTP_LINGER_SECONDS);
        http_set_state(connection, CONNECTION_LINGERS);
        bufferevent_enable(connection->stream, EV_READ);
        throw_away(connection);
    } else {
        http_connection_close(connection);
    }
}

static void on_output_sent(struct bufferevent *stream, void *context)
{
    (void)stream;
    HttpExchange *connection = context;
    if (connection->state == CONNECTION_FLUSHES) end_flush(connection);
}

static void on_event(struct bufferevent *stream, short what, void *context)
{
    (void)stream;
    HttpExchange *connection = context;
    bool          is_end_of_input = (what & BEV_EVENT_EOF) && (what & BEV_EVENT_READING);
    if (is_end_of_input && connection->state == CONNECTION_FLUSHES) {
        connection->input_ended = true; /* the answer, and answers to earlier requests, are still sent */
        return;
    }
    if (!is_end_of_input) forget_unsent(connection);
    http_connection_close(connection);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    HttpExchange *connection = context;
    if (connection->state == CONNECTION_READS && connection->reader.began) {
        answer_error(connection, 408, "the request didn't come in time", "request_timeout");
        return;
    }
    if (connection->state == CONNECTION_ANSWERS && !connection->is_late && !has_hung_up(connection)) {
        http_set_timer(connection, HANGUP_SECONDS);
        return;
    }
    if (connection->is_late) forget_unsent(connection);
    http_connection_close(connection);
}

/* ---- beginning and end ---- */

static void set_socket_options(int fd)
{
    const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1}, /* parts of an answer are sent at once */
        {SOL_SOCKET, SO_KEEPALIVE, 1}, /* a client whose network is lost is noticed after a minute */
        {IPPROTO_TCP, TCP_KEEPIDLE, 30}, {IPPROTO_TCP, TCP_KEEPINTVL, 10}, {IPPROTO_TCP, TCP_KEEPCNT, 3},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value); /* optional: may fail */
    }
}

static void enter(HttpServer *server, HttpExchange *connection)
{
    connection->next = server->connections;
    if (connection->next) connection->next->previous = connection;
    server->connections = connection;
    server->num_refused += connection->is_refused;
    server->num_connections += !connection->is_refused;
}

static void start_refused(HttpExchange *connection)
{
    StrBuf refusal = {0};
    http_refusal(connection->server, &refusal);
    bufferevent_write(connection->stream, refusal.data, refusal.len);
    strbuf_deinit(&refusal);
    connection->lingers = true;
    http_set_state(connection, CONNECTION_FLUSHES);
}

void http_connection_open(HttpServer *server, int fd, bool is_refused)
{
    HttpExchange *connection = calloc_or_end(1, sizeof *connection);
    *connection = (HttpExchange){
        .server = server,
        .is_refused = is_refused,
        .reader = {.most_head = server->limits.head, .most_body = server->limits.body},
        .stream = bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE),
        .timer = evtimer_new(server->base, on_timer, connection),
    };
    if (!connection->stream || !connection->timer) fatal_out_of_memory(sizeof *connection);
    set_socket_options(fd);
    enter(server, connection);
    struct timeval write_time = http_timeval(server->limits.write_seconds);
    bufferevent_set_timeouts(connection->stream, NULL, &write_time);
    bufferevent_setcb(connection->stream, on_input, on_output_sent, on_event, connection);
    if (is_refused) {
        start_refused(connection);
        return;
    }
    http_set_timer(connection, server->limits.head_seconds);
    bufferevent_enable(connection->stream, EV_READ);
}

void http_connection_finish(HttpExchange *connection)
{
    if (connection->state == CONNECTION_READS && !connection->reader.began) http_connection_close(connection);
}
