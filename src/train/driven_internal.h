/* Shared by driven.c (opening, steps), driven_rows.c (micro-batches, losses, logits) and driven_files.c (checkpoints, exports, tensors).
 * A call is checked once, in the caller's thread; then each rank does its part (driven_run). */
#pragma once

#include "train/document_numbers.h"
#include "train/driven.h"
#include "train/trainer_internal.h"

enum { MOST_WAITING = STEPS_AHEAD + 1 };

typedef struct DrivenRank {
    Driven     *driven;
    Trainer    *trainer; /* made when the rank works first */
    Feeds      *taken;   /* its rows of the micro-batches, of gradient_accumulation_steps; memory of each stays */
    WeightList *tensors; /* of the present session; NULL: not asked for yet */
} DrivenRank;

struct Driven {
    const Config *config;
    RankTeam     *team;
    DrivenRank   *ranks; /* (world); the first is the caller's thread's */
    int           world;
    /* The step that micro-batches are taken for. */
    int64_t         num_taken, num_trained; /* micro-batches; their targets */
    bool            is_summed;              /* the gradients of what was taken are queued */
    DocumentNumbers numbers;
    int32_t        *draws; /* (draws_size): of one micro-batch, the number of each token's document, which draws follow from */
    int64_t         draws_size;
    /* Earlier steps. */
    StepMetrics results[MOST_WAITING]; /* awaited, and not asked for yet */
    int         num_results;
    bool        has_gradients; /* of a step, summed or updated with */
    bool        is_broken;     /* a device failed within a step, or a checkpoint was loaded in part */
};

/* One rank's part of a call; `job` is the call's, the same for all ranks. */
typedef Status (*DrivenWork)(DrivenRank *rank, void *job);

/* Each rank does it, on its own thread. phase: of work that may take longer than ranks wait for one another; NULL: it doesn't. */
NODISCARD Status driven_run(Driven *driven, DrivenWork work, void *job, const char *phase);

/* ERR_DEVICE after a failure that only a checkpoint mends. */
NODISCARD Status driven_refuse_broken(const Driven *driven);
/* Awaits all steps that are queued; their results are kept. phase: as of driven_run. */
NODISCARD Status driven_settle(Driven *driven, const char *phase);
/* The session, as resume_path of the trainer says, with whole weights. */
NODISCARD Status driven_start_session(DrivenRank *rank);

/* The first rank's trainer: all have the same plan, model and steps. */
Trainer *driven_trainer(const Driven *driven);
