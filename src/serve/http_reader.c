/* Lines are collected byte by byte and checked when they are complete; only bodies are copied in runs. So it doesn't matter where one piece
 * of input ends and the next begins. */
#include "serve/http_reader.h"

#include "serve/http_names.h"

#include <string.h>

/* The part of the request that the next byte belongs to. */
enum { IN_REQUEST_LINE, IN_FIELD, IN_BODY, IN_CHUNK_SIZE, IN_CHUNK, IN_CHUNK_END, IN_TRAILER };

/* A buffer larger than this is freed with its request. */
enum { KEPT_BYTES = 4096 };

static const char *const field_names[HTTP_FIELD_COUNT] = {
    [HTTP_HOST] = "Host",
    [HTTP_ORIGIN] = "Origin",
    [HTTP_AUTHORIZATION] = "Authorization",
    [HTTP_CONTENT_TYPE] = "Content-Type",
    [HTTP_CONTENT_LENGTH] = "Content-Length",
    [HTTP_CONTENT_ENCODING] = "Content-Encoding",
    [HTTP_TRANSFER_ENCODING] = "Transfer-Encoding",
    [HTTP_EXPECT] = "Expect",
};

/* The message to a request that has this field twice. */
static const char *const repeated[HTTP_FIELD_COUNT] = {
    [HTTP_HOST] = "Host comes more than once",
    [HTTP_ORIGIN] = "Origin comes more than once",
    [HTTP_AUTHORIZATION] = "Authorization comes more than once",
    [HTTP_CONTENT_TYPE] = "Content-Type comes more than once",
    [HTTP_CONTENT_LENGTH] = "Content-Length comes more than once",
    [HTTP_CONTENT_ENCODING] = "Content-Encoding comes more than once",
    [HTTP_TRANSFER_ENCODING] = "Transfer-Encoding comes more than once",
    [HTTP_EXPECT] = "Expect comes more than once",
};

static void refuse(HttpReader *reader, int status, const char *reason)
{
    reader->reading = HTTP_REFUSES;
    reader->status = status;
    reader->reason = reason;
    reader->keeps_connection = false;
}

static Str text_of(const HttpReader *reader, HttpSpan span)
{
    return (Str){span.len ? reader->head.data + span.begin : "", span.len};
}

static HttpSpan span_of(const HttpReader *reader, Str text)
{
    return (HttpSpan){(size_t)(text.data - reader->head.data), text.len, true};
}

/* ---- the request line ---- */

static bool is_known_method(Str method)
{
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (str_equal(method, known[i])) return true;
    }
    return false;
}

/* Sets path and query from text that begins with '/', or with '?' if a whole address has no path. */
static void split_path(HttpReader *reader, Str text)
{
    const char *mark = text.len ? memchr(text.data, '?', text.len) : NULL;
    size_t      len = mark ? (size_t)(mark - text.data) : text.len;
    reader->path = span_of(reader, (Str){text.data, len});
    if (mark) reader->query = span_of(reader, (Str){mark + 1, text.len - len - 1});
}

/* Reads a whole address, "http://host/path", which proxies send. False: the target isn't one. */
static bool read_whole_address(HttpReader *reader, Str target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t len = strlen(schemes[i]), end = len;
        if (target.len <= len || !http_equal_fold((Str){target.data, len}, str_of(schemes[i]))) continue;
        while (end < target.len && target.data[end] != '/' && target.data[end] != '?') end++;
        reader->authority = span_of(reader, (Str){target.data + len, end - len});
        split_path(reader, (Str){target.data + end, target.len - end});
        return true;
    }
    return false;
}

static bool read_target(HttpReader *reader, Str target)
{
    for (size_t i = 0; i < target.len; i++) {
        if (target.data[i] <= 0x20 || target.data[i] >= 0x7f || target.data[i] == '#') return false;
    }
    if (target.len == 0) return false;
    if (target.data[0] == '/') {
        split_path(reader, target);
        return true;
    }
    if (str_equal(target, "*") && str_equal(text_of(reader, reader->method), "OPTIONS")) {
        reader->path = span_of(reader, target);
        return true;
    }
    return read_whole_address(reader, target);
}

