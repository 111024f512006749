/* The pipeline: the caller's thread reads records into units and writes finished units, in order; workers process them in
 * any order. A ring of units bounds memory. */
#include "data/tokenize.h"

#include "base/c_locale.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/pool.h"
#include "data/shard_format.h"
#include "data/split.h"
#include "data/tokenize_key.h"
#include "data/tokenize_report.h"
#include "data/tokenize_unit.h"
#include "files/file.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 256, SHARD_DOCUMENTS = 1 << 22 };

typedef struct Pipeline {
    const TokenizeJob *job;
    TokenizeReport    *report;
    DatasetKey         key;
    Arena              arena;
    Reader            *reader;
    RowFormat          format;
    MaskRules         *rules;
    ShardColumn        columns[SHARD_MOST_COLUMNS];
    int64_t            token_numbers; /* numbers per token, of all columns */
    UnitContext        context;
    int                lock_fd; /* -1: the folder isn't locked */
    int64_t            shard_tokens;
    ShardWriter       *writer; /* NULL between shards */
    DoneShards         done;
    bool              *is_damaged;     /* by shard: whether it must be made anew; NULL: no shard is damaged */
    int64_t            remake_end;     /* rows read at the end of the damaged shard that is being made anew; 0: none is */
    int64_t            rows_read;      /* records read: every part of a text counts */
    int64_t            documents_read; /* documents read: the parts of a text count once together */
    int64_t            most_rows;      /* most documents that the dataset takes; 0: all */
    bool               in_document;    /* the last document written continues in the next unit */
    Record             held;           /* a record read and not yet in a unit */
    bool               has_held, was_part;
    bool               goes_on; /* the last record's document continues in the next record */

    pthread_t       threads[MAX_THREADS];
    int             num_threads;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    Unit           *units; /* ring of num_units units */
    int             num_units;
    int64_t         filled, taken, written; /* units so far; `lock` guards all but `written` */
    bool            stop;
} Pipeline;

/* ---- workers ---- */

static void *worker_main(void *context)
{
    Pipeline   *p = context;
    MaskEncoder encoder;
    Arena       arena = {0};
    mask_encoder_init(&encoder, p->rules);
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->taken == p->filled) pthread_cond_wait(&p->changed, &p->lock);
        if (p->stop) break;
        Unit *unit = &p->units[p->taken++ % p->num_units];
        pthread_mutex_unlock(&p->lock);
        unit_process(unit, &p->context, &encoder, &arena);
        pthread_mutex_lock(&p->lock);
        unit->is_done = true;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    mask_encoder_deinit(&encoder);
    arena_deinit(&arena);
    return NULL;
}

static Status start_workers(Pipeline *p)
{
    int want = p->job->num_threads > 0 ? p->job->num_threads : pool_usable_cores();
    if (want > MAX_THREADS) want = MAX_THREADS;
    p->num_units = 2 * want + 14; /* enough for workers to go on while this thread waits for the disk */
    p->units = calloc_or_end((size_t)p->num_units, sizeof *p->units);
    for (; p->num_threads < want; p->num_threads++)
        FAIL_IF(c_locale_thread(&p->threads[p->num_threads], worker_main, p) != 0, ERR_INTERNAL, "cannot start a thread");
    return OK;
}

/* ---- reading ---- */

static Status next_record(Pipeline *p, Record *out, bool *out_has)
{
    *out_has = p->has_held;
    if (p->has_held) {
        *out = p->held;
        p->has_held = false;
        return OK;
    }
    if (p->remake_end ? p->rows_read >= p->remake_end : p->most_rows > 0 && p->documents_read >= p->most_rows && !p->goes_on) return OK;
    TRY(reader_next(p->reader, out, out_has));
    p->rows_read += *out_has;
    p->documents_read += *out_has && !p->goes_on;
    p->goes_on = *out_has && out->continues;
    return OK;
}

/* Fills a unit; a part of a long text is alone in its unit. *out_has false: nothing is left. */
static Status fill_unit(Pipeline *p, Unit *unit, bool *out_has)
{
    unit_clear(unit);
    bool has = true;
    while (!unit_is_full(unit)) {
        Record record;
        TRY(next_record(p, &record, &has));
        if (!has) break;
        bool is_part = record.kind == RECORD_TEXT && (record.continues || p->was_part);
        if (is_part && unit->num_records > 0) {
            p->held = record; /* the record's bytes stay valid: nothing more is read before the record is taken */
            p->has_held = true;
            break;
        }
        unit_add(unit, &record);
        if (is_part) {
            unit->is_part = true;
            unit->is_first_part = !p->was_part;
            p->was_part = record.continues;
            break;
        }
    }
    unit_seal(unit);
    *out_has = unit->num_records > 0;
    return OK;
}

