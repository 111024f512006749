/* The loop over train steps. A step writes inputs and replays programs; its three numbers are read while the next one runs. It allocates
 * nothing, and the device never waits for the host. */
#include "train/trainer_internal.h"

#include "base/log.h"
#include "model/weights.h"
#include "run/scales.h"
#include "train/report.h"
#include "train/signals.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_BAD_IN_ROW = 3 };

double trainer_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- one step ---- */

static Status write_batch(Trainer *t, const Batch *batch, size_t cells)
{
    static const char *const names[] = {"tokens", "labels", "positions", "doc_start", "doc_id"};
    const int32_t *const     data[] = {batch->tokens, batch->labels, batch->positions, batch->doc_start, batch->doc_id};
    for (int i = 0; i < 5; i++)
        if (plan_find(t->plan, names[i])) TRY(session_write(t->session, names[i], data[i], cells * sizeof(int32_t)));
    return OK;
}

static Status write_scalars(Trainer *t, int64_t index, int64_t tokens, double lr)
{
    int64_t step[STEP_COUNT] = {[STEP_SEED] = t->config->seed, [STEP_INDEX] = index};
    float   hyper[HYPER_COUNT] = {[HYPER_LR] = (float)lr, [HYPER_INV_TOKENS] = tokens > 0 ? (float)(1.0 / (double)tokens) : 0.0f};
    TRY(session_write(t->session, "step", step, sizeof step));
    return session_write(t->session, "hyper", hyper, sizeof hyper);
}

/* What the first step's scales follow from, measured on all of its micro-batches, so that it doesn't depend on how many they are. */
static Status calibrate(Trainer *t)
{
    const Program *program = plan_program(t->plan, PROGRAM_CALIBRATE);
    const Batch   *batch;
    int64_t        trained, step = t->state.step < t->schedule.total ? t->state.step : t->schedule.total - 1;
    if (!t->plan->num_scaled || t->has_scales) return OK;
    loader_seek(t->data.train, step);
    TRY(loader_step_tokens(t->data.train, step, &trained));
    TRY(write_scalars(t, step, trained, 0));
    for (int64_t micro = 0; micro < t->config->gradient_accumulation_steps; micro++) {
        TRY(loader_next(t->data.train, &batch));
        FAIL_IF(!batch, ERR_INTERNAL, "the data ended in step %lld", (long long)step);
        TRY(write_batch(t, batch, (size_t)(program->spec.batch * program->spec.seq)));
        TRY(session_run(t->session, program));
    }
    loader_seek(t->data.train, t->state.step);
    return scales_begin(t->session, t->config->fp8_margin);
}

/* Gradients and loss of all micro-batches. */
static Status run_micros(Trainer *t, StepWork *out_work)
{
    const ProgramSpec *spec = &plan_program(t->plan, PROGRAM_MICRO_FIRST)->spec;
    size_t             cells = (size_t)(spec->batch * spec->seq);
    for (int64_t micro = 0; micro < t->config->gradient_accumulation_steps; micro++) {
        const Batch *batch;
        TRY(loader_next(t->data.train, &batch));
        FAIL_IF(!batch, ERR_INTERNAL, "the data ended in step %lld", (long long)(t->state.step + t->num_queued));
        step_work_add(out_work, batch, spec->batch, spec->seq);
        TRY(write_batch(t, batch, cells));
        TRY(session_run(t->session, plan_program(t->plan, micro == 0 ? PROGRAM_MICRO_FIRST : PROGRAM_MICRO_NEXT)));
    }
    return OK;
}

/* A NaN of either sign prints as one. */
static double unsigned_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

/* Step t->state.step + num_queued: its programs are queued behind what the device runs. */
static Status queue_step(Trainer *t)
{
    int64_t     index = t->state.step + t->num_queued, trained;
    QueuedStep *step = &t->queued[index % (STEPS_AHEAD + 1)];
    *step = (QueuedStep){0};
    if (t->hooks->step_begin) t->hooks->step_begin(t->hooks->context, index);
    TRY(session_begin_step(t->session, index));
    TRY(loader_step_tokens(t->data.train, index, &trained));
    double lr = schedule_lr(&t->schedule, index);
    TRY(write_scalars(t, index, trained, lr));
    TRY(run_micros(t, &step->work));
    TRY(session_run(t->session, plan_program(t->plan, PROGRAM_OPTIMIZER)));
    TRY(session_end_step(t->session, index));
    step->metrics = (StepMetrics){.step = index + 1,
                                  .epoch = loader_epoch(t->data.train, index + 1),
                                  .lr = lr,
                                  .step_tokens = step->work.tokens,
                                  .step_trained = trained};
    t->num_queued++;
    return OK;
}

