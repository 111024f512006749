/* Requests, well and badly formed: read whole, byte by byte and cut at every place, each gives one result. */
#include "serve/http_names.h"
#include "serve/http_reader.h"
#include "test.h"

enum { HEAD = 256, BODY = 16 };

typedef struct Case {
    const char *text;
    int         status; /* 0: the request is whole */
    const char *told;   /* expected text of describe(), or a part of the reason */
} Case;

static void describe(const HttpReader *reader, StrBuf *out)
{
    if (reader->reading == HTTP_REFUSES) {
        strbuf_printf(out, "%d %s", reader->status, reader->reason);
        return;
    }
    if (reader->reading != HTTP_HAS_REQUEST) {
        strbuf_puts(out, "more");
        return;
    }
    HttpRequest r;
    http_reader_request(reader, &r);
    const Str   parts[] = {r.method, r.path, r.query, r.host, r.origin, r.authorization, r.content_type, r.body};
    const char *names[] = {"", " ", "?", " host=", " origin=", " authorization=", " type=", " body="};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].len == 0) continue;
        strbuf_puts(out, names[i]);
        strbuf_append(out, parts[i].data, parts[i].len);
    }
    if (reader->is_head_request) strbuf_puts(out, " head");
    if (reader->is_http_1_0) strbuf_puts(out, " 1.0");
    if (!reader->keeps_connection) strbuf_puts(out, " close");
    if (reader->expects_continue) strbuf_puts(out, " continue");
}

/* Feeds the text in pieces: one that ends at `cut` and, if step isn't 0, pieces of `step` bytes. Returns how many bytes were taken. */
static size_t read_text(const char *text, size_t len, size_t cut, size_t step, StrBuf *out)
{
    HttpReader reader = {.most_head = HEAD, .most_body = BODY};
    size_t     taken = 0;
    while (taken < len && reader.reading < HTTP_HAS_REQUEST) {
        size_t piece = taken < cut ? cut - taken : len - taken;
        if (step && piece > step) piece = step;
        char *copy = malloc(piece); /* an exact copy, so that a sanitizer sees reads beyond it */
        memcpy(copy, text + taken, piece);
        size_t n = http_reader_feed(&reader, copy, piece);
        free(copy);
        EXPECT(n == piece || reader.reading >= HTTP_HAS_REQUEST);
        taken += n;
    }
    strbuf_clear(out);
    describe(&reader, out);
    http_reader_deinit(&reader);
    return taken;
}

static void check_case(const Case *c)
{
    StrBuf whole = {0}, other = {0};
    size_t len = strlen(c->text), taken = read_text(c->text, len, 0, 0, &whole);
    char   status[8];
    snprintf(status, sizeof status, "%d ", c->status);
    if (c->status) {
        if (strncmp(strbuf_cstr(&whole), status, 4) != 0 || !strstr(strbuf_cstr(&whole), c->told)) {
            test_fail(__FILE__, __LINE__, "\"%s\" gives \"%s\", expected %d ... %s", c->text, strbuf_cstr(&whole), c->status, c->told);
        }
    } else if (strcmp(strbuf_cstr(&whole), c->told) != 0) {
        test_fail(__FILE__, __LINE__, "\"%s\" gives\n  \"%s\", expected\n  \"%s\"", c->text, strbuf_cstr(&whole), c->told);
    }
    for (size_t cut = 0; cut <= len; cut++) {
        size_t again = cut < len ? read_text(c->text, len, cut, 0, &other) : read_text(c->text, len, 0, 1, &other);
        EXPECT_INT(again, taken);
        EXPECT_STR(strbuf_cstr(&other), strbuf_cstr(&whole));
    }
    strbuf_deinit(&whole);
    strbuf_deinit(&other);
}

static void check_cases(const Case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) check_case(&cases[i]);
}

#define CHECK_CASES(cases) check_cases(cases, sizeof(cases) / sizeof(cases)[0])
#define H "Host: a\r\n"

