/* The public interface over the layers below: handles, copies of results, nothing else. */
#include "surogate.h"

#include "base/log.h"
#include "base/version.h"
#include "infer/evaluate.h"
#include "infer/generate.h"
#include "infer/samples.h"

#include <stdlib.h>
#include <string.h>

#define STATUS(code, exit_code) _Static_assert((int)code == (int)SG_##code, "sg_status follows status.def");
enum {
    SG_ERR_INTERNAL = SG_INTERNAL,
    SG_ERR_INVALID = SG_INVALID,
    SG_ERR_UNSUPPORTED = SG_UNSUPPORTED,
    SG_ERR_NOT_FOUND = SG_NOT_FOUND,
    SG_ERR_IO = SG_IO,
    SG_ERR_DEVICE = SG_DEVICE,
    SG_ERR_NO_FIT = SG_NO_FIT,
    SG_ERR_DIVERGED = SG_DIVERGED,
    SG_ERR_CHECKPOINT = SG_CHECKPOINT,
    SG_ERR_SAVE = SG_SAVE,
    SG_ERR_INTERRUPTED = SG_INTERRUPTED,
    SG_ERR_RANK = SG_RANK
};
#include "base/status.def"
#undef STATUS

struct sg_run {
    Config config;
};

struct sg_model {
    InferModel infer;
};

const char *sg_version(void)
{
    return SUROGATE_VERSION;
}

const char *sg_message(void)
{
    return status_message();
}

int sg_exit_code(sg_status status)
{
    return status_exit_code((Status)status);
}

void sg_free(void *memory)
{
    free(memory);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) fatal_out_of_memory(bytes);
    return memory;
}

/* Calls that may have something to say begin with log_mute(true) and end with this: only training prints. */
static sg_status end_quiet(Status status)
{
    log_mute(false);
    return (sg_status)status;
}

/* ---- runs ---- */

sg_status sg_run_open(const char *const *args, size_t num_args, sg_run **out_run)
{
    sg_run *run = allocate(sizeof *run);
    log_mute(true);
    Status status = config_load_args(args, num_args, &run->config, NULL);
    if (status == OK)
        *out_run = run;
    else
        free(run);
    return end_quiet(status);
}

void sg_run_close(sg_run *run)
{
    if (!run) return;
    config_deinit(&run->config);
    free(run);
}

static Status plan_run(Arena *arena, const Config *config, Device *device, StrBuf *out)
{
    HfModel       *model = NULL;
    CompileOptions options;
    Plan          *plan;
    Status         status = setup_model(arena, config, &model);
    if (status == OK) status = setup_settle(arena, config, model, device, NULL, (int)config->gpus, &config);
    if (status == OK) status = setup_options(config, model, &options);
    if (status == OK) status = setup_plan(arena, model, &options, device, &plan);
    if (status == OK) plan_write_json(plan, out);
    hf_model_close(model);
    return status;
}

sg_status sg_run_plan(sg_run *run, const char *gpu, char **out_json)
{
    Device *device = NULL;
    Arena   arena = {0};
    StrBuf  json = {0};
    log_mute(true);
    Status status = setup_device(&run->config, gpu, &device);
    if (status == OK) status = plan_run(&arena, &run->config, device, &json);
    if (device) device->api->destroy(device);
    arena_deinit(&arena);
    if (status == OK)
        *out_json = json.data;
    else
        strbuf_deinit(&json);
    return end_quiet(status);
}

sg_status sg_run_train(sg_run *run, sg_outcome *out_outcome)
{
    TrainOutcome outcome;
    Status       status = train_with_samples(&run->config, &outcome);
    if (status == OK) *out_outcome = (sg_outcome){outcome.already_finished, outcome.steps, outcome.loss, outcome.eval_loss};
    return (sg_status)status;
}

/* ---- models ---- */

