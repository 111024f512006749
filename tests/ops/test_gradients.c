/* Backward rules against central differences of the forward kernels. Each sample of each op with a rule gets a graph: trained parameters ->
 * inputs -> op -> a random linear functional of its outputs -> loss. autodiff differentiates the graph.
 *
 *   test_gradients [op] */
#include "ops/op_case.h"
#include "ops/op_inputs.h"
#include "passes/pass.h"

/* ---- the functional: probe(o0, r0, o1, r1, ...) = sum of o_k r_k ---- */

static Status probe_infer(Node *node)
{
    node->out[0]->type = type_make(DT_F32, 2, INT64_C(1), INT64_C(1));
    return OK;
}

static Status probe_backward(GradBuilder *grad, const Node *node)
{
    for (int i = 0; i < node->num_in; i += 2)
        if (node->in[i]) TRY(grad_add(grad, node->in[i], node->in[i + 1]));
    return OK;
}

static Status probe_cpu(const KernelArgs *args)
{
    double sum = 0;
    for (int i = 0; i < args->num_in; i += 2)
        for (int64_t j = 0; args->in[i].data && j < type_numel(&args->in[i].type); j++)
            sum += (double)((const float *)args->in[i].data)[j] * (double)((const float *)args->in[i + 1].data)[j];
    *(double *)(void *)args->workspace = sum;
    *(float *)args->out[0].data = (float)sum;
    return OK;
}

static size_t probe_workspace(const Node *node, int num_workers)
{
    (void)node;
    (void)num_workers;
    return sizeof(double);
}

enum { OP_PROBE = OP_COUNT };
static const OpDef op_probe = {.id = OP_PROBE,
                               .name = "probe",
                               .num_in = 4,
                               .num_out = 1,
                               .min_in = 2,
                               .infer = probe_infer,
                               .backward = probe_backward,
                               .workspace = probe_workspace,
                               .cpu = {{DT_SET_F32, probe_cpu, "reference"}}};

/* ---- a graph that runs ---- */

typedef struct Model {
    Arena  arena;
    Graph *graph;
    Node  *node; /* the op under test */
    Node   made; /* copy of the node as it was made: differentiating may remove the node */
    Value *made_in[NODE_MAX_IN];
    Value *param[NODE_MAX_IN]; /* the parameter that input i is computed from; NULL: not differentiated */
    Param  params[NODE_MAX_IN];
    void **memory; /* by value id; only set for values that have their own memory */
    int    num_memory;
} Model;

static Value *add_param(Model *m, int i, const TensorType *type)
{
    m->params[i] = (Param){.name = arena_printf(&m->arena, "p%d", i), .type = *type, .trained = true, .layer = -1};
    return m->param[i] = graph_add_param(m->graph, &m->params[i]);
}

/* An activation of this type: the rows of a table in order, so that its gradient is the table's gradient. */
static Status add_activation(Model *m, int i, const TensorType *type, Value **out)
{
    TensorType table = type_make(DT_F32, 2, type_rows(type), type_cols(type)), iota = type_make(DT_I32, 2, INT64_C(1), type_rows(type));
    Value     *in[] = {graph_add_value(m->graph, VALUE_INPUT, arena_printf(&m->arena, "iota%d", i), &iota), add_param(m, i, &table)};
    Node      *node;
    TRY(graph_add_node(m->graph, &op_embedding, NULL, "rows", in, 2, 1, &node));
    ReshapeAttrs dims = {.ndim = type->ndim, .d0 = type->dim[0], .d1 = type->dim[1], .d2 = type->dim[2], .d3 = type->dim[3]};
    TRY(graph_add_node(m->graph, &op_reshape, &dims, "x", node->out, 1, 1, &node));
    *out = node->out[0];
    return OK;
}