/* ---- writing ---- */

static const char *shard_path(Pipeline *p, int number)
{
    return arena_printf(&p->arena, "%s/" SHARD_NAME, p->report->dir, number);
}

static const char *dir_path(Pipeline *p, const char *name)
{
    return arena_printf(&p->arena, "%s/%s", p->report->dir, name);
}

static Status commit_shard(Pipeline *p)
{
    ShardInfo    info;
    ShardWriter *writer = p->writer;
    p->writer = NULL;
    if (!writer) return OK;
    TRY(shard_writer_commit(writer, &info));
    if (p->remake_end) return OK; /* the report already has this shard's counts, from when it was first made */
    done_shards_add(&p->arena, &p->done);
    p->report->num_documents += info.num_documents;
    p->report->num_tokens += info.num_tokens;
    p->report->num_trained += info.num_trained;
    return OK;
}

static void add_counts(Pipeline *p, const Unit *unit)
{
    TokenizeReport *r = p->report;
    p->done.num_rows += unit->num_rows;
    r->num_bad_rows += unit->num_bad;
    r->num_untrained += unit->num_untrained;
    r->num_without_stop += unit->num_without_stop;
    r->num_without_calls += unit->num_without_calls;
    r->num_empty += unit->num_empty;
    if (unit->num_unprinted && r->num_unprinted == 0) memcpy(r->first_unprinted, unit->first_unprinted, sizeof r->first_unprinted);
    r->num_unprinted += unit->num_unprinted;
    field_set_merge(&r->unused, &unit->unused);
    for (int i = 0; i < unit->num_examples && r->num_examples < 5; i++)
        memcpy(r->examples[r->num_examples++], unit->examples[i], sizeof r->examples[0]);
}

static Status write_unit(Pipeline *p, const Unit *unit)
{
    FAIL_IF(unit->status != OK, unit->status, "%s", unit->message);
    for (int i = 0; i < unit->num_documents; i++) {
        const UnitDocument *document = &unit->documents[i];
        if (!p->writer)
            TRY(shard_writer_open(shard_path(p, p->done.count), tokenizer_hash(p->job->tokenizer), tokenizer_vocab_size(p->job->tokenizer),
                                  p->format.type != DATASET_TEXT, &p->writer));
        if (shard_writer_tokens(p->writer) == 0) shard_writer_set_columns(p->writer, p->columns, p->job->dataset->num_inputs);
        shard_writer_append_numbers(p->writer, unit->numbers.data + document->begin * p->token_numbers, document->end - document->begin);
        TRY(shard_writer_append(p->writer, unit->tokens.ids.data + document->begin, unit->tokens.mask + document->begin,
                                document->end - document->begin));
        p->in_document = document->continues;
        if (!p->in_document) TRY(shard_writer_end_document(p->writer));
    }
    add_counts(p, unit);
    /* A shard ends with a unit, so that progress counts whole units. */
    bool is_full = p->writer && (shard_writer_tokens(p->writer) >= p->shard_tokens || shard_writer_documents(p->writer) >= SHARD_DOCUMENTS);
    if (!is_full || p->in_document) return OK;
    TRY(commit_shard(p));
    return p->remake_end ? OK : tokenize_report_save(dir_path(p, "progress.json"), p->report, &p->done);
}

/* ---- the whole dataset ---- */

static bool tell_progress(const Pipeline *p)
{
    if (!p->job->progress) return true;
    int64_t tokens = p->report->num_tokens + (p->writer ? shard_writer_tokens(p->writer) : 0);
    return p->job->progress(p->job->context, p->done.num_rows, tokens, reader_fraction(p->reader));
}

static Status write_oldest(Pipeline *p)
{
    Unit *unit = &p->units[p->written % p->num_units];
    pthread_mutex_lock(&p->lock);
    while (!unit->is_done) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    p->written++;
    TRY(write_unit(p, unit));
    FAIL_IF(!tell_progress(p), ERR_INTERRUPTED, "tokenizing was stopped; the same command goes on where it stopped");
    return OK;
}

