/* See generate_rows.h. Lines are numbered in order. A line that is begun and not yet handed out has the slot `line` modulo the number of
 * slots. A finished line waits there for the lines before it, so memory is bounded. */
#include "infer/generate_rows.h"

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS_CPU = 16,
    ROWS_GPU = 64,
    QUEUED_PER_ROW = 2, /* requests submitted per row, so that a free place is taken at once */
    SLOTS_PER_ROW = 8,
    SHARED_CONTEXT = 256, /* the context of a shared session is rounded up to a multiple of this */
    SHARED_PROMPT = 32,   /* the expected prompt of a shared session is rounded up to this times a power of two */
};

/* A line's number, with its row and sample. */
typedef struct Cursor {
    int64_t line, sample;
    size_t  row;
} Cursor;

typedef struct Slot {
    RowsRun *run;
    Cursor   at;
    Answer   answer;
    StrBuf   json; /* the line, once is_done */
    bool     is_done;
} Slot;

struct RowsRun {
    InferModel       *infer;
    const PromptFile *prompts;
    const RowsJob    *job;
    Decoder          *decoder;
    Slot             *slots;
    int64_t           num_slots;
    Cursor            next;   /* the next line to begin */
    int64_t           active; /* requests in the decoder */
    Status            status; /* the first failure of a request */
    RowsProgress      progress;
};

const RowsProgress *rows_progress(const RowsRun *run)
{
    return &run->progress;
}

/* ---- lines ---- */

static const PromptRow *row_of(const RowsRun *r, Cursor at)
{
    return &r->prompts->rows[at.row];
}

static int64_t max_tokens_of(const RowsRun *r, const PromptRow *row)
{
    return row->max_tokens ? row->max_tokens : r->job->max_tokens;
}

/* Moves to the next line; a bad row has a single line. */
static void advance(const RowsRun *r, Cursor *at)
{
    at->line++;
    if (!row_of(r, *at)->error && ++at->sample < r->job->num) return;
    at->sample = 0;
    at->row++;
}

static void count_lines(RowsRun *r)
{
    RowsProgress *p = &r->progress;
    int64_t       good = 0;
    for (size_t i = 0; i < r->prompts->num_rows; i++) good += r->prompts->rows[i].error == NULL;
    p->num_lines = good * r->job->num + ((int64_t)r->prompts->num_rows - good);
    p->rows = r->job->rows;
    if (!p->rows) p->rows = device_is(r->infer->device, "cpu") ? ROWS_CPU : ROWS_GPU;
    if (p->rows > good * r->job->num) p->rows = good * r->job->num;
}

static void begin_line(const RowsRun *r, Cursor at, StrBuf *out)
{
    const PromptRow *row = row_of(r, at);
    strbuf_printf(out, "{\"index\":%lld", (long long)row->index);
    if (!row->error) strbuf_printf(out, ",\"sample\":%lld", (long long)at.sample);
    if (row->id) strbuf_printf(out, ",\"id\":%s", row->id);
}

static void put_error(RowsRun *r, Cursor at, const char *error, StrBuf *out)
{
    r->progress.num_bad++;
    begin_line(r, at, out);
    strbuf_puts(out, ",\"error\":");
    json_write_string(out, error, strlen(error));
    strbuf_puts(out, "}\n");
}

static void put_answer(Slot *slot, DecodeEnd end)
{
    const Answer *a = &slot->answer;
    StrBuf       *out = &slot->json;
    begin_line(slot->run, slot->at, out);
    strbuf_puts(out, ",\"text\":");
    if (a->tokenizer)
        json_write_string(out, strbuf_cstr(&a->text), a->text.len);
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ",\"ids\":[");
    for (size_t i = 0; i < a->ids.len; i++) strbuf_printf(out, "%s%d", i ? "," : "", a->ids.data[i]);
    strbuf_printf(out, "],\"stop_reason\":\"%s\"", answer_reason(a, end));
    if (a->top >= 0) {
        strbuf_puts(out, ",\"logprobs\":");
        answer_write_logprobs(a, out);
    }
    strbuf_puts(out, "}\n");
}

