/* Tokens per second of whole optimizer steps on a GPU: random weights and tokens, to be read beside a PyTorch peer and
 * the machine's limit in the same run. Without --packed every row is one document.
 *
 *   bench_train_cuda [--model qwen3-0.6b|qwen3-8b|qwen3-tiny] [--batch B] [--accum N] [--seq T] [--steps N] [--lora
 * RANK]
 *                    [--moments f32|bf16] [--recompute PART,...] [--packed] [--cpu] [--profile]
 *
 * --packed: documents of lognormal lengths, median 300. --profile: the time of each kind of launch, measured on the
 * device. */
#include "base/json.h"
#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/compile.h"
#include "run/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name, *config;
} models[] = {
    {"qwen3-0.6b",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":151936,\"hidden_size\":1024,\"intermediate_size\":3072,"
     "\"num_hidden_layers\":28,\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,\"rms_norm_eps\":"
     "1e-6,"
     "\"rope_theta\":1000000,\"tie_word_embeddings\":true}"},
    {"qwen3-8b",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":151936,\"hidden_size\":4096,\"intermediate_size\":12288,"
     "\"num_hidden_layers\":36,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":128,\"rms_norm_eps\":"
     "1e-6,"
     "\"rope_theta\":1000000,\"tie_word_embeddings\":false}"},
    {"qwen3-tiny",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":512,\"hidden_size\":128,\"intermediate_size\":384,"
     "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,\"tie_word_"
     "embeddings\":true}"},
};

typedef struct Bench {
    const char    *model;
    int            batch, accum, seq, steps;
    bool           packed, cpu, profile;
    CompileOptions options;
    Arena          arena;
    Device        *device;
    Plan          *plan;
    Session       *session;
    int32_t       *batch_data;      /* tokens, labels, positions, doc_start: made once, as a loader has them ready */
    double         attention_pairs; /* of queries and keys, a micro-batch */
    double         create_seconds;
} Bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void ok(Status status)
{
    if (status == OK) return;
    fprintf(stderr, "bench_train_cuda: %s\n", status_message());
    exit(status_exit_code(status));
}

static void open_model(Bench *b)
{
    const char *text = NULL;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(models[i].name, b->model) == 0) text = models[i].config;
    if (!text) {
        fprintf(stderr, "bench_train_cuda: no model %s\n", b->model);
        exit(2);
    }
    JsonValue config;
    IrModule *module;
    size_t    len = 0;
    ok(json_parse(&b->arena, b->model, text, strlen(text), &config));
    const char *ir = ir_shipped_module(json_get(&config, "architectures")->items[0].string.data, &len);
    ok(ir_module_parse(&b->arena, b->model, ir, len, &module));
    ok(b->cpu ? device_cpu_create(0, &b->device) : device_cuda_create(0, &b->device));
    double before = now();
    b->options.batch = b->batch;
    b->options.seq = b->seq;
    b->options.dense = !b->packed;
    ok(compile_plan(&b->arena, module, &config, b->model, &b->options, b->device, &b->plan));
    ok(session_create(b->plan, b->device, &b->session));
    b->create_seconds = now() - before;
}

/* Random weights from one block used over and over: their values don't matter, that they aren't zeros does. */
static void fill_weights(Bench *b)
{
    enum { BLOCK = 1 << 22 };
    float *values = malloc(BLOCK * sizeof(float));
    void  *normal = malloc(BLOCK * sizeof(float)), *ones = malloc(BLOCK * sizeof(float));
    DType  dtype = b->plan->params[0]->type.dtype;
    for (int i = 0; i < BLOCK; i++)
        values[i] = (philox_uniform(philox4x32((uint32_t)i, 0, 0, 0, 1).v[0]) - 0.5f) * 0.07f;
    dtype_convert(normal, dtype, values, DT_F32, BLOCK);
    for (int i = 0; i < BLOCK; i++) values[i] = 1;
    dtype_convert(ones, dtype, values, DT_F32, BLOCK);
    for (int i = 0; i < b->plan->num_params; i++) {
        const Param *param = b->plan->params[i];
        size_t       bytes = (size_t)type_bytes(&param->type), block = (size_t)(BLOCK * dtype_bytes(dtype));
        for (size_t at = 0; at < bytes; at += block)
            ok(session_write_range(b->session, param->name, at, param->init == INIT_ONES ? ones : normal,
                                   bytes - at < block ? bytes - at : block));
    }
    ok(session_sync(b->session));
    free(values);
    free(normal);
    free(ones);
}

