/* Feeds: the arrays that a run of a program reads, by name here and by index where they cross to a device. Whoever has data fills them: the
 * loader, a caller's batches, an evaluation, a decoder, a benchmark. */
#pragma once

#include "base/arena.h"
#include "base/dtype.h"

enum { LABEL_IGNORE = -100 };

/* Feed `step`. */
enum {
    STEP_SEED,
    STEP_INDEX, /* optimizer step, from 0 */
    STEP_RUN,   /* of a decoder: the number of this run */
    STEP_COUNT = 4
};
/* Feed `hyper`. */
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
    int64_t     count; /* of FEED_NUMBERS */
} FeedInfo;
const FeedInfo *feed_info(Feed feed);

enum { FEED_MOST_OWN = 8, FEED_MOST = FEED_COUNT + FEED_MOST_OWN, OWN_MOST_SIZE = 1024 };

/* What a program reads of each token besides, under a name of its own: `size` numbers, of the token itself or of the one that is predicted
 * there, its label. */
typedef struct OwnInput {
    const char *name;
    DType       dtype;     /* DT_I32, DT_F32 */
    int32_t     pad;       /* where rows have no token, or no label; 0 for floats */
    int64_t     size;      /* numbers of a token, 1 to OWN_MOST_SIZE */
    bool        of_target; /* they are the label's */
} OwnInput;

/* A NULL array isn't given: what a program reads of it stays as it is on the device. */
typedef struct Feeds {
    union {
        struct {
#define FEED(id, name, ctype, dtype, shape, pad) ctype *name;
#include "data/feeds.def"
#undef FEED
        };
        void *array[FEED_MOST]; /* by Feed, then the model's own inputs in their order, i32 or f32 */
    };
    int64_t step_index;  /* of the optimizer step that it is a part of */
    int64_t num_tokens;  /* not padding */
    int64_t num_trained; /* labels that aren't LABEL_IGNORE */
} Feeds;

/* labels: the next token, LABEL_IGNORE where it isn't trained, is another document's or is padding. positions: from 0 in each document (or
 * its part in this row). doc_start: index in the row of the first token of this token's document: attention sees doc_start..t. doc_id: >=
 * 0, identity of the document, the same however rows and batches are laid out.
 *
 * row: of each row, the index of its last true token in this run. slots: the sequence whose next token a row chooses, an index of what
 * is kept of each; -1: none. adapters: the one of CompileOptions.row_adapters that
 * a row has; -1: none. prompt_slots: the sequence whose prompt a row is a part of. starts: the position of a row's first token.
 * text_starts: the position of its sequence's first token of text, behind the prompt. pages: the pages of the KV cache that hold a row's
 * positions, in order; page 0 is nobody's. controls, keys, bias_ids, biases, guides: how a row's next token is chosen (ops/sample.h). */

/* Arrays of all FEED_CELLS feeds, and of a model's own inputs (own NULL: none). memory: feeds_numel elements of 4 bytes. */
int64_t feeds_numel(int64_t cells, const OwnInput *own, int num_own);
void    feeds_init(Feeds *feeds, int32_t *memory, int64_t cells, const OwnInput *own, int num_own);

/* Columns [from, seq) of a row become padding, but for inputs of the model's own. token: what stands there in `tokens`. */
void feeds_pad(Feeds *feeds, int64_t row, int64_t seq, int64_t from, int32_t token);
