/* The start and the end of a run. Nothing is written before everything that can be checked was. */
#include "train/trainer_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "model/init.h"
#include "model/merge.h"
#include "model/weights.h"
#include "passes/optimizers.h"
#include "train/disk.h"
#include "train/output_dir.h"
#include "train/report.h"
#include "train/stop_token.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- ranks ---- */

/* What is done once for all of them is rank 0's. */
bool trainer_leads(const Trainer *t)
{
    return t->place.rank == 0;
}

void trainer_beat(Trainer *t, const char *phase)
{
    keeper_phase(t->keeper, phase, t->allowed_seconds);
}

Status trainer_agree(Trainer *t, Status mine)
{
    Status status = comm_agree(t->comm, mine);
    t->has_agreed = status != OK;
    return status;
}

Status trainer_in_turn(Trainer *t, Status (*work)(Trainer *t))
{
    TRY(trainer_agree(t, trainer_leads(t) ? work(t) : OK));
    return trainer_agree(t, trainer_leads(t) ? OK : work(t));
}

/* Of what ranks must have in common: the kind of device, and what crosses between them. */
static uint64_t programs_hash(const Plan *plan)
{
    return hash_bytes(plan->facts.name, strlen(plan->facts.name), plan_collectives(plan));
}

/* Rank 0's run file and arguments against this rank's. */
static Status compare_run_files(Trainer *t)
{
    StrBuf own = {0}, difference = {0};
    run_record_shared(t->run_file, &own);
    int64_t bytes = (int64_t)own.len;
    TRY(comm_broadcast(t->comm, 0, &bytes, sizeof bytes));
    char *first = arena_alloc(&t->arena, (size_t)bytes + 1);
    if (trainer_leads(t)) memcpy(first, own.data, own.len);
    Status status = comm_broadcast(t->comm, 0, first, (size_t)bytes);
    if (status == OK && strcmp(first, strbuf_cstr(&own)) != 0) {
        run_record_difference(first, strbuf_cstr(&own), &difference);
        status = status_fail(ERR_INVALID, "it has other settings than rank 0 (%s): start all ranks with the same run file and arguments",
                             strbuf_cstr(&difference));
    }
    strbuf_deinit(&difference);
    strbuf_deinit(&own);
    return status;
}

/* ---- before anything is touched ---- */

Status trainer_open_tokenizer(Trainer *t)
{
    TRY(setup_tokenizer_dir(&t->arena, t->config, &t->tokenizer_dir));
    bool has_one = file_exists(arena_printf(&t->arena, "%s/tokenizer.json", t->tokenizer_dir));
    if (has_one || !t->is_driven) TRY(tokenizer_load(t->tokenizer_dir, &t->tokenizer));
    TRY(hf_read_side_files(&t->arena, t->tokenizer_dir, &t->side_files));
    TRY(run_data_template_text(&t->arena, t->config, &t->chat_template));
    FAIL_IF(t->tokenizer && tokenizer_vocab_size(t->tokenizer) > t->model->vocab_size, ERR_INVALID,
            "the tokenizer of %s has %d tokens, the model's embedding only %lld (%s of config.json); they don't belong together",
            t->tokenizer_dir, tokenizer_vocab_size(t->tokenizer), (long long)t->model->vocab_size, t->model->vocab_key);
    return OK;
}

static Status check_writable(const char *dir)
{
    char part[4096];
    snprintf(part, sizeof part, "%s", dir);
    while (!file_exists(part)) {
        char *slash = strrchr(part, '/');
        if (!slash)
            snprintf(part, sizeof part, ".");
        else if (slash == part)
            part[1] = 0;
        else
            *slash = 0;
    }
    FAIL_IF(!file_is_dir(part), ERR_INVALID, "output_dir %s: %s is a file, not a folder", dir, part);
    FAIL_IF(access(part, W_OK | X_OK) != 0, ERR_INVALID, "output_dir %s can't be written: %s: %s", dir, part, strerror(errno));
    return OK;
}

static Status require_weights(const Trainer *t)
{
    Status status = hf_model_require_weights(t->model);
    FAIL_IF(status != OK, status, "%s; or set from_scratch: true to start from random ones", status_message());
    return OK;
}

