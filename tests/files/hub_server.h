/* A hub with one repository on loopback, which misbehaves as a test asks. It has two ports: the hub, and the host that large files are
 * redirected to. One thread answers connections in turn. */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define HUB_COMMIT "0123456789abcdef0123456789abcdef01234567"
#define HUB_SMALL "{\"model_type\": \"tiny\"}\n"
#define HUB_SMALL_ETAG "b6ded5f340daa14ef0b286ae424ea6eef34544b1"                         /* printed by git hash-object */
#define HUB_LARGE_ETAG "e870fec3223bac8f6147b08b31e6e6e4bb9abd783820bcd212b7737af6a02174" /* printed by sha256sum */
enum { HUB_LARGE_BYTES = 200000, HUB_LOG = 64 };

typedef struct HubServer {
    int       hub, cdn, stop[2]; /* listening sockets; a pipe that stops the thread */
    int       hub_port, cdn_port;
    pthread_t thread;
    char      large[HUB_LARGE_BYTES];
    /* faults to make; an int without another meaning says how many times */
    int         cut;           /* the large file's connection is closed halfway */
    int         no_range;      /* ranges are ignored */
    int         corrupt;       /* one byte of the large file differs */
    int         short_body;    /* fewer bytes than the hub announced, properly framed */
    int         long_body;     /* more bytes than the hub announced */
    int         stall;         /* nothing is sent after the first half */
    int         bad_start;     /* a 206 that starts at another offset */
    int         unavailable;   /* 503 */
    int         retry_after;   /* Retry-After of the 503 answers, in seconds */
    int         refuse;        /* the hub answers everything with this code */
    int         range_refused; /* 416 */
    const char *error_code;    /* X-Error-Code of refused answers */
    const char *listing;       /* sent instead of the right listing */
    const char *small_etag;    /* sent instead of the right ETag */
    const char *moved_to;      /* HEAD and GET of the small file are redirected (307) to this path */
    bool        loops;         /* redirects to itself for ever */
    int         changes_in;    /* after this many requests plain.txt has other bytes; 0: never */
    bool        splices;       /* plain.txt: ranges are answered even if If-Range doesn't match */
    bool        weak;          /* plain.txt has a weak ETag */
    int         unframed;      /* plain.txt has no Content-Length, not even for HEAD */
    int         version;       /* version of plain.txt */
    /* requests received */
    char log[HUB_LOG][256];
    int  num_log;
} HubServer;

static int hub_listen(int *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          len = sizeof address;
    int                fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0) return -1;
    getsockname(fd, (struct sockaddr *)&address, &len);
    *out_port = ntohs(address.sin_port);
    return fd;
}

static void hub_send(int fd, const void *data, size_t len)
{
    for (const char *p = data; len;) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n <= 0) return;
        p += n;
        len -= (size_t)n;
    }
}

static void hub_answer(int fd, int code, const char *headers, const void *body, size_t len, bool head)
{
    char text[1024];
    snprintf(text, sizeof text, "HTTP/1.1 %d Status\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n", code, len, headers);
    hub_send(fd, text, strlen(text));
    if (!head) hub_send(fd, body, len);
}

static bool hub_counts_down(int *count)
{
    return *count > 0 && (*count)--;
}