/* The length of document n: lognormal, median 300, deviation 1 of the logarithm. */
static int document_len(uint32_t n, int most)
{
    Philox4 draw = philox4x32(n, 0, 0, 0, 5);
    double  u = ((double)draw.v[0] + 0.5) / 4294967296.0, phase = (double)draw.v[1] / 4294967296.0;
    double  len = exp(log(300) + sqrt(-2 * log(u)) * cos(6.283185307179586 * phase));
    return len < 2 ? 2 : len > most ? most : (int)len;
}

static void make_batch(Bench *b, int64_t vocab)
{
    int      count = b->batch * b->seq;
    int32_t *data = calloc((size_t)count * 4, sizeof *data), *tokens = data, *labels = data + count,
            *positions = data + 2 * count, *start = data + 3 * count;
    uint32_t document = 0;
    b->batch_data = data;
    b->attention_pairs = 0;
    for (int row = 0; row < b->batch; row++)
        for (int t = 0, begin = 0, len = b->packed ? document_len(document++, b->seq) : b->seq; t < b->seq; t++) {
            int i = row * b->seq + t;
            if (t - begin == len) begin = t, len = document_len(document++, b->seq);
            Philox4 random = philox4x32((uint32_t)i, 0, 0, 0, 2);
            tokens[i] = (int32_t)(random.v[0] % (uint32_t)vocab);
            labels[i] = (int32_t)(random.v[1] % (uint32_t)vocab);
            positions[i] = t - begin;
            start[i] = begin;
            b->attention_pairs += t - begin + 1;
        }
}

static void write_batch(Bench *b)
{
    static const char *const names[] = {"tokens", "labels", "positions", "doc_start"};
    size_t                   count = (size_t)(b->batch * b->seq);
    for (int i = 0; i < 4; i++)
        if (plan_find(b->plan, names[i]))
            ok(session_write(b->session, names[i], b->batch_data + (size_t)i * count, count * sizeof(int32_t)));
}