Status trainer_open_model(Trainer *t)
{
    TRY(setup_model(&t->arena, t->config, &t->model));
    t->base_model = peft_base_name(&t->arena, t->config->model);
    return t->config->from_scratch ? OK : require_weights(t);
}

static Status open_inputs(Trainer *t)
{
    FAIL_IF(t->config->max_steps <= 0 && !(t->config->num_epochs > 0), ERR_INVALID,
            "nothing to do: num_epochs is 0 and max_steps isn't set");
    TRY(trainer_open_model(t));
    TRY(config_require(t->config, KEY_run_datasets, "training"));
    TRY(setup_check_datasets(&t->arena, t->config, true));
    if (t->config->max_steps > 0) TRY(schedule_make(t->config, t->config->max_steps, &t->schedule));
    TRY(trainer_open_tokenizer(t));
    TRY(check_writable(t->config->output_dir));
    TRY(output_dir_check_source(t->config->output_dir, t->model->dir));
    TRY(output_dir_check_source(t->config->output_dir, t->tokenizer_dir));
    TRY(config_at(t->config->origin, KEY_run_output_dir, output_dir_check(t->config->output_dir)));
    return OK;
}

Status trainer_open_device(Trainer *t)
{
    TRY(setup_rank_device(t->config, t->place.local, t->place.num_local, &t->device));
    FAIL_IF(t->comm && !t->device->api->join, ERR_UNSUPPORTED, "several ranks can't train on device %s", t->device->api->name);
    return OK;
}

Status trainer_join(Trainer *t)
{
    return t->comm ? t->device->api->join(t->device, t->comm) : OK;
}

Status trainer_settle(Trainer *t)
{
    return setup_settle(&t->arena, t->run_file, t->model, t->device, t->comm, t->place.num_local, &t->config);
}

/* Who drives the steps may ask for any program between them. */
static void add_driven_programs(Trainer *t)
{
    bool generates = t->config->generate_samples > 0, has_only = t->config->gradient_accumulation_steps == 1;
    compile_drop(&t->options, PROGRAM_EVAL);
    compile_drop(&t->options, PROGRAM_PREFILL);
    compile_drop(&t->options, PROGRAM_DECODE);
    setup_add_program(t->config, t->model, PROGRAM_EVAL, &t->options);
    if (generates) setup_add_program(t->config, t->model, PROGRAM_PREFILL, &t->options);
    if (generates) setup_add_program(t->config, t->model, PROGRAM_DECODE, &t->options);
    if (t->comm && !has_only) setup_add_program(t->config, t->model, PROGRAM_MICRO_ONLY, &t->options);
}

Status trainer_make_plan(Trainer *t)
{
    if (t->config->device == OPT_DEVICE_AUTO && !device_has_driver())
        log_info("running on the CPU: there is no NVIDIA driver here (libcuda.so.1)");
    TRY(setup_options(t->config, t->model, &t->options));
    if (t->is_driven) add_driven_programs(t);
    t->options.accuracy = t->is_driven;
    t->options.rank = t->place.rank;
    TRY(setup_plan(&t->arena, t->model, &t->options, t->device, &t->plan));
    if (!t->is_driven) TRY(setup_refuse_inputs(t->model, t->plan));
    if (!t->config->from_scratch) TRY(weights_check(t->plan, t->model));
    TRY(setup_check_pinned(t->plan, t->place.num_local, device_host_available()));
    return setup_check_memory(t->config, t->model, t->device, t->plan, true);
}

/* ---- go on, start anew, or refuse ---- */

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
    FAIL_IF(!file_is_dir(resume), ERR_CHECKPOINT,
            "resume_from_checkpoint: there is no folder %s; expected auto, true, false or a checkpoint's folder", resume);
    return checkpoint_verify(resume);
}

static Status check_step(const Trainer *t, const TrainState *state, int64_t total)
{
    FAIL_IF(state->step > total, ERR_INVALID, "%s is of step %lld, the run ends at %lld; raise max_steps or num_epochs", t->resume_path,
            (long long)state->step, (long long)total);
    return OK;
}

