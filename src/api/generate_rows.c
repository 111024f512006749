/* Generation for many prompts in memory: rows in, lines out. */
#include "infer/generate_rows.h"

#include "api/api.h"
#include "train/signals.h"

#include <float.h>
#include <stddef.h>
#include <string.h>

enum { MOST_ROWS = 4096, MAX_TOKENS = 128 };

typedef struct RowsCall {
    StrBuf *out;
    int64_t begun; /* what signals_begin returned */
} RowsCall;

static Status take(void *context, const StrBuf *lines)
{
    const RowsCall *call = context;
    strbuf_append(call->out, lines->data, lines->len);
    return OK;
}

static Status between(void *context)
{
    const RowsCall *call = context;
    FAIL_IF(signals_pending(call->begun), ERR_INTERRUPTED, "interrupted while texts were made; nothing of them is kept");
    return OK;
}

/* ---- settings ---- */

/* A caller of an older header fills only the first fields; the others become 0. */
static Status read_settings(const sg_generation *given, sg_generation *out)
{
    *out = (sg_generation){0};
    TRY(api_need(given, "settings"));
    FAIL_IF(given->size < offsetof(sg_generation, min_p) || given->size > sizeof *out, ERR_INVALID,
            "settings.size is %zu; expected sizeof(sg_generation), which this library has as %zu", given->size, sizeof *out);
    memcpy(out, given, given->size);
    if (!out->n) out->n = 1;
    if (!out->max_tokens) out->max_tokens = MAX_TOKENS;
    return OK;
}

static Status check_numbers(const sg_generation *g)
{
    TRY(api_check_sampling(&g->sampling));
    FAIL_IF(!(g->min_p >= 0 && g->min_p <= 1), ERR_INVALID, "min_p %g; expected 0 to 1", g->min_p);
    FAIL_IF(!(g->repetition_penalty >= 0 && g->repetition_penalty <= 1e6), ERR_INVALID,
            "repetition_penalty %g; expected a number above 0; 1: none", g->repetition_penalty);
    FAIL_IF(!(g->presence_penalty >= -2 && g->presence_penalty <= 2), ERR_INVALID, "presence_penalty %g; expected -2 to 2; 0: none",
            g->presence_penalty);
    FAIL_IF(!(g->frequency_penalty >= -2 && g->frequency_penalty <= 2), ERR_INVALID, "frequency_penalty %g; expected -2 to 2; 0: none",
            g->frequency_penalty);
    FAIL_IF(g->max_tokens < 1, ERR_INVALID, "max_tokens %lld; expected at least 1", (long long)g->max_tokens);
    FAIL_IF(g->n < 1 || g->n > INT32_MAX, ERR_INVALID, "n %lld; expected a number of samples from 1 on", (long long)g->n);
    FAIL_IF(g->rows < 0 || g->rows > MOST_ROWS, ERR_INVALID, "rows %lld; expected 1 to %d, or 0", (long long)g->rows, MOST_ROWS);
    FAIL_IF(g->top_logprobs < 0 || g->top_logprobs > ANSWER_MOST_TOP, ERR_INVALID, "top_logprobs %d; expected 0 to %d", g->top_logprobs,
            ANSWER_MOST_TOP);
    FAIL_IF(g->top_logprobs && !g->logprobs, ERR_INVALID, "top_logprobs %d without logprobs; set logprobs too", g->top_logprobs);
    return OK;
}

