/* A plain blocking client with one connection, which can misbehave; no wait takes longer than CLIENT_SECONDS. */
#pragma once

#include "base/strbuf.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENT_SECONDS = TEST_IS_WATCHED ? 60 : 20 };

typedef struct Client {
    int    fd;
    StrBuf in; /* received bytes that weren't taken yet */
    bool   ended;
} Client;

typedef struct Reply {
    int    status; /* 0: no answer came */
    bool   closes; /* the answer has Connection: close */
    StrBuf head, body;
} Reply;

__attribute__((unused)) static double client_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

__attribute__((unused)) static void client_sleep(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* fd is -1 if no server listens. */
__attribute__((unused)) static Client client_open(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    Client             client = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (connect(client.fd, (struct sockaddr *)&address, sizeof address) == 0) return client;
    close(client.fd);
    client.fd = -1;
    return client;
}

__attribute__((unused)) static void client_close(Client *client)
{
    if (client->fd >= 0) close(client->fd);
    strbuf_deinit(&client->in);
    *client = (Client){.fd = -1};
}

/* Closes like a process that dies with unread bytes: the server gets a reset. */
__attribute__((unused)) static void client_reset(Client *client)
{
    struct linger at_once = {.l_onoff = 1};
    setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    client_close(client);
}

/* False: the server took no more bytes. */
__attribute__((unused)) static bool client_send(Client *client, const char *data, size_t len)
{
    double end = client_now() + CLIENT_SECONDS;
    while (len > 0 && client_now() < end) {
        ssize_t n = send(client->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = client->fd, .events = POLLOUT};
            poll(&wait, 1, 100);
            continue;
        }
        if (n < 0) return false;
        data += n;
        len -= (size_t)n;
    }
    return len == 0;
}

__attribute__((unused)) static bool client_puts(Client *client, const char *text)
{
    return client_send(client, text, strlen(text));
}

/* Waits for more bytes. False: the connection ended, or no bytes came in time. */
__attribute__((unused)) static bool client_more(Client *client, double seconds)
{
    char          buffer[1 << 14];
    struct pollfd wait = {.fd = client->fd, .events = POLLIN};
    if (client->ended || poll(&wait, 1, (int)(seconds * 1e3)) <= 0) return false;
    ssize_t n = recv(client->fd, buffer, sizeof buffer, 0);
    if (n <= 0) client->ended = true;
    if (n > 0) strbuf_append(&client->in, buffer, (size_t)n);
    return n > 0;
}

__attribute__((unused)) static void client_take(Client *client, size_t len, StrBuf *out)
{
    if (out) strbuf_append(out, client->in.data, len);
    memmove(client->in.data, client->in.data + len, client->in.len - len + 1);
    client->in.len -= len;
}

/* Reads a line, without its end; false: no line came. */
__attribute__((unused)) static bool client_line(Client *client, StrBuf *out)
{
    for (;;) {
        const char *end = client->in.len ? memmem(client->in.data, client->in.len, "\r\n", 2) : NULL;
        if (end) {
            client_take(client, (size_t)(end - client->in.data), out);
            client_take(client, 2, NULL);
            return true;
        }
        if (!client_more(client, CLIENT_SECONDS)) return false;
    }
}

__attribute__((unused)) static bool client_bytes(Client *client, size_t len, StrBuf *out)
{
    while (client->in.len < len) {
        if (!client_more(client, CLIENT_SECONDS)) return false;
    }
    if (len) client_take(client, len, out);
    return true;
}

__attribute__((unused)) static bool client_chunks(Client *client, StrBuf *out)
{
    for (;;) {
        StrBuf size = {0};
        bool   is_there = client_line(client, &size);
        size_t len = strtoul(strbuf_cstr(&size), NULL, 16);
        strbuf_deinit(&size);
        if (!is_there || !client_bytes(client, len, out) || !client_line(client, NULL)) return false;
        if (len == 0) return true;
    }
}

__attribute__((unused)) static void reply_clear(Reply *reply)
{
    strbuf_deinit(&reply->head);
    strbuf_deinit(&reply->body);
    *reply = (Reply){0};
}

/* Reads the next answer, whole. has_body false: the answer to a HEAD request. Status 0: it didn't arrive whole. */
__attribute__((unused)) static Reply client_reply(Client *client, bool has_body)
{
    Reply reply = {0};
    do { /* an interim answer (100) has no body */
        size_t before;
        strbuf_clear(&reply.head);
        do {
            before = reply.head.len;
            if (!client_line(client, &reply.head)) {
                reply_clear(&reply);
                return reply;
            }
            strbuf_putc(&reply.head, '\n');
        } while (reply.head.len > before + 1);
        sscanf(reply.head.data, "HTTP/1.1 %d", &reply.status);
    } while (reply.status == 100);
    reply.closes = strstr(reply.head.data, "\nConnection: close\n");
    const char *length = strstr(reply.head.data, "\nContent-Length: ");
    bool        is_whole = true;
    if (!has_body || reply.status == 204) return reply;
    if (length) {
        is_whole = client_bytes(client, strtoul(length + 17, NULL, 10), &reply.body);
    } else if (strstr(reply.head.data, "\nTransfer-Encoding: chunked\n")) {
        is_whole = client_chunks(client, &reply.body);
    } else {
        while (client_more(client, CLIENT_SECONDS)) continue;
        is_whole = client->ended;
        if (client->in.len) client_take(client, client->in.len, &reply.body);
    }
    if (!is_whole) reply_clear(&reply);
    return reply;
}

/* Whether the server closed the connection without sending more bytes. */
__attribute__((unused)) static bool client_was_closed(Client *client)
{
    return client->in.len == 0 && !client_more(client, CLIENT_SECONDS) && client->ended;
}

/* Sends a request and reads its answer. */
__attribute__((unused)) static Reply client_ask(Client *client, const char *request)
{
    if (!client_puts(client, request)) return (Reply){0};
    return client_reply(client, strncmp(request, "HEAD ", 5) != 0);
}
