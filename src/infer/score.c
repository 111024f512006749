/* See score.h. Rows of similar length share a program: its rows have 16, 24, 32, 48, 64 ... tokens, so up to 4,096 tokens at most a third
 * of a row is padding. Above that, lengths double. */
#include "infer/score.h"

#include "base/str.h"
#include "data/mask.h"
#include "data/record.h"
#include "infer/chat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_SEQ = 16,
    FINE_SEQ = 4096, /* longer lengths double, to limit the number of programs */
    ROW_TOKENS_CPU = 512,
    ROW_TOKENS_GPU = 1024,
    MOST_ROWS = ROW_TOKENS_GPU / LEAST_SEQ, /* rows of one run */
};

void scores_deinit(Scores *scores)
{
    token_ids_deinit(&scores->ids);
    token_ids_deinit(&scores->labels);
    free(scores->rows);
    free(scores->logprobs);
    free(scores->top_ids);
    free(scores->top_logprobs);
    *scores = (Scores){0};
}

/* ---- reading rows ---- */

static const char rows_help[] =
    "expected {\"text\": ...}, {\"prompt\": ..., \"completion\": ...}, {\"messages\": [...]} or {\"ids\": [...]}";

typedef struct ScoreReader {
    InferModel *infer;
    Scores     *out;
    int64_t     most; /* tokens of a row */
    Template   *tmpl; /* these three: NULL until a row has messages */
    MaskRules  *rules;
    MaskEncoder encoder;
} ScoreReader;

static void reader_deinit(ScoreReader *r)
{
    if (r->rules) mask_encoder_deinit(&r->encoder);
    mask_rules_destroy(r->rules);
    if (r->tmpl) template_destroy(r->tmpl);
}

static Status append_text(InferModel *infer, const JsonValue *row, const char *field, bool add_special, TokenIds *out)
{
    const JsonValue *text = json_get(row, field);
    FAIL_IF(text->type != JSON_STRING, ERR_INVALID, "%s is %s; expected a text", field, json_type_name(text->type));
    return infer_encode(infer, text->string.data, text->string.len, add_special, out);
}

static Status append_ids(const InferModel *infer, const JsonValue *list, TokenIds *out)
{
    int64_t most = infer->model->vocab_size - 1;
    FAIL_IF(list->type != JSON_ARRAY, ERR_INVALID, "ids is %s; expected a list of token ids", json_type_name(list->type));
    for (uint32_t i = 0; i < list->count; i++) {
        const JsonValue *id = &list->items[i];
        FAIL_IF(id->type != JSON_INT || id->integer < 0 || id->integer > most, ERR_INVALID,
                "ids[%u] is no token id; expected a whole number from 0 to %lld", i, (long long)most);
        token_ids_push(out, (int32_t)id->integer);
    }
    return OK;
}

/* Reads from the fields prompt_tokens, labels and masks which of the row's ids are trained. Datasets of ids have the same fields. */
static Status append_labels(Arena *arena, const JsonValue *row, Scores *scores, ScoreRow *out)
{
    const JsonValue *prompt = json_get(row, "prompt_tokens");
    Sample           sample = {0};
    TRY(format_ids(arena, row, "ids", &sample));
    out->prompt = (size_t)sample.prompt_ids;
    out->has_prompt = prompt && prompt->type != JSON_NULL;
    out->has_labels = sample.labels != NULL;
    out->first_label = scores->labels.len;
    for (uint32_t i = 0; out->has_labels && i < sample.ids->count; i++) {
        int64_t label = sample.labels->items[i].integer, id = sample.ids->items[i].integer;
        FAIL_IF(label != id && label != LABEL_IGNORE, ERR_INVALID, "labels[%u] is %lld, the id there %lld; expected that id, or %d", i,
                (long long)label, (long long)id, LABEL_IGNORE);
        token_ids_push(&scores->labels, (int32_t)label);
    }
    return OK;
}

static Status need_rules(ScoreReader *r)
{
    if (r->rules) return OK;
    TRY(chat_template(r->infer, &r->tmpl));
    TRY(mask_rules_create(r->infer->tokenizer, r->tmpl, TRAIN_ON_ASSISTANT, &r->rules));
    mask_encoder_init(&r->encoder, r->rules);
    return OK;
}

/* Appends a conversation as training lays it out; the assistant's turns are its labels. */
static Status append_messages(ScoreReader *r, Arena *arena, const JsonValue *row, ScoreRow *out)
{
    static const RowFormat format = {.type = DATASET_CONVERSATION, .messages_field = "messages", .tools_field = "tools"};
    const DatasetOptions   options = {.type = DATASET_CONVERSATION};
    const MaskEncoder     *encoder = &r->encoder;
    Sample                 sample;
    TRY(need_rules(r));
    TRY(format_row(arena, &options, &format, row, mask_rules_traits(r->rules), &sample));
    TRY(mask_encode(&r->encoder, arena, &sample));
    out->has_labels = true;
    out->first_label = r->out->labels.len;
    for (size_t i = 0; i < encoder->ids.len; i++) {
        token_ids_push(&r->out->ids, encoder->ids.data[i]);
        token_ids_push(&r->out->labels, encoder->mask[i] ? encoder->ids.data[i] : LABEL_IGNORE);
    }
    return OK;
}