static Status run_units(Pipeline *p)
{
    bool has = true;
    while (has) {
        if (p->filled - p->written == p->num_units) TRY(write_oldest(p));
        TRY(fill_unit(p, &p->units[p->filled % p->num_units], &has));
        if (!has) break;
        pthread_mutex_lock(&p->lock);
        p->filled++;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    while (p->written < p->filled) TRY(write_oldest(p));
    return commit_shard(p);
}

/* If the first row has only nulls, a later row shows how many numbers a token has. Errors of rows are reported when they are tokenized. */
static void show_columns(Pipeline *p, Reader *reader, Arena *arena)
{
    const DatasetOptions *options = p->job->dataset;
    Record                record;
    JsonValue             row;
    bool                  has = true;
    while (!columns_are_known(options, &p->format) && reader_next(reader, &record, &has) == OK && has) {
        arena_reset(arena);
        if (record.kind == RECORD_TEXT || record_parse(arena, &record, &row) != OK || columns_detect(options, &row, &p->format) != OK)
            status_clear();
    }
    status_clear();
    columns_settle(options, &p->format);
}

/* Detects the format from the first row that can be read, with a separate reader. */
static Status detect_format(Pipeline *p)
{
    Record    record;
    bool      has = true;
    JsonValue row;
    Reader   *reader;
    Arena     arena = {0};
    int64_t   most;
    TRY(dataset_reader_open(p->job->dataset, p->key.paths, p->key.num_paths, &reader, &most));
    Status status = reader_next(reader, &record, &has);
    if (status == OK && !has) status = status_fail(ERR_INVALID, "%s: the dataset is empty", p->job->dataset->path);
    while (status == OK && has) {
        arena_reset(&arena);
        if (record.kind == RECORD_TEXT) { /* a whole document: no need to look into it */
            row = (JsonValue){.type = JSON_OBJECT, .count = 1, .members = arena_new(&arena, JsonMember)};
            row.members[0] = (JsonMember){str_of("text"), {.type = JSON_STRING, .string = str_of("")}};
        } else {
            status = record_parse(&arena, &record, &row);
        }
        if (status == OK) {
            status = format_detect(p->job->dataset, &row, &p->format);
            if (status != OK) status_prefix(status, "%s:%lld", record.file->path, (long long)record.line);
        }
        if (status == OK || !p->job->dataset->skip_bad_rows) break;
        Status next = reader_next(reader, &record, &has);
        if (next != OK || !has) break; /* every row is bad: report the error of the last */
        status = OK;
    }
    if (status == OK) show_columns(p, reader, &arena);
    reader_close(reader);
    arena_deinit(&arena);
    return status;
}

static Status skip_rows(Pipeline *p, int64_t until)
{
    bool   has = true;
    Record record;
    while (p->rows_read < until && has) TRY(next_record(p, &record, &has));
    return OK;
}

/* Makes damaged shards anew from their rows; the report's counts stay. Units begin at the same rows again, so the bytes are the same. */
static Status remake_damaged(Pipeline *p)
{
    TokenizeReport   report = *p->report;
    const DoneShards done = p->done;
    for (int i = 0; p->is_damaged && i < done.count; i++) {
        if (!p->is_damaged[i]) continue;
        TRY(skip_rows(p, i ? done.ends[i - 1] : 0));
        p->done.count = i;
        p->remake_end = done.ends[i];
        TRY(run_units(p));
    }
    p->remake_end = 0;
    p->done = done;
    *p->report = report;
    return OK;
}

/* Do the shards hold as many tokens and documents as the report counts? */
static bool adds_up(const Pipeline *p)
{
    ShardSet set;
    bool     does = shard_set_open(p->report->dir, &set) == OK;
    status_clear();
    if (!does) return false;
    does = set.num_shards == p->done.count && set.num_tokens == p->report->num_tokens && set.num_documents == p->report->num_documents;
    shard_set_close(&set);
    return does;
}

static Status fail_nothing(const Pipeline *p)
{
    const TokenizeReport *r = p->report;
    FAIL(ERR_INVALID, "%s: nothing to train on: %lld rows (%lld bad, %lld without a trained token)%s%s%s%s", p->job->dataset->path,
         (long long)p->done.num_rows, (long long)r->num_bad_rows, (long long)r->num_untrained, r->num_examples ? "; the first: " : "",
         r->num_examples ? r->examples[0] : "", r->num_unprinted ? "; the chat template doesn't print the content of " : "",
         r->num_unprinted ? r->first_unprinted : "");
}

static Status finish(Pipeline *p)
{
    if (p->report->num_tokens == 0 || p->report->num_trained == 0) return fail_nothing(p);
    FAIL_IF(p->is_damaged && !adds_up(p), ERR_INVALID,
            "%s: its shards don't add up to what it counts; remove this folder, then it is made anew", p->report->dir);
    TRY(tokenize_report_save(dir_path(p, "dataset.json"), p->report, &p->done));
    return file_remove_tree(dir_path(p, "progress.json"));
}

static Status run(Pipeline *p)
{
    TRY(file_write_atomic(dir_path(p, "key.json"), p->key.json.data, p->key.json.len));
    TRY(detect_format(p));
    snprintf(p->report->format, sizeof p->report->format, "%s", p->format.description);
    TRY(mask_rules_create(p->job->tokenizer, p->job->tmpl, p->job->dataset->train_on, &p->rules));
    columns_describe(p->job->dataset, &p->format, p->columns);
    for (int i = 0; i < p->job->dataset->num_inputs; i++) p->token_numbers += p->columns[i].size;
    if (p->token_numbers) p->shard_tokens = p->shard_tokens / (1 + p->token_numbers) + 1; /* a shard's columns stay in memory */
    p->context = (UnitContext){p->job->dataset, &p->format, mask_rules_traits(p->rules)};
    TRY(dataset_reader_open(p->job->dataset, p->key.paths, p->key.num_paths, &p->reader, &p->most_rows));
    TRY(start_workers(p));
    TRY(remake_damaged(p));
    TRY(skip_rows(p, p->done.num_rows));
    TRY(run_units(p));
    return finish(p);
}

static void pipeline_deinit(Pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->num_threads; i++) pthread_join(p->threads[i], NULL);
    for (int i = 0; i < p->num_units; i++) unit_deinit(&p->units[i]);
    free(p->units);
    shard_writer_abort(p->writer);
    reader_close(p->reader);
    mask_rules_destroy(p->rules);
    dataset_key_deinit(&p->key);
    arena_deinit(&p->arena);
    if (p->lock_fd >= 0) close(p->lock_fd);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
}