/* Settings and inputs of the run that is there against this one's. */
static Status refuse_changes(Trainer *t, const RunRecord *before, bool finished)
{
    const char *dir = t->config->output_dir;
    StrBuf      difference = {0};
    Status      status = OK;
    if (finished)
        TRY(run_data_keys(t->config, t->tokenizer, t->tokenizer_dir, t->record.began,
                          &t->record.data)); /* else its checkpoint tells, once opened */
    const char *input = run_record_changed_input(before, &t->record);
    if (!run_record_same_settings(before, &t->record, &difference))
        status =
            status_fail(ERR_INVALID,
                        "%s holds %s run with other settings (%s). Name another output_dir; or set resume_from_checkpoint: true to go on "
                        "from its checkpoint with the new settings, or false to start anew in its place",
                        dir, finished ? "a finished" : "an unfinished", strbuf_cstr(&difference));
    else if (input)
        status = status_fail(
            ERR_INVALID,
            "%s were changed since the %s run in %s was made. Name another output_dir; or set resume_from_checkpoint: true to go "
            "on from its checkpoint with them, or false to start anew in its place",
            input, finished ? "finished" : "unfinished", dir);
    strbuf_deinit(&difference);
    return status;
}

/* The same weights in another format are other weights. */
Status trainer_refuse_other_format(Trainer *t)
{
    const WeightFormat *here = weights_made_format(&t->options), *there;
    TRY(peft_read_base_format(&t->arena, t->resume_path, &there));
    FAIL_IF(here != there, ERR_INVALID,
            "the adapter of %s was trained over a base with qlora: %s, here it is %s. Set qlora: %s; or start a new adapter: name another "
            "output_dir, or set resume_from_checkpoint: false",
            t->resume_path, there ? there->name : "none", here ? here->name : "none", there ? there->name : "none");
    return OK;
}

/* An adapter means nothing on other weights than it was trained on, whatever else may change. */
static Status refuse_other_base(Trainer *t)
{
    RunPresence presence;
    RunRecord   writer;
    const char *dir = arena_printf(&t->arena, "%s/..", t->resume_path);
    Status      status = run_record_read(dir, &presence, &writer);
    if (status != OK) status_clear(); /* not known */
    bool is_other = status == OK && writer.base && t->record.base && writer.base != t->record.base;
    run_record_deinit(&writer);
    FAIL_IF(is_other, ERR_INVALID,
            "the adapter of %s was trained on other weights than %s holds: they were changed since. Put the old ones back; or start a new "
            "adapter: name another output_dir, or set resume_from_checkpoint: false",
            t->resume_path, t->config->model);
    return trainer_refuse_other_format(t);
}

/* run.json is damaged: a checkpoint knows the settings too. */
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

/* What is there of an earlier start decides; only `auto` refuses to go on with other settings. */
static Status look_at_output(Trainer *t, bool *out_finished)
{
    const Config *c = t->config;
    RunPresence   presence;
    RunRecord     before;
    TrainState    state;
    run_record_make(t->run_file, t->model, t->place.world, run_record_began(c), &t->record);
    t->record.tokenizer = tokenizer_hash(t->tokenizer);
    Status status = run_record_read(c->output_dir, &presence, &before);
    t->is_first = status == OK && presence == RUN_ABSENT;
    if (status == ERR_INVALID)
        status = without_record(t);
    else if (status == OK)
        status = choose_checkpoint(t, presence);
    if (status == OK && t->resume_path[0]) status = checkpoint_read_state(t->resume_path, &state);
    if (status == OK && t->resume_path[0] && c->max_steps > 0) status = check_step(t, &state, c->max_steps);
    if (status == OK && !c->from_scratch) status = run_record_base(t->model, &before, (int)c->threads, &t->record);
    bool finished = presence == RUN_FINISHED && resume_is(t, "auto");
    bool going_on = presence == RUN_UNFINISHED && resume_is(t, "auto") && t->resume_path[0];
    if (status == OK && (finished || going_on)) status = refuse_changes(t, &before, finished);
    if (status == OK && t->resume_path[0] && c->lora) status = refuse_other_base(t);
    if (status == OK && presence == RUN_ABSENT && resume_is(t, "auto") && t->resume_path[0] && state.settings_hash != t->record.hash)
        status = status_fail(
            ERR_INVALID,
            "%s was made with other settings (or another config.json of the model); which ones isn't known, as run.json is gone. Name "
            "another output_dir; or set resume_from_checkpoint: true to go on with the new settings, or false to start anew in its "
            "place",
            t->resume_path);
    *out_finished = status == OK && finished;
    run_record_deinit(&before);
    return status;
}

