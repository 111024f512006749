/* What a decoder is made of: its requests and places (decoder.c), and the runs that it gives the device (decoder_runs.c). */
#pragma once

#include "infer/decoder.h"
#include "infer/pages.h"
#include "ops/attrs.h"

enum { MOST_SIZES = 16, RUNS = 2 };

/* Programs of one entry that differ in size, the smallest first. */
typedef struct Sizes {
    const Program *program[MOST_SIZES];
    int64_t        size[MOST_SIZES]; /* rows of decode, tokens of a row of prefill */
    int            count;
} Sizes;

/* A request, with copies of what it points to. */
typedef struct Job {
    DecodeRequest request;
    uint64_t      handle;
    int32_t      *ids;   /* prompt and text */
    int64_t       given; /* tokens at the text's beginning that are the request's; the prompt ends before them */
    int64_t       told;  /* tokens of the text, known here */
    int64_t       most;  /* of them */
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
    Sizes          prefill, together, decode;                                          /* together: prefill of several short prompts */
    const Program *ran;                                                                /* by the last step; NULL: nothing */
    int64_t        slots, row_pages, num_pages, page_len, context, chunk, head, vocab; /* head: columns of the logits */
    int            biases;
    bool           penalties, is_late;
    int64_t        guide_words; /* of a row; 0: rows have no guides */
    int32_t       *guides;      /* (slots,guide_words): feeds.guides of runs that have a guided row */
    const int32_t *told;        /* (DECODE_RING,slots,told_cols) */
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

/* What may come next follows from a token that the host doesn't know yet. */
static inline bool awaits_token(const Place *place)
{
    return place->job->request.guide && place->issued > place->job->told;
}

static inline bool can_decode(const Place *place)
{
    return place->job && !has_prompt_left(place) && place->issued < place->job->most && !awaits_token(place);
}

/* The smallest that holds so many; where none does, the largest. */
static inline int size_for(const Sizes *sizes, int64_t count)
{
    int at = 0;
    while (at < sizes->count - 1 && sizes->size[at] < count) at++;
    return at;
}

/* One run: of each place a chunk of what it begins with; behind the last one the text's next token is chosen. Several places have rests
 * that a program of `together` holds. */
NODISCARD Status decoder_prefill(Decoder *d, const int *places, int count);
/* One run: one more token of every place that can have one, `count` in all. */
NODISCARD Status decoder_decode(Decoder *d, int64_t count);

/* Whole pages of a place that runs have filled with known tokens get their names. */
void decoder_name_pages(Decoder *d, Place *place, int64_t known);
