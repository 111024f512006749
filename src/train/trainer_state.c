/* The log history is metrics.jsonl under other names. */
#include "train/trainer_state.h"

#include "train/eval_trend.h"

#include <math.h>

static double get(const JsonValue *line, const char *key)
{
    double value = NAN;
    json_get_double(line, key, &value);
    return value;
}

static void put(StrBuf *out, const char *key, double value)
{
    strbuf_printf(out, ", \"%s\": ", key);
    json_write_double(out, value);
}

typedef struct Totals {
    EvalTrend trend;
    double    loss_sum, seconds;
    int64_t   steps, tokens, entries;
} Totals;

static void add_line(StrBuf *out, const JsonValue *line, const TrainerFacts *facts, Totals *totals)
{
    const char *log = "";
    int64_t     step = 0;
    json_get_str(line, "log", &log);
    json_get_int(line, "step", &step);
    bool is_step = log[0] == 's' && log[1] == 't', is_eval = log[0] == 'e';
    if (is_step) {
        totals->steps++;
        totals->loss_sum += isfinite(get(line, "loss")) ? get(line, "loss") : 0;
        totals->seconds += get(line, "duration_ms") * 1e-3;
        totals->tokens += (int64_t)get(line, "step_tokens");
    }
    eval_trend_line(&totals->trend, line);
    if (!is_eval && !(is_step && (step % facts->logging_steps == 0 || step == facts->max_steps))) return;
    strbuf_printf(out, "%s\n    {\"step\": %lld", totals->entries++ ? "," : "", (long long)step);
    put(out, "epoch", get(line, "epoch"));
    if (is_step) {
        put(out, "loss", get(line, "loss"));
        put(out, "grad_norm", get(line, "norm"));
        put(out, "learning_rate", get(line, "lr"));
    } else {
        double seconds = get(line, "duration_ms") * 1e-3;
        put(out, "eval_loss", get(line, "loss"));
        put(out, "eval_runtime", seconds);
        put(out, "eval_tokens_per_second", seconds > 0 ? get(line, "eval_tokens") / seconds : 0);
    }
    strbuf_putc(out, '}');
}

static void add_closing(StrBuf *out, const TrainState *state, const TrainerFacts *facts, const Totals *totals)
{
    strbuf_printf(out, "%s\n    {\"step\": %lld", totals->entries ? "," : "", (long long)state->step);
    put(out, "epoch", facts->epoch);
    put(out, "train_loss", totals->steps ? totals->loss_sum / (double)totals->steps : NAN);
    put(out, "train_runtime", totals->seconds);
    put(out, "train_samples_per_second", totals->seconds > 0 ? (double)(totals->steps * facts->rows_per_step) / totals->seconds : 0);
    put(out, "train_tokens_per_second", totals->seconds > 0 ? (double)totals->tokens / totals->seconds : 0);
    put(out, "train_steps_per_second", totals->seconds > 0 ? (double)totals->steps / totals->seconds : 0);
    put(out, "total_flos", facts->flops_per_step * (double)state->step);
    strbuf_putc(out, '}');
}

Status trainer_state_text(const char *metrics_path, const TrainState *state, const TrainerFacts *facts, StrBuf *out)
{
    Arena          arena = {0};
    MetricsHistory history;
    StrBuf         entries = {0};
    Totals         totals = {0};
    Status         status = metrics_read(&arena, metrics_path, &history);
    for (size_t i = 0; status == OK && i < history.count; i++) add_line(&entries, &history.lines[i], facts, &totals);
    if (status == OK && facts->finished) add_closing(&entries, state, facts, &totals);
    strbuf_puts(out, "{\n  \"best_global_step\": ");
    if (totals.trend.best_step)
        strbuf_printf(out, "%lld", (long long)totals.trend.best_step);
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ",\n  \"best_metric\": ");
    json_write_double(out, totals.trend.best_step ? totals.trend.best : NAN);
    strbuf_puts(out, ",\n  \"best_model_checkpoint\": null,\n  \"epoch\": ");
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
    strbuf_deinit(&entries);
    arena_deinit(&arena);
    return status;
}
