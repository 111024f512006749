/* Measures a server of completions under load: clients that send the next request as soon as they are answered, with prompts and answers of
 * mixed lengths, half of them streaming.
 *
 *   bench_serve [HOST:]PORT [--clients N] [--seconds S] [--stream SHARE] [--prompt-words A,B,...] [--max-tokens A,B,...]
 *               [--model NAME] [--key KEY] [--requests FILE]
 *
 * --requests: sends each line of FILE, the JSON of a request, once, and ends when all are answered. Without it random requests begin for S
 * seconds (10), and requests that have begun are waited for. The random requests are the same in every run.
 *
 * Prints requests and tokens per second and errors. Prints the median and the 99th percentile of two times: to the first token of streamed
 * answers, and to the end of every answer. Exit status 1: there were errors, of which it prints the first, or no answer. */
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LENGTHS = 32, MOST_CLIENTS = 4096, ANSWER_SECONDS = 600 };

typedef struct Lengths {
    int count, value[MOST_LENGTHS];
} Lengths;

typedef struct Times {
    double *seconds;
    size_t  count, capacity;
} Times;

typedef struct Client {
    int    fd; /* -1: not connected */
    bool   waits, streams;
    StrBuf request, in, body; /* in: received bytes; body: the answer's body, without chunk sizes */
    size_t sent, read;        /* sent: bytes of `request` that were sent; read: bytes of `in` that are already in `body` */
    double begin, first;      /* times in seconds; first: of the first token, 0: none yet */
} Client;

typedef struct Load {
    const char      *host, *port, *model, *key, *requests;
    struct addrinfo *address;
    int              num_clients;
    double           seconds, share;
    Lengths          words, tokens;
    FILE            *file;
    uint64_t         random;
    Client          *clients;
    int64_t          num_answers, num_tokens, num_errors;
    Times            first, whole;
} Load;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* A random integer from 0 to below - 1. */
static int draw(Load *load, int below)
{
    load->random = load->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((load->random >> 33) % (uint64_t)below);
}

static int pick(Load *load, const Lengths *lengths)
{
    return lengths->value[draw(load, lengths->count)];
}

static void keep_time(Times *times, double seconds)
{
    if (times->count == times->capacity) {
        times->capacity = times->capacity * 2 + 256;
        times->seconds = realloc_or_end(times->seconds, times->capacity * sizeof *times->seconds);
    }
    times->seconds[times->count++] = seconds;
}

/* ---- requests ---- */

static bool write_random_body(Load *load, Client *client, StrBuf *body)
{
    static const char *const words[] = {"the",   "of", "a",     "house", "water",  "when", "time",
                                        "light", "is", "seven", "green", "walked", "said", "she"};
    int                      count = pick(load, &load->words);
    strbuf_puts(body, "{");
    if (load->model) {
        strbuf_puts(body, "\"model\": ");
        json_write_string(body, load->model, strlen(load->model));
        strbuf_puts(body, ", ");
    }
    strbuf_puts(body, "\"prompt\": \"Once");
    for (int i = 1; i < count; i++) strbuf_printf(body, " %s", words[draw(load, (int)(sizeof words / sizeof words[0]))]);
    client->streams = draw(load, 1000) < load->share * 1000;
    strbuf_printf(body, "\", \"max_tokens\": %d, \"seed\": %d%s}", pick(load, &load->tokens), draw(load, 1 << 20),
                  client->streams ? ", \"stream\": true, \"stream_options\": {\"include_usage\": true}" : "");
    return true;
}

static bool read_body(Load *load, Client *client, StrBuf *body)
{
    char   *line = NULL;
    size_t  capacity = 0;
    ssize_t len = getline(&line, &capacity, load->file);
    if (len > 0) strbuf_append(body, line, (size_t)len);
    client->streams = len > 0 && (strstr(line, "\"stream\": true") || strstr(line, "\"stream\":true"));
    free(line);
    return len > 0;
}

static bool write_request(Load *load, Client *client)
{
    StrBuf body = {0};
    bool   is_any = load->file ? read_body(load, client, &body) : write_random_body(load, client, &body);
    strbuf_clear(&client->request);
    strbuf_printf(&client->request, "POST /v1/completions HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n", load->host,
                  load->port);
    if (load->key) strbuf_printf(&client->request, "Authorization: Bearer %s\r\n", load->key);
    strbuf_printf(&client->request, "Content-Length: %zu\r\n\r\n", body.len);
    strbuf_append(&client->request, body.data, body.len);
    strbuf_deinit(&body);
    return is_any;
}

/* ---- clients ---- */

static void disconnect(Client *client)
{
    if (client->fd >= 0) close(client->fd);
    client->fd = -1;
}