static Status append_row(ScoreReader *r, Arena *arena, const JsonValue *row, ScoreRow *out)
{
    InferModel *infer = r->infer;
    TokenIds   *ids = &r->out->ids;
    bool is_object = row->type == JSON_OBJECT, has_text = is_object && json_get(row, "text"), has_ids = is_object && json_get(row, "ids");
    bool has_pair = is_object && json_get(row, "prompt") && json_get(row, "completion"), is_chat = is_object && json_get(row, "messages");
    int  num_kinds = has_text + has_ids + has_pair + is_chat;
    FAIL_IF(num_kinds != 1, ERR_INVALID, "%s %s",
            num_kinds ? "the row says several things;" : "the row has none of the fields that are scored;", rows_help);
    if (has_text) TRY(append_text(infer, row, "text", true, ids));
    if (is_chat) TRY(append_messages(r, arena, row, out));
    if (has_ids) TRY(append_ids(infer, json_get(row, "ids"), ids));
    if (has_ids && ids->len > out->first) TRY(append_labels(arena, row, r->out, out));
    if (has_pair) {
        TRY(append_text(infer, row, "prompt", true, ids));
        out->has_prompt = true;
        out->prompt = ids->len - out->first;
        TRY(append_text(infer, row, "completion", false, ids));
    }
    out->num = ids->len - out->first;
    FAIL_IF(!out->num || (has_pair && out->num == out->prompt), ERR_INVALID, "%s has no token; expected at least one",
            has_pair   ? "the completion"
            : has_text ? "the text"
            : is_chat  ? "the conversation"
                       : "ids");
    FAIL_IF((int64_t)out->num > r->most, ERR_INVALID, "the row has %zu tokens; expected at most %lld: shorten it, or leave it out",
            out->num, (long long)r->most);
    return OK;
}

static Status read_row(ScoreReader *r, const Record *record)
{
    ScoreRow *row = &r->out->rows[r->out->num_rows++];
    Arena     arena = {0};
    JsonValue value;
    *row = (ScoreRow){.line = record->line, .first = r->out->ids.len};
    Status status = record_parse(&arena, record, &value);
    if (status == OK) {
        status = append_row(r, &arena, &value, row);
        if (status != OK) status = status_prefix(status, "%s:%lld", r->out->name, (long long)record->line);
    }
    arena_deinit(&arena);
    return status;
}

static Status read_rows(ScoreReader *r, Str text)
{
    const RecordFile file = {.path = r->out->name};
    int64_t          line = 0;
    for (size_t at = 0, end; at < text.len; at = end) {
        const char *newline = memchr(text.data + at, '\n', text.len - at);
        end = newline ? (size_t)(newline - text.data) + 1 : text.len;
        Record record = {
            .kind = RECORD_JSON, .bytes = {text.data + at, end - at - (newline != NULL)}, .file = &file, .line = ++line, .column = 1};
        if (str_trim(record.bytes).len > 0) TRY(read_row(r, &record));
    }
    FAIL_IF(!r->out->num_rows, ERR_INVALID, "%s has no rows; %s on each line", r->out->name, rows_help);
    return OK;
}

Status scores_read(InferModel *infer, const char *name, Str text, int64_t most, Scores *out)
{
    int64_t     positions = infer->model->max_positions;
    ScoreReader reader = {.infer = infer, .out = out, .most = most > 0 ? most : positions};
    size_t      num_lines = 1;
    *out = (Scores){.name = name};
    FAIL_IF(most > positions, ERR_INVALID, "--context %lld: the model was made for %lld positions", (long long)most, (long long)positions);
    for (size_t i = 0; i < text.len; i++) num_lines += text.data[i] == '\n';
    out->rows = calloc_or_end(num_lines, sizeof *out->rows);
    Status status = read_rows(&reader, text);
    reader_deinit(&reader);
    if (status == OK) out->logprobs = malloc_or_end(out->ids.len * sizeof *out->logprobs);
    return status;
}

/* ---- running them ---- */

/* Tokens per row of the program that reads this row. Nothing is predicted from the row's last token, so it needs no room. */
static int64_t seq_of(const InferModel *infer, const ScoreRow *row)
{
    int64_t seq = LEAST_SEQ, most = infer->model->max_positions;
    while (seq < (int64_t)row->num - 1) seq = (seq & (seq - 1)) != 0 ? seq / 3 * 4 : seq < FINE_SEQ ? seq / 2 * 3 : seq * 2;
    return seq < most ? seq : most;
}