static bool is_version(Str version)
{
    const char *d = version.data;
    return version.len == 8 && memcmp(d, "HTTP/", 5) == 0 && d[5] >= '0' && d[5] <= '9' && d[6] == '.' && d[7] >= '0' && d[7] <= '9';
}

static void read_request_line(HttpReader *reader, Str line)
{
    const char *end = line.data + line.len, *first = memchr(line.data, ' ', line.len), *last = memrchr(line.data, ' ', line.len);
    if (!first || first == last) {
        refuse(reader, 400, "the request line isn't METHOD TARGET HTTP/1.1");
        return;
    }
    Str method = {line.data, (size_t)(first - line.data)}, target = {first + 1, (size_t)(last - first - 1)};
    Str version = {last + 1, (size_t)(end - last - 1)};
    reader->method = span_of(reader, method);
    reader->is_head_request = str_equal(method, "HEAD");
    reader->is_http_1_0 = str_equal(version, "HTTP/1.0");
    reader->keeps_connection = !reader->is_http_1_0;
    if (!http_is_token(method)) {
        refuse(reader, 400, "the request line begins with no method");
    } else if (!is_version(version)) {
        refuse(reader, 400, "the request line doesn't end with HTTP/1.1");
    } else if (!reader->is_http_1_0 && !str_equal(version, "HTTP/1.1")) {
        refuse(reader, 505, "this version of HTTP isn't spoken here; expected HTTP/1.1 or HTTP/1.0");
    } else if (!is_known_method(method)) {
        refuse(reader, 501, "this method isn't known here; expected GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS");
    } else if (!read_target(reader, target)) {
        refuse(reader, 400, "the request's target isn't a path, which begins with '/'");
    }
}

/* ---- fields ---- */

/* Reads a field Connection. It lists names, and may be sent several times. */
static void read_connection(HttpReader *reader, Str value)
{
    Str item;
    while (http_next_item(&value, &item)) {
        if (http_equal_fold(item, str_of("close"))) reader->closes_connection = true;
        if (http_equal_fold(item, str_of("keep-alive")) && reader->is_http_1_0) reader->keeps_connection = true;
    }
}

static bool split_field(HttpReader *reader, Str line, Str *name, Str *value)
{
    const char *colon = memchr(line.data, ':', line.len);
    if (line.data[0] == ' ' || line.data[0] == '\t') {
        refuse(reader, 400, "a field is folded over several lines");
        return false;
    }
    size_t len = colon ? (size_t)(colon - line.data) : 0;
    *name = (Str){line.data, len};
    if (!colon || !http_is_token(*name)) {
        refuse(reader, 400, "a field isn't NAME: VALUE");
        return false;
    }
    *value = http_trim((Str){colon + 1, line.len - len - 1});
    if (++reader->num_fields > HTTP_MOST_FIELDS) {
        refuse(reader, 431, "there are too many fields; at most 100 are read");
        return false;
    }
    return true;
}

static void read_field(HttpReader *reader, Str line)
{
    Str name, value;
    if (!split_field(reader, line, &name, &value)) return;
    if (http_equal_fold(name, str_of("Connection"))) read_connection(reader, value);
    for (int i = 0; i < HTTP_FIELD_COUNT; i++) {
        if (!http_equal_fold(name, str_of(field_names[i]))) continue;
        if (reader->fields[i].is_there) refuse(reader, 400, repeated[i]);
        reader->fields[i] = (HttpSpan){(size_t)(value.data - reader->head.data), value.len, true};
    }
}

static bool has(const HttpReader *reader, HttpField field)
{
    return reader->fields[field].is_there;
}

static Str value_of(const HttpReader *reader, HttpField field)
{
    return text_of(reader, reader->fields[field]);
}

static bool is_host(Str host)
{
    Str name;
    return http_split_host(host, &name);
}

static void check_host(HttpReader *reader)
{
    Str host = value_of(reader, HTTP_HOST), authority = text_of(reader, reader->authority);
    if (!has(reader, HTTP_HOST) && !reader->is_http_1_0) {
        refuse(reader, 400, "there is no Host field");
    } else if (host.len && !is_host(host)) {
        refuse(reader, 400, "Host isn't a name or an address, with or without a port");
    } else if (reader->authority.is_there && (!is_host(authority) || (has(reader, HTTP_HOST) && !http_equal_fold(authority, host)))) {
        refuse(reader, 400, "the target names another host than Host does");
    }
}

