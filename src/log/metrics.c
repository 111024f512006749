/* Lines wait in one buffer until they are written to the file. A step allocates nothing, unless the disk fails and lines pile up. */
#include "log/metrics.h"

#include "base/hash.h"
#include "base/scoped.h"
#include "files/append.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, READ_BYTES = 1 << 20, MOST_LINE_BYTES = 64 << 20 };

struct Metrics {
    AppendFile   file;
    size_t       told; /* of the waiting bytes, how many at the front are in hash and history already */
    uint64_t     hash; /* hash of all lines, in their order */
    History      history;
    Arena        arena; /* for the line being parsed */
    MetricsFound found;
    char         path[4096];
};

/* Adds a line, which ends with a line feed, to hash and history. False: it isn't JSON, so it is only in the hash. */
static bool add_line(Metrics *m, const char *line, size_t len)
{
    JsonValue value;
    m->hash = hash_bytes(line, len, m->hash);
    arena_reset(&m->arena);
    if (json_parse(&m->arena, m->path, line, len, &value) != OK) {
        status_clear();
        return false;
    }
    history_add(&m->history, &value);
    return true;
}

/* ---- the lines that are there ---- */

typedef struct Reading {
    Metrics           *metrics;
    const MetricsMark *mark;
    int64_t            most; /* most bytes of the file that stay: mark->bytes */
    int64_t            at, line;
    bool               is_behind; /* past the lines that stay: everything from here on is cut off */
} Reading;

static bool step_of(Metrics *m, const char *line, size_t len, int64_t *step, bool *is_gap)
{
    JsonValue   value;
    const char *log;
    arena_reset(&m->arena);
    bool is_read = json_parse(&m->arena, m->path, line, len, &value) == OK && json_get_int(&value, "step", step);
    *is_gap = is_read && json_get_str(&value, "log", &log) && strcmp(log, "gap") == 0;
    status_clear();
    return is_read;
}

static void see_line(Reading *r, const char *line, size_t len)
{
    Metrics      *m = r->metrics;
    MetricsFound *found = &m->found;
    int64_t       step = 0;
    bool          is_gap, has_step = step_of(m, line, len, &step, &is_gap);
    r->line++;
    r->at += (int64_t)len;
    r->is_behind |= r->at > r->most || (has_step && step > r->mark->step);
    if (r->is_behind) {
        if (!has_step || is_gap) return;
        if (!found->cut_last) found->cut_first = step;
        if (step > found->cut_last) found->cut_last = step;
        return;
    }
    m->file.bytes = r->at;
    if (has_step) {
        found->last_step = step;
        found->ends_in_gap = is_gap;
    }
    if (!add_line(m, line, len) && found->num_bad++ == 0) found->first_bad = r->line;
}

/* Passes each line to see_line. A last line without its line feed is torn, and is cut off. */
static Status read_lines(Reading *r, int fd)
{
    SCOPED_STRBUF(text);
    Status  status = OK;
    ssize_t n;
    do {
        strbuf_reserve(&text, READ_BYTES);
        do n = read(fd, text.data + text.len, READ_BYTES);
        while (n < 0 && errno == EINTR);
        if (n < 0) status = file_fail("read", r->metrics->path);
        size_t begin = 0, seen = text.len;
        text.len += n > 0 ? (size_t)n : 0;
        for (const char *stop; seen < text.len && (stop = memchr(text.data + seen, '\n', text.len - seen)); begin = seen) {
            seen = (size_t)(stop + 1 - text.data);
            see_line(r, text.data + begin, seen - begin);
        }
        text.len -= begin;
        if (begin) memmove(text.data, text.data + begin, text.len);
        if (status == OK && text.len > MOST_LINE_BYTES)
            status = status_fail(ERR_INVALID, "%s: line %lld has more than %d MiB, which no run of this program wrote; move the file away",
                                 r->metrics->path, (long long)r->line + 1, MOST_LINE_BYTES >> 20);
    } while (status == OK && n > 0);
    return status;
}

static Status open_file(Metrics *m, const MetricsMark *mark)
{
    bool is_there;
    TRY(file_exists(m->path, &is_there));
    m->file.fd = file_open(m->path, O_RDWR | O_CREAT);
    if (m->file.fd < 0) return file_fail("open", m->path);
    Reading reading = {.metrics = m, .mark = mark, .most = mark->bytes};
    TRY(read_lines(&reading, m->file.fd));
    m->found.is_cut = m->file.bytes < mark->bytes;
    m->found.is_changed = !m->found.is_cut && mark->hash && m->hash != mark->hash;
    if (file_truncate(m->file.fd, m->file.bytes) != 0) return file_fail("continue", m->path);
    return is_there ? OK : file_sync_above(m->path); /* without this, a checkpoint could exist after a crash without its log */
}

Status metrics_open(const char *path, const MetricsMark *mark, int64_t logging_steps, Metrics **out)
{
    Metrics *metrics = calloc_or_end(1, sizeof *metrics);
    metrics->file = (AppendFile){.fd = -1, .path = metrics->path};
    snprintf(metrics->path, sizeof metrics->path, "%s", path);
    history_init(&metrics->history, logging_steps);
    strbuf_reserve(&metrics->file.waiting, 1 << 16);
    (void)arena_alloc(&metrics->arena, 1 << 16); /* room for a step's line, so that steps allocate nothing */
    Status status = open_file(metrics, mark);
    if (status == OK)
        *out = metrics;
    else
        metrics_close(metrics);
    return status;
}

