/* Models with more tokens. Tokens that the tokenizer lacks are added after its own. Tensors with a row for each token (embedding, output
 * head, its bias) grow if the tokens need more rows. A new row is the mean of the old rows. (transformers draws new rows at random around
 * this mean.) */
#pragma once

#include "model/hf_model.h"
#include "text/tokenizer.h"

#define GROWN_PREFIX "grown--" /* prefix of the name of a folder with added tokens */

typedef struct NewTokens {
    int                num_tokens, num_special;
    const char *const *tokens;   /* matched as a whole in a text, as any added token */
    const char *const *special;  /* matched like `tokens`, but left out when a text is shown without special tokens */
    int64_t            multiple; /* rows grow to a multiple of this; 0 or 1: to the number of tokens */
} NewTokens;

/* *out_dir: a folder with the model of `dir` and the tokens. It is `dir` itself (the same pointer) if `dir` already has the tokens and
 * enough rows, else a folder in the hub's cache, made once. Folders with quantised weights are refused. */
NODISCARD Status grow_local_dir(Arena *arena, const char *dir, const NewTokens *tokens, const char **out_dir);

/* Gives an open model its size with the tokens, in memory only, to make plans: nothing is written, and the new rows have no values. Refuses
 * the same models as grow_local_dir. */
NODISCARD Status grow_model(HfModel *model, const NewTokens *tokens);

/* Loads the tokenizer of `dir` with the tokens added, in memory only. */
NODISCARD Status grow_load_tokenizer(const char *dir, const NewTokens *tokens, Tokenizer **out);

/* The new texts of the tokenizer's files. data NULL: the file stays as it is, or doesn't exist. */
typedef struct GrownTokenizer {
    Str     json, config; /* tokenizer.json, tokenizer_config.json */
    int     num_added;    /* tokens that the tokenizer lacked */
    int64_t num_tokens;   /* tokens of the grown tokenizer: the largest id + 1 */
} GrownTokenizer;
NODISCARD Status grow_tokenizer(Arena *arena, const char *dir, const NewTokens *tokens, GrownTokenizer *out);
