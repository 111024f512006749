/* Lines wait in one buffer until they are in the file: a step allocates nothing unless the disk fails. */
#include "train/metrics.h"

#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, MAX_FILE_BYTES = 1 << 30 };

struct Metrics {
    int     fd;
    int64_t bytes;   /* in the file */
    StrBuf  waiting; /* lines that come after them */
    char    path[4096];
};

/* Where the whole lines up to `step` end, at most *bytes. */
static Status settle_bytes(const char *path, int64_t step, int64_t *bytes)
{
    Arena     arena = {0};
    Str       text = {0};
    JsonValue line;
    int64_t   most = *bytes, at = 0, end = 0, line_step = 0;
    bool      is_there;
    if (most == 0) return OK;
    TRY(file_exists(path, &is_there));
    Status status = is_there ? file_read(&arena, path, MAX_FILE_BYTES, &text) : OK;
    if ((int64_t)text.len < most) most = (int64_t)text.len;
    for (; status == OK && at < most && line_step <= step; at = end) {
        const char *stop = memchr(text.data + at, '\n', (size_t)(most - at));
        if (!stop) break;
        end = stop + 1 - text.data;
        if (json_parse(&arena, path, text.data + at, (size_t)(end - at), &line) != OK)
            status_clear();
        else if (json_get_int(&line, "step", &line_step) && line_step > step)
            end = at;
    }
    *bytes = at;
    arena_deinit(&arena);
    return status;
}

Status metrics_open(const char *path, int64_t keep_bytes, int64_t step, Metrics **out)
{
    TRY(settle_bytes(path, step, &keep_bytes));
    int fd = file_open(path, O_WRONLY | O_CREAT);
    if (fd < 0) return file_fail("open", path);
    if (file_truncate(fd, keep_bytes) != 0) {
        Status status = file_fail("continue", path);
        close(fd);
        return status;
    }
    Metrics *metrics = calloc_or_end(1, sizeof *metrics);
    metrics->fd = fd;
    metrics->bytes = keep_bytes;
    strbuf_reserve(&metrics->waiting, 1 << 16);
    snprintf(metrics->path, sizeof metrics->path, "%s", path);
    *out = metrics;
    return OK;
}

/* All lines that wait or, where the disk fails, none of them: they go on waiting, and errno says why. */
static bool write_lines(Metrics *metrics)
{
    size_t done = 0, len = metrics->waiting.len;
    while (done < len) {
        ssize_t n = pwrite(metrics->fd, metrics->waiting.data + done, len - done, metrics->bytes + (int64_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (done < len) {
        int error = errno;
        (void)!file_truncate(metrics->fd, metrics->bytes); /* else the next attempt writes over the torn line */
        errno = error;
        return false;
    }
    metrics->bytes += (int64_t)len;
    metrics->waiting.len = 0;
    return true;
}

static Status write_waiting(Metrics *metrics)
{
    return write_lines(metrics) ? OK : file_fail("write", metrics->path);
}

void metrics_close(Metrics *metrics)
{
    if (!metrics) return;
    (void)write_lines(metrics); /* the message of what ended the run stays */
    close(metrics->fd);
    strbuf_deinit(&metrics->waiting);
    free(metrics);
}

int64_t metrics_bytes(const Metrics *metrics)
{
    return metrics->bytes;
}

Status metrics_sync(Metrics *metrics)
{
    TRY(write_waiting(metrics));
    return file_fsync(metrics->fd) != 0 ? file_fail("write", metrics->path) : OK;
}

static void append_ranks(Metrics *metrics, const StepMetrics *s)
{
    strbuf_puts(&metrics->waiting, ",\"ranks\":[");
    for (int r = 0; r < s->num_ranks; r++) {
        const RankShare *rank = &s->ranks[r];
        strbuf_printf(&metrics->waiting, "%s[%.1f,%.4f]", r ? "," : "", rank->seconds > 0 ? (double)rank->tokens / rank->seconds : 0,
                      rank->waited);
    }
    strbuf_putc(&metrics->waiting, ']');
}

static Status append_line(Metrics *metrics, const char *line, size_t len)
{
    strbuf_append(&metrics->waiting, line, len);
    return write_waiting(metrics);
}

/* "%.9g" reads back to the same float; NaN and infinities are null in JSON. */
static const char *number(char out[32], double value)
{
    if (isfinite(value))
        snprintf(out, 32, "%.9g", value);
    else
        strcpy(out, "null");
    return out;
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
    strbuf_append(&metrics->waiting, line, (size_t)len);
    if (s->ranks) append_ranks(metrics, s);
    return append_line(metrics, "}\n", 2);
}

Status metrics_eval(Metrics *metrics, const EvalMetrics *e)
{
    char line[LINE_BYTES], loss[32], epoch[32];
    int  len = snprintf(
         line, sizeof line,
         "{\"log\":\"eval\",\"time\":%.3f,\"step\":%lld,\"epoch\":%s,\"eval_tokens\":%lld,\"eval_trained\":%lld,\"duration_ms\":%.3f,"
          "\"loss\":%s}\n",
         now(), (long long)e->step, number(epoch, e->epoch), (long long)e->tokens, (long long)e->trained, e->seconds * 1e3,
         number(loss, e->loss));
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
    StrBuf line = {0};
    strbuf_printf(&line, "{\"log\":\"sample\",\"time\":%.3f,\"step\":%lld,\"prompt\":", now(), (long long)step);
    json_write_string(&line, prompt, strlen(prompt));
    strbuf_puts(&line, ",\"text\":");
    json_write_string(&line, text, len);
    strbuf_puts(&line, "}\n");
    Status status = append_line(metrics, line.data, line.len);
    strbuf_deinit(&line);
    return status;
}

Status metrics_read(Arena *arena, const char *path, MetricsHistory *out)
{
    *out = (MetricsHistory){0};
    Str  text;
    bool is_there;
    TRY(file_exists(path, &is_there));
    if (!is_there) return OK;
    TRY(file_read(arena, path, MAX_FILE_BYTES, &text));
    size_t lines = 0;
    for (size_t i = 0; i < text.len; i++) lines += text.data[i] == '\n';
    out->lines = arena_array(arena, JsonValue, lines + 1);
    for (const char *at = text.data, *end = text.data + text.len; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) break;
        if (json_parse(arena, path, at, (size_t)(stop - at), &out->lines[out->count]) == OK)
            out->count++;
        else
            status_clear();
        at = stop + 1;
    }
    return OK;
}
