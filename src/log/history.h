/* What report.html and trainer_state.json tell of a run, gathered line by line of metrics.jsonl, so that neither reads the file. The memory
 * doesn't grow with the run: of many steps and evaluations every second, fourth, ... is kept. The same lines give the same history, whether
 * they were written now or read back. */
#pragma once

#include "base/json.h"
#include "log/eval_trend.h"

/* Of a step's or an evaluation's line; NaN: null there. */
typedef struct HistoryPoint {
    int64_t step;
    double  epoch, loss, norm, lr;
    double  tokens_per_second, duration_ms;
    double  tokens; /* of the step, or of the evaluation */
    double  total_tokens, total_trained;
} HistoryPoint;

/* Points 0, stride, 2 stride, ... of `seen` that came. */
typedef struct HistoryRow {
    HistoryPoint *points;
    int64_t       count, most, stride, seen;
    HistoryPoint  last; /* of all that came */
} HistoryRow;

/* Of a rank over the steps with as many ranks as the last one. */
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
    int64_t      rank_steps; /* that `ranks` is of */
    StrBuf       samples;    /* their lines, each ending with a line feed; the newest, so far as they fit */
} History;

void history_init(History *history, int64_t logging_steps);
void history_deinit(History *history);
void history_add(History *history, const JsonValue *line);

/* Points that are told: those that are kept, and the last. */
int64_t             history_count(const HistoryRow *row);
const HistoryPoint *history_at(const HistoryRow *row, int64_t index);