/* ---- shards that exist already ---- */

/* A hash of the shards' file_stamp; 0: some shard was just written. */
static uint64_t shards_stamp(Pipeline *p)
{
    uint64_t stamp = 0;
    for (int i = 0; i < p->done.count; i++) {
        uint64_t one = file_stamp(shard_path(p, i));
        if (one == 0) return 0;
        stamp = hash_bytes(&one, sizeof one, stamp);
    }
    return stamp;
}

static Status check_shard(const Pipeline *p, int number)
{
    char   path[sizeof p->report->dir + 32];
    Shard *shard;
    snprintf(path, sizeof path, "%s/" SHARD_NAME, p->report->dir, number);
    TRY(shard_open(path, &shard));
    Status status = shard_verify(shard);
    shard_close(shard);
    return status;
}

static void check_task(void *context, int64_t number, int worker)
{
    Pipeline *p = context;
    (void)worker;
    p->is_damaged[number] = check_shard(p, (int)number) != OK; /* the error message stays in this worker's thread */
}

/* Finds the damaged shards. If there are any, warns with the error of the first. */
static Status check_shards(Pipeline *p)
{
    ThreadPool *pool;
    int         first = -1, count = 0;
    TRY(pool_create(p->job->num_threads, &pool));
    p->is_damaged = arena_array(&p->arena, bool, p->done.count + 1);
    pool_run(pool, p->done.count, check_task, p);
    pool_destroy(pool);
    for (int i = p->done.count - 1; i >= 0; i--) {
        if (!p->is_damaged[i]) continue;
        count++;
        first = i;
    }
    if (count == 0)
        p->is_damaged = NULL;
    else if (check_shard(p, first) != OK)
        log_warn("%s; %d of %d shards %s made anew", status_message(), count, p->done.count, count > 1 ? "are" : "is");
    status_clear();
    return OK;
}

static void forget(Pipeline *p)
{
    char dir[sizeof p->report->dir];
    memcpy(dir, p->report->dir, sizeof dir);
    *p->report = (TokenizeReport){0};
    memcpy(p->report->dir, dir, sizeof dir);
    p->done = (DoneShards){0};
}

/* Are all shards that dataset.json counts present and sound? verified.txt holds the stamp of shards whose checksums were compared; with
 * the same stamp they aren't compared again. */
