/* The loop over train steps. A step writes its inputs and replays programs; its results are read while the next step runs. The loop
 * allocates nothing, and the device never waits for the host. */
#include "train/trainer_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "train/best.h"
#include "train/signals.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NOTABLY 1.1 /* factor over the mean of all ranks */

enum { MAX_BAD_IN_ROW = 3, TIMES_LONGEST = 5 };

/* ---- one step ---- */

const Program *trainer_micro(const Trainer *t, int64_t micro)
{
    return plan_micro(t->plan, micro, t->config->gradient_accumulation_steps);
}

/* Turns a negative NaN into a positive one, so that both print alike. */
static double unsigned_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

int64_t trainer_next_step(const Trainer *t)
{
    return t->state.step + t->num_queued;
}

static QueuedStep *queued_step(Trainer *t, int64_t index)
{
    return &t->queued[index % (STEPS_AHEAD + 1)];
}

Status trainer_begin_step(Trainer *t, int64_t micros, int64_t trained, double lr)
{
    int64_t index = trainer_next_step(t);
    *queued_step(t, index) = (QueuedStep){.metrics = {.step = index + 1, .step_trained = trained}};
    t->waited = comm_waited(t->comm);
    return stepper_begin(&t->stepper, index, micros, (double)trained, lr);
}

Status trainer_queue_micro(Trainer *t, const Feeds *batch)
{
    const ProgramSpec *spec = &trainer_micro(t, 0)->spec;
    step_work_add(&queued_step(t, trainer_next_step(t))->work, batch, spec->batch, spec->seq);
    return stepper_micro(&t->stepper, batch);
}

Status trainer_queue_update(Trainer *t, double lr)
{
    QueuedStep *step = queued_step(t, trainer_next_step(t));
    step->metrics.lr = lr;
    step->metrics.step_tokens = step->work.tokens;
    TRY(stepper_update(&t->stepper, lr));
    t->num_queued++;
    return OK;
}

static Status next_batch(Trainer *t, int64_t step, const Feeds **out)
{
    TRY(loader_next(t->data.train, out));
    FAIL_IF(!*out, ERR_INTERNAL, "the data ended in step %lld", (long long)step);
    return OK;
}

/* If scales are needed, measures them on all micro-batches of the first step, so that they don't depend on the number of micro-batches. */
static Status calibrate(Trainer *t)
{
    const Feeds *batch;
    int64_t      trained, step = t->state.step < t->schedule.total ? t->state.step : t->schedule.total - 1;
    if (!stepper_must_measure(&t->stepper)) return OK;
    loader_seek(t->data.train, step);
    TRY(loader_step_tokens(t->data.train, step, &trained));
    for (int64_t micro = 0; micro < t->config->gradient_accumulation_steps; micro++) {
        TRY(next_batch(t, step, &batch));
        TRY(stepper_measure(&t->stepper, step, (double)trained, batch));
    }
    loader_seek(t->data.train, t->state.step);
    return stepper_measured(&t->stepper);
}

static Status queue_step(Trainer *t)
{
    const Feeds *batch;
    int64_t      index = trainer_next_step(t), micros = t->config->gradient_accumulation_steps, trained;
    double       lr = schedule_lr(&t->schedule, index);
    if (trainer_leads(t) && t->hooks->step_begin) t->hooks->step_begin(t->hooks->context, index);
    TRY(loader_step_tokens(t->data.train, index, &trained));
    TRY(trainer_begin_step(t, micros, trained, lr));
    queued_step(t, index)->metrics.epoch = loader_epoch(t->data.train, index + 1);
    for (int64_t micro = 0; micro < micros; micro++) {
        TRY(next_batch(t, index, &batch));
        TRY(trainer_queue_micro(t, batch));
    }
    return trainer_queue_update(t, lr);
}

