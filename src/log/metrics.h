/* metrics.jsonl: one JSON object a line. Each line goes to the kernel at once: however the program ends, only the last line can be torn.
 * Failing to write a line is an error; the line is then written with the next line, at the next sync or at the end. The keys are in
 * docs/metrics.md. "time", "duration_ms" and "tokens_per_second" are timing fields; all others are the same in every run of the same
 * settings. */
#pragma once

#include "ir/op.h"
#include "log/history.h"

typedef struct Metrics Metrics;

/* A position in the file: its first `bytes` bytes hold the lines up to `step`. hash: the hash of these lines; 0: not known. */
typedef struct MetricsMark {
    int64_t  step, bytes;
    uint64_t hash;
} MetricsMark;

/* What metrics_open found in the file. Lines are numbered from 1; 0: no such line. */
typedef struct MetricsFound {
    bool    is_cut, is_changed;  /* is_cut: fewer than mark->bytes stayed; is_changed: that many stayed, but their hash isn't mark->hash */
    int64_t num_bad, first_bad;  /* lines that stayed but can't be parsed: how many, and which is first */
    int64_t last_step;           /* step of the last line that stayed */
    bool    ends_in_gap;         /* that last line was written by metrics_gap */
    int64_t cut_first, cut_last; /* first and last step of the lines that were cut off */
} MetricsFound;

/* Opens the file to append after the mark; what follows the mark (a torn or repeated line) is cut off. If the file is shorter than the
 * mark, its whole lines up to the mark's step stay. logging_steps: for the history. The file is read once, piece by piece. */
NODISCARD Status    metrics_open(const char *path, const MetricsMark *mark, int64_t logging_steps, Metrics **out);
void                metrics_close(Metrics *metrics); /* NULL is fine */
const MetricsFound *metrics_found(const Metrics *metrics);
/* The history of all lines; NULL if metrics is NULL. */
const History *metrics_history(const Metrics *metrics);
/* Syncs all lines to disk. *mark: where they end, with their hash (mark->step isn't changed). */
NODISCARD Status metrics_sync(Metrics *metrics, MetricsMark *mark);

/* One rank's share of a step. */
typedef struct RankShare {
    int64_t tokens;
    double  seconds, waited; /* duration of the step; part of it in which the rank waited for other ranks */
} RankShare;

typedef struct NamedNumber {
    const char *name;
    double      value;
} NamedNumber;

/* The values of one step. NaN and infinities are written as null. */
typedef struct StepMetrics {
    int64_t          step; /* steps done, from 1 */
    double           epoch;
    double           loss, norm, lr;
    int64_t          step_tokens, step_trained;   /* tokens read; trained tokens among them (docs/metrics.md) */
    int64_t          total_tokens, total_trained; /* sums over the run so far */
    bool             skipped;                     /* a value wasn't finite: weights were left alone */
    double           seconds;                     /* duration of the step */
    double           limit_seconds;               /* duration at the machine's limit; 0: unknown. Not in the file */
    const RankShare *ranks;                       /* shares of num_ranks ranks; NULL: only one rank */
    int              num_ranks;
    NamedNumber      scalars[MOST_SCALARS]; /* the first num_scalars are used, in the plan's order */
    int              num_scalars;
    int              slow_rank; /* the rank that takes notably longer than the others; -1: none. Not in the file */
} StepMetrics;
NODISCARD Status metrics_step(Metrics *metrics, const StepMetrics *step);

typedef struct EvalMetrics {
    int64_t step;
    double  epoch, loss;
    int64_t tokens, trained; /* tokens read; trained tokens among them */
    double  seconds;
    bool    is_best; /* this is the best evaluation of the run so far */
} EvalMetrics;
NODISCARD Status metrics_eval(Metrics *metrics, const EvalMetrics *eval);

/* Writes a line that says: the lines of steps `from` to `step` were lost here. */
NODISCARD Status metrics_gap(Metrics *metrics, int64_t from, int64_t step);

/* Writes a generated text. */
NODISCARD Status metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, size_t len);