/* Adds loss_sum over the probe, or over the op itself if its result is a sum or is summed. */
static Status add_loss(Model *m)
{
    TensorType hyper = type_make(DT_F32, 1, (int64_t)HYPER_COUNT);
    Value     *in[NODE_MAX_IN] = {0};
    Node      *node = m->node;
    int        n = 0;
    for (int k = 0; k < m->node->num_out; k++) {
        if (!m->node->out[k] || (k && !(node->op->grad_outputs >> k & 1))) continue;
        in[n++] = m->node->out[k];
        in[n++] = graph_add_value(m->graph, VALUE_INPUT, arena_printf(&m->arena, "r%d", k), &m->node->out[k]->type);
    }
    bool summed = m->node->op == &op_loss_sum || m->node->op == &op_lm_head_loss; /* the rule moves readers of its losses */
    if (!summed) TRY(graph_add_node(m->graph, &op_probe, NULL, "probe", in, n, 1, &node));
    if (m->node->op != &op_loss_sum) {
        Value *sum[] = {node->out[0], graph_add_value(m->graph, VALUE_INPUT, "hyper", &hyper)};
        TRY(graph_add_node(m->graph, &op_loss_sum, NULL, "loss", sum, 2, 1, &node));
    }
    graph_add_output(m->graph, "loss", node->out[0]);
    return OK;
}

/* differentiate: 0: no; 1: yes; 2: gradients are added to the values already in their memory. */
static Status model_make(Model *m, const OpDef *op, const OpSample *sample, int differentiate)
{
    static const OpDef *table[OP_COUNT + 1];
    memcpy(table, op_table, sizeof op_table);
    table[OP_PROBE] = &op_probe;
    *m = (Model){0};
    m->graph = graph_create(&m->arena, "gradient", table, OP_COUNT + 1);
    Value *in[NODE_MAX_IN] = {0};
    for (int i = 0; i < op->num_in; i++) {
        const TensorType *type = &sample->in[i];
        if (!type->ndim) continue;
        if (type->dtype != DT_F32 || op->constants >> i & 1)
            in[i] = graph_add_value(m->graph, VALUE_INPUT, arena_printf(&m->arena, "in%d", i), type);
        else if (op->params >> i & 1)
            in[i] = add_param(m, i, type);
        else
            TRY(add_activation(m, i, type, &in[i]));
    }
    TRY(graph_add_node(m->graph, op, sample->attrs, "out", in, op->num_in, ~0u, &m->node));
    m->made = *m->node;
    m->made.in = memcpy(m->made_in, m->node->in, sizeof(Value *) * (size_t)op->num_in);
    TRY(add_loss(m));
    if (differentiate) TRY(autodiff_graph(m->graph, differentiate == 2, false));
    TRY(graph_verify(m->graph));
    m->num_memory = m->graph->num_values;
    m->memory = arena_array(&m->arena, void *, m->num_memory);
    return OK;
}

static void model_free(Model *m)
{
    for (int i = 0; i < m->num_memory; i++) free(m->memory[i]);
    arena_deinit(&m->arena);
}

static void *memory_of(Model *m, Value *value)
{
    int64_t offset;
    Value  *root = value_root(value, &offset);
    size_t  bytes = (size_t)type_bytes(&root->type);
    if (!m->memory[root->id]) m->memory[root->id] = memset(malloc(bytes + 1), 0xFF, bytes);
    return (char *)m->memory[root->id] + dtype_bytes(root->type.dtype, offset);
}

static int name_index(const char *name)
{
    return (int)strtol(name + strcspn(name, "0123456789"), NULL, 10);
}
static uint64_t name_key(const char *name)
{
    return (uint64_t)(name_index(name) + 32 * name[0]);
}

/* Inputs and parameters are drawn by name, so that models of the same op and sample hold the same values. */
static void model_fill(Model *m, const OpSample *sample)
{
    for (int v = 0; v < m->graph->num_values; v++) {
        Value *value = m->graph->values[v];
        if (value->producer || value->kind == VALUE_ACTIVATION) continue;
        const char *name = value->name;
        void       *data = memory_of(m, value);
        int         index = name_index(name);
        for (int64_t i = 0, n = type_numel(&value->type); i < n; i++) {
            uint64_t key = name_key(name);
            double   draw = draw_normal(key, (uint32_t)i);
            int64_t  whole =
                sample->int_range[index] > 0 ? philox4x32((uint32_t)i, 1, 0, 0, key).v[0] % (uint32_t)sample->int_range[index] : 0;
            if (*name == 'p') draw = (double)op_draw_held(m->made.op->holds[index], (float)draw);
            if (value->type.dtype == DT_F32) ((float *)data)[i] = (float)draw;
            if (value->type.dtype == DT_I32) ((int32_t *)data)[i] = strncmp(name, "iota", 4) == 0 ? (int32_t)i : (int32_t)whole;
            if (value->type.dtype == DT_I64) ((int64_t *)data)[i] = whole;
        }
        if (strncmp(name, "in", 2) == 0 && m->made.in[index]) op_draw(&m->made, index, sample->int_range[index], name_key(name), data);
        if (strcmp(name, "hyper") == 0) ((float *)data)[HYPER_INV_TOKENS] = 1.0f;
    }
}