static void good_requests(void)
{
    static const Case cases[] = {
        {"GET / HTTP/1.1\r\n" H "\r\n", 0, "GET / host=a"},
        {"\r\nGET / HTTP/1.1\r\n" H "\r\n", 0, "GET / host=a"},
        {"GET /a/b?c=d&e HTTP/1.1\r\n" H "\r\n", 0, "GET /a/b?c=d&e host=a"},
        {"GET /a? HTTP/1.1\r\n" H "\r\n", 0, "GET /a host=a"},
        {"HEAD /x HTTP/1.1\r\n" H "\r\n", 0, "GET /x host=a head"},
        {"OPTIONS * HTTP/1.1\r\n" H "\r\n", 0, "OPTIONS * host=a"},
        {"GET / HTTP/1.0\r\n\r\n", 0, "GET / 1.0 close"},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 0, "GET / 1.0"},
        {"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", 0, "GET / 1.0 close"},
        {"GET / HTTP/1.1\r\n" H "Connection: x,\tCLOSE\r\n\r\n", 0, "GET / host=a close"},
        {"GET / HTTP/1.1\r\n" H "Connection: close\r\nConnection: keep-alive\r\n\r\n", 0, "GET / host=a close"},
        {"GET http://a/x?y HTTP/1.1\r\nHost: A\r\n\r\n", 0, "GET /x?y host=a"},
        {"GET http://a HTTP/1.1\r\n" H "\r\n", 0, "GET / host=a"},
        {"GET http://a?q HTTP/1.0\r\n\r\n", 0, "GET /?q host=a 1.0 close"},
        {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 0, "GET / host=[::1]:80"},
        {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 0, "GET /"},
        {"GET / HTTP/1.1\r\nhOsT:\t a \t\r\norigin: http://b\r\nAuthorization: Bearer x y\r\n\r\n", 0,
         "GET / host=a origin=http://b authorization=Bearer x y"},
        {"GET / HTTP/1.1\r\n" H "X: \xc3\xa4\r\n\r\n", 0, "GET / host=a"},
    };
    CHECK_CASES(cases);
}

static void good_bodies(void)
{
    static const Case cases[] = {
        {"POST /p HTTP/1.1\r\n" H "Content-Type: a/b\r\nContent-Length: 3\r\n\r\nxyzGET", 0, "POST /p host=a type=a/b body=xyz"},
        {"POST /p HTTP/1.1\r\n" H "Content-Length: 0003\r\n\r\nxyz", 0, "POST /p host=a body=xyz"},
        {"POST /p HTTP/1.1\r\n" H "\r\n", 0, "POST /p host=a"},
        {"POST /p HTTP/1.1\r\n" H "Content-Length: 16\r\n\r\n0123456789abcdef", 0, "POST /p host=a body=0123456789abcdef"},
        {"POST /p HTTP/1.1\r\n" H "Content-Length: 4\r\n\r\nxyz", 0, "more"},
        {"PUT /p HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\n\r\n3\r\nxyz\r\n00A;n=v\r\n0123456789\r\n0\r\n\r\nrest", 0,
         "PUT /p host=a body=xyz0123456789"},
        {"PUT /p HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\r\n\r\n", 0, "PUT /p host=a"},
        {"PUT /p HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n", 0, "PUT /p host=a body=\r\n"},
        {"PUT /p HTTP/1.1\r\n" H "Content-Encoding: identity\r\nContent-Length: 1\r\n\r\nx", 0, "PUT /p host=a body=x"},
        {"PUT /p HTTP/1.1\r\n" H "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\nx", 0, "PUT /p host=a body=x continue"},
        {"PUT /p HTTP/1.1\r\n" H "Expect: 100-continue\r\n\r\n", 0, "PUT /p host=a"},
        {"PUT /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx", 0, "PUT /p body=x 1.0 close"},
    };
    CHECK_CASES(cases);
}

static void bad_request_lines(void)
{
    static const Case cases[] = {
        {"\r\n\r\n", 400, "empty lines"},
        {"GET /\r\n", 400, "METHOD TARGET"},
        {"GET\r\n", 400, "METHOD TARGET"},
        {"GET  HTTP/1.1\r\n", 400, "target"},
        {"GET / / HTTP/1.1\r\n", 400, "target"},
        {"GET /  HTTP/1.1\r\n", 400, "target"},
        {" GET / HTTP/1.1\r\n", 400, "no method"},
        {"G(T / HTTP/1.1\r\n", 400, "no method"},
        {"GET\t/ HTTP/1.1\r\n", 400, "METHOD TARGET"},
        {"GET x HTTP/1.1\r\n", 400, "target"},
        {"GET * HTTP/1.1\r\n", 400, "target"},
        {"GET /#a HTTP/1.1\r\n", 400, "target"},
        {"GET /\xc3\xa4 HTTP/1.1\r\n", 400, "target"},
        {"GET ftp://a/ HTTP/1.1\r\n", 400, "target"},
        {"GET / HTTP/1.1 \r\n", 400, "end with HTTP/1.1"},
        {"GET / http/1.1\r\n", 400, "end with HTTP/1.1"},
        {"GET / HTTP/11\r\n", 400, "end with HTTP/1.1"},
        {"GET / HTTP/1.1x\r\n", 400, "end with HTTP/1.1"},
        {"GET / HTTP/1.2\r\n", 505, "version"},
        {"PRI * HTTP/2.0\r\n", 505, "version"},
        {"CONNECT a:1 HTTP/1.1\r\n", 501, "method"},
        {"TRACE / HTTP/1.1\r\n", 501, "method"},
        {"get / HTTP/1.1\r\n", 501, "method"},
        {"GET / HTTP/1.1\n", 400, "CR LF"},
        {"GET /\r HTTP/1.1\r\n", 400, "carriage return"},
        {"GET / HTTP/1.1\r\r\n", 400, "carriage return"},
        {"\x16\x03\x01", 400, "control character"},
        {"GET /\x7f HTTP/1.1\r\n", 400, "control character"},
    };
    CHECK_CASES(cases);
}