bool rows_skip(RowsRun *r, Str line)
{
    Arena     arena = {0};
    StrBuf    begin = {0};
    JsonValue value;
    if (r->next.line == r->progress.num_lines) return false;
    begin_line(r, r->next, &begin);
    bool is_it = line.len > begin.len && str_starts(line, strbuf_str(&begin)) && line.data[begin.len] == ',' &&
                 json_parse(&arena, "", line.data, line.len, &value) == OK && value.type == JSON_OBJECT;
    status_clear();
    strbuf_deinit(&begin);
    arena_deinit(&arena);
    if (is_it) advance(r, &r->next);
    r->progress.written = r->next.line;
    return is_it;
}

/* ---- requests ---- */

static bool take_token(void *context, const DecodeToken *token)
{
    Slot *slot = context;
    slot->run->progress.tokens++;
    return answer_push(&slot->answer, token);
}

static void fail(Slot *slot, Status status)
{
    RowsRun         *r = slot->run;
    const PromptRow *row = row_of(r, slot->at);
    status = status_prefix(status, "%s:%lld, sample %lld", r->prompts->name, (long long)row->index + 1, (long long)slot->at.sample);
    if (r->job->skip_bad)
        put_error(r, slot->at, status_message(), &slot->json);
    else if (r->status == OK)
        r->status = status;
}

static void take_end(void *context, DecodeEnd end)
{
    Slot *slot = context;
    slot->run->active--;
    answer_end(&slot->answer);
    if (end == DECODE_FAILED || slot->answer.status != OK)
        fail(slot, end == DECODE_FAILED ? ERR_DIVERGED : slot->answer.status);
    else
        put_answer(slot, end);
    answer_deinit(&slot->answer);
    slot->is_done = true;
}

static Status begin(RowsRun *r, Slot *slot)
{
    const RowsJob   *job = r->job;
    const PromptRow *row = row_of(r, slot->at);
    const int32_t   *prompt = r->prompts->ids.data + row->first;
    EosIds           eos = row->adapter ? r->infer->row_adapters[row->adapter - 1].eos : (EosIds){r->infer->eos, r->infer->num_eos};
    uint64_t         handle;
    DecodeRequest    request = {.prompt = prompt,
                                .prompt_len = row->num,
                                .max_tokens = max_tokens_of(r, row),
                                .sample = job->sample,
                                .stops = eos.ids,
                                .num_stops = job->ignore_eos ? 0 : eos.num,
                                .context = slot,
                                .token = take_token,
                                .end = take_end,
                                .adapter = row->adapter};
    request.sample.request = (uint64_t)row->index;
    request.sample.number = (uint32_t)slot->at.sample;
    answer_init(&slot->answer, r->infer->tokenizer, job->stops, job->logprobs, prompt, row->num);
    r->active++;
    return decoder_submit(r->decoder, &request, &handle);
}

static Status begin_more(RowsRun *r)
{
    const RowsProgress *p = &r->progress;
    while (r->next.line < p->num_lines && r->next.line < p->written + r->num_slots && r->active < QUEUED_PER_ROW * p->rows) {
        Slot *slot = &r->slots[r->next.line % r->num_slots];
        *slot = (Slot){.run = r, .at = r->next, .is_done = row_of(r, r->next)->error != NULL};
        if (slot->is_done)
            put_error(r, slot->at, row_of(r, slot->at)->error, &slot->json);
        else
            TRY(begin(r, slot));
        advance(r, &r->next);
    }
    return OK;
}

/* Hands out the finished lines that are next in order. */
static Status hand_out(RowsRun *r)
{
    StrBuf   lines = {0};
    int64_t *written = &r->progress.written;
    while (*written < r->next.line && r->slots[*written % r->num_slots].is_done) {
        Slot *slot = &r->slots[(*written)++ % r->num_slots];
        strbuf_append(&lines, strbuf_cstr(&slot->json), slot->json.len);
        strbuf_deinit(&slot->json);
        slot->is_done = false;
    }
    Status status = lines.len ? r->job->take(r->job->context, &lines) : OK;
    strbuf_deinit(&lines);
    return status;
}

/* ---- running ---- */

