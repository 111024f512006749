/* The start and the end of a run. Nothing is written before everything that can be checked has passed. trainer_output.c handles the
 * contents of output_dir. */
#include "train/trainer_internal.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/scoped.h"
#include "fit/fit.h"
#include "model/dora.h"
#include "model/init.h"
#include "model/merge.h"
#include "model/peft.h"
#include "model/stop_token.h"
#include "model/weights.h"
#include "passes/optimizers.h"
#include "setup/frozen_tokens.h"
#include "store/output_dir.h"
#include "train/model_card.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- ranks ---- */

/* Rank 0 does the work that is done once for all ranks. */
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

/* A hash of the kind of device and of the collectives, which must be the same on all ranks. */
static uint64_t programs_hash(const Plan *plan)
{
    return hash_bytes(plan->facts.name, strlen(plan->facts.name), plan_collectives(plan));
}

/* Compares rank 0's run file and arguments with this rank's. */
static Status compare_run_files(Trainer *t)
{
    StrBuf own = {0}, difference = {0};
    run_record_shared(t->run_file, &own);
    int64_t bytes = (int64_t)own.len;
    Status  status = comm_broadcast(t->comm, 0, &bytes, sizeof bytes);
    char   *first = status == OK ? arena_alloc(&t->arena, (size_t)bytes + 1) : NULL;
    if (first && trainer_leads(t)) memcpy(first, own.data, own.len);
    if (status == OK) status = comm_broadcast(t->comm, 0, first, (size_t)bytes);
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

static Status check_embedding(const Trainer *t)
{
    const char *beside = tokenizer_first_beside(t->tokenizer);
    int32_t     tokens = tokenizer_vocab_size(t->tokenizer);
    if (tokens <= t->model->vocab_size) return OK;
    FAIL_IF(
        beside, ERR_INVALID,
        "the tokenizer of %s has %d tokens, the model's embedding only %lld (%s of config.json): files beside tokenizer.json "
        "(tokenizer_config.json, added_tokens.json, special_tokens_map.json) name tokens more, the first is \"%s\"; take them out there, "
        "or name tokens that the embedding has",
        t->tokenizer_dir, tokens, (long long)t->model->vocab_size, t->model->vocab_key, beside);
    FAIL(ERR_INVALID, "the tokenizer of %s has %d tokens, the model's embedding only %lld (%s of config.json); they don't belong together",
         t->tokenizer_dir, tokens, (long long)t->model->vocab_size, t->model->vocab_key);
}

static Status open_tokenizer(Trainer *t)
{
    TRY(setup_tokenizer_dir(&t->arena, t->config, &t->tokenizer_dir));
    bool has_one;
    TRY(file_exists(arena_printf(&t->arena, "%s/tokenizer.json", t->tokenizer_dir), &has_one));
    if (has_one || !t->is_driven) TRY(tokenizer_load(t->tokenizer_dir, &t->tokenizer));
    TRY(hf_read_side_files(&t->arena, t->tokenizer_dir, &t->side_files));
    TRY(run_data_template_text(&t->arena, t->config, &t->chat_template));
    return t->tokenizer ? check_embedding(t) : OK;
}

static Status check_writable(const char *dir)
{
    char part[4096];
    bool is_there, is_dir;
    snprintf(part, sizeof part, "%s", dir);
    for (;;) {
        TRY(file_exists(part, &is_there));
        if (is_there) break;
        char *slash = strrchr(part, '/');
        if (!slash)
            snprintf(part, sizeof part, ".");
        else if (slash == part)
            part[1] = 0;
        else
            *slash = 0;
    }
    TRY(file_is_dir(part, &is_dir));
    FAIL_IF(!is_dir, ERR_INVALID, "output_dir %s: %s is a file, not a folder", dir, part);
    FAIL_IF(access(part, W_OK | X_OK) != 0, ERR_INVALID, "output_dir %s can't be written: %s: %s", dir, part, strerror(errno));
    return OK;
}

static Status require_weights(const Trainer *t)
{
    Status status = hf_model_require_weights(t->model);
    FAIL_IF(status != OK, status, "%s; or set from_scratch: true to start from random ones", status_message());
    return OK;
}

static Status open_model(Trainer *t)
{
    TRY(setup_model(&t->arena, t->config, &t->model));
    const char *dir;
    TRY(setup_model_dir(&t->arena, t->config, &dir));
    t->base_model = peft_base_name(&t->arena, dir);
    return t->config->from_scratch ? OK : require_weights(t);
}

/* Logs the model and the dtype of its weights: trained weights have the dtype in which the optimizer updates them, a frozen base the dtype
 * that products read. */
static void tell_model(Trainer *t)
{
    const CompileOptions *o = &t->options;
    bool                  is_base = o->lora.enabled, is_narrowed = !is_base && o->model_dtype == DT_F32 && o->master_dtype == DT_BF16;
    hf_model_tell(t->model, is_base ? o->model_dtype : o->master_dtype, o->weight_format, is_narrowed ? "master_dtype" : "model_dtype",
                  &t->model_notes);
}

/* Checks, before the device is used, that output_dir can be written and isn't a folder that the run reads. */
static Status check_output(const Trainer *t)
{
    const Config *c = t->config;
    TRY(check_writable(c->output_dir));
    TRY(output_dir_check_source(c->output_dir, t->model->dir, "model"));
    TRY(output_dir_check_source(c->output_dir, t->tokenizer_dir, "tokenizer"));
    if (c->adapter) TRY(config_at(c->origin, KEY_run_adapter, output_dir_check_source(c->output_dir, c->adapter, "adapter")));
    return config_at(c->origin, KEY_run_output_dir, output_dir_check(c->output_dir));
}

static Status open_inputs(Trainer *t)
{
    const Config *c = t->config;
    FAIL_IF(!t->is_driven && c->max_steps <= 0 && !(c->num_epochs > 0), ERR_INVALID,
            "nothing to do: num_epochs is 0 and max_steps isn't set");
    TRY(open_model(t));
    if (!t->is_driven) {
        TRY(config_require(c, KEY_run_datasets, "training"));
        TRY(setup_check_datasets(&t->arena, c, true));
    }
    if (c->max_steps > 0) TRY(schedule_make(c, c->max_steps, &t->schedule));
    TRY(open_tokenizer(t));
    return t->is_driven ? OK : check_output(t);
}

static Status open_device(Trainer *t)
{
    TRY(setup_rank_device(t->config, t->place.local, t->place.num_local, &t->device));
    FAIL_IF(t->comm && !t->device->api->join, ERR_UNSUPPORTED, "several ranks can't train on device %s", t->device->api->name);
    return OK;
}

/* Adds the programs that the plan lacks: the caller of a driven run may use any program between steps. */
static void add_driven_programs(Trainer *t)
{
    static const Entry *const between[] = {&entry_eval, &entry_prefill, &entry_decode};
    bool                      has_only = t->config->gradient_accumulation_steps == 1;
    for (int i = 0; i < 3; i++) compile_drop(&t->options, between[i]);
    for (int i = 0; i < 3; i++)
        if (!between[i]->is_cached || t->config->generate_samples > 0)
            setup_add_program(t->config, t->model, (ProgramSpec){.entry = between[i]}, &t->options);
    if (t->comm && !has_only) setup_add_program(t->config, t->model, program_micro(0, 1, t->place.world), &t->options);
}

static Status make_plan(Trainer *t)
{
    if (t->config->device == OPT_DEVICE_AUTO && !device_has_driver())
        log_info("running on the CPU: there is no NVIDIA driver here (libcuda.so.1)");
    TRY(setup_options(&t->arena, t->config, t->model, &t->options));
    if (t->tokenizer) t->options.sampling.vocab = tokenizer_vocab_size(t->tokenizer);
    if (t->is_driven) add_driven_programs(t);
    t->options.accuracy = t->is_driven;
    if (!t->is_driven && t->config->whole_logits)
        log_warn("whole_logits has no effect here, though it may take memory: Trainer.logits of the Python package reads them");
    t->options.rank = t->place.rank;
    TRY(setup_plan(&t->arena, t->model, &t->options, t->device, &t->plan));
    if (!t->is_driven) TRY(setup_check_inputs(t->config, t->model, t->plan, trainer_leads(t)));
    if (!t->config->from_scratch) TRY(weights_check(t->plan, t->model));
    TRY(setup_check_pinned(t->plan, t->place.num_local, device_host_available()));
    return fit_check_memory(t->config, t->model, t->device, t->plan, true);
}

Status trainer_open(Trainer *t)
{
    trainer_beat(t, "opening the model");
    TRY(trainer_in_turn(t, open_inputs));
    trainer_beat(t, "planning");
    TRY(trainer_agree(t, open_device(t)));
    TRY(trainer_agree(t, t->comm ? t->device->api->join(t->device, t->comm) : OK));
    TRY(trainer_agree(t, fit_settle(&t->arena, t->run_file, t->model, t->device, t->comm, t->place.num_local, &t->config)));
    TRY(trainer_agree(t, make_plan(t)));
    return trainer_agree(t, comm_agree_same(t->comm, programs_hash(t->plan), "programs"));
}

/* ---- data, weights ---- */

/* Finds the matrices that adapters take from the base; a checkpoint stores them beside the adapters. */
static Status find_pairs(Trainer *t)
{
    const LoraOptions *lora = &t->options.lora;
    lora_pairs_destroy(t->pairs);
    t->pairs = NULL;
    if (!t->plan->adapters_take) return OK;
    TRY(trainer_agree(t, OK)); /* if a rank failed before, no rank begins the collective work below */
    if (t->resume_path[0]) return trainer_agree(t, lora_pairs_read(t->resume_path, t->plan, lora, &t->pairs));
    if (trainer_leads(t)) log_info("lora_init: %s: decomposing the weights of the adapted layers", choice_text(t->config->lora_init));
    return lora_pairs_make(t->model, t->plan, lora, t->options.master_dtype, t->comm, device_cpu_pool(t->device), &t->pairs);
}

/* Says if loading the run's adapter rounds its weights to lora_dtype. */
static Status tell_rounding(const Trainer *t)
{
    SCOPED(st_close_at) StFile *file = NULL;
    bool                        has_fp32 = false;
    if (!trainer_leads(t) || t->options.master_dtype == DT_F32) return OK;
    TRY(peft_open_tensors(t->config->adapter, &file));
    for (size_t i = 0; i < st_count(file); i++) has_fp32 = has_fp32 || st_at(file, i)->dtype == ST_F32;
    if (has_fp32)
        log_info("the adapter %s: its fp32 weights are rounded to lora_dtype: %s", t->config->adapter, choice_text(t->config->lora_dtype));
    return OK;
}

static Status load_weights(Trainer *t)
{
    const Config *c = t->config;
    bool          adapters = t->options.lora.enabled;
    ThreadPool   *pool = device_cpu_pool(t->device);
    if (t->resume_path[0] && !adapters) TRY(weights_load_namespaces(t->session, t->model));
    if (t->resume_path[0] && !adapters) return checkpoint_load(t->resume_path, t->session, false, &t->stepper.has_scales);
    if (c->from_scratch) {
        TRY(init_params(t->session, (uint64_t)c->seed, false, pool));
        TRY(weights_load_namespaces(t->session, t->model));
    } else {
        TRY(find_pairs(t));
        TRY(weights_load_less(t->session, t->model, t->pairs));
    }
    TRY(weights_tell_requantised(t->session, t->model));
    if (t->resume_path[0]) return checkpoint_load(t->resume_path, t->session, true, &t->stepper.has_scales);
    if (c->adapter) {
        TRY(tell_rounding(t));
        return weights_load_adapter(t->session, c->adapter);
    }
    if (t->pairs) return lora_pairs_load(t->session, t->pairs);
    if (!t->options.lora.use_dora) return adapters ? init_params(t->session, (uint64_t)c->seed, true, pool) : OK;
    TRY(trainer_agree(t, OK)); /* if a rank failed before, no rank begins dora_begin, which is collective */
    return dora_begin(t->session, t->model, weights_made_format(&t->options), (uint64_t)c->seed, t->comm, pool);
}

Status trainer_start_session(Trainer *t)
{
    if (t->resume_path[0]) TRY(checkpoint_load_tuning(t->resume_path, t->device));
    TRY(session_create(t->plan, t->device, &t->session));
    stepper_init(&t->stepper, t->session, t->comm, t->config->seed, t->config->fp8_margin);
    TRY(load_weights(t));
    return session_write(t->session, OPTIMIZER_APPLIED, &t->state.applied, sizeof t->state.applied);
}

static bool trains_turns(const RunData *data)
{
    bool any = false;
    for (int i = 0; i < data->num_train_sets; i++) any |= data->train_sets[i].has_mask;
    return any;
}

/* Finds the token that ends turns in training: it must also end them when the model is served. */
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

/* Does everything on this rank that can fail, before any file of an earlier run is changed. */
static Status load(Trainer *t)
{
    const Config *c = t->config;
    if (trains_turns(&t->data)) TRY(run_data_template(c, t->tokenizer_dir, t->record.began, &t->tmpl));
    TRY(find_stop_token(t));
    TRY(trainer_place_cursor(t));
    TRY(schedule_make(c, t->data.total_steps, &t->schedule));
    trainer_settle_saves(t);
    TRY(trainer_load_state(t));
    TRY(trainer_check_length(t, c->output_dir, t->schedule.total));
    if (trainer_leads(t)) TRY(trainer_check_disk(t));
    return trainer_start_session(t);
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
    else if (t->config->adapter)
        log_info("going on from the adapter %s, of rank %lld, with a new optimizer, from step 0", t->config->adapter,
                 (long long)t->config->lora_rank);
    trainer_tell_saves(t);
}

static Status prepare(Trainer *t)
{
    const Config *c = t->config;
    trainer_beat(t, "opening the data");
    TRY(trainer_in_turn(t, trainer_open_data));
    TRY(trainer_agree(t, trainer_find_output(t)));
    TRY(trainer_agree(t, comm_agree_same(t->comm, t->data.hash, "data")));
    trainer_beat(t, "loading");
    TRY(trainer_agree(t, load(t)));
    TRY(trainer_check_best(t));
    TRY(trainer_agree(t, trainer_leads(t) ? trainer_begin_output(t) : OK));
    loader_seek(t->data.train, t->state.step);
    step_limit_init(&t->limit, t->device, t->plan, t->options.model_dtype, c->gradient_accumulation_steps);
    progress_begin(&t->progress, t->schedule.total, c->logging_steps, t->saved_step);
    tell_start(t);
    return OK;
}

/* ---- the end ---- */

Status trainer_merge(Trainer *t, const char *adapter_dir, const char *folder)
{
    HfModel    *base;
    PeftAdapter adapter;
    const char *dir;
    TRY(setup_model_dir(&t->arena, t->config, &dir));
    TRY(hf_model_open_as(&t->arena, dir, setup_ir(t->config), &base));
    Status status = peft_open(&t->arena, adapter_dir, &adapter);
    if (status == OK) status = merge_adapter(base, &adapter, false, folder, t->config->max_shard_size, device_cpu_pool(t->device));
    hf_model_close(base);
    return status;
}

/* For merge_adapter: writes output_dir/merged, which is renamed when complete. */
static Status save_merged(Trainer *t)
{
    const char *dir = t->config->output_dir, *folder = arena_printf(&t->arena, "%s/merged", dir);
    const char *partial = arena_printf(&t->arena, "%s/.merged.partial", dir);
    TRY(file_remove_tree(partial));
    TRY(trainer_merge(t, dir, partial));
    if (rename(partial, folder) != 0) return file_fail("rename to", folder);
    return file_sync_dir(dir);
}

/* Merges the adapter of a finished run if merge_adapter was set afterwards. */
static Status merge_finished(Trainer *t)
{
    const char *folder = arena_printf(&t->arena, "%s/merged", t->config->output_dir);
    bool        is_merged;
    TRY(file_is_dir(folder, &is_merged));
    if (!t->config->lora || !t->config->merge_adapter || is_merged) return OK;
    TRY(save_merged(t));
    log_info("the finished run's adapter was merged into its base: %s", folder);
    return OK;
}

/* Failing to write the model card doesn't fail the run. */
static void write_card(Trainer *t)
{
    bool      stays;
    CardFacts facts = {t->config, t->model->module->architecture, metrics_history(t->metrics), t->held_step};
    if (model_card_write(&facts, &stays) != OK) {
        log_warn("the model card wasn't written: %s", status_message());
        status_clear();
    } else if (stays) {
        log_info("%s/README.md stays as it is: it is no model card of this program, or was edited", t->config->output_dir);
    }
}

/* Writes the remaining files beside the model. */
static Status complete_output(Trainer *t, const char *state_text)
{
    const char *dir = t->config->output_dir;
    TRY(file_write_atomic(arena_printf(&t->arena, "%s/trainer_state.json", dir), state_text, strlen(state_text)));
    if (t->config->lora && t->config->merge_adapter) TRY(save_merged(t));
    write_card(t);
    return run_record_write(dir, &t->record, true);
}

/* For load_best_model_at_end: loads the weights of the best evaluation into the session, unless it has them. */
static Status take_best(Trainer *t)
{
    int64_t     step = t->state.best.step;
    bool        is_there = true, has_scales;
    const char *path = checkpoint_path(&t->arena, t->config->output_dir, step);
    if (!t->config->load_best_model_at_end || step == 0 || step == t->state.step) return OK;
    Status status = trainer_leads(t) ? checkpoint_verify(path) : OK;
    if (status == OK && trainer_leads(t)) status = checkpoint_has_best(t->config->output_dir, &t->state.best, &is_there);
    if (status == OK && !is_there) status = status_fail(ERR_CHECKPOINT, "%s is not of the best evaluation", path);
    if (status != OK)
        status = status_prefix(status, "load_best_model_at_end (resume_from_checkpoint: true goes on with another value of it)");
    TRY(trainer_agree(t, status));
    TRY(trainer_agree(t, checkpoint_load(path, t->session, t->options.lora.enabled, &has_scales)));
    t->held_step = step;
    return stepper_gather(&t->stepper);
}

static Status save_final(Trainer *t)
{
    SaveContext context;
    StrBuf      text = {0};
    Status      status = OK;
    const char *dir = t->config->output_dir;
    if (!trainer_is_saved(t)) TRY(trainer_save(t));
    MetricsMark mark;
    if (trainer_leads(t)) status = metrics_sync(t->metrics, &mark);
    if (status == OK) status = trainer_context(t, true, &text, &context);
    if (status == OK && trainer_leads(t))
        status = file_remove_tree(arena_printf(&t->arena, "%s/merged", dir)); /* it contains the adapter that is replaced now */
    status = trainer_agree(t, status);
    t->held_step = t->state.step;
    if (status == OK) status = take_best(t);
    if (status == OK) status = checkpoint_save_model(&context, dir);
    if (status == OK && trainer_leads(t)) status = complete_output(t, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return trainer_agree(t, status);
}

/* Sets aside later checkpoints of another branch, so that a message may say how to resume from the last checkpoint. Keeps the status
 * message. */
static void leave_branch(Trainer *t)
{
    char message[STATUS_MESSAGE_BYTES];
    if (!trainer_leads(t)) return;
    snprintf(message, sizeof message, "%s", status_message());
    if (checkpoint_leave_branch(t->config->output_dir, t->branch) != OK)
        log_warn("a checkpoint that isn't of this run couldn't be set aside: %s", status_message());
    Status ignored = status_fail(ERR_INTERNAL, "%s", message);
    (void)ignored;
}

/* Writes the last events. Events that can't be written now are lost. */
static void end_events(Trainer *t)
{
    if (!t->events || event_file_sync(t->events) == OK) return;
    log_warn("%s; its last events are lost. Curves are in metrics.jsonl and report.html too", status_message());
    status_clear();
}

static Status finish(Trainer *t)
{
    t->allowed_seconds = INFINITY;
    trainer_beat(t, "completing the output");
    Status status = save_final(t);
    if (status != OK) leave_branch(t);
    FAIL_IF(status != OK, ERR_SAVE, "training is done, but saving failed: %s. %s; then %s goes on from the last checkpoint",
            status_message(), status == ERR_NO_FIT ? "Make room" : "Put that right", trainer_same_command(t));
    end_events(t);
    if (trainer_leads(t)) trainer_report(t, true);
    return OK;
}

/* Reports the failure of a device, from which nothing can be read back any more. */
static Status device_lost(Trainer *t)
{
    char failure[STATUS_MESSAGE_BYTES];
    snprintf(failure, sizeof failure, "%.900s", status_message());
    if (t->saved_step >= 0) leave_branch(t);
    FAIL_IF(t->saved_step < 0, ERR_DEVICE,
            "the device failed after step %lld: %s. There is no checkpoint yet (save_steps); the same command starts anew",
            (long long)t->state.step, failure);
    FAIL(ERR_DEVICE, "the device failed after step %lld: %s. The checkpoint of step %lld in %s is whole; %s goes on from it",
         (long long)t->state.step, failure, (long long)t->saved_step, t->config->output_dir, trainer_same_command(t));
}

void trainer_destroy(Trainer *t)
{
    if (!t) return;
    trainer_drop_output(t);
    output_lock_release(t->config->output_dir, &t->output_lock);
    metrics_close(t->metrics);
    event_file_close(t->events);
    run_data_close(&t->data);
    session_destroy(t->session);
    lora_pairs_destroy(t->pairs);
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
    TRY(trainer_open(t));
    trainer_beat(t, "looking at output_dir");
    TRY(trainer_look_at_output(t, &out->already_finished));
    TRY(trainer_agree(t, comm_agree_same(t->comm, t->record.hash, "settings of the model")));
    if (out->already_finished) return trainer_agree(t, trainer_leads(t) ? merge_finished(t) : OK);
    tell_model(t);
    TRY(trainer_agree(t, frozen_tokens_tell(t->config, t->model, t->plan, &t->model_notes)));
    TRY(prepare(t));
    Status status = train_loop(t);
    if (status == ERR_DEVICE) return device_lost(t);
    return status == OK ? finish(t) : status;
}

Trainer *trainer_create(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place)
{
    static const TrainHooks none = {0};
    Trainer                *t = calloc_or_end(1, sizeof *t);
    t->run_file = t->config = config;
    t->hooks = hooks ? hooks : &none;
    t->comm = comm;
    t->place = place;
    t->start_seconds = clock_seconds();
    t->last_loss = t->last_eval_loss = NAN;
    t->allowed_seconds = INFINITY;
    t->saved_step = t->stop_token = -1;
    t->made_from = t->held_step = -1;
    t->output_lock = OUTPUT_LOCK_NONE;
    t->from_ranks = arena_alloc(&t->arena, (size_t)place.world * RANK_BYTES);
    t->shares = arena_array(&t->arena, RankShare, place.world);
    t->own_seconds = arena_array(&t->arena, double, place.world);
    return t;
}

Status trainer_run(const Config *config, const TrainHooks *hooks, Comm *comm, RankPlace place, TrainOutcome *out)
{
    Trainer *t = trainer_create(config, hooks, comm, place);
    *out = (TrainOutcome){.loss = NAN, .eval_loss = NAN, .held_step = -1};
    Status status = train(t, out);
    if (comm && status != OK && status != ERR_RANK && !t->has_agreed) {
        comm_abort(comm, status, status_message());
        status = status_prefix(status, "rank %d", place.rank);
    }
    if (status == ERR_RANK && comm_check(comm) != OK) status = comm_cause(comm); /* now with the message of the original failure */
    out->rank = place.rank;
    out->steps = t->state.step;
    out->loss = t->last_loss;
    out->eval_loss = t->last_eval_loss;
    out->trend = t->trend;
    out->held_step = t->held_step;
    out->best_step = t->state.best.step;
    trainer_destroy(t);
    return status;
}
