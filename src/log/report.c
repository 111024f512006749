/* The page's template is report_page.html, in the program's read-only data. It draws one JSON object, which replaces the template's
 * marker. */
#include "log/report.h"

#include "base/log.h"
#include "base/scoped.h"
#include "files/file.h"

#include <stdio.h>
#include <string.h>

__asm__(".section .rodata\n.global report_page\n.global report_page_end\nreport_page:\n.incbin \"" SUROGATE_REPORT_PAGE
        "\"\nreport_page_end:\n.byte 0\n.previous\n");
extern const char report_page[], report_page_end[];

#define MARKER "\"REPORT DATA\""

/* Appends [step, value, ...] for each point. */
static void write_steps(StrBuf *out, const HistoryRow *row)
{
    for (int64_t i = 0; i < history_count(row); i++) {
        const HistoryPoint *p = history_at(row, i);
        const double        values[] = {p->loss, p->norm, p->lr, p->tokens_per_second, p->duration_ms, p->total_tokens, p->total_trained};
        strbuf_printf(out, "%s[%lld", i ? "," : "", (long long)p->step);
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            strbuf_putc(out, ',');
            json_write_double(out, values[k]);
        }
        strbuf_putc(out, ']');
    }
}

static void write_evals(StrBuf *out, const HistoryRow *row)
{
    for (int64_t i = 0; i < history_count(row); i++) {
        strbuf_printf(out, "%s[%lld,", i ? "," : "", (long long)history_at(row, i)->step);
        json_write_double(out, history_at(row, i)->loss);
        strbuf_putc(out, ']');
    }
}

/* Appends for each rank [tokens per second, seconds of its own work per step, share of its time spent waiting]; nothing if there is only
 * one rank. */
static void write_ranks(StrBuf *out, const History *h)
{
    for (uint32_t r = 0; r < h->num_ranks && h->rank_steps; r++) {
        const HistoryRank *sum = &h->ranks[r];
        strbuf_puts(out, r ? ",[" : "[");
        json_write_double(out, sum->tokens / sum->seconds);
        strbuf_putc(out, ',');
        json_write_double(out, (sum->seconds - sum->waited) / (double)h->rank_steps);
        strbuf_putc(out, ',');
        json_write_double(out, sum->waited / sum->seconds);
        strbuf_putc(out, ']');
    }
}

static void write_samples(StrBuf *out, const History *h)
{
    for (size_t i = 0; i < h->samples.len; i++) {
        char c = h->samples.data[i];
        if (c != '\n')
            strbuf_putc(out, c);
        else if (i + 1 < h->samples.len)
            strbuf_putc(out, ',');
    }
}

static void write_text(StrBuf *out, const char *key, const char *text)
{
    strbuf_printf(out, ",\"%s\":", key);
    json_write_string(out, text, strlen(text));
}

/* The best evaluation, whether the model overfits, and the checkpoint that is kept as the best. */
static void write_trend(StrBuf *out, const EvalTrend *trend, int64_t kept_best)
{
    if (kept_best) strbuf_printf(out, ",\"kept_best\":%lld", (long long)kept_best);
    if (!trend->best_step) return;
    strbuf_printf(out, ",\"best_eval\":{\"step\":%lld,\"loss\":%.9g},\"overfits\":%s", (long long)trend->best_step, trend->best,
                  eval_trend_overfits(trend) ? "true" : "false");
}

static void write_data(const History *h, const ReportFacts *f, StrBuf *out)
{
    SCOPED_STRBUF(settings);
    const char *slash = strrchr(f->config->output_dir, '/');
    config_print(f->config, &settings);
    strbuf_printf(out, "{\"finished\":%s,\"step\":%lld,\"total\":%lld,\"skipped\":%lld,\"flops\":%.6g,\"of_limit\":%.6g",
                  f->finished ? "true" : "false", (long long)f->step, (long long)f->total, (long long)f->skipped, f->flops, f->of_limit);
    write_trend(out, &h->trend, f->kept_best);
    write_text(out, "name", f->config->run_name ? f->config->run_name : slash && slash[1] ? slash + 1 : f->config->output_dir);
    write_text(out, "model", f->config->model);
    write_text(out, "architecture", f->architecture);
    write_text(out, "model_notes", f->model_notes);
    write_text(out, "data", f->data_notes);
    write_text(out, "settings", strbuf_cstr(&settings));
    strbuf_puts(out, ",\"plan\":");
    plan_write_json(f->plan, out);
    strbuf_puts(out, ",\"steps\":[");
    write_steps(out, &h->steps);
    strbuf_puts(out, "],\"evals\":[");
    write_evals(out, &h->evals);
    strbuf_puts(out, "],\"ranks\":[");
    write_ranks(out, h);
    strbuf_puts(out, "],\"samples\":[");
    write_samples(out, h);
    strbuf_puts(out, "]}");
}

/* Escapes `<`: text inside a script element must not close the element. */
static void append_escaped(StrBuf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '<')
            strbuf_puts(out, "\\u003c");
        else
            strbuf_putc(out, text[i]);
    }
}

static Status write_page(const StrBuf *data, const char *path)
{
    SCOPED_STRBUF(page);
    const char *marker = strstr(report_page, MARKER);
    CHECK(marker);
    strbuf_append(&page, report_page, (size_t)(marker - report_page));
    append_escaped(&page, data->data, data->len);
    strbuf_append(&page, marker + strlen(MARKER), (size_t)(report_page_end - marker) - strlen(MARKER));
    return file_write_atomic(path, page.data, page.len);
}

static void write_run(StrBuf *out, const ReportRun *run)
{
    const History *h = run->history;
    strbuf_printf(out, "{\"finished\":%s", run->finished ? "true" : "false");
    write_text(out, "name", run->name);
    write_text(out, "settings", run->settings);
    write_trend(out, &h->trend, 0);
    strbuf_puts(out, ",\"steps\":[");
    write_steps(out, &h->steps);
    strbuf_puts(out, "],\"evals\":[");
    write_evals(out, &h->evals);
    strbuf_puts(out, "]}");
}

Status report_compare(const ReportRun *runs, size_t count, const char *path)
{
    SCOPED_STRBUF(data);
    strbuf_puts(&data, REPORT_MARK);
    for (size_t i = 0; i < count; i++) {
        if (i) strbuf_putc(&data, ',');
        write_run(&data, &runs[i]);
    }
    strbuf_puts(&data, "]}");
    return write_page(&data, path);
}

void report_update(const History *history, const ReportFacts *facts)
{
    SCOPED_STRBUF(data);
    char path[4096];
    write_data(history, facts, &data);
    snprintf(path, sizeof path, "%s/report.html", facts->config->output_dir);
    if (write_page(&data, path) == OK) return;
    log_warn("report.html wasn't written: %s", status_message());
    status_clear();
}
