/* Formatting goes through fixed buffers and one write: nothing is allocated. */
#include "train/progress.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void progress_init(Progress *p, int64_t total_steps, int64_t steps_before, int64_t logging_steps, double limit_seconds)
{
    *p = (Progress){ .terminal = log_is_terminal(), .total_steps = total_steps, .logging_steps = logging_steps,
                     .steps_before = steps_before, .limit_seconds = limit_seconds };
}

static void put(const char *text, int len, int most)
{
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)(len < most ? len : most - 1));
    (void)ignored;
}

void progress_break(Progress *p)
{
    if (p->open_line) put("\n", 1, 2);
    p->open_line = false;
}

static const char *time_text(double seconds, char out[32])
{
    long s = (long)(seconds + 0.5);
    if (!(seconds < 1e9)) snprintf(out, 32, "-");
    else if (s >= 3600) snprintf(out, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else if (s >= 60) snprintf(out, 32, "%ldm%02lds", s / 60, s % 60);
    else snprintf(out, 32, "%lds", s);
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

void progress_step(Progress *p, const StepMetrics *s)
{
    /* What is left is told by the steps so far, smoothed over about ten (the first warms caches up); speed is this step's. */
    p->seconds = p->steps <= 1 ? s->seconds : 0.9 * p->seconds + 0.1 * s->seconds;
    p->steps++;
    bool last = s->step == p->total_steps;
    if (!p->terminal && s->step % p->logging_steps != 0 && !last) return;
    char line[512], speed[32], eta[32], limit[32] = "";
    if (p->limit_seconds > 0) snprintf(limit, sizeof limit, "  %.0f%% of limit", 100 * p->limit_seconds / s->seconds);
    int len = snprintf(line, sizeof line, "%sstep %lld/%lld  loss %.4f  norm %.3f  lr %.2e  %s tok/s%s  ETA %s%s%s", p->terminal ? "\r\033[K" : "",
                       (long long)s->step, (long long)p->total_steps, s->loss, s->norm, s->lr,
                       grouped(s->seconds > 0 ? (double)s->step_tokens / s->seconds : 0, speed), limit,
                       time_text((double)(p->total_steps - s->step) * p->seconds, eta), s->skipped ? "  SKIPPED: not finite" : "",
                       p->terminal ? "" : "\n");
    put(line, len, sizeof line);
    p->open_line = p->terminal;
}

void progress_eval(Progress *p, const EvalMetrics *e)
{
    char line[256];
    progress_break(p);
    int len = snprintf(line, sizeof line, "eval at step %lld  loss %.4f  perplexity %.3f  (%lld tokens, %.1f s)\n", (long long)e->step, e->loss,
                       exp(e->loss), (long long)e->tokens, e->seconds);
    put(line, len, sizeof line);
}
