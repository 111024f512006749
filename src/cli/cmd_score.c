/* surogate score MODEL_DIR FILE.jsonl [--json] [--logprobs K] [--out FILE]: ln p of the tokens of each row. */
#include "cli/model_flags.h"

#include "data/text_file.h"
#include "files/file.h"
#include "infer/score.h"

typedef struct ScoreArgs {
    ModelArgs   model;
    int64_t     context, top;
    bool        json;
    const char *out; /* NULL: stdout */
} ScoreArgs;

static void print_line(StrBuf *out, size_t num, double sum)
{
    strbuf_printf(out, " %10zu %16.4f", num, sum);
    if (num) strbuf_printf(out, " %12.4f", sum / (double)num);
    strbuf_putc(out, '\n');
}

static void print_table(const Scores *scores, StrBuf *out)
{
    size_t num = 0;
    double sum = 0;
    strbuf_puts(out, "line         tokens  log-probability  for a token\n");
    for (const ScoreRow *row = scores->rows; row < scores->rows + scores->num_rows; row++) {
        strbuf_printf(out, "%-8lld", (long long)row->line);
        print_line(out, row->num_summed, row->sum);
        num += row->num_summed;
        sum += row->sum;
    }
    strbuf_puts(out, "all     ");
    print_line(out, num, sum);
}

static Status score(InferModel *infer, const ScoreArgs *s, const char *path, Str text, Scores *scores)
{
    StrBuf      out = {0};
    FileWriter *writer = NULL;
    TRY(scores_read(infer, path, text, s->context, scores));
    scores->top = s->top;
    if (s->out) TRY(file_writer_open(s->out, &writer)); /* before the slow scoring: opening may fail */
    Status status = scores_run(infer, scores);
    if (status != OK && status != ERR_DIVERGED) {
        file_writer_abort(writer);
        return status;
    }
    if (s->json || s->out)
        scores_write(scores, &out);
    else
        print_table(scores, &out);
    Status printed = writer ? file_writer_end(writer, file_writer_append(writer, out.data, out.len)) : cli_print(&out);
    strbuf_deinit(&out);
    return status != OK ? status : printed;
}

static Status score_file(InferModel *infer, const ScoreArgs *s, const char *path)
{
    TextFile file;
    Scores   scores = {0};
    TRY(text_file_open_rows(cli_input_path(path), &file));
    Status status = score(infer, s, path, file.text, &scores);
    scores_deinit(&scores);
    text_file_close(&file);
    return status;
}

Status cmd_score(CliArgs *args)
{
    ScoreArgs  s = {.model = MODEL_DEFAULTS};
    bool       done;
    const Flag flags[] = {
        {"--json", FLAG_SWITCH, &s.json, NULL,
         "a line of JSON per row: ids, logprobs (natural; null for the first token), labels if the row has messages, labels or a mask, "
         "prompt_tokens if it has a prompt, tokens: how many are summed, sum"},
        {"--logprobs", FLAG_INT, &s.top, "K",
         "with --json or --out: also top_ids, the K likeliest tokens at each position, and top_logprobs, their ln p (0)"},
        {"--out", FLAG_TEXT, &s.out, "FILE", "writes the lines of --json to this file, whole or not at all"},
        {"--context", FLAG_INT, &s.context, "N", "most tokens of a row; a longer one is refused (the model's)"},
        MODEL_FLAGS(&s.model),
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 2));
    FAIL_IF(s.context < 0, ERR_INVALID, "--context %lld: expected at least 1", (long long)s.context);
    FAIL_IF(s.top < 0, ERR_INVALID, "--logprobs %lld: expected at least 0", (long long)s.top);
    FAIL_IF(s.top && !s.json && !s.out, ERR_INVALID, "surogate score: --logprobs needs --json or --out");
    InferModel infer;
    Status     status = cli_open_model(&infer, args->words[0], &s.model);
    if (status == OK) status = score_file(&infer, &s, args->words[1]);
    infer_close(&infer);
    return status;
}