/* What rank 0 found, as the others are told. */
typedef struct Settled {
    char     resume_path[4096];
    int64_t  began;
    uint64_t base, base_stamp;
    bool     is_first, is_finished;
} Settled;

static Status settle_output(Trainer *t, bool *out_finished)
{
    const char *dir = t->config->output_dir;
    if (file_is_dir(dir)) TRY(output_lock_take(dir, &t->output_lock));
    TRY(look_at_output(t, out_finished));
    TRY(checkpoint_clean(dir));
    return output_dir_clean(dir);
}

static Status share_output(Trainer *t, bool *out_finished)
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

/* ---- data, disk, weights ---- */

static Status load_weights(Trainer *t)
{
    const Config *c = t->config;
    bool          adapters = t->options.lora.enabled;
    ThreadPool   *pool = device_cpu_pool(t->device);
    if (t->resume_path[0] && !adapters) return checkpoint_load(t->resume_path, t->session, false, &t->has_scales);
    if (c->from_scratch)
        TRY(init_params(t->session, (uint64_t)c->seed, false, pool));
    else
        TRY(weights_load(t->session, t->model));
    TRY(weights_tell_requantised(t->session, t->model));
    if (t->resume_path[0]) return checkpoint_load(t->resume_path, t->session, true, &t->has_scales);
    return adapters ? init_params(t->session, (uint64_t)c->seed, true, pool) : OK;
}

Status trainer_start_session(Trainer *t)
{
    if (t->resume_path[0]) TRY(checkpoint_load_tuning(t->resume_path, t->device));
    TRY(session_create(t->plan, t->device, &t->session));
    TRY(load_weights(t));
    return session_write(t->session, OPTIMIZER_APPLIED, &t->state.applied, sizeof t->state.applied);
}

/* Whether this start goes on from a checkpoint of this very output: only then log and outputs there are this run's. */
static bool continues_output(const Trainer *t)
{
    Arena arena = {0};
    bool  found = t->resume_path[0] && file_is_same(arena_printf(&arena, "%s/..", t->resume_path), t->config->output_dir);
    arena_deinit(&arena);
    return found;
}

static Status load_state(Trainer *t)
{
    if (!t->resume_path[0]) return OK;
    TRY(checkpoint_read_state(t->resume_path, &t->state));
    FAIL_IF(
        t->state.data_hash != t->data.hash && resume_is(t, "auto"), ERR_INVALID,
        "the datasets were changed since %s was written; name another output_dir, or set resume_from_checkpoint: true to go on with them",
        t->resume_path);
    TRY(check_step(t, &t->state, t->schedule.total));
    if (continues_output(t))
        t->saved_step = t->state.step;
    else
        t->state.metrics_bytes = 0;
    return OK;
}

static int64_t divide_up(int64_t steps, int64_t every)
{
    return steps / every + (steps % every > 0);
}

/* Checkpoints that a run to `total` steps saves: by save_steps from step 0 on, and at its end. */
static int64_t saves_up_to(const Config *c, int64_t total)
{
    return c->save_steps > 0 ? divide_up(total, c->save_steps) + 1 : 1;
}

/* A run that saves less often than save_total_limit keeps only as many as it saves: checkpoints of interruptions don't pile up. */
static int64_t settle_keep(const Trainer *t)
{
    int64_t most = saves_up_to(t->config, t->schedule.total);
    return t->config->save_total_limit < most ? t->config->save_total_limit : most;
}

static int64_t saves_left(const Trainer *t)
{
    int64_t total = t->schedule.total, step = t->state.step, every = t->config->save_steps;
    if (step == total) return t->saved_step != total;
    if (every == 0) return 1;
    return saves_up_to(t->config, total) - (t->saved_step == step ? step / every + 1 : divide_up(step, every));
}

