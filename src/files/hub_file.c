/* One file of a repository: asks what it must be (HEAD), downloads its bytes (GET, resumed where it was cut), checks them, and links the
 * file into the snapshot. A lock keeps two processes from writing the same blob. */
#include "files/hub_internal.h"

#include "base/log.h"
#include "base/scoped.h"
#include "files/checksum.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RETRY_MS = 30000, SHOW_EVERY_MS = 200, TOLD_RETRY_MS = 1000 };

static void sleep_ms(int64_t ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

/* Waits before the next attempt: as long as the server asks, else longer each time. */
static void wait_to_retry(const HubRepo *repo, const HttpResponse *answer, int attempt)
{
    int64_t ms = (int64_t)repo->options->retry_ms << (attempt < 16 ? attempt : 16);
    if (answer->retry_after_s > 0) ms = answer->retry_after_s < MAX_RETRY_MS / 1000 ? answer->retry_after_s * 1000 : MAX_RETRY_MS;
    if (ms > MAX_RETRY_MS) ms = MAX_RETRY_MS;
    if (ms >= TOLD_RETRY_MS) log_info("%s: no answer yet; trying again in %lld s", repo->repo, (long long)(ms + 999) / 1000);
    sleep_ms(ms);
}

Status hub_request(HubRepo *repo, HttpRequest *request, int attempts, HttpResponse *out)
{
    request->token = repo->options->token;
    for (int attempt = 0;; attempt++) {
        Status status = http_request(repo->http, request, out);
        if ((status == OK && !out->transient) || !out->transient || attempt + 1 >= attempts) return status;
        wait_to_retry(repo, out, attempt);
    }
}

Status hub_check_answer(const HubRepo *repo, const char *what, const HttpResponse *r)
{
    const char *token =
        repo->options->token ? "the token that HF_TOKEN or the token file gives" : "no token (set HF_TOKEN, or write it to $HF_HOME/token)";
    const char *kind = repo->kind == HUB_MODEL ? "" : "datasets/";
    if (r->code >= 200 && r->code < 400) return OK;
    bool gated = strcmp(r->error_code, "GatedRepo") == 0;
    FAIL_IF(gated || r->code == 403, ERR_NOT_FOUND,
            "%s: access refused (%d); accept its terms at %s/%s%s with your account, then give a token of that "
            "account. Sent: %s%s%s",
            what, r->code, repo->options->endpoint, kind, repo->repo, token, r->error_message[0] ? ". The hub says: " : "",
            r->error_message);
    FAIL_IF(r->code == 401, ERR_NOT_FOUND, "%s: there is no such repository at %s, or it is private (401). Sent: %s", what,
            repo->options->endpoint, token);
    FAIL_IF(r->code == 404 && strcmp(r->error_code, "RevisionNotFound") == 0, ERR_NOT_FOUND, "%s has no revision %s", repo->repo,
            repo->revision);
    FAIL_IF(r->code == 404, ERR_NOT_FOUND, "%s: not found at %s (404); is the name right?", what, repo->options->endpoint);
    FAIL(ERR_IO, "%s: %s answers %d%s%s", what, repo->options->endpoint, r->code, r->error_message[0] ? ": " : "", r->error_message);
}

bool hub_is_safe_name(const char *text)
{
    size_t len = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return len > 0 && len <= 128 && !text[len] && text[0] != '.';
}

/* ---- asking for ETag and size ---- */

/* W/"abc" -> abc; NULL: the result isn't safe as a file name. */
static const char *plain_etag(Arena *arena, const char *etag)
{
    if (strncmp(etag, "W/", 2) == 0) etag += 2;
    size_t len = strlen(etag);
    if (len >= 2 && etag[0] == '"' && etag[len - 1] == '"') etag++, len -= 2;
    char *text = arena_strndup(arena, etag, len);
    return hub_is_safe_name(text) ? text : NULL;
}

Status hub_file_look(HubRepo *repo, HubFile *file)
{
    bool is_there;
    TRY(file_exists(file->pointer, &is_there));
    if (is_there) return OK;
    HttpRequest  request = {.url = file->url, .head = true, .timeout_s = repo->options->etag_timeout_s, .redirects = HTTP_WITHIN_ORIGIN};
    HttpResponse answer;
    const char  *what = arena_printf(repo->arena, "%s: %s", repo->repo, file->name);
    TRY(hub_request(repo, &request, repo->options->attempts, &answer));
    TRY(hub_check_answer(repo, what, &answer));
    FAIL_IF(answer.commit[0] && strcmp(answer.commit, repo->commit) != 0, ERR_IO, "%s: the server gives commit %s, asked for %s", what,
            answer.commit, repo->commit);
    const char *etag = answer.linked_etag[0] ? answer.linked_etag : answer.etag;
    file->etag = plain_etag(repo->arena, etag);
    FAIL_IF(!file->etag, ERR_IO, "%s: the server gives no usable ETag (\"%s\"), so that what comes can't be checked; is %s a hub?", what,
            etag, repo->options->endpoint);
    file->served = answer.left_origin ? "" : arena_strdup(repo->arena, answer.etag);
    file->size = answer.linked_size >= 0 ? answer.linked_size : answer.left_origin ? -1 : answer.length;
    return OK;
}

/* ---- downloading the bytes ---- */

typedef struct Download {
    HubRepo       *repo;
    const HubFile *file;
    const char    *path; /* path of the .incomplete file */
    int            fd;
    int64_t        have;      /* bytes in the .incomplete file */
    const char    *version;   /* ETag of the answer that sent these bytes; "": not known */
    bool           started;   /* begin_body has settled where in the file the body goes */
    bool           is_other;  /* the answer is of another version than the bytes in the file */
    bool           is_hashed; /* the ETag is a checksum, so mixed versions are noticed at the end */
} Download;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void show_progress(Download *d, bool last)
{
    char     line[512];
    HubRepo *repo = d->repo;
    int64_t  now = now_ms(), done = repo->bytes_done + d->have;
    if (!repo->options->progress || (!last && now - repo->last_shown_ms < SHOW_EVERY_MS)) return;
    if (!repo->first_ms) repo->first_ms = now, repo->first_bytes = done;
    double seconds = (double)(now - repo->first_ms) / 1000, rate = seconds > 0.5 ? (double)(done - repo->first_bytes) / seconds : 0;
    repo->last_shown_ms = now;
    snprintf(line, sizeof line, "%s: %.1f of %.1f MB, %.1f MB/s", d->file->name, (double)done / 1e6, (double)repo->bytes_total / 1e6,
             rate / 1e6);
    log_status(line);
    if (last) log_status("");
}

static Status set_length(Download *d, int64_t length)
{
    if (file_truncate(d->fd, length) != 0 || lseek(d->fd, length, SEEK_SET) < 0) return file_fail("write", d->path);
    d->have = length;
    return OK;
}

/* Whether the ETag stands for one sequence of bytes. Versions that differ in bytes may share a weak ETag, W/"...". */
static bool is_strong(const char *etag)
{
    return etag[0] == '"';
}

/* Settles where in the file the body goes. If the server sends it from byte 0, the file starts over; a start at a byte that wasn't asked
 * for is ERR_IO. */
static Status begin_body(Download *d, const HttpResponse *answer)
{
    int64_t start = answer->code == 206 ? answer->range_start : 0;
    FAIL_IF(start != 0 && start != d->have, ERR_IO, "%s: asked for bytes from %lld, the server sends from %lld", d->file->url,
            (long long)d->have, (long long)start);
    d->is_other = !d->is_hashed && start != 0 && strcmp(answer->etag, d->version) != 0;
    FAIL_IF(d->is_other, ERR_IO, "%s: the server's file isn't the one that was begun: its ETag is %s now, it was %s", d->file->url,
            answer->etag[0] ? answer->etag : "missing", d->version);
    FAIL_IF(!d->is_hashed && d->file->served[0] && answer->etag[0] && strcmp(answer->etag, d->file->served) != 0, ERR_IO,
            "%s: the server's file was replaced while it was downloaded: its ETag is %s now, it was %s; pull again", d->file->url,
            answer->etag, d->file->served);
    if (start != d->have) TRY(set_length(d, start));
    d->version = arena_strdup(d->repo->arena, answer->etag);
    d->started = true;
    return OK;
}

/* Appends the received bytes to the file. */
static Status take_bytes(void *context, const HttpResponse *answer, const void *data, size_t len)
{
    Download *d = context;
    if (!d->started) TRY(begin_body(d, answer));
    FAIL_IF(d->file->size >= 0 && (int64_t)len > d->file->size - d->have, ERR_IO, "%s: more bytes come than the %lld announced",
            d->file->url, (long long)d->file->size);
    for (const char *p = data; len;) {
        ssize_t n = write(d->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_fail("write", d->path);
        p += n;
        len -= (size_t)n;
        d->have += n;
    }
    show_progress(d, false);
    return OK;
}

/* One GET. *out_again: it failed, but another try may work. */
static Status get_once(Download *d, bool *out_again, HttpResponse *answer)
{
    HttpRequest request = {.url = d->file->url,
                           .token = d->repo->options->token,
                           .range_start = d->have,
                           .if_range = d->is_hashed ? NULL : d->version,
                           .sink = take_bytes,
                           .context = d,
                           .timeout_s = d->repo->options->timeout_s,
                           .redirects = HTTP_ANYWHERE};
    d->started = d->is_other = false;
    Status status = http_request(d->repo->http, &request, answer);
    *out_again = answer->transient || d->is_other;
    if (status != OK) return status;
    if (answer->code == 416 && d->have > 0) { /* the bytes in the file aren't the beginning of the server's file */
        *out_again = true;
        TRY(set_length(d, 0));
        FAIL(ERR_IO, "%s: the server has no bytes from there on (416)", d->file->url);
    }
    TRY(hub_check_answer(d->repo, arena_printf(d->repo->arena, "%s: %s", d->repo->repo, d->file->name), answer));
    if (!d->started) TRY(set_length(d, 0)); /* the body was empty */
    bool is_endless = !d->is_hashed && d->file->size < 0 && !answer->is_framed;
    if (is_endless) TRY(set_length(d, 0));
    FAIL_IF(
        is_endless, ERR_IO,
        "%s: the server says neither how long the file is nor a checksum of it, so that a part can't be told from the whole; download it "
        "by other means and give its folder",
        d->file->url);
    *out_again = d->file->size >= 0 && d->have < d->file->size;
    FAIL_IF(*out_again, ERR_IO, "%s: the server sent %lld bytes of %lld", d->file->url, (long long)d->have, (long long)d->file->size);
    return OK;
}

static Status get_bytes(Download *d)
{
    int64_t most = 0;
    for (int attempt = 0;; attempt++) {
        bool         again = false;
        HttpResponse answer;
        if (d->file->size >= 0 && d->have > d->file->size) TRY(set_length(d, 0));
        if (d->have > 0 && !d->is_hashed && !is_strong(d->version)) TRY(set_length(d, 0)); /* the bytes are of an unknown version */
        if (d->file->size > 0 && d->have == d->file->size) return OK;
        Status status = get_once(d, &again, &answer);
        if (status == OK) return OK;
        if (d->is_other) TRY(set_length(d, 0));
        if (d->have > most) { /* progress resets the count: a flaky connection gets there in the end */
            most = d->have;
            attempt = 0;
        }
        if (!again || attempt + 1 >= d->repo->options->attempts)
            return d->have ? status_prefix(status, "%s: %s (%lld bytes are kept; pull again to go on)", d->repo->repo, d->file->name,
                                           (long long)d->have)
                           : status_prefix(status, "%s: %s", d->repo->repo, d->file->name);
        wait_to_retry(d->repo, &answer, attempt);
    }
}

/* An ETag of 64 hex digits is a SHA-256, and one of 40 is git's SHA-1. Others tell nothing about the bytes. */
static bool is_checksum(const char *etag)
{
    size_t len = strlen(etag);
    return strspn(etag, "0123456789abcdef") == len && (len == 64 || len == 40);
}

static Status check_bytes(const Download *d, bool *out_same)
{
    const char *etag = d->file->etag;
    size_t      len = strlen(etag);
    char        hex[CHECKSUM_TEXT];
    *out_same = true;
    if (!d->is_hashed) return OK;
    TRY(checksum_file(d->path, len == 64 ? CHECKSUM_SHA256 : CHECKSUM_GIT_BLOB, hex));
    *out_same = strcmp(hex, etag) == 0;
    return OK;
}

static Status download(Download *d)
{
    for (int round = 0; round < 2; round++) {
        bool same;
        TRY(get_bytes(d));
        show_progress(d, true);
        TRY(check_bytes(d, &same));
        if (same) return file_fsync(d->fd) != 0 ? file_fail("fsync", d->path) : OK;
        log_warn("%s: %s: the bytes don't have the checksum %s; downloading it again", d->repo->repo, d->file->name, d->file->etag);
        TRY(set_length(d, 0));
    }
    FAIL(ERR_IO, "%s: %s: twice the bytes that came don't have the checksum %s; a proxy between here and %s may change them", d->repo->repo,
         d->file->name, d->file->etag, d->repo->options->endpoint);
}

/* ---- linking the file into the snapshot ---- */

static Status link_pointer(HubRepo *repo, const HubFile *file, const char *blob)
{
    char *folder = dirname(arena_strdup(repo->arena, file->pointer));
    TRY(file_make_dirs(folder));
    SCOPED_STRBUF(target);
    strbuf_puts(&target, "../../"); /* from the file's folder up to the repository's folder */
    for (const char *p = file->name; *p; p++)
        if (*p == '/') strbuf_puts(&target, "../");
    strbuf_printf(&target, "blobs/%s", file->etag);
    int failed = unlink(file->pointer) != 0 && errno != ENOENT; /* the old link may point to a removed blob */
    if (!failed) failed = symlink(target.data, file->pointer) != 0 && errno != EEXIST;
    if (failed) failed = link(blob, file->pointer) != 0 && errno != EEXIST; /* for file systems without symbolic links */
    return failed ? file_fail("make", file->pointer) : OK;
}

Status hub_lock(HubRepo *repo, const char *name, const char *what, int *out_fd)
{
    const char *path = arena_printf(repo->arena, "%s/%s.lock", repo->locks, name);
    TRY(file_make_dirs(repo->locks));
    return file_lock(path, arena_printf(repo->arena, "%s: %s: another process is at it; waiting", repo->repo, what), out_fd);
}

static Status pull_blob(HubRepo *repo, const HubFile *file, const char *blob)
{
    bool is_there;
    TRY(file_exists(blob, &is_there));
    if (is_there) return OK;
    Download                  d = {.repo = repo,
                                   .file = file,
                                   .path = arena_printf(repo->arena, "%s.incomplete", blob),
                                   .version = file->served,
                                   .is_hashed = is_checksum(file->etag)};
    SCOPED(file_close_at) int fd = file_open(d.path, O_RDWR | O_CREAT);
    if (fd < 0) return file_fail("create", d.path);
    d.fd = fd;
    d.have = lseek(fd, 0, SEEK_END);
    TRY(download(&d));
    return rename(d.path, blob) != 0 ? file_fail("rename to", blob) : OK;
}

Status hub_file_pull(HubRepo *repo, const HubFile *file)
{
    const char *blobs = arena_printf(repo->arena, "%s/blobs", repo->folder), *blob = arena_printf(repo->arena, "%s/%s", blobs, file->etag);
    SCOPED(file_close_at) int lock = -1;
    TRY(file_make_dirs(blobs));
    TRY(hub_lock(repo, file->etag, file->name, &lock));
    TRY(pull_blob(repo, file, blob));
    TRY(link_pointer(repo, file, blob));
    if (file->size > 0) repo->bytes_done += file->size;
    return OK;
}