/* Runs every node in order; *out_loss: the loss, in fp64 if it comes from the probe. */
static Status model_run(Model *m, double *out_loss)
{
    bool probed = false;
    for (Node *node = m->graph->first; node; node = node->next) {
        if (node->op->flags & OP_VIEW) continue;
        TensorView in[NODE_MAX_IN] = {0}, out[NODE_MAX_OUT] = {0};
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i]) in[i] = (TensorView){memory_of(m, node->in[i]), node->in[i]->type};
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) out[k] = (TensorView){memory_of(m, node->out[k]), node->out[k]->type};
        size_t     bytes = node->op->workspace ? node->op->workspace(node, 1) : 0;
        void      *workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
        KernelArgs args = {.in = in,
                           .out = out,
                           .num_in = node->num_in,
                           .num_out = node->num_out,
                           .attrs = node->attrs,
                           .accumulate = node_accumulate_mask(node),
                           .workspace = workspace,
                           .workspace_bytes = bytes};
        Status     status = node->op->cpu[0].run(&args);
        if (node->op == &op_probe) *out_loss = *(double *)workspace;
        if (node->op->id == OP_LOSS_SUM && !probed) *out_loss = (double)*(float *)out[0].data;
        probed = probed || node->op == &op_probe;
        free(workspace);
        TRY(status);
    }
    return OK;
}

/* ---- central differences ---- */

/* Derivative of the loss at theta along `direction`, for step -> 0: two central differences, extrapolated. */
static double numeric_derivative(Model *m, Value *param, const double *direction, double step)
{
    float  *theta = memory_of(m, param);
    int64_t n = type_numel(&param->type);
    float  *saved = malloc((size_t)n * sizeof(float));
    double  slope[2];
    memcpy(saved, theta, (size_t)n * sizeof(float));
    for (int k = 0; k < 2; k++, step /= 2) {
        double loss[2];
        for (int sign = 0; sign < 2; sign++) {
            for (int64_t i = 0; i < n; i++) theta[i] = (float)(saved[i] + (sign ? step : -step) * direction[i]);
            EXPECT_OK(model_run(m, &loss[sign]));
        }
        slope[k] = (loss[1] - loss[0]) / (2 * step);
    }
    memcpy(theta, saved, (size_t)n * sizeof(float));
    free(saved);
    return (4 * slope[1] - slope[0]) / 3;
}

enum { NUM_DIRECTIONS = 3, NUM_ELEMENTS = 3 };

/* Checks along random directions, and at the first, the last and the steepest element. */
static void check_param(Model *forward, const float *gradient, int i, const char *what)
{
    Value  *param = forward->param[i];
    int64_t n = type_numel(&param->type), steepest = 0;
    double *direction = calloc((size_t)n, sizeof(double)), norm = 0;
    for (int64_t j = 0; j < n; j++) {
        norm += (double)gradient[j] * (double)gradient[j];
        if (fabsf(gradient[j]) > fabsf(gradient[steepest])) steepest = j;
    }
    norm = sqrt(norm);
    if (!(norm > 0)) test_fail(__FILE__, __LINE__, "%s: gradient of input %d has norm %g", what, i, norm);
    for (int k = 0; k < NUM_DIRECTIONS + NUM_ELEMENTS; k++) {
        double  want = 0, scale = norm;
        int64_t at = k == NUM_DIRECTIONS ? 0 : k == NUM_DIRECTIONS + 1 ? n - 1 : steepest;
        for (int64_t j = 0; j < n; j++) {
            direction[j] = k < NUM_DIRECTIONS ? draw_normal(1000 + (uint64_t)k, (uint32_t)j) : j == at;
            want += direction[j] * (double)gradient[j];
        }
        double got = numeric_derivative(forward, param, direction, k < NUM_DIRECTIONS ? 0.02 : 0.1);
        if (k >= NUM_DIRECTIONS) scale = fabs((double)gradient[steepest]);
        if (!(fabs(got - want) <= 2e-3 * scale))
            test_fail(__FILE__, __LINE__, "%s: d/d input %d %s is %.7g, central differences say %.7g (scale %.3g)", what, i,
                      k < NUM_DIRECTIONS ? "along a direction" : "at an element", want, got, scale);
    }
    free(direction);
}

