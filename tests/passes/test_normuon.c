/* normuon_emit: its nodes, run one by one on the CPU, compared with the formula in fp64 (tests/oracle/make_normuon.py). */
#include "passes/normuon.h"

#include "files/safetensors.h"
#include "ops/attrs.h"
#include "ops/infer.h"
#include "test.h"

static const char fixture_path[] = "tests/fixtures/normuon.safetensors";

enum { UPDATES = 20, MAX_VALUES = 128 };
static const double learning_rate = 0.02, weight_decay = 0.1;

/* The graph of one matrix, with memory for every value. */
typedef struct Setup {
    Arena         arena;
    Graph        *graph;
    NormuonShared shared;
    NormuonMatrix matrix;
    void         *memory[MAX_VALUES]; /* by value id */
} Setup;

static Value *value_make(Setup *s, ValueKind kind, const char *name, TensorType type)
{
    return graph_add_value(s->graph, kind, name, &type);
}

/* The weight's rows are periods of equal layout. matrices: for each matrix, its number of adjacent rows in a period; the list ends with 0.
 * NULL: the weight is one matrix. */
static void setup_matrices(Setup *s, const NormuonOptions *options, DType weights, int64_t rows, int64_t cols, const int64_t *matrices)
{
    TensorType w = type_make(weights, 2, rows, cols), wide = type_make(DT_F32, 2, rows, cols), one = type_make(DT_F32, 1, INT64_C(1));
    *s = (Setup){0};
    s->graph = graph_create(&s->arena, "update", op_table, OP_COUNT);
    s->shared = (NormuonShared){.norm2 = value_make(s, VALUE_STATE, "norm2", one),
                                .loss = value_make(s, VALUE_STATE, "loss", one),
                                .hyper = value_make(s, VALUE_INPUT, "hyper", type_make(DT_F32, 1, (int64_t)HYPER_COUNT)),
                                .step = value_make(s, VALUE_INPUT, "step", type_make(DT_I64, 1, (int64_t)STEP_COUNT))};
    s->matrix = (NormuonMatrix){.w = value_make(s, VALUE_PARAM, "w", w),
                                .g = value_make(s, VALUE_GRAD, "g", wide),
                                .m = value_make(s, VALUE_STATE, "m", wide),
                                .v = value_make(s, VALUE_STATE, "v", type_make(DT_F32, 1, rows)),
                                .weight_decay = weight_decay,
                                .key = 5};
    for (int i = 0; matrices && matrices[i]; i++) s->matrix.rows.period += matrices[i];
    for (int i = 0; i == 0 || (matrices && matrices[i]); i++) {
        s->matrix.rows.begin += s->matrix.rows.size;
        s->matrix.rows.size = matrices ? matrices[i] : 0;
        EXPECT_OK(normuon_emit(s->graph, options, &s->shared, &s->matrix));
    }
    EXPECT_OK(graph_verify(s->graph));
    EXPECT(s->graph->num_values <= MAX_VALUES);
    for (int i = 0; i < s->graph->num_values; i++) s->memory[i] = arena_alloc(&s->arena, (size_t)type_bytes(&s->graph->values[i]->type));
}

static void setup_make(Setup *s, const NormuonOptions *options, DType weights, int64_t rows, int64_t cols)
{
    setup_matrices(s, options, weights, rows, cols, NULL);
}

static void *data_of(Setup *s, Value *value)
{
    return s->memory[value_root(value, NULL)->id];
}

static void run_node(Setup *s, Node *node)
{
    NodeArgs         storage;
    KernelArgs       args = *node_args(node, &storage);
    const CpuKernel *kernel = op_cpu_kernel(node);
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i]) storage.in[i].data = data_of(s, node->in[i]);
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) storage.out[k].data = data_of(s, node->out[k]);
    args.workspace_bytes = node->op->workspace ? node->op->workspace(node, 1) : 0;
    args.workspace = aligned_alloc(256, (args.workspace_bytes + 256) / 256 * 256);
    EXPECT(kernel && kernel->run(&args) == OK);
    free(args.workspace);
}

