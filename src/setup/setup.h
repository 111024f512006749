/* From a run file to a session: the model folder opened, the options chosen, the plan made of them, all of it checked against each
 * other before anything is loaded. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "run/session.h"

/* The folder whose tokenizer and chat template a run uses: the key tokenizer, else model; pulled when it names a hub's repository. */
NODISCARD Status setup_tokenizer_dir(Arena *arena, const Config *config, const char **out_dir);

/* The file that says what the model computes; as Python it is run if it is named, or Python allowed, on the command line. */
NamedIr setup_ir(const Config *config);

/* Tokens of a sequence: sequence_len, or its default where the model was made for as many. */
int64_t setup_sequence_len(const Config *config, const HfModel *model);
/* The same where a folder need not hold a model: then the key alone counts. */
int64_t setup_run_length(Arena *arena, const Config *config, const char *dir);

/* Opens config->model, with its weights where the run starts from them; checks the sequence length. The model lives in `arena`. */
NODISCARD Status setup_model(Arena *arena, const Config *config, HfModel **out_model);
/* The ranks of a run. */
int setup_world(const Config *config);
/* What each of them has a part of alone: 1 the optimizer's state, 2 gradients too, 3 weights too. */
int setup_zero_level(const Config *config);
/* A program of this kind more, of the shape that the run file says. */
void             setup_add_program(const Config *config, const HfModel *model, ProgramSpec spec, CompileOptions *options);
NODISCARD Status setup_options(const Config *config, const HfModel *model, CompileOptions *out);

/* Files of all datasets are there; those of the hub are pulled, or, without `pull`, taken as there. */
NODISCARD Status setup_check_datasets(Arena *arena, const Config *config, bool pull);

/* The device the run file asks for; or, for plans alone, the GPU of this name, which isn't here. gpu NULL: none. */
NODISCARD Status setup_device(const Config *config, const char *gpu, Device **out_device);
/* That of rank `index` of the `count` in this process: a GPU each, or a part of the CPU's threads. */
NODISCARD Status setup_rank_device(const Config *config, int index, int count, Device **out_device);

/* The programs of options->programs for this model on this device, in `arena`. */
NODISCARD Status setup_plan(Arena *arena, const HfModel *model, const CompileOptions *options, Device *device, Plan **out_plan);

/* The plan, and, as it fits, its session, whose weights are for the caller to fill. config NULL: there is no run file. */
NODISCARD Status setup_session(Arena *arena, const Config *config, const HfModel *model, const CompileOptions *options, Device *device,
                               Plan **out_plan, Session **out_session);

/* ERR_UNSUPPORTED if the plan reads an input of the model's own, which only a caller's batches have. */
NODISCARD Status setup_refuse_inputs(const HfModel *model, const Plan *plan);

/* How short a step could be if FP8 changed nothing but the time of the products that it multiplies: what the same step is expected to take
 * under recipe bf16, less bf16's time of these products x (1 - rate of bf16 / rate of FP8). *out_seconds 0: the device's rates, or those
 * products, aren't there. */
NODISCARD Status setup_fp8_bound(const Config *config, const HfModel *model, Device *device, double *out_seconds);

/* Bytes the plan may take: the device's memory, or this rank's part of the host's, or what memory_limit or gpu_memory leaves where that is
 * less; 0: no bound is known.
 * *out_key: whose bound it is (NULL: not wanted); CONFIG_KEY_COUNT: the device's. */
int64_t setup_memory_limit(const Config *config, const Plan *plan, ConfigKey *out_key);
/* What the plan takes of it: where the device's memory is the host's, what is pinned too. */
int64_t setup_needed_bytes(const Plan *plan);

/* The pinned memory of the plans of as many ranks of one host against what that has (0: unknown): ERR_NO_FIT. */
NODISCARD Status setup_check_pinned(const Plan *plan, int ranks_here, int64_t available);

/* Simulated seconds of an optimizer step; 0: the device's rates aren't known. */
double setup_step_seconds(const Plan *plan, int64_t micro_steps);

/* The plan against that bound: ERR_NO_FIT with settings that fit, found by planning them on the device, and, with_table, the plan. */
NODISCARD Status setup_check_memory(const Config *config, const HfModel *model, Device *device, const Plan *plan, bool with_table);

/* memory: auto: the fastest settings of the grid that fit, the chosen one first. count 0: none fits; items[0].config is then what takes
 * least. */
enum { MEMORY_CHOICES = 5 };
typedef struct MemoryChoice {
    Config  config; /* borrows from the one that was searched for */
    int64_t bytes;
    double  seconds; /* of an optimizer step, simulated */
} MemoryChoice;
typedef struct MemoryChoices {
    MemoryChoice items[MEMORY_CHOICES];
    int          count;
    int64_t      tokens; /* of an optimizer step, of all ranks */
} MemoryChoices;
NODISCARD Status setup_search(const Config *config, const HfModel *model, Device *device, MemoryChoices *out);
/* A table of them, and the same as a list of JSON objects. */
void setup_print_choices(const MemoryChoices *choices, StrBuf *out);
void setup_write_choices(const MemoryChoices *choices, StrBuf *out);
/* The settings to run with: the run file's, or, with memory: auto, the chosen ones, made in `arena`; then a table on stderr tells of them.
 * comm: all ranks of the run call this, ranks_here of them on one host. Rank 0 searches, within what the poorest of them has. */
NODISCARD Status setup_settle(Arena *arena, const Config *config, const HfModel *model, Device *device, Comm *comm, int ranks_here,
                              const Config **out);

/* A table of the plan for people: regions, programs, parameters. */
void setup_print_plan(const Config *config, const Plan *plan, StrBuf *out);
