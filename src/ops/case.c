#include "ops/case.h"

#include "base/clock.h"
#include "base/scoped.h"
#include "ops/draw.h"

#include <math.h>
#include <string.h>

Status op_alone(Graph *graph, const OpDef *op, const void *attrs, const TensorType *in, Node **out)
{
    Value *values[NODE_MAX_IN] = {0};
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim) values[i] = graph_add_value(graph, VALUE_INPUT, arena_printf(graph->arena, "in%d", i), &in[i]);
    return graph_add_node(graph, op, attrs, "out", values, op->num_in, ~0u, out);
}

bool type_is_float(const TensorType *type)
{
    return type->ndim && (DT_SET(type->dtype) & DT_SET_DECODE);
}

bool op_has_dtype(const OpDef *op, const TensorType *in, DType dtype)
{
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim && in[i].dtype == dtype) return true;
    return false;
}

/* The op's node in a graph of its own in the arena; NULL: infer refuses these types. */
static Node *try_alone(Arena *arena, const OpDef *op, const void *attrs, const TensorType *in)
{
    Node *node;
    if (op_alone(graph_create(arena, "case", op_table, OP_COUNT), op, attrs, in, &node) == OK) return node;
    status_clear();
    return NULL;
}

bool op_takes(const OpDef *op, const void *attrs, const TensorType *in)
{
    Arena arena = {0};
    bool  takes = try_alone(&arena, op, attrs, in) != NULL;
    arena_deinit(&arena);
    return takes;
}

/* Whether infer takes these types and the CPU has a kernel for them. */
static bool is_served(const OpDef *op, const void *attrs, const TensorType *in)
{
    Arena       arena = {0};
    const Node *node = try_alone(&arena, op, attrs, in);
    bool        served = node && op_cpu_kernel(node);
    arena_deinit(&arena);
    return served;
}

/* Gives inputs 0, step, 2 step, ... the dtype if they are float tensors and infer accepts it. Returns whether it accepted any. */
static bool round_inputs(const OpDef *op, const void *attrs, DType dtype, int step, TensorType *in)
{
    bool changed = false;
    for (int i = 0; i < op->num_in; i += step) {
        DType own = in[i].dtype;
        if (!type_is_float(&in[i])) continue;
        in[i].dtype = dtype;
        if (op_takes(op, attrs, in))
            changed = true;
        else
            in[i].dtype = own;
    }
    return changed;
}

/* Connects absent accumulate inputs, which have their output's type. Returns whether there is one. */
static bool add_accumulators(const OpDef *op, const void *attrs, TensorType *in)
{
    Arena       arena = {0};
    const Node *node = try_alone(&arena, op, attrs, in);
    bool        changed = false;
    for (int a = 0; node && a < op->num_alias; a++) {
        const OpAlias *alias = &op->alias[a];
        if (!alias->accumulate || in[alias->in].ndim || !node->out[alias->out]) continue;
        in[alias->in] = node->out[alias->out]->type;
        changed = true;
    }
    arena_deinit(&arena);
    return changed;
}

bool op_sample_types(const OpDef *op, const OpSample *sample, int index, TensorType in[NODE_MAX_IN], const char **name)
{
    static const struct {
        DType       dtype;
        int         step; /* 0: the types are the sample's */
        const char *names[2];
    } kinds[OP_TYPES / 2] = {{DT_F32, 0, {"f32", "f32, accumulating"}},
                             {DT_BF16, 1, {"bf16", "bf16, accumulating"}},
                             {DT_F16, 1, {"f16", "f16, accumulating"}},
                             {DT_BF16, 2, {"every other bf16", "every other bf16, accumulating"}}};
    DType      dtype = kinds[index / 2].dtype;
    int        step = kinds[index / 2].step;
    TensorType all[NODE_MAX_IN];
    memcpy(in, sample->in, sizeof all);
    memcpy(all, sample->in, sizeof all);
    *name = kinds[index / 2].names[index % 2];
    if (!step && (op_has_dtype(op, in, DT_BF16) || op_has_dtype(op, in, DT_F16))) *name = index % 2 ? "mixed, accumulating" : "mixed";
    if (step && !round_inputs(op, sample->attrs, dtype, step, in)) return false;
    if (step == 2 && round_inputs(op, sample->attrs, dtype, 1, all) && memcmp(in, all, sizeof all) == 0) return false;
    if (dtype == DT_F16 && !is_served(op, sample->attrs, in)) return false; /* ops that are only used in training have no f16 kernel */
    return index % 2 == 0 || add_accumulators(op, sample->attrs, in);
}

/* ---- contents ---- */

static OpData make_data(Arena *arena, const TensorType *type)
{
    size_t bytes = (size_t)type_bytes(type);
    return (OpData){arena_alloc(arena, bytes + 16), bytes};
}

