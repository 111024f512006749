/* Bytes from clients: any bytes are refused or are requests within the limits. A request that is written and read again is the same.
 * Cutting the bytes elsewhere changes nothing. The first byte chooses the limits, the second the length of the pieces. */
#include "serve/http_reader.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_right)
{
    if (!is_right) abort();
}

static bool is_plain(Str text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
    }
    return true;
}

static void put_field(StrBuf *out, const char *name, Str value)
{
    if (value.len == 0) return;
    strbuf_printf(out, "%s: ", name);
    strbuf_append(out, value.data, value.len);
    strbuf_puts(out, "\r\n");
}

static void put(StrBuf *out, Str text)
{
    strbuf_append(out, text.data, text.len);
}

static void write_request(const HttpReader *reader, const HttpRequest *request, StrBuf *out)
{
    put(out, reader->is_head_request ? str_of("HEAD") : request->method);
    strbuf_putc(out, ' ');
    put(out, request->path);
    if (request->query.len) strbuf_putc(out, '?');
    put(out, request->query);
    strbuf_printf(out, " HTTP/1.%d\r\nHost: ", reader->is_http_1_0 ? 0 : 1);
    put(out, request->host);
    strbuf_puts(out, "\r\n");
    put_field(out, "Origin", request->origin);
    put_field(out, "Authorization", request->authorization);
    put_field(out, "Content-Type", request->content_type);
    strbuf_printf(out, "Connection: %s\r\n", reader->keeps_connection ? "keep-alive" : "close");
    strbuf_printf(out, "Content-Length: %zu\r\n\r\n", request->body.len);
    put(out, request->body);
}

static bool same(Str a, Str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static void check_request(const HttpReader *reader)
{
    HttpRequest request, again;
    StrBuf      text = {0};
    HttpReader  other = {.most_head = reader->most_head + 1024, .most_body = reader->most_body};
    http_reader_request(reader, &request);
    check(request.body.len <= reader->most_body && request.method.len > 0 && request.path.len > 0);
    check(request.path.data[0] == '/' || (str_equal(request.path, "*") && str_equal(request.method, "OPTIONS")));
    const Str texts[] = {request.method, request.path,          request.query,       request.host,
                         request.origin, request.authorization, request.content_type};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check(is_plain(texts[i]));
    write_request(reader, &request, &text);
    check(http_reader_feed(&other, text.data, text.len) == text.len && other.reading == HTTP_HAS_REQUEST);
    http_reader_request(&other, &again);
    check(same(request.method, again.method) && same(request.path, again.path) && same(request.query, again.query));
    check(same(request.host, again.host) && same(request.origin, again.origin) && same(request.authorization, again.authorization));
    check(same(request.content_type, again.content_type) && same(request.body, again.body));
    check(reader->keeps_connection == other.keeps_connection && reader->is_http_1_0 == other.is_http_1_0);
    http_reader_deinit(&other);
    strbuf_deinit(&text);
}

static size_t feed(HttpReader *reader, const uint8_t *data, size_t size, size_t piece)
{
    size_t taken = 0;
    while (taken < size && reader->reading < HTTP_HAS_REQUEST) {
        size_t len = size - taken < piece ? size - taken : piece;
        taken += http_reader_feed(reader, (const char *)data + taken, len);
    }
    return taken;
}

/* Reads requests one after another until one is refused or the bytes end. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    HttpReader whole = {.most_head = data[0] % 2 ? 16 << 10 : 128, .most_body = data[0] % 4 >= 2 ? 4 << 20 : 64}, parts = whole;
    size_t     piece = (size_t)data[1] + 1;
    data += 2;
    size -= 2;
    while (size > 0) {
        size_t taken = feed(&whole, data, size, size);
        check(feed(&parts, data, size, piece) == taken && whole.reading == parts.reading);
        check(whole.reading != HTTP_REFUSES || (whole.status == parts.status && whole.reason == parts.reason && !whole.keeps_connection));
        check(whole.reading != HTTP_REFUSES || (whole.status >= 400 && whole.reason));
        check(taken == size || whole.reading >= HTTP_HAS_REQUEST);
        if (whole.reading != HTTP_HAS_REQUEST) break;
        check_request(&whole);
        http_reader_next(&whole);
        http_reader_next(&parts);
        data += taken;
        size -= taken;
    }
    http_reader_deinit(&whole);
    http_reader_deinit(&parts);
    return 0;
}