/* Finds the length of the body; refuses bodies whose form or length isn't accepted. */
static void check_body(HttpReader *reader)
{
    bool is_chunked = has(reader, HTTP_TRANSFER_ENCODING), has_length = has(reader, HTTP_CONTENT_LENGTH);
    reader->left = 0;
    if (is_chunked && (has_length || reader->is_http_1_0)) {
        refuse(reader, 400, "Transfer-Encoding comes with Content-Length, or in HTTP/1.0");
    } else if (is_chunked && !http_equal_fold(value_of(reader, HTTP_TRANSFER_ENCODING), str_of("chunked"))) {
        refuse(reader, 501, "this Transfer-Encoding isn't known here; expected chunked");
    } else if (has_length && !http_digits(value_of(reader, HTTP_CONTENT_LENGTH), &reader->left)) {
        refuse(reader, 400, "Content-Length isn't a number");
    } else if (has(reader, HTTP_CONTENT_ENCODING) && !http_equal_fold(value_of(reader, HTTP_CONTENT_ENCODING), str_of("identity"))) {
        refuse(reader, 415, "this Content-Encoding isn't known here; send the body as it is");
    } else if (reader->left > reader->most_body) {
        refuse(reader, 413, "the body is larger than the server's limit");
    }
}

static void end_head(HttpReader *reader)
{
    if (reader->closes_connection) reader->keeps_connection = false;
    check_host(reader);
    if (reader->reading != HTTP_REFUSES) check_body(reader);
    if (reader->reading == HTTP_REFUSES) return;
    bool is_chunked = has(reader, HTTP_TRANSFER_ENCODING), has_body = is_chunked || reader->left > 0;
    if (has(reader, HTTP_EXPECT) && !reader->is_http_1_0) {
        if (!http_equal_fold(value_of(reader, HTTP_EXPECT), str_of("100-continue"))) {
            refuse(reader, 417, "this Expect isn't known here; expected 100-continue");
            return;
        }
        reader->expects_continue = has_body;
    }
    reader->state = is_chunked ? IN_CHUNK_SIZE : IN_BODY;
    reader->reading = has_body ? HTTP_READS_BODY : HTTP_HAS_REQUEST;
}

/* ---- lines ---- */

static void read_chunk_size(HttpReader *reader, Str line)
{
    const char *semicolon = memchr(line.data, ';', line.len);
    Str         size = {line.data, semicolon ? (size_t)(semicolon - line.data) : line.len};
    if (!http_hex_digits(size, &reader->left)) {
        refuse(reader, 400, "a chunk doesn't begin with its size");
    } else if (reader->left > reader->most_body - reader->body.len) {
        refuse(reader, 413, "the body is larger than the server's limit");
    } else if (reader->left == 0) {
        reader->state = IN_TRAILER;
        reader->head_bytes = 0;
        reader->num_fields = 0;
    } else {
        reader->state = IN_CHUNK;
    }
}

static void end_line(HttpReader *reader)
{
    Str line = {strbuf_cstr(&reader->head) + reader->line_begin, reader->head.len - reader->line_begin}, name, value;
    int state = reader->state;
    if (state == IN_REQUEST_LINE && line.len == 0) {
        if (reader->skipped_blank) refuse(reader, 400, "there are empty lines in place of a request");
        reader->skipped_blank = true;
    } else if (state == IN_REQUEST_LINE) {
        reader->state = IN_FIELD;
        read_request_line(reader, line);
    } else if (state == IN_FIELD && line.len > 0) {
        read_field(reader, line);
    } else if (state == IN_FIELD) {
        end_head(reader);
    } else if (state == IN_CHUNK_SIZE) {
        read_chunk_size(reader, line);
    } else if (state == IN_CHUNK_END) {
        reader->state = IN_CHUNK_SIZE;
    } else if (line.len == 0) {
        reader->reading = HTTP_HAS_REQUEST;
    } else {
        (void)split_field(reader, line, &name, &value);
    }
    if (state >= IN_BODY) reader->head.len = reader->line_begin; /* lines after the head are not kept */
    reader->line_begin = reader->head.len;
    reader->line_bytes = 0;
}

