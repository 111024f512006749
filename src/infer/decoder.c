/* See decoder.h. The queue is in order of handles, and all that run are older than all that wait: requests begin in that order, and the
 * youngest is preempted. The oldest is therefore never stopped, and one alone always has enough pages. A preempted request drops its pages,
 * and later reads its prompt and the text so far as it read its prompt: a run of prefill computes the same bits as runs of decode.
 *
 * Runs are told one run late where the device works beside the host: a decoding step reads the token that the step before
 * chose from the device's memory, so that the device never waits for the host. A sequence that has ended is therefore decoded once more,
 * into pages that the device writes before whoever gets them next does. */
#include "infer/decoder.h"

#include "infer/pages.h"
#include "ops/attrs.h"
#include "passes/compile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens that one run reads of a prompt. On the CPU more aren't read faster, and take memory. */
enum { LEAST_CHUNK = 32, MOST_CHUNK_CPU = 512, MOST_CHUNK_GPU = 2048 };
enum { MOST_SIZES = 16, RUNS = 2, PER_SPARE = 4 };
enum { LEAST_BETWEEN = 512 }; /* tokens of prompts that are read between two decoding runs, where as many wait: this, or a chunk */

/* Programs of one entry that differ in size, the smallest first. */
typedef struct Sizes {
    const Program *program[MOST_SIZES];
    int64_t        size[MOST_SIZES]; /* rows, or tokens of a row */
    int            count;
} Sizes;

/* A request, with copies of what it points to. */
typedef struct Job {
    DecodeRequest request;
    uint64_t      handle;
    int32_t      *ids;  /* prompt and text */
    int64_t       told; /* tokens of the text, known here */
    int64_t       most; /* of them */
    struct Job   *next;
} Job;

typedef struct Place {
    Job     *job;   /* NULL: free */
    int32_t *pages; /* (row_pages): 0 behind num_pages */
    int64_t  num_pages;
    int64_t  to_prefill; /* tokens: the prompt and the text when it took the place */
    int64_t  prefilled;  /* of these, read by runs or held by shared pages */
    int64_t  issued;     /* tokens of the text that runs have chosen, or that were known before */
    int64_t  named;      /* pages whose tokens are known to `Pages` */
} Place;

/* A run that the device was given, and what its rows are. */
typedef struct Run {
    int64_t   number;
    int       num_rows;
    int      *place;  /* of each row */
    uint64_t *handle; /* whose token it chose; 0: nobody's */
} Run;

struct Decoder {
    Session       *session;
    const Plan    *plan;
    Sizes          prefill, decode;
    const Program *ran;                                                                /* by the last step; NULL: nothing */
    int64_t        slots, row_pages, num_pages, page_len, context, chunk, head, vocab; /* head: columns of the logits */
    int            biases;
    bool           penalties, is_late;
    const int32_t *told; /* (DECODE_RING,slots,told_cols) */
    int64_t        told_cols;
    Place         *places;
    Pages         *pages;
    Job           *first, **last; /* the queue */
    int64_t        num_waiting, num_placed, num_preempted;
    uint64_t       handles;
    Run            runs[RUNS];
    int64_t        num_runs, num_told;
    int64_t        num_read;  /* tokens of prompts, padding included, since the last decoding run */
    int64_t        most_read; /* of them, where rows could decode */
    Feeds          feeds;
    int64_t        step[STEP_COUNT];
};

/* ---- opening ---- */

/* 32, 64, 96, 128, 192, 256, 384, ...: at most a third of a long run is padding. */
static int64_t next_chunk(int64_t size)
{
    if (size < 2 * LEAST_CHUNK) return 2 * size;
    return (size & (size - 1)) == 0 ? size / 2 * 3 : size / 3 * 4;
}

