/* Pulls snapshots: chooses the files of a repository that are wanted, finds the missing ones, and writes the ref when the snapshot is
 * whole. */
#include "files/hub_internal.h"

#include "base/json.h"
#include "base/log.h"
#include "base/scoped.h"
#include "files/file.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LISTING_BYTES = 64 << 20, MAX_NAME = 96, MAX_PATH = 1024, FREE_SPARE_BYTES = 64 << 20 };

const char *const hub_model_files[] = {
    "*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "!*/*", "!consolidated*", "additional_chat_templates/*.jinja", NULL};

/* Every format that is read, plain or compressed. Not .md: on the hub that describes the dataset. */
#define CODINGS(ending) "*" ending, "*" ending ".gz", "*" ending ".zst", "*" ending ".xz", "*" ending ".bz2"
const char *const hub_dataset_files[] = {"*.parquet",           CODINGS(".json"), CODINGS(".jsonl"), CODINGS(".ndjson"),
                                         CODINGS(".csv"),       CODINGS(".tsv"),  CODINGS(".txt"),   CODINGS(".text"),
                                         "!dataset_infos.json", "!LICENSE.*",     "!*/LICENSE.*",    NULL};

/* ---- names of repositories and files ---- */

static bool is_name(const char *text, size_t len)
{
    if (!len || len > MAX_NAME || !isalnum((unsigned char)text[0]) || !isalnum((unsigned char)text[len - 1])) return false;
    for (size_t i = 0; i < len; i++) {
        bool sign = text[i] == '-' || text[i] == '.';
        if (!isalnum((unsigned char)text[i]) && text[i] != '_' && !sign) return false;
        if (sign && text[i] == text[i + 1]) return false; /* -- separates names in the cache; .. isn't allowed */
    }
    return true;
}

bool hub_is_repo_id(const char *path)
{
    static const char *const endings[] = {".json", ".jsonl", ".parquet", ".ndjson", ".csv", ".tsv",         ".txt",  ".md",  ".text",
                                          ".gz",   ".zst",   ".xz",      ".bz2",    ".bin", ".safetensors", ".yaml", ".yml", ".arrow"};
    const char              *slash = strchr(path, '/');
    if (!slash || !is_name(path, (size_t)(slash - path)) || !is_name(slash + 1, strlen(slash + 1))) return false;
    const char *dot = strrchr(slash, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcmp(dot, endings[i]) == 0) return false;
    return true;
}

/* Whether the path is relative, without .. and control characters: it becomes part of a local path. */
static bool is_safe_path(const char *path)
{
    size_t len = strlen(path);
    if (!len || len > MAX_PATH || path[0] == '/' || path[len - 1] == '/') return false;
    for (const char *part = path; *part;) {
        size_t n = strcspn(part, "/");
        if (!n || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.')) return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f || part[i] == '\\') return false;
        part += n + (part[n] == '/');
    }
    return true;
}

bool hub_wants(const char *name, const char *const *patterns)
{
    bool wanted = !patterns;
    for (; patterns && *patterns; patterns++) {
        bool out = **patterns == '!';
        if (fnmatch(*patterns + out, name, FNM_CASEFOLD) == 0) wanted = !out;
    }
    return wanted;
}

/* Appends `text` percent-encoded. Letters, digits, - . _ ~ and the characters in `keep` stay. */
static void hub_url_append(StrBuf *url, const char *text, const char *keep)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || strchr("-._~", c) || strchr(keep, c))
            strbuf_putc(url, (char)c);
        else
            strbuf_printf(url, "%%%02X", c);
    }
}

/* ---- the cache ---- */

static const char *ref_path(const HubRepo *repo)
{
    return arena_printf(repo->arena, "%s/refs/%s", repo->folder, repo->revision);
}

static bool is_commit(const char *text)
{
    return strlen(text) == 40 && strspn(text, "0123456789abcdef") == 40;
}

