/* The state of a training run. Shared by trainer.c (start and end), trainer_output.c (files of an earlier start), train_loop.c (steps) and
 * saves.c (checkpoints). */
#pragma once

#include "comm/agree.h"
#include "comm/keeper.h"
#include "data/loader.h"
#include "log/event_file.h"
#include "log/progress.h"
#include "measure/step_limit.h"
#include "run/stepper.h"
#include "setup/rank_threads.h"
#include "store/output_lock.h"
#include "store/run_record.h"
#include "store/trainer_state.h"
#include "text/tokenizer.h"
#include "train/run_data.h"
#include "train/schedule.h"
#include "train/trainer.h"

/* Steps queued ahead: the device runs the next step while the host reads the results of the previous one. */
enum { STEPS_AHEAD = 1 };

/* A step whose programs were queued on the device. */
typedef struct QueuedStep {
    StepMetrics metrics; /* loss and norm are filled in when the step ends */
    StepWork    work;
} QueuedStep;

enum { RANK_BYTES = 72 }; /* most bytes that a rank sends after a step or an evaluation */

/* The state of one rank. */
typedef struct Trainer {
    bool              is_driven; /* used by driven.c: steps come from outside; there is no data, no log and maybe no tokenizer */
    const Config     *run_file;  /* the settings as given */
    const Config     *config;    /* the settings in use, with those that memory: auto chose */
    Comm             *comm;      /* NULL: the run has one rank */
    RankPlace         place;
    Keeper           *keeper;
    double            allowed_seconds; /* how long the keeper reports this rank alive without a beat */
    bool              has_agreed;      /* this failure is known to all ranks */
    const TrainHooks *hooks;
    Arena             arena;
    HfModel          *model;
    StrBuf            model_notes; /* from hf_model_tell */
    Tokenizer        *tokenizer;
    const char       *tokenizer_dir;
    HfSideFiles       side_files;    /* files of tokenizer_dir, already read: saving doesn't read that folder again */
    const char       *base_model;    /* the name of the base that adapters store */
    Template         *tmpl;          /* the chat template; NULL: the run trains no turns, or has none */
    Str               chat_template; /* from the run file; data NULL: the folder's own */
    int32_t           stop_token;    /* token that ends turns, if it isn't the tokenizer's EOS; -1: none */
    CompileOptions    options;
    Device           *device;
    Plan             *plan;
    Session          *session;
    LoraPairs        *pairs;   /* what adapters took from the base at their start; NULL: nothing */
    Stepper           stepper; /* runs the session's steps */
    RunData           data;
    RunRecord         record;
    Schedule          schedule;
    TrainState        state;                   /* after the last awaited step */
    QueuedStep        queued[STEPS_AHEAD + 1]; /* the step with index s is in slot s modulo the number of slots */
    int               num_queued;
    Metrics          *metrics;
    EventFile        *events; /* on rank 0 if report_to asks for TensorBoard; else NULL */
    Progress          progress;
    EvalTrend         trend;
    StepLimit         limit;
    char              metrics_path[4096];
    char              resume_path[4096]; /* checkpoint to resume from; "": none */
    bool              is_first;          /* output_dir contains no earlier run */
    int               output_lock;       /* lock of output_dir */
    int64_t made_from; /* length of the part of output_dir's path that existed before this start; -1: the whole path existed, or a run has
                          begun in the folder */
    double     start_seconds; /* when the trainer was created, to measure the time to the first step */
    double     last_loss, last_eval_loss;
    int        signal;        /* a signal that any rank got, known to all ranks; 0: none */
    int64_t    keep;          /* number of checkpoints to keep; 0: all */
    int64_t    saved_step;    /* step of this run's newest checkpoint; -1: none */
    int64_t    save_every;    /* steps between saves; 0: not by steps */
    int64_t    eval_every;    /* steps between evaluations; 0: only at the end */
    double     save_seconds;  /* seconds between saves by time; 0: not by time */
    double     saved_at;      /* clock_seconds of the last save, or of the loop's beginning */
    bool       save_is_asked; /* a save by time is due, known to all ranks */
    bool       has_new_best;  /* state.best is to be kept, and isn't in a checkpoint yet */
    BestEval   best_before;   /* the best evaluation before state.best */
    int64_t    branch;        /* step last saved or resumed from: checkpoints of later steps aren't this run's */
    void      *from_ranks;    /* (world, RANK_BYTES) messages of the ranks */
    RankShare *shares;        /* (world) each rank's share of the last step */
    double    *own_seconds;   /* (world) seconds of a step without waiting, smoothed */
    double     waited;        /* comm_waited at the beginning of the step */
    int64_t    held_step;     /* step of the weights that output_dir holds at the end; -1: the run ended otherwise */
    bool       has_told_beside;
    bool       log_waits;   /* writing to metrics.jsonl failed: its lines wait */
    bool       events_wait; /* writing events failed: they wait */
} Trainer;

/* Runs one rank; comm NULL: the only rank. A failure of this rank alone also ends the others. */
NODISCARD Status trainer_run(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place, TrainOutcome *out);

/* The parts of trainer_run, in order. trainer_destroy frees what they created (NULL is fine). */
Trainer *trainer_create(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place);
/* Opens model, tokenizer and device, joins the devices of all ranks, and makes the plan. */
NODISCARD Status trainer_open(Trainer *trainer);
/* Creates the session with the weights and optimizer state that the run starts with, or resumes with (resume_path). */
NODISCARD Status trainer_start_session(Trainer *trainer);
void             trainer_destroy(Trainer *trainer);

