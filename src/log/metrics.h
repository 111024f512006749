/* metrics.jsonl: one JSON object a line. Each line is handed to the kernel at once: however the program ends, only the last line can be
 * torn. A line that can't be written is an error; it is written with the next one, at the next sync or at the end. The keys are in
 * docs/metrics.md. "time", "duration_ms" and "tokens_per_second" are timing fields; all others are the same in every run of the same
 * settings. */
#pragma once

#include "ir/op.h"
#include "log/history.h"

typedef struct Metrics Metrics;

/* A place in the file: its first `bytes`, which hold the lines up to `step`, and the hash of these lines (0: not known). */
typedef struct MetricsMark {
    int64_t  step, bytes;
    uint64_t hash;
} MetricsMark;

/* What was found when the file was opened. Numbers of lines are from 1; 0: there is none. */
typedef struct MetricsFound {
    bool    is_cut, is_changed;  /* fewer bytes stayed than the mark says; they are others than it says */
    int64_t num_bad, first_bad;  /* of the lines that stayed, those that can't be read */
    int64_t last_step;           /* of the last line that stayed */
    bool    ends_in_gap;         /* that is a line of metrics_gap */
    int64_t cut_first, cut_last; /* steps whose lines were cut off */
} MetricsFound;

/* Opens for appending behind the mark; what follows it (a torn or repeated line) is cut off. If the file was cut since, its whole lines up
 * to the mark's step stay. logging_steps: of the history. The file is read once, in pieces. */
NODISCARD Status    metrics_open(const char *path, const MetricsMark *mark, int64_t logging_steps, Metrics **out);
void                metrics_close(Metrics *metrics); /* NULL is fine */
const MetricsFound *metrics_found(const Metrics *metrics);
/* Of all lines; NULL for NULL. */
const History *metrics_history(const Metrics *metrics);
/* All lines are on the disk, and *mark says where they end (its step isn't touched). */
NODISCARD Status metrics_sync(Metrics *metrics, MetricsMark *mark);

/* What a rank did of a step. */
typedef struct RankShare {
    int64_t tokens;
    double  seconds, waited; /* of these it waited for other ranks */
} RankShare;

typedef struct NamedNumber {
    const char *name;
    double      value;
} NamedNumber;

/* step, epoch, loss: of this step. NaN and infinities are written as null. */
typedef struct StepMetrics {
    int64_t          step; /* steps done, from 1 */
    double           epoch;
    double           loss, norm, lr;
    int64_t          step_tokens, step_trained;   /* read, and of them trained: docs/metrics.md */
    int64_t          total_tokens, total_trained; /* of the run so far */
    bool             skipped;                     /* not finite: weights were left alone */
    double           seconds;                     /* of the step */
    double           limit_seconds;               /* that it would take at the machine's limit; 0: unknown. Not in the file */
    const RankShare *ranks;                       /* num_ranks; NULL: there is one */
    int              num_ranks;
    NamedNumber      scalars[MOST_SCALARS]; /* num_scalars, in the plan's order */
    int              num_scalars;
    int              slow_rank; /* one that takes notably longer than the others; -1: none. Not in the file */
} StepMetrics;
NODISCARD Status metrics_step(Metrics *metrics, const StepMetrics *step);

typedef struct EvalMetrics {
    int64_t step;
    double  epoch, loss;
    int64_t tokens, trained; /* as a step's */
    double  seconds;
    bool    is_best; /* of the run so far */
} EvalMetrics;
NODISCARD Status metrics_eval(Metrics *metrics, const EvalMetrics *eval);

/* The lines of steps `from` to `step` were lost here. */
NODISCARD Status metrics_gap(Metrics *metrics, int64_t from, int64_t step);

/* A generated text. */
NODISCARD Status metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, size_t len);
