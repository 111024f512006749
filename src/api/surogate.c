/* The public interface over the layers below: handles, copies of results, nothing else. */
#include "api/api.h"

#include "base/c_locale.h"
#include "base/log.h"
#include "base/version.h"
#include "fit/fit.h"
#include "infer/evaluate.h"
#include "infer/score.h"
#include "setup/lora.h"
#include "train/samples.h"
#include "train/signals.h"

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

void sg_interrupt(void)
{
    signals_ask();
}

void *api_allocate(size_t bytes)
{
    return calloc_or_end(1, bytes ? bytes : 1);
}

static _Thread_local locale_t callers_locale;

void api_begin(void)
{
    callers_locale = c_locale_begin();
    log_mute(true);
}

sg_status api_end(Status status)
{
    log_mute(false);
    c_locale_end(callers_locale);
    return (sg_status)status;
}

Status api_need(const void *argument, const char *name)
{
    FAIL_IF(!argument, ERR_INVALID, "%s is NULL", name);
    return OK;
}

Status api_need_args(const char *const *args, size_t num_args)
{
    if (num_args) TRY(api_need(args, "args"));
    for (size_t i = 0; i < num_args; i++) FAIL_IF(!args[i], ERR_INVALID, "argument %zu is NULL", i);
    return OK;
}

Status api_hand_ids(Status status, TokenIds *ids, int32_t **out_ids, size_t *out_num)
{
    if (status == OK) status = api_need(out_ids, "out_ids");
    if (status == OK) status = api_need(out_num, "out_num");
    if (status == OK) {
        *out_ids = ids->data ? ids->data : api_allocate(0);
        *out_num = ids->len;
    } else {
        token_ids_deinit(ids);
    }
    return status;
}

Status api_hand_text(Status status, StrBuf *text, char **out_text)
{
    if (status == OK) status = api_need(out_text, "the place of the text");
    if (status == OK)
        *out_text = text->data ? text->data : api_allocate(0);
    else
        strbuf_deinit(text);
    return status;
}

static bool collect(void *context, int32_t id)
{
    token_ids_push(context, id);
    return true;
}

Status api_check_ids(const int32_t *ids, size_t num, int64_t vocab_size)
{
    if (num) TRY(api_need(ids, "ids"));
    for (size_t i = 0; i < num; i++)
        FAIL_IF(ids[i] < 0 || ids[i] >= vocab_size, ERR_INVALID, "id %d at index %zu; expected 0 to %lld", ids[i], i,
                (long long)vocab_size - 1);
    return OK;
}

Status api_check_sampling(const sg_sampling *sampling)
{
    FAIL_IF(!(sampling->temperature >= 0 && sampling->temperature <= 1e6), ERR_INVALID, "temperature %g; expected 0 to 1e6",
            sampling->temperature);
    FAIL_IF(sampling->top_k < 0, ERR_INVALID, "top_k %lld; expected a number of tokens, or 0 for all", (long long)sampling->top_k);
    FAIL_IF(!(sampling->top_p >= 0 && sampling->top_p <= 1), ERR_INVALID, "top_p %g; expected 0 to 1", sampling->top_p);
    return OK;
}

SampleOptions api_sample_options(const sg_sampling *sampling)
{
    return (SampleOptions){.temperature = sampling->temperature,
                           .top_k = sampling->top_k,
                           .top_p = sampling->top_p > 0 ? sampling->top_p : 1,
                           .seed = sampling->seed};
}

Status api_check_generate(const GenerateJob *job, int64_t vocab_size, const sg_sampling *sampling)
{
    TRY(api_need(sampling, "sampling"));
    TRY(api_check_ids(job->prompt, job->prompt_len, vocab_size));
    FAIL_IF(job->prompt_len == 0, ERR_INVALID, "generation needs at least one id to go on from");
    FAIL_IF(job->max_tokens < 1, ERR_INVALID, "max_tokens %lld; expected at least 1", (long long)job->max_tokens);
    return api_check_sampling(sampling);
}

