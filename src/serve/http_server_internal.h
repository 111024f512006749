/* Shared by the files of the HTTP server. A connection and its one exchange at a time are the same struct. */
#pragma once

#include "serve/http_reader.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    HTTP_READ_AHEAD = 3 << 14,   /* bytes read ahead while an answer is made, after which reading pauses; one read takes 16 KiB */
    HTTP_MOST_REFUSED = 64,      /* most connections beyond the limit that stay open until their 503 was read */
    HTTP_LINGER_BYTES = 1 << 24, /* most bytes discarded after a last answer, so that the client gets to read the answer */
};

#define HTTP_LINGER_SECONDS 2.0

typedef enum ConnectionState {
    CONNECTION_READS,   /* reads a request, or waits for one */
    CONNECTION_ANSWERS, /* the handler has the exchange */
    CONNECTION_FLUSHES, /* the answer has ended and is sent */
    CONNECTION_LINGERS, /* all is sent; input is discarded */
    CONNECTION_DROPPED, /* its timer closes it, without an answer */
} ConnectionState;

typedef struct HttpExchange {
    HttpServer          *server;
    struct HttpExchange *previous, *next;
    struct bufferevent  *stream;
    struct event        *timer;
    HttpReader           reader;
    ConnectionState      state;
    StrBuf               fields; /* the fields that http_add_field added */
    void                *user;
    bool                 is_refused; /* is beyond the limit of connections */
    bool                 input_ended;
    bool                 is_late;     /* too slow to accept its answer: its timer drops it */
    bool                 keeps;       /* stays open for a further request */
    bool                 lingers;     /* lingers after the answer: the client may still be sending */
    bool                 had_request; /* a request was answered before */
    bool                 is_http_1_0, is_head_request, is_chunked, began;
    size_t               thrown_away; /* bytes discarded while it lingers */
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
    int                    num_busy; /* connections whose answer isn't made or isn't sent */
    bool                   is_finishing;
    pthread_mutex_t        lock; /* protects the posts */
    HttpPost              *first_post, *last_post;
    atomic_int             ending;
};

/* Takes ownership of the socket. is_refused: the connection is beyond the limit, gets 503 and is closed. */
void http_connection_open(HttpServer *server, int fd, bool is_refused);
/* Closes and frees it; calls `gone` first if the handler has the exchange. */
void http_connection_close(HttpExchange *connection);
/* Called when the server begins to finish: closes a connection that waits for a request of which no byte has arrived. */
void http_connection_finish(HttpExchange *connection);

struct timeval http_timeval(double seconds);

void http_set_state(HttpExchange *connection, ConnectionState state);
void http_set_timer(HttpExchange *connection, double seconds);

/* Reports to the handler that the server itself answers a client. */
void http_tell_refusal(const HttpServer *server, int status, const char *message);
/* Appends to *out a whole 503 answer that refuses a connection because the server finishes or has too many connections. Also reports the
 * refusal to the handler. */
void http_refusal(const HttpServer *server, StrBuf *out);

#define HTTP_FINISHES_MESSAGE "the server is about to end"
#define HTTP_FINISHES_CODE "shutting_down"
