/* The op `sample` on a device: microseconds per launch over a vocabulary of 151,936, with one batch of logits, which the caches may hold,
 * and with four batches in turn, which they don't. Also whether the chosen ids are the CPU's.
 *
 *   build/bench/bench_sample [cuda | cpu] */
#include "base/philox.h"
#include "device/device.h"
#include "ops/infer.h"
#include "ops/sample/sample.h"

#include <stdio.h>
#include <stdlib.h>

enum { V = 151936, MOST_ROWS = 64, COPIES = 4, REPEATS = 40, BIASES = 300 };

typedef struct Case {
    const char *name;
    int64_t     rows;
    float       spread, controls[SAMPLE_CONTROLS];
    int64_t     best;
    bool        told, seen, biased;
} Case;

static const Case cases[] = {
    {"64 rows, k 50, p 0.9, T 0.8", 64, 2.5f, {0.8f, 50, 0.9f, 0, 1}, 0, true, false, false},
    {"the same, normal logits", 64, 1, {0.8f, 50, 0.9f, 0, 1}, 0, true, false, false},
    {"the same, 20 best", 64, 2.5f, {0.8f, 50, 0.9f, 0, 1}, 20, true, false, false},
    {"the same, no logprobs", 64, 2.5f, {0.8f, 50, 0.9f, 0, 1}, 0, false, false, false},
    {"8 rows", 8, 2.5f, {0.8f, 50, 0.9f, 0, 1}, 0, true, false, false},
    {"1 row", 1, 2.5f, {0.8f, 50, 0.9f, 0, 1}, 0, true, false, false},
    {"64 rows, greedy", 64, 2.5f, {0, 0, 1, 0, 1}, 0, true, false, false},
    {"64 rows, greedy, no logprobs", 64, 2.5f, {0, 0, 1, 0, 1}, 0, false, false, false},
    {"1 row, greedy, no logprobs", 1, 2.5f, {0, 0, 1, 0, 1}, 0, false, false, false},
    {"64 rows, T 0.8 alone", 64, 2.5f, {0.8f, 0, 1, 0, 1}, 0, true, false, false},
    {"64 rows, p 0.9, T 0.8", 64, 2.5f, {0.8f, 0, 0.9f, 0, 1}, 0, true, false, false},
    {"64 rows, p 0.9, nearly flat", 64, 0.5f, {1, 0, 0.9f, 0, 1}, 0, true, false, false},
    {"64 rows, penalties", 64, 2.5f, {0.8f, 50, 0.9f, 0, 1.1f, 0.1f, 0.1f}, 0, true, true, false},
    {"64 rows, penalties, 300 biases", 64, 2.5f, {0.8f, 50, 0.9f, 0, 1.1f, 0.1f, 0.1f}, 0, true, true, true},
};

static void try(Status status)
{
    if (status == OK) return;
    fprintf(stderr, "%s\n", status_message());
    exit(1);
}

static uint32_t word(uint32_t index, uint64_t key)
{
    return philox4x32(index, 0, 0, 0, key).v[0];
}

typedef struct Bench {
    Device     *device;
    const Case *of;
    Arena       arena;
    Node       *node;
    BoundKernel kernel;
    TensorView  in[COPIES][NODE_MAX_IN], out[NODE_MAX_OUT];
    void       *workspace;
} Bench;

