/* Turns the bytes of a connection into requests, one at a time. It does no I/O and knows no time. The result doesn't depend on how the
 * bytes are cut into pieces.
 *
 * It is strict, because requests are smuggled past proxies by texts that two programs read differently. Lines end with CR LF and aren't
 * folded; there are no control characters; a field listed in HttpField occurs at most once; a body has one length. */
#pragma once

#include "serve/http_server.h"

typedef enum HttpReading { HTTP_READS_HEAD, HTTP_READS_BODY, HTTP_HAS_REQUEST, HTTP_REFUSES } HttpReading;

/* The fields that the server reads. */
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
    HTTP_MOST_FIELDS = 100, /* most fields of a head, and most of the trailers */
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
    bool        began;             /* a byte of the request has arrived */
    bool        is_http_1_0;       /* the answer must not be chunked */
    bool        keeps_connection;  /* the connection stays open for a further request */
    bool        closes_connection; /* the field Connection lists "close" */
    bool        is_head_request;   /* HEAD: the answer has no body */
    bool        expects_continue;  /* the client waits for "100 Continue" before it sends the body */
    int         status;            /* HTTP_REFUSES: the status of the answer */
    const char *reason;            /* HTTP_REFUSES: its message */
    StrBuf      head, body;        /* head: lines without their ends; body: without chunk sizes */
    HttpSpan    method, path, query, authority, fields[HTTP_FIELD_COUNT];
    int         state;      /* the part of the request that the next byte belongs to */
    size_t      line_begin; /* where the current line begins in `head` */
    size_t      line_bytes, head_bytes;
    uint64_t    left; /* bytes of the body, or of the chunk, still to come */
    int         num_fields;
    bool        after_cr, skipped_blank;
} HttpReader;

/* A reader is ready to use when it is zero except for most_head and most_body. */
void http_reader_deinit(HttpReader *reader);
/* Forgets the request, and frees large buffers. */
void http_reader_next(HttpReader *reader);

/* Consumes bytes until a request is complete or refused; returns how many it consumed. */
size_t http_reader_feed(HttpReader *reader, const char *data, size_t len);

/* The complete request. Valid until the next call for this reader. Only OPTIONS can have the path "*". */
void http_reader_request(const HttpReader *reader, HttpRequest *out);