static Status check_lists(const InferModel *infer, const sg_generation *g)
{
    int64_t num = infer_num_choices(infer);
    if (g->num_stops) TRY(api_need(g->stops, "stops"));
    FAIL_IF(g->num_stops && !infer->tokenizer, ERR_NOT_FOUND, "stops are texts, and the model folder has no tokenizer.json");
    for (size_t i = 0; i < g->num_stops; i++)
        FAIL_IF(!g->stops[i] || !g->stops[i][0], ERR_INVALID, "stops[%zu] is %s; expected a text", i, g->stops[i] ? "empty" : "NULL");
    if (g->num_biases) TRY(api_need(g->bias_ids, "bias_ids"));
    if (g->num_biases) TRY(api_need(g->biases, "biases"));
    FAIL_IF(g->num_biases > (size_t)num, ERR_INVALID, "%zu biases; the model has %lld tokens", g->num_biases, (long long)num);
    for (size_t i = 0; i < g->num_biases; i++) {
        int32_t id = g->bias_ids[i];
        float   bias = g->biases[i];
        FAIL_IF(id < 0 || id >= num, ERR_INVALID, "bias_ids[%zu] is %d; expected 0 to %lld", i, id, (long long)num - 1);
        FAIL_IF(!(bias <= FLT_MAX), ERR_INVALID, "biases[%zu] is %g; expected a number, or -infinity", i, (double)bias);
        for (size_t k = 0; k < i; k++) FAIL_IF(g->bias_ids[k] == id, ERR_INVALID, "bias_ids has %d twice; expected each once", id);
    }
    return OK;
}

static SampleOptions sample_of(const sg_generation *g)
{
    SampleOptions sample = api_sample_options(&g->sampling);
    sample.min_p = g->min_p;
    sample.repetition = g->repetition_penalty > 0 ? g->repetition_penalty : 1;
    sample.presence = g->presence_penalty;
    sample.frequency = g->frequency_penalty;
    sample.bias_ids = g->bias_ids;
    sample.biases = g->biases;
    sample.num_biases = (int)g->num_biases;
    return sample;
}

static Status use_adapters(InferModel *infer, const sg_generation *g)
{
    if (g->num_adapters) TRY(api_need(g->adapter_names, "adapter_names"));
    if (g->num_adapters) TRY(api_need(g->adapter_dirs, "adapter_dirs"));
    FAIL_IF(g->num_adapters > LORA_MOST_ADAPTERS, ERR_INVALID, "%zu adapters; expected at most %d", g->num_adapters, LORA_MOST_ADAPTERS);
    AdapterName names[LORA_MOST_ADAPTERS];
    for (size_t i = 0; i < g->num_adapters; i++) names[i] = (AdapterName){g->adapter_names[i], g->adapter_dirs[i]};
    return infer_use_adapters(infer, names, (int)g->num_adapters);
}

/* ---- the call ---- */

static Status generate_prompts(InferModel *infer, const PromptFile *prompts, const sg_generation *g, RowsCall *call)
{
    StrList  stops = {(const char **)(uintptr_t)g->stops, g->num_stops};
    RowsJob  job = {.num = g->n,
                    .max_tokens = g->max_tokens,
                    .rows = g->rows,
                    .sample = sample_of(g),
                    .stops = &stops,
                    .ignore_eos = g->ignore_eos,
                    .skip_bad = g->skip_bad,
                    .logprobs = g->logprobs ? g->top_logprobs : -1,
                    .shares = true,
                    .context = call,
                    .take = take,
                    .between = between};
    RowsRun *run = rows_create(infer, prompts, &job);
    Status   status = rows_run(run);
    rows_destroy(run);
    if (status != OK) infer_stop(infer);
    return status;
}

static Status generate_rows(sg_model *model, const char *rows, size_t len, const sg_generation *given, RowsCall *call)
{
    PromptFile    prompts;
    sg_generation settings;
    TRY(api_need(model, "model"));
    if (len) TRY(api_need(rows, "rows"));
    TRY(read_settings(given, &settings));
    TRY(check_numbers(&settings));
    TRY(check_lists(&model->infer, &settings));
    TRY(use_adapters(&model->infer, &settings));
    Status status = prompt_file_read(&model->infer, "rows", (Str){rows, len}, &(PromptOptions){.skip_bad = settings.skip_bad}, &prompts);
    if (status == OK) status = generate_prompts(&model->infer, &prompts, &settings, call);
    prompt_file_deinit(&prompts);
    return status;
}

sg_status sg_model_generate_rows(sg_model *model, const char *rows, size_t len, const sg_generation *settings, char **out_lines,
                                 size_t *out_len)
{
    StrBuf   lines = {0};
    RowsCall call = {.out = &lines};
    api_begin();
    call.begun = signals_begin();
    Status status = generate_rows(model, rows, len, settings, &call);
    if (status == OK && out_len) *out_len = lines.len;
    return api_end(api_hand_text(status, &lines, out_lines));
}
