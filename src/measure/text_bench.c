/* See text_bench.h. */
#include "measure/text_bench.h"

#include "base/clock.h"
#include "base/philox.h"
#include "infer/decoder.h"
#include "measure/random_weights.h"
#include "model/peft.h"
#include "ops/ops.h"
#include "setup/setup.h"

#include <stdio.h>
#include <stdlib.h>

struct TextBench {
    Arena            arena;
    TextBenchOptions options;
    HfModel         *model;
    Device          *device;
    Plan            *plan;
    Session         *session;
    Decoder         *decoder;
    int64_t          told; /* tokens produced, over all rows */
    uint32_t         runs; /* number of runs; each uses different prompts, so that none is found in the prefix cache */
};

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
    FAIL_IF(options.weight_format && options.model_dtype == DT_F16, ERR_UNSUPPORTED,
            "dtype fp16 with quantised weights: expected dtype bf16 or fp32");
    if (o->kv) TRY(compile_parse_cache(o->kv, &options.fp8_cache));
    options.split_k = o->split_k;
    int64_t need = o->prompt + o->tokens, most = b->model->max_positions;
    FAIL_IF(need > most || o->context > most, ERR_INVALID, "%lld tokens a text: the model was made for %lld",
            (long long)(need > most ? need : o->context), (long long)most);
    decoder_want(&options, b->device,
                 &(DecoderOptions){.rows = o->rows, .context = o->context > need ? o->context : need + 1, .prompt = o->prompt}, 0);
    if (o->prefill) compile_add(&options, &entry_eval, 1, o->prompt);
    TRY(setup_session(&b->arena, b->model, &options, b->device, &b->plan, &b->session));
    TRY(setup_refuse_inputs(b->model, b->plan));
    TRY(random_weights(b->session, b->model));
    TRY(decoder_create(b->session, &b->decoder));
    decoder_read_first(b->decoder); /* reads all prompts before decoding, so that only steps of all rows are timed */
    return OK;
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