/* Waits for the oldest queued step; state and *out tell of it. */
static Status await_step(Trainer *t, StepMetrics *out)
{
    QueuedStep *step = &t->queued[t->state.step % (STEPS_AHEAD + 1)];
    TRY(session_await_step(t->session, t->state.step, &step->metrics.seconds));
    const float *result = (const float *)session_pointer(t->session, "results") + t->state.step % RESULT_ROWS * RESULT_COUNT;
    bool         good = result[RESULT_APPLIED] != 0;
    t->num_queued--;
    t->state.step++;
    t->state.applied += good;
    t->state.skipped += !good;
    t->state.bad_in_row = good ? 0 : t->state.bad_in_row + 1;
    t->state.total_tokens += step->metrics.step_tokens;
    t->state.total_trained += step->metrics.step_trained;
    t->last_loss = result[RESULT_LOSS];
    *out = step->metrics;
    out->loss = unsigned_nan(result[RESULT_LOSS]);
    out->norm = unsigned_nan(sqrt(result[RESULT_NORM2]));
    out->total_tokens = t->state.total_tokens;
    out->total_trained = t->state.total_trained;
    out->skipped = !good;
    out->limit_seconds = step_limit_seconds(&t->limit, &step->work, out->seconds);
    eval_trend_step(&t->trend, result[RESULT_LOSS]);
    return OK;
}

static Status check_divergence(Trainer *t, const StepMetrics *step)
{
    if (!step->skipped) return OK;
    log_warn("step %lld: loss %g, gradient norm %g: the step was left out, weights are as before it", (long long)step->step, step->loss,
             step->norm);
    if (t->config->on_divergence == OPT_DIVERGENCE_SKIP || t->state.bad_in_row < MAX_BAD_IN_ROW) return OK;
    FAIL(ERR_DIVERGED,
         "loss or gradient norm wasn't finite in %d steps in a row (up to step %lld); lower learning_rate, lengthen warm-up, "
         "or look at the data of these steps",
         MAX_BAD_IN_ROW, (long long)step->step);
}

/* A disk that fails must not end the run: lines wait then. It is said once until they are written. */
static void log_line(Trainer *t, Status status)
{
    if (status != OK && !t->log_waits) log_warn("%s; its lines are kept and written with the next one", status_message());
    t->log_waits = status != OK;
    if (status != OK) status_clear();
}

/* ---- evaluation ---- */

static Status eval_batches(Trainer *t, EvalMetrics *out)
{
    const Program *program = plan_program(t->plan, PROGRAM_EVAL);
    Loader        *loader = t->data.eval;
    size_t         cells = (size_t)(program->spec.batch * program->spec.seq);
    double         sum = 0;
    int64_t        most = t->config->eval_max_batches;
    loader_seek(loader, 0);
    for (int64_t i = 0; most == 0 || i < most; i++) {
        const Batch *batch;
        TRY(loader_next(loader, &batch));
        if (!batch) break;
        FAIL_IF(signals_pending(), ERR_INTERRUPTED, "evaluation was interrupted");
        TRY(write_batch(t, batch, cells));
        TRY(session_run(t->session, program));
        TRY(session_output(t->session, program, "losses", t->data.losses, cells * sizeof(float)));
        for (size_t k = 0; k < cells; k++)
            if (batch->labels[k] != LABEL_IGNORE) sum += t->data.losses[k];
        out->tokens += batch->num_tokens;
        out->trained += batch->num_trained;
    }
    out->loss = out->trained ? sum / (double)out->trained : NAN;
    return OK;
}

static Status run_eval(Trainer *t)
{
    double      start = trainer_seconds();
    EvalMetrics eval = {.step = t->state.step, .epoch = loader_epoch(t->data.train, t->state.step)};
    Status      status = eval_batches(t, &eval);
    if (status == ERR_INTERRUPTED) {
        status_clear();
        return OK; /* it stays pending and is done again on resume */
    }
    TRY(status);
    eval.seconds = trainer_seconds() - start;
    t->last_eval_loss = eval.loss;
    t->state.eval_pending = false;
    log_line(t, metrics_eval(t->metrics, &eval));
    eval_trend_eval(&t->trend, eval.step, eval.loss);
    progress_eval(&eval, &t->trend);
    if (t->config->generate_samples == 0 || !t->hooks->sample) return OK;
    SampleJob job = {.session = t->session,
                     .tokenizer = t->tokenizer,
                     .tmpl = t->tmpl,
                     .eval = t->data.eval,
                     .stop_token = t->stop_token,
                     .step = t->state.step,
                     .metrics = t->metrics};
    return t->hooks->sample(t->hooks->context, &job);
}

static bool eval_due(const Trainer *t, int64_t step)
{
    if (!t->data.eval) return false;
    return step == t->schedule.total || (t->config->eval_steps > 0 && step % t->config->eval_steps == 0);
}

/* ---- saving ---- */

double trainer_flops_per_step(const Trainer *t)
{
    double micro = (double)t->config->gradient_accumulation_steps;
    return plan_program(t->plan, PROGRAM_MICRO_FIRST)->cost.flops * micro + plan_program(t->plan, PROGRAM_OPTIMIZER)->cost.flops;
}

