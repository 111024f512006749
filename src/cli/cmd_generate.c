/* surogate generate MODEL_DIR --prompt TEXT: the generated text alone on stdout, as it comes. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/log.h"
#include "infer/chat.h"
#include "infer/generate.h"
#include "infer/infer_model.h"
#include "train/signals.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct GenerateArgs {
    const char   *prompt, *prompt_file, *system, *adapter, *qlora, *recipe, *device;
    int64_t       max_tokens, threads, seed;
    SampleOptions sample;
    StrList       stops, variables; /* variables: "k=v" */
    bool          ignore_eos, chat, json;
} GenerateArgs;

/* Writes what a token completes, but what may be the beginning of a stop text: that waits. */
typedef struct Printer {
    const GenerateArgs *args;
    const Tokenizer    *tokenizer;
    TokenStream         stream;
    StrBuf              text;        /* all of it */
    size_t              settled;     /* bytes of text: printed, unless it is JSON */
    bool                has_stopped; /* at a stop text; text ends before it */
    Status              status;
} Printer;

/* Bytes of the text that are there to stay; a stop text ends it. */
static size_t settle(Printer *p)
{
    const char *data = strbuf_cstr(&p->text);
    size_t      keep = p->text.len;
    for (size_t i = 0; i < p->args->stops.count; i++) {
        const char *stop = p->args->stops.items[i], *found = memmem(data + p->settled, p->text.len - p->settled, stop, strlen(stop));
        if (!found) continue;
        p->text.len = (size_t)(found - data);
        p->has_stopped = true;
    }
    if (p->has_stopped) return p->text.len;
    for (size_t i = 0; i < p->args->stops.count; i++)
        for (size_t at = p->settled; at < keep; at++)
            if (strncmp(p->args->stops.items[i], data + at, p->text.len - at) == 0) keep = at;
    return keep;
}

/* Prints up to there; nothing yet where the result is one object at the end. */
static void print_to(Printer *p, size_t end)
{
    StrBuf part = {0};
    if (p->status != OK || end <= p->settled) return;
    strbuf_append(&part, p->text.data + p->settled, end - p->settled);
    if (!p->args->json) p->status = cli_print(&part);
    p->settled = end;
    strbuf_deinit(&part);
}

/* A special token never becomes text. */
static bool is_stop_token(const Printer *p, int32_t id)
{
    bool found = false;
    for (size_t i = 0; i < p->args->stops.count && tokenizer_is_special(p->tokenizer, id); i++)
        found |= strcmp(p->args->stops.items[i], tokenizer_id_to_token(p->tokenizer, id)) == 0;
    return found;
}

static bool print_token(void *context, int32_t id)
{
    Printer *p = context;
    p->has_stopped = is_stop_token(p, id);
    if (p->has_stopped) return false;
    p->status = token_stream_push(p->tokenizer, &p->stream, id, true, &p->text);
    if (p->status == OK) print_to(p, settle(p));
    return p->status == OK && !p->has_stopped;
}

static void print_end(Printer *p, const GenerateStats *stats)
{
    StrBuf out = {0};
    if (!p->has_stopped) token_stream_finish(&p->stream, &p->text);
    settle(p);
    print_to(p, p->text.len);
    if (p->args->json) {
        const char *reason = p->has_stopped ? "stop" : stats->stopped ? "eos" : stats->context_full ? "context" : "length";
        strbuf_puts(&out, "{\"text\": ");
        json_write_string(&out, strbuf_cstr(&p->text), p->text.len);
        strbuf_printf(&out, ", \"tokens\": %lld, \"stop_reason\": \"%s\"}\n", (long long)stats->generated, reason);
    } else if (isatty(STDOUT_FILENO)) {
        strbuf_putc(&out, '\n');
    }
    if (p->status == OK) p->status = cli_print(&out);
    strbuf_deinit(&out);
}

