#include "ops/case.h"

#include "base/clock.h"
#include "base/scoped.h"
#include "ops/draw.h"

#include <math.h>
#include <string.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

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

/* Sets every step'th input, if it is a float tensor, to the dtype, if infer takes it. Returns whether any is set. */
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

Status op_case_make(OpCase *c, const OpDef *op, const void *attrs, const TensorType *in)
{
    *c = (OpCase){0};
    c->graph = graph_create(&c->arena, "case", op_table, OP_COUNT);
    TRY(op_alone(c->graph, op, attrs, in, &c->node));
    for (int i = 0; i < op->num_in; i++) {
        if (!in[i].ndim) continue;
        c->in[i].bytes = (size_t)type_bytes(&in[i]);
        c->in[i].data = arena_alloc(&c->arena, c->in[i].bytes + 16);
    }
    for (int k = 0; k < op->num_out; k++) {
        c->all_out[k] = c->node->out[k];
        if (!c->all_out[k]) continue;
        c->all |= 1u << k;
        c->out[k].bytes = (size_t)type_bytes(&c->all_out[k]->type);
        c->out[k].data = arena_alloc(&c->arena, c->out[k].bytes + 16);
    }
    return OK;
}

void op_case_free(OpCase *c)
{
    arena_deinit(&c->arena);
}

/* Fills inputs that another op computes from the same inputs (OpResults) with that op's results. */
static Status fill_results(OpCase *c, Device *cpu)
{
    const OpResults            *results = &c->node->op->results;
    TensorType                  in[NODE_MAX_IN] = {0};
    OpRun                       run = {.device = cpu, .want = ~0u};
    SCOPED(op_case_free) OpCase made = {0};
    SCOPED_STRBUF(faults);
    for (int i = 0; i < results->op->num_in; i++)
        if (c->in[results->in[i]].data) in[i] = c->node->in[results->in[i]]->type;
    TRY(op_case_make(&made, results->op, c->node->attrs, in));
    for (int i = 0; i < results->op->num_in; i++)
        if (in[i].ndim) memcpy(made.in[i].data, c->in[results->in[i]].data, made.in[i].bytes);
    TRY(cpu->api->bind(cpu, made.node, &run.kernel));
    TRY(op_run(&made, &run, &faults));
    for (int k = 0; k < results->op->num_out; k++) {
        const Value *to = c->node->in[results->out[k]], *from = made.all_out[k];
        if (to && from)
            dtype_convert(c->in[results->out[k]].data, to->type.dtype, made.out[k].data, from->type.dtype, type_numel(&to->type));
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
        kept[k] = (OpData){0};
        if (!c->out[k].data) continue;
        kept[k] = (OpData){arena_alloc(&c->arena, c->out[k].bytes + 1), c->out[k].bytes};
        memcpy(kept[k].data, c->out[k].data, c->out[k].bytes);
    }
}

void op_case_want(OpCase *c, uint32_t want)
{
    for (int k = 0; k < c->node->num_out; k++) c->node->out[k] = want >> k & 1 ? c->all_out[k] : NULL;
}

/* ---- running ---- */

enum { GUARD = 256, MOST_REGIONS = NODE_MAX_IN + NODE_MAX_OUT };

/* A tensor's bytes in the memory of a run. */
typedef struct Region {
    size_t      at, bytes;
    const void *contents; /* NULL: poison */
    int         input;    /* the input that must not change; -1: a result is written here */
} Region;

typedef struct Running {
    OpCase        *c;
    const OpRun   *run;
    Region         regions[MOST_REGIONS]; /* in the order of memory, with GUARD bytes or more around each */
    int            num_regions;
    size_t         bytes;
    Region        *in[NODE_MAX_IN], *out[NODE_MAX_OUT];
    TensorView     in_view[NODE_MAX_IN], out_view[NODE_MAX_OUT];
    unsigned char *memory, *workspace; /* on the device; the workspace has GUARD bytes before and after */
    unsigned char *image, *scratch;    /* on the host: contents of `memory`, and of `workspace` as far as they are watched */
    size_t         poisoned;           /* bytes of the workspace that are poisoned */
    Launch        *launches;
    int            repeats;
    void          *replay;
} Running;

