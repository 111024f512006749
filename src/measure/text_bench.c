/* See text_bench.h. */
#include "measure/text_bench.h"

#include "base/philox.h"
#include "infer/decoder.h"
#include "measure/random_weights.h"
#include "model/peft.h"
#include "ops/ops.h"
#include "setup/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct TextBench {
    Arena            arena;
    TextBenchOptions options;
    HfModel         *model;
    Device          *device;
    Plan            *plan;
    Session         *session;
    Decoder         *decoder;
    int64_t          told; /* tokens of all rows */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void use_adapters(TextBench *b, CompileOptions *options)
{
    static const char *const all[] = {"all-linear"};
    LoraOptions             *adapters = arena_array(&b->arena, LoraOptions, b->options.adapters + 1);
    for (int i = 0; i < b->options.adapters; i++)
        adapters[i] = (LoraOptions){.enabled = true, .r = 16, .alpha = 16, .targets = all, .num_targets = 1};
    options->row_adapters = adapters;
    options->num_row_adapters = b->options.adapters;
}

static Status open_bench(TextBench *b)
{
    const TextBenchOptions *o = &b->options;
    CompileOptions          options = compile_defaults();
    use_adapters(b, &options);
    TRY(hf_model_open(&b->arena, o->model, &b->model));
    TRY(device_open(o->device, 0, o->threads, &b->device));
    options.model_dtype = options.master_dtype = o->dtype == DT_COUNT ? b->model->dtype : o->dtype;
    options.train_base = false;
    if (o->format) TRY(peft_parse_base_format(o->format, &options.weight_format));
    if (o->kv) TRY(compile_parse_cache(o->kv, &options.fp8_cache));
    options.split_k = o->split_k;
    FAIL_IF(o->prompt + o->tokens > b->model->max_positions, ERR_INVALID, "%lld tokens a text: the model was made for %lld",
            (long long)(o->prompt + o->tokens), (long long)b->model->max_positions);
    decoder_want(&options, &(DecoderOptions){.rows = o->rows, .context = o->prompt + o->tokens + 1, .prompt = o->prompt}, 0);
    TRY(setup_session(&b->arena, b->model, &options, b->device, &b->plan, &b->session));
    TRY(setup_refuse_inputs(b->model, b->plan));
    TRY(random_weights(b->session, b->model));
    return decoder_create(b->session, &b->decoder);
}

Status text_bench_create(const TextBenchOptions *options, TextBench **out)
{
    TextBench *b = calloc_or_end(1, sizeof *b);
    b->options = *options;
    Status status = open_bench(b);
    if (status == OK)
        *out = b;
    else
        text_bench_destroy(b);
    return status;
}

void text_bench_destroy(TextBench *b)
{
    if (!b) return;
    decoder_destroy(b->decoder);
    session_destroy(b->session);
    if (b->device) b->device->api->destroy(b->device);
    hf_model_close(b->model);
    arena_deinit(&b->arena);
    free(b);
}

static bool count_token(void *context, const DecodeToken *token)
{
    (void)token;
    ((TextBench *)context)->told++;
    return true;
}

static Status submit_all(TextBench *b)
{
    const TextBenchOptions *o = &b->options;
    int32_t                *prompt = arena_array(&b->arena, int32_t, o->prompt);
    SampleOptions           sample = {.top_p = 1};
    if (o->samples) sample = (SampleOptions){.temperature = 0.8, .top_k = 50, .top_p = 0.9};
    for (int64_t row = 0; row < o->rows; row++) {
        for (int64_t i = 0; i < o->prompt; i++)
            prompt[i] = (int32_t)(philox4x32((uint32_t)i, (uint32_t)row, 0, 0, 4).v[0] % (uint32_t)b->model->vocab_size);
        sample.request = (uint64_t)row;
        DecodeRequest request = {.prompt = prompt,
                                 .prompt_len = (size_t)o->prompt,
                                 .max_tokens = o->tokens + 1,
                                 .sample = sample,
                                 .context = b,
                                 .token = count_token,
                                 .adapter = o->adapters ? 1 + (int)(row % o->adapters) : 0};
        TRY(decoder_submit(b->decoder, &request, NULL));
    }
    return OK;
}

/* Whether only an embedding reads it, a row a token. */
static bool is_looked_up(const Value *value)
{
    for (const Use *use = value->first_use; use; use = use->next)
        if (!use->node || use->node->op != &op_embedding) return false;
    return true;
}

/* Bytes of weights that a step reads, and of a position of a row's cache. */
static void count_bytes(const TextBench *b, double *out_weights, double *out_position)
{
    const Graph *graph = text_bench_program(b)->graph;
    *out_weights = *out_position = 0;
    for (int i = 0; i < graph->num_values; i++) {
        const Value *value = graph->values[i];
        if (!value->first_use) continue;
        if (value->kind == VALUE_PARAM && !is_looked_up(value)) *out_weights += (double)type_bytes(&value->type);
        if (value->kind == VALUE_CACHE)
            *out_position += (double)type_bytes(&value->type) / (double)(value->type.dim[0] * value->type.dim[1]);
    }
}

const Program *text_bench_program(const TextBench *b)
{
    return plan_program_of(b->plan, &entry_decode, b->options.rows, 1);
}

static void fill_times(const TextBench *b, TextTimes *t)
{
    const TextBenchOptions *o = &b->options;
    double                  position;
    count_bytes(b, &t->weight_bytes, &position);
    t->cache_bytes = position * (double)o->rows * ((double)o->prompt + (double)(o->tokens + 1) / 2);
    t->limit = b->plan->facts.bandwidth > 0 ? (t->weight_bytes + t->cache_bytes) / b->plan->facts.bandwidth : 0;
    t->bytes = plan_total_bytes(b->plan);
    t->launches = text_bench_program(b)->num_launches;
    snprintf(t->device, sizeof t->device, "%s", b->plan->facts.name);
}

Status text_bench_run(TextBench *b, TextTimes *out)
{
    const TextBenchOptions *o = &b->options;
    *out = (TextTimes){0};
    b->told = 0;
    TRY(submit_all(b));
    double begin = now();
    while (b->told < o->rows) TRY(decoder_step(b->decoder)); /* the first token of each, behind its prompt */
    TRY(session_sync(b->session));
    double  prefilled = now();
    int64_t told = b->told;
    while (decoder_is_busy(b->decoder)) TRY(decoder_step(b->decoder));
    out->step = (now() - prefilled) / ((double)(b->told - told) / (double)o->rows);
    out->prefill = prefilled - begin;
    fill_times(b, out);
    return OK;
}

Status text_bench_profile(TextBench *b, double *seconds, double *out_overhead)
{
    const Program *program = text_bench_program(b);
    return b->device->api->profile(b->device, program->launches, program->num_launches, seconds, out_overhead);
}
