/* From a run file to a session: the model folder opened, the options chosen, the plan made of them, all of it checked against each
 * other before anything is loaded. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "model/grow.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "run/session.h"

/* The model that a run trains: the key model; with new tokens (new_tokens, new_special_tokens, pad_vocab_multiple) the folder that has
 * them, which is made the first time (model/grow.h). */
NODISCARD Status setup_model_dir(Arena *arena, const Config *config, const char **out_dir);

/* The folder whose tokenizer and chat template a run uses: the key tokenizer, else model; pulled when it names a hub's repository. */
NODISCARD Status setup_tokenizer_dir(Arena *arena, const Config *config, const char **out_dir);

/* The tokens that a run adds. */
NewTokens setup_new_tokens(const Config *config);

/* The same for commands that only look or tokenize. No folder with new tokens is made: *out_dir is without them, and *out (NULL: not
 * wanted), which the caller destroys, has them in memory. */
NODISCARD Status setup_view_tokenizer(Arena *arena, const Config *config, const char **out_dir, Tokenizer **out);

/* The file that says what the model computes; as Python it is run if it is named, or Python allowed, on the command line. */
NamedIr setup_ir(const Config *config);

/* Tokens of a sequence: sequence_len, or its default where the model was made for as many. */
int64_t setup_sequence_len(const Config *config, const HfModel *model);
/* The same where a folder need not hold a model: then the key alone counts. */
int64_t setup_run_length(Arena *arena, const Config *config, const char *dir);

/* Opens config->model, with its weights where the run starts from them; checks the sequence length. The model lives in `arena`. */
NODISCARD Status setup_model(Arena *arena, const Config *config, HfModel **out_model);
/* The same for what only plans, or measures with other weights: no folder with new tokens is made. */
NODISCARD Status setup_view_model(Arena *arena, const Config *config, HfModel **out_model);
/* The ranks of a run. */
int setup_world(const Config *config);
/* What each of them has a part of alone: 1 the optimizer's state, 2 gradients too, 3 weights too. */
int setup_zero_level(const Config *config);
/* A program of this kind more, of the shape that the run file says. */
void setup_add_program(const Config *config, const HfModel *model, ProgramSpec spec, CompileOptions *options);
/* What *out points to lives in `arena`. */
NODISCARD Status setup_options(Arena *arena, const Config *config, const HfModel *model, CompileOptions *out);

/* Files of all datasets are there; those of the hub are pulled, or, without `pull`, taken as there. */
NODISCARD Status setup_check_datasets(Arena *arena, const Config *config, bool pull);

/* The device the run file asks for; or, for plans alone, the GPU of this name, which isn't here. gpu NULL: none. */
NODISCARD Status setup_device(const Config *config, const char *gpu, Device **out_device);
/* That of rank `index` of the `count` in this process: a GPU each, or a part of the CPU's threads. */
NODISCARD Status setup_rank_device(const Config *config, int index, int count, Device **out_device);

/* The programs of options->programs for this model on this device, in `arena`. */
NODISCARD Status setup_plan(Arena *arena, const HfModel *model, const CompileOptions *options, Device *device, Plan **out_plan);

/* The plan, and, as it fits the device, its session, whose weights are for the caller to fill: without a run file. */
NODISCARD Status setup_session(Arena *arena, const HfModel *model, const CompileOptions *options, Device *device, Plan **out_plan,
                               Session **out_session);

/* Whether the run's data sets give what its programs read besides tokens. tells: warns of what nothing reads. */
NODISCARD Status setup_check_inputs(const Config *config, const HfModel *model, const Plan *plan, bool tells);
/* ERR_UNSUPPORTED if the plan reads an input of the model's own, which texts don't have. */
NODISCARD Status setup_refuse_inputs(const HfModel *model, const Plan *plan);

/* Bytes the plan may take: the device's memory, or this rank's part of the host's, or what memory_limit or gpu_memory leaves where that is
 * less; 0: no bound is known.
 * *out_key: whose bound it is (NULL: not wanted); CONFIG_KEY_COUNT: the device's. */
int64_t setup_memory_limit(const Config *config, const Plan *plan, ConfigKey *out_key);
/* What the plan takes of it: where the device's memory is the host's, what is pinned too. */
int64_t setup_needed_bytes(const Plan *plan);

/* The pinned memory of the plans of as many ranks of one host against what that has (0: unknown): ERR_NO_FIT. */
NODISCARD Status setup_check_pinned(const Plan *plan, int ranks_here, int64_t available);
