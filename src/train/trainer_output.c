/* output_dir when a run starts. The files that an earlier run left there decide whether the run resumes, starts anew or is refused. Then
 * the folder becomes this run's. */
#include "train/trainer_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/scoped.h"
#include "model/peft.h"
#include "model/weights.h"
#include "setup/lora.h"
#include "store/disk.h"
#include "store/output_dir.h"
#include "train/best.h"
#include "train/model_card.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- go on, start anew, or refuse ---- */

bool train_goes_on(const Config *config)
{
    const char *resume = config->resume_from_checkpoint;
    return strcmp(resume, "auto") == 0 || strcmp(resume, "true") == 0;
}

static bool resume_is(const Trainer *t, const char *what)
{
    return strcmp(t->config->resume_from_checkpoint, what) == 0;
}

static Status choose_checkpoint(Trainer *t, RunPresence presence)
{
    const char *resume = t->config->resume_from_checkpoint;
    if (resume_is(t, "false")) return OK;
    if (resume_is(t, "auto") || resume_is(t, "true")) {
        TRY(checkpoint_newest(t->config->output_dir, t->resume_path, sizeof t->resume_path));
        bool is_done = presence == RUN_FINISHED && resume_is(t, "auto");
        if (!t->resume_path[0] && !is_done) TRY(checkpoint_refuse_damaged(t->config->output_dir));
        FAIL_IF(resume_is(t, "true") && !t->resume_path[0], ERR_CHECKPOINT,
                "resume_from_checkpoint: true, but %s holds no valid checkpoint; set it to auto to start anew when there is none",
                t->config->output_dir);
        return OK;
    }
    snprintf(t->resume_path, sizeof t->resume_path, "%s", resume);
    bool is_dir;
    TRY(checkpoint_restore_named(resume));
    TRY(file_is_dir(resume, &is_dir));
    FAIL_IF(!is_dir, ERR_CHECKPOINT, "resume_from_checkpoint: there is no folder %s; expected auto, true, false or a checkpoint's folder",
            resume);
    return checkpoint_verify(resume);
}

static Status check_step(const Trainer *t, const TrainState *state, int64_t total)
{
    FAIL_IF(state->step > total, ERR_INVALID, "%s is of step %lld, the run ends at %lld; raise max_steps or num_epochs", t->resume_path,
            (long long)state->step, (long long)total);
    return OK;
}

/* Refuses settings and inputs that differ from those of the run in output_dir. */
static Status refuse_changes(Trainer *t, const RunRecord *before, bool finished)
{
    SCOPED_STRBUF(difference);
    const char *dir = t->config->output_dir, *kind = finished ? "finished" : "unfinished";
    if (finished) /* an unfinished run's checkpoint is compared once the data is open */
        TRY(run_data_keys(t->config, t->tokenizer, t->tokenizer_dir, t->record.began, &t->record.data));
    const char *input = run_record_changed_input(before, &t->record);
    FAIL_IF(!run_record_same_settings(before, &t->record, &difference), ERR_INVALID,
            "%s holds %s %s run with other settings (%s). Name another output_dir; or set resume_from_checkpoint: true to go on "
            "from its checkpoint with the new settings, or false to start anew in its place",
            dir, finished ? "a" : "an", kind, strbuf_cstr(&difference));
    FAIL_IF(input, ERR_INVALID,
            "%s were changed since the %s run in %s was made. Name another output_dir; or set resume_from_checkpoint: true to go "
            "on from its checkpoint with them, or false to start anew in its place",
            input, kind, dir);
    return OK;
}

/* A run that trains all parameters can't resume from an adapter, nor the reverse. An adapter also needs a base in the same format: in
 * another format the base has other weights. */
Status trainer_refuse_other_kind(Trainer *t)
{
    const WeightFormat *here = weights_made_format(&t->options), *there;
    bool                lora = t->options.lora.enabled;
    bool                is_adapter;
    TRY(peft_is_adapter_dir(t->resume_path, &is_adapter));
    FAIL_IF(is_adapter != lora, ERR_INVALID,
            "%s is of a run with lora: %s, here it is %s. Set lora: %s; or start anew: set resume_from_checkpoint: false", t->resume_path,
            lora ? "false" : "true", lora ? "true" : "false", lora ? "false" : "true");
    if (!lora) return OK;
    TRY(peft_read_base_format(&t->arena, t->resume_path, &there));
    FAIL_IF(here != there, ERR_INVALID,
            "the adapter of %s was trained over a base with qlora: %s, here it is %s. Set qlora: %s; or start a new adapter: name another "
            "output_dir, or set resume_from_checkpoint: false",
            t->resume_path, there ? there->name : "none", here ? here->name : "none", there ? there->name : "none");
    return OK;
}

