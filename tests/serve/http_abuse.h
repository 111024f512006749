/* Abuse as a public address receives it: malformed requests, slow and vanishing clients, bodies of a gigabyte, too many connections, and
 * floods of short requests. Other clients must be served meanwhile, and memory and file descriptors are released afterwards.
 *
 * The server runs in this process, without a model. TEST_ABUSE_PORT instead names the port of another server on this machine,
 * TEST_ABUSE_PID its process, TEST_ABUSE_LIMIT its limit of connections. TEST_ABUSE_BODY is the JSON of a completion that takes long. Time
 * limits of that server should be short. */
#pragma once

#include "http_fixture.h"

#include <dirent.h>
#include <sys/resource.h>

typedef struct AbuseCounts {
    int malformed, slow, gigabytes, requests;
} AbuseCounts;

enum { ABUSE_LIMIT = 32, ABUSE_BODY = 1 << 16, ABUSE_UNSENT = 1 << 16 };

static AbuseCounts abuse_counts;

typedef struct Abused {
    Fixture *fixture; /* NULL: the server is another process */
    int      port, pid, limit;
    char     slow_request[4096];
} Abused;

/* seconds: time limit of a request of the server in this process. */
static Abused abused_start(double seconds)
{
    const char   *port = getenv("TEST_ABUSE_PORT"), *pid = getenv("TEST_ABUSE_PID"), *limit = getenv("TEST_ABUSE_LIMIT");
    const char   *body = getenv("TEST_ABUSE_BODY");
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    Abused self = {.pid = (int)getpid(), .limit = ABUSE_LIMIT, .slow_request = "GET /keep HTTP/1.1\r\nHost: localhost\r\n\r\n"};
    if (port) {
        self.port = atoi(port);
        self.pid = pid ? atoi(pid) : 0;
        self.limit = limit ? atoi(limit) : 256;
        if (!body) body = "{\"model\": \"model\", \"prompt\": \"a\", \"max_tokens\": 500, \"stream\": true}";
        snprintf(self.slow_request, sizeof self.slow_request,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
        return self;
    }
    HttpLimits limits = http_default_limits;
    limits.connections = ABUSE_LIMIT;
    limits.body = ABUSE_BODY;
    limits.unsent = ABUSE_UNSENT;
    limits.head_seconds = limits.body_seconds = seconds;
    self.fixture = fixture_start(&limits);
    self.port = self.fixture->port;
    return self;
}

static void abused_end(Abused *self)
{
    if (!self->fixture) return;
    EXPECT(fixture_has_connections(self->fixture, 0));
    fixture_stop(self->fixture);
}

/* ---- what the server's process takes ---- */

static int abused_files(const Abused *self)
{
    char path[64];
    int  count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", self->pid);
    client_sleep(.2); /* the server forgets the last connection shortly before closing it */
    DIR *folder = opendir(path);
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}

/* KiB reported by a line of /proc/PID/status; -1: unknown, or of no use, because a sanitizer keeps freed memory. */
static long abused_memory(const Abused *self, const char *name)
{
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", self->pid);
    FILE *file = TEST_IS_WATCHED && self->fixture ? NULL : fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0) kib = atol(line + strlen(name) + 1);
    }
    if (file) fclose(file);
    return kib;
}

static void expect_memory_within(const Abused *self, long before)
{
    const HttpLimits *limits = &http_default_limits;
    double body = self->fixture ? ABUSE_BODY : (double)limits->body, unsent = self->fixture ? ABUSE_UNSENT : (double)limits->unsent;
    double bound = self->limit * (1.5 * ((double)limits->head + body) + unsent + (1 << 16) + (1 << 14)),
           now = (double)abused_memory(self, "VmHWM");
    if (before < 0) return;
    if ((now - (double)before) * 1024 > bound)
        test_fail(__FILE__, __LINE__, "memory grew by %.0f KiB, more than %.0f", now - (double)before, bound / 1024);
}

/* ---- others ---- */