sg_status sg_model_open(const char *dir, const char *adapter, const char *device, int threads, sg_model **out_model)
{
    sg_model *model = allocate(sizeof *model);
    log_mute(true);
    Status status = infer_open(&model->infer, dir, adapter, device ? device : "auto", threads);
    if (status == OK)
        *out_model = model;
    else
        sg_model_close(model);
    return end_quiet(status);
}

void sg_model_close(sg_model *model)
{
    if (!model) return;
    infer_close(&model->infer);
    free(model);
}

static Status need_tokenizer(const sg_model *model)
{
    FAIL_IF(!model->infer.tokenizer, ERR_NOT_FOUND, "the model folder has no tokenizer.json: work with ids, or copy one there");
    return OK;
}

sg_status sg_model_encode(sg_model *model, const char *text, size_t len, int32_t **out_ids, size_t *out_num)
{
    TokenIds ids = {0};
    Status   status = need_tokenizer(model);
    if (status == OK) status = infer_encode(&model->infer, text, len, &ids);
    if (status == OK) {
        *out_ids = ids.data ? ids.data : allocate(0);
        *out_num = ids.len;
    } else {
        token_ids_deinit(&ids);
    }
    return (sg_status)status;
}

sg_status sg_model_decode(sg_model *model, const int32_t *ids, size_t num, char **out_text)
{
    StrBuf text = {0};
    Status status = need_tokenizer(model);
    if (status == OK) status = tokenizer_decode(model->infer.tokenizer, ids, num, true, &text);
    if (status == OK)
        *out_text = text.data ? text.data : allocate(0);
    else
        strbuf_deinit(&text);
    return (sg_status)status;
}

sg_status sg_model_losses(sg_model *model, const int32_t *ids, size_t num, float *losses)
{
    if (num < 2) return (sg_status)status_fail(ERR_INVALID, "losses of %zu ids; expected at least 2", num);
    infer_stop(&model->infer);
    log_mute(true);
    Status status = evaluate_start(&model->infer, num, 0);
    if (status == OK) status = evaluate_ids(&model->infer, ids, num, losses);
    infer_stop(&model->infer);
    return end_quiet(status);
}

static bool collect(void *context, int32_t id)
{
    token_ids_push(context, id);
    return true;
}

static Status generate_ids(InferModel *infer, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                           TokenIds *out)
{
    int64_t positions = infer->model->max_positions, want = (int64_t)num + max_tokens;
    FAIL_IF(num == 0, ERR_INVALID, "generation needs at least one id to go on from");
    FAIL_IF(max_tokens < 1, ERR_INVALID, "max_tokens %lld; expected at least 1", (long long)max_tokens);
    FAIL_IF((int64_t)num > positions, ERR_INVALID, "the prompt has %zu tokens, the model was made for %lld", num, (long long)positions);
    infer_want_generation(infer, (int64_t)num, want < positions ? want : positions);
    TRY(infer_start(infer));
    GenerateStats stats;
    GenerateJob   job = {.prompt = ids,
                         .prompt_len = num,
                         .max_tokens = max_tokens,
                         .eos = infer->eos,
                         .num_eos = infer->num_eos,
                         .vocab_size = infer->tokenizer ? tokenizer_vocab_size(infer->tokenizer) : 0,
                         .sink = collect,
                         .context = out};
    job.sample.temperature = sampling->temperature;
    job.sample.top_k = sampling->top_k;
    job.sample.top_p = sampling->top_p > 0 ? sampling->top_p : 1;
    job.sample.seed = sampling->seed;
    return generate(infer->session, &job, &stats);
}

sg_status sg_model_generate(sg_model *model, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                            int32_t **out_ids, size_t *out_num)
{
    TokenIds out = {0};
    infer_stop(&model->infer);
    log_mute(true);
    Status status = generate_ids(&model->infer, ids, num, max_tokens, sampling, &out);
    infer_stop(&model->infer);
    if (status == OK) {
        *out_ids = out.data ? out.data : allocate(0);
        *out_num = out.len;
    } else {
        token_ids_deinit(&out);
    }
    return end_quiet(status);
}