/* Reads the record of the folder that contains resume_path. False: it can't be read. */
static bool read_writer(Trainer *t, RunRecord *out)
{
    RunPresence presence;
    Status      status = run_record_read(arena_printf(&t->arena, "%s/..", t->resume_path), &presence, out);
    if (status != OK) status_clear(); /* no record: not an error */
    return status == OK;
}

/* An adapter is useless on other weights than it was trained on, so a changed base is always refused. */
static Status refuse_other_base(Trainer *t)
{
    SCOPED(run_record_deinit) RunRecord writer = {0};
    bool is_other = read_writer(t, &writer) && writer.base && t->record.base && writer.base != t->record.base;
    FAIL_IF(is_other, ERR_INVALID,
            "the adapter of %s was trained on other weights than %s holds: they were changed since. Put the old ones back; or start a new "
            "adapter: name another output_dir, or set resume_from_checkpoint: false",
            t->resume_path, t->config->model);
    return OK;
}

/* Rows of new tokens are identified only by their ids, so the tokens must be the same. */
static Status refuse_other_tokens(Trainer *t)
{
    const Config *c = t->config;
    ConfigKey     key = c->new_tokens.count ? KEY_run_new_tokens : KEY_run_new_special_tokens;
    if (!t->tokenizer || !(c->new_tokens.count + c->new_special_tokens.count)) return OK;
    return config_at(c->origin, key, setup_check_tokens(&t->arena, t->resume_path, t->tokenizer));
}

/* Handles a damaged run.json: a checkpoint can replace it, since checkpoints store the settings too. */
static Status without_record(Trainer *t)
{
    char problem[STATUS_MESSAGE_BYTES / 4];
    snprintf(problem, sizeof problem, "%s", status_message());
    TRY(choose_checkpoint(t, RUN_ABSENT));
    FAIL_IF(!t->resume_path[0] && !resume_is(t, "false"), ERR_INVALID,
            "%s. It is damaged, and %s holds no checkpoint to go on from. Name another output_dir, or set resume_from_checkpoint: false to "
            "start anew "
            "in its place",
            problem, t->config->output_dir);
    if (t->resume_path[0]) log_warn("%s. It is damaged, and written anew: the run goes on as %s says", problem, t->resume_path);
    return OK;
}

/* Decides by the files of an earlier run. Only `auto` refuses to resume with other settings. */
static Status look_at_output(Trainer *t, bool *out_finished)
{
    const Config *c = t->config;
    RunPresence   presence;
    TrainState    state;
    int64_t       began;
    TRY(run_data_began(c, &began));
    SCOPED(run_record_deinit) RunRecord before = {0};
    run_record_make(t->run_file, t->model, t->place.world, began, &t->record);
    t->record.tokenizer = tokenizer_hash(t->tokenizer);
    Status status = run_record_read(c->output_dir, &presence, &before);
    t->is_first = status == OK && presence == RUN_ABSENT;
    if (status != OK && status != ERR_INVALID) return status;
    TRY(status == OK ? choose_checkpoint(t, presence) : without_record(t));
    bool goes_on = t->resume_path[0], is_auto = resume_is(t, "auto"), finished = is_auto && presence == RUN_FINISHED;
    if (goes_on) TRY(checkpoint_read_state(t->resume_path, &state));
    if (goes_on && c->max_steps > 0) TRY(check_step(t, &state, c->max_steps));
    if (!c->from_scratch) TRY(run_record_base(t->model, &before, (int)c->threads, &t->record));
    if (c->adapter) TRY(run_record_adapter(c->adapter, &t->record));
    if (finished || (is_auto && presence == RUN_UNFINISHED && goes_on)) TRY(refuse_changes(t, &before, finished));
    *out_finished = finished;
    if (!goes_on) return OK;
    if (c->lora) TRY(refuse_other_base(t));
    TRY(trainer_refuse_other_kind(t));
    TRY(refuse_other_tokens(t));
    FAIL_IF(is_auto && presence == RUN_ABSENT && !run_record_has_hash(&t->record, state.settings_hash), ERR_INVALID,
            "%s was made with other settings (or another config.json of the model); which ones isn't known, as run.json is gone. Name "
            "another output_dir; or set resume_from_checkpoint: true to go on with the new settings, or false to start anew in its place",
            t->resume_path);
    return OK;
}

