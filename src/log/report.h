/* OUTPUT/report.html: the run as one self-contained page, from the history of metrics.jsonl, the settings and the plan; and several runs on
 * one page. */
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

/* A run among several. All is borrowed. */
typedef struct ReportRun {
    const char    *name, *settings; /* settings: the lines of a run file that decide its result; "": not known */
    const History *history;
    bool           finished;
} ReportRun;

/* The data of every page of several runs begin so, and no other text of a page has it. */
#define REPORT_MARK "{\"runs\":["

/* Writes a page with the curves of all of them, what they came to, and the settings in which they differ. */
NODISCARD Status report_compare(const ReportRun *runs, size_t count, const char *path);
