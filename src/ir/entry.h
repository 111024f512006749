/* Entry: what a program computes, as data. A program is an entry and a shape (run/program.h). Passes and drivers read the fields of an
 * entry and never ask which one it is. */
#pragma once

#include <stdbool.h>

/* What the graph of a program is made from. */
typedef enum EntrySource {
    ENTRY_OF_MODEL,   /* the model's module */
    ENTRY_OF_UPDATE,  /* the trained parameters: it is the optimizer's */
    ENTRY_OF_SHARES,  /* with several ranks: the ranks' shares of the weights */
    ENTRY_OF_WEIGHTS, /* all weights, as they arrive */
    ENTRY_OF_MATRIX,  /* a bare matrix, without a model (CompileOptions.head) */
} EntrySource;

typedef struct Entry {
    const char *name;
    EntrySource source;

    /* Of one that is made from the model: */
    const char *output;          /* which output of the module it is run for */
    bool        has_grads;       /* it goes backward too */
    bool        measures;        /* no gradients are kept: it is run before the first step for the numbers that scales follow from */
    bool        is_cached;       /* attention appends keys and values to a cache, and reads all that are there */
    bool        one_token;       /* the output is of one token of each row, which the input `row` names */
    bool        chooses;         /* the output are logits, of which each row's next token is chosen */
    bool        tells_top;       /* besides, of each token of its rows, the likeliest next ones and ln p of each: top_ids, top_logprobs */
    bool        mixes_documents; /* its rows may hold several documents where those of training hold one */
    bool        one_row;         /* it runs for one row at a time, as its output is large */
} Entry;

#define ENTRY(id, ...) extern const Entry entry_##id;
#include "ir/entries.def"
#undef ENTRY

/* All entries, in the order of entries.def. */
enum {
#define ENTRY(id, ...) ENTRY_INDEX_##id,
#include "ir/entries.def"
#undef ENTRY
    ENTRY_COUNT
};
const Entry *entry_at(int index);

/* Programs of it are the micro-steps of an optimizer step: its gradients are summed over them. */
bool entry_makes_steps(const Entry *entry);
