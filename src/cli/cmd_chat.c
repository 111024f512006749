/* surogate chat MODEL_DIR: a conversation with a model; each line of the user is a turn. On a terminal Ctrl+C ends an answer, and Ctrl+D
 * the program. From a pipe only the answers are printed, and the first error ends the program. */
#include "cli/ask.h"

#include "base/log.h"
#include "base/str.h"
#include "infer/chat.h"
#include "infer/chat_session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_CONTEXT = 8192,
    MOST_TYPED = 4095, /* most bytes of a line on a terminal: Linux drops the rest */
};
#define NO_UTF8 '\xFF' /* replaces NUL in a line: like any byte that isn't UTF-8, the model reads it as U+FFFD */

typedef struct ChatArgs {
    const char *system;
    ModelArgs   model;
    SampleArgs  sampling;
    StrList     variables;
    int64_t     context;
    bool        drops_oldest;
} ChatArgs;

typedef struct Chat {
    const ChatArgs  *args;
    InferModel      *infer;
    Template        *tmpl;
    const JsonValue *variables;
    Decoder         *decoder;
    ChatSession     *session;
    int64_t          context;
    bool             is_terminal; /* standard input is a terminal */
} Chat;

/* ---- the terminal ---- */

/* Set by Ctrl+C; static, because a process has one terminal. Any thread may get the signal at any time. The pipe also ends a wait that
 * begins after the signal. */
static volatile sig_atomic_t is_interrupted;
static int                   interrupts[2] = {-1, -1};

static void note_interrupt(int signo)
{
    (void)signo;
    int     error = errno;
    ssize_t ignored = write(interrupts[1], "", 1);
    (void)ignored;
    is_interrupted = 1;
    errno = error;
}

static Status catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = note_interrupt, .sa_flags = SA_RESTART};
    if (pipe2(interrupts, O_NONBLOCK | O_CLOEXEC) != 0) return file_fail("make", "a pipe");
    sigaction(SIGINT, &action, NULL);
    return OK;
}

static void forget_interrupts(void)
{
    char bytes[64];
    while (read(interrupts[0], bytes, sizeof bytes) > 0) {
    }
    is_interrupted = 0;
}

/* Reads lines of standard input. */
typedef struct Lines {
    StrBuf bytes;
    size_t begin; /* where the next line begins */
    bool   at_end;
} Lines;

typedef enum LineKind { LINE_IS_THERE, LINE_INTERRUPTED, LINE_END } LineKind;

/* Waits for input, or for Ctrl+C. */
static Status read_more(Lines *lines)
{
    char          buffer[4096];
    struct pollfd in[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = interrupts[0], .events = POLLIN}};
    ssize_t       count = -1;
    errno = EINTR;
    if (poll(in, 2, -1) > 0 && !in[1].revents) count = read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno != EINTR) return file_fail("read", "standard input");
    lines->at_end = count == 0;
    if (lines->begin) {
        lines->bytes.len -= lines->begin;
        memmove(lines->bytes.data, lines->bytes.data + lines->begin, lines->bytes.len + 1);
        lines->begin = 0;
    }
    if (count > 0) strbuf_append(&lines->bytes, buffer, (size_t)count);
    return OK;
}

/* Gets the next line without its line break, "\n" or "\r\n"; it is valid until the next call. Warns of a line that may be incomplete. */
static Status next_line(Lines *lines, bool is_terminal, LineKind *out_kind, char **out_line)
{
    while (!lines->at_end && !memchr(strbuf_cstr(&lines->bytes) + lines->begin, '\n', lines->bytes.len - lines->begin)) {
        TRY(read_more(lines));
        *out_kind = LINE_INTERRUPTED;
        if (is_interrupted) return OK;
    }
    *out_kind = LINE_END;
    if (lines->begin >= lines->bytes.len) return OK;
    char  *line = lines->bytes.data + lines->begin, *newline = memchr(line, '\n', lines->bytes.len - lines->begin);
    size_t len = newline ? (size_t)(newline - line) : lines->bytes.len - lines->begin;
    lines->begin += len + (newline != NULL);
    if (len && line[len - 1] == '\r') len--;
    if (is_terminal && len >= MOST_TYPED)
        log_warn("a terminal passes on %d bytes of a line at most: what comes after them is lost. Ask longer questions from a pipe or with "
                 "generate --messages",
                 MOST_TYPED);
    line[len] = 0;
    for (size_t i = 0; i < len; i++) line[i] = line[i] ? line[i] : NO_UTF8;
    *out_kind = LINE_IS_THERE;
    *out_line = line;
    return OK;
}