/* Submits the first `count` prompts. */
static Status submit(TextBench *b, int64_t count)
{
    const TextBenchOptions *o = &b->options;
    int32_t                *prompt = arena_array(&b->arena, int32_t, o->prompt);
    SampleOptions           sample = {.top_p = 1};
    b->runs++;
    if (o->samples) sample = (SampleOptions){.temperature = 0.8, .top_k = 50, .top_p = 0.9};
    for (int64_t row = 0; row < count; row++) {
        for (int64_t i = 0; i < o->prompt; i++)
            prompt[i] = (int32_t)(philox4x32((uint32_t)i, (uint32_t)row, b->runs, 0, 4).v[0] % (uint32_t)b->model->vocab_size);
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

/* Whether only embedding nodes read the value; a step then reads just a few of its rows. */
static bool is_looked_up(const Value *value)
{
    for (const Use *use = value->first_use; use; use = use->next)
        if (!use->node || use->node->op != &op_embedding) return false;
    return true;
}

/* The program that decodes one token for every row. */
static const Program *step_program(const TextBench *b)
{
    return plan_program_of(b->plan, &entry_decode, b->options.rows, 1);
}

/* Counts bytes of weights that a step reads, and bytes of one position in one row's cache. */
static void count_bytes(const TextBench *b, double *out_weights, double *out_position)
{
    const Graph *graph = step_program(b)->graph;
    *out_weights = *out_position = 0;
    for (int i = 0; i < graph->num_values; i++) {
        const Value *value = graph->values[i];
        if (!value->first_use) continue;
        if (value->kind == VALUE_PARAM && !is_looked_up(value)) *out_weights += (double)type_bytes(&value->type);
        if (value->kind == VALUE_CACHE)
            *out_position += (double)type_bytes(&value->type) / (double)(value->type.dim[0] * value->type.dim[1]);
    }
}

static void fill_times(const TextBench *b, TextTimes *t)
{
    const TextBenchOptions *o = &b->options;
    double                  position;
    count_bytes(b, &t->weight_bytes, &position);
    t->cache_bytes = position * (double)o->rows * ((double)o->prompt + (double)(o->tokens + 1) / 2);
    t->limit = b->plan->facts.bandwidth > 0 ? (t->weight_bytes + t->cache_bytes) / b->plan->facts.bandwidth : 0;
    t->bytes = plan_total_bytes(b->plan);
    t->launches = step_program(b)->num_launches;
    snprintf(t->device, sizeof t->device, "%s", b->plan->facts.name);
}

static Status profile(TextBench *b, const Program *program, double *seconds, double *out_overhead)
{
    return b->device->api->profile(b->device, program->launches, program->num_launches, seconds, out_overhead);
}

/* Index of the first launch after the last block: the head and the loss follow. */
static int first_of_head(const Program *program)
{
    int first = program->num_launches;
    while (first > 0 && program->launches[first - 1].node->layer < 0) first--;
    return first;
}

static Status run_forward(TextBench *b, const Program *program, int times, double *out_seconds)
{
    TRY(session_sync(b->session));
    double begin = clock_seconds();
    for (int i = 0; i < times; i++) TRY(session_run(b->session, program));
    TRY(session_sync(b->session));
    *out_seconds = (clock_seconds() - begin) / times;
    return OK;
}

/* Times the forward pass without its launches after the last block. */
static Status time_forward(TextBench *b, double *out_seconds)
{
    enum { TIMES = 5 };
    const Program *program = plan_program(b->plan, &entry_eval);
    int64_t        len = b->options.prompt;
    Feeds          feeds;
    double        *seconds = arena_array(&b->arena, double, program->num_launches + 1), overhead;
    feeds_init(&feeds, arena_array(&b->arena, int32_t, feeds_numel(len, NULL, 0)), len, NULL, 0);
    for (int64_t i = 0; i < len; i++) feeds.positions[i] = (int32_t)i;
    TRY(session_feed(b->session, program, &feeds));
    TRY(run_forward(b, program, 1, out_seconds));
    TRY(run_forward(b, program, TIMES, out_seconds));
    TRY(profile(b, program, seconds, &overhead));
    for (int i = first_of_head(program); i < program->num_launches; i++) *out_seconds -= seconds[i];
    *out_seconds *= (double)b->options.rows;
    return OK;
}

Status text_bench_run(TextBench *b, TextTimes *out)
{
    const TextBenchOptions *o = &b->options;
    *out = (TextTimes){0};
    b->told = 0;
    TRY(submit(b, o->rows));
    double begin = clock_seconds();
    while (b->told < o->rows) TRY(decoder_step(b->decoder)); /* until each row has its first token after the prompt */
    TRY(session_sync(b->session));
    double  prefilled = clock_seconds();
    int64_t told = b->told;
    while (decoder_is_busy(b->decoder)) TRY(decoder_step(b->decoder));
    out->step = o->prefill ? 0 : (clock_seconds() - prefilled) / ((double)(b->told - told) / (double)o->rows);
    out->prefill = prefilled - begin;
    fill_times(b, out);
    return o->prefill ? time_forward(b, &out->forward) : OK;
}

static Status take_profile(TextBench *b, const Program *program, TextProfile take, void *context)
{
    double *seconds = arena_array(&b->arena, double, program->num_launches + 1), overhead;
    TRY(profile(b, program, seconds, &overhead));
    take(context, program, seconds, overhead);
    return OK;
}

Status text_bench_profile(TextBench *b, TextProfile take, void *context)
{
    if (!b->options.prefill) return take_profile(b, step_program(b), take, context);
    TRY(submit(b, 1));
    while (decoder_is_busy(b->decoder)) {
        TRY(decoder_step(b->decoder));
        if (decoder_ran(b->decoder)) TRY(take_profile(b, decoder_ran(b->decoder), take, context));
    }
    return OK;
}
