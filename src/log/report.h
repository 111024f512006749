/* OUTPUT/report.html: one run as a self-contained page, made from the history of metrics.jsonl, the settings and the plan. Also pages that
 * compare several runs. */
#pragma once

#include "config/config.h"
#include "log/history.h"
#include "run/program.h"

/* Facts for the page besides the history. All pointers are borrowed. */
typedef struct ReportFacts {
    const Config *config;
    const Plan   *plan;
    const char   *architecture, *model_notes, *data_notes; /* notes: lines of text, may be "" */
    int64_t       step, total, skipped;                    /* steps done; steps of the whole run; skipped steps */
    double        flops;                                   /* FLOPs of one step */
    int64_t       kept_best;                               /* step of the evaluation whose checkpoint is kept as the best; 0: none */
    double        of_limit;                                /* result of progress_of_limit */
    bool          finished;
} ReportFacts;

/* Rewrites the page; a failure only warns and doesn't stop the run. */
void report_update(const History *history, const ReportFacts *facts);

/* One of the runs to compare. All pointers are borrowed. */
typedef struct ReportRun {
    const char    *name, *settings; /* settings: the lines of its run file that decide the result; "": not known */
    const History *history;
    bool           finished;
} ReportRun;

/* The beginning of the data in every page that compares runs; no other text of a page contains it. */
#define REPORT_MARK "{\"runs\":["

/* Writes a page with the curves of all runs, their results, and the settings in which they differ. */
NODISCARD Status report_compare(const ReportRun *runs, size_t count, const char *path);
