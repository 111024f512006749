/* The data of a run: datasets tokenized (or found in the cache) and turned into loaders. */
#pragma once

#include "config/config.h"
#include "data/format.h"
#include "data/inspect.h"
#include "data/loader.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "text/template/template.h"
#include "text/tokenizer.h"

typedef struct RunData {
    Arena     arena;
    ShardSet *train_sets, *eval_sets;
    int       num_train_sets, num_eval_sets;
    Loader   *train, *eval; /* eval NULL: nothing to evaluate on */
    float    *losses;       /* of an evaluation batch */
    uint64_t  hash;         /* of what the rows depend on */
    uint64_t  keys;         /* as of run_data_keys */
    int64_t   total_steps;
    StrBuf    notes; /* lines: what the datasets were taken for, what became of them */
} RunData;

/* Which of how many ranks the rows are for. */
typedef struct RowShare {
    int rank, world;
    int together; /* ranks whose rows, one after the other, make a batch; 0 means 1 */
} RowShare;

/* Tokenizes what isn't yet; says on stderr what was found. now_unix: for chat templates. */
NODISCARD Status run_data_open(const Config *config, const CompileOptions *options, const Tokenizer *tokenizer, const char *tokenizer_dir,
                               int64_t now_unix, const HfModel *model, RowShare share, RunData *out);
void             run_data_close(RunData *data);

/* Whether what the plan's programs look up with whole numbers of the data is there. */
NODISCARD Status run_data_check_inputs(const RunData *data, const Config *config, const HfModel *model, const Plan *plan);

/* A dataset's keys as the data layer takes them; strings are the config's. */
NODISCARD Status run_data_options(const Config *config, const Dataset *dataset, DatasetOptions *out);

/* How a run lays out a dataset that it has alone. */
InspectPacking run_data_packing(const Config *config, int64_t seq_len);

/* The chat template of a run: the key chat_template, else the folder's own. NULL: there is none. now_unix: the time it prints
 * (run_data_began). */
NODISCARD Status run_data_template(const Config *config, const char *tokenizer_dir, int64_t now_unix, Template **out_template);

/* The text of the key chat_template, which may be its path; data NULL: the key isn't set. */
NODISCARD Status run_data_template_text(Arena *arena, const Config *config, Str *out);

/* What the data of this run depends on: a hash over the names of its datasets' folders. Reads the files to hash them. */
NODISCARD Status run_data_keys(const Config *config, const Tokenizer *tokenizer, const char *tokenizer_dir, int64_t now_unix,
                               uint64_t *out_keys);

/* The time that chat templates print in the run of output_dir, in seconds: noon of the day when the first one there began (run.json); else
 * what the rows in its cache folder tell; else noon of today, so that the runs of a day share their rows. */
NODISCARD Status run_data_began(const Config *config, int64_t *out);

/* Only the tokenizing. */
NODISCARD Status run_data_tokenize(const Config *config, const Tokenizer *tokenizer, const char *tokenizer_dir, int64_t now_unix);