static Status check_disk(const Trainer *t)
{
    bool     adapters = t->options.lora.enabled;
    int64_t  side = t->side_files.bytes;
    DiskNeed need = {.output_dir = t->config->output_dir,
                     .checkpoint_bytes = checkpoint_bytes(t->plan, adapters) + side,
                     .final_bytes = checkpoint_model_bytes(t->plan, adapters) + side,
                     .step = t->state.step,
                     .total = t->schedule.total,
                     .saves_left = saves_left(t),
                     .keep = t->keep,
                     .goes_on = continues_output(t),
                     .starts_anew = resume_is(t, "false")};
    need.is_first = t->is_first && !need.goes_on;
    if (adapters && t->config->merge_adapter) need.final_bytes += checkpoint_model_bytes(t->plan, false) + side;
    return disk_check(&need);
}

/* Whether tokenizing left something worth keeping. */
static bool has_shards(const char *path)
{
    Arena arena = {0};
    DIR  *dir = opendir(path);
    bool  found = false;
    if (!dir) return false;
    for (struct dirent *entry; !found && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        const char *name = arena_printf(&arena, "%s/%s", path, entry->d_name);
        found = strncmp(entry->d_name, "shard-", 6) == 0 || (file_is_dir(name) && has_shards(name));
    }
    closedir(dir);
    arena_deinit(&arena);
    return found;
}

/* Removes an output folder that this start made, and those above it that it made; `keep`: the length of what was there. */
static void remove_new_output(const char *path, size_t keep)
{
    char part[4096];
    char message[STATUS_MESSAGE_BYTES];
    if (has_shards(path)) return;
    snprintf(message, sizeof message, "%s", status_message());
    Status ignored = file_remove_tree(path);
    (void)ignored;
    snprintf(part, sizeof part, "%s", path);
    for (char *slash; (slash = strrchr(part, '/')) && (size_t)(slash - part) > keep;) {
        *slash = 0;
        if (rmdir(part) != 0) break;
    }
    ignored = status_fail(ERR_INVALID, "%s", message);
}

static size_t existing_prefix(const char *path)
{
    char part[4096];
    snprintf(part, sizeof part, "%s", path);
    while (part[0] && !file_exists(part)) {
        char *slash = strrchr(part, '/');
        part[slash ? slash - part : 0] = 0;
    }
    return strlen(part);
}

static Status open_data(Trainer *t)
{
    const Config *c = t->config;
    size_t        keep = existing_prefix(c->output_dir);
    if (trainer_leads(t)) {
        TRY(file_make_dirs(c->output_dir));
        TRY(output_lock_take(c->output_dir, &t->output_lock));
    }
    RowShare share = {.rank = t->place.rank, .world = t->place.world};
    Status   status =
        run_data_open(c, &t->options, t->tokenizer, t->tokenizer_dir, t->record.began, (int32_t)t->model->vocab_size, share, &t->data);
    if (status != OK && trainer_leads(t) && keep < strlen(c->output_dir)) remove_new_output(c->output_dir, keep);
    return status;
}

/* What ranks write together lies in one folder. File systems of several hosts show new files late. */
static Status find_output(Trainer *t)
{
    enum { MOST_SECONDS = 30 };
    int64_t pid = getpid();
    if (!t->comm) return OK;
    double until = trainer_seconds() + (t->comm->is_local ? 0 : MOST_SECONDS);
    TRY(comm_broadcast(t->comm, 0, &pid, sizeof pid));
    while (!output_lock_is_seen(t->config->output_dir, (long)pid)) {
        FAIL_IF(trainer_seconds() > until, ERR_INVALID,
                "output_dir %s is another folder here than for rank 0, which made a file there that isn't seen: all ranks must share it",
                t->config->output_dir);
        usleep(100000);
    }
    return OK;
}

static bool trains_turns(const RunData *data)
{
    bool any = false;
    for (int i = 0; i < data->num_train_sets; i++) any |= data->train_sets[i].has_mask;
    return any;
}