/* *out: the commit of the revision if the cache has its snapshot, else NULL. */
static Status cached_commit(const HubRepo *repo, const char **out)
{
    const char *commit = repo->revision;
    bool        is_known;
    Str         text;
    *out = NULL;
    if (!is_commit(commit)) {
        TRY(file_exists(ref_path(repo), &is_known));
        if (!is_known) return OK;
        TRY(file_read(repo->arena, ref_path(repo), 256, &text));
        commit = arena_strndup(repo->arena, text.data, strcspn(text.data, " \r\n"));
    }
    if (!hub_is_safe_name(commit)) return OK;
    TRY(file_is_dir(arena_printf(repo->arena, "%s/snapshots/%s", repo->folder, commit), &is_known));
    if (is_known) *out = commit;
    return OK;
}

static Status answer_from_cache(const HubRepo *repo, StrBuf *out_dir)
{
    const char *commit;
    TRY(cached_commit(repo, &commit));
    FAIL_IF(!commit, ERR_NOT_FOUND,
            "%s (revision %s) isn't in the cache %s, and HF_HUB_OFFLINE or its like forbids downloading it; pull it where "
            "there is a network, or give a local folder",
            repo->repo, repo->revision, repo->options->cache);
    strbuf_printf(out_dir, "%s/snapshots/%s", repo->folder, commit);
    return OK;
}

/* ---- the list of files ---- */

static Status take_listing(void *context, const HttpResponse *response, const void *data, size_t len)
{
    StrBuf *text = context;
    (void)response;
    FAIL_IF(text->len + len > MAX_LISTING_BYTES, ERR_IO, "the hub's list of files is larger than %d bytes", MAX_LISTING_BYTES);
    strbuf_append(text, data, len);
    return OK;
}

static Status get_listing(HubRepo *repo, int attempts, StrBuf *text)
{
    SCOPED_STRBUF(url);
    strbuf_printf(&url, "%s/api/%s/%s/revision/", repo->options->endpoint, repo->kind == HUB_MODEL ? "models" : "datasets", repo->repo);
    hub_url_append(&url, repo->revision, "");
    HttpRequest request = {
        .url = url.data, .timeout_s = repo->options->etag_timeout_s, .sink = take_listing, .context = text, .redirects = HTTP_ANYWHERE};
    HttpResponse answer;
    Status       status = hub_request(repo, &request, attempts, &answer);
    if (status == OK) status = hub_check_answer(repo, repo->repo, &answer);
    if (status != OK && (answer.transient || !answer.code)) status = status_prefix(ERR_IO, "%s: the hub can't be reached", repo->repo);
    return status;
}

static HubFile make_file(HubRepo *repo, const char *name)
{
    SCOPED_STRBUF(url);
    strbuf_printf(&url, "%s/%s%s/resolve/%s/", repo->options->endpoint, repo->kind == HUB_MODEL ? "" : "datasets/", repo->repo,
                  repo->commit);
    hub_url_append(&url, name, "/");
    HubFile file = {.name = name, .url = arena_strdup(repo->arena, url.data), .size = -1};
    file.pointer = arena_printf(repo->arena, "%s/snapshots/%s/%s", repo->folder, repo->commit, name);
    return file;
}

static Status read_listing(HubRepo *repo, const char *const *patterns, const StrBuf *text, HubFile **out_files, size_t *out_count)
{
    JsonValue  *root = arena_new(repo->arena, JsonValue);
    const char *name = arena_printf(repo->arena, "%s: the hub's list of files", repo->repo);
    TRY(json_parse(repo->arena, name, strbuf_cstr(text), text->len, root));
    const JsonValue *siblings = json_get(root, "siblings");
    FAIL_IF(!json_get_str(root, "sha", &repo->commit) || !hub_is_safe_name(repo->commit) || !siblings || siblings->type != JSON_ARRAY,
            ERR_IO, "%s has no \"sha\" and \"siblings\"; is %s a hub?", name, repo->options->endpoint);
    *out_files = arena_array(repo->arena, HubFile, siblings->count + 1);
    *out_count = 0;
    for (uint32_t i = 0; i < siblings->count; i++) {
        const char *file;
        if (!json_get_str(&siblings->items[i], "rfilename", &file)) continue;
        FAIL_IF(!is_safe_path(file), ERR_IO, "%s has a file name that leaves the folder: \"%.100s\"", name, file);
        if (hub_wants(file, patterns)) (*out_files)[(*out_count)++] = make_file(repo, file);
    }
    FAIL_IF(*out_count == 0, ERR_NOT_FOUND, "%s has no file of a kind that is wanted here, among %u", repo->repo, siblings->count);
    return OK;
}