/* Another client is served, now or as soon as a connection is free. */
static void expect_served(const Abused *self)
{
    double end = client_now() + CLIENT_SECONDS;
    int    status = 0;
    while (status != 200 && client_now() < end) {
        Client client = client_open(self->port);
        Reply  reply = client_ask(&client, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        status = reply.status;
        reply_clear(&reply);
        client_close(&client);
        if (status != 200) client_sleep(.05);
    }
    EXPECT_INT(status, 200);
}

static void expect_still_served(Client *client)
{
    Reply reply = client_ask(client, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_INT(reply.status, 200);
    reply_clear(&reply);
}

/* ---- malformed requests ---- */

static uint64_t abuse_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* A request with some bytes changed, removed, doubled or replaced by characters that matter to a reader. */
static void make_malformed(uint64_t *random, StrBuf *out)
{
    static const char *const whole[] = {
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\nhello world",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
        "PUT /echo HTTP/1.0\r\nExpect: 100-continue\r\nOrigin: http://a\r\nContent-Length: 3\r\n\r\nabc",
    };
    static const char *const words[] = {"\r\n",
                                        "\n",
                                        "\r",
                                        " ",
                                        "\t",
                                        ":",
                                        "Content-Length: 5\r\n",
                                        "Transfer-Encoding: chunked\r\n",
                                        "Host: b\r\n",
                                        "ffffffffffffffff",
                                        "-1",
                                        "HTTP/2.0",
                                        "%00",
                                        "\x7f",
                                        "\xff\xfe",
                                        "\x16\x03\x01",
                                        "0\r\n\r\n",
                                        "GET / HTTP/1.1\r\n"};
    strbuf_clear(out);
    strbuf_puts(out, whole[abuse_random(random) % 4]);
    for (int edits = 1 + (int)(abuse_random(random) % 4); edits > 0 && out->len > 1; edits--) {
        size_t      at = abuse_random(random) % out->len, len = 1 + abuse_random(random) % 8;
        StrBuf      rest = {0};
        const char *word = words[abuse_random(random) % (sizeof words / sizeof words[0])];
        if (len > out->len - at) len = out->len - at;
        bool is_kept = abuse_random(random) % 2;
        strbuf_append(&rest, out->data + at + (is_kept ? 0 : len), out->len - at - (is_kept ? 0 : len));
        out->len = at;
        if (abuse_random(random) % 2) strbuf_puts(out, word);
        if (abuse_random(random) % 4 == 0) strbuf_putc(out, (char)abuse_random(random));
        strbuf_append(out, rest.data, rest.len);
        strbuf_deinit(&rest);
    }
}

static void malformed_requests(void)
{
    Abused   self = abused_start(CLIENT_SECONDS);
    uint64_t random = 1;
    StrBuf   text = {0};
    int      answered = 0, strange = 0;
    for (int i = 0; i < abuse_counts.malformed; i++) {
        Client client = client_open(self.port);
        make_malformed(&random, &text);
        client_send(&client, text.data, text.len);
        shutdown(client.fd, SHUT_WR);
        while (client_more(&client, CLIENT_SECONDS)) continue;
        strange += !client.ended || (client.in.len && strncmp(client.in.data, "HTTP/1.1 ", 9) != 0);
        answered += client.in.len > 0;
        client_close(&client);
        if (i % 500 == 0) expect_served(&self);
    }
    EXPECT_INT(strange, 0);
    EXPECT(answered > abuse_counts.malformed / 4); /* the other requests are cut so short that no answer comes */
    strbuf_deinit(&text);
    expect_served(&self);
    abused_end(&self);
}

/* ---- slow and vanishing clients ---- */

enum { SLOW_WAYS = 7 };

static void misbehave(Client *client, const Abused *self, int way)
{
    static const char begun[] = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhello";
    switch (way) {
    case 0:
        break; /* sends nothing */
    case 1:
        client_send(client, begun, 20);
        break;
    case 2:
        client_send(client, begun, sizeof begun - 1);
        break;
    case 3:
        client_puts(client, self->slow_request);
        break; /* and reads nothing */
    case 4:
        client_puts(client, self->slow_request);
        client_close(client);
        break;
    case 5:
        client_puts(client, self->slow_request);
        client_reset(client);
        break;
    default:
        client_send(client, begun, sizeof begun - 1);
        client_reset(client);
    }
}

static void slow_and_vanishing_clients(void)
{
    enum { AT_ONCE = 100 };
    Abused self = abused_start(1);
    long   memory = abused_memory(&self, "VmRSS");
    Client others[AT_ONCE];
    for (int done = 0; done < abuse_counts.slow; done += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            others[i] = client_open(self.port);
            misbehave(&others[i], &self, i % SLOW_WAYS);
        }
        expect_served(&self);
        /* Clients whose request didn't arrive in time were dropped; clients that wait for an answer weren't. */
        if (self.fixture) EXPECT(fixture_has_connections(self.fixture, atomic_load(&self.fixture->waiting)));
        for (int i = 0; i < AT_ONCE; i++) client_close(&others[i]);
    }
    expect_served(&self);
    expect_memory_within(&self, memory);
    abused_end(&self);
}

/* ---- too much ---- */

static void gigabytes(void)
{
    enum { PIECE = 1 << 16 };
    Abused self = abused_start(CLIENT_SECONDS);
    long   memory = abused_memory(&self, "VmRSS");
    StrBuf chunk = {0};
    Client friend = client_open(self.port);
    strbuf_printf(&chunk, "%x\r\n", PIECE);
    for (int i = 0; i < PIECE; i++) strbuf_putc(&chunk, 'x');
    strbuf_puts(&chunk, "\r\n");
    for (int i = 0; i < abuse_counts.gigabytes; i++) {
        Client client = client_open(self.port);
        bool   is_chunked = i % 2;
        client_puts(&client, is_chunked ? "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                                        : "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1073741824\r\n\r\n");
        size_t sent = 0;
        while (sent < (size_t)1 << 30 && client_send(&client, chunk.data, chunk.len)) sent += chunk.len;
        EXPECT(sent < (size_t)1 << 30);
        Reply reply = client_reply(&client, true);
        EXPECT(reply.status == 413 || reply.status == 0); /* 0: the connection was reset while it sent */
        reply_clear(&reply);
        client_close(&client);
        expect_still_served(&friend);
    }
    strbuf_deinit(&chunk);
    client_close(&friend);
    expect_memory_within(&self, memory);
    abused_end(&self);
}

static void connections_beyond_the_limit(void)
{
    Abused self = abused_start(CLIENT_SECONDS);
    Client friend = client_open(self.port);
    int     most = self.limit * 3, refused = 0;
    Client *more = calloc((size_t)most, sizeof *more);
    expect_still_served(&friend);
    for (int i = 0; i < most; i++) more[i] = client_open(self.port);
    expect_still_served(&friend);
    for (int i = self.limit; i < most; i++) { /* the first clients hold all connections, and send nothing */
        Reply reply = client_reply(&more[i], true);
        refused += reply.status == 503;
        reply_clear(&reply);
        if (i % 16 == 0) expect_still_served(&friend);
    }
    EXPECT_INT(refused, most - self.limit);
    for (int i = 0; i < most; i++) client_close(&more[i]);
    free(more);
    expect_served(&self);
    client_close(&friend);
    abused_end(&self);
}

/* ---- endurance ---- */

static void short_requests(const Abused *self, int count)
{
    Client client = {.fd = -1};
    for (int i = 0; i < count; i++) {
        if (i % 8 == 0) {
            client_close(&client);
            client = client_open(self->port);
        }
        expect_still_served(&client);
    }
    client_close(&client);
}

static void many_short_requests(void)
{
    Abused self = abused_start(CLIENT_SECONDS);
    short_requests(&self, abuse_counts.requests / 10 + 100);
    if (self.fixture) EXPECT(fixture_has_connections(self.fixture, 0));
    int  files = abused_files(&self);
    long memory = abused_memory(&self, "VmRSS");
    short_requests(&self, abuse_counts.requests);
    if (self.fixture) EXPECT(fixture_has_connections(self.fixture, 0));
    EXPECT_INT(abused_files(&self), files);
    long grown = abused_memory(&self, "VmRSS") - memory;
    if (grown > 1024) test_fail(__FILE__, __LINE__, "memory grew by %ld KiB in %d requests", grown, abuse_counts.requests);
    abused_end(&self);
}

#define ABUSE_TESTS \
    TEST(malformed_requests), TEST(slow_and_vanishing_clients), TEST(gigabytes), TEST(connections_beyond_the_limit), \
        TEST(many_short_requests)