static void running_free(Running *r)
{
    Device *device = r->run->device;
    if (r->replay) device->api->release(device, r->replay);
    if (r->memory) device->api->free(device, SPACE_DEVICE, r->memory);
    if (r->workspace) device->api->free(device, SPACE_DEVICE, r->workspace);
    free(r->image);
    free(r->scratch);
    free(r->launches);
    op_case_want(r->c, r->c->all);
}

static Region *add_region(Running *r, const OpData *data, const void *contents, int input)
{
    Region *region = &r->regions[r->num_regions++];
    *region = (Region){r->bytes + GUARD, data->bytes, contents, input};
    r->bytes = region->at + (data->bytes + 255) / 256 * 256;
    return region;
}

static void lay_out(Running *r)
{
    const OpCase *c = r->c;
    for (int i = 0; i < c->node->num_in; i++)
        if (c->in[i].data) r->in[i] = add_region(r, &c->in[i], c->in[i].data, i);
    for (int k = 0; k < c->node->num_out; k++) {
        const Value *out = c->node->out[k];
        for (int i = 0; out && i < c->node->num_in; i++)
            if (c->node->in[i] && (out->storage == c->node->in[i] || (k == 0 && r->run->over == c->node->in[i]))) r->out[k] = r->in[i];
        if (r->out[k] && r->run->plain && node_accumulate_mask(c->node) >> k & 1) r->out[k]->contents = NULL;
        if (r->out[k]) r->out[k]->input = -1;
        if (out && !r->out[k]) r->out[k] = add_region(r, &c->out[k], NULL, -1);
    }
    r->bytes += GUARD;
}

static Status running_open(Running *r)
{
    Device      *device = r->run->device;
    const Node  *node = r->c->node;
    const size_t works_in = r->run->kernel.workspace_bytes, most = 1 << 20; /* poisoned of a workspace that isn't in the host's memory */
    lay_out(r);
    r->poisoned = device->api->is_synchronous || works_in < most ? works_in : most;
    r->image = malloc_or_end(r->bytes);
    r->scratch = malloc_or_end(2 * GUARD + r->poisoned);
    TRY(device->api->alloc(device, SPACE_DEVICE, r->bytes, (void **)&r->memory));
    TRY(device->api->alloc(device, SPACE_DEVICE, works_in + 2 * GUARD, (void **)&r->workspace));
    for (int i = 0; i < node->num_in; i++)
        if (r->in[i]) r->in_view[i] = (TensorView){r->memory + r->in[i]->at, node->in[i]->type};
    for (int k = 0; k < node->num_out; k++)
        if (r->out[k]) r->out_view[k] = (TensorView){r->memory + r->out[k]->at, node->out[k]->type};
    Launch launch = {.kernel = r->run->kernel, .node = node};
    launch.args = (KernelArgs){.in = r->in_view,
                               .out = r->out_view,
                               .num_in = node->num_in,
                               .num_out = node->num_out,
                               .attrs = node->attrs,
                               .accumulate = r->run->plain ? 0 : node_accumulate_mask(node),
                               .rows_alone = (node->flags & NODE_ROWS_ALONE) != 0,
                               .workspace = r->workspace + GUARD,
                               .workspace_bytes = works_in};
    r->repeats = r->run->repeats ? r->run->repeats : 1;
    r->launches = malloc_or_end((size_t)r->repeats * sizeof launch);
    for (int i = 0; i < r->repeats; i++) r->launches[i] = launch;
    return device->api->prepare(device, r->launches, r->repeats, &r->replay);
}

