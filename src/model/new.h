/* Making a Hugging Face folder from nothing: a shipped family and size, with random weights. models/presets.json lists the sizes. */
#pragma once

#include "base/pool.h"
#include "model/hf_model.h"

/* Appends the known names, one a line, for help and messages. */
NODISCARD Status new_list(StrBuf *out);

typedef struct NewOptions {
    const char        *arch;     /* a known name, as qwen3-0.6b */
    const char *const *settings; /* key=value for config.json, in place of the preset's; a value that isn't JSON is a text */
    size_t             num_settings;
    const char
        *tokenizer; /* folder whose tokenizer files are copied; it also gives vocab_size and the ids of BOS, EOS and padding; NULL: none */
    bool weights;   /* false: write only config.json (and tokenizer), for from_scratch */
    uint64_t    seed;
    int64_t     max_shard_bytes;
    ThreadPool *pool; /* may be NULL */
} NewOptions;

/* Writes the folder; weights stream to disk. ERR_INVALID for an unknown name (with the nearest), a setting the family
 * doesn't take, a folder that already holds a model. */
NODISCARD Status new_model(const NewOptions *options, const char *folder);