static Status print_text(const Chat *c, const char *text)
{
    StrBuf out = {0};
    if (!c->is_terminal) return OK;
    strbuf_puts(&out, text);
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

/* ---- a turn ---- */

static Status encode(const Chat *c, TokenIds *ids)
{
    ChatMessages chat = {.messages = chat_session_messages(c->session), .variables = c->variables};
    ids->len = 0;
    TRY(chat_encode_messages(c->tmpl, c->infer->tokenizer, c->infer->scratch, &chat, ids));
    return infer_check_ids(c->infer, ids, 0);
}

/* The most tokens of a prompt that leave room for an answer. */
static int64_t most_prompt(const Chat *c)
{
    int64_t half = c->context / 2, wanted = c->args->sampling.max_tokens;
    return c->context - (wanted < half ? wanted : half);
}

/* Encodes the conversation. With --drop-oldest, turns that don't fit are dropped. */
static Status encode_fitting(const Chat *c, TokenIds *ids)
{
    size_t dropped = 0;
    TRY(encode(c, ids));
    while (c->args->drops_oldest && (int64_t)ids->len > most_prompt(c) && chat_session_drop_oldest(c->session)) {
        dropped++;
        TRY(encode(c, ids));
    }
    bool can_grow = c->context < c->infer->model->max_positions;
    FAIL_IF((int64_t)ids->len >= c->context && c->args->drops_oldest, ERR_INVALID,
            "even without the earlier turns there are %zu tokens, and the context has %lld: this question is left out, and no turn is "
            "forgotten. Ask a shorter one%s",
            ids->len, (long long)c->context, can_grow ? ", or start with a larger --context" : "");
    FAIL_IF(
        (int64_t)ids->len >= c->context, ERR_INVALID,
        "the conversation has %zu tokens, and the context %lld: this question is left out. Ask a shorter one, begin anew with /clear, or "
        "start with --drop-oldest%s",
        ids->len, (long long)c->context, can_grow ? " or a larger --context" : "");
    if (dropped) log_info("the context is full: the oldest %zu turn%s forgotten", dropped, dropped > 1 ? "s are" : " is");
    return OK;
}

static void tell_end(const Chat *c, DecodeEnd end)
{
    if (is_interrupted)
        log_info("stopped; the answer stays as far as it came: /regenerate makes another one");
    else if (end == DECODE_AT_CONTEXT)
        log_warn("the answer ends here: the context of %lld tokens is full", (long long)c->context);
    else if (end == DECODE_AT_LENGTH)
        log_info("the answer ends here: --max-tokens %lld", (long long)c->args->sampling.max_tokens);
}

static Status generate_answer(Chat *c, const TokenIds *ids, Answer *answer)
{
    StrBuf        newline = {0};
    DecodeEnd     end;
    AskStream     stream = {.prints = true, .stopped = &is_interrupted};
    DecodeRequest request = {.prompt = ids->data,
                             .prompt_len = ids->len,
                             .max_tokens = c->args->sampling.max_tokens,
                             .sample = c->args->sampling.sample,
                             .stops = c->infer->eos,
                             .num_stops = c->args->sampling.ignore_eos ? 0 : c->infer->num_eos};
    request.sample.request = chat_session_request(c->session);
    request.sample.number = chat_session_number(c->session);
    TRY(ask_generate(c->decoder, &request, &stream, answer, &end));
    chat_session_answer(c->session, strbuf_str(&answer->text));
    strbuf_putc(&newline, '\n');
    Status status = cli_print(&newline);
    strbuf_deinit(&newline);
    tell_end(c, end);
    return status;
}

static Status answer_turn(Chat *c)
{
    TokenIds ids = {0};
    Answer   answer;
    Status   status = encode_fitting(c, &ids);
    if (status == OK) {
        answer_init(&answer, c->infer->tokenizer, &c->args->sampling.stops, -1, ids.data, ids.len);
        status = generate_answer(c, &ids, &answer);
        answer_deinit(&answer);
    }
    token_ids_deinit(&ids);
    chat_session_withdraw(c->session);
    return status;
}

/* ---- the conversation ---- */

/* On a terminal, prints the error of a question or command and returns OK, so the conversation goes on. */
static Status survive(const Chat *c, Status status)
{
    if (status == OK || !c->is_terminal) return status;
    log_error("%s", status_message());
    status_clear();
    return OK;
}

static Status take_line(Chat *c, const char *line, ChatAct *act)
{
    StrBuf say = {0};
    Status status = chat_session_take(c->session, line, act, &say);
    if (status == OK && say.len) log_lines(NULL, strbuf_cstr(&say));
    strbuf_deinit(&say);
    if (status != OK) return survive(c, status);
    if (*act != CHAT_ASK) return OK;
    status = answer_turn(c);
    return status == ERR_INVALID || status == ERR_DIVERGED ? survive(c, status) : status;
}

static Status talk(Chat *c)
{
    Lines    lines = {0};
    LineKind kind = LINE_INTERRUPTED;
    ChatAct  act = CHAT_NOTHING;
    char    *line = NULL;
    Status   status = OK;
    while (status == OK && kind != LINE_END && act != CHAT_QUIT) {
        forget_interrupts();
        status = print_text(c, "> ");
        if (status == OK) status = next_line(&lines, c->is_terminal, &kind, &line);
        if (status == OK && kind != LINE_IS_THERE) status = print_text(c, "\n");
        if (status == OK && kind == LINE_INTERRUPTED) log_info("Ctrl+D or /quit ends; /help lists the commands");
        if (status == OK && kind == LINE_IS_THERE) status = take_line(c, line, &act);
    }
    strbuf_deinit(&lines.bytes);
    return status;
}

static Status start(Chat *c)
{
    const ChatArgs *args = c->args;
    int64_t         most = c->infer->model->max_positions;
    FAIL_IF(args->context > most, ERR_INVALID, "--context %lld: the model was made for %lld positions", (long long)args->context,
            (long long)most);
    c->context = args->context ? args->context : most < MOST_CONTEXT ? most : MOST_CONTEXT;
    DecoderOptions options = answer_decoder(&args->sampling.sample, -1, 1, c->context);
    TRY(cli_variables(&c->infer->arena, &args->variables, &c->variables));
    TRY(chat_template(c->infer, &c->tmpl));
    infer_want_decoding(c->infer, &options);
    TRY(infer_start(c->infer));
    return decoder_create(c->infer->session, &c->decoder);
}

static Status chat(InferModel *infer, const ChatArgs *args)
{
    Chat   c = {.args = args, .infer = infer, .session = chat_session_create(args->system), .is_terminal = isatty(STDIN_FILENO)};
    Status status = start(&c);
    if (status == OK && c.is_terminal) {
        status = catch_interrupts();
        log_info("a line is a question; /help lists the commands, Ctrl+D ends");
    }
    if (status == OK) status = talk(&c);
    if (c.decoder) decoder_destroy(c.decoder);
    if (c.tmpl) template_destroy(c.tmpl);
    chat_session_destroy(c.session);
    return status;
}

Status cmd_chat(CliArgs *args)
{
    ChatArgs   c = {.model = MODEL_DEFAULTS, .sampling = SAMPLE_DEFAULTS(512)};
    bool       done;
    const Flag flags[] = {
        {"--system", FLAG_TEXT, &c.system, "TEXT", "the system message; /system TEXT replaces it"},
        {"--var", FLAG_LIST, &c.variables, "NAME=VALUE", "a variable of the template, as JSON or text; may be given several times"},
        {"--context", FLAG_INT, &c.context, "N", "most tokens of the conversation; 0: the model's, at most 8192 (0)"},
        {"--drop-oldest", FLAG_SWITCH, &c.drops_oldest, NULL,
         "forget the oldest turns when the context is full, and don't refuse the question"},
        SAMPLE_FLAGS(&c.sampling, "512"),
        MODEL_FLAGS(&c.model),
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(c.context < 0, ERR_INVALID, "--context %lld: expected at least 1", (long long)c.context);
    TRY(ask_check(args, &c.sampling));
    InferModel infer;
    Status     status = ask_open(&infer, args->words[0], &c.model, &c.sampling);
    if (status == OK) status = chat(&infer, &c);
    infer_close(&infer);
    return status;
}