/* The findings of rank 0, which it sends to the other ranks. */
typedef struct Settled {
    char     resume_path[4096];
    int64_t  began;
    uint64_t base, base_stamp;
    bool     is_first, is_finished;
} Settled;

/* Length of the longest prefix of a path that exists as a file or folder. */
static Status existing_prefix(const char *path, size_t *out)
{
    char part[4096];
    bool is_there = false;
    snprintf(part, sizeof part, "%s", path);
    while (part[0]) {
        TRY(file_exists(part, &is_there));
        if (is_there) break;
        char *slash = strrchr(part, '/');
        part[slash ? slash - part : 0] = 0;
    }
    *out = strlen(part);
    return OK;
}

/* Creates and locks output_dir: from here on no other run can work in it. Before it is locked, another run that created it may remove it;
 * then both steps are repeated. */
static Status lock_output(Trainer *t)
{
    enum { MOST_TRIES = 100 };
    const char *dir = t->config->output_dir;
    Status      status = OK;
    for (int i = 0; i < MOST_TRIES; i++) {
        size_t there;
        TRY(existing_prefix(dir, &there));
        TRY(file_make_dirs(dir));
        status = output_lock_take(dir, &t->output_lock);
        if (status == OK && there < strlen(dir)) t->made_from = (int64_t)there;
        if (status != ERR_NOT_FOUND) break;
    }
    return status;
}

static Status settle_output(Trainer *t, bool *out_finished)
{
    const char *dir = t->config->output_dir;
    TRY(lock_output(t));
    TRY(checkpoint_restore(dir));
    TRY(look_at_output(t, out_finished));
    TRY(checkpoint_clean(dir));
    return output_dir_clean(dir);
}

Status trainer_look_at_output(Trainer *t, bool *out_finished)
{
    Settled told = {0};
    Status  status = trainer_leads(t) ? settle_output(t, out_finished) : OK;
    TRY(trainer_agree(t, status));
    if (!t->comm) return OK;
    if (trainer_leads(t)) {
        told = (Settled){.began = t->record.began,
                         .base = t->record.base,
                         .base_stamp = t->record.base_stamp,
                         .is_first = t->is_first,
                         .is_finished = *out_finished};
        memcpy(told.resume_path, t->resume_path, sizeof told.resume_path);
    }
    TRY(comm_broadcast(t->comm, 0, &told, sizeof told));
    if (trainer_leads(t)) return OK;
    run_record_make(t->run_file, t->model, t->place.world, told.began, &t->record);
    t->record.tokenizer = tokenizer_hash(t->tokenizer);
    t->record.base = told.base;
    t->record.base_stamp = told.base_stamp;
    t->is_first = told.is_first;
    memcpy(t->resume_path, told.resume_path, sizeof t->resume_path);
    *out_finished = told.is_finished;
    return OK;
}

/* ---- from where, and whether the disk takes it ---- */

/* Whether this run resumes from a checkpoint in its own output_dir: only then do the log and outputs there belong to it. */
static Status continues_output(const Trainer *t, bool *out)
{
    SCOPED_ARENA(arena);
    *out = false;
    if (!t->resume_path[0]) return OK;
    return file_is_same(arena_printf(&arena, "%s/..", t->resume_path), t->config->output_dir, out);
}

static int64_t divide_up(int64_t steps, int64_t every)
{
    return steps / every + (steps % every > 0);
}

/* How many checkpoints a run to step `total` saves: by steps, counted from step 0, and at its end. Checkpoints by time replace each other.
 */
static int64_t saves_up_to(const Trainer *t, int64_t total)
{
    return t->save_every > 0 ? divide_up(total, t->save_every) + 1 : 1;
}

/* How many checkpoints to keep: save_total_limit, but no more than the run saves by steps, so that checkpoints of interruptions and of
 * saves by time don't pile up. A limit of 0, which keeps all, stays 0. */
