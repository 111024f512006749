/* See train_command.h. */
#include "cli/train_command.h"

#include "base/log.h"
#include "cli/ray.h"
#include "train/samples.h"

#include <math.h>

static void tell_evaluations(const TrainOutcome *outcome)
{
    const EvalTrend *trend = &outcome->trend;
    if (!isfinite(outcome->eval_loss)) return;
    if (trend->best_step == trend->last_step)
        log_info("evaluation loss %.4f, the best", outcome->eval_loss);
    else
        log_info("evaluation loss %.4f; the best was %.4f at step %lld", outcome->eval_loss, trend->best, (long long)trend->best_step);
    if (eval_trend_overfits(trend))
        log_warn("the model overfits: since step %lld the training loss fell from %.4f to %.4f and the evaluation loss rose. Train for "
                 "fewer steps "
                 "(num_epochs, max_steps), lower learning_rate, or add data",
                 (long long)trend->best_step, trend->train_best, trend->train_last);
}

/* Describes which weights output_dir holds, if the run file uses best evaluations. */
static void describe_weights(const Config *config, const TrainOutcome *outcome, StrBuf *out)
{
    const char *dir = config->output_dir;
    long long   held = outcome->held_step, best = outcome->best_step;
    bool        is_kept = config->save_best || config->load_best_model_at_end;
    if (!is_kept && config->early_stopping_patience == 0) return;
    if (best == 0)
        strbuf_printf(out, ": the weights of step %lld, the last; no evaluation was a best one", held);
    else if (held == best)
        strbuf_printf(out, ": the weights of step %lld, the best evaluation", held);
    else
        strbuf_printf(out, ": the weights of step %lld, the last", held);
    if (best && held == best && outcome->steps != best)
        strbuf_printf(out, "; those of the last step are in %s/checkpoint-%lld", dir, (long long)outcome->steps);
    else if (best && held != best && is_kept)
        strbuf_printf(out, "; those of the best evaluation are in %s/checkpoint-%lld", dir, best);
    else if (best && held != best)
        strbuf_printf(out, "; the best evaluation was that of step %lld (save_best keeps it)", best);
}

static void tell_outcome(const Config *config, const TrainOutcome *outcome)
{
    const char *dir = config->output_dir;
    StrBuf      held = {0};
    if (outcome->already_finished) {
        log_info("%s holds this run, and it is finished. To train again, name another output_dir or set resume_from_checkpoint: false",
                 dir);
        return;
    }
    if (isfinite(outcome->loss))
        log_info("done: %lld steps, loss %.4f", (long long)outcome->steps, outcome->loss);
    else
        log_info("done: %lld steps", (long long)outcome->steps);
    tell_evaluations(outcome);
    strbuf_printf(&held, "%s %s", config->lora ? "adapter" : "model  ", dir);
    describe_weights(config, outcome, &held);
    log_info("%s\nlog     %s/metrics.jsonl\nreport  %s/report.html", held.data, dir, dir);
    strbuf_deinit(&held);
    if (str_list_has(&config->report_to, choice_text(OPT_REPORT_TO_TENSORBOARD))) log_info("events  %s/runs", dir);
    if (config->lora && config->merge_adapter) log_info("merged  %s/merged", dir);
}

/* Appends a word, quoted for a shell. */
static void put_word(StrBuf *out, const char *word)
{
    strbuf_putc(out, ' ');
    if (*word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,/:@%")]) {
        strbuf_puts(out, word);
        return;
    }
    strbuf_putc(out, '\'');
    for (; *word; word++) {
        if (*word == '\'')
            strbuf_puts(out, "'\\''");
        else
            strbuf_putc(out, *word);
    }
    strbuf_putc(out, '\'');
}

/* Adds the command that resumes the run to the message. It may set a key twice: the later value wins. */
static Status with_command(const CliArgs *args, Status status)
{
    StrBuf line = {0};
    strbuf_printf(&line, "%s\nto go on: surogate %s", status_message(), args->command);
    for (int i = 0; i < args->argc; i++) put_word(&line, args->argv[i]);
    strbuf_puts(&line, " resume_from_checkpoint=auto");
    status = status_fail(status, "%s", line.data);
    strbuf_deinit(&line);
    return status;
}

Status cli_train(CliArgs *args)
{
    bool       done, is_on_ray = false;
    const Flag flags[] = {{RAY_FLAG, FLAG_SWITCH, &is_on_ray, NULL, "train on the nodes of a Ray cluster, as the keys of distributed say"}};
    TRY(cli_parse(args, flags, 1, true, &done));
    if (done) return OK;
    Config config;
    TRY(cli_config(args, &config));
    if (is_on_ray || config.ray_address) {
        Status status = ray_start(args, &config);
        config_deinit(&config);
        return status;
    }
    TrainOutcome outcome;
    Status       status = train_with_samples(&config, &outcome);
    if (status == OK && outcome.rank == 0) tell_outcome(&config, &outcome);
    if ((status == ERR_INTERRUPTED || status == ERR_SAVE) && !train_goes_on(&config)) status = with_command(args, status);
    config_deinit(&config);
    return status;
}
