/* See serve.h. */
#include "serve/serve_internal.h"

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "files/file.h"
#include "infer/chat.h"
#include "setup/setup.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MOST_KEY_BYTES = 1 << 20,
    BEST = 20,       /* most log-probabilities that a request may ask for, beside each token's own */
    BIASES = 300,    /* most biases of a request */
    PROBE_IDS = 8,   /* tokens of the prompt on which the adapters are compared */
    SHARE_GPU = 92,  /* percent of the device's memory that may be taken */
    SHARE_HOST = 60, /* percent of the host's memory, which other programs use too */
};

ServeOptions serve_defaults(void)
{
    return (ServeOptions){.host = "127.0.0.1", .port = SERVE_PORT, .http = http_default_limits, .max_queue = 1024};
}

HttpServer *serve_http(const Serve *serve)
{
    return serve->http;
}

/* ---- opening ---- */

static bool is_blank(char c)
{
    return (unsigned char)c <= ' ';
}

static Status add_key(Serve *serve, Str line, int number)
{
    const char *path = serve->options.api_key_file;
    while (line.len && is_blank(line.data[line.len - 1])) line.len--;
    while (line.len && is_blank(line.data[0])) line = (Str){line.data + 1, line.len - 1};
    if (!line.len) return OK;
    FAIL_IF(str_starts(line, str_of("\xEF\xBB\xBF")), ERR_INVALID, "%s:%d: a byte order mark; save the file as UTF-8 without one", path,
            number);
    FAIL_IF(line.data[0] == '#', ERR_INVALID, "%s:%d: a key begins with '#', and there are no comments here; expected a key a line", path,
            number);
    for (size_t i = 0; i < line.len; i++)
        FAIL_IF(is_blank(line.data[i]), ERR_INVALID, "%s:%d: a key has a blank in it; expected a key a line", path, number);
    str_list_push(&serve->arena, &serve->keys, arena_strndup(&serve->arena, line.data, line.len));
    return OK;
}

/* One key a line; blanks around a key and empty lines are ignored. Messages name only the line: keys are secret. */
static Status read_keys(Serve *serve)
{
    const char *path = serve->options.api_key_file;
    Str         text;
    if (!path) return OK;
    TRY(file_read(&serve->arena, path, MOST_KEY_BYTES, &text));
    for (int number = 1; text.len; number++) {
        const char *end = memchr(text.data, '\n', text.len);
        size_t      len = end ? (size_t)(end - text.data) : text.len, skip = len + (end != NULL);
        TRY(add_key(serve, (Str){text.data, len}, number));
        text = (Str){text.data + skip, text.len - skip};
    }
    FAIL_IF(!serve->keys.count, ERR_INVALID, "%s has no keys; expected one a line", path);
    return OK;
}

static Status check_options(const ServeOptions *o, const InferModel *infer)
{
    long long most = (long long)infer->model->max_positions;
    FAIL_IF(o->port < 0 || o->port > 65535, ERR_INVALID, "--port %d: expected 0 to 65535", o->port);
    FAIL_IF(o->places < 0 || o->places > 4096, ERR_INVALID, "--places %lld: expected 1 to 4096, or 0", (long long)o->places);
    FAIL_IF(o->context < 0 || o->context > most, ERR_INVALID, "--context %lld: expected 1 to %lld, as the model was made for, or 0",
            (long long)o->context, most);
    FAIL_IF(o->pages < 0, ERR_INVALID, "--pages %lld: expected at least 1, or 0", (long long)o->pages);
    FAIL_IF(o->max_tokens < 0, ERR_INVALID, "--max-tokens %lld: expected at least 1, or 0", (long long)o->max_tokens);
    FAIL_IF(o->max_queue < 0 || o->max_queue > 1 << 20, ERR_INVALID, "--max-queue %lld: expected 0 to %d", (long long)o->max_queue,
            1 << 20);
    FAIL_IF(!infer->tokenizer, ERR_NOT_FOUND, "%s has no tokenizer.json, which is needed to serve texts", infer->tokenizer_dir);
    return OK;
}

static bool is_cpu(const InferModel *infer)
{
    return device_is(infer->device, "cpu");
}

static void settle_options(Serve *serve)
{
    ServeOptions *o = &serve->options;
    int64_t       most = serve->infer->model->max_positions;
    if (!o->places) o->places = is_cpu(serve->infer) ? SERVE_PLACES_CPU : SERVE_PLACES_GPU;
    if (!o->context) o->context = most < SERVE_MOST_CONTEXT ? most : SERVE_MOST_CONTEXT;
    serve->is_local = http_is_local_name(str_of(o->host)) || strcmp(o->host, "::1") == 0;
    serve->created = time(NULL);
    serve->best = infer_num_choices(serve->infer) < BEST ? (int)infer_num_choices(serve->infer) : BEST;
}

