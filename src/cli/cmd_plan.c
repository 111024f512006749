/* surogate plan run.yaml: what a run needs, on this machine or on a GPU that isn't here. */
#include "cli/cli.h"

#include "fit/fit.h"
#include "model/weights.h"
#include "setup/frozen_tokens.h"
#include "store/checkpoint.h"
#include "train/run_data.h"

/* Checks that the files named in the run file exist, though planning reads none of them. */
static Status check_inputs(Arena *arena, const Config *config)
{
    const char *dir;
    Template   *tmpl;
    TRY(setup_check_datasets(arena, config, false));
    if (config->tokenizer || config->chat_template) TRY(setup_view_tokenizer(arena, config, &dir, NULL));
    if (!config->chat_template) return OK;
    TRY(run_data_template(config, dir, 0, &tmpl));
    template_destroy(tmpl);
    return OK;
}

/* Makes the plan. With memory: auto, *config_ref becomes the chosen config, and *out_choices lists it and the next best. */
static Status make_plan(Arena *arena, const Config **config_ref, Device *device, MemoryChoices *out_choices, HfModel **out_model,
                        Plan **out)
{
    CompileOptions options;
    const Config  *config = *config_ref;
    TRY(setup_view_model(arena, config, out_model));
    HfModel *model = *out_model;
    TRY(check_inputs(arena, config));
    if (config->memory == OPT_MEMORY_AUTO) {
        TRY(fit_search(config, model, device, out_choices));
        *config_ref = config = &out_choices->items[0].config;
    }
    TRY(setup_options(arena, config, model, &options));
    TRY(setup_plan(arena, model, &options, device, out));
    TRY(setup_check_inputs(config, model, *out, true));
    TRY(frozen_tokens_tell(config, model, *out, NULL));
    bool has_weights;
    TRY(hf_model_has_weights(model, &has_weights));
    return config->from_scratch || !has_weights ? OK : weights_check(*out, model);
}

static double tokens_of_step(const Config *config, const HfModel *model)
{
    return (double)(config->per_device_train_batch_size * config->gradient_accumulation_steps * setup_world(config) *
                    setup_sequence_len(config, model));
}

/* Prints the speed of all ranks together; nothing if the device's rates aren't known. */
static void print_speed(const Config *config, const HfModel *model, const Plan *plan, StrBuf *out)
{
    double seconds = fit_step_seconds(plan, config->gradient_accumulation_steps);
    if (!(seconds > 0)) return;
    bool is_bound = !plan->facts.rates; /* without measured rates the time is a lower bound */
    strbuf_printf(out, "an optimizer step: %s%.3f ms, %s%.0f tokens/s", is_bound ? "at least " : "", 1e3 * seconds,
                  is_bound ? "at most " : "", tokens_of_step(config, model) / seconds);
    if (plan->world > 1) strbuf_printf(out, " of %d ranks, of which each takes the memory above", plan->world);
    strbuf_putc(out, '\n');
}

static void write_speed(const Config *config, const HfModel *model, const Plan *plan, StrBuf *out)
{
    double seconds = fit_step_seconds(plan, config->gradient_accumulation_steps);
    strbuf_printf(out, ", \"ranks\": %d", plan->world);
    if (!(seconds > 0)) return;
    strbuf_puts(out, ", \"step_seconds\": ");
    json_write_double(out, seconds);
    strbuf_puts(out, ", \"tokens_per_second\": ");
    json_write_double(out, tokens_of_step(config, model) / seconds);
}

static Status print_plan(const Config *config, const HfModel *model, Device *device, const Plan *plan, const MemoryChoices *choices,
                         bool json)
{
    StrBuf  out = {0};
    Status  fits = fit_check_memory(config, model, device, plan, false);
    int64_t disk = checkpoint_bytes(plan, config->lora);
    if (json) {
        plan_write_json(plan, &out);
        while (out.len && out.data[out.len - 1] != '}') out.len--;
        out.len--;
        strbuf_printf(&out, ", \"checkpoint_bytes\": %lld, \"fits\": %s", (long long)disk, fits == OK ? "true" : "false");
        write_speed(config, model, plan, &out);
        if (choices->count) {
            strbuf_puts(&out, ", \"choices\": ");
            fit_write_choices(choices, &out);
        }
        strbuf_puts(&out, "}\n");
    } else {
        char text[32];
        fit_print_choices(choices, &out);
        if (choices->count) strbuf_putc(&out, '\n');
        fit_print_plan(config, plan, &out);
        print_speed(config, model, plan, &out);
        strbuf_printf(&out, "\na checkpoint   %s on disk\n", size_text(disk, text));
    }
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status != OK ? status : fits;
}

Status cmd_plan(CliArgs *args)
{
    const char *gpu = NULL, *gpus = NULL;
    bool        json = false, done;
    const Flag  flags[] = {
         {"--gpu", FLAG_TEXT, &gpu, "NAME", "plan for this GPU: h200, h100, rtx4090, ..."},
         {"--gpus", FLAG_TEXT, &gpus, "N", "as gpus=N: what each of N takes, and how fast they are together"},
         {"--json", FLAG_SWITCH, &json, NULL, "as one JSON object"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof flags[0], true, &done));
    if (done) return OK;
    if (gpus) args->words[args->num_words++] = arena_printf(&args->arena, "gpus=%s", gpus); /* as a setting on the command line */
    Config config;
    TRY(cli_config(args, &config));
    Device       *device = NULL;
    HfModel      *model = NULL;
    Plan         *plan;
    Arena         arena = {0};
    const Config *settled = &config;
    MemoryChoices choices = {0};
    Status        status = setup_device(&config, gpu, &device);
    if (status == OK) status = make_plan(&arena, &settled, device, &choices, &model, &plan);
    if (status == OK) status = print_plan(settled, model, device, plan, &choices, json);
    if (model) hf_model_close(model);
    if (device) device->api->destroy(device);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}