/* The parts that concern output_dir, in order. The folder is created and locked before it is inspected. If it was created and the run
 * doesn't begin, trainer_drop_output removes it.
 * trainer_look_at_output finds whether the run resumes (resume_path), starts anew or is complete. Rank 0 does it and tells all ranks. */
NODISCARD Status trainer_look_at_output(Trainer *trainer, bool *out_finished);
/* ERR_INVALID if resume_path can't continue this run: one trains all parameters and the other an adapter, or their frozen bases have
 * different formats. */
NODISCARD Status trainer_refuse_other_kind(Trainer *trainer);
NODISCARD Status trainer_open_data(Trainer *trainer);
NODISCARD Status trainer_find_output(Trainer *trainer); /* waits until this rank sees rank 0's folder */
/* On all ranks: forgets the best evaluation if its checkpoint should be kept but is missing. */
NODISCARD Status trainer_check_best(Trainer *trainer);
/* Moves the data to the row at which the steps of resume_path ended; this also sets the number of steps. */
NODISCARD Status trainer_place_cursor(Trainer *trainer);
NODISCARD Status trainer_load_state(Trainer *trainer); /* checks the state of resume_path against data and steps */
NODISCARD Status trainer_check_disk(Trainer *trainer);
/* ERR_INVALID if the longest path that saving step `step` in `dir` writes exceeds the system's limit. */
NODISCARD Status trainer_check_length(const Trainer *trainer, const char *dir, int64_t step);
/* Makes the folder this run's. Until then no file of an earlier run is changed. */
NODISCARD Status trainer_begin_output(Trainer *trainer);

void trainer_drop_output(Trainer *trainer);
/* Sets later checkpoints of another branch aside, so that the newest one is the one this run resumed from or saved. */
NODISCARD Status trainer_leave_branch(Trainer *trainer);

/* Writes the base model with the adapter of adapter_dir merged into it to `folder`, which need not exist. */
NODISCARD Status trainer_merge(Trainer *trainer, const char *adapter_dir, const char *folder);

/* Whether this is rank 0, which does the work that is done once for all ranks. */
bool trainer_leads(const Trainer *trainer);
/* comm_agree; a failure is then known to all ranks (has_agreed). */
NODISCARD Status trainer_agree(Trainer *trainer, Status mine);
/* Runs `work` on rank 0, then on the other ranks, which find the files that rank 0 downloaded or tokenized. */
NODISCARD Status trainer_in_turn(Trainer *trainer, Status (*work)(Trainer *trainer));
/* Tells the other ranks that this one is alive and in which phase (a string constant). */
void trainer_beat(Trainer *trainer, const char *phase);

/* Makes steps until the end, a signal or divergence. On a signal it saves a checkpoint before it returns. */
NODISCARD Status train_loop(Trainer *trainer);

/* Index of the step that is queued next, from 0. */
int64_t trainer_next_step(const Trainer *trainer);
/* The parts of a step, which are queued on the device. micros: its micro-batches on this rank; trained: its trained tokens on all ranks.
 * trainer_queue_update's lr is used; trainer_begin_step's may be 0 if the rate isn't known yet. */
NODISCARD Status trainer_begin_step(Trainer *trainer, int64_t micros, int64_t trained, double lr);
NODISCARD Status trainer_queue_micro(Trainer *trainer, const Feeds *batch); /* queues a micro-batch's gradients and loss */
NODISCARD Status trainer_queue_update(Trainer *trainer, double lr);
/* Waits for the oldest queued step, and adds its results to the state and to *out. */
NODISCARD Status trainer_await_step(Trainer *trainer, StepMetrics *out);

/* Computes how often the run saves and evaluates; call when the data is open. */
void trainer_settle_saves(Trainer *trainer);
/* Logs the intervals that were computed from the data, and whether no checkpoint is kept before the end. */
void trainer_tell_saves(const Trainer *trainer);
/* trainer_save_due: whether to save after `step` steps; false if the run ends there. trainer_save_is_timely: whether a save by time is due;
 * true on rank 0 only. */
bool trainer_save_due(const Trainer *trainer, int64_t step);
bool trainer_save_is_timely(const Trainer *trainer);
/* Whether a checkpoint contains all of the present state. */
bool trainer_is_saved(const Trainer *trainer);
/* Step of the best evaluation so far if its checkpoint is kept; else 0. */
int64_t trainer_kept_best(const Trainer *trainer);
/* Saves a checkpoint of the present state, with all ranks. trainer_save_or_warn is for the middle of a run: a failure is only a warning. */
NODISCARD Status trainer_save(Trainer *trainer);
NODISCARD Status trainer_save_or_warn(Trainer *trainer);
NODISCARD Status trainer_context(Trainer *trainer, bool finished, StrBuf *state_text, SaveContext *out);

/* Writes events to disk. A failure is only a warning: nothing depends on them. */
void trainer_sync_events(Trainer *trainer);

/* Writes report.html for the present state. */
void trainer_report(Trainer *trainer, bool finished);

/* Says in words which command resumes from the newest checkpoint. */
const char *trainer_same_command(const Trainer *trainer);

/* The program of micro-step `micro` of a step. */
const Program *trainer_micro(const Trainer *trainer, int64_t micro);

double trainer_flops_per_step(const Trainer *trainer);