Status op_case_make(OpCase *c, const OpDef *op, const void *attrs, const TensorType *in)
{
    *c = (OpCase){0};
    c->graph = graph_create(&c->arena, "case", op_table, OP_COUNT);
    TRY(op_alone(c->graph, op, attrs, in, &c->node));
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim) c->in[i] = make_data(&c->arena, &in[i]);
    for (int k = 0; k < op->num_out; k++) {
        c->all_out[k] = c->node->out[k];
        if (!c->all_out[k]) continue;
        c->all |= 1u << k;
        c->out[k] = make_data(&c->arena, &c->all_out[k]->type);
    }
    return OK;
}

Status op_case_of(OpCase *c, const OpDef *op, const void *attrs, const TensorView *in, bool wide)
{
    TensorType types[NODE_MAX_IN] = {0};
    for (int i = 0; i < op->num_in; i++) {
        if (in[i].data) types[i] = in[i].type;
        if (wide && type_is_float(&types[i])) types[i].dtype = DT_F32;
    }
    TRY(op_case_make(c, op, attrs, types));
    for (int i = 0; i < op->num_in; i++)
        if (in[i].data && types[i].dtype == in[i].type.dtype)
            memcpy(c->in[i].data, in[i].data, c->in[i].bytes);
        else if (in[i].data)
            dtype_convert(c->in[i].data, types[i].dtype, in[i].data, in[i].type.dtype, type_numel(&types[i]));
    return OK;
}

void op_case_free(OpCase *c)
{
    arena_deinit(&c->arena);
}

TensorView op_case_in(const OpCase *c, int i)
{
    return c->in[i].data ? (TensorView){c->in[i].data, c->node->in[i]->type} : (TensorView){0};
}

/* Fills inputs that another op computes from the same inputs (OpResults) with that op's results. */
static Status fill_results(OpCase *c, Device *cpu)
{
    const OpResults            *results = &c->node->op->results;
    TensorView                  in[NODE_MAX_IN];
    OpRun                       run = {.device = cpu, .want = ~0u};
    SCOPED(op_case_free) OpCase made = {0};
    SCOPED_STRBUF(faults);
    for (int i = 0; i < results->op->num_in; i++) in[i] = op_case_in(c, results->in[i]);
    TRY(op_case_of(&made, results->op, c->node->attrs, in, false));
    TRY(op_run(&made, &run, &faults));
    for (int k = 0; k < results->op->num_out; k++) {
        const Value *to = c->node->in[results->out[k]], *out = made.all_out[k];
        if (!to || !out) continue;
        FAIL_IF(!type_same_dims(&to->type, &out->type), ERR_INVALID, "input %d isn't what %s makes", results->out[k], results->op->name);
        dtype_convert(c->in[results->out[k]].data, to->type.dtype, made.out[k].data, out->type.dtype, type_numel(&to->type));
    }
    return OK;
}

Status op_case_draw(OpCase *c, const OpSample *sample, Device *cpu)
{
    for (int k = 0; k < c->node->num_in; k++) {
        if (!c->in[k].data) continue;
        op_draw(c->node, k, sample->int_range[k], 77 + (uint64_t)k, c->in[k].data);
        op_mask(c->node, k, sample, c->in[k].data);
    }
    return c->node->op->results.op ? fill_results(c, cpu) : OK;
}

void op_case_keep(OpCase *c, OpData kept[NODE_MAX_OUT])
{
    for (int k = 0; k < c->node->num_out; k++) {
        if (!c->all_out[k]) continue;
        kept[k] = make_data(&c->arena, &c->all_out[k]->type);
        memcpy(kept[k].data, c->out[k].data, kept[k].bytes);
    }
}

void op_case_want(OpCase *c, uint32_t want)
{
    for (int k = 0; k < c->node->num_out; k++) c->node->out[k] = want >> k & 1 ? c->all_out[k] : NULL;
}

/* ---- running ---- */

/* POISON: bytes of outputs and workspace before a run. POISON ^ POISON_OTHER: bytes of guards, and the poison of a second run. */
enum { GUARD = 256, POISON = 0xFF, POISON_OTHER = 0xC3 };

/* Memory of a tensor or workspace on the device (there), and the host's copy (here). Both have GUARD bytes before and after. */
typedef struct Buffer {
    unsigned char *there, *here;
    size_t         bytes, held; /* held: how many bytes, from the first on, `here` has */
} Buffer;

typedef struct Running {
    OpCase      *c;
    const OpRun *run;
    BoundKernel  kernel;
    Buffer       in[NODE_MAX_IN], out[NODE_MAX_OUT], workspace; /* there NULL: absent, or an output in an input's memory */
    int          taken[NODE_MAX_OUT];                           /* the input whose memory the output takes over; -1: none */
    uint32_t     changing;                                      /* bits of the inputs whose memory is taken over */
    TensorView   in_view[NODE_MAX_IN], out_view[NODE_MAX_OUT];
    Launch      *launches;
    int          repeats;
    void        *replay;
} Running;

