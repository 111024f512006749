/* surogate inspect DATASET --model MODEL_DIR: ids and mask of every row, or the view for people. */
#include "cli/cli.h"

#include "cli/inspect_view.h"
#include "setup/setup.h"
#include "train/run_data.h"
#include "train/run_record.h"

static Status inspect(Arena *arena, const Config *config, InspectView *view)
{
    Tokenizer  *tokenizer;
    Template   *tmpl = NULL;
    const char *model;
    TRY(setup_tokenizer_dir(arena, config, &model));
    TRY(tokenizer_load(model, &tokenizer));
    view->packing = run_data_packing(config, setup_run_length(arena, config, model));
    Status         status = run_data_template(config, model, run_record_began(config), &tmpl);
    DatasetOptions options;
    if (status == OK) status = run_data_options(config, &config->datasets.items[0], &options);
    if (status == OK) {
        TokenizeJob job = {.dataset = &options, .tokenizer = tokenizer, .tmpl = tmpl};
        status = inspect_view_print(&job, view);
    }
    if (tmpl) template_destroy(tmpl);
    tokenizer_destroy(tokenizer);
    return status;
}

Status cmd_inspect(CliArgs *args)
{
    const char *model = NULL;
    int64_t     rows = -2;
    InspectView view = {0};
    bool        done;
    const Flag  flags[] = {
         {"--model", FLAG_TEXT, &model, "DIR", "whose tokenizer and chat template are used"},
         {"--json", FLAG_SWITCH, &view.json, NULL,
          "a line a row: {\"ids\": [...], \"mask\": [...], \"row\": i}; mask is 1 where a token is trained"},
         {"--rows", FLAG_INT, &rows, "N", "rows shown; -1: all (3; all with --json)"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    FAIL_IF(args->num_words < 1 || !model, ERR_INVALID, "usage: surogate inspect %s", args->arguments);
    FAIL_IF(rows < -2, ERR_INVALID, "--rows %lld: expected a number of rows, or -1 for all", (long long)rows);
    Config config;
    TRY(cli_dataset_config(args, args->words[0], 1, &config));
    config.model = model;
    view.rows = rows == -2 ? (view.json ? -1 : 3) : rows;
    Status status = inspect(&args->arena, &config, &view);
    config_deinit(&config);
    return status;
}