void decoder_want(CompileOptions *options, const Device *device, const DecoderOptions *want, int64_t choices)
{
    int64_t most = strcmp(device->api->name, "cpu") == 0 ? MOST_CHUNK_CPU : MOST_CHUNK_GPU;
    int64_t chunk = want->prompt > 0 && want->prompt < want->context ? want->prompt : want->context;
    options->cache_len = want->context;
    options->cache_pages = want->pages;
    options->sampling = (SamplingOptions){choices, want->best, want->penalties, want->biases};
    if (chunk > most) chunk = most;
    for (int64_t size = LEAST_CHUNK; size < chunk; size = next_chunk(size)) compile_add(options, &entry_prefill, 1, size);
    compile_add(options, &entry_prefill, 1, chunk);
    for (int64_t rows = 1; rows < want->rows; rows *= 2) compile_add(options, &entry_decode, rows, 1);
    compile_add(options, &entry_decode, want->rows, 1);
}

static Status find_sizes(const Plan *plan, const Entry *entry, Sizes *out)
{
    for (int i = 0; i < plan->num_programs; i++) {
        const ProgramSpec *spec = &plan->programs[i].spec;
        if (spec->entry != entry) continue;
        FAIL_IF(out->count == MOST_SIZES, ERR_INTERNAL, "more than %d programs %s", MOST_SIZES, entry->name);
        int64_t size = entry->one_token ? spec->seq : spec->batch;
        int     at = out->count++;
        for (; at > 0 && out->size[at - 1] > size; at--) {
            out->size[at] = out->size[at - 1];
            out->program[at] = out->program[at - 1];
        }
        out->size[at] = size;
        out->program[at] = &plan->programs[i];
    }
    FAIL_IF(!out->count, ERR_INTERNAL, "decoder: the session has no program %s", entry->name);
    return OK;
}

/* The smallest that holds so many; where none does, the largest. */
static int size_for(const Sizes *sizes, int64_t count)
{
    int at = 0;
    while (at < sizes->count - 1 && sizes->size[at] < count) at++;
    return at;
}

static Status find_programs(Decoder *d)
{
    TRY(find_sizes(d->plan, &entry_prefill, &d->prefill));
    return find_sizes(d->plan, &entry_decode, &d->decode);
}

/* What the programs were compiled for, of their inputs' types. */
static void read_shapes(Decoder *d)
{
    const Graph *graph = d->decode.program[d->decode.count - 1]->graph;
    const Value *bias_ids = graph_find(graph, "bias_ids");
    d->slots = plan_find(d->plan, DECODE_NEXT)->type.dim[0];
    d->row_pages = graph_find(graph, "pages")->type.dim[1];
    d->context = d->plan->cache_len;
    d->chunk = d->prefill.size[d->prefill.count - 1];
    d->head = type_cols(&graph_output(graph, "logits")->type);
    d->told_cols = plan_find(d->plan, DECODE_TOLD)->type.dim[2];
    d->biases = bias_ids ? (int)bias_ids->type.dim[1] : 0;
    d->penalties = plan_find(d->plan, DECODE_SEEN) != NULL;
    d->most_read = d->chunk > LEAST_BETWEEN ? d->chunk : LEAST_BETWEEN;
}

static void *zeros(int64_t count)
{
    return calloc_or_end((size_t)count, 4);
}

static void make_feeds(Decoder *d)
{
    int64_t rows = d->slots, cells = d->chunk > rows ? d->chunk : rows;
    d->feeds = (Feeds){.tokens = zeros(cells),
                       .positions = zeros(cells),
                       .row = zeros(rows),
                       .slots = zeros(rows),
                       .prompt_slots = zeros(rows),
                       .starts = zeros(rows),
                       .text_starts = zeros(rows),
                       .adapters = zeros(rows),
                       .pages = zeros(rows * d->row_pages),
                       .controls = zeros(rows * SAMPLE_CONTROLS),
                       .keys = zeros(rows * SAMPLE_KEYS),
                       .bias_ids = zeros(rows * (d->biases + 1)),
                       .biases = zeros(rows * (d->biases + 1)),
                       .step = d->step};
}