/* `added` held the draws of model_fill before the run: the gradient must have been added to them. */
static void check_added(Model *m, Value *added, const float *gradient, const char *what)
{
    const float *got = memory_of(m, added);
    uint64_t     key = name_key(added->name);
    for (int64_t j = 0; j < type_numel(&added->type); j++) {
        double want = (double)(float)draw_normal(key, (uint32_t)j) + (double)gradient[j];
        if (fabs((double)got[j] - want) <= 1e-4 * (1 + fabs(want))) continue;
        test_fail(__FILE__, __LINE__, "%s: %s[%lld] is %.7g after accumulating, expected %.7g", what, added->name, (long long)j,
                  (double)got[j], want);
        return;
    }
}

static void check_gradients(const OpDef *op, const OpSample *sample, Model models[3], const char *what)
{
    double loss = 0;
    for (int k = 0; k < 3; k++) {
        Status status = model_make(&models[k], op, sample, k);
        if (status == OK) model_fill(&models[k], sample);
        if (status == OK && models[k].made.out[0] && models[k].made.out[0]->type.dtype == DT_BF16)
            return; /* the differences would be rounding errors */
        if (status == OK) status = model_run(&models[k], &loss);
        if (status == OK) continue;
        test_fail(__FILE__, __LINE__, "%s: %s", what, status_message());
        return;
    }
    for (int i = 0; i < op->num_in; i++) {
        if (!models[0].param[i]) continue;
        char name[32];
        snprintf(name, sizeof name, "grad.p%d", i);
        Value *plain = graph_find(models[1].graph, name), *added = graph_find(models[2].graph, name);
        if (!plain || !added) {
            test_fail(__FILE__, __LINE__, "%s: input %d gets no gradient", what, i);
            continue;
        }
        const float *gradient = memory_of(&models[1], plain);
        check_param(&models[0], gradient, i, what);
        check_added(&models[2], added, gradient, what);
    }
}

/* Whole numbers have no gradient. */
static bool is_whole(const OpDef *op, const OpSample *sample)
{
    bool   floats = false, whole = false;
    OpCase c;
    for (int i = 0; i < op->num_in; i++) floats = floats || (sample->in[i].ndim && sample->in[i].dtype == DT_F32);
    if (op_case_make(&c, op, sample->attrs, sample->in) == OK) whole = c.all_out[0]->type.dtype == DT_I32;
    op_case_free(&c);
    return whole || !floats;
}

static void check_sample(const OpDef *op, const OpSample *sample, int index)
{
    if (is_whole(op, sample)) return;
    Model models[3] = {0}; /* forward only; differentiated; differentiated with gradients added */
    char  what[96];
    snprintf(what, sizeof what, "%s sample %d", op->name, index);
    check_gradients(op, sample, models, what);
    for (int k = 0; k < 3; k++) model_free(&models[k]);
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    for (int id = 0; id < OP_COUNT; id++) {
        const OpDef *op = op_table[id];
        if (!op->backward || (argc > 1 && strcmp(argv[1], op->name) != 0)) continue;
        test_failures_of_case = 0;
        Arena     arena = {0};
        OpSamples samples;
        EXPECT_OK(op_samples_parse(&arena, op, op->samples, &samples));
        if (!samples.count) test_fail(__FILE__, __LINE__, "%s has a backward rule and no samples", op->name);
        for (int i = 0; i < samples.count; i++) check_sample(op, &samples.items[i], i);
        arena_deinit(&arena);
        if (test_failures_of_case) fprintf(stderr, "FAILED %s\n", op->name);
        *(test_failures_of_case ? &failed : &passed) += 1;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, test_skipped_case);
    return failed || !passed;
}
