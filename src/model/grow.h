/* Models with more tokens. The tokens that a tokenizer lacks come behind its own, and what has a row for each token (embedding, output
 * head, its bias) grows where they need more rows than it has. A new row is the mean of the old ones, which is what transformers draws new
 * rows around. */
#pragma once

#include "model/hf_model.h"
#include "text/tokenizer.h"

#define GROWN_PREFIX "grown--" /* of the name of such a folder */

typedef struct NewTokens {
    int                num_tokens, num_special;
    const char *const *tokens;   /* found as a whole, as any added token */
    const char *const *special;  /* the same, and left out where a text is shown without special tokens */
    int64_t            multiple; /* rows grow to a multiple of it; 0 or 1: to as many as there are tokens */
} NewTokens;

/* The folder with the model of `dir` and the tokens: `dir` itself (*out_dir is that pointer) if it has them and rows enough, else a folder
 * that is made once, in the hub's cache. Folders whose weights are quantised are refused. */
NODISCARD Status grow_local_dir(Arena *arena, const char *dir, const NewTokens *tokens, const char **out_dir);

/* Gives a model that is open its size with the tokens, in memory alone, for plans: nothing is written, and the new rows have no values.
 * Refuses what grow_local_dir refuses. */
NODISCARD Status grow_model(HfModel *model, const NewTokens *tokens);

/* The tokenizer of `dir` with the tokens, in memory alone. */
NODISCARD Status grow_load_tokenizer(const char *dir, const NewTokens *tokens, Tokenizer **out);

/* The new texts of the tokenizer's files. Without data: the file stays as it is, or isn't there. */
typedef struct GrownTokenizer {
    Str     json, config; /* tokenizer.json, tokenizer_config.json */
    int     num_added;    /* tokens that it lacked */
    int64_t num_tokens;   /* that it has then: the largest id + 1 */
} GrownTokenizer;
NODISCARD Status grow_tokenizer(Arena *arena, const char *dir, const NewTokens *tokens, GrownTokenizer *out);