static int64_t settle_keep(const Trainer *t)
{
    int64_t most = saves_up_to(t, t->schedule.total);
    return t->config->save_total_limit < most ? t->config->save_total_limit : most;
}

/* The number of rows used before a checkpoint that doesn't store this number: its steps times `batch` rows. But the last step may have been
 * filled up with padding. */
static int64_t rows_of_steps(const Trainer *t, int64_t batch)
{
    int64_t rows = t->state.step * batch, all = loader_total_rows(t->data.train);
    return all >= 0 && rows > all && rows - batch < all ? all : rows;
}

static void tell_cursor(const Trainer *t, int64_t rows)
{
    int64_t step = t->state.step, batch = loader_rows_per_step(t->data.train);
    if (trainer_leads(t) && rows != rows_of_steps(t, batch))
        log_info("%lld sequences were seen until step %lld: the run goes on behind them with steps of %lld, to step %lld", (long long)rows,
                 (long long)step, (long long)batch, (long long)t->data.total_steps);
}

Status trainer_place_cursor(Trainer *t)
{
    int64_t                             all = loader_total_rows(t->data.train);
    bool                                continues;
    SCOPED(run_record_deinit) RunRecord writer = {0};
    t->record.batch = loader_rows_per_step(t->data.train);
    if (!t->resume_path[0]) return OK;
    TRY(checkpoint_read_state(t->resume_path, &t->state));
    if (!read_writer(t, &writer) || !writer.batch) writer.batch = t->record.batch;
    TRY(continues_output(t, &continues));
    if (continues) t->record.batch = writer.batch;
    int64_t rows = t->state.rows >= 0 ? t->state.rows : rows_of_steps(t, writer.batch);
    FAIL_IF(all >= 0 && rows > all, ERR_INVALID,
            "%s is of step %lld, until which %lld sequences were seen, the run ends with sequence %lld; raise max_steps or num_epochs",
            t->resume_path, (long long)t->state.step, (long long)rows, (long long)all);
    loader_resume(t->data.train, t->state.step, rows);
    if (t->config->max_steps <= 0) t->data.total_steps = loader_num_steps(t->data.train);
    tell_cursor(t, rows);
    return OK;
}

Status trainer_check_best(Trainer *t)
{
    const BestEval *best = &t->state.best;
    bool            is_there = true;
    if (!best_is_kept(t->config) || !best->step) return OK;
    if (trainer_leads(t) && checkpoint_has_best(t->config->output_dir, best, &is_there) != OK) status_clear();
    int64_t is_gone = !is_there;
    TRY(comm_agree_most(t->comm, &is_gone));
    if (!is_gone) return OK;
    if (trainer_leads(t))
        log_warn("%s has no checkpoint of the best evaluation so far, of step %lld: the best is looked for from here on",
                 t->config->output_dir, (long long)best->step);
    t->state.best = (BestEval){0};
    t->state.evals_since = 0;
    return OK;
}

Status trainer_load_state(Trainer *t)
{
    t->keep = settle_keep(t);
    if (!t->resume_path[0]) return OK;
    FAIL_IF(
        t->state.data_hash != t->data.hash && resume_is(t, "auto"), ERR_INVALID,
        "the datasets were changed since %s was written; name another output_dir, or set resume_from_checkpoint: true to go on with them",
        t->resume_path);
    TRY(check_step(t, &t->state, t->schedule.total));
    t->branch = t->state.step;
    bool continues;
    TRY(continues_output(t, &continues));
    if (continues)
        t->saved_step = t->state.step;
    else
        t->state.metrics_bytes = 0;
    return OK;
}

/* Saves that best evaluations may cause, unless evaluations coincide with other saves. */
static int64_t best_saves_left(const Trainer *t)
{
    bool is_covered = t->eval_every == 0 || (t->save_every > 0 && t->eval_every % t->save_every == 0);
    return best_is_kept(t->config) && !is_covered ? (t->schedule.total - t->state.step) / t->eval_every : 0;
}

static int64_t saves_left(const Trainer *t)
{
    int64_t total = t->schedule.total, step = t->state.step, every = t->save_every;
    if (step == total) return t->saved_step != total;
    if (every == 0) return 1 + best_saves_left(t);
    return best_saves_left(t) + saves_up_to(t, total) - (t->saved_step == step ? step / every + 1 : divide_up(step, every));
}

