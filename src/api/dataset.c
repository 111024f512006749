/* The micro-batches of a run, as training reads them. */
#include "api/api.h"

#include "setup/lora.h"
#include "setup/setup.h"
#include "train/run_data.h"
#include "train/signals.h"

struct sg_dataset {
    Config     config;
    Arena      arena;
    HfModel   *model;
    Tokenizer *tokenizer;
    RunData    data;
    Loader    *loader;                 /* the loader of `data` to read from: train or eval */
    sg_input   inputs[IR_MOST_INPUTS]; /* the model's own inputs that the data gives; arrays belong to the current batch */
    int        places[IR_MOST_INPUTS]; /* index of each input in IrModule.inputs */
    int        num_inputs;
    int64_t    micro_batches, steps;
};

static bool all_give(const ShardSet *sets, int count, const char *input)
{
    bool do_all = true;
    for (int i = 0; i < count; i++) do_all &= shard_set_column(&sets[i], input, NULL) >= 0;
    return do_all;
}

static void find_inputs(sg_dataset *d, bool of_eval_sets)
{
    const IrModule *module = d->model->module;
    const ShardSet *sets = of_eval_sets ? d->data.eval_sets : d->data.train_sets;
    int             count = of_eval_sets ? d->data.num_eval_sets : d->data.num_train_sets;
    for (int i = 0; i < module->num_inputs; i++) {
        if (!all_give(sets, count, module->inputs[i].name)) continue;
        d->places[d->num_inputs] = i;
        d->inputs[d->num_inputs++].name = module->inputs[i].name;
    }
}

static Status open_data(sg_dataset *d, sg_part part)
{
    const Config  *config = &d->config;
    const char    *tokenizer_dir;
    CompileOptions options;
    FAIL_IF(config->world_size > 1, ERR_UNSUPPORTED, "a data set is of the ranks of one process: leave world_size out");
    TRY(config_require(config, KEY_run_datasets, "a data set"));
    TRY(setup_view_model(&d->arena, config, &d->model));
    TRY(setup_options(&d->arena, config, d->model, &options));
    TRY(setup_check_datasets(&d->arena, config, true));
    TRY(setup_view_tokenizer(&d->arena, config, &tokenizer_dir, &d->tokenizer));
    int64_t began;
    TRY(run_data_began(config, &began));
    TRY(run_data_open(config, &options, d->tokenizer, tokenizer_dir, began, d->model, (RowShare){.world = 1, .together = (int)config->gpus},
                      &d->data));
    bool trains = part == SG_TRAIN;
    FAIL_IF(!trains && !d->data.eval, ERR_INVALID, "there is no validation data: set validation_datasets or validation_split_ratio");
    d->loader = trains ? d->data.train : d->data.eval;
    find_inputs(d, !trains && d->data.num_eval_sets > 0);
    d->micro_batches = trains ? config->gradient_accumulation_steps : 1;
    d->steps = trains ? d->data.total_steps : loader_num_steps(d->loader);
    return OK;
}

static Status open_dataset(const char *const *args, size_t num_args, sg_part part, sg_dataset **out)
{
    int64_t begun = signals_begin();
    TRY(api_need(out, "out_dataset"));
    TRY(api_need_args(args, num_args));
    FAIL_IF(part != SG_TRAIN && part != SG_VALIDATION, ERR_INVALID, "part %d; expected SG_TRAIN or SG_VALIDATION", (int)part);
    sg_dataset *dataset = api_allocate(sizeof *dataset);
    Status      status = config_load_args(args, num_args, &dataset->config, NULL);
    if (status != OK) {
        sg_free(dataset);
        return status;
    }
    dataset->config.begun = begun;
    status = setup_adapter(&dataset->config);
    if (status == OK) status = open_data(dataset, part);
    if (status == OK)
        *out = dataset;
    else
        sg_dataset_close(dataset);
    return status;
}

sg_status sg_dataset_open(const char *const *args, size_t num_args, sg_part part, sg_dataset **out_dataset)
{
    api_begin();
    return api_end(open_dataset(args, num_args, part, out_dataset));
}

void sg_dataset_close(sg_dataset *dataset)
{
    if (!dataset) return;
    run_data_close(&dataset->data);
    if (dataset->tokenizer) tokenizer_destroy(dataset->tokenizer);
    hf_model_close(dataset->model);
    config_deinit(&dataset->config);
    arena_deinit(&dataset->arena);
    sg_free(dataset);
}

static Status tell_info(const sg_dataset *dataset, sg_dataset_info *out)
{
    TRY(api_need(dataset, "dataset"));
    TRY(api_need(out, "out_info"));
    const LoaderStats *stats = loader_stats(dataset->loader);
    *out = (sg_dataset_info){.steps = dataset->steps,
                             .micro_batches = dataset->micro_batches,
                             .documents = stats->num_used,
                             .rows = stats->num_rows,
                             .tokens = stats->num_tokens,
                             .trained = stats->num_trained,
                             .batch_rows = loader_rows_per_step(dataset->loader) / dataset->micro_batches,
                             .cols = loader_row_len(dataset->loader),
                             .seed = dataset->config.seed};
    return OK;
}

sg_status sg_dataset_get_info(sg_dataset *dataset, sg_dataset_info *out_info)
{
    api_begin();
    return api_end(tell_info(dataset, out_info));
}

static Status seek(sg_dataset *dataset, int64_t step)
{
    TRY(api_need(dataset, "dataset"));
    FAIL_IF(step < 0 || step > dataset->steps, ERR_INVALID, "step %lld; expected 0 to %lld", (long long)step, (long long)dataset->steps);
    loader_seek(dataset->loader, step);
    return OK;
}

sg_status sg_dataset_seek(sg_dataset *dataset, int64_t step)
{
    api_begin();
    return api_end(seek(dataset, step));
}

int64_t sg_dataset_input_size(sg_dataset *dataset, const char *name)
{
    for (int i = 0; dataset && name && i < dataset->num_inputs; i++)
        if (strcmp(dataset->inputs[i].name, name) == 0) return dataset->model->module->inputs[dataset->places[i]].size;
    return 0;
}

static Status next(sg_dataset *dataset, sg_batch *out)
{
    const Feeds *batch;
    TRY(api_need(dataset, "dataset"));
    TRY(api_need(out, "out_batch"));
    *out = (sg_batch){0};
    TRY(loader_next(dataset->loader, &batch));
    if (!batch || batch->step_index >= dataset->steps) return OK;
    for (int i = 0; i < dataset->num_inputs; i++) {
        void *numbers = batch->array[FEED_COUNT + dataset->places[i]];
        bool  is_whole = dataset->model->module->inputs[dataset->places[i]].dtype == DT_I32;
        dataset->inputs[i].ids = is_whole ? numbers : NULL;
        dataset->inputs[i].values = is_whole ? NULL : numbers;
    }
    *out = (sg_batch){.rows = loader_rows_per_step(dataset->loader) / dataset->micro_batches,
                      .cols = loader_row_len(dataset->loader),
                      .ids = batch->tokens,
                      .targets = batch->labels,
                      .segments = batch->doc_id,
                      .positions = batch->positions,
                      .inputs = dataset->inputs,
                      .num_inputs = (size_t)dataset->num_inputs};
    return OK;
}

sg_status sg_dataset_next(sg_dataset *dataset, sg_batch *out_batch)
{
    api_begin();
    return api_end(next(dataset, out_batch));
}
