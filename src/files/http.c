/* Calls libcurl's easy interface through a table of symbols. Redirects are followed here, not by libcurl, to control which host gets the
 * token. */
#include "files/http.h"

#include "base/scoped.h"
#include "base/strbuf.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Constants of libcurl's binary interface; libcurl never changes them. */
enum {
    OPT_WRITEDATA = 10001,
    OPT_URL = 10002,
    OPT_ERRORBUFFER = 10010,
    OPT_USERAGENT = 10018,
    OPT_HTTPHEADER = 10023,
    OPT_HEADERDATA = 10029,
    OPT_WRITEFUNCTION = 20011,
    OPT_HEADERFUNCTION = 20079,
    OPT_LOW_SPEED_LIMIT = 19,
    OPT_LOW_SPEED_TIME = 20,
    OPT_NOBODY = 44,
    OPT_FOLLOWLOCATION = 52,
    OPT_CONNECTTIMEOUT = 78,
    OPT_HTTPGET = 80,
    OPT_NOSIGNAL = 99,
    OPT_PROTOCOLS = 181,
    INFO_RESPONSE_CODE = 0x200002,
    INFO_REDIRECT_URL = 0x10001F,
    PROTO_HTTP_AND_HTTPS = 3,
    GLOBAL_DEFAULT = 3,
    ERROR_BYTES = 256,
    MAX_REDIRECTS = 10,
    MAX_HEADERS_BYTES = 1 << 20
};
enum {
    CURL_OK = 0,
    CURL_BAD_PROTOCOL = 1,
    CURL_BAD_URL = 3,
    CURL_NO_PROXY_HOST = 5,
    CURL_NO_HOST = 6,
    CURL_WRITE = 23,
    CURL_TLS_ENGINE = 53,
    CURL_TLS_CERT = 58,
    CURL_TLS_PEER = 60,
    CURL_TLS_CAFILE = 77
};

struct curl_slist;

struct Http {
    void *library, *easy;
    int (*global_init)(long);
    void *(*easy_init)(void);
    int (*easy_setopt)(void *, int, ...);
    int (*easy_getinfo)(void *, int, ...);
    int (*easy_perform)(void *);
    void (*easy_cleanup)(void *);
    const char *(*easy_strerror)(int);
    struct curl_slist *(*slist_append)(struct curl_slist *, const char *);
    void (*slist_free_all)(struct curl_slist *);
};

typedef struct Exchange {
    Http              *http;
    const HttpRequest *request;
    HttpResponse      *response;
    Status             status; /* returned by the sink */
    size_t             header_bytes;
} Exchange;

Status http_open(Http **out)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    Http                    *http = calloc_or_end(1, sizeof *http);
    for (size_t i = 0; i < sizeof names / sizeof *names && !http->library; i++) http->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void       *function;
    } symbols[] = {{"curl_global_init", &http->global_init},      {"curl_easy_init", &http->easy_init},
                   {"curl_easy_setopt", &http->easy_setopt},      {"curl_easy_getinfo", &http->easy_getinfo},
                   {"curl_easy_perform", &http->easy_perform},    {"curl_easy_cleanup", &http->easy_cleanup},
                   {"curl_easy_strerror", &http->easy_strerror},  {"curl_slist_append", &http->slist_append},
                   {"curl_slist_free_all", &http->slist_free_all}};
    bool all = http->library != NULL;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols && all; i++) {
        void *found = dlsym(http->library, symbols[i].name);
        memcpy(symbols[i].function, &found, sizeof found);
        all = found != NULL;
    }
    if (all && http->global_init(GLOBAL_DEFAULT) == CURL_OK) http->easy = http->easy_init();
    if (!http->easy) {
        http_close(http);
        FAIL(ERR_UNSUPPORTED, "downloading needs libcurl (libcurl.so.4), which isn't installed: apt-get install libcurl4, or download "
                              "the files by other means and give their folder");
    }
    *out = http;
    return OK;
}

void http_close(Http *http)
{
    if (!http) return;
    if (http->easy) http->easy_cleanup(http->easy);
    free(http); /* the library stays loaded: it may have threads */
}

/* ---- callbacks ---- */

static void copy_value(char *dst, size_t size, const char *value, size_t len)
{
    snprintf(dst, size, "%.*s", (int)(len < size ? len : size - 1), value);
}

