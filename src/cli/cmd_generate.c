/* surogate generate MODEL_DIR --prompt TEXT: the generated text alone on stdout, as it comes. */
#include "cli/cli.h"

#include "base/log.h"
#include "infer/chat.h"
#include "infer/generate.h"
#include "infer/infer_model.h"
#include "train/signals.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct GenerateArgs {
    const char   *prompt, *prompt_file, *adapter, *device;
    int64_t       max_tokens, threads, seed;
    SampleOptions sample;
    bool          ignore_eos, chat;
} GenerateArgs;

/* Writes what a token completes. */
typedef struct Printer {
    const Tokenizer *tokenizer;
    TokenStream      stream;
    StrBuf           text;
    Status           status;
} Printer;

static bool print_token(void *context, int32_t id)
{
    Printer *p = context;
    strbuf_clear(&p->text);
    p->status = token_stream_push(p->tokenizer, &p->stream, id, true, &p->text);
    if (p->status == OK) p->status = cli_print(&p->text);
    return p->status == OK;
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
    int64_t want = (int64_t)prompt_len + g->max_tokens;
    if (want > infer->model->max_positions) want = infer->model->max_positions;
    infer->options.programs = 1u << PROGRAM_PREFILL | 1u << PROGRAM_DECODE;
    infer->options.cache_batch = 1;
    infer->options.cache_len = want;
    infer->options.prefill_chunk = (int64_t)prompt_len < 128 ? (int64_t)prompt_len : 128;
    if (infer->options.prefill_chunk > want) infer->options.prefill_chunk = want;
    return infer_start(infer);
}

static Status generate_text(InferModel *infer, const GenerateArgs *g, const TokenIds *ids)
{
    GenerateStats stats;
    FAIL_IF(ids->len == 0, ERR_INVALID, "the prompt is empty and the tokenizer has no BOS: give a --prompt to go on from");
    FAIL_IF((int64_t)ids->len > infer->model->max_positions, ERR_INVALID, "the prompt has %zu tokens, the model was made for %lld; shorten it",
            ids->len, (long long)infer->model->max_positions);
    TRY(start(infer, g, ids->len));
    Printer     printer = { .tokenizer = infer->tokenizer, .stream.started = has_text(infer, ids) };
    GenerateJob job = { .prompt = ids->data, .prompt_len = ids->len, .max_tokens = g->max_tokens, .sample = g->sample,
                        .vocab_size = infer->tokenizer ? tokenizer_vocab_size(infer->tokenizer) : 0, .eos = infer->eos, .num_eos = g->ignore_eos ? 0 : infer->num_eos, .sink = print_token, .context = &printer };
    Status      status = generate(infer->session, &job, &stats);
    strbuf_clear(&printer.text);
    token_stream_finish(&printer.stream, &printer.text);
    if (isatty(STDOUT_FILENO)) strbuf_putc(&printer.text, '\n');
    if (status == OK) status = printer.status;
    if (status == OK) status = cli_print(&printer.text);
    strbuf_deinit(&printer.text);
    if (status == OK && stats.context_full) log_warn("stopped after %lld tokens: the model's context is full", (long long)stats.generated);
    return status;
}

/* The prompt as a user's message, laid out by the folder's template. */
static Status encode_question(InferModel *infer, Str question, TokenIds *ids)
{
    Template *tmpl;
    FAIL_IF(!infer->tokenizer, ERR_NOT_FOUND, "%s has no tokenizer.json", infer->tokenizer_dir);
    TRY(template_load(infer->tokenizer_dir, NULL, false, &tmpl));
    FAIL_IF(!tmpl, ERR_NOT_FOUND, "--chat: %s has no chat template (chat_template.jinja)", infer->tokenizer_dir);
    Status status = chat_encode(tmpl, infer->tokenizer, infer->scratch, question, ids);
    template_destroy(tmpl);
    return status;
}

static Status run(CliArgs *args, const GenerateArgs *g)
{
    InferModel infer;
    TokenIds   ids = { 0 };
    Str        prompt = str_of(g->prompt ? g->prompt : "");
    if (g->prompt_file) TRY(file_read(&args->arena, g->prompt_file, 1 << 28, &prompt));
    Status status = infer_open(&infer, args->words[0], g->adapter, g->device, (int)g->threads);
    if (status == OK) status = g->chat ? encode_question(&infer, prompt, &ids) : infer_encode(&infer, prompt.data, prompt.len, &ids);
    if (status == OK) status = generate_text(&infer, g, &ids);
    token_ids_deinit(&ids);
    infer_close(&infer);
    return status;
}

Status cmd_generate(CliArgs *args)
{
    GenerateArgs g = { .device = "auto", .max_tokens = 128, .sample = { .temperature = 0.8, .top_p = 1 } };
    bool         done;
    const Flag   flags[] = {
          { "--prompt", FLAG_TEXT, &g.prompt, "TEXT", "what the text starts with (it isn't printed again)" },
          { "--prompt-file", FLAG_TEXT, &g.prompt_file, "FILE", "the same from a file" },
          { "--chat", FLAG_SWITCH, &g.chat, NULL, "the prompt is a question, laid out by the folder's chat template" },
          { "--max-tokens", FLAG_INT, &g.max_tokens, "N", "most tokens to generate (128)" },
          { "--temperature", FLAG_FLOAT, &g.sample.temperature, "T", "0: always the likeliest token (0.8)" },
          { "--top-k", FLAG_INT, &g.sample.top_k, "N", "choose among the N likeliest; 0: all (0)" },
          { "--top-p", FLAG_FLOAT, &g.sample.top_p, "P", "choose among the likeliest that have P of the probability (1)" },
          { "--seed", FLAG_INT, &g.seed, "N", "of the random choices (0)" },
          { "--adapter", FLAG_TEXT, &g.adapter, "DIR", "a LoRA adapter over the model" },
          { "--ignore-eos", FLAG_SWITCH, &g.ignore_eos, NULL, "go on after an end-of-text token" },
          { "--device", FLAG_TEXT, &g.device, "NAME", "auto, cpu or cuda (auto)" },
          { "--threads", FLAG_INT, &g.threads, "N", "CPU threads; 0: all (0)" },
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(g.prompt && g.prompt_file, ERR_INVALID, "surogate generate: --prompt and --prompt-file exclude each other");
    FAIL_IF(g.max_tokens < 1, ERR_INVALID, "--max-tokens %lld: expected at least 1", (long long)g.max_tokens);
    FAIL_IF(!(g.sample.temperature >= 0), ERR_INVALID, "--temperature %g: expected at least 0", g.sample.temperature);
    FAIL_IF(!(g.sample.top_p > 0 && g.sample.top_p <= 1), ERR_INVALID, "--top-p %g: expected 0 < p <= 1", g.sample.top_p);
    g.sample.seed = (uint64_t)g.seed;
    return run(args, &g);
}