/* What is trained to end a turn must end it when the model is served. */
static Status find_stop_token(Trainer *t)
{
    StrBuf  stop = {0};
    int32_t id = -1, eos = tokenizer_eos_id(t->tokenizer);
    if (!t->tmpl) return OK;
    TRY(stop_token_find(t->tokenizer, t->tmpl, &id));
    if (id < 0 || id == eos) return OK;
    t->stop_token = id;
    Status status = tokenizer_decode(t->tokenizer, &id, 1, false, &stop);
    log_info("turns end with %s, which isn't the tokenizer's EOS: generation_config.json of what is saved stops there too",
             strbuf_cstr(&stop));
    strbuf_deinit(&stop);
    return status;
}

/* Opens the log behind the checkpoint's lines. If lines were lost since, a warning and a line of the log say so. */
static Status open_metrics(Trainer *t)
{
    Arena          arena = {0};
    MetricsHistory history;
    int64_t        step = t->state.step, last = 0;
    const char    *log = "";
    TRY(metrics_open(t->metrics_path, t->state.metrics_bytes, step, &t->metrics));
    if (metrics_bytes(t->metrics) == t->state.metrics_bytes) return OK;
    Status status = metrics_read(&arena, t->metrics_path, &history);
    if (status == OK && history.count) {
        const JsonValue *line = &history.lines[history.count - 1];
        if (json_get_int(line, "step", &last)) (void)json_get_str(line, "log", &log);
    }
    bool    is_known = strcmp(log, "gap") == 0 && last == step;
    int64_t from = last < step ? last + 1 : step;
    arena_deinit(&arena);
    TRY(status);
    if (is_known) return OK;
    log_warn("%s was cut after %s was saved: its lines of steps %lld to %lld are lost, and the log goes on after the gap", t->metrics_path,
             t->resume_path, (long long)from, (long long)step);
    return metrics_gap(t->metrics, from, step);
}

/* Of earlier starts of this run. */
static Status read_trend(Trainer *t)
{
    Arena          arena = {0};
    MetricsHistory history;
    Status         status = metrics_read(&arena, t->metrics_path, &history);
    for (size_t i = 0; status == OK && i < history.count; i++) eval_trend_line(&t->trend, &history.lines[i]);
    arena_deinit(&arena);
    return status;
}

/* Everything of this rank's that can fail, before anything of an earlier run is touched. */
static Status load(Trainer *t)
{
    const Config *c = t->config;
    if (trains_turns(&t->data)) TRY(run_data_template(c, t->tokenizer_dir, t->record.began, &t->tmpl));
    TRY(find_stop_token(t));
    TRY(schedule_make(c, t->data.total_steps, &t->schedule));
    TRY(load_state(t));
    t->keep = settle_keep(t);
    if (trainer_leads(t)) TRY(check_disk(t));
    return trainer_start_session(t);
}

/* The output folder becomes this run's. */
static Status begin_output(Trainer *t)
{
    const Config *c = t->config;
    if (resume_is(t, "false")) TRY(checkpoint_remove_all(c->output_dir));
    if (continues_output(t)) TRY(checkpoint_prune(c->output_dir, t->keep, t->state.step));
    t->record.data = t->data.keys;
    TRY(run_record_write(c->output_dir, &t->record, false));
    if (!continues_output(t)) TRY(output_dir_clear(c->output_dir)); /* after the record: a kill in between starts anew again */
    snprintf(t->metrics_path, sizeof t->metrics_path, "%s/metrics.jsonl", c->output_dir);
    TRY(open_metrics(t));
    return read_trend(t);
}

static void tell_start(const Trainer *t)
{
    char ranks[32] = "";
    if (t->place.world > 1) snprintf(ranks, sizeof ranks, " on each of %d ranks", t->place.world);
    log_info("%lld parameters, %lld trained; %.1f MiB of memory%s; steps of %lld sequences of %lld tokens", (long long)t->plan->total_numel,
             (long long)t->plan->trained_numel, (double)plan_total_bytes(t->plan) / (1 << 20), ranks,
             (long long)loader_rows_per_step(t->data.train), (long long)trainer_micro(t, 0)->spec.seq);
    if (t->resume_path[0])
        log_info("going on from %s, step %lld of %lld", t->resume_path, (long long)t->state.step, (long long)t->schedule.total);
}

