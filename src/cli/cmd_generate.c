/* surogate generate MODEL_DIR --prompt TEXT: streams only the generated text to stdout; --prompts FILE --out FILE: texts of many prompts.
 */
#include "cli/ask.h"

#include "base/json.h"
#include "base/log.h"
#include "data/text_file.h"
#include "infer/chat.h"
#include "infer/generate_file.h"
#include "infer/row_adapters.h"
#include "train/signals.h"

#include <unistd.h>

enum { MAX_INPUT_BYTES = 1 << 28, NO_LOGPROBS = -1, NOT_GIVEN = INT32_MIN };

typedef struct GenerateArgs {
    const char *prompt, *prompt_file, *messages, *system;
    const char *prompts, *out; /* files, for many prompts */
    ModelArgs   model;
    SampleArgs  sampling;
    StrList     variables; /* "k=v" */
    StrList     adapters;  /* each "DIR" or "NAME=DIR" */
    int64_t     num, rows, pages, logprobs;
    bool        chat, json, skip_bad;
} GenerateArgs;

/* ---- one prompt ---- */

/* Encodes the prompt as a user's message, rendered with the folder's template. */
static Status encode_question(InferModel *infer, const GenerateArgs *g, Str question, TokenIds *ids)
{
    Template  *tmpl;
    ChatPrompt prompt = {.system = g->system, .question = question};
    TRY(cli_variables(&infer->arena, &g->variables, &prompt.variables));
    TRY(chat_template(infer, &tmpl));
    Status status = chat_encode(tmpl, infer->tokenizer, infer->scratch, &prompt, ids);
    template_destroy(tmpl);
    return status;
}

static Status encode_messages(InferModel *infer, const GenerateArgs *g, Str text, TokenIds *ids)
{
    Template    *tmpl;
    JsonValue   *value = arena_new(&infer->arena, JsonValue);
    ChatMessages chat;
    TRY(json_parse(&infer->arena, g->messages, text.data, text.len, value));
    Status status = chat_check(value, &chat);
    if (status != OK) return status_prefix(status, "%s", g->messages);
    TRY(cli_variables(&infer->arena, &g->variables, &chat.variables));
    TRY(chat_template(infer, &tmpl));
    status = chat_encode_messages(tmpl, infer->tokenizer, infer->scratch, &chat, ids);
    template_destroy(tmpl);
    return status;
}

static Status encode(InferModel *infer, const GenerateArgs *g, TokenIds *ids)
{
    const char *path = g->messages ? g->messages : g->prompt_file;
    Str         text = str_of(g->prompt ? g->prompt : "");
    if (path) TRY(file_read_stream(&infer->arena, cli_input_path(path), MAX_INPUT_BYTES, &text));
    if (g->messages)
        TRY(encode_messages(infer, g, text, ids));
    else if (g->chat)
        TRY(encode_question(infer, g, text, ids));
    else
        TRY(infer_encode(infer, text.data, text.len, true, ids));
    TRY(infer_check_ids(infer, ids, 0));
    FAIL_IF(ids->len == 0, ERR_INVALID, "the prompt is empty and the tokenizer adds no BOS: give a --prompt to go on from");
    FAIL_IF((int64_t)ids->len > infer->model->max_positions, ERR_INVALID,
            "the prompt has %zu tokens, the model was made for %lld; shorten it", ids->len, (long long)infer->model->max_positions);
    return OK;
}

static Status start(InferModel *infer, const GenerateArgs *g, size_t prompt_len)
{
    int64_t        len = (int64_t)prompt_len, most = infer->model->max_positions, wanted = g->sampling.max_tokens;
    DecoderOptions options = answer_decoder(&g->sampling.sample, (int)g->logprobs, 1, wanted < most - len ? len + wanted : most);
    options.prompt = len;
    infer_want_decoding(infer, &options);
    return infer_start(infer);
}

