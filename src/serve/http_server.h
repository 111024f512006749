/* An HTTP/1.1 server for programs that compute their answers slowly. It reads requests, keeps them while they wait, writes answers as they
 * grow, and reports when a client has gone. One thread runs it (http_server_run). Every function of this header is called on that thread,
 * except http_server_post, http_server_finish and http_server_stop.
 *
 * A connection has one request at a time; pipelined requests are answered in order. Input that isn't HTTP or exceeds the limits is answered
 * here and never reaches the handler. If a client shuts its sending side, it gets an answer only if the handler answers at once. Otherwise
 * it counts as gone, because the end of a process looks the same.
 *
 * Memory: a connection reads a request into buffers of at most 1.5 * (head + body) bytes, which are freed when the handler returns. While
 * it is answered it holds at most 64 KiB of later input, `unsent` bytes, and the whole answer or its last part. So all connections hold at
 * most connections * (1.5 * (head + body) + unsent + 64 KiB + that answer or part): by default 1.8 GiB and the answers. */
#pragma once

#include "base/strbuf.h"

typedef struct HttpLimits {
    size_t head;          /* most bytes of request line and header fields together; the same limit holds for the trailers */
    size_t body;          /* most bytes of a request's body */
    int    connections;   /* open at one time; a further connection gets 503 and is closed */
    double head_seconds;  /* longest time from the first byte (on a new connection: from its opening) to the end of the head */
    double body_seconds;  /* longest time from the end of the head to the end of the body */
    double idle_seconds;  /* longest time from the end of an answer to the next request */
    double write_seconds; /* longest time in which a client accepts no byte of its answer; then it is dropped */
    size_t unsent;        /* most unsent bytes when a part is added to an answer; with more the client is dropped */
} HttpLimits;

/* head 16 KiB, body 4 MiB, 256 connections; 10, 60, 60 and 30 s; unsent 1 MiB. */
extern const HttpLimits http_default_limits;

/* Valid until the handler returns. Fields that weren't sent are empty; no field was sent twice. */
typedef struct HttpRequest {
    Str method; /* GET, POST, PUT, PATCH, DELETE or OPTIONS. HEAD is given as GET, and the body of its answer isn't sent */
    Str path;   /* begins with '/'; not percent-decoded */
    Str query;  /* after '?', which isn't part of it */
    Str host, origin, authorization, content_type;
    Str body;
} HttpRequest;

typedef struct HttpServer HttpServer;
/* A request that waits for its answer. It ends with http_reply, http_reply_error or http_end, or when `gone` is called. */
typedef struct HttpExchange HttpExchange;

typedef struct HttpHandler {
    void *context;
    /* Answers now, begins an answer, or keeps the exchange and answers later. */
    void (*request)(void *context, HttpExchange *exchange, const HttpRequest *request);
    /* The client disconnected, or was dropped, before its answer ended; the exchange has ended. Only http_server_run calls it, no other
     * function of this header. user: from http_set_user, else NULL. */
    void (*gone)(void *context, HttpExchange *exchange, void *user);
    /* The server itself answered a client with this status: `request` isn't called. message: the text it sent, which contains nothing from
     * the request. As `gone`, called only from http_server_run. */
    void (*refused)(void *context, int status, const char *message);
} HttpHandler;

void http_set_user(HttpExchange *exchange, void *user);

/* Adds a field to the answer's head, before http_reply, http_reply_error or http_begin. Both texts are copied; they must have no control
 * characters. The server itself writes Date, Content-Type, Content-Length, Transfer-Encoding, Connection, Cache-Control (no-store) and
 * X-Content-Type-Options. */
void http_add_field(HttpExchange *exchange, const char *name, const char *value);

/* Sends a whole answer. type: its content type, such as "application/json". The body is copied. */
void http_reply(HttpExchange *exchange, int status, const char *type, Str body);

/* Sends the answer that http_error_json makes. */
void http_reply_error(HttpExchange *exchange, int status, const char *message, const char *param, const char *code);

/* Appends {"error": {"message", "type", "param", "code"}}, the form of all errors. The type follows from the status. param: the field of
 * the request that is wrong. param or code NULL: JSON's null. */
void http_error_json(StrBuf *out, int status, const char *message, const char *param, const char *code);

/* An answer in parts: http_begin sends its head, http_send one part (chunked in HTTP/1.1; an empty part does nothing), http_end ends it.
 * Parts for a dropped client are ignored until `gone` is called. */
void http_begin(HttpExchange *exchange, int status, const char *type);
void http_send(HttpExchange *exchange, Str part);
void http_end(HttpExchange *exchange);

/* Whether a Host field's value, with or without a port, names this machine: localhost, 127.0.0.0/8, [::1]. */
bool http_is_local_name(Str host);

/* limits and handler are copied. ERR_INVALID: a limit is out of range, or the process may not open enough files. */
NODISCARD Status http_server_create(const HttpLimits *limits, const HttpHandler *handler, HttpServer **out);
/* Waiting calls of http_server_post are made first, on this thread. Not to be called during http_server_run. NULL is fine. */
void http_server_destroy(HttpServer *server);

/* Call once, before http_server_run. host: a name or an address; the first of its addresses that can be bound is used. port 0: any free
 * port. */
NODISCARD Status http_server_listen(HttpServer *server, const char *host, int port);
int              http_server_port(const HttpServer *server);

/* Serves until stopped. Then no exchange is left: `gone` was called for each that hadn't ended. */
NODISCARD Status http_server_run(HttpServer *server);

/* From any thread: the server's thread calls call(context) soon, once, in the order of posts. */
void http_server_post(HttpServer *server, void (*call)(void *context), void *context);

/* From any thread, and from signal handlers. finish: new connections and requests get 503, and run returns when all answers have been sent.
 * stop: run returns at once. */
void http_server_finish(HttpServer *server);
void http_server_stop(HttpServer *server);

/* Number of connections open now, without refused ones. */
int http_server_connections(const HttpServer *server);