Status api_generate(Session *session, GenerateJob *job, const sg_sampling *sampling, TokenIds *out)
{
    job->sink = collect;
    job->context = out;
    job->sample = api_sample_options(sampling);
    return generate(session, job);
}

/* ---- runs ---- */

static Status open_run(const char *const *args, size_t num_args, sg_run **out)
{
    TRY(api_need(out, "out_run"));
    TRY(api_need_args(args, num_args));
    sg_run *run = api_allocate(sizeof *run);
    Status  status = config_load_args(args, num_args, &run->config, NULL);
    if (status == OK) status = setup_adapter(&run->config);
    if (status == OK)
        *out = run;
    else
        sg_run_close(run);
    return status;
}

sg_status sg_run_open(const char *const *args, size_t num_args, sg_run **out_run)
{
    api_begin();
    return api_end(open_run(args, num_args, out_run));
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
    Status         status = setup_view_model(arena, config, &model);
    if (status == OK) status = fit_settle(arena, config, model, device, NULL, (int)config->gpus, &config);
    if (status == OK) status = setup_options(arena, config, model, &options);
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
    api_begin();
    Status status = api_need(run, "run");
    if (status == OK) status = setup_device(&run->config, gpu, &device);
    if (status == OK) status = plan_run(&arena, &run->config, device, &json);
    if (device) device->api->destroy(device);
    arena_deinit(&arena);
    return api_end(api_hand_text(status, &json, out_json));
}

static Status train(sg_run *run, sg_outcome *out)
{
    TrainOutcome outcome;
    TRY(api_need(run, "run"));
    run->config.begun = signals_begin();
    TRY(train_with_samples(&run->config, &outcome));
    if (out) *out = (sg_outcome){outcome.already_finished, outcome.steps, outcome.loss, outcome.eval_loss};
    return OK;
}

sg_status sg_run_train(sg_run *run, sg_outcome *out_outcome)
{
    api_begin();
    log_mute(false);
    return api_end(train(run, out_outcome));
}

/* ---- models ---- */

static Status start_model(InferModel *infer, const char *dir, const sg_model_options *o)
{
    TRY(infer_open(infer, dir, o->adapter, o->device ? o->device : "auto", o->threads));
    TRY(infer_use_dtype(infer, o->dtype));
    TRY(infer_use_format(infer, o->quantization));
    infer->options.split_k = o->split_k;
    return infer_use_cache(infer, o->kv);
}

static Status open_model(const char *dir, const sg_model_options *given, sg_model **out)
{
    sg_model_options options = {0};
    TRY(api_need(dir, "dir"));
    TRY(api_need(given, "options"));
    TRY(api_need(out, "out_model"));
    FAIL_IF(given->size < sizeof given->size || given->size > sizeof options, ERR_INVALID,
            "options.size is %zu; expected sizeof(sg_model_options), which this library has as %zu", given->size, sizeof options);
    memcpy(&options, given, given->size);
    FAIL_IF(options.threads < 0, ERR_INVALID, "threads %d; expected a number of them, or 0 for all cores", options.threads);
    sg_model *model = api_allocate(sizeof *model);
    Status    status = start_model(&model->infer, dir, &options);
    if (status == OK)
        *out = model;
    else
        sg_model_close(model);
    return status;
}

sg_status sg_model_open(const char *dir, const char *adapter, const char *device, int threads, sg_model **out_model)
{
    sg_model_options options = {.size = sizeof options, .adapter = adapter, .device = device, .threads = threads};
    api_begin();
    return api_end(open_model(dir, &options, out_model));
}

sg_status sg_model_open_as(const char *dir, const sg_model_options *options, sg_model **out_model)
{
    api_begin();
    return api_end(open_model(dir, options, out_model));
}

void sg_model_close(sg_model *model)
{
    if (!model) return;
    infer_close(&model->infer);
    free(model);
}

static Status need_tokenizer(const sg_model *model)
{
    TRY(api_need(model, "model"));
    FAIL_IF(!model->infer.tokenizer, ERR_NOT_FOUND, "the model folder has no tokenizer.json: work with ids, or copy one there");
    return OK;
}