static Status prepare(Trainer *t)
{
    const Config *c = t->config;
    trainer_beat(t, "opening the data");
    TRY(trainer_in_turn(t, open_data));
    TRY(trainer_agree(t, find_output(t)));
    TRY(trainer_agree(t, comm_agree_same(t->comm, t->data.hash, "data")));
    trainer_beat(t, "loading");
    TRY(trainer_agree(t, load(t)));
    TRY(trainer_agree(t, trainer_leads(t) ? begin_output(t) : OK));
    loader_seek(t->data.train, t->state.step);
    step_limit_init(&t->limit, t->device, t->plan, t->options.model_dtype, c->gradient_accumulation_steps);
    progress_begin(&t->progress, t->schedule.total, c->logging_steps);
    tell_start(t);
    return OK;
}

/* ---- the end ---- */

Status trainer_merge(Trainer *t, const char *adapter_dir, const char *folder)
{
    HfModel    *base;
    PeftAdapter adapter;
    TRY(hf_model_open_as(&t->arena, t->config->model, setup_ir(t->config), &base));
    Status status = peft_open(&t->arena, adapter_dir, &adapter);
    if (status == OK) status = merge_adapter(base, &adapter, false, folder, t->config->max_shard_size, device_cpu_pool(t->device));
    hf_model_close(base);
    return status;
}

/* merge_adapter: output_dir/merged, which appears whole. */
static Status save_merged(Trainer *t)
{
    const char *dir = t->config->output_dir, *folder = arena_printf(&t->arena, "%s/merged", dir);
    const char *partial = arena_printf(&t->arena, "%s/.merged.partial", dir);
    TRY(file_remove_tree(partial));
    TRY(trainer_merge(t, dir, partial));
    if (rename(partial, folder) != 0) return file_fail("rename to", folder);
    return file_sync_dir(dir);
}

/* merge_adapter may be asked for after the run. */
static Status merge_finished(Trainer *t)
{
    const char *folder = arena_printf(&t->arena, "%s/merged", t->config->output_dir);
    if (!t->config->lora || !t->config->merge_adapter || file_is_dir(folder)) return OK;
    TRY(save_merged(t));
    log_info("the finished run's adapter was merged into its base: %s", folder);
    return OK;
}

/* What comes beside the model. */
static Status complete_output(Trainer *t, const char *state_text)
{
    const char *dir = t->config->output_dir;
    TRY(file_write_atomic(arena_printf(&t->arena, "%s/trainer_state.json", dir), state_text, strlen(state_text)));
    if (t->config->lora && t->config->merge_adapter) TRY(save_merged(t));
    return run_record_write(dir, &t->record, true);
}

