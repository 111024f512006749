/* Models and datasets of a Hugging Face hub, in the cache that its own tools use:
 * CACHE/models--ORG--NAME/{refs/REVISION, blobs/ETAG, snapshots/COMMIT/file -> ../../blobs/ETAG}, .locks beside it.
 * A file is downloaded to blobs/ETAG.incomplete, taken up again where it was cut, and gets its name once its size and
 * checksum hold. A ref is written when all files of its snapshot are there. Several processes may pull at once. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

typedef enum HubKind { HUB_MODEL, HUB_DATASET } HubKind;

/* What the environment says (HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_TOKEN, ...: docs/reference/hub.md). Texts are
 * owned. */
typedef struct HubOptions {
    char *endpoint; /* no / at its end */
    char *cache;
    char *token;    /* NULL: none */
    bool  offline;  /* no socket is opened */
    bool  progress; /* a line on stderr, rewritten while bytes come */
    int   timeout_s, etag_timeout_s;
    int   attempts; /* of one request that brings no byte further */
    int   retry_ms; /* before the second attempt; doubles */
} HubOptions;

/* ERR_INVALID names the variable. */
NODISCARD Status hub_options_init(HubOptions *out);
void             hub_options_deinit(HubOptions *options);

/* ORG/NAME as the hub allows, and no file name by its ending (data/train.jsonl). Says nothing about what exists. */
bool hub_is_repo_id(const char *path);

/* ORG/NAME of a model's snapshot in a hub's cache (.../models--ORG--NAME/snapshots/COMMIT), in the arena; NULL: it is no such folder. */
const char *hub_snapshot_repo(Arena *arena, const char *dir);

/* Globs over names in the repository, of any case (a * takes / too); one that starts with ! takes files out again. NULL-terminated.
 */
extern const char *const hub_model_files[];   /* configuration, tokenizer, safetensors */
extern const char *const hub_dataset_files[]; /* formats that are read here */

/* Whether a file of that name is downloaded. */
bool hub_wants(const char *name, const char *const *patterns);

/* The folder of the snapshot with every file that matches `patterns` (NULL: all); appended to out_dir. revision:
 * branch, tag or commit; NULL: main. Offline, or when the hub can't be reached, the cache answers (the latter with a
 * warning). ERR_NOT_FOUND, ERR_IO (network), ERR_NO_FIT (disk), ERR_UNSUPPORTED (no libcurl). */
NODISCARD Status hub_pull(const HubOptions *options, HubKind kind, const char *repo, const char *revision, const char *const *patterns,
                          StrBuf *out_dir);

/* hub_pull as the environment says. */
NODISCARD Status hub_resolve(HubKind kind, const char *repo, const char *revision, const char *const *patterns, StrBuf *out_dir);

/* Whether a path of a run file is a repository's: ORG/NAME or ORG/NAME@REVISION, where no file or folder of that name
 * is there. ORG/NAME in a folder ORG that is there is a file that isn't; with @REVISION it is the repository. */
NODISCARD Status hub_is_remote(const char *path, bool *out);

/* The path of a folder in the hub's cache for files that are derived from `path`: prefix, hash, the name of `path`. The cache is made. */
NODISCARD Status hub_derived_path(Arena *arena, const char *prefix, uint64_t hash, const char *path, const char **out);

/* A path of a run file: itself where a file or folder is there, else the snapshot of the repository it names, with the
 * files of its kind; ERR_NOT_FOUND when it is neither. Appended to out_path. */
NODISCARD Status hub_local_path(HubKind kind, const char *path, StrBuf *out_path);
