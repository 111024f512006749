/* surogate tokenize run.yaml: the shards that pt would make at its start. */
#include "cli/cli.h"

#include "model/hf_model.h"
#include "train/run_data.h"

static Status tokenize(Arena *arena, const Config *config)
{
    HfModel   *model;
    Tokenizer *tokenizer;
    TRY(config_require(config, KEY_run_model, "the folder of the model, or of its tokenizer"));
    TRY(config_require(config, KEY_run_datasets, "the texts to tokenize"));
    const char *dir = config->tokenizer ? config->tokenizer : config->model;
    if (file_exists(arena_printf(arena, "%s/config.json", config->model))) TRY(hf_model_open(arena, config->model, &model));
    TRY(tokenizer_load(dir, &tokenizer));
    Status status = run_data_tokenize(config, tokenizer, dir);
    tokenizer_destroy(tokenizer);
    return status;
}

Status cmd_tokenize(CliArgs *args)
{
    bool done;
    TRY(cli_parse(args, NULL, 0, true, &done));
    if (done) return OK;
    Config config;
    Arena  arena = { 0 };
    TRY(cli_config(args, &config));
    Status status = tokenize(&arena, &config);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}
