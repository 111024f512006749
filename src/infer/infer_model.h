/* InferModel: a model folder (or an adapter folder and its base) loaded for evaluation and generation. */
#pragma once

#include "infer/decoder.h"
#include "model/hf_model.h"
#include "model/peft.h"
#include "passes/compile.h"
#include "run/session.h"
#include "text/tokenizer.h"

/* Tokens that end a text. */
typedef struct EosIds {
    int32_t *ids;
    int      num;
} EosIds;

/* An adapter that requests choose by name. */
typedef struct RowAdapter {
    const char *name;
    PeftAdapter peft;
    EosIds      eos;
} RowAdapter;

/* NAME is the adapter in folder DIR. */
typedef struct AdapterName {
    const char *name, *dir;
} AdapterName;

typedef struct InferModel {
    Arena             arena;
    HfModel          *model;
    bool              has_adapter;
    PeftAdapter       adapter;
    const char       *tokenizer_dir;
    Tokenizer        *tokenizer; /* NULL: the folder has none */
    TokenizerScratch *scratch;
    int32_t          *eos; /* in the arena; generation_config.json's, config.json's, the tokenizer's */
    int               num_eos;
    Device           *device;
    CompileOptions    options;
    Plan             *plan;
    Session          *session;  /* NULL until infer_start */
    DecoderOptions    decoding; /* what infer_start_decoding started the session for; rows 0: it is another */
    bool              is_told;  /* what of the folder isn't taken as it is (hf_model_tell) */
    Arena             adapters_arena;
    RowAdapter       *row_adapters; /* DecodeRequest.adapter is an index of it, from 1 */
    int               num_row_adapters;
    bool              adapters_are_read; /* the session has their weights */
} InferModel;

/* Opens config, adapter and tokenizer. dir: a model folder, or an adapter folder whose adapter_config.json names its base.
 * adapter: a PEFT folder over it, or NULL. device: as device_open takes it. threads 0: all cores. infer_close frees in every case. */
NODISCARD Status infer_open(InferModel *infer, const char *dir, const char *adapter, const char *device, int threads);
void             infer_close(InferModel *infer);

/* Weights and arithmetic in fp32, bf16 or fp16, in place of the folder's dtype. NULL: nothing is said, and on a CPU a folder in fp16 is
 * computed in fp16 but where its weights get quantised or a recipe is used: ERR_UNSUPPORTED where fp16 was asked for then. */
NODISCARD Status infer_use_dtype(InferModel *infer, const char *name);

/* What infer->options are of the model and adapter alone; infer_open does it. */
void infer_set_options(InferModel *infer);

/* Keeps the matrices of blocks in the format of that name (passes/quantise.h), or as numbers (none), in place of what the folders say.
 * NULL: nothing is said. */
NODISCARD Status infer_use_format(InferModel *infer, const char *word);

/* Keeps keys and values of the KV cache in e4m3 (fp8), or in the model's dtype (auto). NULL: nothing is said. */
NODISCARD Status infer_use_cache(InferModel *infer, const char *word);

/* Products as the recipe of that name has them, each operand with a scale of its own: there are no earlier steps. NULL: nothing is said. */
NODISCARD Status infer_use_recipe(InferModel *infer, const char *name);

/* The end-of-text tokens of the model with this adapter's folder, or NULL, in the arena. */
NODISCARD Status infer_find_eos(const InferModel *infer, const char *adapter, Arena *arena, EosIds *out);

/* The adapters that requests choose among, in place of those before; ERR_INVALID where the model has one that all have, or a name is empty
 * or there twice. Their folders are read again, and the session is kept where the new ones fit it. The tokenizer is the model's: an adapter
 * with another one is refused. infer_use_format comes before. */
NODISCARD Status infer_use_adapters(InferModel *infer, const AdapterName *names, int count);

/* Asks for what generates after a prompt of so many tokens, cache_len with it, in place of other programs. */
void infer_want_generation(InferModel *infer, int64_t prompt_len, int64_t cache_len);

/* Asks for what a decoder needs, in place of other programs. */
void infer_want_decoding(InferModel *infer, const DecoderOptions *options);

/* Compiles infer->options, whose programs come first (dtype is the model's unless changed). */
NODISCARD Status infer_start(InferModel *infer);
/* The same of what a decoder needs, unless the session that is there serves: one for as many rows, the same context and pages, and all
 * else. A text is the same, to the bit. */
NODISCARD Status infer_start_decoding(InferModel *infer, const DecoderOptions *options);
void             infer_stop(InferModel *infer); /* drops the session, so that another may be started */

/* Ids of a text as the model is fed it; add_special: with BOS and the like where the tokenizer adds them. ERR_INVALID when an id is beyond
 * the embedding. */
NODISCARD Status infer_encode(InferModel *infer, const char *text, size_t len, bool add_special, TokenIds *out);

/* ERR_INVALID when one of the ids from `first` on is beyond the embedding. */
NODISCARD Status infer_check_ids(const InferModel *infer, const TokenIds *ids, size_t first);

/* Tokens that can be chosen: ids below it, which is at most as many as the tokenizer has, where there is one. */
int64_t infer_num_choices(const InferModel *infer);

/* Bytes of a text that `first` stands for, the first of its ids: it has no loss. 0: it was added before the text, as BOS is. */
size_t infer_first_bytes(const InferModel *infer, Str text, int32_t first);
