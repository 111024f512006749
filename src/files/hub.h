/* Models and datasets of a Hugging Face hub, in the cache that its own tools use: CACHE/models--ORG--NAME/{refs/REVISION, blobs/ETAG,
 * snapshots/COMMIT/file -> ../../blobs/ETAG}, .locks beside it. A file is downloaded to blobs/ETAG.incomplete, resumed where it was cut,
 * and renamed once its size and checksum are right. A ref is written when its snapshot has all files. Several processes may pull at
 * once. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

typedef enum HubKind { HUB_MODEL, HUB_DATASET } HubKind;

/* The environment's settings (HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_TOKEN, ...: docs/reference/hub.md). Texts are owned. */
typedef struct HubOptions {
    char *endpoint; /* without / at its end */
    char *cache;
    char *token;    /* NULL: none */
    bool  offline;  /* open no socket */
    bool  progress; /* show a line on stderr, rewritten as bytes arrive */
    int   timeout_s, etag_timeout_s;
    int   attempts; /* most attempts in a row that bring no new byte */
    int   retry_ms; /* wait before the second attempt; doubles with each further one */
} HubOptions;

/* Reads the environment. ERR_INVALID names a variable whose value is wrong. */
NODISCARD Status hub_options_init(HubOptions *out);
void             hub_options_deinit(HubOptions *options);

/* Whether `path` has the form ORG/NAME that the hub allows, and doesn't end as a file name does (data/train.jsonl). The repository may not
 * exist. */
bool hub_is_repo_id(const char *path);

/* The ORG/NAME of a model's snapshot folder in a hub's cache (.../models--ORG--NAME/snapshots/COMMIT), in the arena; NULL: `dir` isn't such
 * a folder. */
const char *hub_snapshot_repo(Arena *arena, const char *dir);

/* Globs over file names in the repository, NULL-terminated. Case is ignored, and a * matches / too. The last glob that matches a name
 * decides; one that starts with ! excludes the file. */
extern const char *const hub_model_files[];   /* configuration, tokenizer, safetensors */
extern const char *const hub_dataset_files[]; /* all formats that can be read */

/* Whether the patterns select this file for downloading. */
bool hub_wants(const char *name, const char *const *patterns);

/* Downloads every file that matches `patterns` (NULL: all), and appends the path of the snapshot's folder to out_dir. revision: branch, tag
 * or commit; NULL: main. The cache is used if offline and, with a warning, if the hub can't be reached. ERR_NOT_FOUND, ERR_IO (network),
 * ERR_NO_FIT (disk), ERR_UNSUPPORTED (no libcurl). */
NODISCARD Status hub_pull(const HubOptions *options, HubKind kind, const char *repo, const char *revision, const char *const *patterns,
                          StrBuf *out_dir);

/* hub_pull with the environment's options. */
NODISCARD Status hub_resolve(HubKind kind, const char *repo, const char *revision, const char *const *patterns, StrBuf *out_dir);

/* *out: whether a run file's path names a repository: it is ORG/NAME or ORG/NAME@REVISION, and no file or folder of that name exists. If a
 * folder ORG exists, ORG/NAME means a missing file in it, and only ORG/NAME@REVISION is the repository. */
NODISCARD Status hub_is_remote(const char *path, bool *out);

/* The path of a folder in the hub's cache for files derived from `path`. Its name is prefix, hash and the last part of `path`. Only the
 * cache itself is created. */
NODISCARD Status hub_derived_path(Arena *arena, const char *prefix, uint64_t hash, const char *path, const char **out);

/* Finds what a run file's path stands for, and appends its local path to out_path. That is `path` itself if it exists, else the snapshot of
 * the repository that `path` names, with the files for `kind`. ERR_NOT_FOUND if `path` is neither. */
NODISCARD Status hub_local_path(HubKind kind, const char *path, StrBuf *out_path);