/* Multiples of 1/64 in [-2, 2), as in the oracle. */
static float number(uint32_t turn, int64_t rows, int64_t index)
{
    uint32_t h = (uint32_t)index * 0x9E3779B1u + (turn * 1000 + (uint32_t)rows) * 0x85EBCA77u;
    h = (h ^ h >> 15) * 0x2C1B3C6Du;
    h = (h ^ h >> 12) * 0x297A2D39u;
    h ^= h >> 15;
    return (float)((int)(h >> 24) - 128) / 64;
}

/* Writes this turn's gradients and their norm, then runs the nodes. */
static void update(Setup *s, uint32_t turn)
{
    const TensorType *type = &s->matrix.g->type;
    float            *g = data_of(s, s->matrix.g), *hyper = data_of(s, s->shared.hyper);
    double            norm2 = 0;
    for (int64_t i = 0; i < type_numel(type); i++) {
        g[i] = number(turn, type->dim[0], i);
        norm2 += (double)g[i] * (double)g[i];
    }
    *(float *)data_of(s, s->shared.norm2) = (float)norm2;
    hyper[HYPER_LR] = (float)learning_rate;
    ((int64_t *)data_of(s, s->shared.step))[STEP_INDEX] = turn;
    for (Node *node = s->graph->first; node; node = node->next) run_node(s, node);
}

/* Returns |dw - dw64| / |dw64| after UPDATES updates. */
static double error_of(const NormuonOptions *options, int64_t rows, int64_t cols, const StTensor *want)
{
    Setup  s;
    double error = 0, size = 0;
    setup_make(&s, options, DT_F32, rows, cols);
    float *w = data_of(&s, s.matrix.w);
    for (int64_t i = 0; i < rows * cols; i++) w[i] = number(0, rows, i);
    for (uint32_t turn = 1; turn <= UPDATES; turn++) update(&s, turn);
    for (int64_t i = 0; i < rows * cols; i++) {
        double moved = (double)((const float *)want->data)[i], d = (double)w[i] - (double)number(0, rows, i) - moved;
        error += d * d;
        size += moved * moved;
    }
    arena_deinit(&s.arena);
    return sqrt(error / size);
}

static void updates_follow_the_formula(void)
{
    static const char *const steps[] = {[NORMUON_POLAR_EXPRESS] = "polar_express", [NORMUON_NEWTON_SCHULZ] = "newton_schulz"};
    static const int64_t     shapes[][2] = {{24, 56}, {56, 24}, {32, 32}, {24, 56}}; /* the last shape runs without Nesterov momentum */
    StFile                  *file = NULL;
    EXPECT_OK(st_open(fixture_path, &file));
    for (int k = 0; file && k < NORMUON_STEPS_COUNT * 4 * 2; k++) {
        NormuonOptions options = normuon_defaults();
        const int64_t *shape = shapes[k / 2 % 4];
        char           name[64];
        options.steps = (NormuonSteps)(k / 8);
        options.compute_dtype = k % 2 ? DT_BF16 : DT_F32;
        options.nesterov = k / 2 % 4 < 3;
        options.max_grad_norm = 1;
        snprintf(name, sizeof name, "%s.%lldx%lld%s", steps[options.steps], (long long)shape[0], (long long)shape[1],
                 options.nesterov ? "" : ".plain");
        const StTensor *want = st_find(file, name);
        EXPECT(want && want->numel == shape[0] * shape[1]);
        if (!want) continue;
        double error = error_of(&options, shape[0], shape[1], want), limit = k % 2 ? 3e-2 : 1e-3;
        if (!(error <= limit)) test_fail(__FILE__, __LINE__, "%s in %s is off by %.3g", name, k % 2 ? "bf16" : "f32", error);
    }
    st_close(file);
}

