/* When a run saves, and what. It saves at an interval in steps, a number of times per epoch, or by time; if the best is kept, it also saves
 * after each best evaluation. Saving doesn't change what a run computes. */
#include "train/trainer_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/scoped.h"
#include "log/report.h"
#include "model/weights.h"
#include "train/best.h"

#include <math.h>

/* ---- when ---- */

/* Steps between events that happen `per_epoch` times an epoch, rounded up. */
static int64_t steps_apart(const Trainer *t, int64_t per_epoch)
{
    double  steps = loader_stats(t->data.train)->rows_an_epoch / (double)loader_rows_per_step(t->data.train);
    int64_t apart = (int64_t)ceil(steps / (double)per_epoch - 1e-9);
    return apart > 0 ? apart : 1;
}

/* Whether to save by time: no other key sets an interval. save_steps: 0 turns saves by time off, unless save_minutes is given too. */
static bool asks_for_time(const Trainer *t)
{
    const Config *c = t->config;
    bool          is_refused = c->origin[KEY_run_save_steps] && !c->origin[KEY_run_save_minutes];
    return t->save_every == 0 && c->save_minutes > 0 && !is_refused;
}

void trainer_settle_saves(Trainer *t)
{
    const Config *c = t->config;
    t->save_every = c->save_steps > 0 ? c->save_steps : c->saves_per_epoch > 0 ? steps_apart(t, c->saves_per_epoch) : 0;
    t->eval_every = c->eval_steps > 0 ? c->eval_steps : c->evals_per_epoch > 0 ? steps_apart(t, c->evals_per_epoch) : 0;
    t->save_seconds = asks_for_time(t) && c->save_total_limit > 0 ? 60 * c->save_minutes : 0; /* without a limit all of them would stay */
}

static void tell_apart(const char *key, int64_t per_epoch, const char *what, int64_t steps)
{
    log_info("%s: %lld: %s every %lld steps", key, (long long)per_epoch, what, (long long)steps);
}

void trainer_tell_saves(const Trainer *t)
{
    const Config *c = t->config;
    if (c->save_steps == 0 && c->saves_per_epoch > 0) tell_apart("saves_per_epoch", c->saves_per_epoch, "a checkpoint", t->save_every);
    if (t->data.eval && c->eval_steps == 0 && c->evals_per_epoch > 0)
        tell_apart("evals_per_epoch", c->evals_per_epoch, "an evaluation", t->eval_every);
    if (asks_for_time(t) && c->save_total_limit == 0)
        log_info("no checkpoint is kept before the end: save_total_limit: 0 would keep one of every %g minutes; set save_steps",
                 c->save_minutes);
}

bool trainer_is_saved(const Trainer *t)
{
    return t->saved_step == t->state.step && !t->has_new_best;
}

bool trainer_save_is_timely(const Trainer *t)
{
    return trainer_leads(t) && t->save_seconds > 0 && t->saved_step != t->state.step + t->num_queued &&
           clock_seconds() - t->saved_at >= t->save_seconds;
}

bool trainer_save_due(const Trainer *t, int64_t step)
{
    if (step >= t->schedule.total || best_ends(t->config, &t->state)) return false; /* a run saves at its end anyway */
    if (t->has_new_best) return true;
    if (step == t->saved_step) return false;
    return t->save_is_asked || (t->save_every > 0 && step % t->save_every == 0);
}

/* ---- what ---- */

double trainer_flops_per_step(const Trainer *t)
{
    double flops = plan_program(t->plan, &entry_optimizer)->cost.flops;
    for (int64_t i = 0; i < t->config->gradient_accumulation_steps; i++) flops += trainer_micro(t, i)->cost.flops;
    return flops * t->place.world;
}

int64_t trainer_kept_best(const Trainer *t)
{
    return best_is_kept(t->config) ? t->state.best.step : 0;
}

