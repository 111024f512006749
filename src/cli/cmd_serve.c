/* surogate serve MODEL_DIR: an OpenAI-compatible server for the model. Its address is printed on stdout once clients may connect;
 * everything else goes to stderr. SIGTERM or SIGINT ends it after the answers in progress; a second signal ends it at once. */
#include "cli/model_flags.h"

#include "base/log.h"
#include "serve/serve.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct ServeArgs {
    ModelArgs    model;
    ServeOptions options;
    const char  *kv;
    StrList      adapters, hosts; /* adapters: each "DIR" or "NAME=DIR" */
    int64_t      port, max_body, connections;
    double       head_seconds;
    bool         split_k;
} ServeArgs;

/* ---- signals ---- */

static _Atomic(HttpServer *) running; /* NULL: the server doesn't run yet, so a signal ends the process */
static atomic_int            num_signals;

static void handle(int signo)
{
    static const char note[] = "\nfinishing the answers that were begun; once more to stop at once\n";
    HttpServer       *server = running;
    if (!server || num_signals++) _exit(128 + signo);
    ssize_t ignored = write(STDERR_FILENO, note, sizeof note - 1);
    (void)ignored;
    http_server_finish(server);
}

static void catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

/* ---- names ---- */

/* The last part of a path, without slashes at its end; empty if there is none. */
static const char *last_part(Arena *arena, const char *path)
{
    size_t len = strlen(path);
    while (len && path[len - 1] == '/') len--;
    char *copy = arena_strndup(arena, path, len), *slash = strrchr(copy, '/');
    return slash ? slash + 1 : copy;
}

/* The folder's name as it was given; a link keeps its own name. If the path has no name at its end, such as ".", the name of the real
 * folder. */
static const char *name_of(Arena *arena, const char *dir)
{
    const char *name = last_part(arena, dir);
    if (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) return name;
    char *whole = realpath(dir, NULL);
    name = last_part(arena, whole ? whole : dir);
    free(whole);
    return *name ? name : dir;
}

/* Gives the model its adapters, each NAME=DIR or DIR; without NAME the folder's name is used. */
static Status use_adapters(InferModel *infer, const StrList *adapters)
{
    AdapterName *names = arena_array(&infer->arena, AdapterName, adapters->count + 1);
    for (size_t i = 0; i < adapters->count; i++) {
        const char *text = adapters->items[i], *equals = strchr(text, '=');
        bool        is_dir = false;
        if (file_is_dir(text, &is_dir) != OK) status_clear();
        if (!equals || equals == text || is_dir || memchr(text, '/', (size_t)(equals - text)))
            names[i] = (AdapterName){name_of(&infer->arena, text), text};
        else
            names[i] = (AdapterName){arena_strndup(&infer->arena, text, (size_t)(equals - text)), equals + 1};
    }
    return adapters->count ? infer_use_adapters(infer, names, (int)adapters->count) : OK;
}

/* ---- the command ---- */

static Status run(Serve *serve, const ServeOptions *options)
{
    StrBuf url = {0};
    bool   is_v6 = strchr(options->host, ':') != NULL && options->host[0] != '[';
    TRY(serve_start(serve));
    running = serve_http(serve);
    strbuf_printf(&url, "http://%s%s%s:%d\n", is_v6 ? "[" : "", options->host, is_v6 ? "]" : "", http_server_port(serve_http(serve)));
    Status status = cli_print(&url);
    strbuf_deinit(&url);
    if (status == OK) status = serve_run(serve);
    running = NULL;
    return status;
}

static Status serve_model(InferModel *infer, const char *dir, ServeArgs *a)
{
    Serve *serve;
    a->options.name = name_of(&infer->arena, dir);
    TRY(infer_use_cache(infer, a->kv));
    infer->options.split_k = a->split_k;
    TRY(use_adapters(infer, &a->adapters));
    TRY(serve_open(infer, &a->options, &serve));
    Status status = run(serve, &a->options);
    serve_destroy(serve);
    return status;
}