Status trainer_context(Trainer *t, bool finished, StrBuf *state_text, SaveContext *out)
{
    const Config *c = t->config;
    TrainerFacts  facts = {.max_steps = t->schedule.total,
                           .logging_steps = c->logging_steps,
                           .save_steps = c->save_steps,
                           .eval_steps = c->eval_steps,
                           .batch_size = c->per_device_train_batch_size,
                           .rows_per_step = loader_rows_per_step(t->data.train),
                           .num_epochs = c->num_epochs,
                           .epoch = loader_epoch(t->data.train, t->state.step),
                           .flops_per_step = trainer_flops_per_step(t),
                           .finished = finished};
    TRY(trainer_state_text(t->metrics_path, &t->state, &facts, state_text));
    *out = (SaveContext){.session = t->session,
                         .model = t->model,
                         .lora = &t->options.lora,
                         .base_model = t->base_model,
                         .base_format = weights_made_format(&t->options),
                         .side_files = &t->side_files,
                         .chat_template = t->chat_template,
                         .eos = tokenizer_eos_id(t->tokenizer),
                         .stop = t->stop_token,
                         .output_dir = c->output_dir,
                         .max_shard_bytes = c->max_shard_size,
                         .keep = t->keep,
                         .trainer_state = strbuf_cstr(state_text)};
    return OK;
}

Status trainer_save(Trainer *t)
{
    SaveContext context;
    StrBuf      text = {0};
    Status      status = metrics_sync(t->metrics);
    t->state.metrics_bytes = metrics_bytes(t->metrics);
    t->state.settings_hash = t->record.hash;
    t->state.data_hash = t->data.hash;
    if (status == OK) status = trainer_context(t, false, &text, &context);
    if (status == OK) status = checkpoint_save(&context, &t->state);
    strbuf_deinit(&text);
    if (status == OK) t->saved_step = t->state.step;
    return status;
}

/* A failed save in the middle of a run: the one before is still there, training goes on. */
static void save_or_warn(Trainer *t)
{
    if (trainer_save(t) == OK) return;
    log_warn("the checkpoint of step %lld wasn't written: %s. The one before it is kept; the next attempt is at the next interval",
             (long long)t->state.step, status_message());
    status_clear();
}

static bool save_due(const Trainer *t, int64_t step)
{
    return t->config->save_steps > 0 && step % t->config->save_steps == 0 && step != t->saved_step && step < t->schedule.total;
}

const char *trainer_same_command(const Trainer *t)
{
    return train_goes_on(t->config) ? "the same command" : "the same command with resume_from_checkpoint: auto";
}

static Status interrupted(Trainer *t)
{
    if (t->saved_step != t->state.step) {
        Status status = trainer_save(t);
        FAIL_IF(status != OK, ERR_SAVE, "interrupted at step %lld, and the state couldn't be saved: %s", (long long)t->state.step,
                status_message());
    }
    FAIL(ERR_INTERRUPTED, "interrupted after step %lld of %lld; %s goes on from there", (long long)t->state.step,
         (long long)t->schedule.total, trainer_same_command(t));
}

/* ---- the loop ---- */

/* The oldest queued step: its result is awaited, written down, shown. */
static Status finish_step(Trainer *t)
{
    StepMetrics step;
    TRY(await_step(t, &step));
    log_line(t, metrics_step(t->metrics, &step));
    if (t->progress.steps == 0 && !log_is_terminal()) log_info("first step %.2f s after the start", trainer_seconds() - t->start_seconds);
    progress_step(&t->progress, &step);
    if (t->hooks->step_end) t->hooks->step_end(t->hooks->context, step.step - 1);
    if (t->limit.is_beaten) step_limit_measure(&t->limit);
    t->state.eval_pending = eval_due(t, t->state.step);
    return check_divergence(t, &step);
}

/* Until at most so many are queued. When a run diverged, the steps queued behind are written down too. */
static Status finish_steps(Trainer *t, int most_queued)
{
    while (t->num_queued > most_queued) {
        Status status = finish_step(t), other = status;
        if (status == OK) continue;
        char message[STATUS_MESSAGE_BYTES];
        snprintf(message, sizeof message, "%s", status_message());
        while (t->num_queued > 0 && (other == OK || other == ERR_DIVERGED)) other = finish_step(t);
        FAIL(status, "%s", message);
    }
    return OK;
}

/* Whether evaluating, saving or ending comes behind the last queued step: then its result is needed. */
static bool must_finish(const Trainer *t)
{
    int64_t step = t->state.step + t->num_queued;
    return step >= t->schedule.total || eval_due(t, step) || save_due(t, step) || signals_pending();
}

Status train_loop(Trainer *t)
{
    int most_queued = t->device->api->is_synchronous ? 0 : STEPS_AHEAD;
    signals_set_resumable(true);
    TRY(calibrate(t));
    for (;;) {
        TRY(finish_steps(t, must_finish(t) ? 0 : most_queued));
        if (t->num_queued == 0) {
            if (t->state.eval_pending && !signals_pending()) {
                TRY(run_eval(t));
                step_limit_measure(&t->limit);
                if (!t->state.eval_pending) report_update(t, false);
            }
            if (save_due(t, t->state.step) && !signals_pending()) save_or_warn(t);
            if (signals_pending()) return interrupted(t);
            if (t->state.step >= t->schedule.total) break;
        }
        if (!must_finish(t) || t->num_queued == 0) TRY(queue_step(t));
    }
    return OK;
}