Status trainer_context(Trainer *t, bool finished, StrBuf *state_text, SaveContext *out)
{
    const Config *c = t->config;
    TrainerFacts  facts = {.max_steps = t->schedule.total,
                           .logging_steps = c->logging_steps,
                           .save_steps = t->save_every,
                           .eval_steps = t->eval_every,
                           .batch_size = c->per_device_train_batch_size,
                           .rows_per_step = c->per_device_train_batch_size * c->gradient_accumulation_steps * t->place.world,
                           .num_epochs = c->num_epochs,
                           .epoch = t->is_driven ? 0 : loader_epoch(t->data.train, t->state.step),
                           .flops_per_step = trainer_flops_per_step(t),
                           .finished = finished};
    if (t->state.best.step) {
        facts.best_step = t->state.best.step;
        facts.best_metric = best_metric(c, t->state.best.loss);
        if (best_is_kept(c)) facts.best_checkpoint = checkpoint_path(&t->arena, c->output_dir, t->state.best.step);
    }
    trainer_state_text(metrics_history(t->metrics), &t->state, &facts, state_text);
    *out = (SaveContext){.session = t->session,
                         .comm = t->comm,
                         .model = t->model,
                         .lora = &t->options.lora,
                         .pairs = t->pairs,
                         .base_model = t->base_model,
                         .base_format = weights_made_format(&t->options),
                         .side_files = &t->side_files,
                         .chat_template = t->chat_template,
                         .eos = t->tokenizer ? tokenizer_eos_id(t->tokenizer) : -1,
                         .stop = t->stop_token,
                         .output_dir = c->output_dir,
                         .max_shard_bytes = c->max_shard_size,
                         .keep = t->keep,
                         .best = trainer_kept_best(t),
                         .branch = t->branch,
                         .trainer_state = strbuf_cstr(state_text)};
    return OK;
}

void trainer_report(Trainer *t, bool finished)
{
    ReportFacts facts = {.config = t->config,
                         .plan = t->plan,
                         .architecture = t->model->module->architecture,
                         .model_notes = strbuf_cstr(&t->model_notes),
                         .data_notes = t->data.notes.len ? strbuf_cstr(&t->data.notes) : "",
                         .step = t->state.step,
                         .total = t->schedule.total,
                         .skipped = t->state.skipped,
                         .kept_best = trainer_kept_best(t),
                         .flops = trainer_flops_per_step(t),
                         .of_limit = progress_of_limit(&t->progress),
                         .finished = finished};
    report_update(metrics_history(t->metrics), &facts);
}

Status trainer_save(Trainer *t)
{
    SaveContext context;
    SCOPED_STRBUF(text);
    MetricsMark mark = {0};
    Status      status = trainer_agree(t, trainer_leads(t) ? metrics_sync(t->metrics, &mark) : OK);
    if (status == OK) trainer_sync_events(t);
    t->state.metrics_bytes = mark.bytes;
    t->state.metrics_hash = mark.hash;
    trainer_beat(t, "saving");
    t->state.settings_hash = t->record.said_hash;
    t->state.data_hash = t->data.hash;
    t->state.rows = loader_rows_before(t->data.train, t->state.step);
    if (status == OK) status = stepper_gather(&t->stepper);
    if (status == OK) status = trainer_context(t, false, &text, &context);
    status = trainer_agree(t, status);
    if (status == OK) status = trainer_agree(t, checkpoint_save(&context, &t->state));
    t->saved_at = clock_seconds();
    t->save_is_asked = false;
    if (status != OK) return status;
    t->saved_step = t->branch = t->progress.saved_step = t->state.step;
    t->has_new_best = false;
    return OK;
}

/* If saving fails, the previous checkpoint still exists, and training goes on. A best evaluation that couldn't be saved is forgotten. */
Status trainer_save_or_warn(Trainer *t)
{
    Status status = trainer_save(t);
    if (status == OK || status == ERR_RANK) return status;
    t->has_agreed = false; /* a failure was agreed on, but doesn't end the run */
    if (t->has_new_best) t->state.best = t->best_before;
    t->has_new_best = false;
    log_warn("the checkpoint of step %lld wasn't written: %s. The one before it is kept; the next attempt is at the next interval",
             (long long)t->state.step, status_message());
    status_clear();
    return OK;
}

const char *trainer_same_command(const Trainer *t)
{
    return train_goes_on(t->config) ? "the same command" : "the same command with resume_from_checkpoint: auto";
}