Status decoder_create(Session *session, Decoder **out)
{
    Decoder *d = calloc_or_end(1, sizeof *d);
    d->session = session;
    d->plan = session_plan(session);
    d->last = &d->first;
    Status status = find_programs(d);
    if (status != OK) {
        free(d);
        return status;
    }
    read_shapes(d);
    d->vocab = d->plan->choices ? d->plan->choices : d->head;
    d->told = session_pointer(session, DECODE_TOLD);
    d->is_late = !session_pointer(session, DECODE_NEXT);
    d->page_len = CACHE_PAGE_LEN;
    d->num_pages = d->plan->cache_pages - 1;
    d->pages = pages_create(d->num_pages, d->page_len);
    d->places = calloc_or_end((size_t)d->slots, sizeof *d->places);
    for (int64_t i = 0; i < d->slots; i++) d->places[i].pages = zeros(d->row_pages);
    for (int i = 0; i < RUNS; i++)
        d->runs[i] = (Run){.place = zeros(d->slots), .handle = calloc_or_end((size_t)d->slots, sizeof *d->runs[i].handle)};
    make_feeds(d);
    *out = d;
    return OK;
}

void decoder_read_first(Decoder *d)
{
    d->most_read = INT64_MAX;
}

static void job_destroy(Job *job)
{
    free((void *)job->request.stops);
    free((void *)job->request.sample.bias_ids);
    free((void *)job->request.sample.biases);
    free(job->ids);
    free(job);
}

void decoder_destroy(Decoder *d)
{
    if (!d) return;
    for (Job *job = d->first, *next; job; job = next) {
        next = job->next;
        job_destroy(job);
    }
    for (int64_t i = 0; i < d->slots; i++) {
        if (d->places[i].job) job_destroy(d->places[i].job);
        free(d->places[i].pages);
    }
    for (int i = 0; i < RUNS; i++) {
        free(d->runs[i].place);
        free(d->runs[i].handle);
    }
    for (int i = 0; i < FEED_STEP; i++) free(d->feeds.array[i]);
    free(d->places);
    pages_destroy(d->pages);
    free(d);
}

/* ---- the queue ---- */

static Status check_sample(const Decoder *d, const SampleOptions *s)
{
    FAIL_IF(!(s->temperature >= 0 && s->temperature < INFINITY), ERR_INVALID, "temperature %g: expected at least 0", s->temperature);
    FAIL_IF(s->top_k < 0, ERR_INVALID, "top-k %lld: expected at least 0", (long long)s->top_k);
    FAIL_IF(!(s->top_p >= 0 && s->top_p <= 1), ERR_INVALID, "top-p %g: expected 0 to 1", s->top_p);
    FAIL_IF(!(s->min_p >= 0 && s->min_p <= 1), ERR_INVALID, "min-p %g: expected 0 to 1", s->min_p);
    FAIL_IF(!(s->repetition >= 0 && s->repetition < INFINITY), ERR_INVALID, "repetition penalty %g: expected above 0; 1: none",
            s->repetition);
    FAIL_IF(!isfinite(s->presence) || !isfinite(s->frequency), ERR_INVALID,
            "presence and frequency penalties: expected numbers; got %g, %g", s->presence, s->frequency);
    FAIL_IF(s->num_biases > d->biases, ERR_INVALID, "%d biases and bans: this decoder was opened for %d a request", s->num_biases,
            d->biases);
    for (int i = 0; i < s->num_biases; i++) {
        FAIL_IF(s->bias_ids[i] < 0 || s->bias_ids[i] >= d->vocab, ERR_INVALID, "a bias of token %d: expected 0 to %lld", s->bias_ids[i],
                (long long)d->vocab - 1);
        FAIL_IF(isnan(s->biases[i]) || s->biases[i] == INFINITY, ERR_INVALID, "the bias of token %d is %g: expected a number, or -inf",
                s->bias_ids[i], (double)s->biases[i]);
    }
    return OK;
}