static Status save_final(Trainer *t)
{
    SaveContext context;
    StrBuf      text = {0};
    Status      status = OK;
    const char *dir = t->config->output_dir;
    if (t->saved_step != t->state.step) TRY(trainer_save(t));
    if (trainer_leads(t)) status = metrics_sync(t->metrics);
    if (status == OK) status = trainer_context(t, true, &text, &context);
    if (status == OK && trainer_leads(t))
        status = file_remove_tree(arena_printf(&t->arena, "%s/merged", dir)); /* of the adapter that goes now */
    status = trainer_agree(t, status);
    if (status == OK) status = checkpoint_save_model(&context, dir);
    if (status == OK && trainer_leads(t)) status = complete_output(t, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return trainer_agree(t, status);
}

static Status finish(Trainer *t)
{
    t->allowed_seconds = INFINITY;
    trainer_beat(t, "completing the output");
    Status status = save_final(t);
    FAIL_IF(status != OK, ERR_SAVE, "training is done, but saving failed: %s. %s; then %s goes on from the last checkpoint",
            status_message(), status == ERR_NO_FIT ? "Make room" : "Put that right", trainer_same_command(t));
    if (trainer_leads(t)) report_update(t, true);
    return OK;
}

/* A GPU fell out, or a kernel failed: nothing can be read back any more. */
static Status device_lost(Trainer *t)
{
    char failure[STATUS_MESSAGE_BYTES];
    snprintf(failure, sizeof failure, "%.900s", status_message());
    FAIL_IF(t->saved_step < 0, ERR_DEVICE,
            "the device failed after step %lld: %s. There is no checkpoint yet (save_steps); the same command starts anew",
            (long long)t->state.step, failure);
    FAIL(ERR_DEVICE, "the device failed after step %lld: %s. The checkpoint of step %lld in %s is whole; %s goes on from it",
         (long long)t->state.step, failure, (long long)t->saved_step, t->config->output_dir, trainer_same_command(t));
}

void trainer_destroy(Trainer *t)
{
    if (!t) return;
    output_lock_release(t->config->output_dir, &t->output_lock);
    metrics_close(t->metrics);
    run_data_close(&t->data);
    session_destroy(t->session);
    run_record_deinit(&t->record);
    if (t->tmpl) template_destroy(t->tmpl);
    strbuf_deinit(&t->model_notes);
    if (t->tokenizer) tokenizer_destroy(t->tokenizer);
    if (t->device) t->device->api->destroy(t->device);
    hf_model_close(t->model);
    keeper_stop(t->keeper);
    arena_deinit(&t->arena);
    free(t);
}

static Status train(Trainer *t, TrainOutcome *out)
{
    TRY(keeper_start(t->comm, &t->keeper));
    if (t->comm) TRY(trainer_agree(t, compare_run_files(t)));
    trainer_beat(t, "opening the model");
    TRY(trainer_in_turn(t, open_inputs));
    trainer_beat(t, "planning");
    TRY(trainer_agree(t, trainer_open_device(t)));
    TRY(trainer_agree(t, trainer_join(t)));
    TRY(trainer_agree(t, trainer_settle(t)));
    TRY(trainer_agree(t, trainer_make_plan(t)));
    TRY(trainer_agree(t, comm_agree_same(t->comm, programs_hash(t->plan), "programs")));
    trainer_beat(t, "looking at output_dir");
    TRY(share_output(t, &out->already_finished));
    TRY(trainer_agree(t, comm_agree_same(t->comm, t->record.hash, "settings of the model")));
    if (out->already_finished) return trainer_agree(t, trainer_leads(t) ? merge_finished(t) : OK);
    hf_model_tell(t->model, t->options.model_dtype, t->options.weight_format, true, &t->model_notes);
    TRY(prepare(t));
    Status status = train_loop(t);
    if (status == ERR_DEVICE) return device_lost(t);
    return status == OK ? finish(t) : status;
}

bool train_goes_on(const Config *config)
{
    const char *resume = config->resume_from_checkpoint;
    return strcmp(resume, "auto") == 0 || strcmp(resume, "true") == 0;
}

Trainer *trainer_create(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place)
{
    static const TrainHooks none = {0};
    Trainer                *t = calloc(1, sizeof *t);
    CHECK(t);
    t->run_file = t->config = config;
    t->hooks = hooks ? hooks : &none;
    t->comm = comm;
    t->place = place;
    t->start_seconds = trainer_seconds();
    t->last_loss = t->last_eval_loss = NAN;
    t->allowed_seconds = INFINITY;
    t->saved_step = t->stop_token = -1;
    t->output_lock = OUTPUT_LOCK_NONE;
    t->from_ranks = arena_alloc(&t->arena, (size_t)place.world * RANK_BYTES);
    t->shares = arena_array(&t->arena, RankShare, place.world);
    t->own_seconds = arena_array(&t->arena, double, place.world);
    return t;
}

Status trainer_run(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place, TrainOutcome *out)
{
    Trainer *t = trainer_create(config, hooks, comm, place);
    *out = (TrainOutcome){.loss = NAN, .eval_loss = NAN};
    Status status = train(t, out);
    if (comm && status != OK && status != ERR_RANK && !t->has_agreed) {
        comm_abort(comm, status, status_message());
        status = status_prefix(status, "rank %d", place.rank);
    }
    if (status == ERR_RANK && comm_check(comm) != OK) status = comm_cause(comm); /* with the failure's own message */
    out->rank = place.rank;
    out->steps = t->state.step;
    out->loss = t->last_loss;
    out->eval_loss = t->last_eval_loss;
    out->trend = t->trend;
    trainer_destroy(t);
    return status;
}
