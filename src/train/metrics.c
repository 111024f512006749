/* Lines are formatted into a fixed buffer: a step allocates nothing. */
#include "train/metrics.h"

#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, MAX_FILE_BYTES = 1 << 30 };

struct Metrics {
    int     fd;
    int64_t bytes;
    char    path[4096];
};

Status metrics_open(const char *path, int64_t keep_bytes, Metrics **out)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    FAIL_IF(fd < 0, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) != 0 || (info.st_size < keep_bytes && (keep_bytes = info.st_size) < 0) || ftruncate(fd, keep_bytes) != 0 ||
        lseek(fd, keep_bytes, SEEK_SET) < 0) {
        int error = errno;
        close(fd);
        FAIL(ERR_IO, "cannot continue %s: %s", path, strerror(error));
    }
    Metrics *metrics = calloc(1, sizeof *metrics);
    CHECK(metrics);
    metrics->fd = fd;
    metrics->bytes = keep_bytes;
    snprintf(metrics->path, sizeof metrics->path, "%s", path);
    *out = metrics;
    return OK;
}

void metrics_close(Metrics *metrics)
{
    if (!metrics) return;
    close(metrics->fd);
    free(metrics);
}

int64_t metrics_bytes(const Metrics *metrics)
{
    return metrics->bytes;
}

Status metrics_sync(Metrics *metrics)
{
    FAIL_IF(fdatasync(metrics->fd) != 0, ERR_IO, "cannot write %s: %s", metrics->path, strerror(errno));
    return OK;
}

/* A whole line or, on a full disk, none of it. */
static Status append_line(Metrics *metrics, const char *line, size_t len)
{
    ssize_t written = write(metrics->fd, line, len);
    if (written == (ssize_t)len) {
        metrics->bytes += (int64_t)len;
        return OK;
    }
    int error = written < 0 ? errno : ENOSPC;
    if (written > 0 && (ftruncate(metrics->fd, metrics->bytes) != 0 || lseek(metrics->fd, metrics->bytes, SEEK_SET) < 0)) error = errno;
    FAIL(ERR_IO, "cannot write %s: %s", metrics->path, strerror(error));
}

/* "%.9g" reads back to the same float; NaN and infinities are null in JSON. */
static const char *number(char out[32], double value)
{
    if (isfinite(value)) snprintf(out, 32, "%.9g", value);
    else strcpy(out, "null");
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
    int  len = snprintf(line, sizeof line,
                        "{\"log\":\"step\",\"time\":%.3f,\"step\":%lld,\"epoch\":%s,\"step_tokens\":%lld,\"step_trained\":%lld,\"total_tokens\":%lld,"
                        "\"total_trained\":%lld,\"duration_ms\":%.3f,\"tokens_per_second\":%.1f,\"norm\":%s,\"loss\":%s,\"lr\":%s%s}\n",
                        now(), (long long)s->step, number(epoch, s->epoch), (long long)s->step_tokens, (long long)s->step_trained,
                        (long long)s->total_tokens, (long long)s->total_trained,
                        s->seconds * 1e3, s->seconds > 0 ? (double)s->step_tokens / s->seconds : 0, number(norm, s->norm),
                        number(loss, s->loss), number(lr, s->lr), s->skipped ? ",\"skipped\":true" : "");
    return append_line(metrics, line, (size_t)len);
}

Status metrics_eval(Metrics *metrics, const EvalMetrics *e)
{
    char line[LINE_BYTES], loss[32], epoch[32];
    int  len = snprintf(line, sizeof line,
                        "{\"log\":\"eval\",\"time\":%.3f,\"step\":%lld,\"epoch\":%s,\"eval_tokens\":%lld,\"eval_trained\":%lld,\"duration_ms\":%.3f,"
                        "\"loss\":%s}\n",
                        now(), (long long)e->step, number(epoch, e->epoch), (long long)e->tokens, (long long)e->trained, e->seconds * 1e3,
                        number(loss, e->loss));
    return append_line(metrics, line, (size_t)len);
}

Status metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, size_t len)
{
    StrBuf line = { 0 };
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
    *out = (MetricsHistory){ 0 };
    Str text;
    if (!file_exists(path)) return OK;
    TRY(file_read(arena, path, MAX_FILE_BYTES, &text));
    size_t lines = 0;
    for (size_t i = 0; i < text.len; i++) lines += text.data[i] == '\n';
    out->lines = arena_array(arena, JsonValue, lines + 1);
    for (const char *at = text.data, *end = text.data + text.len; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) break;
        if (json_parse(arena, path, at, (size_t)(stop - at), &out->lines[out->count]) == OK) out->count++;
        else status_clear();
        at = stop + 1;
    }
    return OK;
}