/* Whether the prompt ends in text, so that a leading space of what follows belongs there. */
static bool has_text(const InferModel *infer, const TokenIds *ids)
{
    for (size_t i = 0; i < ids->len; i++)
        if (!tokenizer_is_special(infer->tokenizer, ids->data[i])) return true;
    return false;
}

static Status start(InferModel *infer, const GenerateArgs *g, size_t prompt_len)
{
    int64_t len = (int64_t)prompt_len, most = infer->model->max_positions;
    infer_want_generation(infer, len, g->max_tokens < most - len ? len + g->max_tokens : most);
    return infer_start(infer);
}

static Status generate_text(InferModel *infer, const GenerateArgs *g, const TokenIds *ids)
{
    GenerateStats stats;
    FAIL_IF(ids->len == 0, ERR_INVALID, "the prompt is empty and the tokenizer adds no BOS: give a --prompt to go on from");
    FAIL_IF((int64_t)ids->len > infer->model->max_positions, ERR_INVALID,
            "the prompt has %zu tokens, the model was made for %lld; shorten it", ids->len, (long long)infer->model->max_positions);
    TRY(start(infer, g, ids->len));
    Printer     printer = {.args = g, .tokenizer = infer->tokenizer, .stream.started = has_text(infer, ids)};
    GenerateJob job = {.prompt = ids->data,
                       .prompt_len = ids->len,
                       .max_tokens = g->max_tokens,
                       .sample = g->sample,
                       .vocab_size = infer->tokenizer ? tokenizer_vocab_size(infer->tokenizer) : 0,
                       .eos = infer->eos,
                       .num_eos = g->ignore_eos ? 0 : infer->num_eos,
                       .sink = print_token,
                       .context = &printer};
    Status      status = generate(infer->session, &job, &stats);
    if (status == OK && printer.status == OK) print_end(&printer, &stats);
    if (status == OK) status = printer.status;
    strbuf_deinit(&printer.text);
    if (status == OK && stats.context_full) log_warn("stopped after %lld tokens: the model's context is full", (long long)stats.generated);
    return status;
}

/* The prompt as a user's message, laid out by the folder's template. */
static Status encode_question(InferModel *infer, const GenerateArgs *g, Str question, TokenIds *ids)
{
    Template  *tmpl;
    ChatPrompt prompt = {.system = g->system, .question = question};
    TRY(cli_variables(&infer->arena, &g->variables, &prompt.variables));
    FAIL_IF(!infer->tokenizer, ERR_NOT_FOUND, "%s has no tokenizer.json", infer->tokenizer_dir);
    TRY(template_load(infer->tokenizer_dir, NULL, false, &tmpl));
    FAIL_IF(!tmpl, ERR_NOT_FOUND, "--chat: %s has no chat template (chat_template.jinja)", infer->tokenizer_dir);
    Status status = chat_encode(tmpl, infer->tokenizer, infer->scratch, &prompt, ids);
    template_destroy(tmpl);
    return status;
}

static Status run(CliArgs *args, const GenerateArgs *g)
{
    InferModel infer;
    TokenIds   ids = {0};
    Str        prompt = str_of(g->prompt ? g->prompt : "");
    if (g->prompt_file) TRY(file_read_stream(&args->arena, cli_input_path(g->prompt_file), 1 << 28, &prompt));
    Status status = infer_open(&infer, args->words[0], g->adapter, g->device, (int)g->threads);
    if (status == OK) status = infer_use_format(&infer, g->qlora);
    if (status == OK) status = infer_use_recipe(&infer, g->recipe);
    if (status == OK)
        status = g->chat ? encode_question(&infer, g, prompt, &ids) : infer_encode(&infer, prompt.data, prompt.len, true, &ids);
    if (status == OK) status = generate_text(&infer, g, &ids);
    token_ids_deinit(&ids);
    infer_close(&infer);
    return status;
}