static Status run_all(RowsRun *r)
{
    RowsProgress *p = &r->progress;
    while (p->written < p->num_lines) {
        TRY(begin_more(r));
        TRY(hand_out(r));
        if (p->written == p->num_lines) break;
        p->at_once = r->active - decoder_num_waiting(r->decoder);
        if (p->at_once > p->most_at_once) p->most_at_once = p->at_once;
        if (r->job->between) TRY(r->job->between(r->job->context));
        if (r->active) TRY(decoder_step(r->decoder));
        p->num_preempted = decoder_num_preempted(r->decoder);
        TRY(r->status);
    }
    return OK;
}

/* Rounds lengths up, so that calls with similar lengths share a session. */
static void round_up(DecoderOptions *options, int64_t most)
{
    int64_t context = (options->context + SHARED_CONTEXT - 1) / SHARED_CONTEXT * SHARED_CONTEXT, prompt = SHARED_PROMPT;
    while (prompt < options->prompt) prompt *= 2;
    options->context = context < most ? context : most;
    options->prompt = prompt;
}

/* Checks that every row fits into the cache's pages, and finds the contexts that the longest and the shortest text need. */
static Status find_context(const RowsRun *r, int64_t *out_context, int64_t *out_least)
{
    const PromptFile *file = r->prompts;
    int64_t           most = r->infer->model->max_positions, pages = r->job->pages;
    *out_context = 1;
    *out_least = most;
    for (const PromptRow *row = file->rows; row < file->rows + file->num_rows; row++) {
        int64_t len = (int64_t)row->num, wanted = max_tokens_of(r, row), context = wanted < most - len ? len + wanted : most;
        int64_t need = ((context < most ? context - 1 : most) + CACHE_PAGE_LEN - 1) / CACHE_PAGE_LEN;
        if (row->error) continue;
        FAIL_IF(pages && need > pages, ERR_INVALID,
                "%s:%lld: a prompt of %lld tokens and up to %lld more need %lld pages of the cache; %lld were given (--pages)", file->name,
                (long long)row->index + 1, (long long)len, (long long)wanted, (long long)need, (long long)pages);
        if (context > *out_context) *out_context = context;
        if (context < *out_least) *out_least = context;
    }
    return OK;
}

/* Logs that short texts don't get the rotary factors that they would get alone. */
static void say_factors(const InferModel *infer, int64_t context, int64_t least)
{
    int64_t original;
    if (!infer_longrope(infer, &original) || context <= original || least > original) return;
    log_info("all texts have the long factors of longrope, as the longest may have %lld tokens, and the original context is %lld",
             (long long)context, (long long)original);
}

static Status start_decoder(RowsRun *r)
{
    const RowsJob *job = r->job;
    int64_t        most = r->infer->model->max_positions, context, least;
    TRY(find_context(r, &context, &least));
    if (!job->shares) say_factors(r->infer, context, least);
    DecoderOptions options = answer_decoder(&job->sample, job->logprobs, r->progress.rows, context);
    options.prompt = r->prompts->longest;
    options.pages = job->pages;
    if (job->shares) round_up(&options, most);
    Status status = infer_start_decoding(r->infer, &options);
    if (status == ERR_NO_FIT)
        return status_prefix(status, "%lld texts at once of up to %lld tokens (fewer rows take less)", (long long)options.rows,
                             (long long)options.context);
    TRY(status);
    return decoder_create(r->infer->session, &r->decoder);
}

Status rows_run(RowsRun *r)
{
    if (r->next.line == r->progress.num_lines) return OK;
    TRY(start_decoder(r));
    r->num_slots = SLOTS_PER_ROW * r->progress.rows;
    r->slots = calloc_or_end((size_t)r->num_slots, sizeof *r->slots);
    return run_all(r);
}

RowsRun *rows_create(InferModel *infer, const PromptFile *prompts, const RowsJob *job)
{
    RowsRun *r = calloc_or_end(1, sizeof *r);
    *r = (RowsRun){.infer = infer, .prompts = prompts, .job = job, .status = OK};
    count_lines(r);
    return r;
}

void rows_destroy(RowsRun *r)
{
    if (r->decoder) decoder_destroy(r->decoder);
    for (int64_t i = 0; i < r->num_slots; i++) {
        answer_deinit(&r->slots[i].answer);
        strbuf_deinit(&r->slots[i].json);
    }
    free(r->slots);
    free(r);
}