static void make_node(Bench *b)
{
    const Case *c = b->of;
    SampleAttrs attrs = {.best = c->best};
    Graph      *graph = graph_create(&b->arena, "bench", op_table, OP_COUNT);
    TensorType  types[NODE_MAX_IN] = {{DT_F32, 2, {c->rows, V}},
                                      {DT_F32, 2, {c->rows, SAMPLE_CONTROLS}},
                                      {DT_I32, 2, {c->rows, SAMPLE_KEYS}},
                                      {DT_I32, 1, {c->rows}},
                                      {DT_I32, 1, {c->rows}}};
    Value      *in[NODE_MAX_IN] = {0};
    if (c->seen) types[SAMPLE_IN_SEEN] = type_make(DT_I32, 2, c->rows, (int64_t)V);
    if (c->biased) types[SAMPLE_IN_BIAS_IDS] = type_make(DT_I32, 2, c->rows, (int64_t)BIASES);
    if (c->biased) types[SAMPLE_IN_BIAS] = type_make(DT_F32, 2, c->rows, (int64_t)BIASES);
    for (int k = 0; k < op_sample.num_in; k++)
        if (types[k].ndim) in[k] = graph_add_value(graph, VALUE_INPUT, "x", &types[k]);
    try(graph_add_node(graph, &op_sample, &attrs, "y", in, op_sample.num_in, ~0u, &b->node));
    for (int k = SAMPLE_OUT_LOGPROBS; k <= SAMPLE_OUT_BEST_LOGPROBS && !c->told; k++) b->node->out[k] = NULL;
}

