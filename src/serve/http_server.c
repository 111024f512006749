/* The server's loop: it accepts connections, makes the calls that other threads post, and ends. */
#include "serve/http_server_internal.h"

#include "base/log.h"

#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* If accepting a connection fails, mostly for want of file descriptors: seconds until the next attempt. */
#define RETRY_SECONDS 0.2

enum { SPARE_FILES = 64, BACKLOG = 512 }; /* descriptors left for other files; connections that may wait to be accepted */

const HttpLimits http_default_limits = {
    .head = 16 << 10,
    .body = 4 << 20,
    .connections = 256,
    .head_seconds = 10,
    .body_seconds = 60,
    .idle_seconds = 60,
    .write_seconds = 30,
    .unsent = 1 << 20,
};

struct timeval http_timeval(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timeval){whole, (suseconds_t)((seconds - (double)whole) * 1e6)};
}

/* ---- calls of other threads ---- */

void http_server_post(HttpServer *server, void (*call)(void *), void *context)
{
    HttpPost *post = malloc_or_end(sizeof *post);
    *post = (HttpPost){.call = call, .context = context};
    pthread_mutex_lock(&server->lock);
    bool is_first = !server->first_post;
    if (is_first) {
        server->first_post = post;
    } else {
        server->last_post->next = post;
    }
    server->last_post = post;
    pthread_mutex_unlock(&server->lock);
    uint64_t one = 1;
    if (is_first && write(server->wake_fd, &one, sizeof one) < 0) return; /* a failed write means that the loop is awake already */
}

/* Makes all waiting calls; false: there were none. */
static bool make_posted_calls(HttpServer *server)
{
    pthread_mutex_lock(&server->lock);
    HttpPost *post = server->first_post;
    server->first_post = server->last_post = NULL;
    pthread_mutex_unlock(&server->lock);
    bool is_any = post;
    while (post) {
        HttpPost *next = post->next;
        post->call(post->context);
        free(post);
        post = next;
    }
    return is_any;
}

/* ---- ending ---- */

static void ask_for_end(HttpServer *server, HttpEnding ending)
{
    int before = atomic_load(&server->ending), saved = errno; /* a signal handler must leave errno as it was */
    while (before < (int)ending && !atomic_compare_exchange_weak(&server->ending, &before, (int)ending)) continue;
    uint64_t one = 1;
    ssize_t  n = write(server->wake_fd, &one, sizeof one); /* a failed write means that the loop is awake already */
    (void)n;
    errno = saved;
}

void http_server_finish(HttpServer *server)
{
    ask_for_end(server, HTTP_FINISHES);
}

void http_server_stop(HttpServer *server)
{
    ask_for_end(server, HTTP_STOPS);
}

static void begin_to_finish(HttpServer *server)
{
    server->is_finishing = true;
    for (HttpExchange *next, *connection = server->connections; connection; connection = next) {
        next = connection->next;
        http_connection_finish(connection);
    }
}

/* Obeys a request to end; true: the loop ends now. */
static bool obey(HttpServer *server)
{
    HttpEnding ending = (HttpEnding)atomic_load(&server->ending);
    if (ending == HTTP_FINISHES && !server->is_finishing) begin_to_finish(server);
    return ending == HTTP_STOPS || (ending == HTTP_FINISHES && server->num_busy == 0);
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    (void)what;
    HttpServer *server = context;
    uint64_t    count;
    if (read(fd, &count, sizeof count) < 0 && errno != EAGAIN) return;
    (void)make_posted_calls(server);
    if (obey(server)) event_base_loopbreak(server->base);
}

/* ---- connections ---- */

static void on_accepted(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int len, void *context)
{
    (void)listener, (void)address, (void)len;
    HttpServer *server = context;
    bool        is_refused = server->is_finishing || server->num_connections >= server->limits.connections;
    if (!is_refused || server->num_refused < HTTP_MOST_REFUSED) {
        http_connection_open(server, fd, is_refused);
        return;
    }
    StrBuf refusal = {0};
    http_refusal(server, &refusal);
    ssize_t n = send(fd, refusal.data, refusal.len, MSG_DONTWAIT | MSG_NOSIGNAL); /* sends all of it: the socket's buffer is empty */
    (void)n;
    strbuf_deinit(&refusal);
    close(fd);
}

static void on_resume(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    evconnlistener_enable(((HttpServer *)context)->listener);
}

static void on_accept_failed(struct evconnlistener *listener, void *context)
{
    HttpServer    *server = context;
    struct timeval retry = http_timeval(RETRY_SECONDS);
    log_warn("cannot accept a connection: %s", strerror(errno));
    evconnlistener_disable(listener);
    evtimer_add(server->resume, &retry);
}