/* *out is NULL if the folder has no template: chats are refused then. */
static Status read_template(Serve *serve, Template **out)
{
    *out = NULL;
    Status status = chat_template(serve->infer, out);
    if (status != ERR_NOT_FOUND) return status;
    status_clear();
    log_warn("the model has no chat template: /v1/chat/completions is refused");
    return OK;
}

static Status open_all(Serve *serve)
{
    InferModel *infer = serve->infer;
    HttpHandler handler = {serve, serve_request, texts_gone, serve_refused};
    TRY(check_options(&serve->options, infer));
    settle_options(serve);
    TRY(read_keys(serve));
    serve->model = (ApiModel){.infer = infer,
                              .scratch = tokenizer_scratch_create(infer->tokenizer),
                              .name = serve->options.name,
                              .context = serve->options.context,
                              .max_tokens = serve->options.max_tokens};
    TRY(read_template(serve, &serve->model.tmpl));
    for (int i = 0; i < infer->num_row_adapters; i++)
        FAIL_IF(strcmp(infer->row_adapters[i].name, serve->model.name) == 0, ERR_INVALID,
                "an adapter and the model are both called %s; name the adapter: --adapter NAME=DIR", serve->model.name);
    TRY(http_server_create(&serve->options.http, &handler, &serve->http));
    return http_server_listen(serve->http, serve->options.host, serve->options.port);
}

Status serve_open(InferModel *infer, const ServeOptions *options, Serve **out)
{
    Serve *serve = calloc_or_end(1, sizeof *serve);
    *serve = (Serve){.options = *options, .infer = infer};
    Status status = open_all(serve);
    if (status != OK)
        serve_destroy(serve);
    else
        *out = serve;
    return status;
}

void serve_destroy(Serve *serve)
{
    if (!serve) return;
    engine_stop(serve->engine);
    http_server_destroy(serve->http);
    engine_destroy(serve->engine);
    texts_drop(serve);
    if (serve->model.scratch) tokenizer_scratch_destroy(serve->model.scratch);
    if (serve->model.tmpl) template_destroy(serve->model.tmpl);
    strbuf_deinit(&serve->failure);
    arena_deinit(&serve->arena);
    free(serve);
}

/* Logs which rotary factors are used: longrope has two sets, and the context decides which set all texts get (docs/models.md). */
static void say_factors(const Serve *serve)
{
    int64_t original;
    if (!infer_longrope(serve->infer, &original)) return;
    bool is_long = serve->options.context > original;
    log_info("all texts have the %s factors of longrope, as --context %lld is %s the original %lld", is_long ? "long" : "short",
             (long long)serve->options.context, is_long ? "beyond" : "within", (long long)original);
}

/* ---- what fits ---- */

static void say_size(const DecoderOptions *options, int64_t pages, int64_t page_bytes, int64_t weights, int64_t all)
{
    char cache_text[32], weights_text[32], all_text[32];
    size_text(pages * page_bytes, cache_text);
    size_text(weights, weights_text);
    size_text(all, all_text);
    log_info("%lld texts at once, of up to %lld tokens with their prompts; the cache holds %lld tokens (%s), weights %s, with all else %s",
             (long long)options->rows, (long long)options->context, (long long)(pages * CACHE_PAGE_LEN), cache_text, weights_text,
             all_text);
    if (pages * CACHE_PAGE_LEN < options->rows * options->context)
        log_info("not all texts can have %lld tokens at once: the youngest waits where the cache is full", (long long)options->context);
}