static Status print_end(const GenerateArgs *g, const Answer *answer, DecodeEnd end)
{
    StrBuf out = {0};
    if (g->json) {
        strbuf_puts(&out, "{\"text\": ");
        json_write_string(&out, strbuf_cstr(&answer->text), answer->text.len);
        strbuf_printf(&out, ", \"tokens\": %zu, \"stop_reason\": \"%s\"", answer->ids.len, answer_reason(answer, end));
        if (answer->top >= 0) {
            strbuf_puts(&out, ", \"logprobs\": ");
            answer_write_logprobs(answer, &out);
        }
        strbuf_puts(&out, "}\n");
    } else if (isatty(STDOUT_FILENO)) {
        strbuf_putc(&out, '\n');
    }
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

static Status generate_text(InferModel *infer, const GenerateArgs *g, const TokenIds *ids)
{
    Decoder      *decoder;
    Answer        answer;
    DecodeEnd     end;
    AskStream     stream = {.prints = !g->json};
    DecodeRequest request = {.prompt = ids->data,
                             .prompt_len = ids->len,
                             .max_tokens = g->sampling.max_tokens,
                             .sample = g->sampling.sample,
                             .stops = infer->eos,
                             .num_stops = g->sampling.ignore_eos ? 0 : infer->num_eos};
    TRY(start(infer, g, ids->len));
    TRY(decoder_create(infer->session, &decoder));
    answer_init(&answer, infer->tokenizer, &g->sampling.stops, (int)g->logprobs, ids->data, ids->len);
    Status status = ask_generate(decoder, &request, &stream, &answer, &end);
    if (status == OK) status = print_end(g, &answer, end);
    if (status == OK && end == DECODE_AT_CONTEXT) log_warn("stopped after %zu tokens: the model's context is full", answer.ids.len);
    answer_deinit(&answer);
    decoder_destroy(decoder);
    return status;
}

static Status generate_one(InferModel *infer, const GenerateArgs *g)
{
    TokenIds ids = {0};
    Status   status = encode(infer, g, &ids);
    if (status == OK) status = generate_text(infer, g, &ids);
    token_ids_deinit(&ids);
    return status;
}

/* ---- a file of prompts ---- */

static bool is_stopped(void *context)
{
    return signals_pending(*(int64_t *)context) != 0;
}

static Status generate_prompts(InferModel *infer, const GenerateArgs *g, const PromptFile *prompts)
{
    int64_t         begun = signals_begin();
    GenerateFileJob job = {.out = g->out,
                           .rows = {.num = g->num,
                                    .max_tokens = g->sampling.max_tokens,
                                    .rows = g->rows,
                                    .pages = g->pages,
                                    .sample = g->sampling.sample,
                                    .stops = &g->sampling.stops,
                                    .ignore_eos = g->sampling.ignore_eos,
                                    .skip_bad = g->skip_bad,
                                    .logprobs = (int)g->logprobs},
                           .format = cli_model_format(&g->model),
                           .recipe = g->model.recipe,
                           .context = &begun,
                           .is_stopped = is_stopped};
    signals_set_resumable(true);
    Status status = generate_file(infer, prompts, &job);
    signals_set_resumable(false);
    return status;
}

static Status generate_many(InferModel *infer, const GenerateArgs *g)
{
    TextFile      file;
    PromptFile    prompts;
    PromptOptions options = {.ask = g->chat, .system = g->system, .skip_bad = g->skip_bad};
    TRY(cli_variables(&infer->arena, &g->variables, &options.variables));
    TRY(text_file_open_rows(cli_input_path(g->prompts), &file));
    Status status = prompt_file_read(infer, g->prompts, file.text, &options, &prompts);
    text_file_close(&file);
    if (status == OK) status = generate_prompts(infer, g, &prompts);
    prompt_file_deinit(&prompts);
    return status;
}

/* ---- adapters ---- */

/* Finds the '=' after a name; NULL: `adapter` is only a folder, whose path may contain '='. */
static const char *name_end(const char *adapter)
{
    const char *equals = strchr(adapter, '=');
    bool        is_dir = false;
    if (!equals || equals == adapter || memchr(adapter, '/', (size_t)(equals - adapter))) return NULL;
    if (file_is_dir(adapter, &is_dir) != OK) status_clear();
    return is_dir ? NULL : equals;
}

/* A single folder without a name is used for all texts. Rows choose among adapters with names. */
static Status check_adapters(GenerateArgs *g)
{
    size_t named = 0;
    for (size_t i = 0; i < g->adapters.count; i++) named += name_end(g->adapters.items[i]) != NULL;
    FAIL_IF(named < g->adapters.count && g->adapters.count > 1, ERR_INVALID,
            "surogate generate: several adapters need names, which rows of --prompts choose by: --adapter NAME=DIR");
    FAIL_IF(named && !g->prompts, ERR_INVALID,
            "surogate generate: --adapter %s: rows of --prompts choose an adapter by its name; give the folder alone for one text",
            g->adapters.items[0]);
    if (g->adapters.count && !named) g->model.adapter = g->adapters.items[0];
    return OK;
}

static Status use_adapters(InferModel *infer, const GenerateArgs *g)
{
    AdapterName *names = arena_array(&infer->arena, AdapterName, g->adapters.count + 1);
    if (!g->adapters.count || g->model.adapter) return OK;
    for (size_t i = 0; i < g->adapters.count; i++) {
        const char *end = name_end(g->adapters.items[i]);
        names[i] = (AdapterName){arena_printf(&infer->arena, "%.*s", (int)(end - g->adapters.items[i]), g->adapters.items[i]), end + 1};
    }
    return infer_use_adapters(infer, names, (int)g->adapters.count);
}

/* ---- the command ---- */

static Status check_one(const GenerateArgs *g)
{
    FAIL_IF((g->prompt != NULL) + (g->prompt_file != NULL) + (g->messages != NULL) > 1, ERR_INVALID,
            "surogate generate: --prompt, --prompt-file and --messages exclude each other");
    FAIL_IF(g->messages && g->chat, ERR_INVALID, "surogate generate: --messages is laid out by the template anyway; leave out --chat");
    FAIL_IF(g->chat && !g->prompt && !g->prompt_file, ERR_INVALID,
            "surogate generate: --chat needs a question: --prompt TEXT or --prompt-file FILE (-: from standard input)");
    FAIL_IF(g->variables.count && !g->chat && !g->messages, ERR_INVALID, "surogate generate: --system and --var need --chat");
    FAIL_IF(g->logprobs >= 0 && !g->json, ERR_INVALID, "surogate generate: --logprobs needs --json, or --prompts and --out");
    FAIL_IF(g->out || g->num != 1 || g->rows || g->pages || g->skip_bad, ERR_INVALID,
            "surogate generate: --out, --n, --rows, --pages and --skip-bad need --prompts FILE");
    return OK;
}

static Status check_many(const GenerateArgs *g)
{
    FAIL_IF(g->prompt || g->prompt_file || g->messages, ERR_INVALID,
            "surogate generate: --prompts, and --prompt, --prompt-file or --messages, exclude each other");
    FAIL_IF(!g->out, ERR_INVALID, "surogate generate: --prompts needs --out FILE");
    FAIL_IF(g->json, ERR_INVALID, "surogate generate: --out is written as JSON anyway; leave out --json");
    FAIL_IF(g->num < 1 || g->num > INT32_MAX, ERR_INVALID, "--n %lld: expected at least 1", (long long)g->num);
    FAIL_IF(g->rows < 0 || g->rows > 4096, ERR_INVALID, "--rows %lld: expected 1 to 4096, or 0", (long long)g->rows);
    FAIL_IF(g->pages < 0, ERR_INVALID, "--pages %lld: expected at least 1, or 0", (long long)g->pages);
    return OK;
}

static Status check(CliArgs *args, GenerateArgs *g)
{
    TRY(cli_want_words(args, 1));
    FAIL_IF(g->logprobs != NOT_GIVEN && (g->logprobs < 0 || g->logprobs > ANSWER_MOST_TOP), ERR_INVALID,
            "--logprobs %lld: expected 0 to %d", (long long)g->logprobs, ANSWER_MOST_TOP);
    if (g->logprobs == NOT_GIVEN) g->logprobs = NO_LOGPROBS;
    FAIL_IF(g->system && !g->chat, ERR_INVALID, "surogate generate: --system and --var need --chat");
    TRY(g->prompts ? check_many(g) : check_one(g));
    TRY(check_adapters(g));
    return ask_check(args, &g->sampling);
}

Status cmd_generate(CliArgs *args)
{
    GenerateArgs g = {.model = MODEL_DEFAULTS, .sampling = SAMPLE_DEFAULTS(128), .num = 1, .logprobs = NOT_GIVEN};
    bool         done;
    const Flag   flags[] = {
          {"--prompt", FLAG_TEXT, &g.prompt, "TEXT", "the text to continue (it isn't printed)"},
          {"--prompt-file", FLAG_TEXT, &g.prompt_file, "FILE", "read the prompt from a file; -: from standard input"},
          {"--messages", FLAG_TEXT, &g.messages, "FILE",
           "answer a conversation: JSON list of messages (role, content), or an object with messages and tools; -: from standard input"},
          {"--chat", FLAG_SWITCH, &g.chat, NULL, "ask the prompt as a question, through the folder's chat template"},
          {"--system", FLAG_TEXT, &g.system, "TEXT", "with --chat: the system message before the question"},
          {"--var", FLAG_LIST, &g.variables, "NAME=VALUE",
           "with --chat or messages: a variable of the template, as JSON or text; may be given several times"},
          {"--prompts", FLAG_TEXT, &g.prompts, "FILE",
           "many prompts, a line of JSON each: {\"prompt\"}, {\"messages\"} or {\"ids\"}, and perhaps \"id\", \"adapter\" and \"max_tokens\"; -: from standard input"},
          {"--out", FLAG_TEXT, &g.out, "FILE",
           "with --prompts: a line of JSON a sample: index, sample, id, text, ids, stop_reason; the same command resumes an unfinished file"},
          {"--n", FLAG_INT, &g.num, "N", "with --prompts: samples of each prompt (1)"},
          {"--rows", FLAG_INT, &g.rows, "N", "with --prompts: texts that are made at once; 0: 16 on a CPU, 64 on a GPU (0)"},
          {"--pages", FLAG_INT, &g.pages, "N", "with --prompts: pages of the cache for all of them; 0: as many as they may need (0)"},
          {"--skip-bad", FLAG_SWITCH, &g.skip_bad, NULL, "with --prompts: a bad line gets {\"index\", \"error\"}, and the others are done"},
          {"--json", FLAG_SWITCH, &g.json, NULL, "{\"text\", \"tokens\": how many, \"stop_reason\": eos, stop, length or context}"},
          {"--logprobs", FLAG_INT, &g.logprobs, "N",
           "with --json or --out: \"logprobs\", of each token {\"id\", \"logprob\", \"top\": the N likeliest}; 0 to 20"},
          SAMPLE_FLAGS(&g.sampling, "128"),
          {"--adapter", FLAG_LIST, &g.adapters, "DIR",
           "a LoRA adapter over the model; with --prompts NAME=DIR, several times: rows choose one by \"adapter\": NAME"},
          MODEL_FLAGS_BUT_ADAPTER(&g.model),
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(check(args, &g));
    InferModel infer;
    Status     status = ask_open(&infer, args->words[0], &g.model, &g.sampling);
    if (status == OK) status = use_adapters(&infer, &g);
    if (status == OK) status = g.prompts ? generate_many(&infer, &g) : generate_one(&infer, &g);
    infer_close(&infer);
    return status;
}
