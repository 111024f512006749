/* See decoder.h. The queue is ordered by handle, and every running request is older than every waiting one: requests begin in that order,
 * and the youngest is preempted. So the oldest is never preempted, and a request that runs alone always has enough pages. A preempted
 * request drops its pages. Later its prompt and its text so far are read as one prompt: prefill computes the same bits as decode runs
 * (except with split_k).
 *
 * If the device works in parallel to the host, results are reported one run late. A decode run reads the previous token from device memory,
 * so the device never waits for the host. A text that has ended is therefore decoded once more. That run may write a page that was freed,
 * but before the page's next owner writes it. A row with a guide is only in every other run: its guide needs the last token, which the host
 * must know first. */
#include "infer/decoder_internal.h"

#include "passes/compile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits on the number of tokens that one run reads of a prompt. On the CPU longer runs aren't faster, and take more memory. On a GPU
 * several short prompts share a run of up to TOGETHER tokens. */
enum { LEAST_CHUNK = 32, MOST_CHUNK_CPU = 512, MOST_CHUNK_GPU = 2048, MOST_TOGETHER = 256, TOGETHER = 1024 };
enum { LEAST_BETWEEN = 512 }; /* rows that can decode get a run after this many prompt tokens, or after one chunk if that is longer */
enum { LEAST_TOGETHER = 3 };  /* fewest prompts that share a run: two are faster in runs of their own */
enum { PER_SPARE = 4 };

/* ---- opening ---- */

/* The next chunk size in 32, 64, 96, 128, 192, 256, 384, ...: in long runs at most a third is padding. */
static int64_t next_chunk(int64_t size)
{
    if (size < 2 * LEAST_CHUNK) return 2 * size;
    return (size & (size - 1)) == 0 ? size / 2 * 3 : size / 3 * 4;
}

/* Adds programs that read several prompts at once: 32, 64, 128 or 256 tokens of each. */
static void want_together(CompileOptions *options, int64_t rows, int64_t chunk)
{
    for (int64_t size = LEAST_CHUNK; size <= MOST_TOGETHER && size / 2 < chunk; size *= 2) {
        int64_t batch = min_of(rows, TOGETHER / size);
        if (batch >= LEAST_TOGETHER) compile_add(options, &entry_prefill, batch, size);
    }
}

void decoder_want(CompileOptions *options, const Device *device, const DecoderOptions *want, int64_t choices)
{
    bool    is_cpu = device_is(device, "cpu");
    int64_t chunk = want->prompt > 0 && want->prompt < want->context ? want->prompt : want->context;
    chunk = min_of(chunk, is_cpu ? MOST_CHUNK_CPU : MOST_CHUNK_GPU);
    options->cache_len = want->context;
    options->cache_pages = want->pages;
    options->sampling = (SamplingOptions){choices, want->best, want->penalties, want->biases, want->guides};
    for (int64_t size = LEAST_CHUNK; size < chunk; size = next_chunk(size)) compile_add(options, &entry_prefill, 1, size);
    compile_add(options, &entry_prefill, 1, chunk);
    if (!is_cpu) want_together(options, want->rows, chunk);
    for (int64_t rows = 1; rows < want->rows; rows *= 2) compile_add(options, &entry_decode, rows, 1);
    compile_add(options, &entry_decode, want->rows, 1);
}