static int64_t parse_number(const char *value, size_t len)
{
    int64_t number = -1;
    for (size_t i = 0; i < len && isdigit((unsigned char)value[i]); i++) {
        if (number > (INT64_MAX - 9) / 10) return -1;
        number = (number < 0 ? 0 : number) * 10 + (value[i] - '0');
    }
    return number;
}

static size_t on_header(char *line, size_t size, size_t count, void *context)
{
    Exchange     *x = context;
    HttpResponse *r = x->response;
    size_t        len = size * count, all = len;
    if ((x->header_bytes += len) > MAX_HEADERS_BYTES) return 0;
    if (len > 5 && memcmp(line, "HTTP/", 5) == 0) { /* the head of another answer: after 100 Continue, or after a proxy's answer */
        *r = (HttpResponse){.length = -1, .range_start = -1, .retry_after_s = -1, .linked_size = -1};
        const char *space = memchr(line, ' ', len);
        r->code = space ? (int)parse_number(space + 1, len - (size_t)(space + 1 - line)) : 0;
        r->is_framed = line[5] > '1'; /* HTTP/2 and later mark the end of each body */
        return all;
    }
    const char *colon = memchr(line, ':', len);
    if (!colon) return all;
    size_t      name = (size_t)(colon - line);
    const char *value = colon + 1;
    len -= name + 1;
    while (len && isspace((unsigned char)*value)) value++, len--;
    while (len && isspace((unsigned char)value[len - 1])) len--;
    const struct {
        const char *name;
        char       *text;
        size_t      size;
        int64_t    *number;
    } rows[] = {{"ETag", r->etag, sizeof r->etag, NULL},
                {"X-Linked-Etag", r->linked_etag, sizeof r->linked_etag, NULL},
                {"X-Repo-Commit", r->commit, sizeof r->commit, NULL},
                {"X-Error-Code", r->error_code, sizeof r->error_code, NULL},
                {"X-Error-Message", r->error_message, sizeof r->error_message, NULL},
                {"Content-Length", NULL, 0, &r->length},
                {"X-Linked-Size", NULL, 0, &r->linked_size},
                {"Retry-After", NULL, 0, &r->retry_after_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strlen(rows[i].name) != name || strncasecmp(rows[i].name, line, name) != 0) continue;
        if (rows[i].text)
            copy_value(rows[i].text, rows[i].size, value, len);
        else
            *rows[i].number = parse_number(value, len);
    }
    r->is_framed |= name == 14 && strncasecmp(line, "Content-Length", name) == 0;
    r->is_framed |= name == 17 && strncasecmp(line, "Transfer-Encoding", name) == 0;
    if (name == 13 && strncasecmp(line, "Content-Range", name) == 0 && len > 6 && strncasecmp(value, "bytes ", 6) == 0)
        r->range_start = parse_number(value + 6, len - 6);
    return all;
}

static size_t on_body(char *data, size_t size, size_t count, void *context)
{
    Exchange *x = context;
    int       code = x->response->code;
    if (!x->request->sink || (code != 200 && code != 206)) return size * count;
    x->status = x->request->sink(x->request->context, x->response, data, size * count);
    return x->status == OK ? size * count : 0;
}

/* ---- one exchange ---- */

static bool is_hopeless(int curl)
{
    return curl == CURL_BAD_PROTOCOL || curl == CURL_BAD_URL || curl == CURL_NO_PROXY_HOST || curl == CURL_NO_HOST || curl == CURL_WRITE ||
           curl == CURL_TLS_PEER || curl == CURL_TLS_CAFILE ||
           (curl >= CURL_TLS_ENGINE && curl <= CURL_TLS_CERT && curl != 55 && curl != 56); /* 55, 56: sending or receiving failed */
}

