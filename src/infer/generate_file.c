/* See generate_file.h. Lines are numbered in the order of the file. Those that are begun and not yet written have a slot, `line` modulo
 * their number: a finished one waits there for the lines before it, so that memory is bounded. */
#include "infer/generate_file.h"

#include "base/json.h"
#include "base/log.h"
#include "infer/resumable_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ROWS_CPU = 16,
    ROWS_GPU = 64,
    QUEUED_PER_ROW = 2, /* requests that the decoder has: a place that becomes free is taken at once */
    SLOTS_PER_ROW = 8,
};

typedef struct Run Run;

/* Which line comes next: of which row and sample. */
typedef struct Cursor {
    int64_t line, sample;
    size_t  row;
} Cursor;

typedef struct Slot {
    Run   *run;
    Cursor at;
    Answer answer;
    StrBuf json; /* the line, once it is done */
    bool   is_done;
} Slot;

struct Run {
    InferModel            *infer;
    const PromptFile      *prompts;
    const GenerateFileJob *job;
    int64_t                rows, num_lines;
    Decoder               *decoder;
    ResumableFile          file;
    Slot                  *slots;
    int64_t                num_slots;
    Cursor                 next;    /* to be begun */
    int64_t                written; /* lines in the file */
    int64_t                active;  /* requests that the decoder has */
    int64_t                most_at_once;
    Status                 status; /* what a request failed with */
    /* progress */
    int64_t first_line, tokens, num_bad; /* of this start; num_bad: lines with an error */
    double  begun, told;
};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- lines ---- */

static const PromptRow *row_of(const Run *r, Cursor at)
{
    return &r->prompts->rows[at.row];
}

/* A bad row has one line. */
static void advance(const Run *r, Cursor *at)
{
    at->line++;
    if (!row_of(r, *at)->error && ++at->sample < r->job->num) return;
    at->sample = 0;
    at->row++;
}

static void count_lines(Run *r)
{
    int64_t good = 0;
    for (size_t i = 0; i < r->prompts->num_rows; i++) good += r->prompts->rows[i].error == NULL;
    r->num_lines = good * r->job->num + ((int64_t)r->prompts->num_rows - good);
    r->rows = r->job->rows;
    if (!r->rows) r->rows = strcmp(r->infer->device->api->name, "cpu") == 0 ? ROWS_CPU : ROWS_GPU;
    if (r->rows > good * r->job->num) r->rows = good * r->job->num;
}

static void begin_line(const Run *r, Cursor at, StrBuf *out)
{
    const PromptRow *row = row_of(r, at);
    strbuf_printf(out, "{\"index\":%lld", (long long)row->index);
    if (!row->error) strbuf_printf(out, ",\"sample\":%lld", (long long)at.sample);
    if (row->id) strbuf_printf(out, ",\"id\":%s", row->id);
}

static void put_error(Run *r, Cursor at, const char *error, StrBuf *out)
{
    r->num_bad++;
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
    json_write_string(out, strbuf_cstr(&a->text), a->text.len);
    strbuf_puts(out, ",\"ids\":[");
    for (size_t i = 0; i < a->ids.len; i++) strbuf_printf(out, "%s%d", i ? "," : "", a->ids.data[i]);
    strbuf_printf(out, "],\"stop_reason\":\"%s\"", answer_reason(a, end));
    if (a->top >= 0) {
        strbuf_puts(out, ",\"logprobs\":");
        answer_write_logprobs(a, out);
    }
    strbuf_puts(out, "}\n");
}

/* ---- going on ---- */

/* Whether the line begins as that of the cursor does, and is whole. */
static bool is_line(const Run *r, Cursor at, Str line)
{
    Arena     arena = {0};
    StrBuf    begin = {0};
    JsonValue value;
    begin_line(r, at, &begin);
    bool is_it = line.len > begin.len && memcmp(line.data, begin.data, begin.len) == 0 && line.data[begin.len] == ',' &&
                 json_parse(&arena, "", line.data, line.len, &value) == OK && value.type == JSON_OBJECT;
    status_clear();
    strbuf_deinit(&begin);
    arena_deinit(&arena);
    return is_it;
}

/* Keeps the lines that are whole and in their place: a kill may tear the last one, a lost disk write more. */
static Status go_on(Run *r)
{
    FileMap map;
    size_t  kept = 0;
    TRY(file_map(r->file.part, &map));
    while (r->next.line < r->num_lines && kept < map.size) {
        const char *newline = memchr(map.data + kept, '\n', map.size - kept);
        if (!newline || !is_line(r, r->next, (Str){map.data + kept, (size_t)(newline - map.data) - kept})) break;
        kept = (size_t)(newline - map.data) + 1;
        advance(r, &r->next);
    }
    file_unmap(&map);
    r->written = r->first_line = r->next.line;
    if (r->written) log_info("%s: goes on after %lld of %lld lines", r->file.part, (long long)r->written, (long long)r->num_lines);
    return resumable_file_cut(&r->file, kept);
}

/* ---- requests ---- */

static bool take_token(void *context, const DecodeToken *token)
{
    Slot *slot = context;
    slot->run->tokens++;
    return answer_push(&slot->answer, token);
}

