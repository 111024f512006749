/* HTTP(S) through libcurl, which is opened at run time, since only downloading needs it. A handle makes one request at a time and keeps
 * connections for the next. libcurl takes care of proxies and certificates (https_proxy, system store). */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct Http Http;

/* ERR_UNSUPPORTED, with the package's name, if libcurl isn't installed. Opens no socket. */
NODISCARD Status http_open(Http **out);
void             http_close(Http *http); /* NULL is fine */

typedef struct HttpResponse {
    int     code;                               /* 200, 404, ...; 0: no answer */
    bool    transient;                          /* another try may work: no connection, a cut one, too slow, or code 408, 429, 5xx */
    bool    left_origin;                        /* stopped at a redirect to another host (HTTP_WITHIN_ORIGIN) */
    bool    is_framed;                          /* the answer says where its body ends, so a body that is cut is noticed */
    int64_t length;                             /* Content-Length; -1: not given */
    int64_t range_start;                        /* first byte of Content-Range; -1: not given */
    int64_t retry_after_s;                      /* -1: not given */
    char    etag[256], linked_etag[256];        /* ETag, X-Linked-ETag: as sent, with quotes; "": none */
    int64_t linked_size;                        /* X-Linked-Size; -1: not given */
    char    commit[128];                        /* X-Repo-Commit */
    char    error_code[64], error_message[512]; /* X-Error-Code, X-Error-Message */
} HttpResponse;

typedef enum HttpRedirects {
    HTTP_ANYWHERE,      /* follow redirects to any host; only the first host's origin gets the token */
    HTTP_WITHIN_ORIGIN, /* a redirect to another origin is returned, not followed, if it has X-Linked-Etag */
} HttpRedirects;

/* Takes the next piece of the body of a 200 or 206 answer; bodies of other answers are dropped. */
typedef Status (*HttpSink)(void *context, const HttpResponse *response, const void *data, size_t len);

typedef struct HttpRequest {
    const char   *url;
    bool          head;
    const char   *token;       /* for Authorization: Bearer; NULL: none. Printable ASCII */
    int64_t       range_start; /* > 0: ask for the bytes from here on; the server may send all */
    const char   *if_range;    /* ETag of the bytes at hand: if the file has another ETag now, ask for the whole body; NULL: no condition */
    int           timeout_s;   /* give up after this long without a connection or a byte */
    HttpRedirects redirects;
    HttpSink      sink; /* may be NULL */
    void         *context;
} HttpRequest;

/* OK: the server answered, with any code, and the body arrived whole. Else ERR_IO or the sink's error, and `out` holds the part of the
 * answer that arrived. A redirect from https to http is refused. */
NODISCARD Status http_request(Http *http, const HttpRequest *request, HttpResponse *out);