/* A step that isn't applied changes no bit, even if gradients and results are NaN. */
static void a_step_that_is_not_finite_touches_nothing(void)
{
    for (int bad = 0; bad < 2; bad++) {
        NormuonOptions options = normuon_defaults();
        Setup          s;
        float          kept[3][24 * 56];
        setup_make(&s, &options, DT_F32, 24, 56);
        update(&s, 1);
        Value *const state[] = {s.matrix.w, s.matrix.m, s.matrix.v};
        for (int k = 0; k < 3; k++) memcpy(kept[k], data_of(&s, state[k]), (size_t)type_bytes(&state[k]->type));
        *(float *)data_of(&s, s.matrix.g) = NAN;
        *(float *)data_of(&s, s.shared.norm2) = bad ? NAN : 1;
        *(float *)data_of(&s, s.shared.loss) = bad ? 1 : INFINITY;
        for (Node *node = s.graph->first; node; node = node->next) run_node(&s, node);
        for (int k = 0; k < 3; k++) EXPECT(memcmp(kept[k], data_of(&s, state[k]), (size_t)type_bytes(&state[k]->type)) == 0);
        arena_deinit(&s.arena);
    }
}

static void run_nodes(Setup *s, uint32_t turn)
{
    *(float *)data_of(s, s->shared.norm2) = 1;
    ((float *)data_of(s, s->shared.hyper))[HYPER_LR] = (float)learning_rate;
    ((int64_t *)data_of(s, s->shared.step))[STEP_INDEX] = turn;
    for (Node *node = s->graph->first; node; node = node->next) run_node(s, node);
}

/* A matrix that consists of `size` rows from `begin` on in every `period` rows must have the weights and states that it has alone. */
static void check_matrix(Setup *packed, const NormuonOptions *options, int64_t begin, int64_t size, int64_t period)
{
    const TensorType *type = &packed->matrix.w->type;
    int64_t           rows = type->dim[0], cols = type->dim[1], count = rows / period * size;
    size_t            bytes = (size_t)dtype_bytes(type->dtype, cols), wide = (size_t)cols * sizeof(float);
    Setup             s;
    float            *g, error = 0;
    char             *w;
    setup_make(&s, options, type->dtype, count, cols);
    g = data_of(&s, s.matrix.g);
    w = data_of(&s, s.matrix.w);
    for (uint32_t turn = 0; turn <= UPDATES; turn++) {
        for (int64_t row = 0; row < count; row++)
            for (int64_t col = 0; col < cols; col++)
                g[row * cols + col] = number(turn, rows, (row / size * period + begin + row % size) * cols + col);
        if (turn)
            run_nodes(&s, turn);
        else
            dtype_convert(w, type->dtype, g, DT_F32, count * cols);
    }
    for (int64_t row = 0; row < count; row++) {
        int64_t      at = row / size * period + begin + row % size;
        const char  *mine = (const char *)data_of(packed, packed->matrix.w) + (size_t)at * bytes;
        const float *m = (const float *)data_of(packed, packed->matrix.m) + at * cols, *v = data_of(packed, packed->matrix.v);
        EXPECT(memcmp(m, (const float *)data_of(&s, s.matrix.m) + row * cols, wide) == 0);
        EXPECT_NEAR(v[at] / ((const float *)data_of(&s, s.matrix.v))[row], 1, 1e-4);
        if (period == rows) EXPECT(memcmp(mine, w + (size_t)row * bytes, bytes) == 0);
        for (int64_t col = 0; col < cols && type->dtype == DT_F32; col++)
            error = fmaxf(error, fabsf(((const float *)(const void *)mine)[col] - ((const float *)(void *)w)[row * cols + col]));
    }
    EXPECT_NEAR(error, 0, 1e-5);
    arena_deinit(&s.arena);
}