static void hub_answer_large(HubServer *s, int fd, long long start)
{
    static char body[HUB_LARGE_BYTES + 1];
    char        headers[256] = "";
    memcpy(body, s->large, HUB_LARGE_BYTES);
    if (hub_counts_down(&s->corrupt)) body[HUB_LARGE_BYTES - 1] ^= 1;
    if (hub_counts_down(&s->no_range)) start = 0;
    if (start > 0 && hub_counts_down(&s->range_refused)) {
        hub_answer(fd, 416, "", "", 0, false);
        return;
    }
    long long claimed = start && hub_counts_down(&s->bad_start) ? start + 1 : start;
    size_t    len = (size_t)(HUB_LARGE_BYTES - start);
    if (hub_counts_down(&s->short_body)) len -= 100;
    if (hub_counts_down(&s->long_body)) len += 1;
    snprintf(headers, sizeof headers, "HTTP/1.1 %d OK\r\nConnection: close\r\nContent-Length: %zu\r\nETag: \"cdn\"\r\n", start ? 206 : 200,
             len);
    hub_send(fd, headers, strlen(headers));
    snprintf(headers, sizeof headers, "Content-Range: bytes %lld-%d/%d\r\n\r\n", claimed, HUB_LARGE_BYTES - 1, HUB_LARGE_BYTES);
    hub_send(fd, start ? headers : "\r\n", start ? strlen(headers) : 2);
    bool stall = hub_counts_down(&s->stall);
    if (hub_counts_down(&s->cut) || stall) len /= 2;
    hub_send(fd, body + start, len);
    struct pollfd closed = {fd, POLLIN, 0};
    if (stall) poll(&closed, 1, 5000); /* until the client gives up */
}

/* Sends version v of plain.txt: the large file with v added to each byte. Its ETag doesn't depend on the bytes. */
static void hub_answer_plain(HubServer *s, int fd, const char *request, long long start, bool head)
{
    static char body[HUB_LARGE_BYTES];
    char        headers[512], etag[32], length[64] = "", range[96] = "";
    if (s->changes_in && --s->changes_in == 0) s->version++;
    for (int i = 0; i < HUB_LARGE_BYTES; i++) body[i] = (char)(s->large[i] + s->version);
    snprintf(etag, sizeof etag, "%s\"v%d\"", s->weak ? "W/" : "", s->version);
    const char *wanted = strcasestr(request, "\r\nIf-Range: ");
    if (!s->splices && wanted && strncmp(wanted + 12, etag, strlen(etag)) != 0) start = 0;
    if (start) snprintf(range, sizeof range, "Content-Range: bytes %lld-%d/%d\r\n", start, HUB_LARGE_BYTES - 1, HUB_LARGE_BYTES);
    if (!s->unframed) snprintf(length, sizeof length, "Content-Length: %lld\r\n", HUB_LARGE_BYTES - start);
    snprintf(headers, sizeof headers, "HTTP/1.1 %d OK\r\nConnection: close\r\nETag: %s\r\n%s%s\r\n", start ? 206 : 200, etag, length,
             range);
    hub_send(fd, headers, strlen(headers));
    size_t len = (size_t)(HUB_LARGE_BYTES - start);
    if (!head) hub_send(fd, body + start, hub_counts_down(&s->cut) ? len / 2 : len);
}

static void hub_answer_file(HubServer *s, int fd, const char *path, bool head)
{
    char headers[512];
    if (strstr(path, "model.safetensors")) {
        snprintf(headers, sizeof headers,
                 "Location: http://localhost:%d/%s\r\nX-Repo-Commit: " HUB_COMMIT "\r\nX-Linked-Etag: \"" HUB_LARGE_ETAG
                 "\"\r\nX-Linked-Size: %d\r\nETag: \"other\"\r\n",
                 s->cdn_port, s->loops && !head ? "loop" : "cdn", HUB_LARGE_BYTES);
        hub_answer(fd, 302, headers, "moved", 5, head);
    } else if (strstr(path, "config.json") && s->moved_to && !strstr(path, s->moved_to)) {
        snprintf(headers, sizeof headers, "Location: %s\r\n", s->moved_to);
        hub_answer(fd, 307, headers, "", 0, head);
    } else if (strstr(path, "config.json")) {
        snprintf(headers, sizeof headers, "X-Repo-Commit: " HUB_COMMIT "\r\nETag: %s\r\n",
                 s->small_etag ? s->small_etag : "W/\"" HUB_SMALL_ETAG "\"");
        hub_answer(fd, 200, headers, HUB_SMALL, strlen(HUB_SMALL), head);
    } else if (strstr(path, "empty.json")) {
        hub_answer(fd, 200, "ETag: \"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\"\r\n", "", 0, head);
    } else {
        hub_answer(fd, 404, "X-Error-Code: EntryNotFound\r\n", "no", 2, head);
    }
}

