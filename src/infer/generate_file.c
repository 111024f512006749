/* See generate_file.h. */
#include "infer/generate_file.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "infer/resumable_file.h"

#include <stdio.h>
#include <string.h>

typedef struct Run {
    const PromptFile      *prompts;
    const GenerateFileJob *job;
    RowsRun               *rows;
    ResumableFile          file;
    int64_t                first_line;  /* number of lines that existed when this command began */
    double                 begun, told; /* begun: time of the first step, 0: not yet; told: when progress was last logged */
} Run;

/* Keeps the lines of an earlier run that are complete and in order. A kill may have cut the last line, a crash of the machine several. */
static Status go_on(Run *r)
{
    const RowsProgress *p = rows_progress(r->rows);
    FileMap             map;
    size_t              kept = 0;
    TRY(file_map(r->file.part, &map));
    while (kept < map.size) {
        const char *newline = memchr(map.data + kept, '\n', map.size - kept);
        if (!newline || !rows_skip(r->rows, (Str){map.data + kept, (size_t)(newline - map.data) - kept})) break;
        kept = (size_t)(newline - map.data) + 1;
    }
    file_unmap(&map);
    r->first_line = p->written;
    if (p->written) log_info("%s: goes on after %lld of %lld lines", r->file.part, (long long)p->written, (long long)p->num_lines);
    return resumable_file_cut(&r->file, kept);
}

/* ---- progress ---- */

/* Shows progress: on a terminal ten times a second, else every half minute. */
static void tell_progress(Run *r)
{
    const RowsProgress *p = rows_progress(r->rows);
    char                line[160];
    double              now = clock_seconds(), pause = log_is_terminal() ? 0.1 : 30, passed = now - r->begun;
    if (now < r->told + pause) return;
    r->told = now;
    int64_t done = p->written - r->first_line;
    int     len = snprintf(line, sizeof line, "%lld/%lld lines  %lld at once  %.0f tok/s", (long long)p->written, (long long)p->num_lines,
                           (long long)p->at_once, (double)p->tokens / passed);
    if (done) snprintf(line + len, sizeof line - (size_t)len, "  ETA %.0f s", passed / (double)done * (double)(p->num_lines - p->written));
    if (log_is_terminal())
        log_status(line);
    else
        log_info("%s", line);
}

static void tell_end(const Run *r)
{
    const RowsProgress *p = rows_progress(r->rows);
    double              passed = r->begun ? clock_seconds() - r->begun : 0;
    if (log_is_terminal()) log_status("");
    log_info("%s: %lld lines of %zu prompts, %lld tokens in %.1f s", r->job->out, (long long)p->num_lines, r->prompts->num_rows,
             (long long)p->tokens, passed);
    if (p->num_bad) log_warn("%lld of these lines have an error in place of a text", (long long)p->num_bad);
    if (r->job->rows.pages && p->most_at_once < p->rows)
        log_info("at most %lld texts were made at once, of %lld rows: the others waited for pages of the cache (--pages)",
                 (long long)p->most_at_once, (long long)p->rows);
    if (p->num_preempted)
        log_info("%lld times a text was preempted for want of pages and went on later: more pages (--pages) or fewer rows avoid that",
                 (long long)p->num_preempted);
}

/* ---- running ---- */

static Status append(void *context, const StrBuf *lines)
{
    Run *r = context;
    return resumable_file_append(&r->file, lines);
}

static Status between(void *context)
{
    Run                   *r = context;
    const GenerateFileJob *job = r->job;
    const RowsProgress    *p = rows_progress(r->rows);
    if (!r->begun) r->begun = r->told = clock_seconds();
    tell_progress(r);
    if (!job->is_stopped || !job->is_stopped(job->context)) return OK;
    if (log_is_terminal()) log_status("");
    FAIL(ERR_INTERRUPTED, "interrupted after %lld of %lld lines; the same command goes on from %s", (long long)p->written,
         (long long)p->num_lines, r->file.part);
}

static Status run_open(Run *r)
{
    TRY(go_on(r));
    TRY(rows_run(r->rows));
    TRY(resumable_file_finish(&r->file));
    tell_end(r);
    return OK;
}

static Status run_rows(Run *r, InferModel *infer)
{
    StrBuf settings = {0};
    generate_file_settings(infer, r->prompts, r->job, rows_progress(r->rows)->rows, &settings);
    Status status = resumable_file_open(&infer->arena, r->job->out, strbuf_str(&settings), &r->file);
    strbuf_deinit(&settings);
    TRY(status);
    if (r->file.fd < 0) {
        log_info("%s is complete already: nothing is left to do", r->job->out);
        return OK;
    }
    status = run_open(r);
    resumable_file_close(&r->file);
    return status;
}

Status generate_file(InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job)
{
    Run     r = {.prompts = prompts, .job = job};
    RowsJob rows = job->rows;
    rows.context = &r;
    rows.take = append;
    rows.between = between;
    r.rows = rows_create(infer, prompts, &rows);
    Status status = run_rows(&r, infer);
    rows_destroy(r.rows);
    return status;
}