/* Each matrix of a weight moves as if alone, whether its rows are adjacent or alternate with other matrices' rows. */
static void each_matrix_of_a_weight_moves_as_if_alone(void)
{
    static const struct {
        DType   weights;
        int64_t rows, cols, matrices[4];
    } cases[] = {{DT_F32, 24, 7, {12, 6, 6}}, {DT_BF16, 24, 7, {13, 6, 5}}, {DT_F32, 40, 56, {20, 20}},    {DT_F32, 24, 7, {4, 2, 2}},
                 {DT_F32, 24, 56, {1, 1, 1}}, {DT_F32, 64, 24, {4, 4}},     {DT_BF16, 56, 24, {8, 24, 24}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        NormuonOptions options = normuon_defaults();
        int64_t        rows = cases[i].rows, cols = cases[i].cols, begin = 0;
        Setup          s;
        options.compute_dtype = DT_F32;
        setup_matrices(&s, &options, cases[i].weights, rows, cols, cases[i].matrices);
        float *g = data_of(&s, s.matrix.g);
        for (uint32_t turn = 0; turn <= UPDATES; turn++) {
            for (int64_t k = 0; k < rows * cols; k++) g[k] = number(turn, rows, k);
            if (turn)
                run_nodes(&s, turn);
            else
                dtype_convert(data_of(&s, s.matrix.w), cases[i].weights, g, DT_F32, rows * cols);
        }
        for (int k = 0; cases[i].matrices[k]; begin += cases[i].matrices[k++])
            check_matrix(&s, &options, begin, cases[i].matrices[k], s.matrix.rows.period);
        arena_deinit(&s.arena);
    }
}

/* Zero gradients give no direction: weights only decay. */
static void gradients_of_zero_move_nothing(void)
{
    NormuonOptions options = normuon_defaults();
    Setup          s;
    setup_make(&s, &options, DT_F32, 24, 56);
    float *w = data_of(&s, s.matrix.w), *hyper = data_of(&s, s.shared.hyper);
    hyper[HYPER_LR] = (float)learning_rate;
    for (int i = 0; i < 24 * 56; i++) w[i] = 1;
    for (Node *node = s.graph->first; node; node = node->next) run_node(&s, node);
    for (int i = 0; i < 24 * 56; i++) EXPECT_NEAR(w[i], 1 - learning_rate * weight_decay, 1e-7);
    arena_deinit(&s.arena);
}

/* bf16 weights that move by less than half of their last bit move on average as far as fp32 weights. */
static void bf16_weights_keep_small_updates(void)
{
    NormuonOptions options = normuon_defaults();
    Setup          s, wide;
    double         along = 0, size = 0;
    options.max_grad_norm = 1;
    setup_make(&s, &options, DT_BF16, 56, 24);
    setup_make(&wide, &options, DT_F32, 56, 24);
    uint16_t *w = data_of(&s, s.matrix.w);
    float    *w32 = data_of(&wide, wide.matrix.w);
    for (int i = 0; i < 56 * 24; i++) w[i] = bf16_from_f32(8), w32[i] = 8; /* half a last bit: 1/32; an update: 0.004 */
    for (uint32_t turn = 1; turn <= UPDATES; turn++) {
        update(&s, turn);
        update(&wide, turn);
    }
    for (int i = 0; i < 56 * 24; i++) {
        double moved = (double)w32[i] - 8;
        along += ((double)bf16_to_f32(w[i]) - 8) * moved;
        size += moved * moved;
    }
    EXPECT_NEAR(along / size, 1, 0.1);
    arena_deinit(&s.arena);
    arena_deinit(&wide.arena);
}

TEST_MAIN(TEST(updates_follow_the_formula), TEST(each_matrix_of_a_weight_moves_as_if_alone),
          TEST(a_step_that_is_not_finite_touches_nothing), TEST(gradients_of_zero_move_nothing), TEST(bf16_weights_keep_small_updates))
