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

/* An adapter that requests can choose by name. */
typedef struct RowAdapter {
    const char *name;
    PeftAdapter peft;
    EosIds      eos;
} RowAdapter;

/* The option NAME=DIR: a name for the adapter in folder DIR. */
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
    int32_t          *eos; /* ids that end a text, in the arena; from generation_config.json, config.json and the tokenizer */
    int               num_eos;
    Device           *device;
    CompileOptions    options;
    Arena             plan_arena; /* holds the plan; freed with the session, since a caller may start thousands of sessions */
    Plan             *plan;
    Session          *session;  /* NULL until infer_start */
    DecoderOptions    decoding; /* the options that infer_start_decoding started the session with; rows 0: it was started otherwise */
    bool              is_told;  /* notes on the folder were logged (hf_model_tell) */
    Arena             adapters_arena;
    RowAdapter       *row_adapters; /* row_adapters[i] is adapter i + 1 in DecodeRequest.adapter */
    int               num_row_adapters;
    bool              adapters_are_read; /* the session has the adapters' weights */
} InferModel;

/* Opens config, adapter and tokenizer. dir: a model folder, or an adapter folder whose adapter_config.json names its base. adapter: a PEFT
 * folder over the model, or NULL. device: as in device_open. threads 0: all cores. infer_close frees in every case. */
NODISCARD Status infer_open(InferModel *infer, const char *dir, const char *adapter, const char *device, int threads);
void             infer_close(InferModel *infer);

/* Sets the dtype of weights and arithmetic: fp32, bf16 or fp16, instead of the folder's (bf16 for a folder in fp16). NULL: not given.
 * ERR_UNSUPPORTED: fp16 with quantised weights. infer_use_format and infer_use_recipe refuse fp16 in the same way. */
NODISCARD Status infer_use_dtype(InferModel *infer, const char *name);

/* Sets infer->options from the model and adapter alone; infer_open calls it. */
void infer_set_options(InferModel *infer);

/* Stores the matrices of blocks in this format (passes/quantise.h), or unquantised ("none"), instead of the folders' format. NULL: not
 * given. */
NODISCARD Status infer_use_format(InferModel *infer, const char *word);

/* Stores keys and values of the KV cache in e4m3 ("fp8"), or in the model's dtype ("auto"). NULL: not given. */
NODISCARD Status infer_use_cache(InferModel *infer, const char *word);

/* Computes products as this recipe says; each operand gets a scale of its own, since there are no earlier steps. NULL: not given. */
NODISCARD Status infer_use_recipe(InferModel *infer, const char *name);

/* The ids that end texts of the model with the adapter in this folder (NULL: without), in the arena. */
NODISCARD Status infer_find_eos(const InferModel *infer, const char *adapter, Arena *arena, EosIds *out);

/* Sets the adapters that requests can choose among; earlier ones are dropped. Reads their folders anew; keeps the session if the new
 * adapters have the shapes of the old. ERR_INVALID: the model was opened with an adapter, or a name is empty or occurs twice.
 * ERR_UNSUPPORTED: an adapter has another tokenizer than the model. Call infer_use_format before. */
NODISCARD Status infer_use_adapters(InferModel *infer, const AdapterName *names, int count);

/* Replaces the programs in infer->options by those for one prompt of prompt_len tokens; cache_len: tokens of prompt and text together. */
void infer_want_generation(InferModel *infer, int64_t prompt_len, int64_t cache_len);

/* Replaces the programs in infer->options by those that a decoder needs. */
void infer_want_decoding(InferModel *infer, const DecoderOptions *options);

/* Compiles the programs in infer->options, which must be set before, and loads the weights. The dtype is the model's, unless
 * infer_use_dtype changed it. */
NODISCARD Status infer_start(InferModel *infer);
/* Like infer_start with the programs of a decoder. Keeps the running session if it suits `options`: at least as many rows, the same context
 * and pages, and all features asked for. A text has the same bits either way. */
NODISCARD Status infer_start_decoding(InferModel *infer, const DecoderOptions *options);
void             infer_stop(InferModel *infer); /* destroys the session, so that another may be started */

/* Appends the ids of a text for the model. add_special: with BOS and other tokens that the tokenizer adds. ERR_INVALID: an id is beyond the
 * embedding. */
NODISCARD Status infer_encode(InferModel *infer, const char *text, size_t len, bool add_special, TokenIds *out);

/* ERR_INVALID: one of the ids from index `first` on is beyond the embedding. */
NODISCARD Status infer_check_ids(const InferModel *infer, const TokenIds *ids, size_t first);

/* How many ids, from 0 on, can be chosen: the vocabulary size of the model, or of the tokenizer if that is smaller. */
int64_t infer_num_choices(const InferModel *infer);

/* Whether the model's rotary embedding has two sets of factors (longrope). A session uses the long set for all texts if its context is
 * longer than *out_original. */
bool infer_longrope(const InferModel *infer, int64_t *out_original);

/* Length in bytes of the text's first token, which has no loss. 0: that token isn't part of the text, but was added before it, like BOS. */
size_t infer_first_bytes(const InferModel *infer, Str text, int32_t first);