static Status check_whole(Pipeline *p, bool *out_is_whole)
{
    const char *path = dir_path(p, "verified.txt");
    const char *stamp = arena_printf(&p->arena, "%016llx\n", (unsigned long long)shards_stamp(p));
    bool        is_settled = strspn(stamp, "0") < 16;
    Str         known;
    bool        is_there;
    *out_is_whole = true;
    TRY(file_exists(path, &is_there));
    if (is_settled && is_there && file_read(&p->arena, path, 64, &known) == OK && strcmp(known.data, stamp) == 0) return OK;
    TRY(check_shards(p));
    *out_is_whole = !p->is_damaged && adds_up(p);
    if (!p->is_damaged && !*out_is_whole) {
        log_warn("%s: the shards don't add up to what dataset.json counts; the dataset is tokenized anew", p->report->dir);
        forget(p);
    }
    if (*out_is_whole && is_settled && file_write_atomic(path, stamp, strlen(stamp)) != OK)
        status_clear(); /* verified.txt can't be written: the next start compares again */
    return OK;
}

static Status load_report(Pipeline *p, const char *name, bool *out_is_loaded)
{
    const char *path = dir_path(p, name);
    TRY(file_exists(path, out_is_loaded));
    if (!*out_is_loaded) return OK;
    *out_is_loaded = tokenize_report_load(&p->arena, path, p->report, &p->done);
    if (*out_is_loaded) return OK;
    log_warn("%s can't be read; the dataset is tokenized anew", path);
    forget(p);
    return OK;
}

/* Looks at what the folder holds already: the whole dataset, or shards of an unfinished dataset. */
static Status look(Pipeline *p, bool *out_is_whole)
{
    bool is_loaded;
    *out_is_whole = false;
    TRY(load_report(p, "dataset.json", &is_loaded));
    if (is_loaded) return check_whole(p, out_is_whole);
    TRY(load_report(p, "progress.json", &is_loaded));
    return is_loaded ? check_shards(p) : OK;
}

static Status settle_dir(Pipeline *p)
{
    p->shard_tokens = p->job->shard_tokens > 0 ? p->job->shard_tokens : (int64_t)1 << 24;
    TRY(dataset_key(&p->arena, p->job, &p->key));
    int n = snprintf(p->report->dir, sizeof p->report->dir, "%s/%016llx", p->job->cache_dir, (unsigned long long)p->key.hash);
    FAIL_IF(n >= (int)sizeof p->report->dir, ERR_INVALID, "%s: the path is too long", p->job->cache_dir);
    return OK;
}

static void pipeline_init(Pipeline *p, const TokenizeJob *job, TokenizeReport *report)
{
    *p = (Pipeline){.job = job, .report = report, .lock_fd = -1};
    *report = (TokenizeReport){0};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
}

/* Locks the folder: one process at a time works in it. Errors are ignored, as a cache that can't be written may still be read; if
 * something is missing in it, writing reports the error. */
static void lock_dir(Pipeline *p)
{
    const char *dir = p->report->dir,
               *waiting = arena_printf(&p->arena, "%s: another process is tokenizing into %s; waiting for it", p->job->dataset->path, dir);
    if (file_make_dirs(dir) != OK || file_lock(arena_printf(&p->arena, "%s/.lock", dir), waiting, &p->lock_fd) != OK) status_clear();
}

static Status make(Pipeline *p)
{
    TRY(settle_dir(p));
    lock_dir(p);
    TRY(look(p, &p->report->was_cached));
    if (p->report->was_cached) return OK;
    TRY(file_make_dirs(p->report->dir)); /* reports the error that lock_dir ignored */
    /* The folder isn't whole until dataset.json is written again. If the process is killed before, progress.json still has the shards. */
    if (p->done.count > 0) TRY(tokenize_report_save(dir_path(p, "progress.json"), p->report, &p->done));
    TRY(file_remove_tree(dir_path(p, "dataset.json")));
    return run(p);
}

Status tokenize_dataset(const TokenizeJob *job, TokenizeReport *out_report)
{
    Pipeline p;
    pipeline_init(&p, job, out_report);
    Status status = make(&p);
    out_report->num_rows = p.done.num_rows;
    snprintf(out_report->file_notes, sizeof out_report->file_notes, "%s", strbuf_cstr(&p.key.file_notes));
    pipeline_deinit(&p);
    FAIL_IF(status == ERR_NO_FIT, status, "%s. Make room; then the same command goes on where it stopped", status_message());
    return status;
}

Status tokenize_find(const TokenizeJob *job, char *out_dir, size_t dir_bytes, bool *out_is_whole)
{
    Pipeline       p;
    TokenizeReport report;
    pipeline_init(&p, job, &report);
    Status status = settle_dir(&p);
    if (status == OK && out_is_whole) status = look(&p, out_is_whole);
    if (status == OK) snprintf(out_dir, dir_bytes, "%s", report.dir);
    pipeline_deinit(&p);
    return status;
}
