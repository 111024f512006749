/* The environment as huggingface_hub reads it. */
#include "files/hub_internal.h"

#include "base/log.h"
#include "base/scoped.h"
#include "files/file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TOKEN_FILE_BYTES = 1 << 16, DEFAULT_TIMEOUT_S = 10, MAX_TIMEOUT_S = 86400 };

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool env_true(const char *name)
{
    static const char *const words[] = {"1", "ON", "YES", "TRUE"};
    const char              *value = env(name);
    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value, words[i]) == 0) return true;
    return false;
}

/* `path` with ~ at its start replaced by $HOME, and `below` appended. Owned by the caller. */
static char *join(const char *path, const char *below)
{
    StrBuf      text = {0};
    const char *home = env("HOME");
    if (path[0] == '~' && (path[1] == '/' || !path[1]) && home) {
        strbuf_puts(&text, home);
        path++;
    }
    strbuf_puts(&text, path);
    strbuf_puts(&text, below);
    return text.data;
}

static char *hf_home(void)
{
    if (env("HF_HOME")) return join(env("HF_HOME"), "");
    if (env("XDG_CACHE_HOME")) return join(env("XDG_CACHE_HOME"), "/huggingface");
    return join("~/.cache/huggingface", "");
}

static Status read_timeout(const char *name, int *out)
{
    const char *text = env(name);
    char       *end;
    *out = DEFAULT_TIMEOUT_S;
    if (!text) return OK;
    long seconds = strtol(text, &end, 10);
    FAIL_IF(*end || seconds < 1 || seconds > MAX_TIMEOUT_S, ERR_INVALID, "%s=%s: expected whole seconds from 1 to %d", name, text,
            MAX_TIMEOUT_S);
    *out = (int)seconds;
    return OK;
}

static char *copy_text(const char *text, size_t len)
{
    char *copy = malloc_or_end(len + 1);
    memcpy(copy, text, len);
    copy[len] = 0;
    return copy;
}

/* Blanks around the token are dropped: token files end with a newline. Other unprintable bytes would break the header, so they are an
 * error. */
static Status set_token(const char *text, const char *from, char **out)
{
    while (isspace((unsigned char)*text)) text++;
    size_t len = strlen(text);
    while (len && isspace((unsigned char)text[len - 1])) len--;
    for (size_t i = 0; i < len; i++)
        FAIL_IF(text[i] < 0x21 || text[i] > 0x7e, ERR_INVALID, "%s: a token has printable letters and no blanks; byte %zu isn't one", from,
                i);
    *out = len ? copy_text(text, len) : NULL;
    return OK;
}

static Status read_token(const char *home, char **out)
{
    *out = NULL;
    if (env("HF_TOKEN")) return set_token(env("HF_TOKEN"), "HF_TOKEN", out);
    if (env("HUGGING_FACE_HUB_TOKEN")) return set_token(env("HUGGING_FACE_HUB_TOKEN"), "HUGGING_FACE_HUB_TOKEN", out);
    SCOPED(scoped_free) char *path = env("HF_TOKEN_PATH") ? join(env("HF_TOKEN_PATH"), "") : join(home, "/token");
    SCOPED_ARENA(arena);
    Str  text;
    bool is_there, is_dir;
    TRY(file_exists(path, &is_there));
    TRY(file_is_dir(path, &is_dir));
    if (!is_there || is_dir) return OK;
    TRY(file_read(&arena, path, TOKEN_FILE_BYTES, &text));
    return set_token(text.data, path, out);
}

static Status read_options(HubOptions *o, const char *home)
{
    const char *endpoint = env("HF_ENDPOINT") ? env("HF_ENDPOINT") : "https://huggingface.co";
    const char *cache = env("HF_HUB_CACHE") ? env("HF_HUB_CACHE") : env("HUGGINGFACE_HUB_CACHE");
    size_t      len = strlen(endpoint);
    FAIL_IF(strncasecmp(endpoint, "https://", 8) != 0 && strncasecmp(endpoint, "http://", 7) != 0, ERR_INVALID,
            "HF_ENDPOINT=%s: expected https://HOST", endpoint);
    while (len && endpoint[len - 1] == '/') len--;
    o->endpoint = copy_text(endpoint, len);
    o->cache = cache ? join(cache, "") : join(home, "/hub");
    o->offline = env_true("HF_HUB_OFFLINE") || env_true("TRANSFORMERS_OFFLINE") || env_true("HF_DATASETS_OFFLINE");
    o->progress = log_is_terminal() && !env_true("HF_HUB_DISABLE_PROGRESS_BARS");
    o->attempts = 5;
    o->retry_ms = 500;
    TRY(read_timeout("HF_HUB_DOWNLOAD_TIMEOUT", &o->timeout_s));
    TRY(read_timeout("HF_HUB_ETAG_TIMEOUT", &o->etag_timeout_s));
    return read_token(home, &o->token);
}

Status hub_options_init(HubOptions *out)
{
    *out = (HubOptions){0};
    SCOPED(scoped_free) char *home = hf_home();
    Status                    status = read_options(out, home);
    if (status != OK) hub_options_deinit(out);
    return status;
}

void hub_options_deinit(HubOptions *options)
{
    free(options->endpoint);
    free(options->cache);
    free(options->token);
    *options = (HubOptions){0};
}
