/* Temporary: one request after the other, over generate(). No penalties, no min_p. */
#include "infer/decoder.h"

#include "infer/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BEST = 20 };

typedef struct Queued {
    DecodeRequest request;
    uint64_t      handle;
    bool          is_cancelled;
} Queued;

struct Decoder {
    Session     *session;
    int64_t      vocab_size;
    Queued      *queue;
    size_t       count, capacity;
    uint64_t     next_handle;
    const float *logits;
};

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc_or_end(bytes + 1);
    if (bytes) memcpy(copy, data, bytes);
    return copy;
}

static void free_request(const DecodeRequest *r)
{
    free((void *)r->prompt);
    free((void *)r->stops);
    free((void *)r->sample.bias_ids);
    free((void *)r->sample.biases);
}

Status decoder_create(Session *session, int64_t vocab_size, Decoder **out_decoder)
{
    const Graph *graph = plan_program(session_plan(session), &entry_decode)->graph;
    int64_t      all = type_cols(&graph_output(graph, "logits")->type);
    *out_decoder = calloc_or_end(1, sizeof **out_decoder);
    (*out_decoder)->session = session;
    (*out_decoder)->vocab_size = vocab_size && vocab_size < all ? vocab_size : all;
    return OK;
}

void decoder_destroy(Decoder *decoder)
{
    if (!decoder) return;
    for (size_t i = 0; i < decoder->count; i++) free_request(&decoder->queue[i].request);
    free(decoder->queue);
    free(decoder);
}

Status decoder_submit(Decoder *d, const DecodeRequest *request, uint64_t *out_handle)
{
    DecodeRequest r = *request;
    int64_t       context = session_plan(d->session)->cache_len;
    FAIL_IF(!r.prompt_len, ERR_INVALID, "the prompt is empty");
    FAIL_IF((int64_t)r.prompt_len > context, ERR_INVALID, "the prompt has %zu tokens, the context only %lld; shorten it", r.prompt_len,
            (long long)context);
    r.prompt = copy_of(r.prompt, r.prompt_len * sizeof *r.prompt);
    r.stops = copy_of(r.stops, (size_t)r.num_stops * sizeof *r.stops);
    r.sample.bias_ids = copy_of(r.sample.bias_ids, (size_t)r.sample.num_biases * sizeof *r.sample.bias_ids);
    r.sample.biases = copy_of(r.sample.biases, (size_t)r.sample.num_biases * sizeof *r.sample.biases);
    r.sample.seed += r.sample.request * 1000003 + r.sample.number;
    if (d->count == d->capacity) d->queue = realloc_or_end(d->queue, (d->capacity = 2 * d->capacity + 4) * sizeof *d->queue);
    d->queue[d->count++] = (Queued){r, ++d->next_handle, false};
    if (out_handle) *out_handle = d->next_handle;
    return OK;
}

void decoder_cancel(Decoder *d, uint64_t handle)
{
    for (size_t i = 0; i < d->count; i++)
        if (d->queue[i].handle == handle) d->queue[i].is_cancelled = true;
}

typedef struct Telling {
    Decoder       *decoder;
    DecodeRequest *request;
    bool           is_refused;
} Telling;

static bool tell(void *context, int32_t id)
{
    Telling *t = context;
    Decoder *d = t->decoder;
    double   sum = 0;
    int32_t  ids[MOST_BEST];
    float    best[MOST_BEST], most = -INFINITY;
    for (int64_t i = 0; i < d->vocab_size; i++) most = fmaxf(most, d->logits[i]);
    for (int64_t i = 0; i < d->vocab_size; i++) sum += exp((double)(d->logits[i] - most));
    float log_sum = most + (float)log(sum);
    for (int k = 0; k < MOST_BEST; k++) {
        int64_t found = -1;
        for (int64_t i = 0; i < d->vocab_size; i++) {
            bool taken = false;
            for (int j = 0; j < k; j++) taken |= ids[j] == i;
            if (!taken && (found < 0 || d->logits[i] > d->logits[found])) found = i;
        }
        ids[k] = (int32_t)found;
        best[k] = found < 0 ? 0 : d->logits[found] - log_sum;
    }
    DecodeToken token = {id, d->logits[id] - log_sum, d->logits[id] - log_sum, ids, best};
    t->is_refused = !t->request->token(t->request->context, &token);
    return !t->is_refused;
}

Status decoder_step(Decoder *d)
{
    if (!d->count) return OK;
    size_t        at = (size_t)(d->next_handle * 7 + d->count) % d->count; /* in any order, as texts of different lengths end */
    Queued        q = d->queue[at];
    DecodeRequest r = q.request;
    Telling       telling = {d, &r, false};
    GenerateStats stats = {0};
    GenerateJob   job = {.prompt = r.prompt,
                         .prompt_len = r.prompt_len,
                         .max_tokens = r.max_tokens,
                         .vocab_size = d->vocab_size,
                         .sample = r.sample,
                         .eos = r.stops,
                         .num_eos = r.num_stops,
                         .sink = tell,
                         .context = &telling,
                         .seen = &d->logits};
    memmove(d->queue + at, d->queue + at + 1, (--d->count - at) * sizeof *d->queue);
    Status status = q.is_cancelled ? OK : generate(d->session, &job, &stats);
    if (status == OK || status == ERR_DIVERGED)
        r.end(r.context, status != OK                           ? DECODE_FAILED
                         : q.is_cancelled || telling.is_refused ? DECODE_BY_CALLER
                         : stats.stopped                        ? DECODE_AT_STOP
                         : stats.context_full                   ? DECODE_AT_CONTEXT
                                                                : DECODE_AT_LENGTH);
    free_request(&r);
    return status == ERR_DIVERGED ? OK : status;
}

bool decoder_is_busy(const Decoder *d)
{
    return d->count > 0;
}

int64_t decoder_num_waiting(const Decoder *d)
{
    (void)d;
    return 0;
}