/* ---- pulling a snapshot ---- */

static Status check_disk(const HubRepo *repo, int64_t bytes)
{
    int64_t free_bytes;
    TRY(file_free_bytes(repo->options->cache, &free_bytes));
    FAIL_IF(bytes > 0 && bytes > free_bytes - FREE_SPARE_BYTES, ERR_NO_FIT,
            "%s: %.1f MB are to be downloaded, %s has %.1f MB free, of which %.1f MB are left alone; set HF_HUB_CACHE to a larger disk",
            repo->repo, (double)bytes / 1e6, repo->options->cache, (double)free_bytes / 1e6, (double)FREE_SPARE_BYTES / 1e6);
    return OK;
}

/* *out: bytes still to be downloaded; 0 if the file is in blobs already, or its size isn't known. */
static Status missing_bytes(const HubRepo *repo, const HubFile *file, int64_t *out)
{
    bool is_there;
    *out = 0;
    if (!file->etag || file->size < 0) return OK;
    TRY(file_exists(arena_printf(repo->arena, "%s/blobs/%s", repo->folder, file->etag), &is_there));
    if (!is_there) *out = file->size;
    return OK;
}

static Status pull_files(HubRepo *repo, HubFile *files, size_t count)
{
    size_t  missing = 0;
    int64_t on_disk = 0; /* bytes of .incomplete files */
    for (size_t i = 0; i < count; i++) {
        TRY(hub_file_look(repo, &files[i]));
        missing += files[i].etag != NULL;
        int64_t bytes, part = 0;
        TRY(missing_bytes(repo, &files[i], &bytes));
        if (bytes) TRY(file_size(arena_printf(repo->arena, "%s/blobs/%s.incomplete", repo->folder, files[i].etag), &part));
        repo->bytes_total += bytes;
        on_disk += part < 0 ? 0 : part < bytes ? part : bytes;
    }
    TRY(check_disk(repo, repo->bytes_total - on_disk));
    if (missing) log_info("%s: downloading %zu of %zu files, %.1f MB", repo->repo, missing, count, (double)repo->bytes_total / 1e6);
    for (size_t i = 0; i < count; i++)
        if (files[i].etag) TRY(hub_file_pull(repo, &files[i]));
    return OK;
}

static Status write_ref(HubRepo *repo)
{
    SCOPED(file_close_at) int lock = -1;
    if (strcmp(repo->revision, repo->commit) == 0) return OK;
    char *path = arena_strdup(repo->arena, ref_path(repo)), *slash = strrchr(path, '/');
    *slash = 0;
    TRY(file_make_dirs(path));
    *slash = '/';
    TRY(hub_lock(repo, "refs", "its refs", &lock)); /* without the lock, two writers could use the same temporary file */
    return file_write_atomic(path, repo->commit, strlen(repo->commit));
}

static Status pull_online(HubRepo *repo, const char *const *patterns, StrBuf *out_dir)
{
    SCOPED_STRBUF(text);
    HubFile    *files = NULL;
    size_t      count = 0;
    const char *cached;
    TRY(cached_commit(repo, &cached));
    Status status = get_listing(repo, cached ? 1 : repo->options->attempts, &text);
    if (status == ERR_IO && cached) {
        log_warn("%s; what the cache has is used", status_message());
        return answer_from_cache(repo, out_dir);
    }
    TRY(status);
    TRY(read_listing(repo, patterns, &text, &files, &count));
    TRY(pull_files(repo, files, count));
    TRY(write_ref(repo));
    strbuf_printf(out_dir, "%s/snapshots/%s", repo->folder, repo->commit);
    return OK;
}

