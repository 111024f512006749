/* From a run file to a session: opens the model folder, chooses options, makes the plan, and checks that they fit together, before anything
 * is loaded. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "model/grow.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "run/session.h"

/* The folder of the model that a run trains: the key model. With new tokens (new_tokens, new_special_tokens, pad_vocab_multiple) a copy
 * that includes them, which is made on first use (model/grow.h). */
NODISCARD Status setup_model_dir(Arena *arena, const Config *config, const char **out_dir);

/* The folder of the run's tokenizer and chat template: the key tokenizer, else model; downloaded if it names a repository of a hub. */
NODISCARD Status setup_tokenizer_dir(Arena *arena, const Config *config, const char **out_dir);

/* The tokens that a run adds to the vocabulary. */
NewTokens setup_new_tokens(const Config *config);

/* setup_tokenizer_dir for commands that only look or tokenize: no folder with new tokens is made. *out_dir lacks new tokens, but *out
 * has them in memory (NULL: not wanted; else the caller destroys it). */
NODISCARD Status setup_view_tokenizer(Arena *arena, const Config *config, const char **out_dir, Tokenizer **out);

/* The IR file of the model. A Python file is run only if the command line names it or allows Python. */
NamedIr setup_ir(const Config *config);

/* Tokens of a sequence: sequence_len; its default is lowered to the positions that the model was made for. */
int64_t setup_sequence_len(const Config *config, const HfModel *model);
/* setup_sequence_len for a folder that need not hold a model; without a model it is the key's value. */
int64_t setup_run_length(Arena *arena, const Config *config, const char *dir);

/* Opens config->model, with its weights if the run starts from them, and checks the sequence length. The model is allocated in `arena`. */
NODISCARD Status setup_model(Arena *arena, const Config *config, HfModel **out_model);
/* setup_model for commands that only plan, or that measure with other weights: no folder with new tokens is made. */
NODISCARD Status setup_view_model(Arena *arena, const Config *config, HfModel **out_model);
/* Number of ranks of a run. */
int setup_world(const Config *config);
/* The ZeRO level, which says what is divided among ranks: 1 the optimizer's state, 2 also gradients, 3 also weights. */
int setup_zero_level(const Config *config);
/* Adds a program to options, with the shape that the run file implies. */
void setup_add_program(const Config *config, const HfModel *model, ProgramSpec spec, CompileOptions *options);
/* Sets *out from the run file. Pointers in *out are into `arena` or `config`. */
NODISCARD Status setup_options(Arena *arena, const Config *config, const HfModel *model, CompileOptions *out);

/* Checks that files of all data sets exist. With `pull`, files on a hub are downloaded; without, they are assumed to exist. */
NODISCARD Status setup_check_datasets(Arena *arena, const Config *config, bool pull);

/* Opens the device of the run file. gpu: the name of a GPU to open instead, for planning only, which need not be present; NULL: none. */
NODISCARD Status setup_device(const Config *config, const char *gpu, Device **out_device);
/* The device of rank `index` of the `count` in this process: one GPU each, or a share of the CPU's threads. */
NODISCARD Status setup_rank_device(const Config *config, int index, int count, Device **out_device);

/* Plans options->programs for this model on this device. The plan is allocated in `arena`. */
NODISCARD Status setup_plan(Arena *arena, const HfModel *model, const CompileOptions *options, Device *device, Plan **out_plan);

/* Makes a plan without a run file and, if the plan fits the device, a session. The caller fills in the session's weights. */
NODISCARD Status setup_session(Arena *arena, const HfModel *model, const CompileOptions *options, Device *device, Plan **out_plan,
                               Session **out_session);

/* Checks that data sets provide all inputs besides tokens that programs read. tells: warns of inputs that nothing reads. */
NODISCARD Status setup_check_inputs(const Config *config, const HfModel *model, const Plan *plan, bool tells);
/* ERR_UNSUPPORTED if the plan reads an input that the model declares: plain texts can't provide it. */
NODISCARD Status setup_refuse_inputs(const HfModel *model, const Plan *plan);

/* Bytes that the plan may use: the least of the device's memory (on the CPU this rank's share of the host's), memory_limit, and
 * gpu_memory minus the driver's part; 0: unlimited, as none is known. *out_key: the key that sets the limit (NULL: not wanted);
 * CONFIG_KEY_COUNT: the device's memory. */
int64_t setup_memory_limit(const Config *config, const Plan *plan, ConfigKey *out_key);
/* Bytes that the plan uses, to compare with setup_memory_limit. They include pinned memory if the device's memory is the host's. */
int64_t setup_needed_bytes(const Plan *plan);

/* ERR_NO_FIT if the plans of `ranks_here` ranks of one host pin more than `available` bytes (0: unknown) of its memory. */
NODISCARD Status setup_check_pinned(const Plan *plan, int ranks_here, int64_t available);
