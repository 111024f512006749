/* Entry: what a program computes, as data. A program is an entry and a shape (run/program.h). Passes and drivers read the fields of an
 * entry and never ask which one it is. */
#pragma once

#include <stdbool.h>

/* What the graph of a program is made from. */
typedef enum EntrySource {
    ENTRY_OF_MODEL,   /* the model's module */
    ENTRY_OF_UPDATE,  /* the trained parameters: the optimizer's program */
    ENTRY_OF_SHARES,  /* with several ranks: the ranks' shares of the weights */
    ENTRY_OF_WEIGHTS, /* all weights, as they are loaded */
    ENTRY_OF_MATRIX,  /* a bare matrix, without a model (CompileOptions.head) */
} EntrySource;

typedef struct Entry {
    const char *name;
    EntrySource source;

    /* Only with ENTRY_OF_MODEL: */
    const char *output;          /* the output of the module that it computes */
    bool        has_grads;       /* it includes the backward pass */
    bool        measures;        /* runs before the first step to measure ranges for scales; gradients are not kept */
    bool        is_cached;       /* attention appends keys and values to a cache, and reads the whole cache */
    bool        one_token;       /* the output is for one token of each row, which the input `row` names */
    bool        chooses;         /* the output is logits, from which each row's next token is chosen */
    bool        tells_top;       /* also gives the likeliest next tokens for each token, and ln p of each: top_ids, top_logprobs */
    bool        mixes_documents; /* its rows may hold several documents even where rows of training hold one */
    bool        one_row;         /* it runs for one row at a time, because its output is large */
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

/* Whether its programs are the micro-steps of an optimizer step, over which gradients are summed. */
bool entry_makes_steps(const Entry *entry);