sg_status sg_model_encode(sg_model *model, const char *text, size_t len, int32_t **out_ids, size_t *out_num)
{
    TokenIds ids = {0};
    api_begin();
    Status status = need_tokenizer(model);
    if (status == OK && len) status = api_need(text, "text");
    if (status == OK) status = infer_encode(&model->infer, text ? text : "", len, true, &ids);
    return api_end(api_hand_ids(status, &ids, out_ids, out_num));
}

sg_status sg_model_decode(sg_model *model, const int32_t *ids, size_t num, char **out_text)
{
    return sg_model_decode_text(model, ids, num, out_text, NULL);
}

sg_status sg_model_decode_text(sg_model *model, const int32_t *ids, size_t num, char **out_text, size_t *out_len)
{
    StrBuf text = {0};
    api_begin();
    Status status = need_tokenizer(model);
    if (status == OK && num) status = api_need(ids, "ids");
    if (status == OK) status = tokenizer_decode(model->infer.tokenizer, ids, num, true, &text);
    if (status == OK && out_len) *out_len = text.len;
    return api_end(api_hand_text(status, &text, out_text));
}

static Status losses_of(sg_model *model, const int32_t *ids, size_t num, float *losses)
{
    TRY(api_need(model, "model"));
    TRY(api_need(losses, "losses"));
    FAIL_IF(num < 2, ERR_INVALID, "losses of %zu ids; expected at least 2", num);
    TRY(api_check_ids(ids, num, model->infer.model->vocab_size));
    infer_stop(&model->infer);
    Status status = evaluate_start(&model->infer, num, 0);
    if (status == OK) status = evaluate_ids(&model->infer, ids, num, losses);
    infer_stop(&model->infer);
    return status;
}

sg_status sg_model_losses(sg_model *model, const int32_t *ids, size_t num, float *losses)
{
    api_begin();
    return api_end(losses_of(model, ids, num, losses));
}

static Status score_rows(sg_model *model, const char *rows, size_t len, StrBuf *out)
{
    Scores scores = {0};
    TRY(api_need(model, "model"));
    if (len) TRY(api_need(rows, "rows"));
    infer_stop(&model->infer);
    Status status = scores_read(&model->infer, "rows", (Str){rows, len}, 0, &scores);
    if (status == OK) status = scores_run(&model->infer, &scores);
    if (status == OK) scores_write(&scores, out);
    scores_deinit(&scores);
    infer_stop(&model->infer);
    return status;
}

sg_status sg_model_score(sg_model *model, const char *rows, size_t len, char **out_lines, size_t *out_len)
{
    StrBuf lines = {0};
    api_begin();
    Status status = score_rows(model, rows, len, &lines);
    if (status == OK && out_len) *out_len = lines.len;
    return api_end(api_hand_text(status, &lines, out_lines));
}

static Status generate_ids(sg_model *model, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling, TokenIds *out)
{
    TRY(api_need(model, "model"));
    InferModel *infer = &model->infer;
    int64_t     positions = infer->model->max_positions;
    GenerateJob job = {.prompt = ids, .prompt_len = num, .max_tokens = max_tokens, .eos = infer->eos, .num_eos = infer->num_eos};
    TRY(api_check_generate(&job, infer->model->vocab_size, sampling));
    FAIL_IF(num > (size_t)positions, ERR_INVALID, "the prompt has %zu tokens, the model was made for %lld", num, (long long)positions);
    infer_stop(infer);
    infer_want_generation(infer, (int64_t)num, max_tokens < positions - (int64_t)num ? (int64_t)num + max_tokens : positions);
    Status status = infer_start(infer);
    if (status == OK) status = api_generate(infer->session, &job, sampling, out);
    infer_stop(infer);
    return status;
}

sg_status sg_model_generate(sg_model *model, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                            int32_t **out_ids, size_t *out_num)
{
    TokenIds out = {0};
    api_begin();
    Status status = generate_ids(model, ids, num, max_tokens, sampling, &out);
    return api_end(api_hand_ids(status, &out, out_ids, out_num));
}
