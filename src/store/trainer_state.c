/* See trainer_state.h. log_history holds the lines of metrics.jsonl, with Hugging Face's names for the keys. */
#include "store/trainer_state.h"

#include "base/scoped.h"

#include <math.h>
#include <string.h>

static void put(StrBuf *out, const char *key, double value)
{
    strbuf_printf(out, ", \"%s\": ", key);
    json_write_double(out, value);
}

static void begin_entry(StrBuf *out, const HistoryPoint *point)
{
    strbuf_printf(out, "%s\n    {\"step\": %lld", out->len ? "," : "", (long long)point->step);
    put(out, "epoch", point->epoch);
}

static void add_step(StrBuf *out, const HistoryPoint *point)
{
    begin_entry(out, point);
    put(out, "loss", point->loss);
    put(out, "grad_norm", point->norm);
    put(out, "learning_rate", point->lr);
    strbuf_putc(out, '}');
}

static void add_eval(StrBuf *out, const HistoryPoint *point)
{
    double seconds = point->duration_ms * 1e-3;
    begin_entry(out, point);
    put(out, "eval_loss", point->loss);
    put(out, "eval_runtime", seconds);
    put(out, "eval_tokens_per_second", seconds > 0 ? point->tokens / seconds : 0);
    strbuf_putc(out, '}');
}

/* The run's last step, unless it is logged anyway: it gets an entry whatever logging_steps is. NULL: no extra entry. */
static const HistoryPoint *end_of(const History *h, const TrainerFacts *facts)
{
    bool is_end = h->steps.seen && (h->steps.last.step == facts->max_steps || facts->finished);
    return is_end && h->steps.last.step % h->logging_steps != 0 ? &h->steps.last : NULL;
}

/* Appends the steps in order, and each evaluation after its step. */
static void add_entries(StrBuf *out, const History *h, const TrainerFacts *facts)
{
    const HistoryPoint *end = end_of(h, facts);
    int64_t num_logged = history_count(&h->logged), num_steps = num_logged + (end != NULL), num_evals = history_count(&h->evals);
    for (int64_t s = 0, e = 0; s < num_steps || e < num_evals;) {
        const HistoryPoint *step = s == num_steps ? NULL : s == num_logged ? end : history_at(&h->logged, s);
        const HistoryPoint *eval = e == num_evals ? NULL : history_at(&h->evals, e);
        if (step && (!eval || step->step <= eval->step)) {
            add_step(out, step);
            s++;
        } else {
            add_eval(out, eval);
            e++;
        }
    }
}

static void add_closing(StrBuf *out, const TrainState *state, const TrainerFacts *facts, const History *h)
{
    strbuf_printf(out, "%s\n    {\"step\": %lld", out->len ? "," : "", (long long)state->step);
    put(out, "epoch", facts->epoch);
    put(out, "train_loss", h->num_steps ? h->loss_sum / (double)h->num_steps : (double)NAN);
    put(out, "train_runtime", h->seconds);
    put(out, "train_samples_per_second", h->seconds > 0 ? (double)(h->num_steps * facts->rows_per_step) / h->seconds : 0);
    put(out, "train_tokens_per_second", h->seconds > 0 ? (double)h->tokens / h->seconds : 0);
    put(out, "train_steps_per_second", h->seconds > 0 ? (double)h->num_steps / h->seconds : 0);
    put(out, "total_flos", facts->flops_per_step * (double)state->step);
    strbuf_putc(out, '}');
}

static void write_best(StrBuf *out, const EvalTrend *trend, const TrainerFacts *facts)
{
    int64_t step = facts->best_step ? facts->best_step : trend->best_step;
    strbuf_puts(out, "{\n  \"best_global_step\": ");
    if (step)
        strbuf_printf(out, "%lld", (long long)step);
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ",\n  \"best_metric\": ");
    json_write_double(out, facts->best_step ? facts->best_metric : step ? trend->best : NAN);
    strbuf_puts(out, ",\n  \"best_model_checkpoint\": ");
    if (facts->best_checkpoint)
        json_write_string(out, facts->best_checkpoint, strlen(facts->best_checkpoint));
    else
        strbuf_puts(out, "null");
}

void trainer_state_text(const History *history, const TrainState *state, const TrainerFacts *facts, StrBuf *out)
{
    static const History none = {.logging_steps = 1};
    const History       *h = history ? history : &none;
    SCOPED_STRBUF(entries);
    add_entries(&entries, h, facts);
    if (facts->finished) add_closing(&entries, state, facts, h);
    write_best(out, &h->trend, facts);
    strbuf_puts(out, ",\n  \"epoch\": ");
    json_write_double(out, facts->epoch);
    strbuf_printf(out,
                  ",\n  \"eval_steps\": %lld,\n  \"global_step\": %lld,\n  \"is_hyper_param_search\": false,\n"
                  "  \"is_local_process_zero\": true,\n  \"is_world_process_zero\": true,\n  \"log_history\": [%s\n  ],\n",
                  (long long)facts->eval_steps, (long long)state->step, strbuf_cstr(&entries));
    strbuf_printf(out, "  \"logging_steps\": %lld,\n  \"max_steps\": %lld,\n  \"num_input_tokens_seen\": %lld,\n  \"num_train_epochs\": ",
                  (long long)facts->logging_steps, (long long)facts->max_steps, (long long)state->total_tokens);
    json_write_double(out, facts->num_epochs);
    strbuf_printf(out, ",\n  \"save_steps\": %lld,\n  \"total_flos\": ", (long long)facts->save_steps);
    json_write_double(out, facts->flops_per_step * (double)state->step);
    strbuf_printf(out, ",\n  \"train_batch_size\": %lld,\n  \"trial_name\": null,\n  \"trial_params\": null\n}\n",
                  (long long)facts->batch_size);
}