Status hub_pull(const HubOptions *options, HubKind kind, const char *name, const char *revision, const char *const *patterns,
                StrBuf *out_dir)
{
    SCOPED_ARENA(arena);
    HubRepo repo = {.arena = &arena, .options = options, .kind = kind, .repo = name, .revision = revision ? revision : "main"};
    FAIL_IF(!hub_is_repo_id(name), ERR_INVALID, "\"%.200s\" isn't the name of a repository; expected ORG/NAME", name);
    FAIL_IF(!is_safe_path(repo.revision), ERR_INVALID, "\"%.200s\" isn't the name of a revision", repo.revision);
    const char *slash = strchr(name, '/');
    const char *folder =
        arena_printf(&arena, "%s--%.*s--%s", kind == HUB_MODEL ? "models" : "datasets", (int)(slash - name), name, slash + 1);
    repo.folder = arena_printf(&arena, "%s/%s", options->cache, folder);
    repo.locks = arena_printf(&arena, "%s/.locks/%s", options->cache, folder);
    if (options->offline) return answer_from_cache(&repo, out_dir);
    Status status = http_open(&repo.http);
    if (status == OK) status = pull_online(&repo, patterns, out_dir);
    http_close(repo.http);
    return status;
}

Status hub_resolve(HubKind kind, const char *repo, const char *revision, const char *const *patterns, StrBuf *out_dir)
{
    SCOPED(hub_options_deinit) HubOptions options;
    TRY(hub_options_init(&options));
    return hub_pull(&options, kind, repo, revision, patterns, out_dir);
}

const char *hub_snapshot_repo(Arena *arena, const char *dir)
{
    const char *kind = "models--", *at = NULL;
    for (const char *next = dir; (next = strstr(next, kind)); next++)
        if (next == dir || next[-1] == '/') at = next + strlen(kind);
    const char *end = at ? strchr(at, '/') : NULL, *middle = at ? strstr(at, "--") : NULL;
    if (!end || !middle || middle > end || strncmp(end, "/snapshots/", 11) != 0) return NULL;
    const char *commit = end + 11, *last = commit + strcspn(commit, "/");
    if (last == commit || last[strspn(last, "/")]) return NULL;
    return arena_printf(arena, "%.*s/%.*s", (int)(middle - at), at, (int)(end - middle - 2), middle + 2);
}

Status hub_is_remote(const char *path, bool *out)
{
    SCOPED_ARENA(arena);
    bool  is_here, is_org = false, has_revision = strchr(path, '@');
    char *name = arena_strndup(&arena, path, strcspn(path, "@"));
    *out = hub_is_repo_id(name);
    TRY(file_exists(path, &is_here));
    if (*out && !has_revision) {
        *strchr(name, '/') = 0;
        TRY(file_is_dir(name, &is_org));
    }
    *out = *out && !is_here && !is_org;
    return OK;
}

Status hub_local_path(HubKind kind, const char *path, StrBuf *out_path)
{
    bool is_here, is_remote;
    TRY(file_exists(path, &is_here));
    if (is_here) {
        strbuf_puts(out_path, path);
        return OK;
    }
    TRY(hub_is_remote(path, &is_remote));
    FAIL_IF(!is_remote, ERR_NOT_FOUND, "%s: no such file or folder, nor is it the name (ORG/NAME) of a repository on the hub%s", path,
            hub_is_repo_id(path) ? "; beside a folder of the ORG's name that is ORG/NAME@main" : "");
    SCOPED_ARENA(arena);
    const char *at = strchr(path, '@'), *name = arena_strndup(&arena, path, strcspn(path, "@"));
    Status      status = hub_resolve(kind, name, at ? at + 1 : NULL, kind == HUB_MODEL ? hub_model_files : hub_dataset_files, out_path);
    return status == OK ? OK : status_prefix(status, "%s: no such file or folder, and as a name on the hub", path);
}

Status hub_derived_path(Arena *arena, const char *prefix, uint64_t hash, const char *path, const char **out)
{
    SCOPED(hub_options_deinit) HubOptions hub;
    TRY(hub_options_init(&hub));
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    const char *whole = arena_strndup(arena, path, len), *slash = strrchr(whole, '/');
    *out = arena_printf(arena, "%s/%s%016llx--%s", hub.cache, prefix, (unsigned long long)hash, slash ? slash + 1 : whole);
    return file_make_dirs(hub.cache);
}
