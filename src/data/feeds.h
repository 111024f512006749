/* Feeds: the arrays that a run of a program reads. Callers fill them by name (struct Feeds), and they are uploaded by index (enum Feed).
 * Whoever has data fills them: the loader, a caller's batches, an evaluation, a decoder, a benchmark. */
#pragma once

#include "base/arena.h"
#include "base/dtype.h"

enum { LABEL_IGNORE = -100 };

/* Indices of the values of feed `step`. */
enum {
    STEP_SEED,
    STEP_INDEX, /* optimizer step, from 0 */
    STEP_RUN,   /* in a decoder: number of this run */
    STEP_COUNT = 4
};
/* Indices of the values of feed `hyper`. */
enum {
    HYPER_LR,
    HYPER_INV_TOKENS, /* 1 / trained tokens of the whole optimizer step */
    HYPER_BIAS1,
    HYPER_BIAS2, /* 1 - beta^t of the optimizer's step t: written on the device, by step_scalars */
    HYPER_COUNT = 8
};

typedef enum FeedShape { FEED_CELLS, FEED_ROWS, FEED_TABLE, FEED_NUMBERS } FeedShape;

typedef enum Feed {
#define FEED(id, name, ctype, dtype, shape, pad) FEED_##id,
#include "data/feeds.def"
#undef FEED
    FEED_COUNT
} Feed;

typedef struct FeedInfo {
    const char *name;
    DType       dtype;
    FeedShape   shape;
    int64_t     count; /* of shape FEED_NUMBERS: number of values */
} FeedInfo;
const FeedInfo *feed_info(Feed feed);

enum { FEED_MOST_OWN = 8, FEED_MOST = FEED_COUNT + FEED_MOST_OWN, OWN_MOST_SIZE = 1024 };

/* An input that a program reads besides the feeds above, with `size` numbers for each token. The numbers describe the token itself or, with
 * of_target, its label (the token to predict at this position). */
typedef struct OwnInput {
    const char *name;
    DType       dtype;     /* DT_I32, DT_F32 */
    int32_t     pad;       /* the value where a row has no token, or no label; 0 for floats */
    int64_t     size;      /* numbers per token, 1 to OWN_MOST_SIZE */
    bool        of_target; /* the numbers describe the label */
} OwnInput;

/* A NULL array isn't copied to the device: programs read the values already there. */
typedef struct Feeds {
    union {
        struct {
#define FEED(id, name, ctype, dtype, shape, pad) ctype *name;
#include "data/feeds.def"
#undef FEED
        };
        void *array[FEED_MOST]; /* indexed by Feed; then the model's own inputs in their order, i32 or f32 */
    };
    int64_t step_index;  /* the optimizer step that this batch is a part of */
    int64_t num_tokens;  /* tokens that aren't padding */
    int64_t num_trained; /* labels that aren't LABEL_IGNORE */
} Feeds;

/* labels: the next token; LABEL_IGNORE where it isn't trained, belongs to another document or is padding. positions: from 0 in each
 * document (or in its part in this row). doc_start: index in the row of the first token of this token's document: attention sees
 * doc_start..t. doc_id: >= 0, identity of the document, the same however rows and batches are laid out.
 *
 * Feeds of decoders, one entry per row. row: the index of the row's last real token in this run. slots: the slot (index into the state kept
 * per sequence) of the sequence whose next token the row chooses; -1: it chooses none. adapters: the row's adapter, an index into
 * CompileOptions.row_adapters; -1: none. prompt_slots: the slot of the sequence that the row's tokens belong to; -1: none.
 * starts: the position of the row's first token. text_starts: the position of the sequence's first token after the prompt. pages: the pages
 * of the KV cache that hold the row's positions, in order; page 0 belongs to no sequence. controls, keys, bias_ids, biases, guides: how the
 * row's next token is chosen (ops/attrs.h). */

/* Points the arrays of FEED_CELLS feeds and of a model's own inputs (own NULL: none) into `memory`: feeds_numel elements of 4 bytes. */
int64_t feeds_numel(int64_t cells, const OwnInput *own, int num_own);
void    feeds_init(Feeds *feeds, int32_t *memory, int64_t cells, const OwnInput *own, int num_own);

/* Fills columns [from, seq) of a row with padding, and `tokens` with `token`. The model's own inputs stay as they are. */
void feeds_pad(Feeds *feeds, int64_t row, int64_t seq, int64_t from, int32_t token);
