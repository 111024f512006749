/* Training step by step: sg_trainer over train/driven.h. */
#include "api/api.h"

#include "base/c_locale.h"
#include "data/loader.h"
#include "setup/lora.h"
#include "train/driven.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sg_trainer {
    Config      config;
    Driven     *driven;
    StepMetrics last; /* the result that sg_trainer_result gave last */
};

static Status open_trainer(const char *const *args, size_t num_args, sg_trainer **out)
{
    TRY(api_need(out, "out_trainer"));
    TRY(api_need_args(args, num_args));
    sg_trainer *trainer = api_allocate(sizeof *trainer);
    Status      status = config_load_args(args, num_args, &trainer->config, NULL);
    if (status != OK) {
        sg_free(trainer);
        return status;
    }
    status = setup_adapter(&trainer->config);
    if (status == OK) status = driven_open(&trainer->config, &trainer->driven);
    if (status == OK)
        *out = trainer;
    else
        sg_trainer_close(trainer);
    return status;
}

sg_status sg_trainer_open(const char *const *args, size_t num_args, sg_trainer **out_trainer)
{
    api_begin();
    return api_end(open_trainer(args, num_args, out_trainer));
}

void sg_trainer_close(sg_trainer *trainer)
{
    if (!trainer) return;
    locale_t before = c_locale_begin();
    driven_close(trainer->driven);
    config_deinit(&trainer->config);
    sg_free(trainer);
    c_locale_end(before);
}

static Status tell_info(sg_trainer *trainer, sg_trainer_info *out)
{
    TRY(api_need(trainer, "trainer"));
    TRY(api_need(out, "out_info"));
    const Config  *config = driven_config(trainer->driven);
    const Plan    *plan = driven_plan(trainer->driven);
    const Program *micro = plan_micro(plan, 0, config->gradient_accumulation_steps);
    *out = (sg_trainer_info){.rows = micro->spec.batch * plan->world,
                             .cols = micro->spec.seq,
                             .micro_batches = config->gradient_accumulation_steps,
                             .vocab_size = driven_vocab_size(trainer->driven),
                             .steps = driven_steps(trainer->driven),
                             .parameters = plan->total_numel,
                             .trained_parameters = plan->trained_numel,
                             .device_bytes = plan_total_bytes(plan),
                             .seed = config->seed};
    return OK;
}

sg_status sg_trainer_get_info(sg_trainer *trainer, sg_trainer_info *out_info)
{
    api_begin();
    return api_end(tell_info(trainer, out_info));
}

sg_status sg_trainer_plan(sg_trainer *trainer, char **out_json)
{
    StrBuf json = {0};
    api_begin();
    Status status = api_need(trainer, "trainer");
    if (status == OK) status = api_need(out_json, "out_json");
    if (status == OK) plan_write_json(driven_plan(trainer->driven), &json);
    return api_end(api_hand_text(status, &json, out_json));
}

/* ---- steps ---- */

static Status take_batch(const sg_batch *batch, DrivenInput *inputs, DrivenBatch *out)
{
    TRY(api_need(batch, "batch"));
    if (batch->num_inputs) TRY(api_need(batch->inputs, "inputs"));
    FAIL_IF(batch->num_inputs > IR_MOST_INPUTS, ERR_INVALID, "%zu inputs; expected at most %d", batch->num_inputs, IR_MOST_INPUTS);
    *out = (DrivenBatch){.rows = batch->rows,
                         .cols = batch->cols,
                         .tokens = batch->ids,
                         .labels = batch->targets,
                         .documents = batch->segments,
                         .positions = batch->positions,
                         .inputs = inputs,
                         .num_inputs = batch->num_inputs};
    for (size_t i = 0; i < batch->num_inputs; i++)
        inputs[i] = (DrivenInput){batch->inputs[i].name, batch->inputs[i].ids, batch->inputs[i].values};
    return OK;
}

int64_t sg_trainer_input_size(sg_trainer *trainer, const char *name)
{
    return trainer && name ? driven_input_size(trainer->driven, name) : 0;
}

static Status take_step(sg_trainer *trainer, const sg_batch *batch, bool of_data_set)
{
    DrivenInput inputs[IR_MOST_INPUTS];
    DrivenBatch taken;
    TRY(api_need(trainer, "trainer"));
    TRY(take_batch(batch, inputs, &taken));
    taken.of_data_set = of_data_set;
    return driven_step(trainer->driven, &taken);
}

sg_status sg_trainer_step(sg_trainer *trainer, const sg_batch *batch)
{
    api_begin();
    return api_end(take_step(trainer, batch, false));
}

sg_status sg_trainer_step_data(sg_trainer *trainer, const sg_batch *batch)
{
    api_begin();
    return api_end(take_step(trainer, batch, true));
}

sg_status sg_trainer_drop(sg_trainer *trainer)
{
    api_begin();
    Status status = api_need(trainer, "trainer");
    return api_end(status == OK ? driven_drop(trainer->driven) : status);
}