static Status buffer_open(Device *device, Buffer *b, size_t bytes, size_t held)
{
    *b = (Buffer){.here = malloc_or_end(held + 2 * GUARD), .bytes = bytes, .held = held};
    return device->api->alloc(device, SPACE_DEVICE, bytes + 2 * GUARD, (void **)&b->there);
}

static Status buffer_write(Device *device, const Buffer *b, const void *contents, int poison)
{
    if (!b->there) return OK;
    memset(b->here, poison ^ POISON_OTHER, b->held + 2 * GUARD);
    if (contents)
        memcpy(b->here + GUARD, contents, b->held);
    else
        memset(b->here + GUARD, poison, b->held);
    TRY(device->api->upload(device, b->there, b->here, GUARD + b->held));
    return device->api->upload(device, b->there + GUARD + b->bytes, b->here + GUARD + b->held, GUARD);
}

static bool all_are(const unsigned char *bytes, size_t count, int value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0;
}

static Status buffer_read(Device *device, const Buffer *b, int poison, const char *what, StrBuf *faults)
{
    if (!b->there) return OK;
    TRY(device->api->download(device, b->here, b->there, GUARD + b->held));
    TRY(device->api->download(device, b->here + GUARD + b->held, b->there + GUARD + b->bytes, GUARD));
    if (!all_are(b->here, GUARD, poison ^ POISON_OTHER) || !all_are(b->here + GUARD + b->held, GUARD, poison ^ POISON_OTHER))
        strbuf_printf(faults, "; wrote outside %s of %zu bytes", what, b->bytes);
    return OK;
}

static void buffer_close(Device *device, const Buffer *b)
{
    if (b->there) device->api->free(device, SPACE_DEVICE, b->there);
    free(b->here);
}

static void running_close(Running *r)
{
    Device *device = r->run->device;
    if (r->replay) device->api->release(device, r->replay);
    for (int i = 0; i < NODE_MAX_IN; i++) buffer_close(device, &r->in[i]);
    for (int k = 0; k < NODE_MAX_OUT; k++) buffer_close(device, &r->out[k]);
    buffer_close(device, &r->workspace);
    free(r->launches);
    op_case_want(r->c, r->c->all);
}

static Status open_buffers(Running *r)
{
    const size_t  most = 1 << 20; /* bytes of a workspace that are poisoned at most, if the device isn't synchronous */
    const OpCase *c = r->c;
    Device       *device = r->run->device;
    const Node   *node = c->node;
    size_t        works_in = r->kernel.workspace_bytes;
    TRY(buffer_open(device, &r->workspace, works_in, device->api->is_synchronous || works_in < most ? works_in : most));
    for (int i = 0; i < node->num_in; i++) {
        if (!c->in[i].data) continue;
        TRY(buffer_open(device, &r->in[i], c->in[i].bytes, c->in[i].bytes));
        r->in_view[i] = (TensorView){r->in[i].there + GUARD, node->in[i]->type};
    }
    for (int k = 0; k < node->num_out; k++) {
        const Value *out = node->out[k];
        r->taken[k] = -1;
        if (!out) continue;
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i] && (out->storage == node->in[i] || (k == 0 && r->run->over == node->in[i]))) r->taken[k] = i;
        if (r->taken[k] >= 0)
            r->changing |= 1u << r->taken[k];
        else
            TRY(buffer_open(device, &r->out[k], c->out[k].bytes, c->out[k].bytes));
        r->out_view[k] = (TensorView){(r->taken[k] < 0 ? r->out[k].there : r->in[r->taken[k]].there) + GUARD, out->type};
    }
    return OK;
}

static Status running_open(Running *r)
{
    Device     *device = r->run->device;
    const Node *node = r->c->node;
    r->kernel = r->run->kernel;
    if (!r->kernel.run) TRY(device->api->bind(device, node, &r->kernel));
    TRY(open_buffers(r));
    Launch launch = {.kernel = r->kernel, .node = node};
    launch.args = (KernelArgs){.in = r->in_view,
                               .out = r->out_view,
                               .num_in = node->num_in,
                               .num_out = node->num_out,
                               .attrs = node->attrs,
                               .accumulate = r->run->plain ? 0 : node_accumulate_mask(node),
                               .rows_alone = (node->flags & NODE_ROWS_ALONE) != 0,
                               .workspace = r->workspace.there + GUARD,
                               .workspace_bytes = r->workspace.bytes};
    r->repeats = r->run->repeats ? r->run->repeats : 1;
    r->launches = malloc_or_end((size_t)r->repeats * sizeof launch);
    for (int i = 0; i < r->repeats; i++) r->launches[i] = launch;
    return device->api->prepare(device, r->launches, r->repeats, &r->replay);
}