#define LINE "GET / HTTP/1.1\r\n"

static void bad_fields(void)
{
    static const Case cases[] = {
        {LINE "\r\n", 400, "no Host"},
        {LINE H "Host: a\r\n", 400, "Host comes more than once"},
        {LINE "Host: a b\r\n\r\n", 400, "Host isn't"},
        {LINE "Host: a,b\r\n\r\n", 400, "Host isn't"},
        {LINE "Host: a/b\r\n\r\n", 400, "Host isn't"},
        {LINE "Host: a:\r\n\r\n", 400, "Host isn't"},
        {LINE "Host: a:70000\r\n\r\n", 400, "Host isn't"},
        {LINE "Host: u@a\r\n\r\n", 400, "Host isn't"},
        {"GET http://b/ HTTP/1.1\r\n" H "\r\n", 400, "another host"},
        {"GET http:///x HTTP/1.1\r\n" H "\r\n", 400, "another host"},
        {LINE " " H, 400, "folded"},
        {LINE H "X: a\r\n\tb\r\n", 400, "folded"},
        {LINE "Host : a\r\n", 400, "NAME: VALUE"},
        {LINE ": a\r\n", 400, "NAME: VALUE"},
        {LINE "Host\r\n", 400, "NAME: VALUE"},
        {LINE "H(st: a\r\n", 400, "NAME: VALUE"},
        {LINE "X: a\nY: b\r\n", 400, "CR LF"},
        {LINE "X: a\rY: b\r\n", 400, "carriage return"},
        {LINE "X: a\x01\r\n", 400, "control character"},
        {LINE "Origin: a\r\nOrigin: a\r\n", 400, "Origin comes more than once"},
        {LINE "Authorization: a\r\nAuthorization: b\r\n", 400, "Authorization comes more than once"},
        {LINE H "Expect: x\r\n\r\n", 417, "Expect"},
    };
    CHECK_CASES(cases);
}

