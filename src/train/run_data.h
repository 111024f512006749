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
    Loader   *train, *eval; /* eval NULL: there is no evaluation data */
    float    *losses;       /* a loss for each token of an evaluation batch */
    uint64_t  hash;         /* hash of everything that the rows depend on */
    uint64_t  keys;         /* as in run_data_keys */
    int64_t   total_steps;
    StrBuf    notes; /* lines for the user: what each dataset was read as, and how its rows were used */
} RunData;

/* Which rank's rows a loader reads. */
typedef struct RowShare {
    int rank, world;
    int together; /* number of ranks whose rows are put one after another into one batch; 0 means 1 */
} RowShare;

/* Tokenizes the datasets that aren't in the cache, and opens loaders; logs what was found. now_unix: the time for chat templates. */
NODISCARD Status run_data_open(const Config *config, const CompileOptions *options, const Tokenizer *tokenizer, const char *tokenizer_dir,
                               int64_t now_unix, const HfModel *model, RowShare share, RunData *out);
void             run_data_close(RunData *data);

/* ERR_INVALID: an input of the data has an index outside the table that the plan's programs read with it. */
NODISCARD Status run_data_check_inputs(const RunData *data, const Config *config, const HfModel *model, const Plan *plan);

/* Converts a dataset's keys for the data layer; strings belong to the config. */
NODISCARD Status run_data_options(const Config *config, const Dataset *dataset, DatasetOptions *out);

/* How a run packs rows if this is its only dataset. */
InspectPacking run_data_packing(const Config *config, int64_t seq_len);

/* The chat template of a run: the key chat_template, else the folder's own. *out_template NULL: there is none. now_unix: the time that it
 * prints (run_data_began). */
NODISCARD Status run_data_template(const Config *config, const char *tokenizer_dir, int64_t now_unix, Template **out_template);

/* The text of the key chat_template, which may be a text, a path or a built-in name; data NULL: the key isn't set. */
NODISCARD Status run_data_template_text(Arena *arena, const Config *config, Str *out);

/* Hashes the names of the cache folders of all datasets: it changes whenever the data does. Reads the files to hash them. */
NODISCARD Status run_data_keys(const Config *config, const Tokenizer *tokenizer, const char *tokenizer_dir, int64_t now_unix,
                               uint64_t *out_keys);

/* The time that chat templates print in a run in output_dir, in seconds: noon of the day when the first run there began (run.json). If
 * there was none, the time that the cache folder stores; else noon of today, so that runs of one day share their rows. */
NODISCARD Status run_data_began(const Config *config, int64_t *out);

/* Tokenizes all datasets into the cache, and does nothing else. */
NODISCARD Status run_data_tokenize(const Config *config, const Tokenizer *tokenizer, const char *tokenizer_dir, int64_t now_unix);