static Status write_all(const Running *r, int poison)
{
    const OpCase *c = r->c;
    uint32_t      cleared = 0; /* inputs that a plain result overwrites without reading them */
    for (int k = 0; k < c->node->num_out && r->run->plain; k++)
        if (node_accumulate_mask(c->node) >> k & 1) cleared |= 1u << r->taken[k];
    for (int i = 0; i < NODE_MAX_IN; i++) TRY(buffer_write(r->run->device, &r->in[i], cleared >> i & 1 ? NULL : c->in[i].data, poison));
    for (int k = 0; k < NODE_MAX_OUT; k++) TRY(buffer_write(r->run->device, &r->out[k], NULL, poison));
    return buffer_write(r->run->device, &r->workspace, NULL, poison);
}

static Status read_all(const Running *r, int poison, StrBuf *faults)
{
    const OpCase *c = r->c;
    for (int i = 0; i < c->node->num_in; i++) {
        TRY(buffer_read(r->run->device, &r->in[i], poison, "an input", faults));
        if (r->in[i].there && !(r->changing >> i & 1) && memcmp(r->in[i].here + GUARD, c->in[i].data, c->in[i].bytes) != 0)
            strbuf_printf(faults, "; changed input %d", i);
    }
    for (int k = 0; k < c->node->num_out; k++) {
        if (!c->node->out[k]) continue;
        TRY(buffer_read(r->run->device, &r->out[k], poison, "an output", faults));
        memcpy(c->out[k].data, (r->taken[k] < 0 ? r->out[k].here : r->in[r->taken[k]].here) + GUARD, c->out[k].bytes);
    }
    return buffer_read(r->run->device, &r->workspace, poison, "its workspace", faults);
}

static Status run_once(const Running *r, int poison, StrBuf *faults)
{
    Device *device = r->run->device;
    TRY(write_all(r, poison));
    TRY(device->api->sync(device));
    double begin = clock_seconds();
    TRY(device->api->run(device, r->launches, r->repeats, r->replay));
    TRY(device->api->sync(device));
    if (r->run->seconds) *r->run->seconds = (clock_seconds() - begin) / r->repeats;
    return read_all(r, poison, faults);
}

static void expect_bits(const OpCase *c, const OpData *expected, const char *when, StrBuf *faults)
{
    for (int k = 0; k < c->node->num_out; k++)
        if (c->node->out[k] && memcmp(expected[k].data, c->out[k].data, expected[k].bytes) != 0)
            strbuf_printf(faults, "; output %d has other bits %s", k, when);
}

Status op_run(OpCase *c, const OpRun *run, StrBuf *faults)
{
    OpData                        first[NODE_MAX_OUT];
    SCOPED(running_close) Running r = {.c = c, .run = run};
    op_case_want(c, run->want);
    TRY(running_open(&r));
    TRY(run_once(&r, POISON, faults));
    if (run->expected) expect_bits(c, run->expected, run->when, faults);
    if (run->twice) op_case_keep(c, first);
    if (run->twice || run->seconds) TRY(run_once(&r, POISON ^ POISON_OTHER, faults));
    if (run->twice) expect_bits(c, first, "in a second run", faults);
    return OK;
}

/* ---- comparing ---- */

double tensor_element(const TensorType *type, const void *data, int64_t i)
{
    float value;
    if (type->dtype == DT_F32) return (double)((const float *)data)[i];
    if (type->dtype == DT_BF16) return (double)bf16_to_f32(((const uint16_t *)data)[i]);
    if (type->dtype == DT_I64) return (double)((const int64_t *)data)[i];
    if (type->dtype == DT_I32) return (double)((const int32_t *)data)[i];
    if (type->dtype != DT_F16 && !(DT_SET(type->dtype) & DT_SET_FP8)) return dtype_code(type->dtype, data, i);
    dtype_decode(type->dtype, (const char *)data + dtype_bytes(type->dtype, i), 1, &value);
    return (double)value;
}

TensorErrors tensor_errors(const TensorType *ta, const void *a, const TensorType *tb, const void *b, double floor)
{
    double most = 0, largest = floor, error = 0, scale = 0;
    for (int64_t i = 0, n = type_numel(ta); i < n; i++) {
        double x = tensor_element(ta, a, i), y = tensor_element(tb, b, i);
        bool   same = x == y || (isnan(x) && isnan(y));
        double d = same ? 0 : fabs(x - y);
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
        error += d * d;
        if (isfinite(y)) scale += y * y, largest = fmax(largest, fabs(y));
    }
    return (TensorErrors){.l2 = !most             ? 0
                                : isfinite(error) ? sqrt(error) / (scale > 0 ? sqrt(scale) : 1e-30)
                                                  : INFINITY,
                          .most = !most ? 0 : most / largest};
}