/* Requests that two programs read differently allow request smuggling. */
static void bad_bodies(void)
{
    static const Case cases[] = {
        {LINE H "Content-Length: 3\r\nContent-Length: 3\r\n", 400, "Content-Length comes more than once"},
        {LINE H "Content-Length: 3, 3\r\n\r\n", 400, "isn't a number"},
        {LINE H "Content-Length: +3\r\n\r\n", 400, "isn't a number"},
        {LINE H "Content-Length: -3\r\n\r\n", 400, "isn't a number"},
        {LINE H "Content-Length: 0x3\r\n\r\n", 400, "isn't a number"},
        {LINE H "Content-Length: 3 3\r\n\r\n", 400, "isn't a number"},
        {LINE H "Content-Length:\r\n\r\n", 400, "isn't a number"},
        {LINE H "Content-Length: 17\r\n\r\n", 413, "limit"},
        {LINE H "Content-Length: 18446744073709551619\r\n\r\n", 413, "limit"},
        {LINE H "Content-Length: 99999999999999999999999999999999\r\n\r\n", 413, "limit"},
        {LINE H "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400, "Transfer-Encoding comes with"},
        {LINE H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400, "Transfer-Encoding comes more"},
        {LINE H "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "Transfer-Encoding"},
        {LINE H "Transfer-Encoding: identity\r\n\r\n", 501, "Transfer-Encoding"},
        {LINE H "Transfer-Encoding: xchunked\r\n\r\n", 501, "Transfer-Encoding"},
        {LINE H "Transfer-Encoding:\x0b chunked\r\n\r\n", 400, "control character"},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0"},
        {LINE H "Content-Encoding: gzip\r\n\r\n", 415, "Content-Encoding"},
    };
    CHECK_CASES(cases);
}

#define CHUNKED LINE H "Transfer-Encoding: chunked\r\n\r\n"

static void bad_chunks(void)
{
    static const Case cases[] = {
        {CHUNKED "\r\n", 400, "its size"},
        {CHUNKED "x\r\n", 400, "its size"},
        {CHUNKED "0x1\r\n", 400, "its size"},
        {CHUNKED " 1\r\n", 400, "its size"},
        {CHUNKED "1 \r\n", 400, "its size"},
        {CHUNKED "-1\r\n", 400, "its size"},
        {CHUNKED "1\n", 400, "CR LF"},
        {CHUNKED "1;\x01\r\n", 400, "control character"},
        {CHUNKED "1\r\nxy", 400, "longer than its size"},
        {CHUNKED "1\r\nx\ny", 400, "CR LF"},
        {CHUNKED "11\r\n", 413, "limit"},
        {CHUNKED "ffffffffffffffffff\r\n", 413, "limit"},
        {CHUNKED "10\r\n0123456789abcdef\r\n1\r\n", 413, "limit"},
        {CHUNKED "0\r\n folded\r\n", 400, "folded"},
        {CHUNKED "0\r\nx\r\n", 400, "NAME: VALUE"},
    };
    CHECK_CASES(cases);
}

static void check_long(const char *before, char filler, size_t count, const char *after, int status)
{
    StrBuf text = {0}, told = {0};
    strbuf_puts(&text, before);
    for (size_t i = 0; i < count; i++) strbuf_putc(&text, filler);
    strbuf_puts(&text, after);
    char want[8];
    snprintf(want, sizeof want, "%d", status);
    if (status) {
        check_case(&(Case){strbuf_cstr(&text), status, want});
    } else {
        read_text(text.data, text.len, 0, 0, &told);
        EXPECT_STR(strbuf_cstr(&told), "GET / host=a");
    }
    strbuf_deinit(&text);
    strbuf_deinit(&told);
}

static void limits(void)
{
    check_long("GET /", 'a', HEAD, "", 414);
    check_long("", 'a', HEAD + 1, "", 414);
    check_long(LINE H "X: ", 'a', HEAD, "", 431);
    check_long(LINE H "X: ", 'a', HEAD - strlen(LINE H "X: \r\n\r\n"), "\r\n\r\n", 0);
    check_long(LINE H "X: ", 'a', HEAD - strlen(LINE H "X: \r\n\r\n") + 1, "\r\n\r\n", 431);
    check_long(CHUNKED "1;", 'a', HTTP_MOST_CHUNK_LINE, "\r\n", 400);
    check_long(CHUNKED "0\r\nX: ", 'a', HEAD, "\r\n", 431);
    HttpReader reader = {.most_head = 1 << 16, .most_body = BODY};
    http_reader_feed(&reader, LINE, strlen(LINE));
    for (int i = 0; i < HTTP_MOST_FIELDS; i++) http_reader_feed(&reader, "X: y\r\n", 6);
    EXPECT_INT(reader.reading, HTTP_READS_HEAD);
    http_reader_feed(&reader, "X: y\r\n", 6);
    EXPECT_INT(reader.reading, HTTP_REFUSES);
    EXPECT_INT(reader.status, 431);
    http_reader_deinit(&reader);
}

static void requests_follow_each_other(void)
{
    static const char text[] = "POST /1 HTTP/1.1\r\nHost: a\r\nOrigin: o\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"
                               "GET /2 HTTP/1.1\r\nHost: b\r\n\r\nGET /3 HTTP/1.0\r\n\r\n";
    HttpReader        reader = {.most_head = HEAD, .most_body = BODY};
    StrBuf            told = {0};
    for (size_t at = 0; at < sizeof text - 1;) {
        at += http_reader_feed(&reader, text + at, sizeof text - 1 - at);
        describe(&reader, &told);
        strbuf_puts(&told, "; ");
        http_reader_next(&reader);
        EXPECT(!reader.began);
    }
    EXPECT_STR(strbuf_cstr(&told), "POST /1 host=a origin=o body=ab close; GET /2 host=b; GET /3 1.0 close; ");
    strbuf_deinit(&told);
    http_reader_deinit(&reader);
}

static void local_names(void)
{
    static const char *const local[] = {"localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "127.255.3.4", "[::1]", "[::1]:65535"};
    static const char *const other[] = {"",
                                        "localhost:",
                                        "localhost:x",
                                        "localhost.evil.com",
                                        "evil-localhost",
                                        "127.0.0.1.evil.com",
                                        "127.0.0",
                                        "127.0.0.0.1",
                                        "127.0.0.256",
                                        "128.0.0.1",
                                        "10.127.0.1",
                                        "127.1",
                                        "127..0.1",
                                        "127.0.0.1.",
                                        "::1",
                                        "[::2]",
                                        "[::1",
                                        "[::1]x",
                                        "0.0.0.0",
                                        "a@localhost",
                                        "127.0.0.0001"};
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
        if (!http_is_local_name(str_of(local[i]))) test_fail(__FILE__, __LINE__, "%s isn't local", local[i]);
    }
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        if (http_is_local_name(str_of(other[i]))) test_fail(__FILE__, __LINE__, "%s is local", other[i]);
    }
}

TEST_MAIN(TEST(good_requests), TEST(good_bodies), TEST(bad_request_lines), TEST(bad_fields), TEST(bad_bodies), TEST(bad_chunks),
          TEST(limits), TEST(requests_follow_each_other), TEST(local_names))