const MetricsFound *metrics_found(const Metrics *metrics)
{
    return &metrics->found;
}

const History *metrics_history(const Metrics *metrics)
{
    return metrics ? &metrics->history : NULL;
}

/* ---- writing ---- */

static Status write_waiting(Metrics *metrics)
{
    TRY(append_write(&metrics->file));
    metrics->told = 0;
    return OK;
}

void metrics_close(Metrics *metrics)
{
    if (!metrics) return;
    append_close(&metrics->file); /* sets no status: status_message() still says why the run ended */
    history_deinit(&metrics->history);
    arena_deinit(&metrics->arena);
    free(metrics);
}

Status metrics_sync(Metrics *metrics, MetricsMark *mark)
{
    TRY(write_waiting(metrics));
    TRY(append_sync(&metrics->file));
    mark->bytes = metrics->file.bytes;
    mark->hash = metrics->hash;
    return OK;
}

static void append_ranks(Metrics *metrics, const StepMetrics *s)
{
    strbuf_puts(&metrics->file.waiting, ",\"ranks\":[");
    for (int r = 0; r < s->num_ranks; r++) {
        const RankShare *rank = &s->ranks[r];
        strbuf_printf(&metrics->file.waiting, "%s[%.1f,%.4f]", r ? "," : "", rank->seconds > 0 ? (double)rank->tokens / rank->seconds : 0,
                      rank->waited);
    }
    strbuf_putc(&metrics->file.waiting, ']');
}

static Status append_line(Metrics *metrics, const char *line, size_t len)
{
    strbuf_append(&metrics->file.waiting, line, len);
    (void)add_line(metrics, metrics->file.waiting.data + metrics->told, metrics->file.waiting.len - metrics->told);
    metrics->told = metrics->file.waiting.len;
    return write_waiting(metrics);
}

/* Formats a number for JSON: "%.9g" reads back to the same float; NaN and infinities are null. */
static const char *number(char out[32], double value)
{
    if (isfinite(value))
        snprintf(out, 32, "%.9g", value);
    else
        strcpy(out, "null");
    return out;
}

static void append_scalars(Metrics *metrics, const StepMetrics *s)
{
    char value[32];
    for (int i = 0; i < s->num_scalars; i++) {
        strbuf_puts(&metrics->file.waiting, i ? "," : ",\"scalars\":{");
        json_write_string(&metrics->file.waiting, s->scalars[i].name, strlen(s->scalars[i].name));
        strbuf_printf(&metrics->file.waiting, ":%s", number(value, s->scalars[i].value));
    }
    strbuf_putc(&metrics->file.waiting, '}');
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

Status metrics_step(Metrics *metrics, const StepMetrics *s)
{
    char line[LINE_BYTES], loss[32], norm[32], lr[32], epoch[32];
    int  len = snprintf(
         line, sizeof line,
         "{\"log\":\"step\",\"time\":%.3f,\"step\":%lld,\"epoch\":%s,\"step_tokens\":%lld,\"step_trained\":%lld,\"total_tokens\":%lld,"
          "\"total_trained\":%lld,\"duration_ms\":%.3f,\"tokens_per_second\":%.1f,\"norm\":%s,\"loss\":%s,\"lr\":%s%s",
         now(), (long long)s->step, number(epoch, s->epoch), (long long)s->step_tokens, (long long)s->step_trained,
         (long long)s->total_tokens, (long long)s->total_trained, s->seconds * 1e3, s->seconds > 0 ? (double)s->step_tokens / s->seconds : 0,
         number(norm, s->norm), number(loss, s->loss), number(lr, s->lr), s->skipped ? ",\"skipped\":true" : "");
    strbuf_append(&metrics->file.waiting, line, (size_t)len);
    if (s->num_scalars) append_scalars(metrics, s);
    if (s->ranks) append_ranks(metrics, s);
    return append_line(metrics, "}\n", 2);
}

Status metrics_eval(Metrics *metrics, const EvalMetrics *e)
{
    char line[LINE_BYTES], loss[32], epoch[32];
    int  len = snprintf(
         line, sizeof line,
         "{\"log\":\"eval\",\"time\":%.3f,\"step\":%lld,\"epoch\":%s,\"eval_tokens\":%lld,\"eval_trained\":%lld,\"duration_ms\":%.3f,"
          "\"loss\":%s%s}\n",
         now(), (long long)e->step, number(epoch, e->epoch), (long long)e->tokens, (long long)e->trained, e->seconds * 1e3,
         number(loss, e->loss), e->is_best ? ",\"best\":true" : "");
    return append_line(metrics, line, (size_t)len);
}

Status metrics_gap(Metrics *metrics, int64_t from, int64_t step)
{
    char line[LINE_BYTES];
    int  len = snprintf(line, sizeof line, "{\"log\":\"gap\",\"time\":%.3f,\"from\":%lld,\"step\":%lld}\n", now(), (long long)from,
                        (long long)step);
    return append_line(metrics, line, (size_t)len);
}

Status metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, size_t len)
{
    SCOPED_STRBUF(line);
    strbuf_printf(&line, "{\"log\":\"sample\",\"time\":%.3f,\"step\":%lld,\"prompt\":", now(), (long long)step);
    json_write_string(&line, prompt, strlen(prompt));
    strbuf_puts(&line, ",\"text\":");
    json_write_string(&line, text, len);
    strbuf_puts(&line, "}\n");
    return append_line(metrics, line.data, line.len);
}