static Status check(ServeArgs *a)
{
    FAIL_IF(a->port < 0 || a->port > 65535, ERR_INVALID, "--port %lld: expected 0 to 65535", (long long)a->port);
    FAIL_IF(a->max_body < 1 || a->max_body > 1 << 30, ERR_INVALID, "--max-body %lld: expected 1 to %d bytes", (long long)a->max_body,
            1 << 30);
    FAIL_IF(a->connections < 1 || a->connections > 1 << 16, ERR_INVALID, "--max-connections %lld: expected 1 to %d",
            (long long)a->connections, 1 << 16);
    FAIL_IF(!(a->head_seconds > 0 && a->head_seconds <= 3600), ERR_INVALID, "--header-timeout %g: expected above 0, at most 3600 seconds",
            a->head_seconds);
    a->options.port = (int)a->port;
    a->options.hosts = &a->hosts;
    a->options.http.body = (size_t)a->max_body;
    a->options.http.connections = (int)a->connections;
    a->options.http.head_seconds = a->head_seconds;
    return OK;
}

Status cmd_serve(CliArgs *args)
{
    ServeArgs a = {.model = MODEL_DEFAULTS, .options = serve_defaults(), .port = SERVE_PORT};
    bool      done;
    a.max_body = (int64_t)a.options.http.body;
    a.connections = a.options.http.connections;
    a.head_seconds = a.options.http.head_seconds;
    const Flag flags[] = {
        {"--adapter", FLAG_LIST, &a.adapters, "NAME=DIR",
         "a LoRA adapter, which requests choose as a model of that name; DIR alone: its folder's name; may be given several times"},
        {"--host", FLAG_TEXT, &a.options.host, "NAME", "the address that clients connect to; 0.0.0.0: all of this machine's (127.0.0.1)"},
        {"--port", FLAG_INT, &a.port, "N", "0: a free one, which the address on stdout says (8000)"},
        {"--allow-host", FLAG_LIST, &a.hosts, "NAME",
         "a name that requests may have in their Host beside this machine's own, as behind a proxy; may be given several times"},
        {"--api-key-file", FLAG_TEXT, &a.options.api_key_file, "FILE", "requests need one of its keys, one a line"},
        {"--places", FLAG_INT, &a.options.places, "N", "texts that are made at once; 0: 16 on a CPU, 64 on a GPU (0)"},
        {"--context", FLAG_INT, &a.options.context, "N",
         "most tokens of a prompt and its text; 0: as the model was made for, at most 8192 (0)"},
        {"--pages", FLAG_INT, &a.options.pages, "N", "pages of the cache, of 32 tokens; 0: as many as fit (0)"},
        {"--max-tokens", FLAG_INT, &a.options.max_tokens, "N", "most tokens that a request may ask for; 0: the context (0)"},
        {"--max-queue", FLAG_INT, &a.options.max_queue, "N", "texts that may wait for a place; more are refused with 429 (1024)"},
        {"--max-body", FLAG_INT, &a.max_body, "BYTES", "most bytes of a request's body (4194304)"},
        {"--max-connections", FLAG_INT, &a.connections, "N", "connections at one time; more get 503 (256)"},
        {"--header-timeout", FLAG_FLOAT, &a.head_seconds, "SECONDS", "in which a request's head has to come (10)"},
        {"--log-requests", FLAG_SWITCH, &a.options.logs_requests, NULL, "log prompts and answers too; else a line of status for each"},
        KV_FLAG(&a.kv),
        SPLIT_K_FLAG(&a.split_k),
        MODEL_FLAGS_BUT_ADAPTER(&a.model),
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    TRY(check(&a));
    catch_signals();
    InferModel infer;
    Status     status = cli_open_model(&infer, args->words[0], &a.model);
    if (status == OK) status = serve_model(&infer, args->words[0], &a);
    infer_close(&infer);
    return status;
}
