/* Tokens per second of whole optimizer steps on random tokens: fp32 on the CPU, the quickstart's model and a 15M Llama, to be read
 * beside bench/peer_torch_cpu.py in the same run.
 *
 *   bench_train [--model quickstart|llama-15m|FOLDER] [--batch B] [--seq T] [--steps N] [--threads N] [--profile]
 *
 * --profile: time of each kind of launch, from a run one launch at a time. */
#include "base/json.h"
#include "base/philox.h"
#include "base/pool.h"
#include "files/file.h"
#include "ops/ops.h"
#include "passes/compile.h"
#include "run/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char quickstart[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":4096,\"hidden_size\":256,\"intermediate_size\":768,"
    "\"num_hidden_layers\":6,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,\"tie_word_embeddings\":true}";
static const char llama_15m[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":32000,\"hidden_size\":288,\"intermediate_size\":768,"
    "\"num_hidden_layers\":6,\"num_attention_heads\":6,\"num_key_value_heads\":6,\"tie_word_embeddings\":true}";

typedef struct Bench {
    const char *model;
    int         batch, seq, steps, threads;
    bool        profile;
    Arena       arena;
    Device     *device;
    Plan       *plan;
    Session    *session;
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
    fprintf(stderr, "bench_train: %s\n", status_message());
    exit(status_exit_code(status));
}

static void open_model(Bench *b)
{
    Str text = str_of(quickstart);
    if (strcmp(b->model, "llama-15m") == 0) {
        text = str_of(llama_15m);
    } else if (strcmp(b->model, "quickstart") != 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/config.json", b->model);
        ok(file_read(&b->arena, path, 1 << 20, &text));
    }
    JsonValue config;
    IrModule *module;
    size_t    len = 0;
    ok(json_parse(&b->arena, b->model, text.data, text.len, &config));
    const char *ir = ir_shipped_module(json_get(&config, "architectures")->items[0].string.data, &len);
    ok(ir_module_parse(&b->arena, b->model, ir, len, &module));
    ok(device_cpu_create(b->threads, &b->device));
    CompileOptions options = compile_defaults();
    options.batch = b->batch;
    options.seq = b->seq;
    options.num_workers = pool_num_workers(device_cpu_pool(b->device));
    options.dense = true;
    ok(compile_plan(&b->arena, module, &config, b->model, &options, b->device, &b->plan));
    ok(session_create(b->plan, b->device, &b->session));
}

static void fill(Bench *b)
{
    int64_t vocab = 0;
    for (int i = 0; i < b->plan->num_params; i++) {
        const Param *param = b->plan->params[i];
        int64_t      n = type_numel(&param->type);
        float       *values = malloc((size_t)n * sizeof(float));
        if (i == 0) vocab = param->type.dim[0];
        for (int64_t k = 0; k < n; k++) {
            float u = philox_uniform(philox4x32((uint32_t)k, (uint32_t)i, 0, 0, 1).v[0]);
            values[k] = param->init == INIT_ONES ? 1 : (u - 0.5f) * 0.07f;
        }
        ok(session_write(b->session, param->name, values, (size_t)n * sizeof(float)));
        free(values);
    }
    int32_t *tokens = session_pointer(b->session, "tokens"), *labels = session_pointer(b->session, "labels");
    int32_t *positions = session_pointer(b->session, "positions"), *doc_start = session_pointer(b->session, "doc_start");
    for (int i = 0; i < b->batch * b->seq; i++) {
        Philox4 random = philox4x32((uint32_t)i, 0, 0, 0, 2);
        tokens[i] = (int32_t)(random.v[0] % (uint32_t)vocab);
        labels[i] = (int32_t)(random.v[1] % (uint32_t)vocab);
        positions[i] = i % b->seq;
        doc_start[i] = 0;
    }
}

static double train_step(Bench *b, int step)
{
    float hyper[HYPER_COUNT] = { [HYPER_LR] = 1e-4f, [HYPER_INV_TOKENS] = 1.0f / (float)(b->batch * b->seq) };
    hyper[HYPER_BIAS1] = (float)(1 - pow(0.9, step + 1));
    hyper[HYPER_BIAS2] = (float)(1 - pow(0.999, step + 1));
    double before = now();
    ok(session_write(b->session, "hyper", hyper, sizeof hyper));
    ok(session_run(b->session, PROGRAM_MICRO_FIRST));
    ok(session_run(b->session, PROGRAM_OPTIMIZER));
    ok(session_sync(b->session));
    return now() - before;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds by op, and what share of the step they are. */
static void profile(Bench *b)
{
    double seconds[OP_COUNT] = { 0 }, flops[OP_COUNT] = { 0 }, total = 0;
    int    counts[OP_COUNT] = { 0 };
    for (int repeat = 0; repeat < 3; repeat++) {
        for (int kind = PROGRAM_MICRO_FIRST; kind <= PROGRAM_OPTIMIZER; kind += PROGRAM_OPTIMIZER - PROGRAM_MICRO_FIRST) {
            const Program *program = &b->plan->program[kind];
            for (int i = 0; i < program->num_launches; i++) {
                const Launch *launch = &program->launches[i];
                double        before = now();
                ok(b->device->api->run(b->device, launch, 1, NULL));
                double took = now() - before;
                seconds[launch->node->op->id] += took;
                flops[launch->node->op->id] += launch->node->op->cost ? launch->node->op->cost(launch->node).flops : 0;
                counts[launch->node->op->id]++;
                total += took;
            }
        }
    }
    for (int id = 0; id < OP_COUNT; id++)
        if (counts[id])
            fprintf(stderr, "%-20s %4d launches %9.2f ms %5.1f %%  %7.1f GFLOP/s\n", op_table[id]->name, counts[id] / 3,
                    1e3 * seconds[id] / 3, 100 * seconds[id] / total, flops[id] / seconds[id] * 1e-9);
}

int main(int argc, char **argv)
{
    Bench b = { .model = "quickstart", .batch = 4, .seq = 512, .steps = 8, .threads = 2 };
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--profile") == 0) b.profile = true;
        else if (strcmp(argv[i], "--model") == 0) b.model = value, i++;
        else if (strcmp(argv[i], "--batch") == 0) b.batch = atoi(value), i++;
        else if (strcmp(argv[i], "--seq") == 0) b.seq = atoi(value), i++;
        else if (strcmp(argv[i], "--steps") == 0) b.steps = atoi(value), i++;
        else if (strcmp(argv[i], "--threads") == 0) b.threads = atoi(value), i++;
        else {
            fprintf(stderr, "bench_train: unknown argument %s\n", argv[i]);
            return 2;
        }
    }
    open_model(&b);
    fill(&b);
    double *seconds = calloc((size_t)b.steps + 1, sizeof(double));
    double  first = train_step(&b, 0);
    for (int i = 0; i < b.steps; i++) seconds[i] = train_step(&b, i + 1);
    qsort(seconds, (size_t)b.steps, sizeof(double), by_value);
    double tokens = (double)b.batch * b.seq, flops = b.plan->program[PROGRAM_MICRO_FIRST].cost.flops;
    printf("{\"model\": \"%s\", \"batch\": %d, \"seq\": %d, \"threads\": %d, \"tokens_per_second\": %.1f, \"best\": %.1f, "
           "\"gflops\": %.1f, \"first_step_s\": %.3f, \"memory_bytes\": %lld}\n",
           b.model, b.batch, b.seq, b.threads, tokens / seconds[b.steps / 2], tokens / seconds[0],
           flops / seconds[b.steps / 2] * 1e-9, first, (long long)plan_total_bytes(b.plan));
    if (b.profile) profile(&b);
    free(seconds);
    session_destroy(b.session);
    b.device->api->destroy(b.device);
    arena_deinit(&b.arena);
    return 0;
}
