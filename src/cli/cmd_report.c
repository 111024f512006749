/* surogate report RUN_DIR...: shows several runs on one page, from their metrics.jsonl and run.json. */
#include "cli/cli.h"

#include "base/log.h"
#include "files/file.h"
#include "log/report.h"
#include "store/run_record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 32 };

typedef struct Run {
    History     history;
    RunRecord   record;
    RunPresence presence;
} Run;

/* Reads metrics.jsonl. The last line may be incomplete if the run goes on; other lines that can't be read are counted. */
static Status read_metrics(const char *path, History *history)
{
    FILE   *file = fopen(path, "r");
    char   *line = NULL;
    size_t  size = 0, num_bad = 0;
    ssize_t len;
    FAIL_IF(!file, ERR_INVALID, "%s: %s; expected the output_dir of a run", path, strerror(errno));
    while ((len = getline(&line, &size, file)) > 0) {
        Arena     arena = {0};
        JsonValue value;
        if (line[len - 1] == '\n' && json_parse(&arena, path, line, (size_t)len, &value) == OK && value.type == JSON_OBJECT)
            history_add(history, &value);
        else
            num_bad += line[len - 1] == '\n';
        arena_deinit(&arena);
    }
    status_clear();
    bool failed = ferror(file) != 0;
    free(line);
    fclose(file);
    FAIL_IF(failed, ERR_IO, "%s: can't be read", path);
    FAIL_IF(!history->num_steps, ERR_INVALID, "%s: no line of a step", path);
    if (num_bad) log_warn("%s: %zu lines that can't be read", path, num_bad);
    return OK;
}

static Status read_run(Arena *arena, const char *dir, Run *out)
{
    history_init(&out->history, 1);
    TRY(read_metrics(arena_printf(arena, "%s/metrics.jsonl", dir), &out->history));
    return run_record_read(dir, &out->presence, &out->record);
}

/* The folder's name, or its path if another run has the same name. */
static const char *name_of(Arena *arena, const CliArgs *args, size_t index)
{
    char *path = arena_strdup(arena, args->words[index]);
    for (size_t len = strlen(path); len > 1 && path[len - 1] == '/'; len--) path[len - 1] = 0;
    const char *slash = strrchr(path, '/'), *name = slash && slash[1] ? slash + 1 : path;
    for (size_t i = 0; i < args->num_words; i++) {
        size_t len = strlen(args->words[i]), own = strlen(name);
        while (len > 1 && args->words[i][len - 1] == '/') len--;
        bool ends_alike = i != index && len >= own && strncmp(args->words[i] + len - own, name, own) == 0;
        if (ends_alike && (len == own || args->words[i][len - own - 1] == '/')) return path;
    }
    return name;
}

/* ERR_INVALID if the file exists and isn't a report of this command: only such a report may be overwritten. */
static Status may_write(Arena *arena, const char *path)
{
    bool there;
    Str  text;
    TRY(file_exists(path, &there));
    if (!there) return OK;
    TRY(file_read(arena, path, (size_t)1 << 30, &text));
    FAIL_IF(!strstr(text.data, REPORT_MARK), ERR_INVALID,
            "%s is there already and is no page of this command; name another file with --out", path);
    return OK;
}

static Status write_report(CliArgs *args, const char *out, Run *runs)
{
    ReportRun rows[MOST_RUNS];
    TRY(may_write(&args->arena, out));
    for (size_t i = 0; i < args->num_words; i++) {
        TRY(read_run(&args->arena, args->words[i], &runs[i]));
        rows[i] = (ReportRun){.name = name_of(&args->arena, args, i),
                              .settings = strbuf_cstr(&runs[i].record.settings),
                              .history = &runs[i].history,
                              .finished = runs[i].presence == RUN_FINISHED};
    }
    TRY(report_compare(rows, args->num_words, out));
    log_info("wrote %s", out);
    return OK;
}

Status cmd_report(CliArgs *args)
{
    const char *out = "runs.html";
    bool        done;
    const Flag  flags[] = {{"--out", FLAG_TEXT, &out, "FILE.html", "the page (runs.html); one of this command is written anew"}};
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    FAIL_IF(args->num_words == 0, ERR_INVALID, "no runs are named; usage: surogate report RUN_DIR... [--out FILE.html]");
    FAIL_IF(args->num_words > MOST_RUNS, ERR_INVALID, "%zu runs; at most %d can be told apart on one page", args->num_words, MOST_RUNS);
    Run *runs = arena_array(&args->arena, Run, args->num_words);
    memset(runs, 0, args->num_words * sizeof *runs);
    Status status = write_report(args, out, runs);
    for (size_t i = 0; i < args->num_words; i++) {
        history_deinit(&runs[i].history);
        run_record_deinit(&runs[i].record);
    }
    return status;
}
