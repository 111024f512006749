/* surogate pt run.yaml: pre-training and continued training on text. */
#include "cli/cli.h"

#include "base/log.h"
#include "cli/samples.h"
#include "train/trainer.h"

#include <math.h>

Status cmd_pt(CliArgs *args)
{
    bool done;
    TRY(cli_parse(args, NULL, 0, true, &done));
    if (done) return OK;
    Config config;
    TRY(cli_config(args, &config));
    Samples      samples;
    TrainOutcome outcome;
    TrainHooks   hooks = { .context = &samples, .sample = samples_generate };
    samples_init(&samples, &config);
    Status status = train_run(&config, &hooks, &outcome);
    samples_deinit(&samples);
    if (status == OK && outcome.already_finished) {
        log_info("%s holds this run, finished. To train again name another output_dir, or set resume_from_checkpoint: false", config.output_dir);
    } else if (status == OK) {
        log_info("done: %lld steps, loss %.4f", (long long)outcome.steps, outcome.loss);
        if (isfinite(outcome.eval_loss)) log_info("evaluation loss %.4f", outcome.eval_loss);
        log_info("model   %s\nlog     %s/metrics.jsonl\nreport  %s/report.html", config.output_dir, config.output_dir, config.output_dir);
    }
    config_deinit(&config);
    return status;
}