/* Ends an answer: error is NULL if it succeeded. */
static void end_answer(Load *load, Client *client, const char *error)
{
    double end = now();
    client->waits = false;
    if (error) {
        disconnect(client);
        if (load->num_errors++ == 0) fprintf(stderr, "%s: %.300s\n", error, strbuf_cstr(client->body.len ? &client->body : &client->in));
        return;
    }
    load->num_answers++;
    keep_time(&load->whole, end - client->begin);
    if (client->streams) keep_time(&load->first, client->first - client->begin);
}

static void ask(Load *load, Client *client)
{
    int one = 1;
    if (!write_request(load, client)) return;
    client->waits = true;
    client->sent = client->read = 0;
    client->first = 0;
    client->begin = now();
    strbuf_clear(&client->in);
    strbuf_clear(&client->body);
    if (client->fd >= 0) return;
    client->fd = socket(load->address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(client->fd, load->address->ai_addr, load->address->ai_addrlen) != 0 && errno != EINPROGRESS) {
        end_answer(load, client, strerror(errno));
    }
}

/* ---- answers ---- */

/* Checks a whole answer; adds its last usage.completion_tokens to the load's count. Returns NULL or what is wrong. */
static const char *judge(Load *load, Client *client, int status)
{
    static const char key[] = "\"completion_tokens\":";
    const char       *text = strbuf_cstr(&client->body), *last = NULL;
    for (const char *at = text; (at = strstr(at, key)); at++) last = at;
    if (status != 200) return "an answer that isn't 200";
    if (!last) return "an answer without usage.completion_tokens";
    if (client->streams && (!client->first || !strstr(text, "data: [DONE]"))) return "a stream that doesn't end with [DONE]";
    load->num_tokens += atoll(last + sizeof key - 1);
    return NULL;
}

/* Moves complete chunks from `in` to `body`; returns true after the last chunk. */
static bool take_chunks(Client *client)
{
    for (;;) {
        const char *size = client->in.data + client->read, *end = client->in.data + client->in.len;
        const char *line_end = memmem(size, (size_t)(end - size), "\r\n", 2);
        if (!line_end) return false;
        size_t len = strtoul(size, NULL, 16);
        if ((size_t)(end - line_end) < len + 4) return false;
        strbuf_append(&client->body, line_end + 2, len);
        client->read = (size_t)(line_end + 4 + len - client->in.data);
        if (len == 0) return true;
    }
}

/* Handles the bytes received so far. */
static void read_answer(Load *load, Client *client)
{
    const char *head_end = client->in.len ? memmem(client->in.data, client->in.len, "\r\n\r\n", 4) : NULL;
    int         status = 0;
    if (!head_end) return;
    size_t      head = (size_t)(head_end + 4 - client->in.data);
    const char *length = memmem(client->in.data, head, "Content-Length: ", 16);
    bool        is_whole = false;
    sscanf(client->in.data, "HTTP/1.1 %d", &status);
    if (client->read == 0) client->read = head;
    if (length) {
        size_t len = strtoul(length + 16, NULL, 10);
        is_whole = client->in.len >= head + len;
        if (is_whole) strbuf_append(&client->body, client->in.data + head, len);
    } else {
        is_whole = take_chunks(client);
    }
    if (!client->first && client->streams && client->body.len && strstr(client->body.data, "data: ")) client->first = now();
    bool closes = memmem(client->in.data, head, "\r\nConnection: close", 19);
    if (!is_whole) return;
    end_answer(load, client, judge(load, client, status));
    if (closes) disconnect(client);
}

static void serve_client(Load *load, Client *client, short events)
{
    char buffer[1 << 14];
    if (client->sent < client->request.len && (events & (POLLOUT | POLLERR | POLLHUP))) {
        ssize_t n = send(client->fd, client->request.data + client->sent, client->request.len - client->sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) {
            end_answer(load, client, strerror(errno));
            return;
        }
        client->sent += n > 0 ? (size_t)n : 0;
    }
    if (!(events & (POLLIN | POLLHUP | POLLERR))) return;
    ssize_t n = recv(client->fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        end_answer(load, client, n < 0 ? strerror(errno) : "the server closed the connection");
        return;
    }
    strbuf_append(&client->in, buffer, (size_t)n);
    read_answer(load, client);
}

/* ---- the run ---- */