static bool same_value(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

static const char *result_name(const Plan *plan, int index)
{
    static const char *const names[RESULT_SCALARS] = {"loss", "squared norm", "applied"};
    return index < RESULT_SCALARS ? names[index] : plan->scalars[index - RESULT_SCALARS].name;
}

/* The message that a rank sends to the others after a step. */
typedef struct RankStep {
    RankShare share;
    float     result[RESULT_MOST];
} RankStep;
_Static_assert(sizeof(RankStep) <= RANK_BYTES, "RANK_BYTES");

/* The rank whose own work, averaged over about ten steps, takes notably longer than the mean of all ranks; -1: none. */
static int slow_rank(Trainer *t)
{
    double sum = 0, most = 0;
    int    slowest = 0, count = t->place.world;
    for (int r = 0; r < count; r++) {
        double *own = &t->own_seconds[r], now = t->shares[r].seconds - t->shares[r].waited;
        *own = *own > 0 ? 0.9 * *own + 0.1 * now : now;
        sum += *own;
        if (*own <= most) continue;
        most = *own;
        slowest = r;
    }
    return most * count > NOTABLY * sum ? slowest : -1;
}

/* Combines the step of all ranks: the sum of tokens, the time of the slowest rank. The results of all ranks must be equal. */
static Status share_step(Trainer *t, const float *result, StepMetrics *step)
{
    RankStep own = {.share = {step->step_tokens, step->seconds, comm_waited(t->comm) - t->waited}}, *all = t->from_ranks;
    if (!t->comm) return OK;
    memcpy(own.result, result, sizeof own.result);
    TRY(comm_all_gather(t->comm, &own, all, sizeof own));
    step->step_tokens = 0;
    for (int r = 0; r < t->place.world; r++) {
        for (int k = 0; k < RESULT_MOST; k++)
            FAIL_IF(!same_value(all[r].result[k], result[k]), ERR_INTERNAL, "step %lld: rank %d has %s %.9g, rank %d has %.9g",
                    (long long)t->state.step + 1, r, result_name(t->plan, k), (double)all[r].result[k], t->place.rank, (double)result[k]);
        t->shares[r] = all[r].share;
        step->step_tokens += all[r].share.tokens;
        if (all[r].share.seconds > step->seconds) step->seconds = all[r].share.seconds;
    }
    step->ranks = t->shares;
    step->num_ranks = t->place.world;
    step->slow_rank = slow_rank(t);
    return OK;
}

static void tell_scalars(const Plan *plan, const float *result, StepMetrics *out)
{
    out->num_scalars = plan->num_scalars;
    for (int i = 0; i < plan->num_scalars; i++) {
        const Scalar *scalar = &plan->scalars[i];
        double        value = (double)result[RESULT_SCALARS + i];
        if (scalar->finish) value = scalar->finish(value, result[RESULT_LOSS]);
        out->scalars[i] = (NamedNumber){scalar->name, unsigned_nan(value)};
    }
}

Status trainer_await_step(Trainer *t, StepMetrics *out)
{
    QueuedStep *step = queued_step(t, t->state.step);
    StepScalars scalars;
    TRY(stepper_await(&t->stepper, t->state.step, &step->metrics.seconds, &scalars));
    const float *result = scalars.values;
    bool         good = result[RESULT_APPLIED] != 0;
    TRY(share_step(t, result, &step->metrics));
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
    tell_scalars(t->plan, result, out);
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
    t->has_agreed = true;
    FAIL(ERR_DIVERGED,
         "loss or gradient norm wasn't finite in %d steps in a row (up to step %lld); lower learning_rate, lengthen warm-up, "
         "or look at the data of these steps",
         MAX_BAD_IN_ROW, (long long)step->step);
}

/* A failing disk doesn't end the run: data that couldn't be written waits. One warning is logged until a write succeeds. */
static void log_waits(bool *waits, const char *what, Status status)
{
    if (status != OK && !*waits) log_warn("%s; its %s are kept and written with the next one", status_message(), what);
    *waits = status != OK;
    if (status != OK) status_clear();
}

static void log_line(Trainer *t, Status status)
{
    log_waits(&t->log_waits, "lines", status);
}

static void log_event(Trainer *t, Status status)
{
    log_waits(&t->events_wait, "events", status);
}

void trainer_sync_events(Trainer *t)
{
    if (t->events) log_event(t, event_file_sync(t->events));
}

/* ---- evaluation ---- */

/* All ranks agree on a signal, and on whether a save by time is due. The lowest bit of `asked` says that a save is due; only rank 0 sets
 * it. */
static Status agree_on_signal(Trainer *t)
{
    int64_t asked = 2 * (int64_t)signals_pending(t->run_file->begun) + trainer_save_is_timely(t);
    TRY(comm_agree_most(t->comm, &asked));
    t->signal = (int)(asked / 2);
    t->save_is_asked |= asked % 2 != 0;
    return OK;
}

/* The sums over a rank's evaluation rows. */
typedef struct EvalSum {
    double  loss;
    int64_t tokens, trained;
} EvalSum;

/* Evaluates batches until the data or `eval_max_batches` ends. Of every `world` batches each rank takes one. ERR_INTERRUPTED: a signal
 * came. */
static Status eval_batches(Trainer *t, EvalSum *out)
{
    const Program *program = plan_program(t->plan, &entry_eval);
    Loader        *loader = t->data.eval;
    size_t         cells = (size_t)(program->spec.batch * program->spec.seq);
    int64_t        most = t->config->eval_max_batches;
    loader_seek(loader, 0);
    TRY(stepper_gather(&t->stepper));
    for (int64_t first = 0; most == 0 || first < most; first += t->place.world) {
        const Feeds *batch;
        TRY(loader_next(loader, &batch));
        if (!batch) break;
        TRY(agree_on_signal(t));
        FAIL_IF(t->signal, ERR_INTERRUPTED, "evaluation was interrupted");
        trainer_beat(t, "evaluating");
        TRY(session_feed(t->session, program, batch));
        TRY(session_run(t->session, program));
        TRY(session_output(t->session, program, "losses", t->data.losses, cells * sizeof(float)));
        if (most > 0 && first + t->place.rank >= most) break;
        for (size_t k = 0; k < cells; k++)
            if (batch->labels[k] != LABEL_IGNORE) out->loss += t->data.losses[k];
        out->tokens += batch->num_tokens;
        out->trained += batch->num_trained;
    }
    return OK;
}

/* Replaces this rank's sums by the sums over all ranks, added in rank order. */
static Status share_eval(Trainer *t, EvalSum *sum)
{
    EvalSum own = *sum, *all = t->from_ranks;
    if (!t->comm) return OK;
    TRY(comm_all_gather(t->comm, &own, all, sizeof own));
    *sum = (EvalSum){0};
    for (int r = 0; r < t->place.world; r++) {
        sum->loss += all[r].loss;
        sum->tokens += all[r].tokens;
        sum->trained += all[r].trained;
    }
    return OK;
}

/* Writes the evaluation to the log files and to the screen. */
static void tell_eval(Trainer *t, const EvalMetrics *eval)
{
    log_line(t, metrics_eval(t->metrics, eval));
    if (t->events) log_event(t, event_file_eval(t->events, eval));
    progress_eval(eval, &t->trend);
}

/* Records whether the evaluation is the best so far, and whether its checkpoint is to be kept. */
static void judge_eval(Trainer *t, EvalMetrics *eval)
{
    BestEval before = t->state.best;
    eval->is_best = best_take(t->config, eval->step, eval->loss, &t->state);
    if (eval->is_best && best_is_kept(t->config)) {
        t->has_new_best = true;
        t->best_before = before;
    }
}

static Status run_eval(Trainer *t)
{
    double      start = clock_seconds();
    EvalSum     sum = {0};
    EvalMetrics eval = {.step = t->state.step, .epoch = loader_epoch(t->data.train, t->state.step)};
    Status      status = eval_batches(t, &sum);
    if (status == ERR_INTERRUPTED) {
        status_clear();
        return OK; /* the evaluation stays pending and is repeated on resume */
    }
    TRY(status);
    TRY(share_eval(t, &sum));
    eval.tokens = sum.tokens;
    eval.trained = sum.trained;
    eval.loss = sum.trained ? sum.loss / (double)sum.trained : NAN;
    eval.seconds = clock_seconds() - start;
    t->last_eval_loss = eval.loss;
    t->state.eval_pending = false;
    eval_trend_eval(&t->trend, eval.step, eval.loss);
    judge_eval(t, &eval);
    if (trainer_leads(t)) tell_eval(t, &eval);
    if (t->config->generate_samples == 0 || !t->hooks->sample) return OK;
    trainer_beat(t, "making samples");
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
    return step == t->schedule.total || (t->eval_every > 0 && step % t->eval_every == 0);
}

/* ---- the loop ---- */

static Status interrupted(Trainer *t)
{
    Status status = trainer_is_saved(t) ? trainer_leave_branch(t) : trainer_save(t);
    FAIL_IF(status != OK, ERR_SAVE, "interrupted at step %lld, and the state couldn't be saved: %s", (long long)t->state.step,
            status_message());
    t->has_agreed = true;
    FAIL(ERR_INTERRUPTED, "interrupted after step %lld of %lld; %s goes on from there", (long long)t->state.step,
         (long long)t->schedule.total, trainer_same_command(t));
}

static void tell_step(Trainer *t, const StepMetrics *step)
{
    log_line(t, metrics_step(t->metrics, step));
    if (t->events) log_event(t, event_file_step(t->events, step));
    if (t->progress.steps == 0 && !log_is_terminal()) log_info("first step %.2f s after the start", clock_seconds() - t->start_seconds);
    progress_step(&t->progress, step);
    if (t->hooks->step_end) t->hooks->step_end(t->hooks->context, step->step - 1);
}

/* Logs the GPU memory used beside the plan; called once every program has run. */
static Status tell_beside(Trainer *t)
{
    StrBuf  text = {0};
    int64_t own, world = t->place.world, *all = arena_array(&t->arena, int64_t, world);
    t->has_told_beside = true;
    TRY(session_beside_bytes(t->session, &own));
    all[0] = own;
    if (t->comm) TRY(comm_all_gather(t->comm, &own, all, sizeof own));
    for (int64_t r = 0; r < world; r++) strbuf_printf(&text, "%s%.2f", r ? ", " : "", (double)all[r] / (1 << 30));
    if (trainer_leads(t) && all[0]) log_info("context and libraries take %s GiB beside the plan", text.data);
    strbuf_deinit(&text);
    return OK;
}

/* Raises the time that a rank may take without a beat to a multiple of the longest step. */
static void allow_seconds(Trainer *t, double step_seconds)
{
    double seconds = TIMES_LONGEST * step_seconds;
    if (isinf(t->allowed_seconds) || seconds > t->allowed_seconds) t->allowed_seconds = seconds;
}

/* Awaits the oldest queued step; logs and shows its result. */
static Status finish_step(Trainer *t)
{
    StepMetrics step;
    TRY(trainer_await_step(t, &step));
    if (!t->has_told_beside) TRY(tell_beside(t));
    allow_seconds(t, step.seconds);
    if (trainer_leads(t)) tell_step(t, &step);
    if (t->limit.is_beaten) step_limit_measure(&t->limit);
    t->state.eval_pending = eval_due(t, t->state.step);
    return check_divergence(t, &step);
}

/* Finishes steps until at most `most_queued` are left. If the run diverged, the remaining queued steps are logged too. */
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

/* Whether evaluating, saving or ending follows the last queued step, so that all queued steps must be finished first. */
static bool must_finish(const Trainer *t)
{
    int64_t step = trainer_next_step(t);
    return step >= t->schedule.total || eval_due(t, step) || trainer_save_due(t, step) || t->signal;
}

/* Evaluates and saves, if either is due. */
static Status between_steps(Trainer *t)
{
    bool evaluates = t->state.eval_pending && !t->signal;
    if (evaluates) {
        TRY(run_eval(t));
        step_limit_measure(&t->limit);
        TRY(agree_on_signal(t));
    }
    if (trainer_save_due(t, t->state.step) && !t->signal) {
        TRY(trainer_save_or_warn(t));
        TRY(agree_on_signal(t));
    }
    if (evaluates && !t->state.eval_pending && trainer_leads(t)) trainer_report(t, false);
    return t->signal ? interrupted(t) : OK;
}

/* Whether no further step is made. If the run ends early, logs why. */
static bool is_over(const Trainer *t)
{
    if (t->state.step >= t->schedule.total) return true;
    if (!best_ends(t->config, &t->state)) return false;
    if (!trainer_leads(t)) return true;
    StrBuf said = {0};
    strbuf_printf(&said, "early_stopping_patience: %lld evaluations in a row weren't better", (long long)t->state.evals_since);
    if (t->config->early_stopping_threshold > 0) strbuf_printf(&said, " by more than %g", t->config->early_stopping_threshold);
    if (t->state.best.step) strbuf_printf(&said, "; the best is that of step %lld", (long long)t->state.best.step);
    log_info("%s; the run ends at step %lld of %lld", said.data, (long long)t->state.step, (long long)t->schedule.total);
    strbuf_deinit(&said);
    return true;
}

Status train_loop(Trainer *t)
{
    int most_queued = t->device->api->is_synchronous ? 0 : STEPS_AHEAD;
    if (t->place.is_first_here) signals_set_resumable(true);
    t->saved_at = clock_seconds();
    trainer_beat(t, "training");
    TRY(stepper_gather(&t->stepper));
    TRY(calibrate(t));
    for (;;) {
        TRY(finish_steps(t, must_finish(t) ? 0 : most_queued));
        TRY(agree_on_signal(t));
        if (t->num_queued == 0) {
            TRY(between_steps(t));
            if (is_over(t)) break;
        }
        trainer_beat(t, "training");
        if (!must_finish(t) || t->num_queued == 0) TRY(queue_step(t));
    }
    return OK;
}
