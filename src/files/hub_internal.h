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
    const char       *revision; /* as asked for */
    const char       *folder;   /* CACHE/models--ORG--NAME */
    const char       *locks;    /* CACHE/.locks/models--ORG--NAME */
    const char       *commit;
    int64_t           bytes_total, bytes_done; /* of all files to download */
    int64_t           last_shown_ms, first_ms, first_bytes;
} HubRepo;

typedef struct HubFile {
    const char *name; /* in the repository, with / */
    const char *url;
    const char *pointer; /* in the snapshot */
    const char *etag;    /* without quotes; a safe file name. NULL: the pointer is there already */
    int64_t     size;    /* -1: not said */
    const char *served;  /* the ETag as sent by the server that has the bytes; "": not known */
} HubFile;

/* Asks where the file is and what it must be; etag stays NULL when the snapshot has it. */
NODISCARD Status hub_file_look(HubRepo *repo, HubFile *file);

/* Puts the blob into the cache and the pointer into the snapshot. */
NODISCARD Status hub_file_pull(HubRepo *repo, const HubFile *file);

/* Waits for the lock of that name (an etag, "refs") of the repository; closing the descriptor gives it back. */
NODISCARD Status hub_lock(HubRepo *repo, const char *name, const char *what, int *out_fd);

/* A request with retries while failures pass. On failure the message says what to do about it. */
NODISCARD Status hub_request(HubRepo *repo, HttpRequest *request, int attempts, HttpResponse *out);

/* 401, 403, 404 and the rest in words; OK for 2xx and 3xx. */
NODISCARD Status hub_check_answer(const HubRepo *repo, const char *what, const HttpResponse *response);

/* Letters, digits and . _ - only, no leading dot: fit to be a file name of ours. */
bool hub_is_safe_name(const char *text);
