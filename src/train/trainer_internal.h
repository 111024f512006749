/* The state of a training run, shared by trainer.c (start and end), trainer_output.c (what an earlier start left), train_loop.c (steps)
 * and saves.c (checkpoints). */
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

/* The device has the next step to run while the host looks at the one before. */
enum { STEPS_AHEAD = 1 };

/* A step whose programs were queued. */
typedef struct QueuedStep {
    StepMetrics metrics; /* without loss and norm, which come later */
    StepWork    work;
} QueuedStep;

enum { RANK_BYTES = 72 }; /* what a rank tells of a step or an evaluation */

/* One rank's. */
typedef struct Trainer {
    bool              is_driven; /* driven.c: its steps come from outside; it has no data, no log and maybe no tokenizer */
    const Config     *run_file;  /* what was asked for */
    const Config     *config;    /* the same with what memory: auto chose */
    Comm             *comm;      /* NULL: the run has one rank */
    RankPlace         place;
    Keeper           *keeper;
    double            allowed_seconds; /* that the keeper keeps it for */
    bool              has_agreed;      /* all ranks fail as this one does */
    const TrainHooks *hooks;
    Arena             arena;
    HfModel          *model;
    StrBuf            model_notes; /* of hf_model_tell */
    Tokenizer        *tokenizer;
    const char       *tokenizer_dir;
    HfSideFiles       side_files;    /* of tokenizer_dir, read: saving needs no file of that folder */
    const char       *base_model;    /* what adapters name as their base */
    Template         *tmpl;          /* the chat template; NULL: no turns are trained, or there is none */
    Str               chat_template; /* of the run file; data NULL: the folder's own */
    int32_t           stop_token;    /* that ends a turn where it isn't the tokenizer's EOS; -1: none */
    CompileOptions    options;
    Device           *device;
    Plan             *plan;
    Session          *session;
    LoraPairs        *pairs;   /* what adapters began with of the base; NULL: nothing */
    Stepper           stepper; /* of the session */
    RunData           data;
    RunRecord         record;
    Schedule          schedule;
    TrainState        state;                   /* after the last finished step */
    QueuedStep        queued[STEPS_AHEAD + 1]; /* by step modulo their number: the device runs them, no results yet */
    int               num_queued;
    Metrics          *metrics;
    EventFile        *events; /* of rank 0, where report_to asks for it; else NULL */
    Progress          progress;
    EvalTrend         trend;
    StepLimit         limit;
    char              metrics_path[4096];
    char              resume_path[4096]; /* checkpoint to go on from; "": none */
    bool              is_first;          /* output_dir holds no run of ours */
    int               output_lock;       /* of output_dir */
    int64_t           made_from;     /* this start made output_dir, and no run is in it: all of its path behind so many bytes; else -1 */
    double            start_seconds; /* when the program began, for the time to the first step */
    double            last_loss, last_eval_loss;
    int               signal;        /* that any rank got, as all know; 0: none */
    int64_t           keep;          /* checkpoints that stay; 0: all */
    int64_t           saved_step;    /* of the newest checkpoint of this run; -1: none */
    int64_t           save_every;    /* steps; 0: not by steps */
    int64_t           eval_every;    /* steps; 0: at the end alone */
    double            save_seconds;  /* between saves by time; 0: there are none */
    double            saved_at;      /* clock_seconds of the last save, or when the loop began */
    bool              save_is_asked; /* by time, as all ranks know */
    bool              has_new_best;  /* the state has the best evaluation that is kept, and no checkpoint has it yet */
    BestEval          best_before;   /* the one that it took the place of */
    int64_t           branch;        /* up to where checkpoints are this run's: the step that was saved last, or that it goes on from */
    void             *from_ranks;    /* RANK_BYTES of each */
    RankShare        *shares;        /* of the last step, by rank */
    double           *own_seconds;   /* of a step, by rank, less what it waited; smoothed */
    double            waited;        /* comm_waited when it began */
    int64_t           held_step;     /* whose weights output_dir holds at the end; -1: it ended otherwise */
    bool              has_told_beside;
    bool              log_waits;   /* lines of metrics.jsonl couldn't be written yet */
    bool              events_wait; /* the same of events */
} Trainer;

/* One rank of a run; `comm` NULL: the only one. A failure that isn't common to all ranks ends the others too. */
NODISCARD Status trainer_run(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place, TrainOutcome *out);

/* Parts of it, in their order. All but the last leave what they made to trainer_destroy (NULL is fine). */
Trainer *trainer_create(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place);
/* Model, tokenizer, device, which the devices of all ranks join, and plan. */
NODISCARD Status trainer_open(Trainer *trainer);
/* The session, with the weights and the optimizer's state that the run starts from, or goes on with (resume_path). */
NODISCARD Status trainer_start_session(Trainer *trainer);
void             trainer_destroy(Trainer *trainer);

