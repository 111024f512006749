/* metrics.jsonl: one JSON object a line, appended and handed to the kernel a line at a time, so that it is whole to the
 * last full line however the program ends. A line that can't be written is an error, but waits for the next one, the next sync or
 * the end. The keys are in docs/metrics.md; "time", "duration_ms" and "tokens_per_second"
 * are timing fields, all others are the same in every run of the same settings. */
#pragma once

#include "base/json.h"

typedef struct Metrics Metrics;

/* Opens for appending after the first `keep_bytes` bytes, which hold the lines up to `step`; what follows them (a torn or repeated
 * line) is cut off. Of a file that was cut since, the whole lines stay that are of those: metrics_bytes is less then. */
NODISCARD Status metrics_open(const char *path, int64_t keep_bytes, int64_t step, Metrics **out);
void             metrics_close(Metrics *metrics); /* NULL is fine */
int64_t          metrics_bytes(const Metrics *metrics);
NODISCARD Status metrics_sync(Metrics *metrics);

/* step, epoch, loss: of this step. NaN and infinities are written as null. */
typedef struct StepMetrics {
    int64_t step; /* steps done, from 1 */
    double  epoch;
    double  loss, norm, lr;
    int64_t step_tokens, step_trained;   /* read, and of them trained: docs/metrics.md */
    int64_t total_tokens, total_trained; /* of the run so far */
    bool    skipped;                     /* not finite: weights were left alone */
    double  seconds;                     /* of the step */
    double  limit_seconds;               /* that it would take at the machine's limit; 0: unknown. Not in the file */
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
