/* Sampling sorts all tokens, likeliest first, of equal ones the lower id; the draw is Philox keyed by the seed, counted by the position. */
#include "infer/sampler.h"

#include "base/philox.h"

#include <math.h>
#include <stdlib.h>

typedef struct Candidate {
    float   logit;
    int32_t id;
} Candidate;

struct Sampler {
    SampleOptions options;
    int64_t       vocab_size;
    Candidate    *candidates; /* (vocab_size) */
};

Sampler *sampler_create(const SampleOptions *options, int64_t vocab_size)
{
    Sampler *sampler = malloc_or_end(sizeof *sampler);
    *sampler = (Sampler){*options, vocab_size, malloc_or_end((size_t)vocab_size * sizeof(Candidate))};
    return sampler;
}

void sampler_destroy(Sampler *sampler)
{
    if (!sampler) return;
    free(sampler->candidates);
    free(sampler);
}

int64_t sampler_vocab_size(const Sampler *sampler)
{
    return sampler->vocab_size;
}

static int32_t argmax(const float *logits, int64_t count)
{
    int32_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

static int by_logit(const void *a, const void *b)
{
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Number of candidates, likeliest first, that top-k and top-p leave; their weights' sum goes to *sum. */
static int64_t keep_likely(Sampler *s, double *sum)
{
    int64_t count = s->vocab_size;
    if (s->options.top_k > 0 && s->options.top_k < count) count = s->options.top_k;
    double all = 0, kept = 0, best = s->candidates[0].logit;
    for (int64_t i = 0; i < count; i++) all += exp((s->candidates[i].logit - best) / s->options.temperature);
    int64_t n = 0;
    while (n < count && (n == 0 || kept < s->options.top_p * all)) kept += exp((s->candidates[n++].logit - best) / s->options.temperature);
    *sum = kept;
    return n;
}

int32_t sampler_pick(Sampler *s, const float *logits, int64_t position)
{
    if (!(s->options.temperature > 0)) return argmax(logits, s->vocab_size);
    for (int64_t i = 0; i < s->vocab_size; i++) s->candidates[i] = (Candidate){logits[i], (int32_t)i};
    qsort(s->candidates, (size_t)s->vocab_size, sizeof *s->candidates, by_logit);
    double  sum;
    int64_t n = keep_likely(s, &sum);
    Philox4 words = philox4x32((uint32_t)position, (uint32_t)(position >> 32), 0x73616d70u, 0, s->options.seed);
    double  draw = ((double)words.v[0] + (double)words.v[1] * 0x1p-32) * 0x1p-32 * sum, best = s->candidates[0].logit;
    for (int64_t i = 0; i < n; i++) {
        draw -= exp((s->candidates[i].logit - best) / s->options.temperature);
        if (draw < 0) return s->candidates[i].id;
    }
    return s->candidates[n - 1].id;
}
