/* HTTP(S) by libcurl, which is opened at run time: nothing but downloading needs it. One request at a time a handle;
 * connections are kept for the next. Proxies and certificates are libcurl's business (https_proxy, system store). */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct Http Http;

/* ERR_UNSUPPORTED that names the package when libcurl isn't installed. Opens no socket. */
NODISCARD Status http_open(Http **out);
void             http_close(Http *http); /* NULL is fine */

typedef struct HttpResponse {
    int     code;                               /* 200, 404, ...; 0: there was no answer */
    bool    transient;                          /* worth another try: no connection, cut, too slow, 408, 429, 5xx */
    bool    left_origin;                        /* stopped at a redirect to another host (HTTP_WITHIN_ORIGIN) */
    bool    is_framed;                          /* the answer says where its body ends, so that a cut one is noticed */
    int64_t length;                             /* Content-Length; -1: not said */
    int64_t range_start;                        /* of Content-Range; -1: none */
    int64_t retry_after_s;                      /* -1: not said */
    char    etag[256], linked_etag[256];        /* as sent, quotes included; "": none */
    int64_t linked_size;                        /* X-Linked-Size; -1: none */
    char    commit[128];                        /* X-Repo-Commit */
    char    error_code[64], error_message[512]; /* X-Error-Code, X-Error-Message */
} HttpResponse;

typedef enum HttpRedirects {
    HTTP_ANYWHERE,      /* to any host; the token stays with the first one's origin */
    HTTP_WITHIN_ORIGIN, /* a redirect that leaves the origin is the answer when it says X-Linked-Etag */
} HttpRedirects;

/* Takes a piece of the body of a 200 or 206; bodies of other answers are dropped. */
typedef Status (*HttpSink)(void *context, const HttpResponse *response, const void *data, size_t len);

typedef struct HttpRequest {
    const char   *url;
    bool          head;
    const char   *token;       /* Authorization: Bearer; NULL: none. Printable ASCII */
    int64_t       range_start; /* > 0: only from there, where the server can */
    const char   *if_range;    /* an ETag: the whole body where the file has another one by now; NULL: that isn't asked */
    int           timeout_s;   /* without a connection, or without a byte */
    HttpRedirects redirects;
    HttpSink      sink; /* may be NULL */
    void         *context;
} HttpRequest;

/* OK: the server answered (any code) and the body came whole. ERR_IO else; `out` is filled as far as it came. A
 * redirect from https to http is refused. */
NODISCARD Status http_request(Http *http, const HttpRequest *request, HttpResponse *out);
