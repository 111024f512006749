/* What the files of the HTTP server share. A connection and the one exchange that it has at a time are one struct. */
#pragma once

#include "serve/http_reader.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    HTTP_READ_AHEAD = 3 << 14,   /* bytes after which no more are taken from a client while its answer is made; a read takes 16 KiB */
    HTTP_MOST_REFUSED = 64,      /* connections beyond the limit that are open until their 503 was read */
    HTTP_LINGER_BYTES = 1 << 24, /* thrown away behind a last answer, so that the client comes to read it */
};

#define HTTP_LINGER_SECONDS 2.0

typedef enum ConnectionState {
    CONNECTION_READS,   /* a request, or waits for one */
    CONNECTION_ANSWERS, /* the handler has the exchange */
    CONNECTION_FLUSHES, /* the answer has ended and is sent */
    CONNECTION_LINGERS, /* all is sent; what comes is thrown away */
    CONNECTION_DROPPED, /* is closed by its timer, without a word */
} ConnectionState;

typedef struct HttpExchange {
    HttpServer          *server;
    struct HttpExchange *previous, *next;
    struct bufferevent  *stream;
    struct event        *timer;
    HttpReader           reader;
    ConnectionState      state;
    StrBuf               fields; /* further ones of the answer's head */
    void                *user;
    bool                 is_refused; /* beyond the limit of connections */
    bool                 input_ended;
    bool                 is_late;     /* too slow for its answer: its timer drops it */
    bool                 keeps;       /* the connection, for a further request */
    bool                 lingers;     /* once the answer is sent: the client may be sending still */
    bool                 had_request; /* the next one isn't its first */
    bool                 is_http_1_0, is_head_request, is_chunked, began;
    size_t               thrown_away; /* bytes */
} HttpExchange;

typedef struct HttpPost {
    void (*call)(void *context);
    void            *context;
    struct HttpPost *next;
} HttpPost;

typedef enum HttpEnding { HTTP_RUNS, HTTP_FINISHES, HTTP_STOPS } HttpEnding;

struct HttpServer {
    HttpLimits             limits;
    HttpHandler            handler;
    struct event_base     *base;
    struct evconnlistener *listener;
    struct event          *wake, *resume;
    int                    wake_fd, port;
    HttpExchange          *connections;
    int                    num_connections, num_refused;
    int                    num_busy; /* with an answer that isn't made or isn't sent */
    bool                   is_finishing;
    pthread_mutex_t        lock; /* of the posts */
    HttpPost              *first_post, *last_post;
    atomic_int             ending;
};

/* Takes the socket over. is_refused: beyond the limit; it is told so and closed. */
void http_connection_open(HttpServer *server, int fd, bool is_refused);
/* Calls `gone` if the handler has the exchange. */
void http_connection_close(HttpExchange *connection);
/* After a server began to finish: closes what waits for a request that hasn't begun. */
void http_connection_finish(HttpExchange *connection);

struct timeval http_timeval(double seconds);

void http_set_state(HttpExchange *connection, ConnectionState state);
void http_set_timer(HttpExchange *connection, double seconds);

/* Tells the handler that a client is answered in its place. */
void http_tell_refusal(const HttpServer *server, int status, const char *message);
/* The text of a whole answer that refuses a connection, of which the handler is told: 503 as the server finishes, or has as many as it
 * may. */
void http_refusal(const HttpServer *server, StrBuf *out);

#define HTTP_FINISHES_MESSAGE "the server is about to end"
#define HTTP_FINISHES_CODE "shutting_down"