/* Rows per batch of the program with rows of `seq` tokens. With a recipe it is 1, since products share scales over a batch. */
static int64_t batch_of(const InferModel *infer, int64_t seq)
{
    int64_t tokens = device_is(infer->device, "cpu") ? ROW_TOKENS_CPU : ROW_TOKENS_GPU;
    if (infer->options.precision.own_scales || seq > tokens) return 1;
    return tokens / seq < MOST_ROWS ? tokens / seq : MOST_ROWS; /* a model may have fewer positions than LEAST_SEQ */
}

static void ask_for_programs(InferModel *infer, const Scores *scores)
{
    CompileOptions *options = &infer->options;
    options->num_programs = 0;
    options->top = scores->top;
    for (size_t i = 0; i < scores->num_rows; i++) {
        int64_t seq = seq_of(infer, &scores->rows[i]);
        int     p = 0;
        while (p < options->num_programs && options->programs[p].seq != seq) p++;
        if (p == options->num_programs) compile_add(options, scores->top ? &entry_score_top : &entry_score, batch_of(infer, seq), seq);
    }
}

static void fill_row(Feeds *feeds, int64_t at, int64_t seq, const int32_t *ids, int64_t num)
{
    for (int64_t t = 0; t + 1 < num; t++) {
        int64_t cell = at * seq + t;
        feeds->tokens[cell] = ids[t];
        feeds->labels[cell] = ids[t + 1];
        feeds->positions[cell] = (int32_t)t;
        feeds->doc_start[cell] = feeds->doc_id[cell] = 0;
    }
    feeds_pad(feeds, at, seq, num - 1, 0);
}

/* The inputs and outputs of a program's runs. */
typedef struct ScoreBuffers {
    Feeds    feeds;
    float   *losses, *top_logprobs; /* (cells), (cells, top) */
    int32_t *top_ids;
} ScoreBuffers;

static Status read_top(InferModel *infer, const Program *program, int64_t cells, const ScoreBuffers *to, int64_t top)
{
    size_t count = (size_t)(cells * top);
    if (!top) return OK;
    TRY(session_output(infer->session, program, "top_ids", to->top_ids, count * sizeof *to->top_ids));
    return session_output(infer->session, program, "top_logprobs", to->top_logprobs, count * sizeof *to->top_logprobs);
}

/* Runs one batch: the next rows of this program's length, from row *at on. Moves *at past them. */
static Status run_batch(InferModel *infer, const Program *program, ScoreBuffers *to, Scores *scores, size_t *at)
{
    Feeds    *feeds = &to->feeds;
    int64_t   seq = program->spec.seq, batch = program->spec.batch, num = 0;
    ScoreRow *taken[MOST_ROWS];
    for (; *at < scores->num_rows && num < batch; ++*at) {
        ScoreRow *row = &scores->rows[*at];
        if (seq_of(infer, row) != seq) continue;
        fill_row(feeds, num, seq, scores->ids.data + row->first, (int64_t)row->num);
        taken[num++] = row;
    }
    if (!num) return OK;
    for (int64_t r = num; r < batch; r++) feeds_pad(feeds, r, seq, 0, 0);
    TRY(session_feed(infer->session, program, feeds));
    TRY(session_run(infer->session, program));
    TRY(session_output(infer->session, program, "losses", to->losses, (size_t)(batch * seq) * sizeof *to->losses));
    TRY(read_top(infer, program, batch * seq, to, scores->top));
    for (int64_t r = 0; r < num; r++) {
        float *logprobs = scores->logprobs + taken[r]->first;
        logprobs[0] = NAN;
        for (size_t i = 1; i < taken[r]->num; i++) logprobs[i] = -to->losses[r * seq + (int64_t)i - 1];
        size_t count = (size_t)scores->top * (taken[r]->num - 1), into = (size_t)scores->top * (taken[r]->first + 1);
        if (!count) continue;
        memcpy(scores->top_ids + into, to->top_ids + r * seq * scores->top, count * sizeof *to->top_ids);
        memcpy(scores->top_logprobs + into, to->top_logprobs + r * seq * scores->top, count * sizeof *to->top_logprobs);
    }
    return OK;
}

static Status run_program(InferModel *infer, const Program *program, Scores *scores)
{
    int64_t      cells = program->spec.batch * program->spec.seq, numel = feeds_numel(cells, NULL, 0), top = cells * scores->top;
    int32_t     *memory = malloc_or_end((size_t)(numel + cells + 2 * top) * sizeof *memory), *behind = memory + numel;
    Status       status = OK;
    ScoreBuffers to = {.losses = (float *)behind, .top_logprobs = (float *)behind + cells, .top_ids = behind + cells + top};
    feeds_init(&to.feeds, memory, cells, NULL, 0);
    for (size_t at = 0; at < scores->num_rows && status == OK;) status = run_batch(infer, program, &to, scores, &at);
    free(memory);
    return status;
}

