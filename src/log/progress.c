/* Formatting goes through fixed buffers: nothing is allocated. */
#include "log/progress.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_TRAINED 0.99 /* if a larger share of the tokens read is trained, the speed of trained tokens isn't shown */

enum { MAX_FIELDS = 13 + MOST_SCALARS, FIELD_BYTES = 64, LINE_BYTES = MAX_FIELDS * FIELD_BYTES };

/* A line's parts in order. If the terminal is too narrow, parts with the highest `rank` are left out first; those with 0 always stay. */
typedef struct Line {
    char text[MAX_FIELDS][FIELD_BYTES];
    int  rank[MAX_FIELDS], count;
} Line;

void progress_begin(Progress *p, int64_t total_steps, int64_t logging_steps, int64_t saved_step)
{
    *p = (Progress){.total_steps = total_steps, .logging_steps = logging_steps, .saved_step = saved_step};
}

double progress_of_limit(const Progress *p)
{
    return p->seconds_sum > 0 ? p->limit_sum / p->seconds_sum : 0;
}

/* ---- parts of a line ---- */

static char *add_field(Line *line, int rank)
{
    CHECK(line->count < MAX_FIELDS);
    line->rank[line->count] = rank;
    return line->text[line->count++];
}

/* Joins the parts whose `rank` is at most most_rank, with two blanks between them. Returns the length. */
static int join(const Line *line, int most_rank, char out[LINE_BYTES])
{
    int len = 0;
    out[0] = 0;
    for (int i = 0; i < line->count; i++)
        if (line->rank[i] <= most_rank) len += snprintf(out + len, (size_t)(LINE_BYTES - len), "%s%s", len ? "  " : "", line->text[i]);
    return len;
}

/* Joins as many parts as the terminal has room for; a file gets all. */
static void fit(const Line *line, char out[LINE_BYTES])
{
    int columns = log_is_terminal() ? log_columns() : LINE_BYTES;
    for (int rank = MAX_FIELDS; rank >= 0; rank--)
        if (join(line, rank, out) < columns) return;
}

static const char *time_text(double seconds, char out[32])
{
    long s = (long)(seconds + 0.5);
    if (!(seconds < 1e9))
        snprintf(out, 32, "-");
    else if (s >= 3600)
        snprintf(out, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(out, 32, "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(out, 32, "%lds", s);
    return out;
}

/* 12345.6 -> 12,346 */
static const char *grouped(double value, char out[32])
{
    char digits[32];
    int  len = snprintf(digits, sizeof digits, "%.0f", value), n = 0;
    for (int i = 0; i < len && n < 30; i++) {
        if (i && (len - i) % 3 == 0) out[n++] = ',';
        out[n++] = digits[i];
    }
    out[n] = 0;
    return out;
}

static double rate(int64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

/* The share of the step's time that ranks spent waiting for other ranks, averaged over all ranks. */
static double waiting(const StepMetrics *s)
{
    double seconds = 0, waited = 0;
    for (int r = 0; r < s->num_ranks; r++) {
        seconds += s->ranks[r].seconds;
        waited += s->ranks[r].waited;
    }
    return seconds > 0 ? waited / seconds : 0;
}

/* ---- lines ---- */

static void step_line(const Progress *p, const StepMetrics *s, char out[LINE_BYTES])
{
    Line line = {0};
    char number[32];
    snprintf(add_field(&line, 0), FIELD_BYTES, "step %lld/%lld", (long long)s->step, (long long)p->total_steps);
    snprintf(add_field(&line, 0), FIELD_BYTES, "loss %.4f", s->loss);
    if (s->skipped) snprintf(add_field(&line, 0), FIELD_BYTES, "SKIPPED: not finite");
    for (int i = 0; i < s->num_scalars; i++) snprintf(add_field(&line, 6), FIELD_BYTES, "%s %.4g", s->scalars[i].name, s->scalars[i].value);
    snprintf(add_field(&line, 4), FIELD_BYTES, "norm %.3f", s->norm);
    snprintf(add_field(&line, 3), FIELD_BYTES, "lr %.2e", s->lr);
    snprintf(add_field(&line, 2), FIELD_BYTES, "%s tok/s", grouped(rate(s->step_tokens, s->seconds), number));
    if (s->ranks) snprintf(add_field(&line, 7), FIELD_BYTES, "%d ranks, %.0f%% waiting", s->num_ranks, 100 * waiting(s));
    if (s->ranks && s->slow_rank >= 0) snprintf(add_field(&line, 1), FIELD_BYTES, "rank %d is slow", s->slow_rank);
    if ((double)s->step_trained < MOST_TRAINED * (double)s->step_tokens)
        snprintf(add_field(&line, 6), FIELD_BYTES, "%s trained/s", grouped(rate(s->step_trained, s->seconds), number));
    if (s->limit_seconds > 0) snprintf(add_field(&line, 5), FIELD_BYTES, "%.0f%% of limit", 100 * s->limit_seconds / s->seconds);
    if (p->saved_step >= 0) snprintf(add_field(&line, 3), FIELD_BYTES, "checkpoint-%lld", (long long)p->saved_step);
    snprintf(add_field(&line, 1), FIELD_BYTES, "ETA %s", time_text((double)(p->total_steps - s->step) * p->seconds, number));
    fit(&line, out);
}

void progress_step(Progress *p, const StepMetrics *s)
{
    char line[LINE_BYTES];
    /* The ETA uses the steps so far, smoothed over about ten (the first one warms caches up); the speed shown is this step's. */
    p->seconds = p->steps <= 1 ? s->seconds : 0.9 * p->seconds + 0.1 * s->seconds;
    p->steps++;
    if (s->limit_seconds > 0) {
        p->limit_sum += s->limit_seconds;
        p->seconds_sum += s->seconds;
    }
    bool logged = s->step % p->logging_steps == 0 || s->step == p->total_steps;
    if (!logged && !log_is_terminal()) return;
    step_line(p, s, line);
    if (logged)
        log_info("%s", line);
    else
        log_status(line);
}

void progress_eval(const EvalMetrics *e, const EvalTrend *trend)
{
    Line line = {0};
    char text[LINE_BYTES], number[32];
    snprintf(add_field(&line, 0), FIELD_BYTES, "eval at step %lld", (long long)e->step);
    snprintf(add_field(&line, 0), FIELD_BYTES, "loss %.4f", e->loss);
    snprintf(add_field(&line, 2), FIELD_BYTES, "perplexity %.3f", exp(e->loss));
    if (trend->best_step != e->step && trend->best_step)
        snprintf(add_field(&line, 1), FIELD_BYTES, "%sbest %.4f at step %lld", eval_trend_overfits(trend) ? "overfitting: " : "",
                 trend->best, (long long)trend->best_step);
    snprintf(add_field(&line, 3), FIELD_BYTES, "(%s tokens, %.1f s)", grouped((double)e->tokens, number), e->seconds);
    fit(&line, text);
    log_info("%s", text);
}
