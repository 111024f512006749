/* An HTTP/1.1 server for programs that compute their answers slowly: it reads requests, keeps them while they wait, writes answers as they
 * grow, and tells when a client has gone. One thread runs it (http_server_run). Every call of this header belongs to that thread, except
 * http_server_post, http_server_finish and http_server_stop.
 *
 * A connection has one request at a time; pipelined ones are answered in order. What is no HTTP, or more than the limits allow, is answered
 * here and never reaches the handler. A client that shuts its sending side is answered if the answer is made at once; otherwise it counts
 * as gone, because the end of a process looks the same.
 *
 * Memory: a connection reads a request into buffers of at most 1.5 * (head + body) bytes, which are freed when the handler returns. While
 * it is answered it holds at most 64 KiB that came ahead, `unsent` bytes, and the whole answer or the part that was given to it last. So
 * all hold at most connections * (1.5 * (head + body) + unsent + 64 KiB + that answer or part): 1.8 GiB and answers by default. */
#pragma once

#include "base/strbuf.h"

typedef struct HttpLimits {
    size_t head;          /* bytes of the request line and the header fields, and again of trailers */
    size_t body;          /* bytes of a request's body */
    int    connections;   /* at one time; another one gets 503 and is closed */
    double head_seconds;  /* from the first byte (of a new connection, from its beginning) to the head's end */
    double body_seconds;  /* from the head's end to the body's */
    double idle_seconds;  /* between an answer's end and the next request */
    double write_seconds; /* in which a client that an answer waits for takes no byte of it: it is dropped */
    size_t unsent;        /* bytes that may wait for a client when a part is added to its answer; more: it is dropped */
} HttpLimits;

/* 16 KiB, 4 MiB, 256, 10 s, 60 s, 60 s, 30 s, 1 MiB. */
extern const HttpLimits http_default_limits;

/* Valid until the handler returns. Fields that weren't sent are empty; none of them was sent twice. */
typedef struct HttpRequest {
    Str method; /* GET, POST, PUT, PATCH, DELETE, OPTIONS. HEAD comes as GET: the body of its answer isn't sent */
    Str path;   /* begins with '/'; as it was sent, not decoded */
    Str query;  /* behind '?', without it */
    Str host, origin, authorization, content_type;
    Str body;
} HttpRequest;

typedef struct HttpServer HttpServer;
/* A request that waits for its answer. It ends with http_reply, http_reply_error or http_end, or when `gone` was called. */
typedef struct HttpExchange HttpExchange;

typedef struct HttpHandler {
    void *context;
    /* Answers, or begins to, or keeps the exchange and answers later. */
    void (*request)(void *context, HttpExchange *exchange, const HttpRequest *request);
    /* The client has gone or was dropped before its answer's end. The exchange has ended. Never called from within another call of this
     * header but http_server_run. user: what http_set_user gave, else NULL. */
    void (*gone)(void *context, HttpExchange *exchange, void *user);
    /* A client was answered here, with this status: `request` isn't called. message: what it was told, which has no words of its own
     * request. As `gone`, never called from within another call. */
    void (*refused)(void *context, int status, const char *message);
} HttpHandler;

void http_set_user(HttpExchange *exchange, void *user);

/* A field of the answer's head; before http_reply, http_reply_error or http_begin. Both texts are copied and have no control characters.
 * Date, Content-Type, Content-Length, Transfer-Encoding, Connection, Cache-Control (no-store) and X-Content-Type-Options are the server's.
 */
void http_add_field(HttpExchange *exchange, const char *name, const char *value);

/* The whole answer. type: of its content, as "application/json". The body is copied. */
void http_reply(HttpExchange *exchange, int status, const char *type, Str body);

/* An answer that http_error_json makes. */
void http_reply_error(HttpExchange *exchange, int status, const char *message, const char *param, const char *code);

/* Appends {"error": {"message", "type", "param", "code"}}, the form of all errors. The type follows from the status. param (the field of
 * the request that is wrong) and code: NULL for null. */
void http_error_json(StrBuf *out, int status, const char *message, const char *param, const char *code);

/* An answer in parts: its head, each part as soon as it is there (chunked for HTTP/1.1; an empty part does nothing), its end. Parts for a
 * client that was dropped are ignored until `gone` is called. */
void http_begin(HttpExchange *exchange, int status, const char *type);
void http_send(HttpExchange *exchange, Str part);
void http_end(HttpExchange *exchange);

/* Whether a Host field's value, with or without a port, names this machine: localhost, 127.0.0.0/8, [::1]. */
bool http_is_local_name(Str host);

/* limits and handler are copied. ERR_INVALID: limits out of range, or the process may not open so many files. */
NODISCARD Status http_server_create(const HttpLimits *limits, const HttpHandler *handler, HttpServer **out);
/* NULL is fine. Waiting calls of http_server_post are made first, on this thread. Not while it runs. */
void http_server_destroy(HttpServer *server);

/* Once, before run. host: a name or an address; its first address that can be bound is. port 0: a free one. */
NODISCARD Status http_server_listen(HttpServer *server, const char *host, int port);
int              http_server_port(const HttpServer *server);

/* Serves until stopped. At its end no exchange is left: `gone` was called for those that hadn't ended. */
NODISCARD Status http_server_run(HttpServer *server);

/* From any thread: call(context) is made on the server's thread soon, in the order of posts, each once. */
void http_server_post(HttpServer *server, void (*call)(void *context), void *context);

/* From any thread, and from signal handlers. finish: new connections and new requests get 503, run returns when all answers have ended
 * and were sent. stop: run returns now. */
void http_server_finish(HttpServer *server);
void http_server_stop(HttpServer *server);

/* Connections that are open now, those of clients that were refused not counted. */
int http_server_connections(const HttpServer *server);
