/* See generate.h. Position p of the cache belongs to token p of prompt and text; a chunk of prefill that reaches over the
 * prompt's end is padded, and what it leaves behind the end is overwritten before anything reads it. */
#include "infer/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Generator {
    Session       *session;
    const Program *prefill, *decode;
    int64_t        chunk, cache_len, vocab_size;
    int32_t       *tokens, *positions; /* (chunk) */
    float         *logits;             /* (vocab_size) */
} Generator;

static Status open_decoder(Session *session, Generator *d)
{
    const Plan *plan = session_plan(session);
    *d = (Generator){.session = session, .prefill = plan_program(plan, &entry_prefill), .decode = plan_program(plan, &entry_decode)};
    FAIL_IF(!d->prefill || !d->decode, ERR_INTERNAL, "generate: the session has no prefill and decode programs");
    const Graph *decode = d->decode->graph;
    d->chunk = d->prefill->spec.seq;
    d->vocab_size = type_cols(&graph_output(decode, "logits")->type);
    d->cache_len = plan->cache_len;
    d->tokens = calloc_or_end((size_t)d->chunk * 2, sizeof *d->tokens);
    d->logits = malloc_or_end((size_t)d->vocab_size * sizeof *d->logits);
    d->positions = d->tokens + d->chunk;
    return OK;
}

static void close_decoder(Generator *d)
{
    free(d->tokens);
    free(d->logits);
}

/* row: of a chunk, the token that logits are of. */
static Status run_tokens(Generator *d, const Program *program, int64_t count, int64_t position, int32_t row)
{
    int64_t step[STEP_COUNT] = {[STEP_POSITION] = position};
    for (int64_t i = 0; i < count; i++) d->positions[i] = (int32_t)(position + i < d->cache_len ? position + i : d->cache_len - 1);
    Feeds feeds = {.tokens = d->tokens, .positions = d->positions, .step = step, .row = &row};
    TRY(session_feed(d->session, program, &feeds));
    TRY(session_run(d->session, program));
    return OK;
}

static Status read_logits(Generator *d, const Program *program)
{
    const Value *value = graph_output(program->graph, "logits");
    size_t       bytes = (size_t)type_bytes(&value->type);
    TRY(session_output(d->session, program, "logits", d->logits, bytes));
    if (value->type.dtype != DT_BF16) return OK;
    const uint16_t *narrow = (const uint16_t *)d->logits;
    for (int64_t i = d->vocab_size - 1; i >= 0; i--) d->logits[i] = bf16_to_f32(narrow[i]); /* from the end, in place */
    return OK;
}

/* The last chunk is moved back so that it never reaches over the cache's end. */
static Status prefill(Generator *d, const int32_t *prompt, int64_t count)
{
    for (int64_t at = 0; at < count;) {
        int64_t begin = at + d->chunk <= d->cache_len ? at : d->cache_len - d->chunk;
        int64_t end = begin + d->chunk < count ? begin + d->chunk : count;
        memset(d->tokens, 0, (size_t)d->chunk * sizeof *d->tokens);
        memcpy(d->tokens, prompt + begin, (size_t)(end - begin) * sizeof *prompt);
        TRY(run_tokens(d, d->prefill, d->chunk, begin, (int32_t)(end - begin - 1)));
        at = end;
    }
    return read_logits(d, d->prefill);
}

/* Numbers that can be compared: no NaN, and one that isn't -infinity. A model may forbid tokens by -infinity. */
static Status check_logits(const float *logits, int64_t count, int64_t position)
{
    bool any = false;
    for (int64_t i = 0; i < count; i++) {
        FAIL_IF(
            isnan(logits[i]) || logits[i] == INFINITY, ERR_DIVERGED,
            "the model gives %g for token %lld at position %lld, so that none can be chosen: its weights may hold NaN, or numbers too large "
            "for its dtype",
            (double)logits[i], (long long)i, (long long)position);
        any |= logits[i] > -INFINITY;
    }
    FAIL_IF(!any, ERR_DIVERGED, "the model forbids all tokens at position %lld: all logits are -infinity", (long long)position);
    return OK;
}

static bool is_eos(const GenerateJob *job, int32_t id)
{
    for (int i = 0; i < job->num_eos; i++)
        if (job->eos[i] == id) return true;
    return false;
}

static Status decode(Generator *d, const GenerateJob *job, Sampler *sampler, GenerateStats *stats)
{
    int64_t position = (int64_t)job->prompt_len;
    while (stats->generated < job->max_tokens) {
        TRY(check_logits(d->logits, sampler_vocab_size(sampler), position));
        for (int i = 0; i < job->sample.num_biases; i++) d->logits[job->sample.bias_ids[i]] += job->sample.biases[i];
        if (job->seen) *job->seen = d->logits;
        int32_t id = sampler_pick(sampler, d->logits, position);
        stats->stopped = is_eos(job, id);
        if (stats->stopped) return OK;
        stats->generated++;
        if (!job->sink(job->context, id)) {
            stats->stopped = true;
            return OK;
        }
        if (stats->generated == job->max_tokens) return OK;
        stats->context_full = position >= d->cache_len;
        if (stats->context_full) return OK;
        d->tokens[0] = id;
        TRY(run_tokens(d, d->decode, 1, position++, 0));
        TRY(read_logits(d, d->decode));
    }
    return OK;
}

static Status run_job(Generator *d, const GenerateJob *job, GenerateStats *stats)
{
    FAIL_IF((int64_t)job->prompt_len > d->cache_len, ERR_INVALID, "the prompt has %zu tokens, the context only %lld; shorten it",
            job->prompt_len, (long long)d->cache_len);
    TRY(prefill(d, job->prompt, (int64_t)job->prompt_len));
    Sampler *sampler = sampler_create(&job->sample, job->vocab_size && job->vocab_size < d->vocab_size ? job->vocab_size : d->vocab_size);
    Status   status = decode(d, job, sampler, stats);
    sampler_destroy(sampler);
    return status;
}

Status generate(Session *session, const GenerateJob *job, GenerateStats *out_stats)
{
    Generator d;
    *out_stats = (GenerateStats){0};
    FAIL_IF(job->prompt_len == 0, ERR_INVALID, "the prompt is empty and the tokenizer adds no BOS: give at least one token to go on from");
    TRY(open_decoder(session, &d));
    Status status = run_job(&d, job, out_stats);
    close_decoder(&d);
    return status;
}