sg_status sg_trainer_backward(sg_trainer *trainer)
{
    api_begin();
    Status status = api_need(trainer, "trainer");
    return api_end(status == OK ? driven_backward(trainer->driven) : status);
}

static Status update(sg_trainer *trainer, double lr)
{
    TRY(api_need(trainer, "trainer"));
    if (isnan(lr)) TRY(driven_lr(trainer->driven, &lr));
    return driven_update(trainer->driven, lr);
}

sg_status sg_trainer_update(sg_trainer *trainer, double lr)
{
    api_begin();
    return api_end(update(trainer, lr));
}

static Status result(sg_trainer *trainer, sg_step *out)
{
    StepMetrics step;
    double      accuracy = NAN;
    TRY(api_need(trainer, "trainer"));
    TRY(api_need(out, "out_step"));
    TRY(driven_result(trainer->driven, &step));
    trainer->last = step;
    for (int i = 0; i < step.num_scalars; i++)
        if (strcmp(step.scalars[i].name, "accuracy") == 0) accuracy = step.scalars[i].value;
    *out = (sg_step){.step = step.step,
                     .loss = step.loss,
                     .norm = step.norm,
                     .lr = step.lr,
                     .seconds = step.seconds,
                     .tokens = step.step_tokens,
                     .trained = step.step_trained,
                     .is_applied = !step.skipped,
                     .accuracy = accuracy};
    return OK;
}

sg_status sg_trainer_result(sg_trainer *trainer, sg_step *out_step)
{
    api_begin();
    return api_end(result(trainer, out_step));
}

size_t sg_trainer_num_scalars(sg_trainer *trainer)
{
    return trainer ? (size_t)trainer->last.num_scalars : 0;
}

static Status tell_scalar(const sg_trainer *trainer, size_t index, sg_scalar *out)
{
    TRY(api_need(trainer, "trainer"));
    TRY(api_need(out, "out_scalar"));
    FAIL_IF(index >= (size_t)trainer->last.num_scalars, ERR_INVALID, "scalar %zu of %d", index, trainer->last.num_scalars);
    *out = (sg_scalar){trainer->last.scalars[index].name, trainer->last.scalars[index].value};
    return OK;
}

sg_status sg_trainer_scalar(sg_trainer *trainer, size_t index, sg_scalar *out_scalar)
{
    api_begin();
    return api_end(tell_scalar(trainer, index, out_scalar));
}

/* ---- between steps ---- */

static Status tell_losses(sg_trainer *trainer, const sg_batch *batch, float *losses, double *out_loss, int64_t *out_trained)
{
    DrivenInput inputs[IR_MOST_INPUTS];
    DrivenBatch taken;
    double      sum = 0;
    int64_t     trained = 0, cells = batch && batch->rows > 0 && batch->cols > 0 ? batch->rows * batch->cols : 0;
    TRY(api_need(trainer, "trainer"));
    TRY(take_batch(batch, inputs, &taken));
    float *own = losses ? NULL : api_allocate((size_t)(cells + 1) * sizeof *own), *all = losses ? losses : own;
    Status status = driven_losses(trainer->driven, &taken, all);
    for (int64_t i = 0; i < cells && status == OK; i++) {
        sum += (double)all[i];
        trained += taken.labels[i] != LABEL_IGNORE && !(taken.documents && taken.documents[i] < 0);
    }
    sg_free(own);
    TRY(status);
    if (out_loss) *out_loss = trained ? sum / (double)trained : (double)NAN;
    if (out_trained) *out_trained = trained;
    return OK;
}

sg_status sg_trainer_losses(sg_trainer *trainer, const sg_batch *batch, float *losses, double *out_loss, int64_t *out_trained)
{
    api_begin();
    return api_end(tell_losses(trainer, batch, losses, out_loss, out_trained));
}

static Status tell_logits(sg_trainer *trainer, const sg_batch *batch, float *logits, size_t numel)
{
    DrivenInput inputs[IR_MOST_INPUTS];
    DrivenBatch taken;
    TRY(api_need(trainer, "trainer"));
    TRY(api_need(logits, "logits"));
    TRY(take_batch(batch, inputs, &taken));
    return driven_logits(trainer->driven, &taken, logits, numel);
}

sg_status sg_trainer_logits(sg_trainer *trainer, const sg_batch *batch, float *logits, size_t numel)
{
    api_begin();
    return api_end(tell_logits(trainer, batch, logits, numel));
}

typedef struct GenerateCall {
    GenerateJob        job;
    const sg_sampling *sampling;
    TokenIds          *out; /* ids of rank 0 */
} GenerateCall;

static Status generate_on(void *context, Session *session, int rank)
{
    const GenerateCall *call = context;
    GenerateJob         job = call->job;
    TokenIds            other = {0};
    Status              status = api_generate(session, &job, call->sampling, rank ? &other : call->out);
    free(other.data);
    return status;
}

