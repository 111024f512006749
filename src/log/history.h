/* The history of a run for report.html and trainer_state.json, gathered from metrics.jsonl line by line, so that neither has to read the
 * file. Its memory is bounded: of many steps and evaluations only every second, fourth, ... is kept. The same lines give the same history,
 * whether they were just written or read back. */
#pragma once

#include "base/json.h"
#include "log/eval_trend.h"

/* The values of a step's or an evaluation's line; NaN: null in that line. */
typedef struct HistoryPoint {
    int64_t step;
    double  epoch, loss, norm, lr;
    double  tokens_per_second, duration_ms;
    double  tokens; /* tokens read by the step, or by the evaluation */
    double  total_tokens, total_trained;
} HistoryPoint;

/* A series of points: of the `seen` points that were added, it keeps those with index 0, stride, 2 stride, ... */
typedef struct HistoryRow {
    HistoryPoint *points;
    int64_t       count, most, stride, seen;
    HistoryPoint  last; /* the point added last */
} HistoryRow;

/* Sums of one rank over the latest steps: those since the number of ranks last changed. */
typedef struct HistoryRank {
    double tokens, seconds, waited;
} HistoryRank;

typedef struct History {
    int64_t      logging_steps;
    HistoryRow   steps, logged, evals; /* logged: the steps that are multiples of logging_steps */
    EvalTrend    trend;
    int64_t      num_steps, tokens;
    double       loss_sum, seconds;
    HistoryRank *ranks;
    uint32_t     num_ranks;
    int64_t      rank_steps; /* steps that `ranks` sums over */
    StrBuf       samples;    /* lines of samples, each with its line feed; only the newest 4 MiB */
} History;

void history_init(History *history, int64_t logging_steps);
void history_deinit(History *history);
void history_add(History *history, const JsonValue *line);

/* Points to show: the kept ones, and the last one if it isn't among them. */
int64_t             history_count(const HistoryRow *row);
const HistoryPoint *history_at(const HistoryRow *row, int64_t index);