/* If the disk is large enough for a run without saves by time, turns them off instead of refusing the run. */
static Status without_timed_saves(Trainer *t, DiskNeed need)
{
    char message[STATUS_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status_message());
    need.is_first = false;
    need.keep = 0;
    Status status = disk_check(&need);
    FAIL_IF(status != OK, status, "%s", message);
    t->save_seconds = 0;
    log_warn("no checkpoint is kept before the end: %s has room for one, a save needs two. A run that is interrupted needs more room to go "
             "on",
             need.output_dir);
    return OK;
}

Status trainer_check_disk(Trainer *t)
{
    bool adapters = t->options.lora.enabled, continues;
    TRY(continues_output(t, &continues));
    int64_t  side = t->side_files.bytes;
    DiskNeed need = {.output_dir = t->config->output_dir,
                     .checkpoint_bytes = checkpoint_bytes(t->plan, adapters) + side,
                     .final_bytes = checkpoint_model_bytes(t->plan, adapters) + side,
                     .step = t->state.step,
                     .saves_left = saves_left(t),
                     .keep = t->keep > 0 ? t->keep + best_is_kept(t->config) : 0,
                     .goes_on = continues,
                     .starts_anew = resume_is(t, "false")};
    need.is_first = t->is_first && !need.goes_on;
    if (adapters && t->config->merge_adapter) need.final_bytes += checkpoint_model_bytes(t->plan, false) + side;
    Status status = disk_check(&need);
    return status == ERR_NO_FIT && t->save_seconds > 0 ? without_timed_saves(t, need) : status;
}

Status trainer_check_length(const Trainer *t, const char *dir, int64_t step)
{
    bool        adapters = t->options.lora.enabled, is_cut = checkpoint_model_bytes(t->plan, adapters) > t->config->max_shard_size;
    const char *weights = adapters ? "adapter_model" : "model", *cut = is_cut ? "-00001-of-00001" : "";
    int         file = snprintf(NULL, 0, "%s%s.safetensors", weights, cut),
        side = (int)sizeof "special_tokens_map.json" - 1; /* the longest name among the files beside the weights */
    int below = snprintf(NULL, 0, "/.checkpoint-%lld.partial/%*s.partial", (long long)step, file > side ? file : side, "");
    FAIL_IF(
        strlen(dir) + (size_t)below >= PATH_MAX, ERR_INVALID,
        "output_dir has %zu characters: the paths of its checkpoints' files would have %zu, the system takes %d. Name one of at most %d",
        strlen(dir), strlen(dir) + (size_t)below, PATH_MAX - 1, PATH_MAX - 1 - below);
    return OK;
}

/* ---- the folder becomes this run's ---- */

/* Whether the folder contains tokenized shards, which are worth keeping. */
static Status find_shards(Arena *arena, const char *path, bool *out)
{
    const char **names;
    size_t       count;
    TRY(file_list_if_there(arena, path, &names, &count));
    for (size_t i = 0; i < count && !*out; i++) {
        const char *name = arena_printf(arena, "%s/%s", path, names[i]);
        bool        is_dir;
        if (names[i][0] == '.') continue;
        *out = strncmp(names[i], "shard-", 6) == 0;
        TRY(file_is_dir(name, &is_dir));
        if (is_dir && !*out) TRY(find_shards(arena, name, out));
    }
    return OK;
}

void trainer_drop_output(Trainer *t)
{
    const char *path = t->config->output_dir;
    char        part[4096], message[STATUS_MESSAGE_BYTES];
    SCOPED_ARENA(arena);
    bool found = false;
    if (t->made_from < 0) return;
    snprintf(message, sizeof message, "%s", status_message());
    Status ignored = find_shards(&arena, path, &found);
    if (ignored == OK && !found) ignored = file_remove_tree(path);
    (void)ignored;
    snprintf(part, sizeof part, "%s", found || ignored != OK ? "" : path);
    for (char *slash; (slash = strrchr(part, '/')) && slash - part > t->made_from;) {
        *slash = 0;
        if (rmdir(part) != 0) break;
    }
    ignored = status_fail(ERR_INVALID, "%s", message);
}

