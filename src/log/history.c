/* See history.h. */
#include "log/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CURVE = 4096, MOST_LOGGED = 16384, SAMPLE_BYTES = 4 << 20 };

static void row_init(HistoryRow *row, int64_t most)
{
    *row = (HistoryRow){.points = calloc_or_end((size_t)most, sizeof *row->points), .most = most, .stride = 1};
}

void history_init(History *h, int64_t logging_steps)
{
    *h = (History){.logging_steps = logging_steps};
    row_init(&h->steps, MOST_CURVE);
    row_init(&h->logged, MOST_LOGGED);
    row_init(&h->evals, MOST_CURVE);
}

void history_deinit(History *h)
{
    free(h->steps.points);
    free(h->logged.points);
    free(h->evals.points);
    free(h->ranks);
    strbuf_deinit(&h->samples);
    *h = (History){0};
}

static void row_add(HistoryRow *row, const HistoryPoint *point)
{
    row->last = *point;
    if (row->seen++ % row->stride != 0) return;
    if (row->count == row->most) {
        row->count /= 2;
        row->stride *= 2;
        for (int64_t i = 0; i < row->count; i++) row->points[i] = row->points[2 * i];
        if ((row->seen - 1) % row->stride != 0) return;
    }
    row->points[row->count++] = *point;
}

int64_t history_count(const HistoryRow *row)
{
    return row->count + (row->seen > 0 && (row->seen - 1) % row->stride != 0);
}

const HistoryPoint *history_at(const HistoryRow *row, int64_t index)
{
    return index < row->count ? &row->points[index] : &row->last;
}

static double get(const JsonValue *line, const char *key)
{
    double value = NAN;
    json_get_double(line, key, &value);
    return value;
}

static double element(const JsonValue *array, uint32_t index)
{
    const JsonValue *value = &array->items[index];
    return value->type == JSON_INT ? (double)value->integer : value->type == JSON_DOUBLE ? value->number : (double)NAN;
}

static void add_ranks(History *h, const JsonValue *ranks, double seconds)
{
    if (!ranks || ranks->type != JSON_ARRAY || !(seconds > 0)) return;
    if (ranks->count != h->num_ranks) {
        free(h->ranks);
        h->ranks = calloc_or_end(ranks->count + 1, sizeof *h->ranks);
        h->num_ranks = ranks->count;
        h->rank_steps = 0;
    }
    h->rank_steps++;
    for (uint32_t r = 0; r < ranks->count; r++) {
        const JsonValue *pair = &ranks->items[r];
        if (pair->type != JSON_ARRAY || pair->count != 2) continue;
        h->ranks[r].tokens += element(pair, 0) * seconds;
        h->ranks[r].seconds += seconds;
        h->ranks[r].waited += element(pair, 1);
    }
}

static void add_step(History *h, const JsonValue *line, HistoryPoint *point)
{
    point->tokens = get(line, "step_tokens");
    h->num_steps++;
    h->loss_sum += isfinite(point->loss) ? point->loss : 0;
    h->seconds += point->duration_ms * 1e-3;
    h->tokens += isfinite(point->tokens) ? (int64_t)point->tokens : 0;
    row_add(&h->steps, point);
    if (point->step % h->logging_steps == 0) row_add(&h->logged, point);
    add_ranks(h, json_get(line, "ranks"), point->duration_ms * 1e-3);
}

static void add_sample(History *h, const JsonValue *line)
{
    StrBuf *all = &h->samples;
    json_write(all, line, -1);
    strbuf_putc(all, '\n');
    if (all->len <= SAMPLE_BYTES) return;
    const char *next = memchr(all->data + all->len - SAMPLE_BYTES, '\n', SAMPLE_BYTES);
    size_t      gone = (size_t)(next + 1 - all->data);
    memmove(all->data, next + 1, all->len - gone + 1);
    all->len -= gone;
}

void history_add(History *h, const JsonValue *line)
{
    const char  *log = "";
    HistoryPoint point = {.epoch = get(line, "epoch"),
                          .loss = get(line, "loss"),
                          .norm = get(line, "norm"),
                          .lr = get(line, "lr"),
                          .tokens_per_second = get(line, "tokens_per_second"),
                          .duration_ms = get(line, "duration_ms"),
                          .total_tokens = get(line, "total_tokens"),
                          .total_trained = get(line, "total_trained")};
    json_get_str(line, "log", &log);
    json_get_int(line, "step", &point.step);
    eval_trend_line(&h->trend, line);
    if (strcmp(log, "step") == 0) add_step(h, line, &point);
    if (strcmp(log, "sample") == 0) add_sample(h, line);
    if (strcmp(log, "eval") != 0) return;
    point.tokens = get(line, "eval_tokens");
    row_add(&h->evals, &point);
}