static double train_step(Bench *b, int step, float *loss)
{
    float hyper[HYPER_COUNT] = {[HYPER_LR] = 1e-4f, [HYPER_INV_TOKENS] = 1.0f / (float)(b->batch * b->seq * b->accum)};
    int64_t now_step[STEP_COUNT] = {1, step, 0, 0};
    hyper[HYPER_BIAS1] = (float)(1 - pow(0.9, step + 1));
    hyper[HYPER_BIAS2] = (float)(1 - pow(0.999, step + 1));
    double before = now();
    ok(session_write(b->session, "hyper", hyper, sizeof hyper));
    ok(session_write(b->session, "step", now_step, sizeof now_step));
    for (int micro = 0; micro < b->accum; micro++) {
        write_batch(b);
        ok(session_run(b->session, micro ? PROGRAM_MICRO_NEXT : PROGRAM_MICRO_FIRST));
    }
    ok(session_run(b->session, PROGRAM_OPTIMIZER));
    ok(session_output(b->session, PROGRAM_OPTIMIZER, "loss", loss, sizeof *loss));
    return now() - before;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void profile_program(Bench *b, ProgramKind kind, int times, double *total)
{
    const Program *program = &b->plan->program[kind];
    double        *each = calloc((size_t)program->num_launches + 1, sizeof *each), seconds[OP_COUNT] = {0},
           flops[OP_COUNT] = {0};
    double      bytes[OP_COUNT] = {0}, sum = 0;
    const char *kernels[OP_COUNT] = {0};
    int         counts[OP_COUNT] = {0};
    if (!times || !program->graph || !b->device->api->profile) return;
    for (int turn = 0; turn < 2; turn++)
        ok(b->device->api->profile(b->device, program->launches, program->num_launches, each));
    for (int i = 0; i < program->num_launches; i++) {
        const Node *node = program->launches[i].node;
        OpCost      cost = node->op->cost ? node->op->cost(node) : (OpCost){0};
        int         id = node->op->id;
        seconds[id] += each[i];
        flops[id] += cost.flops;
        bytes[id] += cost.bytes;
        counts[id]++;
        kernels[id] = program->launches[i].kernel.name;
        sum += each[i];
    }
    printf("%s, %d times a step: %.3f ms\n", program_kind_name(kind), times, 1e3 * sum);
    for (int id = 0; id < OP_COUNT; id++)
        if (counts[id])
            printf("  %-20s %-10s %4d launches %9.3f ms %5.1f %%  %8.1f TFLOP/s %8.1f GB/s\n", op_table[id]->name,
                   kernels[id], counts[id], 1e3 * seconds[id], 100 * seconds[id] / sum, flops[id] / seconds[id] * 1e-12,
                   bytes[id] / seconds[id] * 1e-9);
    *total += sum * times;
    free(each);
}

static uint32_t parse_parts(const char *text)
{
    uint32_t mask = 0;
    char     name[32];
    while (*text) {
        size_t len = strcspn(text, ",");
        Part   part;
        snprintf(name, sizeof name, "%.*s", (int)len, text);
        if (!part_parse(name, &part)) {
            fprintf(stderr, "bench_train_cuda: no part %s\n", name);
            exit(2);
        }
        mask |= 1u << part;
        text += len + (text[len] == ',');
    }
    return mask;
}

static bool take_flag(Bench *b, const char *name)
{
    if (strcmp(name, "--profile") == 0)
        b->profile = true;
    else if (strcmp(name, "--packed") == 0)
        b->packed = true;
    else if (strcmp(name, "--cpu") == 0)
        b->cpu = true;
    else
        return false;
    return true;
}

static bool take_value(Bench *b, const char *name, const char *value)
{
    static const char *all[] = {"all-linear"};
    if (strcmp(name, "--model") == 0)
        b->model = value;
    else if (strcmp(name, "--batch") == 0)
        b->batch = atoi(value);
    else if (strcmp(name, "--accum") == 0)
        b->accum = atoi(value);
    else if (strcmp(name, "--seq") == 0)
        b->seq = atoi(value);
    else if (strcmp(name, "--steps") == 0)
        b->steps = atoi(value);
    else if (strcmp(name, "--recompute") == 0)
        b->options.recompute = parse_parts(value);
    else if (strcmp(name, "--moments") == 0)
        return dtype_parse(value, &b->options.moment_dtype);
    else if (strcmp(name, "--lora") == 0) {
        b->options.lora = (LoraOptions){
            .enabled = true, .r = atoi(value), .alpha = 32, .num_targets = 1, .targets = all, .dtype = DT_BF16};
        b->options.train_base = false;
    } else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    Bench b = {.model = "qwen3-0.6b", .batch = 4, .accum = 1, .seq = 2048, .steps = 10, .options = compile_defaults()};
    b.options.model_dtype = b.options.grad_dtype = DT_BF16;
    for (int i = 1; i < argc; i++) {
        if (take_flag(&b, argv[i])) continue;
        if (i + 1 < argc && take_value(&b, argv[i], argv[i + 1])) {
            i++;
            continue;
        }
        fprintf(stderr, "bench_train_cuda: unknown argument %s\n", argv[i]);
        return 2;
    }
    open_model(&b);
    fill_weights(&b);
    make_batch(&b, strcmp(b.model, "qwen3-tiny") == 0 ? 512 : 151936);
    float   loss = 0;
    double *seconds = calloc((size_t)b.steps + 1, sizeof(double)), first = train_step(&b, 0, &loss), profiled = 0;
    float   first_loss = loss;
    for (int i = 0; i < b.steps; i++) seconds[i] = train_step(&b, i + 1, &loss);
    qsort(seconds, (size_t)b.steps, sizeof(double), by_value);
    double tokens = (double)b.batch * b.seq * b.accum, median = seconds[b.steps / 2];
    printf("{\"model\": \"%s\", \"batch\": %d, \"accum\": %d, \"seq\": %d, \"lora\": %lld, \"packed\": %s, "
           "\"tokens_per_second\": %.1f, "
           "\"step_ms\": %.3f, \"best_ms\": %.3f, \"attention_pairs\": %.0f, \"loss\": [%.5f, %.5f], \"create_s\": "
           "%.2f, \"first_step_s\": %.3f, "
           "\"memory_gib\": %.2f}\n",
           b.model, b.batch, b.accum, b.seq, (long long)(b.options.lora.enabled ? b.options.lora.r : 0),
           b.packed ? "true" : "false", tokens / median, 1e3 * median, 1e3 * seconds[0], b.attention_pairs,
           (double)first_loss, (double)loss, b.create_seconds, first, (double)plan_total_bytes(b.plan) / (1 << 30));
    if (b.profile) {
        profile_program(&b, PROGRAM_MICRO_FIRST, 1, &profiled);
        profile_program(&b, PROGRAM_MICRO_NEXT, b.accum - 1, &profiled);
        profile_program(&b, PROGRAM_OPTIMIZER, 1, &profiled);
        printf("profiled %.3f ms of a step of %.3f ms\n", 1e3 * profiled, 1e3 * median);
    }
    free(seconds);
    free(b.batch_data);
    session_destroy(b.session);
    b.device->api->destroy(b.device);
    arena_deinit(&b.arena);
    return 0;
}