/* Finds the programs of an entry, sorted by size. one: include programs of one row; several: include programs of several rows. */
static Status find_sizes(const Plan *plan, const Entry *entry, bool one, bool several, Sizes *out)
{
    for (int i = 0; i < plan->num_programs; i++) {
        const ProgramSpec *spec = &plan->programs[i].spec;
        if (spec->entry != entry || !(spec->batch == 1 ? one : several)) continue;
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
    FAIL_IF(!out->count && one, ERR_INTERNAL, "decoder: the session has no program %s", entry->name);
    return OK;
}

static Status find_programs(Decoder *d)
{
    TRY(find_sizes(d->plan, &entry_prefill, true, false, &d->prefill));
    TRY(find_sizes(d->plan, &entry_prefill, false, true, &d->together));
    return find_sizes(d->plan, &entry_decode, true, true, &d->decode);
}

/* Reads the sizes that the programs were compiled for from the types of their inputs. */
static void read_shapes(Decoder *d)
{
    const Graph *graph = d->decode.program[d->decode.count - 1]->graph;
    const Value *bias_ids = graph_find(graph, "bias_ids"), *guides = graph_find(graph, "guides");
    d->slots = plan_find(d->plan, DECODE_NEXT)->type.dim[0];
    d->row_pages = graph_find(graph, "pages")->type.dim[1];
    d->context = d->plan->cache_len;
    d->chunk = d->prefill.size[d->prefill.count - 1];
    d->head = type_cols(&graph_output(graph, "logits")->type);
    d->told_cols = plan_find(d->plan, DECODE_TOLD)->type.dim[2];
    d->biases = bias_ids ? (int)bias_ids->type.dim[1] : 0;
    d->guide_words = guides ? guides->type.dim[1] : 0;
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
    for (int i = 0; i < d->together.count; i++) {
        const ProgramSpec *spec = &d->together.program[i]->spec;
        if (spec->batch * spec->seq > cells) cells = spec->batch * spec->seq;
    }
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
    d->guides = zeros(d->slots * d->guide_words);
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
    d->feeds.guides = d->guides;
    for (int i = 0; i < FEED_STEP; i++) free(d->feeds.array[i]);
    free(d->places);
    pages_destroy(d->pages);
    free(d);
}

/* ---- the queue ---- */

static Status check_sample(const Decoder *d, const SampleOptions *s)
{
    FAIL_IF(!(s->temperature >= 0 && s->temperature < INFINITY), ERR_INVALID, "temperature %g: expected a finite number of at least 0",
            s->temperature);
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

/* Checks the request's given tokens. A bias forces each of them, so the decoder must have biases. */
static Status check_given(const Decoder *d, const DecodeRequest *r)
{
    FAIL_IF(r->given >= r->prompt_len, ERR_INVALID,
            "%zu tokens of a prompt of %zu are given: expected fewer, as the first has no log-probability", r->given, r->prompt_len);
    FAIL_IF(r->given && !d->biases, ERR_INVALID, "this decoder was opened without memory for biases, which given tokens need");
    FAIL_IF(r->given && penalises(&r->sample), ERR_INVALID, "given tokens and penalties: penalties would count them as text");
    for (size_t i = r->prompt_len - r->given; i < r->prompt_len; i++)
        FAIL_IF(r->prompt[i] >= d->vocab, ERR_INVALID, "token %d of the prompt can't be chosen: expected 0 to %lld", r->prompt[i],
                (long long)d->vocab - 1);
    return OK;
}

static Status check_request(const Decoder *d, const DecodeRequest *r)
{
    FAIL_IF(r->prompt_len == 0, ERR_INVALID, "the prompt is empty and the tokenizer adds no BOS: give at least one token to go on from");
    FAIL_IF((int64_t)r->prompt_len > d->context, ERR_INVALID, "the prompt has %zu tokens, the context only %lld; shorten it", r->prompt_len,
            (long long)d->context);
    FAIL_IF(r->max_tokens < (r->given ? 0 : 1), ERR_INVALID, "%lld tokens are wanted: expected at least %d", (long long)r->max_tokens,
            !r->given);
    TRY(check_given(d, r));
    for (size_t i = 0; i < r->prompt_len; i++)
        FAIL_IF(r->prompt[i] < 0 || r->prompt[i] >= d->head, ERR_INVALID, "token %d of the prompt is beyond the model's vocabulary of %lld",
                r->prompt[i], (long long)d->head);
    FAIL_IF(r->adapter < 0 || r->adapter > d->plan->row_adapters, ERR_INVALID, "adapter %d: the session has %d; 0: none of them",
            r->adapter, d->plan->row_adapters);
    FAIL_IF(r->guide && !d->guide_words, ERR_INVALID, "this decoder was opened without memory for guides");
    FAIL_IF(penalises(&r->sample) && !d->penalties, ERR_INVALID, "this decoder was opened without memory for penalties");
    return check_sample(d, &r->sample);
}

static void *copied(const void *from, size_t bytes)
{
    void *to = malloc_or_end(bytes ? bytes : 1);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

static int64_t pages_for(const Decoder *d, int64_t positions)
{
    return (positions + d->page_len - 1) / d->page_len;
}

/* The most pages that a job may ever hold. */
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
    int64_t       given = (int64_t)request->given, len = (int64_t)request->prompt_len - given;
    job->request = *request;
    job->request.prompt_len = (size_t)len;
    job->given = given;
    job->most = min_of(min_of(request->max_tokens, d->context) + given, d->context - len + 1);
    job->ids = malloc_or_end((size_t)(len + job->most) * sizeof *job->ids);
    memcpy(job->ids, request->prompt, request->prompt_len * sizeof *job->ids);
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

/* Ends a request and calls its `end`. Place and pages are freed before that call, so that it may submit another request. */
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

int64_t decoder_pages_free(const Decoder *d)
{
    return pages_free(d->pages);
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

/* Takes cached pages that hold the beginning of the job's `tokens` tokens; returns how many pages. The last token is always computed, since
 * it gives the next one. A job with penalties shares none: all its tokens have to be counted when they are read. */
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

/* Pages reserved for running requests: one for every PER_SPARE requests that may still grow. So a new request isn't preempted at once. */
static int64_t spare_pages(const Decoder *d)
{
    int64_t growing = 0;
    for (int64_t i = 0; i < d->slots; i++) growing += d->places[i].job && d->places[i].num_pages < most_pages(d, d->places[i].job);
    return (growing + PER_SPARE - 1) / PER_SPARE;
}

/* Gives a place the pages for the job's prompt and text so far. False: there aren't enough. */
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

/* Moves jobs from the front of the queue to free places. */
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

/* Moves the job back to the front of the queue: all waiting jobs are younger. */
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

/* Reports a token; returns whether the text continues. If not, *end says why. */
static bool tell_token(Decoder *d, Place *place, const int32_t *row, DecodeEnd *end)
{
    Job           *job = place->job;
    int64_t        len = (int64_t)job->request.prompt_len, best = (d->told_cols - 3) / 2;
    DecodeRequest *r = &job->request;
    bool           is_given = job->told < job->given;
    if (row[0] < 0 || (is_given && row[0] != job->ids[len + job->told])) {
        (void)status_fail(
            ERR_DIVERGED,
            "the model gives NaN or infinity for a token at position %lld, or forbids all tokens, so that none can be chosen: its "
            "weights may hold NaN, or numbers too large for its dtype: fp16 ends at 65504, bf16 and fp32 reach further",
            (long long)(len + job->told));
        *end = DECODE_FAILED;
        return false;
    }
    *end = DECODE_AT_STOP;
    if (!is_given && is_stop(r, row[0])) return false;
    job->ids[len + job->told++] = row[0];
    DecodeToken token = {row[0], float_of(row[1]), float_of(row[2]), row + 3, (const float *)(row + 3 + best)};
    *end = DECODE_BY_CALLER;
    uint64_t handle = job->handle;
    bool     goes_on = r->token(r->context, &token);
    if (place->job != job || job->handle != handle) return true; /* `token` cancelled the request */
    if (!goes_on) return false;
    decoder_name_pages(d, place, len + job->told - 1);
    *end = job->told - job->given == r->max_tokens ? DECODE_AT_LENGTH : DECODE_AT_CONTEXT;
    return job->told < job->most;
}

static Status tell_run(Decoder *d, const Run *run)
{
    if (run->num_rows) TRY(session_await_run(d->session, run->number));
    for (int b = 0; b < run->num_rows; b++) {
        Place    *place = &d->places[run->place[b]];
        DecodeEnd end;
        if (!place->job || place->job->handle != run->handle[b]) continue; /* the request has ended */
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

/* Pages that a place still lacks to decode its next token: 1 or 0. */
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

/* Gives pages to the places that need one to decode. If there are too few pages, all runs are reported first: a text may have ended, and
 * all tokens of a preempted text must be known. */
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

static int64_t rest_of(const Place *place)
{
    return place->to_prefill - place->prefilled;
}

/* Fills `places` with the place `prompt` and others whose remaining prompts fit the same program; returns how many. If fewer than
 * LEAST_TOGETHER fit, returns 1: `prompt` alone. */
static int find_together(const Decoder *d, int64_t prompt, int *places)
{
    const Sizes *t = &d->together;
    int          count = 0;
    places[0] = (int)prompt;
    if (!t->count || rest_of(&d->places[prompt]) > t->size[t->count - 1]) return 1;
    int     at = size_for(t, rest_of(&d->places[prompt]));
    int64_t most = t->program[at]->spec.batch;
    for (int64_t i = 0; i < d->slots && count < most; i++) {
        int64_t place = (prompt + i) % d->slots; /* the first is `prompt` itself */
        if (has_prompt_left(&d->places[place]) && rest_of(&d->places[place]) <= t->size[at]) places[count++] = (int)place;
    }
    return count < LEAST_TOGETHER ? 1 : count;
}

/* Prompts come first, since each adds a row to later decode runs. But rows that can decode get a run once most_read prompt tokens were
 * read. */
static Status run_next(Decoder *d)
{
    int64_t prompt = find_prompt(d);
    int     places[TOGETHER / LEAST_CHUNK];
    if (prompt >= 0 && (d->num_read < d->most_read || !num_ready(d))) return decoder_prefill(d, places, find_together(d, prompt, places));
    TRY(grow(d));
    int64_t ready = num_ready(d);
    return ready ? decoder_decode(d, ready) : OK;
}

Status decoder_step(Decoder *d)
{
    int64_t num_runs = d->num_runs;
    d->ran = NULL;
    admit(d);
    TRY(run_next(d));
    return tell_runs(d, d->num_runs - (d->num_runs > num_runs && d->is_late));
}
