/* One rank of a run whose steps come from outside (driven.h). Calls with several ranks are made by all of them, each on its own thread, in
 * the same order; what a call's input is wrong about, all find alike. */
#pragma once

#include "train/driven.h"
#include "train/trainer_internal.h"

enum { MOST_WAITING = STEPS_AHEAD + 1 };

typedef struct DrivenRank {
    Trainer    *trainer;
    Feeds      *taken; /* (num_taken) of gradient_accumulation_steps; memory of each stays */
    int64_t     num_taken;
    int64_t     num_trained;           /* targets of what all ranks took */
    StepMetrics results[MOST_WAITING]; /* awaited, and not asked for yet */
    int         num_results;
    WeightList *tensors;       /* of the present session; NULL: not asked for yet */
    bool        is_summed;     /* the gradients of what was taken are queued */
    bool        has_gradients; /* of a step, summed or updated with */
    bool        is_broken;     /* the device failed within a step, or a checkpoint was loaded in part */
} DrivenRank;

/* Whether a document begins at cell i, as its position or its document's number says; the first cell of a row isn't looked at. */
static inline bool driven_begins(const DrivenBatch *in, int64_t i)
{
    if (in->positions) return in->positions[i] == 0;
    return in->documents && i % in->cols > 0 && in->documents[i] != in->documents[i - 1];
}

/* *out is for driven_rank_close in any case. */
NODISCARD Status driven_rank_open(const Config *config, Comm *comm, RankPlace place, DrivenRank **out);
void             driven_rank_close(DrivenRank *rank); /* NULL is fine */

/* The rows of a micro-batch of all ranks, checked, that are this one's; adds their targets. The caller makes num_taken and num_trained true
 * of all ranks. Touches the host's memory alone: any thread may call it. */
NODISCARD Status driven_rank_check(const DrivenRank *rank, const DrivenBatch *batch);
/* draws (rows, cols): the number of each token's document, which draws follow from. */
NODISCARD Status driven_rank_step(DrivenRank *rank, const DrivenBatch *batch, const int32_t *draws, int64_t *out_trained);
int64_t          driven_rank_rows(const DrivenRank *rank); /* of a micro-batch, this rank's */
NODISCARD Status driven_rank_drop(DrivenRank *rank);

NODISCARD Status driven_rank_backward(DrivenRank *rank);
NODISCARD Status driven_rank_update(DrivenRank *rank, double lr);
NODISCARD Status driven_rank_result(DrivenRank *rank, StepMetrics *out);
NODISCARD Status driven_rank_lr(const DrivenRank *rank, double *out);
int64_t          driven_rank_steps(const DrivenRank *rank);

/* Writes the elements of this rank's rows. */
NODISCARD Status driven_rank_losses(DrivenRank *rank, const DrivenBatch *batch, float *losses);
NODISCARD Status driven_rank_logits(DrivenRank *rank, const DrivenBatch *batch, float *logits, size_t numel);
bool             driven_rank_has_scales(const DrivenRank *rank); /* or needs none */
NODISCARD Status driven_rank_settle(DrivenRank *rank, Session **out_session);
NODISCARD Status driven_rank_save(DrivenRank *rank, const char *dir);
NODISCARD Status driven_rank_load(DrivenRank *rank, const char *path);
NODISCARD Status driven_rank_export(DrivenRank *rank, const char *dir, bool whole);
NODISCARD Status driven_rank_tensors(DrivenRank *rank); /* makes the list */
/* Writes the elements that are this rank's to tell. */
NODISCARD Status driven_rank_read(DrivenRank *rank, size_t index, bool gradient, float *values, int64_t numel);
