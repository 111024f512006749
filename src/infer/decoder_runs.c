/* The runs of a decoder: the inputs of each row, and how its next token is chosen. */
#include "infer/decoder_internal.h"

#include <string.h>

/* More than any score: adding it makes a token certain to be chosen. */
static const float sure_bias = 1e30f;

/* Whether the token at `position` was given by the request. */
static bool is_given(const Job *job, int64_t position)
{
    int64_t len = (int64_t)job->request.prompt_len;
    return position >= len && position < len + job->given;
}

/* Sets how row b chooses its token, which will be at `position`. */
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
    controls[SAMPLE_GUIDED] = job->request.guide != NULL;
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
    if (!is_given(job, position)) return;
    controls[SAMPLE_TEMPERATURE] = 0;
    for (int i = 0; i < d->biases; i++) d->feeds.bias_ids[b * d->biases + i] = -1;
    d->feeds.bias_ids[b * d->biases] = job->ids[position];
    d->feeds.biases[b * d->biases] = sure_bias;
}

/* If row b has a guide, sets which ids it may choose. Guides are copied to the device only in runs with a guided row. */
static void feed_guide(Decoder *d, int64_t b, const Job *job)
{
    int32_t *words = d->guides + b * d->guide_words;
    if (!job->request.guide) return;
    d->feeds.guides = d->guides;
    memset(words, 0, (size_t)d->guide_words * sizeof *words);
    job->request.guide(job->request.context, (uint32_t *)words);
}

/* Marks row b, of `seq` tokens, as unused. */
static void feed_idle(Decoder *d, int64_t b, int64_t seq)
{
    static const Job nobody;
    d->feeds.slots[b] = d->feeds.prompt_slots[b] = d->feeds.adapters[b] = -1;
    d->feeds.starts[b] = d->feeds.text_starts[b] = d->feeds.row[b] = 0;
    memset(d->feeds.tokens + b * seq, 0, (size_t)seq * sizeof *d->feeds.tokens);
    memset(d->feeds.positions + b * seq, 0, (size_t)seq * sizeof *d->feeds.positions);
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
    d->feeds.guides = NULL;
    return run;
}

void decoder_name_pages(Decoder *d, Place *place, int64_t known)
{
    if (penalises(&place->job->request.sample)) return;
    for (; place->named < place->num_pages && (place->named + 1) * d->page_len <= known; place->named++) {
        PageBefore before = {place->named ? place->pages[place->named - 1] : 0, place->job->request.adapter};
        pages_name(d->pages, place->pages[place->named], before, place->job->ids + place->named * d->page_len);
    }
}

/* Row b reads the next tokens of its place, at most `seq`. */
static void feed_chunk(Decoder *d, Run *run, int b, int64_t seq)
{
    Place     *place = &d->places[run->place[b]];
    const Job *job = place->job;
    int64_t    start = place->prefilled, count = min_of(seq, place->to_prefill - start);
    int32_t   *tokens = d->feeds.tokens + b * seq, *positions = d->feeds.positions + b * seq;
    feed_place(d, b, run->place[b], start);
    memcpy(tokens, job->ids + start, (size_t)count * sizeof *tokens);
    memset(tokens + count, 0, (size_t)(seq - count) * sizeof *tokens);
    for (int64_t t = 0; t < seq; t++) positions[t] = (int32_t)min_of(start + t, d->context - 1);
    d->feeds.row[b] = (int32_t)count - 1;
    feed_choice(d, b, job, place->to_prefill);
    place->prefilled = start + count;
    bool is_last = !has_prompt_left(place);
    if (!is_last) d->feeds.slots[b] = -1;
    if (is_last) feed_guide(d, b, job);
    place->issued += is_last;
    run->handle[b] = is_last ? job->handle : 0;
    if (is_last) run->num_rows = b + 1;
}

Status decoder_prefill(Decoder *d, const int *places, int count)
{
    Run         *run = next_run(d);
    const Sizes *sizes = count > 1 ? &d->together : &d->prefill;
    int64_t      most = 0;
    for (int b = 0; b < count; b++) {
        int64_t rest = d->places[places[b]].to_prefill - d->places[places[b]].prefilled;
        if (rest > most) most = rest;
    }
    const Program *program = sizes->program[size_for(sizes, most)];
    for (int b = 0; b < count; b++) {
        run->place[b] = places[b];
        feed_chunk(d, run, b, program->spec.seq);
    }
    for (int64_t b = count; b < program->spec.batch; b++) feed_idle(d, b, program->spec.seq);
    d->num_read += program->spec.batch * program->spec.seq;
    TRY(launch(d, program, run));
    for (int b = 0; b < count; b++) decoder_name_pages(d, &d->places[places[b]], d->places[places[b]].prefilled);
    return OK;
}

Status decoder_decode(Decoder *d, int64_t count)
{
    Run *run = next_run(d);
    int  size = size_for(&d->decode, count);
    for (int64_t i = 0; i < d->slots; i++) {
        Place *place = &d->places[i];
        if (!can_decode(place)) continue;
        int     b = run->num_rows++;
        int64_t position = (int64_t)place->job->request.prompt_len + place->issued - 1; /* position of the token that is read */
        feed_place(d, b, i, position);
        d->feeds.tokens[b] = -1;
        d->feeds.positions[b] = (int32_t)position;
        feed_choice(d, b, place->job, position + 1);
        feed_guide(d, b, place->job);
        place->issued++;
        run->place[b] = (int)i;
        run->handle[b] = place->job->handle;
    }
    for (int64_t b = run->num_rows; b < d->decode.size[size]; b++) feed_idle(d, b, 1);
    d->num_read = 0;
    return launch(d, d->decode.program[size], run);
}