/* Parts of it that have to do with output_dir, in their order. It is made and locked before it is looked at; one that was made goes again
 * if the run doesn't begin (trainer_drop_output). Whether the run goes on (resume_path), starts anew or was finished before;
 * by rank 0, told to all. */
NODISCARD Status trainer_look_at_output(Trainer *trainer, bool *out_finished);
/* resume_path is of an adapter, over a base in the same format, where this run trains one, else of all parameters. */
NODISCARD Status trainer_refuse_other_kind(Trainer *trainer);
NODISCARD Status trainer_open_data(Trainer *trainer);
NODISCARD Status trainer_find_output(Trainer *trainer); /* all ranks see the same folder */
/* All ranks: the best evaluation of the state is forgotten where its checkpoint is wanted and not there. */
NODISCARD Status trainer_check_best(Trainer *trainer);
/* Sets the data to the row that the steps of resume_path ended with, and with it the steps of the run. */
NODISCARD Status trainer_place_cursor(Trainer *trainer);
NODISCARD Status trainer_load_state(Trainer *trainer); /* of resume_path */
NODISCARD Status trainer_check_disk(Trainer *trainer);
/* Whether the longest path that saving step `step` writes in `dir` is one that the system takes. */
NODISCARD Status trainer_check_length(const Trainer *trainer, const char *dir, int64_t step);
/* The folder becomes this run's: until here nothing of an earlier one was touched. */
NODISCARD Status trainer_begin_output(Trainer *trainer);

void trainer_drop_output(Trainer *trainer);
/* The newest checkpoint of output_dir is the one that this run goes on from, or saved. */
NODISCARD Status trainer_leave_branch(Trainer *trainer);

/* The base with the adapter of a folder merged in, into `folder`, which need not be there. */
NODISCARD Status trainer_merge(Trainer *trainer, const char *adapter_dir, const char *folder);

/* What is done once for all ranks is rank 0's. */
bool trainer_leads(const Trainer *trainer);
/* comm_agree; a failure is common then. */
NODISCARD Status trainer_agree(Trainer *trainer, Status mine);
/* Rank 0 first: what it downloads or tokenizes is there when the others look. */
NODISCARD Status trainer_in_turn(Trainer *trainer, Status (*work)(Trainer *trainer));
/* Tells the other ranks that this one is alive, and does this (a constant). */
void trainer_beat(Trainer *trainer, const char *phase);

/* Steps until the end, a signal or divergence; then the last checkpoint is written. */
NODISCARD Status train_loop(Trainer *trainer);

/* The step that is queued next, from 0. */
int64_t trainer_next_step(const Trainer *trainer);
/* Parts of it, queued behind what the device runs. It has `micros` micro-batches here, and so many trained tokens on all ranks; lr: as far
 * as it is known. */
NODISCARD Status trainer_begin_step(Trainer *trainer, int64_t micros, int64_t trained, double lr);
NODISCARD Status trainer_queue_micro(Trainer *trainer, const Feeds *batch); /* gradients and loss */
NODISCARD Status trainer_queue_update(Trainer *trainer, double lr);
/* Waits for the oldest queued step; state and *out tell of it. */
NODISCARD Status trainer_await_step(Trainer *trainer, StepMetrics *out);

/* How often it saves and evaluates; once the data is open. */
void trainer_settle_saves(Trainer *trainer);
/* Says what the run file leaves to the data, and where no checkpoint is kept. */
void trainer_tell_saves(const Trainer *trainer);
/* Whether a save between steps is due once `step` steps were done; rank 0: whether time asks for one. */
bool trainer_save_due(const Trainer *trainer, int64_t step);
bool trainer_save_is_timely(const Trainer *trainer);
/* A checkpoint has all of the present state. */
bool trainer_is_saved(const Trainer *trainer);
/* Step of the best evaluation so far where its checkpoint is kept; 0: none. */
int64_t trainer_kept_best(const Trainer *trainer);
/* A checkpoint of the present state, made by all ranks; `or_warn`: in the middle of a run a failure ends nothing. */
NODISCARD Status trainer_save(Trainer *trainer);
NODISCARD Status trainer_save_or_warn(Trainer *trainer);
NODISCARD Status trainer_context(Trainer *trainer, bool finished, StrBuf *state_text, SaveContext *out);

/* Events are on the disk, or it is said that they aren't: nothing depends on them. */
void trainer_sync_events(Trainer *trainer);

/* report.html of the present state. */
void trainer_report(Trainer *trainer, bool finished);

/* The command that goes on from the newest checkpoint, in words. */
const char *trainer_same_command(const Trainer *trainer);

/* The program of a step's micro-step. */
const Program *trainer_micro(const Trainer *trainer, int64_t micro);

double trainer_flops_per_step(const Trainer *trainer);