static void hub_serve(HubServer *s, int fd, bool cdn)
{
    char   request[4096] = "", method[8] = "", path[1024] = "", headers[256] = "";
    size_t len = 0;
    while (len + 1 < sizeof request && !strstr(request, "\r\n\r\n")) {
        ssize_t n = recv(fd, request + len, sizeof request - 1 - len, 0);
        if (n <= 0) return;
        request[len += (size_t)n] = 0;
    }
    sscanf(request, "%7s %1023s", method, path);
    const char *range = strcasestr(request, "\r\nRange: bytes="), *token = strcasestr(request, "\r\nAuthorization: ");
    long long   start = range ? atoll(range + 15) : 0;
    bool        head = strcmp(method, "HEAD") == 0;
    if (s->num_log < HUB_LOG)
        snprintf(s->log[s->num_log++], sizeof s->log[0], "%s %s%s from %lld token %.*s", method, cdn ? "cdn" : "", path, start,
                 token ? (int)strcspn(token + 17, "\r") : 4, token ? token + 17 : "none");
    if (s->error_code) snprintf(headers, sizeof headers, "X-Error-Code: %s\r\nX-Error-Message: it says why\r\n", s->error_code);
    if (cdn && strcmp(path, "/loop") == 0)
        hub_answer(fd, 302, "Location: /loop\r\n", "", 0, head);
    else if (cdn)
        hub_answer_large(s, fd, start);
    else if (hub_counts_down(&s->unavailable)) {
        snprintf(headers, sizeof headers, "Retry-After: %d\r\n", s->retry_after);
        hub_answer(fd, 503, headers, "busy", 4, head);
    } else if (s->refuse)
        hub_answer(fd, s->refuse, headers, "<html>no</html>", 15, head);
    else if (strstr(path, "/api/"))
        hub_answer(fd, 200, "", s->listing, strlen(s->listing), head);
    else if (strstr(path, "plain.txt"))
        hub_answer_plain(s, fd, request, start, head);
    else
        hub_answer_file(s, fd, path, head);
}

static void *hub_loop(void *context)
{
    HubServer    *s = context;
    struct pollfd fds[] = {{s->hub, POLLIN, 0}, {s->cdn, POLLIN, 0}, {s->stop[0], POLLIN, 0}};
    while (poll(fds, 3, -1) > 0 && !fds[2].revents) {
        for (int i = 0; i < 2; i++) {
            int fd = fds[i].revents ? accept(fds[i].fd, NULL, NULL) : -1;
            if (fd < 0) continue;
            hub_serve(s, fd, i == 1);
            close(fd);
        }
    }
    return NULL;
}

static bool hub_start(HubServer *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < HUB_LARGE_BYTES; i++) s->large[i] = (char)(i * 7 + i / 251);
    s->listing = "{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"config.json\"}, {\"rfilename\": \"model.safetensors\"}, "
                 "{\"rfilename\": \"README.md\"}, {\"rfilename\": \"plain.txt\"}, {\"rfilename\": \"sub/dir/empty.json\"}]}";
    s->hub = hub_listen(&s->hub_port);
    s->cdn = hub_listen(&s->cdn_port);
    return s->hub >= 0 && s->cdn >= 0 && pipe(s->stop) == 0 && pthread_create(&s->thread, NULL, hub_loop, s) == 0;
}

static void hub_end(HubServer *s)
{
    if (write(s->stop[1], "", 1) != 1) abort();
    pthread_join(s->thread, NULL);
    close(s->hub);
    close(s->cdn);
    close(s->stop[0]);
    close(s->stop[1]);
}