static bool penalises(const SampleOptions *s)
{
    return (s->repetition != 0 && s->repetition != 1) || s->presence != 0 || s->frequency != 0;
}

static Status check_request(const Decoder *d, const DecodeRequest *r)
{
    FAIL_IF(r->prompt_len == 0, ERR_INVALID, "the prompt is empty and the tokenizer adds no BOS: give at least one token to go on from");
    FAIL_IF((int64_t)r->prompt_len > d->context, ERR_INVALID, "the prompt has %zu tokens, the context only %lld; shorten it", r->prompt_len,
            (long long)d->context);
    FAIL_IF(r->max_tokens < 1, ERR_INVALID, "%lld tokens are wanted: expected at least 1", (long long)r->max_tokens);
    for (size_t i = 0; i < r->prompt_len; i++)
        FAIL_IF(r->prompt[i] < 0 || r->prompt[i] >= d->head, ERR_INVALID, "token %d of the prompt is beyond the model's vocabulary of %lld",
                r->prompt[i], (long long)d->head);
    FAIL_IF(r->adapter < 0 || r->adapter > d->plan->row_adapters, ERR_INVALID, "adapter %d: the session has %d; 0: none of them",
            r->adapter, d->plan->row_adapters);
    FAIL_IF(penalises(&r->sample) && !d->penalties, ERR_INVALID, "this decoder was opened without memory for penalties");
    return check_sample(d, &r->sample);
}

