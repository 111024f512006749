/* Bytes of a connection become requests, one at a time. It does no I/O and knows no time. However the bytes are cut into pieces, the
 * result is the same.
 *
 * It is strict, because what two programs read differently is how requests are smuggled past a proxy: lines end with CR LF; no line is
 * folded; no control character is anywhere; a field that means something here comes once; a body has one length. */
#pragma once

#include "serve/http_server.h"

typedef enum HttpReading { HTTP_READS_HEAD, HTTP_READS_BODY, HTTP_HAS_REQUEST, HTTP_REFUSES } HttpReading;

/* A field that means something here. */
typedef enum HttpField {
    HTTP_HOST,
    HTTP_ORIGIN,
    HTTP_AUTHORIZATION,
    HTTP_CONTENT_TYPE,
    HTTP_CONTENT_LENGTH,
    HTTP_CONTENT_ENCODING,
    HTTP_TRANSFER_ENCODING,
    HTTP_EXPECT,
    HTTP_FIELD_COUNT
} HttpField;

enum {
    HTTP_MOST_FIELDS = 100, /* of a head, and again of trailers */
    HTTP_MOST_CHUNK_LINE = 256,
};

/* Bytes [begin, begin + len) of the head. */
typedef struct HttpSpan {
    size_t begin, len;
    bool   is_there;
} HttpSpan;

typedef struct HttpReader {
    size_t      most_head, most_body;
    HttpReading reading;
    bool        began;             /* a byte of the request has come */
    bool        is_http_1_0;       /* the answer must not be chunked */
    bool        keeps_connection;  /* for a further request */
    bool        closes_connection; /* Connection says so */
    bool        is_head_request;   /* its answer has no body */
    bool        expects_continue;  /* waits for "100 Continue" before it sends its body */
    int         status;            /* HTTP_REFUSES: of the answer */
    const char *reason;            /* and its message */
    StrBuf      head, body;        /* lines without their ends; chunks without their sizes */
    HttpSpan    method, path, query, authority, fields[HTTP_FIELD_COUNT];
    int         state;      /* what the next byte belongs to */
    size_t      line_begin; /* in head, of the line that has begun */
    size_t      line_bytes, head_bytes;
    uint64_t    left; /* bytes of the body, or of the chunk, to come */
    int         num_fields;
    bool        after_cr, skipped_blank;
} HttpReader;

/* Zero-initialised but for most_head and most_body is ready to use. */
void http_reader_deinit(HttpReader *reader);
/* Forgets the request; its large buffers are freed. */
void http_reader_next(HttpReader *reader);

/* Takes bytes until the request is whole or is refused; returns how many it took. */
size_t http_reader_feed(HttpReader *reader, const char *data, size_t len);

/* The whole request. Valid until the next call for this reader. A path of "*" is that of OPTIONS alone. */
void http_reader_request(const HttpReader *reader, HttpRequest *out);