static bool all_are(const unsigned char *bytes, size_t count, int value)
{
    return !count || (bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* A sanitizer reports accesses to the bytes around tensors of a device that works in the host's memory. */
static void hide_guards(const Running *r, bool hidden)
{
#ifdef __SANITIZE_ADDRESS__
    if (!device_cpu_pool(r->run->device)) return;
    size_t end = 0, works_in = r->run->kernel.workspace_bytes;
    void (*const hide)(void const volatile *, size_t) = hidden ? __asan_poison_memory_region : __asan_unpoison_memory_region;
    for (int i = 0; i < r->num_regions; i++) {
        hide(r->memory + end, r->regions[i].at - end);
        end = r->regions[i].at + r->regions[i].bytes;
    }
    hide(r->memory + end, r->bytes - end);
    hide(r->workspace, GUARD);
    hide(r->workspace + GUARD + works_in, GUARD);
#else
    (void)r, (void)hidden;
#endif
}

static Status run_launches(Running *r)
{
    Device *device = r->run->device;
    TRY(device->api->sync(device));
    double begin = clock_seconds();
    hide_guards(r, true);
    Status status = device->api->run(device, r->launches, r->repeats, r->replay);
    if (status == OK) status = device->api->sync(device);
    hide_guards(r, false);
    if (r->run->seconds) *r->run->seconds = (clock_seconds() - begin) / r->repeats;
    return status;
}

/* Copies results out of the image, and finds changes in the other bytes. */
static void read_image(const Running *r, int guard, StrBuf *faults)
{
    bool   outside = false;
    size_t end = 0;
    for (int i = 0; i < r->num_regions; i++) {
        const Region *region = &r->regions[i];
        outside = outside || !all_are(r->image + end, region->at - end, guard);
        end = region->at + region->bytes;
        if (region->input >= 0 && memcmp(r->image + region->at, region->contents, region->bytes) != 0)
            strbuf_printf(faults, "; input %d changed", region->input);
    }
    if (outside || !all_are(r->image + end, r->bytes - end, guard)) strbuf_puts(faults, "; wrote outside its tensors");
    for (int k = 0; k < r->c->node->num_out; k++)
        if (r->out[k]) memcpy(r->c->out[k].data, r->image + r->out[k]->at, r->out[k]->bytes);
}

static Status run_once(Running *r, int poison, StrBuf *faults)
{
    Device          *device = r->run->device;
    const DeviceApi *api = device->api;
    const size_t     works_in = r->run->kernel.workspace_bytes;
    int              guard = poison ^ 0xC3; /* 0xFF for poison 0x3C, and 0x3C for 0xFF */
    memset(r->image, guard, r->bytes);
    for (int i = 0; i < r->num_regions; i++) {
        const Region *region = &r->regions[i];
        if (region->contents)
            memcpy(r->image + region->at, region->contents, region->bytes);
        else
            memset(r->image + region->at, poison, region->bytes);
    }
    memset(r->scratch, guard, r->poisoned + 2 * GUARD);
    TRY(api->upload(device, r->memory, r->image, r->bytes));
    TRY(api->upload(device, r->workspace + works_in + GUARD, r->scratch, GUARD));
    memset(r->scratch + GUARD, poison, r->poisoned);
    TRY(api->upload(device, r->workspace, r->scratch, r->poisoned + GUARD));
    TRY(run_launches(r));
    TRY(api->download(device, r->image, r->memory, r->bytes));
    TRY(api->download(device, r->scratch, r->workspace, GUARD));
    TRY(api->download(device, r->scratch + GUARD, r->workspace + works_in + GUARD, GUARD));
    if (!all_are(r->scratch, 2 * GUARD, guard)) strbuf_printf(faults, "; wrote outside its workspace of %zu bytes", works_in);
    read_image(r, guard, faults);
    return OK;
}

static void expect_bits(const Running *r, const OpData *expected, const char *when, StrBuf *faults)
{
    for (int k = 0; k < r->c->node->num_out; k++)
        if (r->out[k] && memcmp(expected[k].data, r->c->out[k].data, expected[k].bytes) != 0)
            strbuf_printf(faults, "; output %d has other bits %s", k, when);
}

Status op_run(OpCase *c, const OpRun *run, StrBuf *faults)
{
    OpData                       first[NODE_MAX_OUT];
    SCOPED(running_free) Running r = {.c = c, .run = run};
    op_case_want(c, run->want);
    TRY(running_open(&r));
    TRY(run_once(&r, run->poison, faults));
    if (run->expected) expect_bits(&r, run->expected, run->when, faults);
    if (run->twice) op_case_keep(c, first);
    if (run->twice || run->seconds) TRY(run_once(&r, run->poison ^ 0xC3, faults));
    if (run->twice) expect_bits(&r, first, "in a second run", faults);
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