/* If products by FP8 codes have no scales yet, measures them on the prompt. */
static Status measure_prompt(sg_trainer *trainer, const int32_t *ids, size_t num)
{
    const ProgramSpec *spec = &plan_program(driven_plan(trainer->driven), &entry_eval)->spec;
    int64_t            cols = (int64_t)num < spec->seq ? (int64_t)num : spec->seq;
    DrivenBatch        prompt = {.rows = 1, .cols = cols, .tokens = ids, .labels = ids};
    if (driven_has_scales(trainer->driven)) return OK;
    float *losses = api_allocate((size_t)cols * sizeof *losses);
    Status status = driven_losses(trainer->driven, &prompt, losses);
    sg_free(losses);
    return status;
}

static Status generate_ids(sg_trainer *trainer, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                           TokenIds *out)
{
    TRY(api_need(trainer, "trainer"));
    FAIL_IF(!plan_program(driven_plan(trainer->driven), &entry_decode), ERR_INVALID,
            "this trainer was opened without memory to generate: set generate_samples: 1, and sample_max_tokens");
    const Tokenizer *tokenizer = driven_tokenizer(trainer->driven);
    int64_t          vocab = driven_vocab_size(trainer->driven);
    int32_t          eos = tokenizer ? tokenizer_eos_id(tokenizer) : -1;
    GenerateJob      job = {.prompt = ids, .prompt_len = num, .max_tokens = max_tokens, .eos = &eos, .num_eos = eos >= 0};
    TRY(api_check_generate(&job, vocab, sampling));
    TRY(measure_prompt(trainer, ids, num));
    return driven_with_sessions(trainer->driven, generate_on, &(GenerateCall){job, sampling, out});
}

sg_status sg_trainer_generate(sg_trainer *trainer, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                              int32_t **out_ids, size_t *out_num)
{
    TokenIds out = {0};
    api_begin();
    Status status = generate_ids(trainer, ids, num, max_tokens, sampling, &out);
    return api_end(api_hand_ids(status, &out, out_ids, out_num));
}

/* ---- tensors ---- */

static Status list_tensors(sg_trainer *trainer, const WeightList **out)
{
    TRY(api_need(trainer, "trainer"));
    return driven_tensors(trainer->driven, out);
}

size_t sg_trainer_num_tensors(sg_trainer *trainer)
{
    const WeightList *list;
    api_begin();
    return api_end(list_tensors(trainer, &list)) == SG_OK ? weight_list_count(list) : 0;
}

static Status tell_tensor(sg_trainer *trainer, size_t index, sg_tensor *out)
{
    const WeightList *list;
    TRY(list_tensors(trainer, &list));
    TRY(api_need(out, "out_tensor"));
    size_t count = weight_list_count(list);
    FAIL_IF(index >= count, ERR_INVALID, "tensor %zu of %zu", index, count);
    const StDecl *decl = weight_list_at(list, index);
    *out = (sg_tensor){.name = decl->name, .ndim = decl->ndim, .numel = 1};
    for (int i = 0; i < decl->ndim; i++) out->numel *= out->dim[i] = decl->dim[i];
    return OK;
}

sg_status sg_trainer_tensor(sg_trainer *trainer, size_t index, sg_tensor *out_tensor)
{
    api_begin();
    return api_end(tell_tensor(trainer, index, out_tensor));
}

static Status read_tensor(sg_trainer *trainer, size_t index, bool gradient, float *values, size_t numel)
{
    sg_tensor tensor;
    TRY(tell_tensor(trainer, index, &tensor));
    TRY(api_need(values, "values"));
    return driven_read(trainer->driven, index, gradient, values, (int64_t)numel);
}

sg_status sg_trainer_weight(sg_trainer *trainer, size_t index, float *values, size_t numel)
{
    api_begin();
    return api_end(read_tensor(trainer, index, false, values, numel));
}

sg_status sg_trainer_gradient(sg_trainer *trainer, size_t index, float *values, size_t numel)
{
    api_begin();
    return api_end(read_tensor(trainer, index, true, values, numel));
}

/* ---- files ---- */

sg_status sg_trainer_save(sg_trainer *trainer, const char *dir)
{
    api_begin();
    Status status = api_need(trainer, "trainer");
    return api_end(status == OK ? driven_save(trainer->driven, dir) : status);
}

static Status load(sg_trainer *trainer, const char *checkpoint)
{
    TRY(api_need(trainer, "trainer"));
    TRY(api_need(checkpoint, "checkpoint"));
    return driven_load(trainer->driven, checkpoint);
}

sg_status sg_trainer_load(sg_trainer *trainer, const char *checkpoint)
{
    api_begin();
    return api_end(load(trainer, checkpoint));
}

static Status export(sg_trainer *trainer, const char *dir, bool whole)
{
    TRY(api_need(trainer, "trainer"));
    TRY(api_need(dir, "dir"));
    return driven_export(trainer->driven, dir, whole);
}

sg_status sg_trainer_export_model(sg_trainer *trainer, const char *dir)
{
    api_begin();
    return api_end(export(trainer, dir, true));
}

sg_status sg_trainer_export_adapter(sg_trainer *trainer, const char *dir)
{
    api_begin();
    return api_end(export(trainer, dir, false));
}
