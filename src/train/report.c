/* The page is report_page.html, in the program's read-only data. It draws one JSON object, which takes the place of its marker. */
#include "train/report.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

__asm__(".section .rodata\n.global report_page\n.global report_page_end\nreport_page:\n.incbin \"" SUROGATE_REPORT_PAGE
        "\"\nreport_page_end:\n.byte 0\n.previous\n");
extern const char report_page[], report_page_end[];

#define MARKER "\"REPORT DATA\""

enum { MOST_POINTS = 3000 };

static double get(const JsonValue *line, const char *key)
{
    double value = NAN;
    json_get_double(line, key, &value);
    return value;
}

static bool is_log(const JsonValue *line, const char *what)
{
    const char *log;
    return json_get_str(line, "log", &log) && strcmp(log, what) == 0;
}

/* [[step, value, ...], ...] of the lines of one kind; of very long runs every n-th. */
static void write_rows(StrBuf *out, const MetricsHistory *history, const char *log, const char *const *keys)
{
    size_t count = 0, taken = 0, seen = 0;
    for (size_t i = 0; i < history->count; i++) count += is_log(&history->lines[i], log);
    size_t every = count / MOST_POINTS + 1;
    strbuf_putc(out, '[');
    for (size_t i = 0; i < history->count; i++) {
        const JsonValue *line = &history->lines[i];
        if (!is_log(line, log) || (seen++ % every != 0 && seen != count)) continue;
        strbuf_puts(out, taken++ ? ",[" : "[");
        for (int k = 0; keys[k]; k++) {
            if (k) strbuf_putc(out, ',');
            json_write_double(out, get(line, keys[k]));
        }
        strbuf_putc(out, ']');
    }
    strbuf_putc(out, ']');
}

/* Of a rank over the steps, which all have as many ranks as the last. */
typedef struct RankSum {
    double tokens, seconds, waited;
} RankSum;

static double element(const JsonValue *array, uint32_t index)
{
    const JsonValue *value = &array->items[index];
    return value->type == JSON_INT ? (double)value->integer : value->type == JSON_DOUBLE ? value->number : NAN;
}

/* [[tokens per second, seconds of its own work in a step, share of the time in which it waited], ...] by rank; [] where there is one. */
static void write_ranks(Arena *arena, StrBuf *out, const MetricsHistory *history)
{
    uint32_t count = 0;
    size_t   steps = 0;
    for (size_t i = 0; i < history->count; i++) {
        const JsonValue *ranks = json_get(&history->lines[i], "ranks");
        if (ranks && ranks->type == JSON_ARRAY) count = ranks->count;
    }
    RankSum *sums = arena_array(arena, RankSum, count + 1);
    for (size_t i = 0; i < history->count; i++) {
        const JsonValue *ranks = json_get(&history->lines[i], "ranks");
        double           seconds = get(&history->lines[i], "duration_ms") / 1e3;
        if (!ranks || ranks->type != JSON_ARRAY || ranks->count != count || !(seconds > 0)) continue;
        steps++;
        for (uint32_t r = 0; r < count; r++) {
            if (ranks->items[r].type != JSON_ARRAY || ranks->items[r].count != 2) continue;
            sums[r].tokens += element(&ranks->items[r], 0) * seconds;
            sums[r].seconds += seconds;
            sums[r].waited += element(&ranks->items[r], 1);
        }
    }
    strbuf_putc(out, '[');
    for (uint32_t r = 0; r < count && steps; r++) {
        strbuf_puts(out, r ? ",[" : "[");
        json_write_double(out, sums[r].tokens / sums[r].seconds);
        strbuf_putc(out, ',');
        json_write_double(out, (sums[r].seconds - sums[r].waited) / (double)steps);
        strbuf_putc(out, ',');
        json_write_double(out, sums[r].waited / sums[r].seconds);
        strbuf_putc(out, ']');
    }
    strbuf_putc(out, ']');
}

static void write_samples(StrBuf *out, const MetricsHistory *history)
{
    bool first = true;
    strbuf_putc(out, '[');
    for (size_t i = 0; i < history->count; i++) {
        if (!is_log(&history->lines[i], "sample")) continue;
        if (!first) strbuf_putc(out, ',');
        first = false;
        json_write(out, &history->lines[i], -1);
    }
    strbuf_putc(out, ']');
}