static void fail(Slot *slot, Status status)
{
    Run             *r = slot->run;
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

static Status begin(Run *r, Slot *slot)
{
    const GenerateFileJob *job = r->job;
    const PromptRow       *row = row_of(r, slot->at);
    const int32_t         *prompt = r->prompts->ids.data + row->first;
    uint64_t               handle;
    DecodeRequest          request = {.prompt = prompt,
                                      .prompt_len = row->num,
                                      .max_tokens = job->max_tokens,
                                      .sample = job->sample,
                                      .stops = r->infer->eos,
                                      .num_stops = job->ignore_eos ? 0 : r->infer->num_eos,
                                      .context = slot,
                                      .token = take_token,
                                      .end = take_end};
    request.sample.request = (uint64_t)row->index;
    request.sample.number = (uint32_t)slot->at.sample;
    answer_init(&slot->answer, r->infer->tokenizer, job->stops, job->logprobs, prompt, row->num);
    r->active++;
    return decoder_submit(r->decoder, &request, &handle);
}

static Status begin_more(Run *r)
{
    while (r->next.line < r->num_lines && r->next.line < r->written + r->num_slots && r->active < QUEUED_PER_ROW * r->rows) {
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

/* Appends what is done and next in order. */
static Status write_done(Run *r)
{
    StrBuf lines = {0};
    while (r->written < r->next.line && r->slots[r->written % r->num_slots].is_done) {
        Slot *slot = &r->slots[r->written++ % r->num_slots];
        strbuf_append(&lines, strbuf_cstr(&slot->json), slot->json.len);
        strbuf_deinit(&slot->json);
        slot->is_done = false;
    }
    Status status = resumable_file_append(&r->file, &lines);
    strbuf_deinit(&lines);
    return status;
}

/* ---- progress ---- */

/* On a terminal ten times a second, else every half minute. */
static void tell_progress(Run *r)
{
    char    line[160];
    double  now = seconds(), pause = log_is_terminal() ? 0.1 : 30, passed = now - r->begun;
    int64_t waiting = decoder_num_waiting(r->decoder), at_once = r->active - waiting;
    if (at_once > r->most_at_once) r->most_at_once = at_once;
    if (now < r->told + pause) return;
    r->told = now;
    int64_t done = r->written - r->first_line;
    int     len = snprintf(line, sizeof line, "%lld/%lld lines  %lld at once  %.0f tok/s", (long long)r->written, (long long)r->num_lines,
                           (long long)at_once, (double)r->tokens / passed);
    if (done) snprintf(line + len, sizeof line - (size_t)len, "  ETA %.0f s", passed / (double)done * (double)(r->num_lines - r->written));
    if (log_is_terminal())
        log_status(line);
    else
        log_info("%s", line);
}

static void tell_end(const Run *r)
{
    double passed = seconds() - r->begun;
    if (log_is_terminal()) log_status("");
    log_info("%s: %lld lines of %zu prompts, %lld tokens in %.1f s", r->job->out, (long long)r->num_lines, r->prompts->num_rows,
             (long long)r->tokens, passed);
    if (r->num_bad) log_warn("%lld of these lines have an error in place of a text", (long long)r->num_bad);
    if (r->job->pages && r->most_at_once < r->rows)
        log_info("at most %lld texts were made at once, of %lld rows: the others waited for pages of the cache (--pages)",
                 (long long)r->most_at_once, (long long)r->rows);
}

/* ---- running ---- */

static Status interrupted(const Run *r)
{
    if (log_is_terminal()) log_status("");
    FAIL(ERR_INTERRUPTED, "interrupted after %lld of %lld lines; the same command goes on from %s", (long long)r->written,
         (long long)r->num_lines, r->file.part);
}

static Status run_all(Run *r)
{
    const GenerateFileJob *job = r->job;
    r->begun = r->told = seconds();
    while (r->written < r->num_lines) {
        TRY(begin_more(r));
        TRY(write_done(r));
        if (r->written == r->num_lines) break;
        if (job->is_stopped && job->is_stopped(job->context)) return interrupted(r);
        if (r->active) TRY(decoder_step(r->decoder));
        TRY(r->status);
        tell_progress(r);
    }
    TRY(resumable_file_finish(&r->file));
    tell_end(r);
    return OK;
}

static Status start_decoder(Run *r)
{
    const GenerateFileJob *job = r->job;
    int64_t                most = r->infer->model->max_positions, longest = r->prompts->longest;
    int64_t                context = job->max_tokens < most - longest ? longest + job->max_tokens : most;
    DecoderOptions         options = answer_decoder(&job->sample, job->logprobs, r->rows, context);
    options.prompt = longest;
    options.pages = job->pages;
    infer_want_decoding(r->infer, &options);
    Status status = infer_start(r->infer);
    if (status == ERR_NO_FIT)
        return status_prefix(status, "%lld texts at once of up to %lld tokens (fewer with --rows)", (long long)r->rows, (long long)context);
    TRY(status);
    return decoder_create(r->infer->session, &r->decoder);
}

static Status run_open(Run *r)
{
    TRY(go_on(r));
    if (r->written < r->num_lines) TRY(start_decoder(r));
    r->num_slots = SLOTS_PER_ROW * r->rows;
    r->slots = calloc_or_end((size_t)r->num_slots, sizeof *r->slots);
    Status status = run_all(r);
    if (r->decoder) decoder_destroy(r->decoder);
    for (int64_t i = 0; i < r->num_slots; i++) {
        answer_deinit(&r->slots[i].answer);
        strbuf_deinit(&r->slots[i].json);
    }
    free(r->slots);
    return status;
}

Status generate_file(InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job)
{
    Run    r = {.infer = infer, .prompts = prompts, .job = job, .status = OK};
    StrBuf settings = {0};
    count_lines(&r);
    generate_file_settings(infer, prompts, job, r.rows, &settings);
    Status status = resumable_file_open(&infer->arena, job->out, (Str){settings.data, settings.len}, &r.file);
    strbuf_deinit(&settings);
    TRY(status);
    if (r.file.fd < 0) {
        log_info("%s is complete already: nothing is left to do", job->out);
        return OK;
    }
    status = run_open(&r);
    resumable_file_close(&r.file);
    return status;
}