/* Element i of input k, as 32 bits. */
static int32_t element(const Case *c, int k, int64_t i, const float *normal)
{
    float    x = 0;
    uint32_t random = word((uint32_t)i, (uint64_t)k);
    switch (k) {
    case SAMPLE_IN_LOGITS:
        x = c->spread * normal[i];
        break;
    case SAMPLE_IN_CONTROLS:
        x = c->controls[i % SAMPLE_CONTROLS];
        break;
    case SAMPLE_IN_SLOTS:
        return (int32_t)i;
    case SAMPLE_IN_SEEN:
        return random % 100 ? 0 : random % 200 ? (int32_t)SAMPLE_IN_PROMPT : 1 + (int32_t)(random % 3);
    case SAMPLE_IN_BIAS_IDS:
        return (int32_t)(random % V);
    case SAMPLE_IN_BIAS:
        x = i % 3 ? -1 : -INFINITY;
        break;
    default:
        return (int32_t)random;
    }
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Allocates several copies of the logits, and one of each other input. */
static void make_tensors(Bench *b, const float *normal)
{
    const DeviceApi *api = b->device->api;
    for (int k = 0; k < b->node->num_in; k++) {
        if (!b->node->in[k]) continue;
        const TensorType *type = &b->node->in[k]->type;
        size_t            bytes = (size_t)type_bytes(type);
        int32_t          *data = malloc_or_end(bytes);
        for (int64_t i = 0; i < type_numel(type); i++) data[i] = element(b->of, k, i, normal);
        for (int copy = 0; copy < COPIES; copy++) {
            b->in[copy][k] = (TensorView){b->in[0][k].data, *type};
            if (copy && k != SAMPLE_IN_LOGITS) continue;
            try(api->alloc(b->device, SPACE_DEVICE, bytes, &b->in[copy][k].data));
            try(api->upload(b->device, b->in[copy][k].data, data, bytes));
        }
        free(data);
    }
    for (int k = 0; k < b->node->num_out; k++) {
        if (!b->node->out[k]) continue;
        b->out[k] = (TensorView){NULL, b->node->out[k]->type};
        if (k == SAMPLE_OUT_NEXT) b->out[k].data = b->in[0][SAMPLE_IN_NEXT].data;
        if (k == SAMPLE_OUT_SEEN) b->out[k].data = b->in[0][SAMPLE_IN_SEEN].data;
        if (!b->out[k].data) try(api->alloc(b->device, SPACE_DEVICE, (size_t)type_bytes(&b->out[k].type), &b->out[k].data));
    }
    try(api->bind(b->device, b->node, &b->kernel));
    try(api->alloc(b->device, SPACE_DEVICE, b->kernel.workspace_bytes + 256, &b->workspace));
}

static Bench bench_open(Device *device, const Case *of, const float *normal)
{
    Bench b = {.device = device, .of = of};
    make_node(&b);
    make_tensors(&b, normal);
    return b;
}

static void bench_close(Bench *b)
{
    const DeviceApi *api = b->device->api;
    for (int k = 0; k < NODE_MAX_IN; k++)
        for (int copy = 0; copy < COPIES && b->in[0][k].data; copy++)
            if (!copy || k == SAMPLE_IN_LOGITS) api->free(b->device, SPACE_DEVICE, b->in[copy][k].data);
    for (int k = 0; k < SAMPLE_OUT_NEXT; k++)
        if (b->out[k].data) api->free(b->device, SPACE_DEVICE, b->out[k].data);
    api->free(b->device, SPACE_DEVICE, b->workspace);
    arena_deinit(&b->arena);
}

/* Mean seconds of a launch, over `repeats` launches that read `copies` copies of the logits in turn. Measures three times; the last one
 * counts. */
static double seconds_of(Bench *b, int repeats, int copies)
{
    const DeviceApi *api = b->device->api;
    Launch          *launches = calloc((size_t)repeats, sizeof *launches);
    void            *replay = NULL;
    double           seconds = 0;
    for (int i = 0; i < repeats; i++)
        launches[i] = (Launch){.kernel = b->kernel,
                               .node = b->node,
                               .args = {.in = b->in[i % copies],
                                        .out = b->out,
                                        .num_in = b->node->num_in,
                                        .num_out = b->node->num_out,
                                        .attrs = b->node->attrs,
                                        .workspace = b->workspace,
                                        .workspace_bytes = b->kernel.workspace_bytes}};
    try(api->prepare(b->device, launches, repeats, &replay));
    for (int turn = 0; turn < 3; turn++) {
        try(api->mark(b->device, 0));
        try(api->run(b->device, launches, repeats, replay));
        try(api->mark(b->device, 1));
        try(api->await(b->device, 0));
        try(api->await(b->device, 1));
        try(api->sync(b->device));
        try(api->seconds_between(b->device, 0, 1, &seconds));
    }
    if (replay) api->release(b->device, replay);
    free(launches);
    return seconds / repeats;
}

/* The ids of one launch. */
static void ids_of(Bench *b, int32_t *ids)
{
    (void)seconds_of(b, 1, 1);
    try(b->device->api->download(b->device, ids, b->out[SAMPLE_OUT_IDS].data, (size_t)b->of->rows * sizeof *ids));
}

static void print_case(Device *device, Device *cpu, const Case *c, const float *normal)
{
    int32_t ids[MOST_ROWS], expected[MOST_ROWS];
    int     differ = 0;
    Bench   b = bench_open(device, c, normal), on_cpu = bench_open(cpu, c, normal);
    ids_of(&b, ids);
    ids_of(&on_cpu, expected);
    for (int64_t i = 0; i < c->rows; i++) differ += ids[i] != expected[i];
    double warm = seconds_of(&b, REPEATS, 1), cold = seconds_of(&b, REPEATS, COPIES);
    printf("%-32s %9.1f %9.1f   %s\n", c->name, warm * 1e6, cold * 1e6, differ ? "OTHER IDS" : "same ids");
    bench_close(&b);
    bench_close(&on_cpu);
}

int main(int argc, char **argv)
{
    Device *device, *cpu;
    float  *normal = malloc_or_end(sizeof(float) * MOST_ROWS * V);
    try(device_open(argc > 1 ? argv[1] : "cuda", 0, 0, &device));
    try(device_cpu_create(0, &cpu));
    for (uint32_t i = 0; i < MOST_ROWS * V; i++) {
        Philox4 draw = philox4x32(i, 0, 0, 0, 1);
        float   u = ((float)draw.v[0] + 0.5f) * 0x1p-32f;
        normal[i] = sqrtf(-2 * logf(u)) * cosf(6.2831853f * philox_uniform(draw.v[1]));
    }
    printf("%-32s %9s %9s   us a launch, ids beside the CPU's\n", "", "in cache", "in turns");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) print_case(device, cpu, &cases[i], normal);
    free(normal);
    device->api->destroy(device);
    cpu->api->destroy(cpu);
    return 0;
}