/* Counts a byte of the line; false: the line or the head became too long, and the request is refused. */
static bool within_limits(HttpReader *reader)
{
    reader->line_bytes++;
    bool is_chunk = reader->state == IN_CHUNK_SIZE || reader->state == IN_CHUNK_END;
    if (is_chunk && reader->line_bytes > HTTP_MOST_CHUNK_LINE) refuse(reader, 400, "the line of a chunk's size is too long");
    if (!is_chunk && ++reader->head_bytes > reader->most_head) {
        if (reader->state == IN_REQUEST_LINE) {
            refuse(reader, 414, "the target is longer than the server's limit");
        } else {
            refuse(reader, 431, "the fields are longer than the server's limit");
        }
    }
    return reader->reading != HTTP_REFUSES;
}

static void read_line_byte(HttpReader *reader, char c)
{
    if (!within_limits(reader)) return;
    if (reader->after_cr) {
        reader->after_cr = false;
        if (c == '\n') {
            end_line(reader);
        } else {
            refuse(reader, 400, "a carriage return stands alone");
        }
    } else if (c == '\r') {
        reader->after_cr = true;
    } else if (c == '\n') {
        refuse(reader, 400, "a line doesn't end with CR LF");
    } else if (((unsigned char)c < 0x20 && c != '\t') || c == 0x7f) {
        refuse(reader, 400, "there is a control character");
    } else if (reader->state == IN_CHUNK_END) {
        refuse(reader, 400, "a chunk is longer than its size");
    } else {
        strbuf_putc(&reader->head, c);
    }
}

/* ---- bodies ---- */

static size_t read_body(HttpReader *reader, const char *data, size_t len)
{
    size_t taken = len < reader->left ? len : (size_t)reader->left;
    strbuf_append(&reader->body, data, taken);
    reader->left -= taken;
    if (reader->left == 0 && reader->state == IN_CHUNK) {
        reader->state = IN_CHUNK_END;
    } else if (reader->left == 0) {
        reader->reading = HTTP_HAS_REQUEST;
    }
    return taken;
}

size_t http_reader_feed(HttpReader *reader, const char *data, size_t len)
{
    size_t taken = 0;
    while (taken < len && reader->reading < HTTP_HAS_REQUEST) {
        reader->began = true;
        if (reader->state == IN_BODY || reader->state == IN_CHUNK) {
            taken += read_body(reader, data + taken, len - taken);
        } else {
            read_line_byte(reader, data[taken++]);
        }
    }
    return taken;
}

void http_reader_request(const HttpReader *reader, HttpRequest *out)
{
    CHECK(reader->reading == HTTP_HAS_REQUEST);
    Str path = text_of(reader, reader->path);
    *out = (HttpRequest){
        .method = reader->is_head_request ? str_of("GET") : text_of(reader, reader->method),
        .path = path.len ? path : str_of("/"),
        .query = text_of(reader, reader->query),
        .host = reader->authority.is_there ? text_of(reader, reader->authority) : value_of(reader, HTTP_HOST),
        .origin = value_of(reader, HTTP_ORIGIN),
        .authorization = value_of(reader, HTTP_AUTHORIZATION),
        .content_type = value_of(reader, HTTP_CONTENT_TYPE),
        .body = {reader->body.len ? reader->body.data : "", reader->body.len},
    };
}

static StrBuf emptied(StrBuf buf)
{
    if (buf.capacity > KEPT_BYTES) {
        strbuf_deinit(&buf);
        return (StrBuf){0};
    }
    strbuf_clear(&buf);
    return buf;
}

void http_reader_next(HttpReader *reader)
{
    *reader = (HttpReader){
        .most_head = reader->most_head,
        .most_body = reader->most_body,
        .head = emptied(reader->head),
        .body = emptied(reader->body),
    };
}

void http_reader_deinit(HttpReader *reader)
{
    strbuf_deinit(&reader->head);
    strbuf_deinit(&reader->body);
}
