/* Shared by hub.c (what to pull), hub_file.c (pulling one file) and hub_env.c. */
#pragma once

#include "base/arena.h"
#include "files/http.h"
#include "files/hub.h"

/* One repository at one commit. */
typedef struct HubRepo {
    Arena            *arena;
    const HubOptions *options;
    Http             *http;
    HubKind           kind;
    const char       *repo;     /* ORG/NAME */
    const char       *revision; /* branch, tag or commit, as the caller named it */
    const char       *folder;   /* CACHE/models--ORG--NAME */
    const char       *locks;    /* CACHE/.locks/models--ORG--NAME */
    const char       *commit;
    int64_t           bytes_total, bytes_done; /* bytes of all files to download; bytes done */
    int64_t           last_shown_ms, first_ms, first_bytes;
} HubRepo;

typedef struct HubFile {
    const char *name; /* name in the repository; may contain / */
    const char *url;
    const char *pointer; /* path in the snapshot */
    const char *etag;    /* without quotes; safe as a file name. NULL: the snapshot has the file already */
    int64_t     size;    /* -1: the server doesn't say */
    const char *served;  /* ETag that the server of the bytes sends; "": not known */
} HubFile;

/* Asks the server for the file's ETag and size. file->etag stays NULL if the snapshot has the file already. */
NODISCARD Status hub_file_look(HubRepo *repo, HubFile *file);

/* Downloads the blob into the cache, and makes the snapshot's link to it. */
NODISCARD Status hub_file_pull(HubRepo *repo, const HubFile *file);

/* Waits for the repository's lock `name` (an ETag, or "refs"). Closing *out_fd releases it. what: what is locked, for the message. */
NODISCARD Status hub_lock(HubRepo *repo, const char *name, const char *what, int *out_fd);

/* Sends a request with the options' token. Transient failures are retried, at most `attempts` tries in all. */
NODISCARD Status hub_request(HubRepo *repo, HttpRequest *request, int attempts, HttpResponse *out);

/* OK for codes 2xx and 3xx; else an error that explains 401, 403, 404 or another code. what: what was asked for. */
NODISCARD Status hub_check_answer(const HubRepo *repo, const char *what, const HttpResponse *response);

/* Whether `text` is safe as a file name: only letters, digits and . _ - , at most 128, and no dot at its start. */
bool hub_is_safe_name(const char *text);