Status trainer_open_data(Trainer *t)
{
    const Config *c = t->config;
    RowShare      share = {.rank = t->place.rank, .world = t->place.world};
    TRY(run_data_open(c, &t->options, t->tokenizer, t->tokenizer_dir, t->record.began, t->model, share, &t->data));
    return run_data_check_inputs(&t->data, c, t->model, t->plan);
}

/* Checks that this rank sees rank 0's output_dir, since ranks write its files together. File systems shared by hosts may show new files
 * late. */
Status trainer_find_output(Trainer *t)
{
    enum { MOST_SECONDS = 30 };
    int64_t pid = getpid();
    if (!t->comm) return OK;
    double until = clock_seconds() + (t->comm->is_local ? 0 : MOST_SECONDS);
    TRY(comm_broadcast(t->comm, 0, &pid, sizeof pid));
    while (!output_lock_is_seen(t->config->output_dir, (long)pid)) {
        FAIL_IF(clock_seconds() > until, ERR_INVALID,
                "output_dir %s is another folder here than for rank 0, which made a file there that isn't seen: all ranks must share it",
                t->config->output_dir);
        usleep(100000);
    }
    return OK;
}

/* Logs which lines of metrics.jsonl changed since the checkpoint was saved, and which lines this run will write again. */
static void tell_log(const Trainer *t, const MetricsFound *found)
{
    if (found->num_bad)
        log_warn("%s was changed or damaged: %lld of its lines can't be read, line %lld first; they stay, and report.html and "
                 "trainer_state.json leave them out",
                 t->metrics_path, (long long)found->num_bad, (long long)found->first_bad);
    else if (found->is_changed)
        log_warn("%s was changed after %s was saved: its lines up to step %lld aren't all as the run wrote them", t->metrics_path,
                 t->resume_path, (long long)t->state.step);
    if (found->cut_last)
        log_info("%s: the lines from step %lld up to %lld are cut off, for this run goes on from step %lld", t->metrics_path,
                 (long long)found->cut_first, (long long)found->cut_last, (long long)t->state.step);
}

/* Opens the log after the checkpoint's lines. If lines were lost, a warning and a line in the log say so. */
static Status open_metrics(Trainer *t)
{
    const MetricsMark   mark = {t->state.step, t->state.metrics_bytes, t->state.metrics_hash};
    const MetricsFound *found;
    TRY(metrics_open(t->metrics_path, &mark, t->config->logging_steps, &t->metrics));
    found = metrics_found(t->metrics);
    tell_log(t, found);
    t->trend = metrics_history(t->metrics)->trend;
    if (!found->is_cut || (found->ends_in_gap && found->last_step == mark.step)) return OK;
    int64_t from = found->last_step < mark.step ? found->last_step + 1 : mark.step;
    log_warn("%s was cut after %s was saved: its lines of steps %lld to %lld are lost, and the log goes on after the gap", t->metrics_path,
             t->resume_path, (long long)from, (long long)mark.step);
    return metrics_gap(t->metrics, from, mark.step);
}

static Status open_events(Trainer *t)
{
    if (!str_list_has(&t->config->report_to, choice_text(OPT_REPORT_TO_TENSORBOARD))) return OK;
    return event_file_open(arena_printf(&t->arena, "%s/runs", t->config->output_dir), t->state.step + 1, &t->events);
}

Status trainer_leave_branch(Trainer *t)
{
    return trainer_agree(t, trainer_leads(t) ? checkpoint_leave_branch(t->config->output_dir, t->branch) : OK);
}

Status trainer_begin_output(Trainer *t)
{
    const Config *c = t->config;
    bool          continues;
    TRY(continues_output(t, &continues));
    TRY(open_events(t)); /* must succeed before anything is removed */
    if (resume_is(t, "false")) TRY(checkpoint_remove_all(c->output_dir));
    if (continues) TRY(checkpoint_prune(c->output_dir, t->keep, trainer_kept_best(t), t->state.step));
    t->record.data = t->data.keys;
    t->made_from = -1;
    TRY(run_record_write(c->output_dir, &t->record, false));
    if (!continues) TRY(output_dir_clear(c->output_dir)); /* the record is written first: after a kill here the next run begins anew too */
    if (!continues) TRY(model_card_remove(c->output_dir));
    snprintf(t->metrics_path, sizeof t->metrics_path, "%s/metrics.jsonl", c->output_dir);
    return open_metrics(t);
}