Status cmd_generate(CliArgs *args)
{
    GenerateArgs g = {.device = "auto", .max_tokens = 128, .sample = {.temperature = 0.8, .top_p = 1}};
    bool         done;
    const Flag   flags[] = {
          {"--prompt", FLAG_TEXT, &g.prompt, "TEXT", "the text to continue (it isn't printed)"},
          {"--prompt-file", FLAG_TEXT, &g.prompt_file, "FILE", "read the prompt from a file; -: from standard input"},
          {"--chat", FLAG_SWITCH, &g.chat, NULL, "ask the prompt as a question, through the folder's chat template"},
          {"--system", FLAG_TEXT, &g.system, "TEXT", "with --chat: the system message before the question"},
          {"--var", FLAG_LIST, &g.variables, "NAME=VALUE",
           "with --chat: a variable of the template, as JSON or text; may be given several times"},
          {"--stop", FLAG_LIST, &g.stops, "TEXT", "stop when the model writes this (it isn't printed); may be given several times"},
          {"--json", FLAG_SWITCH, &g.json, NULL, "{\"text\", \"tokens\": how many, \"stop_reason\": eos, stop, length or context}"},
          {"--max-tokens", FLAG_INT, &g.max_tokens, "N", "most tokens to generate (128)"},
          {"--temperature", FLAG_FLOAT, &g.sample.temperature, "T", "0: always the likeliest token (0.8)"},
          {"--top-k", FLAG_INT, &g.sample.top_k, "N", "choose among the N likeliest tokens; 0: all (0)"},
          {"--top-p", FLAG_FLOAT, &g.sample.top_p, "P", "choose among the likeliest tokens that together have probability P (1)"},
          {"--seed", FLAG_INT, &g.seed, "N", "of the random choices (0)"},
          {"--adapter", FLAG_TEXT, &g.adapter, "DIR", "a LoRA adapter over the model"},
          {"--qlora", FLAG_TEXT, &g.qlora, "FORMAT",
           "quantise the model's matrices: nf4, nf4_once, fp8, nvfp4 or none (as the adapter was trained)"},
          {"--recipe", FLAG_TEXT, &g.recipe, "NAME",
           "products in blocks as in training: bf16, fp8-hybrid or nvfp4 (bf16: in the model's dtype)"},
          {"--ignore-eos", FLAG_SWITCH, &g.ignore_eos, NULL, "go on after an end-of-text token"},
          {"--device", FLAG_TEXT, &g.device, "NAME", "auto, cpu or cuda (auto)"},
          {"--threads", FLAG_INT, &g.threads, "N", "CPU threads; 0: all (0)"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(g.prompt && g.prompt_file, ERR_INVALID, "surogate generate: --prompt and --prompt-file exclude each other");
    FAIL_IF(g.chat && !g.prompt && !g.prompt_file, ERR_INVALID,
            "surogate generate: --chat needs a question: --prompt TEXT or --prompt-file FILE (-: from standard input)");
    FAIL_IF((g.system || g.variables.count) && !g.chat, ERR_INVALID, "surogate generate: --system and --var need --chat");
    for (size_t i = 0; i < g.stops.count; i++) FAIL_IF(!g.stops.items[i][0], ERR_INVALID, "--stop \"\": expected a text");
    TRY(cli_check_threads(g.threads));
    FAIL_IF(g.max_tokens < 1, ERR_INVALID, "--max-tokens %lld: expected at least 1", (long long)g.max_tokens);
    FAIL_IF(!(g.sample.temperature >= 0), ERR_INVALID, "--temperature %g: expected at least 0", g.sample.temperature);
    FAIL_IF(!(g.sample.top_p > 0 && g.sample.top_p <= 1), ERR_INVALID, "--top-p %g: expected 0 < p <= 1", g.sample.top_p);
    FAIL_IF(g.sample.top_k < 0, ERR_INVALID, "--top-k %lld: expected at least 0", (long long)g.sample.top_k);
    g.sample.seed = (uint64_t)g.seed;
    return run(args, &g);
}