/* Whether token i counts for the sum: it has a value, isn't in the prompt and isn't labelled -100. */
static bool is_summed(const Scores *scores, const ScoreRow *row, size_t i)
{
    return i && i >= row->prompt && !(row->has_labels && scores->labels.data[row->first_label + i] == LABEL_IGNORE);
}

static Status check_finite(const Scores *scores)
{
    for (const ScoreRow *row = scores->rows; row < scores->rows + scores->num_rows; row++)
        for (size_t i = 1; i < row->num; i++)
            FAIL_IF(!isfinite(scores->logprobs[row->first + i]), ERR_DIVERGED,
                    "%s:%lld: ln p of token %zu isn't finite: the model's weights may hold NaN, or numbers too large for its dtype: fp16 "
                    "ends at 65504, bf16 and fp32 reach further",
                    scores->name, (long long)row->line, i);
    return OK;
}

Status scores_run(InferModel *infer, Scores *scores)
{
    int64_t most = infer->model->vocab_size;
    FAIL_IF(scores->top < 0 || scores->top > most, ERR_INVALID, "the %lld likeliest tokens; expected 0 to %lld, the vocabulary's size",
            (long long)scores->top, (long long)most);
    if (scores->top) {
        scores->top_ids = calloc_or_end(scores->ids.len * (size_t)scores->top, sizeof *scores->top_ids);
        scores->top_logprobs = calloc_or_end(scores->ids.len * (size_t)scores->top, sizeof *scores->top_logprobs);
    }
    ask_for_programs(infer, scores);
    TRY(infer_start(infer));
    for (int p = 0; p < infer->options.num_programs; p++) {
        const ProgramSpec *spec = &infer->options.programs[p];
        TRY(run_program(infer, plan_program_of(infer->plan, spec->entry, spec->batch, spec->seq), scores));
    }
    for (ScoreRow *row = scores->rows; row < scores->rows + scores->num_rows; row++)
        for (size_t i = 0; i < row->num; i++) {
            if (!is_summed(scores, row, i)) continue;
            row->sum += scores->logprobs[row->first + i];
            row->num_summed++;
        }
    return check_finite(scores);
}

/* ---- telling ---- */

/* Writes null for NaN and infinity, which JSON lacks. */
static void put_number(StrBuf *out, double value)
{
    if (isfinite(value))
        strbuf_printf(out, "%.9g", value);
    else
        strbuf_puts(out, "null");
}

/* Appends "top_ids" or "top_logprobs" of a row: a list for each token; null for the first, which nothing predicts. */
static void put_top(const Scores *scores, const ScoreRow *row, bool ids, StrBuf *out)
{
    strbuf_printf(out, ",\"%s\":[null", ids ? "top_ids" : "top_logprobs");
    for (size_t i = 1; i < row->num; i++)
        for (size_t k = 0, at = (row->first + i) * (size_t)scores->top; k < (size_t)scores->top; k++) {
            strbuf_puts(out, k ? "," : ",[");
            if (ids)
                strbuf_printf(out, "%d", scores->top_ids[at + k]);
            else
                put_number(out, (double)scores->top_logprobs[at + k]);
            if (k + 1 == (size_t)scores->top) strbuf_putc(out, ']');
        }
    strbuf_putc(out, ']');
}

void scores_write(const Scores *scores, StrBuf *out)
{
    for (const ScoreRow *row = scores->rows; row < scores->rows + scores->num_rows; row++) {
        const size_t first = row->first;
        for (size_t i = 0; i < row->num; i++) strbuf_printf(out, "%s%d", i ? "," : "{\"ids\":[", scores->ids.data[first + i]);
        for (size_t i = 0; i < row->num; i++) {
            strbuf_puts(out, i ? "," : "],\"logprobs\":[");
            put_number(out, (double)scores->logprobs[first + i]);
        }
        strbuf_putc(out, ']');
        if (scores->top) put_top(scores, row, true, out);
        if (scores->top) put_top(scores, row, false, out);
        strbuf_putc(out, ',');
        for (size_t i = 0; row->has_labels && i < row->num; i++)
            strbuf_printf(out, "%s%d%s", i ? "," : "\"labels\":[", scores->labels.data[row->first_label + i],
                          i + 1 == row->num ? "]," : "");
        if (row->has_prompt) strbuf_printf(out, "\"prompt_tokens\":%zu,", row->prompt);
        strbuf_printf(out, "\"tokens\":%zu,\"sum\":", row->num_summed);
        put_number(out, row->sum);
        strbuf_puts(out, "}\n");
    }
}
