/* surogate inspect DATASET --model MODEL_DIR: ids and mask of every row, or a view for people. surogate inspect MODEL_DIR: how the folder's
 * weights are stored, and how many texts the model can decode at once. */

#include "cli/inspect_view.h"
#include "cli/model_flags.h"
#include "fit/decoding.h"
#include "model/hf_model.h"
#include "setup/setup.h"
#include "train/run_data.h"

static Status inspect(Arena *arena, const Config *config, InspectView *view)
{
    Tokenizer  *tokenizer;
    Template   *tmpl = NULL;
    const char *model;
    TRY(setup_view_tokenizer(arena, config, &model, &tokenizer));
    view->packing = run_data_packing(config, setup_run_length(arena, config, model));
    int64_t began;
    Status  status = run_data_began(config, &began);
    if (status == OK) status = run_data_template(config, model, began, &tmpl);
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

/* Prints a line about all weights that are stored in one way. */
static void print_stored(StrBuf *out, const char *name, const char *detail, size_t tensors, double numel, double bytes)
{
    if (tensors)
        strbuf_printf(out, "%-10s %s%s: %zu tensors of %.0f numbers, %.3f bits each\n", "stored", name, detail, tensors, numel,
                      8 * bytes / numel);
}

static Status print_weights(HfModel *model, StrBuf *out)
{
    TRY(hf_model_open_weights(model));
    size_t count[2] = {0};
    double numel[2] = {0}, bytes[2] = {0};
    bool   doubled = false;
    for (size_t i = 0; i < st_count(model->weights); i++) {
        const StTensor        *tensor = st_at(model->weights, i);
        const QuantisedTensor *q = quantised_of(tensor);
        count[q != NULL]++;
        numel[q != NULL] += (double)tensor->numel;
        bytes[q != NULL] += (double)tensor->bytes;
        for (int k = 0; q && k < q->made.num_parts; k++) bytes[1] += (double)q->parts[k].bytes;
        doubled |= q && q->format == QUANTISED_NF4 && q->made.num_parts == 3;
    }
    strbuf_printf(out, "%-10s %s\n", "model", model->dir);
    print_stored(out, quantised_name(model->format), doubled ? ", double quantisation" : "", count[1], numel[1], bytes[1]);
    print_stored(out, "numbers", "", count[0], numel[0], bytes[0]);
    return OK;
}

typedef struct DecodingArgs {
    const char *gpu, *quantization, *kv;
    int64_t     context; /* 0: not given */
} DecodingArgs;

static Status print_decoding(HfModel *model, const DecodingArgs *args, StrBuf *out)
{
    enum { CONTEXT = 4096 };
    int64_t     most = model->max_positions, context = args->context ? args->context : most < CONTEXT ? most : CONTEXT;
    InferModel  infer = {.model = model};
    DecodingFit fit;
    FAIL_IF(context < 1 || context > most, ERR_INVALID, "--context %lld: expected 1 to %lld, for which the model was made",
            (long long)context, (long long)most);
    TRY(args->gpu ? device_null_create(args->gpu, &infer.device) : device_open("auto", 0, 0, &infer.device));
    infer_set_options(&infer);
    Status status = infer_use_format(&infer, args->quantization);
    if (status == OK) status = infer_use_cache(&infer, args->kv);
    if (status == OK) status = fit_decoding(&infer, context, &fit);
    infer.device->api->destroy(infer.device);
    if (status == OK) fit_print_decoding(&fit, context, out);
    return status;
}

static bool asks_for_decoding(const DecodingArgs *args)
{
    return args->gpu || args->context || args->quantization || args->kv;
}

static Status inspect_model(Arena *arena, const char *dir, const DecodingArgs *decoding)
{
    HfModel *model;
    StrBuf   out = {0};
    TRY(hf_model_open(arena, dir, &model));
    Status status = print_weights(model, &out);
    if (status == OK && asks_for_decoding(decoding)) status = print_decoding(model, decoding, &out);
    if (status == OK) status = cli_print(&out);
    strbuf_deinit(&out);
    hf_model_close(model);
    return status;
}

Status cmd_inspect(CliArgs *args)
{
    const char  *model = NULL;
    int64_t      rows = -2;
    InspectView  view = {0};
    bool         done;
    DecodingArgs decoding = {0};
    const Flag   flags[] = {
          {"--model", FLAG_TEXT, &model, "DIR", "folder of the tokenizer and chat template"},
          {"--json", FLAG_SWITCH, &view.json, NULL,
           "a line a row: {\"ids\": [...], \"mask\": [...], \"row\": i}; mask is 1 where a token is trained"},
          {"--rows", FLAG_INT, &rows, "N", "rows shown; -1: all (3; all with --json)"},
          {"--gpu", FLAG_TEXT, &decoding.gpu, "NAME", "of a model: how many texts decode at once on this GPU: h200, h100, rtx4090, ..."},
          {"--context", FLAG_INT, &decoding.context, "N",
           "tokens of each text, with its prompt (4096); without --gpu: on this machine's device"},
          {"--quantization", FLAG_TEXT, &decoding.quantization, "FORMAT",
           "with --gpu or --context: with matrices kept in int8, fp8, nf4, ... (as the folder has them)"},
          KV_FLAG(&decoding.kv),
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    bool is_model = args->num_words == 1 && !model;
    if (is_model) TRY(file_exists(arena_printf(&args->arena, "%s/config.json", args->words[0]), &is_model));
    if (is_model) return inspect_model(&args->arena, args->words[0], &decoding);
    FAIL_IF(asks_for_decoding(&decoding), ERR_INVALID, "surogate inspect: --gpu, --context, --quantization and --kv need a model's folder");
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
