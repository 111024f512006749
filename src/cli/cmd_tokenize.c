/* surogate tokenize run.yaml: makes the shards that pt or sft would make first. */
#include "cli/cli.h"

#include "cli/inspect_view.h"
#include "model/hf_model.h"
#include "setup/setup.h"
#include "train/run_data.h"

static Status show(const Config *config, const Tokenizer *tokenizer, const char *dir, int64_t began, int64_t seq_len)
{
    Template *tmpl;
    TRY(run_data_template(config, dir, began, &tmpl));
    InspectView view = {.rows = 3, .packing = run_data_packing(config, seq_len)};
    Status      status = OK;
    for (size_t i = 0; i < config->datasets.count && status == OK; i++) {
        DatasetOptions options;
        TokenizeJob    job = {.dataset = &options, .tokenizer = tokenizer, .tmpl = tmpl};
        status = run_data_options(config, &config->datasets.items[i], &options);
        if (status == OK) status = inspect_view_print(&job, &view);
    }
    if (tmpl) template_destroy(tmpl);
    return status;
}

static Status tokenize(Arena *arena, const Config *config, bool debug)
{
    HfModel   *model;
    Tokenizer *tokenizer;
    TRY(config_require(config, KEY_run_model, "tokenizing"));
    TRY(config_require(config, KEY_run_datasets, "tokenizing"));
    const char *dir;
    bool        has_config;
    int64_t     began;
    TRY(file_exists(arena_printf(arena, "%s/config.json", config->model), &has_config));
    if (has_config) TRY(hf_model_open_as(arena, config->model, setup_ir(config), &model));
    TRY(setup_view_tokenizer(arena, config, &dir, &tokenizer));
    Status status = run_data_began(config, &began);
    if (status == OK) status = run_data_tokenize(config, tokenizer, dir, began);
    if (status == OK && debug) status = show(config, tokenizer, dir, began, setup_run_length(arena, config, config->model));
    tokenizer_destroy(tokenizer);
    return status;
}

Status cmd_tokenize(CliArgs *args)
{
    bool       debug = false, done;
    const Flag flags[] = {{"--debug", FLAG_SWITCH, &debug, NULL, "also show rows with their trained tokens, lengths and packing"}};
    TRY(cli_parse(args, flags, 1, true, &done));
    if (done) return OK;
    Config config;
    Arena  arena = {0};
    TRY(cli_config(args, &config));
    Status status = tokenize(&arena, &config, debug);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}