static void *copied(const void *from, size_t bytes)
{
    void *to = malloc_or_end(bytes ? bytes : 1);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t pages_for(const Decoder *d, int64_t positions)
{
    return (positions + d->page_len - 1) / d->page_len;
}

/* All that a job may ever need. */
static int64_t most_pages(const Decoder *d, const Job *job)
{
    return pages_for(d, (int64_t)job->request.prompt_len + job->most - 1);
}

static Status refuse_pages(const Decoder *d, Job *job)
{
    long long len = (long long)job->request.prompt_len, most = (long long)job->most, need = (long long)most_pages(d, job);
    job_destroy(job);
    FAIL(ERR_INVALID, "a prompt of %lld tokens and up to %lld more need %lld pages of the cache, which has %lld: give it more pages", len,
         most, need, (long long)d->num_pages);
}

Status decoder_submit(Decoder *d, const DecodeRequest *request, uint64_t *out_handle)
{
    TRY(check_request(d, request));
    Job          *job = calloc_or_end(1, sizeof *job);
    SampleOptions s = request->sample;
    int64_t       len = (int64_t)request->prompt_len;
    job->request = *request;
    job->most = min_of(request->max_tokens, d->context - len + 1);
    job->ids = malloc_or_end((size_t)(len + job->most) * sizeof *job->ids);
    memcpy(job->ids, request->prompt, (size_t)len * sizeof *job->ids);
    job->request.prompt = job->ids;
    job->request.stops = copied(request->stops, (size_t)request->num_stops * sizeof *request->stops);
    job->request.sample.bias_ids = copied(s.bias_ids, (size_t)s.num_biases * sizeof *s.bias_ids);
    job->request.sample.biases = copied(s.biases, (size_t)s.num_biases * sizeof *s.biases);
    if (most_pages(d, job) > d->num_pages) return refuse_pages(d, job);
    job->handle = ++d->handles;
    *d->last = job;
    d->last = &job->next;
    d->num_waiting++;
    if (out_handle) *out_handle = job->handle;
    return OK;
}

static void free_place(Decoder *d, Place *place)
{
    for (int64_t i = 0; i < place->num_pages; i++) pages_drop(d->pages, place->pages[i]);
    memset(place->pages, 0, (size_t)d->row_pages * sizeof *place->pages);
    *place = (Place){.pages = place->pages};
    d->num_placed--;
}

/* The last call of a request. Its place and pages are free before it, so that another may be submitted in it. */
static void end_job(Decoder *d, Place *place, Job *job, DecodeEnd end)
{
    if (place) free_place(d, place);
    if (job->request.end) job->request.end(job->request.context, end);
    job_destroy(job);
}

void decoder_cancel(Decoder *d, uint64_t handle)
{
    for (Job **at = &d->first; *at; at = &(*at)->next) {
        Job *job = *at;
        if (job->handle != handle) continue;
        *at = job->next;
        if (d->last == &job->next) d->last = at;
        d->num_waiting--;
        end_job(d, NULL, job, DECODE_BY_CALLER);
        return;
    }
    for (int64_t i = 0; i < d->slots; i++)
        if (d->places[i].job && d->places[i].job->handle == handle) {
            end_job(d, &d->places[i], d->places[i].job, DECODE_BY_CALLER);
            return;
        }
}

int64_t decoder_num_waiting(const Decoder *d)
{
    return d->num_waiting;
}

int64_t decoder_num_preempted(const Decoder *d)
{
    return d->num_preempted;
}

const Program *decoder_ran(const Decoder *d)
{
    return d->ran;
}

bool decoder_is_busy(const Decoder *d)
{
    return d->num_waiting || d->num_placed || d->num_told < d->num_runs;
}

/* ---- places and pages ---- */

/* Whole pages of `count` tokens that others have; the last token is always computed, since the next one is chosen by it. A prompt whose
 * tokens count as seen is read whole. */
static int64_t share_pages(Decoder *d, const Job *job, int64_t tokens, int32_t *pages)
{
    int64_t most = (tokens - 1) / d->page_len, count = 0;
    if (penalises(&job->request.sample)) return 0;
    for (PageBefore before = {.kind = job->request.adapter}; count < most; count++) {
        before.page = pages_find(d->pages, before, job->ids + count * d->page_len);
        if (!before.page) break;
        pages[count] = before.page;
        pages_hold(d->pages, before.page);
    }
    return count;
}

/* Pages that are kept for requests that run: one for PER_SPARE of those that may still grow. A request that begins is then not preempted
 * before some tokens of text. */
static int64_t spare_pages(const Decoder *d)
{
    int64_t growing = 0;
    for (int64_t i = 0; i < d->slots; i++) growing += d->places[i].job && d->places[i].num_pages < most_pages(d, d->places[i].job);
    return (growing + PER_SPARE - 1) / PER_SPARE;
}

/* Gives a place the pages of what the job begins with. False: there aren't enough. */
static bool give_pages(Decoder *d, const Job *job, Place *place)
{
    int64_t tokens = (int64_t)job->request.prompt_len + job->told, want = pages_for(d, tokens);
    int64_t shared = share_pages(d, job, tokens, place->pages);
    if (want - shared + spare_pages(d) > pages_free(d->pages)) {
        for (int64_t i = 0; i < shared; i++) pages_drop(d->pages, place->pages[i]);
        memset(place->pages, 0, (size_t)shared * sizeof *place->pages);
        return false;
    }
    for (int64_t i = shared; i < want; i++) place->pages[i] = pages_take(d->pages);
    place->num_pages = want;
    place->named = shared;
    place->to_prefill = tokens;
    place->prefilled = shared * d->page_len;
    place->issued = job->told;
    return true;
}

/* The first of the queue take the free places. */
static void admit(Decoder *d)
{
    for (int64_t i = 0; i < d->slots && d->first; i++) {
        Place *place = &d->places[i];
        Job   *job = d->first;
        if (place->job) continue;
        if (!give_pages(d, job, place)) return;
        place->job = job;
        d->first = job->next;
        if (!d->first) d->last = &d->first;
        d->num_waiting--;
        d->num_placed++;
    }
}

/* Back to the front of the queue: all that wait are younger. */
static void preempt(Decoder *d, Place *place)
{
    Job *job = place->job;
    free_place(d, place);
    job->next = d->first;
    if (!d->first) d->last = &job->next;
    d->first = job;
    d->num_waiting++;
    d->num_preempted++;
}

static Place *youngest(Decoder *d)
{
    Place *found = NULL;
    for (Place *place = d->places; place < d->places + d->slots; place++)
        if (place->job && (!found || place->job->handle > found->job->handle)) found = place;
    return found;
}

/* ---- runs ---- */

static bool has_prompt_left(const Place *place)
{
    return place->job && place->prefilled < place->to_prefill;
}

static bool can_decode(const Place *place)
{
    return place->job && !has_prompt_left(place) && place->issued < place->job->most;
}

/* How row b's token is chosen: the one behind `position` tokens. */
static void feed_choice(Decoder *d, int64_t b, const Job *job, int64_t position)
{
    const SampleOptions *s = &job->request.sample;
    float               *controls = d->feeds.controls + b * SAMPLE_CONTROLS;
    uint32_t            *keys = (uint32_t *)d->feeds.keys + b * SAMPLE_KEYS;
    controls[SAMPLE_TEMPERATURE] = (float)s->temperature;
    controls[SAMPLE_TOP_K] = s->top_k < d->head ? (float)s->top_k : 0;
    controls[SAMPLE_TOP_P] = (float)s->top_p;
    controls[SAMPLE_MIN_P] = (float)s->min_p;
    controls[SAMPLE_REPETITION] = s->repetition != 0 ? (float)s->repetition : 1;
    controls[SAMPLE_PRESENCE] = (float)s->presence;
    controls[SAMPLE_FREQUENCY] = (float)s->frequency;
    keys[SAMPLE_SEED_LOW] = (uint32_t)s->seed;
    keys[SAMPLE_SEED_HIGH] = (uint32_t)(s->seed >> 32);
    keys[SAMPLE_REQUEST_LOW] = (uint32_t)s->request;
    keys[SAMPLE_REQUEST_HIGH] = (uint32_t)(s->request >> 32);
    keys[SAMPLE_NUMBER] = s->number;
    keys[SAMPLE_POSITION] = (uint32_t)position;
    for (int i = 0; i < d->biases; i++) {
        d->feeds.bias_ids[b * d->biases + i] = i < s->num_biases ? s->bias_ids[i] : -1;
        d->feeds.biases[b * d->biases + i] = i < s->num_biases ? s->biases[i] : 0;
    }
}

/* Row b is nobody's. */
static void feed_idle(Decoder *d, int64_t b)
{
    static const Job nobody;
    d->feeds.slots[b] = d->feeds.prompt_slots[b] = d->feeds.adapters[b] = -1;
    d->feeds.starts[b] = d->feeds.text_starts[b] = d->feeds.row[b] = d->feeds.tokens[b] = d->feeds.positions[b] = 0;
    memset(d->feeds.pages + b * d->row_pages, 0, (size_t)d->row_pages * sizeof *d->feeds.pages);
    feed_choice(d, b, &nobody, 0);
}

static void feed_place(Decoder *d, int64_t b, int64_t place, int64_t start)
{
    d->feeds.slots[b] = d->feeds.prompt_slots[b] = (int32_t)place;
    d->feeds.adapters[b] = d->places[place].job->request.adapter - 1;
    d->feeds.starts[b] = (int32_t)start;
    d->feeds.text_starts[b] = (int32_t)d->places[place].job->request.prompt_len;
    memcpy(d->feeds.pages + b * d->row_pages, d->places[place].pages, (size_t)d->row_pages * sizeof *d->feeds.pages);
}

static Status launch(Decoder *d, const Program *program, Run *run)
{
    d->step[STEP_RUN] = run->number;
    d->ran = program;
    TRY(session_feed(d->session, program, &d->feeds));
    TRY(session_run(d->session, program));
    return session_mark_run(d->session, run->number);
}

static Run *next_run(Decoder *d)
{
    Run *run = &d->runs[d->num_runs % RUNS];
    run->number = d->num_runs++;
    run->num_rows = 0;
    return run;
}

/* Whole pages of a place that runs have filled with known tokens get their names. */
static void name_pages(Decoder *d, Place *place, int64_t known)
{
    if (penalises(&place->job->request.sample)) return;
    for (; place->named < place->num_pages && (place->named + 1) * d->page_len <= known; place->named++) {
        PageBefore before = {place->named ? place->pages[place->named - 1] : 0, place->job->request.adapter};
        pages_name(d->pages, place->pages[place->named], before, place->job->ids + place->named * d->page_len);
    }
}

/* A chunk of what a place begins with; behind the last one the text's next token is chosen. */
static Status run_prefill(Decoder *d, int64_t index)
{
    Place     *place = &d->places[index];
    const Job *job = place->job;
    int64_t    len = place->to_prefill, start = place->prefilled, count = min_of(d->chunk, len - start);
    int        size = size_for(&d->prefill, count);
    int64_t    cells = d->prefill.size[size];
    Run       *run = next_run(d);
    feed_place(d, 0, index, start);
    memset(d->feeds.tokens, 0, (size_t)cells * sizeof *d->feeds.tokens);
    memcpy(d->feeds.tokens, job->ids + start, (size_t)count * sizeof *job->ids);
    for (int64_t t = 0; t < cells; t++) d->feeds.positions[t] = (int32_t)min_of(start + t, d->context - 1);
    d->feeds.row[0] = (int32_t)count - 1;
    feed_choice(d, 0, job, len);
    place->prefilled = start + count;
    bool is_last = place->prefilled == len;
    if (!is_last) d->feeds.slots[0] = -1;
    place->issued += is_last;
    run->num_rows = is_last;
    run->place[0] = (int)index;
    run->handle[0] = job->handle;
    d->num_read += cells;
    TRY(launch(d, d->prefill.program[size], run));
    name_pages(d, place, place->prefilled);
    return OK;
}

/* One more token of every place that can have one. */
static Status run_decode(Decoder *d, int64_t count)
{
    Run *run = next_run(d);
    int  size = size_for(&d->decode, count);
    for (int64_t i = 0; i < d->slots; i++) {
        Place *place = &d->places[i];
        if (!can_decode(place)) continue;
        int     b = run->num_rows++;
        int64_t position = (int64_t)place->job->request.prompt_len + place->issued - 1; /* of the token that is read */
        feed_place(d, b, i, position);
        d->feeds.tokens[b] = -1;
        d->feeds.positions[b] = (int32_t)position;
        feed_choice(d, b, place->job, position + 1);
        place->issued++;
        run->place[b] = (int)i;
        run->handle[b] = place->job->handle;
    }
    for (int64_t b = run->num_rows; b < d->decode.size[size]; b++) feed_idle(d, b);
    d->num_read = 0;
    return launch(d, d->decode.program[size], run);
}

/* ---- what runs told ---- */

static bool is_stop(const DecodeRequest *request, int32_t id)
{
    for (int i = 0; i < request->num_stops; i++)
        if (request->stops[i] == id) return true;
    return false;
}

static float float_of(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Whether the text goes on behind this token; where not, *end says why. */
static bool tell_token(Decoder *d, Place *place, const int32_t *row, DecodeEnd *end)
{
    Job           *job = place->job;
    int64_t        len = (int64_t)job->request.prompt_len, best = (d->told_cols - 3) / 2;
    DecodeRequest *r = &job->request;
    if (row[0] < 0) {
        (void)status_fail(
            ERR_DIVERGED,
            "the model gives NaN or infinity for a token at position %lld, or forbids all tokens, so that none can be chosen: its "
            "weights may hold NaN, or numbers too large for its dtype",
            (long long)(len + job->told));
        *end = DECODE_FAILED;
        return false;
    }
    *end = DECODE_AT_STOP;
    if (is_stop(r, row[0])) return false;
    job->ids[len + job->told++] = row[0];
    DecodeToken token = {row[0], float_of(row[1]), float_of(row[2]), row + 3, (const float *)(row + 3 + best)};
    *end = DECODE_BY_CALLER;
    uint64_t handle = job->handle;
    bool     goes_on = r->token(r->context, &token);
    if (place->job != job || job->handle != handle) return true; /* it was cancelled meanwhile */
    if (!goes_on) return false;
    name_pages(d, place, len + job->told - 1);
    *end = job->told == r->max_tokens ? DECODE_AT_LENGTH : DECODE_AT_CONTEXT;
    return job->told < job->most;
}

static Status tell_run(Decoder *d, const Run *run)
{
    if (run->num_rows) TRY(session_await_run(d->session, run->number));
    for (int b = 0; b < run->num_rows; b++) {
        Place    *place = &d->places[run->place[b]];
        DecodeEnd end;
        if (!place->job || place->job->handle != run->handle[b]) continue; /* it has ended */
        const int32_t *row = d->told + (run->number % DECODE_RING * d->slots + b) * d->told_cols;
        if (!tell_token(d, place, row, &end)) end_job(d, place, place->job, end);
    }
    return OK;
}

static Status tell_runs(Decoder *d, int64_t until)
{
    while (d->num_told < until) TRY(tell_run(d, &d->runs[d->num_told++ % RUNS]));
    return OK;
}

/* ---- steps ---- */

/* Pages that a place lacks for the token that it reads next: 1 or 0. */
static int64_t lacks(const Decoder *d, const Place *place)
{
    if (!can_decode(place)) return 0;
    return pages_for(d, (int64_t)place->job->request.prompt_len + place->issued) - place->num_pages;
}

static int64_t lacking(const Decoder *d)
{
    int64_t count = 0;
    for (int64_t i = 0; i < d->slots; i++) count += lacks(d, &d->places[i]);
    return count;
}

/* Gives places that decode the pages that they lack. Where these aren't there, what runs told is heard first: a text may have ended, and a
 * preempted one's tokens are all known. */
static Status grow(Decoder *d)
{
    if (lacking(d) > pages_free(d->pages)) TRY(tell_runs(d, d->num_runs));
    while (lacking(d) > pages_free(d->pages)) preempt(d, youngest(d));
    for (Place *place = d->places; place < d->places + d->slots; place++)
        if (lacks(d, place)) place->pages[place->num_pages++] = pages_take(d->pages);
    return OK;
}

/* The place of the oldest request whose prompt isn't read yet; -1: there is none. */
static int64_t find_prompt(const Decoder *d)
{
    int64_t found = -1;
    for (int64_t i = 0; i < d->slots; i++)
        if (has_prompt_left(&d->places[i]) && (found < 0 || d->places[i].job->handle < d->places[found].job->handle)) found = i;
    return found;
}

static int64_t num_ready(const Decoder *d)
{
    int64_t ready = 0;
    for (int64_t i = 0; i < d->slots; i++) ready += can_decode(&d->places[i]);
    return ready;
}

/* Prompts are read first, since each adds a row to the steps behind it; but rows that decode never wait for more than some tokens of them.
 */
static Status run_next(Decoder *d)
{
    int64_t prompt = find_prompt(d);
    if (prompt >= 0 && (d->num_read < d->most_read || !num_ready(d))) return run_prefill(d, prompt);
    TRY(grow(d));
    int64_t ready = num_ready(d);
    return ready ? run_decode(d, ready) : OK;
}

Status decoder_step(Decoder *d)
{
    int64_t num_runs = d->num_runs;
    d->ran = NULL;
    admit(d);
    TRY(run_next(d));
    return tell_runs(d, d->num_runs - (d->num_runs > num_runs && d->is_late));
}
