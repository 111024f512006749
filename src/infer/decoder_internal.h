/* The parts of a decoder: its requests and places (decoder.c), and the runs that it launches on the device (decoder_runs.c). */
#pragma once

#include "infer/decoder.h"
#include "infer/pages.h"
#include "ops/attrs.h"

enum { MOST_SIZES = 16, RUNS = 2 };

/* Programs of one entry that differ in size, the smallest first. */
typedef struct Sizes {
    const Program *program[MOST_SIZES];
    int64_t        size[MOST_SIZES]; /* decode: rows; prefill: tokens of a row */
    int            count;
} Sizes;

/* A request, with copies of what it points to. */
typedef struct Job {
    DecodeRequest request;
    uint64_t      handle;
    int32_t      *ids;   /* the prompt, then the text */
    int64_t       given; /* the text's first tokens, which the request gave; request.prompt_len excludes them */
    int64_t       told;  /* tokens of the text that the host knows */
    int64_t       most;  /* most tokens of the text, the given ones included */
    struct Job   *next;
} Job;

typedef struct Place {
    Job     *job;   /* NULL: free */
    int32_t *pages; /* (row_pages) its pages in order; 0 from num_pages on */
    int64_t  num_pages;
    int64_t  to_prefill; /* tokens of the prompt and of the text when the job took the place */
    int64_t  prefilled;  /* how many of these tokens are in the cache: read by runs, or in shared pages */
    int64_t  issued;     /* tokens of the text chosen so far, also those that the host doesn't know yet */
    int64_t  named;      /* number of leading pages that are named in `Pages` */
} Place;

/* A run that was launched on the device, and the owners of its rows. */
typedef struct Run {
    int64_t   number;
    int       num_rows;
    int      *place;  /* the place of each row */
    uint64_t *handle; /* for each row the handle of the request whose token it chose; 0: none */
} Run;

struct Decoder {
    Session       *session;
    const Plan    *plan;
    Sizes          prefill, together, decode; /* together: prefill programs for several short prompts */
    const Program *ran;                       /* the last step's program; NULL: none */
    int64_t        slots, row_pages, num_pages, page_len, context, chunk, head, vocab; /* head: columns of the logits */
    int            biases;
    bool           penalties, is_late;
    int64_t        guide_words; /* words of a row's guide; 0: there are no guides */
    int32_t       *guides;      /* (slots, guide_words): becomes feeds.guides in runs with a guided row */
    const int32_t *told;        /* (DECODE_RING, slots, told_cols): the results of runs */
    int64_t        told_cols;
    Place         *places;
    Pages         *pages;
    Job           *first, **last; /* the queue of waiting jobs */
    int64_t        num_waiting, num_placed, num_preempted;
    uint64_t       handles;
    Run            runs[RUNS];
    int64_t        num_runs, num_told;
    int64_t        num_read;  /* tokens that prefill runs read since the last decode run, padding included */
    int64_t        most_read; /* once num_read reaches it, rows that can decode get a run */
    Feeds          feeds;
    int64_t        step[STEP_COUNT];
};

static inline bool penalises(const SampleOptions *s)
{
    return (s->repetition != 0 && s->repetition != 1) || s->presence != 0 || s->frequency != 0;
}

static inline int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline bool has_prompt_left(const Place *place)
{
    return place->job && place->prefilled < place->to_prefill;
}

/* Whether the row has a guide whose next mask depends on a token that the host doesn't know yet. */
static inline bool awaits_token(const Place *place)
{
    return place->job->request.guide && place->issued > place->job->told;
}

static inline bool can_decode(const Place *place)
{
    return place->job && !has_prompt_left(place) && place->issued < place->job->most && !awaits_token(place);
}

/* Index of the smallest size that is at least `count`; if all sizes are smaller, index of the largest. */
static inline int size_for(const Sizes *sizes, int64_t count)
{
    int at = 0;
    while (at < sizes->count - 1 && sizes->size[at] < count) at++;
    return at;
}

/* One run that reads the next chunk of each given place. A place whose last chunk is read also gets its next token. If count > 1, the
 * unread tokens of each place must fit a program of `together`. */
NODISCARD Status decoder_prefill(Decoder *d, const int *places, int count);
/* One run that chooses one more token for each place that can decode; there are `count` of them. */
NODISCARD Status decoder_decode(Decoder *d, int64_t count);

/* Names the place's full pages, so that others can share them. The first `known` tokens are computed and known to the host. */
void decoder_name_pages(Decoder *d, Place *place, int64_t known);