/* Returns the seconds that the load took. */
static double run(Load *load)
{
    struct pollfd waits[MOST_CLIENTS];
    double        begin = now(), last = begin;
    for (;;) {
        int  num_waiting = 0;
        bool asks = load->file || now() - begin < load->seconds;
        for (int i = 0; i < load->num_clients; i++) {
            Client *client = &load->clients[i];
            if (asks && !client->waits) ask(load, client);
            num_waiting += client->waits;
            waits[i] = (struct pollfd){client->waits ? client->fd : -1, POLLIN | (client->sent < client->request.len ? POLLOUT : 0), 0};
        }
        if (num_waiting == 0 && (!asks || load->file)) return now() - begin;
        if (poll(waits, (nfds_t)load->num_clients, 100) > 0) last = now();
        for (int i = 0; i < load->num_clients; i++) {
            if (waits[i].revents) serve_client(load, &load->clients[i], waits[i].revents);
        }
        if (now() - last < ANSWER_SECONDS) continue;
        fprintf(stderr, "the server says nothing\n");
        load->num_errors += num_waiting;
        return now() - begin;
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, Times *times)
{
    if (times->count == 0) return;
    qsort(times->seconds, times->count, sizeof *times->seconds, by_size);
    printf("%s: median %.4f s, 99 %% %.4f s\n", name, times->seconds[times->count / 2], times->seconds[times->count * 99 / 100]);
}

static void read_lengths(const char *text, Lengths *out)
{
    for (out->count = 0; out->count < MOST_LENGTHS && *text; text += *text == ',') {
        char *end;
        long  value = strtol(text, &end, 10);
        if (end == text || value < 1 || value > 1 << 20) break;
        out->value[out->count++] = (int)value;
        text = end;
    }
    if (*text || out->count == 0) {
        fprintf(stderr, "\"%s\" isn't a list of numbers such as 16,128\n", text);
        exit(2);
    }
}

static bool read_flag(Load *load, const char *flag, const char *value)
{
    if (strcmp(flag, "--clients") == 0) return (load->num_clients = atoi(value)) >= 1 && load->num_clients <= MOST_CLIENTS;
    if (strcmp(flag, "--seconds") == 0) return (load->seconds = atof(value)) > 0;
    if (strcmp(flag, "--stream") == 0) return (load->share = atof(value)) >= 0;
    if (strcmp(flag, "--model") == 0) return (load->model = value);
    if (strcmp(flag, "--key") == 0) return (load->key = value);
    if (strcmp(flag, "--requests") == 0) return (load->requests = value);
    bool is_words = strcmp(flag, "--prompt-words") == 0;
    if (!is_words && strcmp(flag, "--max-tokens") != 0) return false;
    read_lengths(value, is_words ? &load->words : &load->tokens);
    return true;
}

static void read_arguments(Load *load, int argc, char **argv)
{
    bool  is_right = argc >= 2 && argc % 2 == 0;
    char *colon = is_right ? strrchr(argv[1], ':') : NULL;
    if (colon) *colon = 0;
    if (colon) load->host = argv[1];
    if (is_right) load->port = colon ? colon + 1 : argv[1];
    for (int i = 2; is_right && i < argc; i += 2) is_right = read_flag(load, argv[i], argv[i + 1]);
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    if (!is_right || getaddrinfo(load->host, load->port, &wanted, &load->address) != 0) {
        fprintf(stderr, "usage: bench_serve [HOST:]PORT [--clients N] [--seconds S] [--stream SHARE] [--prompt-words A,B,...]\n"
                        "       [--max-tokens A,B,...] [--model NAME] [--key KEY] [--requests FILE]\n");
        exit(2);
    }
    if (load->requests && !(load->file = fopen(load->requests, "r"))) {
        fprintf(stderr, "%s: %s\n", load->requests, strerror(errno));
        exit(2);
    }
}

static void deinit(Load *load)
{
    for (int i = 0; i < load->num_clients; i++) {
        Client *client = &load->clients[i];
        disconnect(client);
        strbuf_deinit(&client->request);
        strbuf_deinit(&client->in);
        strbuf_deinit(&client->body);
    }
    free(load->clients);
    free(load->first.seconds);
    free(load->whole.seconds);
    freeaddrinfo(load->address);
    if (load->file) fclose(load->file);
}

int main(int argc, char **argv)
{
    Load load = {.host = "127.0.0.1", .num_clients = 64, .seconds = 10, .share = .5, .random = 1};
    read_lengths("8,32,128", &load.words);
    read_lengths("16,64,128", &load.tokens);
    read_arguments(&load, argc, argv);
    load.clients = calloc_or_end((size_t)load.num_clients, sizeof *load.clients);
    for (int i = 0; i < load.num_clients; i++) load.clients[i].fd = -1;
    double seconds = run(&load);
    printf("%d clients, %.1f s: %lld requests (%.2f/s), %lld tokens (%.1f/s), %lld errors\n", load.num_clients, seconds,
           (long long)load.num_answers, (double)load.num_answers / seconds, (long long)load.num_tokens, (double)load.num_tokens / seconds,
           (long long)load.num_errors);
    print_times("first token", &load.first);
    print_times("whole answer", &load.whole);
    deinit(&load);
    return load.num_errors > 0 || load.num_answers == 0;
}