/* A socket that listens at the address; -1: errno says why it can't. */
static int listen_at(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static int port_of(int fd)
{
    union {
        struct sockaddr         any;
        struct sockaddr_in      v4;
        struct sockaddr_in6     v6;
        struct sockaddr_storage storage;
    } address;
    socklen_t len = sizeof address;
    if (getsockname(fd, &address.any, &len) != 0) return 0;
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

Status http_server_listen(HttpServer *server, const char *host, int port)
{
    CHECK(!server->listener);
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    char            service[16];
    int             fd = -1;
    FAIL_IF(port < 0 || port > 65535, ERR_INVALID, "port %d: expected 0 to 65535", port);
    snprintf(service, sizeof service, "%d", port);
    int failed = getaddrinfo(host, service, &wanted, &found);
    FAIL_IF(failed, ERR_INVALID, "cannot listen at %s: %s", host, gai_strerror(failed));
    errno = EADDRNOTAVAIL;
    for (struct addrinfo *address = found; address && fd < 0; address = address->ai_next) fd = listen_at(address);
    int saved = errno;
    freeaddrinfo(found);
    FAIL_IF(fd < 0, ERR_IO, "cannot listen at %s, port %d: %s", host, port, strerror(saved));
    server->listener = evconnlistener_new(server->base, on_accepted, server, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!server->listener) fatal_out_of_memory(1);
    evconnlistener_set_error_cb(server->listener, on_accept_failed);
    server->port = port_of(fd);
    return OK;
}

int http_server_port(const HttpServer *server)
{
    return server->port;
}

int http_server_connections(const HttpServer *server)
{
    return server->num_connections;
}

/* ---- the server ---- */

static Status check_limits(const HttpLimits *limits)
{
    struct rlimit files;
    double        least = limits->head_seconds;
    const double  others[] = {limits->body_seconds, limits->idle_seconds, limits->write_seconds};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) least = others[i] < least ? others[i] : least;
    FAIL_IF(!(least > 0), ERR_INVALID, "times of an HTTP server must be more than 0 seconds");
    FAIL_IF(limits->head < 64 || limits->connections < 1, ERR_INVALID, "an HTTP server needs heads of 64 bytes and a connection");
    int64_t needed = (int64_t)limits->connections + HTTP_MOST_REFUSED + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY && (int64_t)files.rlim_cur < needed) {
        FAIL(ERR_INVALID,
             "%d connections need %lld open files, and this process may have %lld: raise that (ulimit -n), or allow fewer connections",
             limits->connections, (long long)needed, (long long)files.rlim_cur);
    }
    return OK;
}

/* Only one thread uses the loop, so it needs no locks. It ignores libevent's environment variables. */
static struct event_base *make_base(void)
{
    struct event_config *config = event_config_new();
    if (!config) return NULL;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_IGNORE_ENV);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

Status http_server_create(const HttpLimits *limits, const HttpHandler *handler, HttpServer **out)
{
    *out = NULL;
    TRY(check_limits(limits));
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    FAIL_IF(wake_fd < 0, ERR_IO, "cannot make an event descriptor: %s", strerror(errno));
    struct event_base *base = make_base();
    if (!base) {
        close(wake_fd);
        FAIL(ERR_IO, "cannot make an event loop: %s", strerror(errno));
    }
    HttpServer *server = calloc_or_end(1, sizeof *server);
    server->limits = *limits;
    server->handler = *handler;
    server->base = base;
    server->wake_fd = wake_fd;
    server->wake = event_new(base, wake_fd, EV_READ | EV_PERSIST, on_wake, server);
    server->resume = evtimer_new(base, on_resume, server);
    if (!server->wake || !server->resume || event_add(server->wake, NULL) != 0) fatal_out_of_memory(1);
    pthread_mutex_init(&server->lock, NULL);
    *out = server;
    return OK;
}

void http_server_destroy(HttpServer *server)
{
    if (!server) return;
    while (make_posted_calls(server)) continue;
    if (server->listener) evconnlistener_free(server->listener);
    event_free(server->wake);
    event_free(server->resume);
    event_base_free(server->base);
    close(server->wake_fd);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

/* A write to a client that has gone raises SIGPIPE in this thread. The signal is blocked while the server runs, and discarded at the end.
 */
static bool hold_broken_pipes(sigset_t *old)
{
    sigset_t pipes, waiting;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    sigpending(&waiting);
    pthread_sigmask(SIG_BLOCK, &pipes, old);
    return sigismember(&waiting, SIGPIPE) == 1;
}

static void release_broken_pipes(const sigset_t *old, bool was_waiting)
{
    sigset_t              pipes;
    const struct timespec now = {0};
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    if (!was_waiting) {
        while (sigtimedwait(&pipes, NULL, &now) < 0 && errno == EINTR) continue;
    }
    pthread_sigmask(SIG_SETMASK, old, NULL);
}

Status http_server_run(HttpServer *server)
{
    CHECK(server->listener);
    sigset_t old;
    bool     was_waiting = hold_broken_pipes(&old);
    int      result = obey(server) ? 0 : event_base_dispatch(server->base);
    int      saved = errno;
    evconnlistener_disable(server->listener);
    while (server->connections) http_connection_close(server->connections);
    event_base_loop(server->base, EVLOOP_NONBLOCK); /* lets libevent close the sockets */
    (void)make_posted_calls(server);
    release_broken_pipes(&old, was_waiting);
    FAIL_IF(result < 0, ERR_IO, "the HTTP server's loop failed: %s", strerror(saved));
    return OK;
}
