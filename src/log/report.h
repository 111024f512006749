/* OUTPUT/report.html: the run as one self-contained page, from the history of metrics.jsonl, the settings and the plan. */
#pragma once

#include "config/config.h"
#include "log/history.h"
#include "run/program.h"

/* What the page tells beside the history. All is borrowed. */
typedef struct ReportFacts {
    const Config *config;
    const Plan   *plan;
    const char   *architecture, *model_notes, *data_notes; /* notes: lines, which may be none */
    int64_t       step, total, skipped;                    /* steps */
    double        flops;                                   /* of a step */
    int64_t       kept_best;                               /* step of the evaluation whose checkpoint is kept as the best; 0: none */
    double        of_limit;                                /* progress_of_limit */
    bool          finished;
} ReportFacts;

/* Writes it anew; a failure is warned about and doesn't stop the run. */
void report_update(const History *history, const ReportFacts *facts);