/* Finds how many pages fit into memory. If no number was given and all places together need more, sets options->pages to that number. */
static Status find_pages(Serve *serve, DecoderOptions *options)
{
    InferModel *infer = serve->infer;
    Arena       arena = {0};
    Plan       *plan;
    int64_t     one = (options->context + CACHE_PAGE_LEN - 1) / CACHE_PAGE_LEN, least = one < options->pages ? options->pages : one;
    infer_want_decoding(infer, options);
    Status status = setup_plan(&arena, infer->model, &infer->options, infer->device, &plan);
    if (status != OK) {
        arena_deinit(&arena);
        return status;
    }
    int64_t all = setup_needed_bytes(plan), limit = plan->facts.memory_bytes / 100 * (is_cpu(infer) ? SHARE_HOST : SHARE_GPU);
    int64_t cache = plan->region_bytes[SPACE_DEVICE][REGION_CACHE], weights = plan->region_bytes[SPACE_DEVICE][REGION_WEIGHTS];
    int64_t pages = plan->cache_pages - 1, page_bytes = cache / plan->cache_pages, over = limit ? all - limit : 0;
    arena_deinit(&arena);
    if (over > 0 && !options->pages) {
        int64_t fewer = (over + page_bytes - 1) / page_bytes;
        FAIL_IF(
            pages - fewer < least, ERR_NO_FIT,
            "%lld texts at once of up to %lld tokens don't fit: %.2f GiB are too much by %.2f; take fewer --places, or a shorter --context",
            (long long)options->rows, (long long)options->context, (double)all / (1 << 30), (double)over / (1 << 30));
        pages -= fewer;
        all -= fewer * page_bytes;
        options->pages = pages;
    }
    FAIL_IF(pages < one, ERR_INVALID, "--pages %lld: one text of %lld tokens needs %lld; take more, or a shorter --context",
            (long long)pages, (long long)options->context, (long long)one);
    say_size(options, pages, page_bytes, weights, all);
    return OK;
}

/* ---- the probe ---- */

typedef struct Probe {
    int32_t ids[BEST];
    float   logprobs[BEST];
    int     count;
} Probe;

static bool probe_token(void *context, const DecodeToken *token)
{
    Probe *probe = context;
    memcpy(probe->ids, token->best_ids, (size_t)probe->count * sizeof *probe->ids);
    memcpy(probe->logprobs, token->best_logprobs, (size_t)probe->count * sizeof *probe->logprobs);
    return false;
}

static void probe_end(void *context, DecodeEnd end)
{
    (void)context;
    if (end == DECODE_FAILED) status_clear();
}

static Status run_probes(Serve *serve, Decoder *decoder, Probe *probes)
{
    int32_t ids[PROBE_IDS];
    int64_t vocab = serve->infer->model->vocab_size;
    int     count = serve->options.context < PROBE_IDS ? (int)serve->options.context : PROBE_IDS;
    for (int i = 0; i < count; i++) ids[i] = (int32_t)((i + 1) * 7919 % vocab);
    for (int i = 0; i <= serve->infer->num_row_adapters; i++) {
        probes[i].count = serve->best;
        DecodeRequest request = {.prompt = ids,
                                 .prompt_len = (size_t)count,
                                 .max_tokens = 1,
                                 .sample = {.top_p = 1, .repetition = 1},
                                 .context = &probes[i],
                                 .token = probe_token,
                                 .end = probe_end,
                                 .adapter = i};
        TRY(decoder_submit(decoder, &request, NULL));
    }
    while (decoder_is_busy(decoder)) TRY(decoder_step(decoder));
    return OK;
}

/* Warns of an adapter that changes nothing: usually it wasn't trained, or belongs to another model. */
static Status probe_adapters(Serve *serve, const DecoderOptions *options)
{
    InferModel *infer = serve->infer;
    Decoder    *decoder;
    if (!infer->num_row_adapters) return OK;
    TRY(infer_start_decoding(infer, options));
    TRY(decoder_create(infer->session, &decoder));
    Probe *probes = calloc_or_end((size_t)infer->num_row_adapters + 1, sizeof *probes);
    Status status = run_probes(serve, decoder, probes);
    for (int i = 1; status == OK && i <= infer->num_row_adapters; i++) {
        bool is_same = memcmp(probes[i].ids, probes[0].ids, sizeof probes->ids) == 0;
        for (int k = 0; k < serve->best; k++) is_same &= probes[i].logprobs[k] == probes[0].logprobs[k];
        if (is_same) log_warn("adapter %s changes nothing: its logits equal the model's", infer->row_adapters[i - 1].name);
    }
    free(probes);
    decoder_destroy(decoder);
    return status;
}

/* ---- running ---- */

static void post(void *context, void (*call)(void *), void *argument)
{
    Serve *serve = context;
    http_server_post(serve->http, call, argument);
}

Status serve_start(Serve *serve)
{
    const ServeOptions *o = &serve->options;
    DecoderOptions      options = {.rows = o->places,
                                   .context = o->context,
                                   .pages = o->pages,
                                   .best = serve->best,
                                   .penalties = true,
                                   .biases = BIASES,
                                   .guides = true};
    TRY(find_pages(serve, &options));
    say_factors(serve);
    TRY(probe_adapters(serve, &options));
    return engine_create(serve->infer, &options, &(EngineReceiver){serve, post, texts_take}, &serve->engine);
}

Status serve_run(Serve *serve)
{
    Status status = http_server_run(serve->http);
    FAIL_IF(status == OK && serve->failure.len, ERR_DEVICE, "the device failed while it served: %s", serve->failure.data);
    return status;
}