static void write_text(StrBuf *out, const char *key, const char *text)
{
    strbuf_printf(out, ",\"%s\":", key);
    json_write_string(out, text, strlen(text));
}

/* The best evaluation, and whether the model overfits. */
static void write_trend(StrBuf *out, const MetricsHistory *history)
{
    EvalTrend trend = {0};
    for (size_t i = 0; i < history->count; i++) eval_trend_line(&trend, &history->lines[i]);
    if (!trend.best_step) return;
    strbuf_printf(out, ",\"best_eval\":{\"step\":%lld,\"loss\":%.9g},\"overfits\":%s", (long long)trend.best_step, trend.best,
                  eval_trend_overfits(&trend) ? "true" : "false");
}

static Status write_data(Trainer *t, bool finished, StrBuf *out)
{
    static const char *const steps[] = {"step",        "loss",         "norm",          "lr", "tokens_per_second",
                                        "duration_ms", "total_tokens", "total_trained", NULL};
    static const char *const evals[] = {"step", "loss", NULL};
    Arena                    arena = {0};
    MetricsHistory           history;
    StrBuf                   settings = {0};
    Status                   status = metrics_read(&arena, t->metrics_path, &history);
    if (status == OK) {
        const char *slash = strrchr(t->config->output_dir, '/');
        config_print(t->config, &settings);
        strbuf_printf(out, "{\"finished\":%s,\"step\":%lld,\"total\":%lld,\"skipped\":%lld,\"flops\":%.6g,\"of_limit\":%.6g",
                      finished ? "true" : "false", (long long)t->state.step, (long long)t->schedule.total, (long long)t->state.skipped,
                      trainer_flops_per_step(t), progress_of_limit(&t->progress));
        write_trend(out, &history);
        write_text(out, "name", t->config->run_name ? t->config->run_name : slash && slash[1] ? slash + 1 : t->config->output_dir);
        write_text(out, "model", t->config->model);
        write_text(out, "architecture", t->model->module->architecture);
        write_text(out, "model_notes", strbuf_cstr(&t->model_notes));
        write_text(out, "data", t->data.notes.len ? strbuf_cstr(&t->data.notes) : "");
        write_text(out, "settings", strbuf_cstr(&settings));
        strbuf_puts(out, ",\"plan\":");
        plan_write_json(t->plan, out);
        strbuf_puts(out, ",\"steps\":");
        write_rows(out, &history, "step", steps);
        strbuf_puts(out, ",\"evals\":");
        write_rows(out, &history, "eval", evals);
        strbuf_puts(out, ",\"ranks\":");
        write_ranks(&arena, out, &history);
        strbuf_puts(out, ",\"samples\":");
        write_samples(out, &history);
        strbuf_putc(out, '}');
    }
    strbuf_deinit(&settings);
    arena_deinit(&arena);
    return status;
}

/* Text in a script element must not close it. */
static void append_escaped(StrBuf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '<')
            strbuf_puts(out, "\\u003c");
        else
            strbuf_putc(out, text[i]);
    }
}

static Status write_page(Trainer *t, bool finished)
{
    StrBuf      data = {0}, page = {0};
    const char *marker = strstr(report_page, MARKER);
    char        path[4096];
    CHECK(marker);
    Status status = write_data(t, finished, &data);
    if (status == OK) {
        strbuf_append(&page, report_page, (size_t)(marker - report_page));
        append_escaped(&page, data.data, data.len);
        strbuf_append(&page, marker + strlen(MARKER), (size_t)(report_page_end - marker) - strlen(MARKER));
        snprintf(path, sizeof path, "%s/report.html", t->config->output_dir);
        status = file_write_atomic(path, page.data, page.len);
    }
    strbuf_deinit(&data);
    strbuf_deinit(&page);
    return status;
}

void report_update(Trainer *t, bool finished)
{
    if (write_page(t, finished) == OK) return;
    log_warn("report.html wasn't written: %s", status_message());
    status_clear();
}