static Status perform(Exchange *x, const char *url, bool with_token)
{
    Http              *http = x->http;
    const HttpRequest *q = x->request;
    char               error[ERROR_BYTES] = "";
    SCOPED_STRBUF(line);
    struct curl_slist *headers = http->slist_append(NULL, "Accept-Encoding: identity"); /* so that sizes and hashes are the file's */
    if (with_token) {
        strbuf_printf(&line, "Authorization: Bearer %s", q->token);
        headers = http->slist_append(headers, line.data);
    }
    strbuf_clear(&line);
    strbuf_printf(&line, "Range: bytes=%lld-", (long long)q->range_start);
    if (q->range_start > 0) headers = http->slist_append(headers, line.data);
    strbuf_clear(&line);
    strbuf_printf(&line, "If-Range: %s", q->if_range ? q->if_range : "");
    if (q->range_start > 0 && q->if_range) headers = http->slist_append(headers, line.data);
    const struct {
        int  option;
        long value;
    } numbers[] = {{OPT_NOSIGNAL, 1},
                   {OPT_FOLLOWLOCATION, 0},
                   {OPT_PROTOCOLS, PROTO_HTTP_AND_HTTPS},
                   {OPT_HTTPGET, 1},
                   {OPT_NOBODY, q->head},
                   {OPT_CONNECTTIMEOUT, q->timeout_s},
                   {OPT_LOW_SPEED_LIMIT, 1},
                   {OPT_LOW_SPEED_TIME, q->timeout_s}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) http->easy_setopt(http->easy, numbers[i].option, numbers[i].value);
    const struct {
        int         option;
        const void *value;
    } pointers[] = {{OPT_URL, url},           {OPT_USERAGENT, "surogate"}, {OPT_HTTPHEADER, headers},
                    {OPT_ERRORBUFFER, error}, {OPT_HEADERDATA, x},         {OPT_WRITEDATA, x}};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) http->easy_setopt(http->easy, pointers[i].option, pointers[i].value);
    http->easy_setopt(http->easy, OPT_HEADERFUNCTION, on_header);
    http->easy_setopt(http->easy, OPT_WRITEFUNCTION, on_body);
    x->header_bytes = 0;
    int curl = http->easy_perform(http->easy);
    http->easy_setopt(http->easy, OPT_ERRORBUFFER, (void *)NULL);
    http->easy_setopt(http->easy, OPT_HTTPHEADER, (void *)NULL);
    http->slist_free_all(headers);
    int code = x->response->code;
    x->response->transient = curl != CURL_OK ? !is_hopeless(curl) : code == 408 || code == 429 || code >= 500;
    if (x->status != OK) return x->status;
    FAIL_IF(curl != CURL_OK, ERR_IO, "%s: %s", url, error[0] ? error : http->easy_strerror(curl));
    return OK;
}

/* ---- redirects ---- */

/* Length of "scheme://host:port" at the start of the URL. */
static size_t origin_len(const char *url)
{
    const char *host = strstr(url, "://");
    return host ? (size_t)(host - url) + 3 + strcspn(host + 3, "/?#") : strlen(url);
}

static bool same_origin(const char *a, const char *b)
{
    size_t n = origin_len(a);
    return n == origin_len(b) && strncasecmp(a, b, n) == 0;
}

static Status follow(Http *http, const HttpRequest *request, HttpResponse *out, StrBuf *url)
{
    bool left = false; /* once true, no later host gets the token, not even the first one */
    for (int hops = 0;; hops++) {
        Exchange x = {.http = http, .request = request, .response = out};
        *out = (HttpResponse){.length = -1, .range_start = -1, .retry_after_s = -1, .linked_size = -1};
        TRY(perform(&x, strbuf_cstr(url), request->token && !left));
        if (out->code < 300 || out->code > 399 || out->code == 304) return OK;
        const char *next = NULL;
        http->easy_getinfo(http->easy, INFO_REDIRECT_URL, &next);
        FAIL_IF(!next, ERR_IO, "%s: the server answers %d without saying where to go", url->data, out->code);
        FAIL_IF(hops == MAX_REDIRECTS, ERR_IO, "%s: more than %d redirects", request->url, MAX_REDIRECTS);
        bool leaves = !same_origin(url->data, next);
        if (leaves && request->redirects == HTTP_WITHIN_ORIGIN && out->linked_etag[0]) {
            out->left_origin = true;
            return OK;
        }
        FAIL_IF(strncasecmp(url->data, "https:", 6) == 0 && strncasecmp(next, "https:", 6) != 0, ERR_IO,
                "%s: the server redirects from https to %.200s, which isn't safe", url->data, next);
        left = left || leaves;
        strbuf_clear(url); /* `next` belongs to the handle: it isn't part of url */
        strbuf_puts(url, next);
    }
}

Status http_request(Http *http, const HttpRequest *request, HttpResponse *out)
{
    SCOPED_STRBUF(url);
    strbuf_puts(&url, request->url);
    return follow(http, request, out, &url);
}
