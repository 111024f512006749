/* metrics.jsonl: one JSON object a line. Each line is handed to the kernel at once: however the program ends, only the last line can be
 * torn. A line that can't be written is an error; it is written with the next one, at the next sync or at the end. The keys are in
 * docs/metrics.md. "time", "duration_ms" and "tokens_per_second" are timing fields; all others are the same in every run of the same
 * settings. */
#pragma once

#include "base/json.h"

typedef struct Metrics Metrics;

/* Opens for appending after the first `keep_bytes` bytes, which hold the lines up to `step`; what follows them (a torn or repeated line) is
 * cut off. If the file was cut since, its whole lines up to `step` stay, and metrics_bytes is less. */
NODISCARD Status metrics_open(const char *path, int64_t keep_bytes, int64_t step, Metrics **out);
void             metrics_close(Metrics *metrics); /* NULL is fine */
int64_t          metrics_bytes(const Metrics *metrics);
NODISCARD Status metrics_sync(Metrics *metrics);

/* What a rank did of a step. */
typedef struct RankShare {
    int64_t tokens;
    double  seconds, waited; /* of these it waited for other ranks */
} RankShare;

/* step, epoch, loss: of this step. NaN and infinities are written as null. */
typedef struct StepMetrics {
    int64_t          step; /* steps done, from 1 */
    double           epoch;
    double           loss, norm, lr;
    int64_t          step_tokens, step_trained;   /* read, and of them trained: docs/metrics.md */
    int64_t          total_tokens, total_trained; /* of the run so far */
    double           accuracy;                    /* of a run driven from outside: 0 to 1; else NaN. Not in the file */
    bool             skipped;                     /* not finite: weights were left alone */
    double           seconds;                     /* of the step */
    double           limit_seconds;               /* that it would take at the machine's limit; 0: unknown. Not in the file */
    const RankShare *ranks;                       /* num_ranks; NULL: there is one */
    int              num_ranks;
    int              slow_rank; /* one that takes notably longer than the others; -1: none. Not in the file */
} StepMetrics;
NODISCARD Status metrics_step(Metrics *metrics, const StepMetrics *step);

typedef struct EvalMetrics {
    int64_t step;
    double  epoch, loss;
    int64_t tokens, trained; /* as a step's */
    double  seconds;
} EvalMetrics;
NODISCARD Status metrics_eval(Metrics *metrics, const EvalMetrics *eval);

/* The lines of steps `from` to `step` were lost here. */
NODISCARD Status metrics_gap(Metrics *metrics, int64_t from, int64_t step);

/* A generated text. */
NODISCARD Status metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, size_t len);

/* The file read back: steps, evals and samples in order, for report.html and trainer_state.json. Lines that aren't whole are
 * passed over. */
typedef struct MetricsHistory {
    JsonValue *lines;
    size_t     count;
} MetricsHistory;
NODISCARD Status metrics_read(Arena *arena, const char *path, MetricsHistory *out);
