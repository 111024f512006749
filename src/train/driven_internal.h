/* Shared by driven.c (opening, steps), driven_rows.c (micro-batches, losses, logits) and driven_files.c (checkpoints, exports, tensors). A
 * call is checked once, on the caller's thread; then each rank does its part (driven_run). */
#pragma once

#include "train/document_numbers.h"
#include "train/driven.h"
#include "train/trainer_internal.h"

enum { MOST_WAITING = STEPS_AHEAD + 1 };

typedef struct DrivenRank {
    Driven     *driven;
    Trainer    *trainer; /* created when the rank first works */
    Feeds      *taken;   /* (gradient_accumulation_steps) this rank's rows of the micro-batches; each keeps its memory between steps */
    WeightList *tensors; /* trained tensors of the current session; NULL: not yet asked for */
} DrivenRank;

struct Driven {
    const Config *config;
    RankTeam     *team;
    DrivenRank   *ranks; /* (world); the first runs on the caller's thread */
    int           world;
    /* The step that takes micro-batches now. */
    int64_t         num_taken, num_trained; /* micro-batches taken; trained tokens in them */
    bool            is_summed;              /* gradients of these micro-batches are queued */
    DocumentNumbers numbers;
    int32_t        *draws; /* (draws_size) the document number of each token of one micro-batch, which keys random draws */
    int64_t         draws_size;
    /* Earlier steps. */
    StepMetrics results[MOST_WAITING]; /* metrics of awaited steps that weren't asked for yet */
    int         num_results;
    bool        has_gradients; /* the device holds gradients: of the current step, or of the last update */
    bool        is_broken;     /* queuing or awaiting a step failed, or a checkpoint was loaded only in part */
};

/* One rank's part of a call; `job` is the call's argument, the same for all ranks. */
typedef Status (*DrivenWork)(DrivenRank *rank, void *job);

/* Calls `work` for each rank on its own thread. phase: the name of work that may take longer than ranks wait for one another; NULL: the
 * work is short. */
NODISCARD Status driven_run(Driven *driven, DrivenWork work, void *job, const char *phase);

/* ERR_DEVICE after a failure that only loading a checkpoint repairs. */
NODISCARD Status driven_refuse_broken(const Driven *driven);
/* Awaits all queued steps and keeps their results. phase: as in driven_run. */
NODISCARD Status driven_settle(Driven *driven, const char *phase);
/* Starts the rank's session from resume_path, and gathers the whole weights. */
NODISCARD Status driven_start_session(DrivenRank *rank);

/* The first rank's trainer; all trainers have the same plan, model and steps. */
Trainer *driven_trainer(const Driven *driven);
