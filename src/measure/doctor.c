#include "measure/doctor.h"

#include "base/clock.h"
#include "base/strbuf.h"
#include "ops/attrs.h"
#include "ops/case.h"
#include "ops/draw.h"
#include "ops/lowbit/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, GUARD_FILL = 0xA5 };

typedef struct KernelRecord { /* one kernel variant of one op */
    const char *op, *name;
    int         passed, failed;
    double      worst[3]; /* largest error, by Rounding */
} KernelRecord;

/* The dtype that results are rounded to. */
typedef enum Rounding { TO_F32, TO_BF16, TO_F16 } Rounding;
static const char *const rounding_names[] = {"f32", "bf16", "f16"};
static const DType       rounding_dtypes[] = {DT_F32, DT_BF16, DT_F16};

typedef struct Doctor {
    Device       *device, *cpu;
    Device       *planner; /* null device with the same facts; NULL: the device is no GPU */
    FILE         *out;
    DoctorCounts *counts;
    KernelRecord *records; /* one for each kernel of each op, in the order they ran */
    int           num_records;
    const char   *kernel; /* checks only this variant; NULL: all */
} Doctor;

/* A graph of one node, contents of its inputs, and results. */
typedef struct Case {
    Arena        arena;
    Node        *node;
    Value       *out[NODE_MAX_OUT]; /* all outputs that the op can make here */
    void        *in[NODE_MAX_IN];   /* contents, type_bytes each; NULL: absent */
    void        *result[NODE_MAX_OUT];
    const Value *over; /* the input whose memory output 0 shall take over; NULL: memory as the op declares */
} Case;

static Status case_make(Case *c, const OpDef *op, const void *attrs, const TensorType *in)
{
    *c = (Case){0};
    TRY(op_alone(graph_create(&c->arena, "case", op_table, OP_COUNT), op, attrs, in, &c->node));
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim) c->in[i] = arena_alloc(&c->arena, (size_t)type_bytes(&in[i]) + 16);
    for (int k = 0; k < op->num_out; k++) {
        c->out[k] = c->node->out[k];
        if (c->out[k]) c->result[k] = arena_alloc(&c->arena, (size_t)type_bytes(&c->out[k]->type) + 16);
    }
    return OK;
}

/* ---- inputs ---- */

static void set_float(void *data, DType dtype, int64_t i, float value)
{
    dtype_encode(dtype, &value, 1, (char *)data + dtype_bytes(dtype, i));
}

static bool is_code(DType dtype)
{
    return dtype_info(dtype)->bits <= 8;
}

/* Element i of floats or codes, as a float. */
static float get_float(const void *data, DType dtype, int64_t i)
{
    float value;
    if (DT_SET(dtype) & DT_SET_FP8) {
        dtype_decode(dtype, (const uint8_t *)data + i, 1, &value);
        return value;
    }
    if (is_code(dtype)) return (float)dtype_code(dtype, data, i);
    if (dtype == DT_BF16) return bf16_to_f32(((const uint16_t *)data)[i]);
    if (dtype == DT_F32) return ((const float *)data)[i];
    dtype_decode(dtype, (const uint16_t *)data + i, 1, &value);
    return value;
}

static void case_fill(Case *c, const OpSample *sample)
{
    for (int k = 0; k < c->node->num_in; k++) {
        if (!c->in[k]) continue;
        op_draw(c->node, k, sample->int_range[k], 77 + (uint64_t)k, c->in[k]);
        op_mask(c->node, k, sample, c->in[k]);
    }
}

static Status run_on(Device *device, Case *c, const BoundKernel *kernel, uint32_t want, int poison, bool *out_same, StrBuf *faults);

/* Fills inputs that another op computes from the same inputs (OpResults), with that op's results on the CPU in fp32. */
static Status fill_results(Doctor *d, Case *c)
{
    const OpResults *results = &c->node->op->results;
    TensorType       in[NODE_MAX_IN] = {0};
    Case             made;
    BoundKernel      kernel;
    StrBuf           faults = {0};
    for (int i = 0; i < results->op->num_in; i++)
        if (c->in[results->in[i]]) in[i] = c->node->in[results->in[i]]->type;
    Status status = case_make(&made, results->op, c->node->attrs, in);
    for (int i = 0; i < results->op->num_in && status == OK; i++)
        if (made.in[i]) memcpy(made.in[i], c->in[results->in[i]], (size_t)type_bytes(&in[i]));
    if (status == OK) status = d->cpu->api->bind(d->cpu, made.node, &kernel);
    if (status == OK) status = run_on(d->cpu, &made, &kernel, ~0u, 0, NULL, &faults);
    for (int k = 0; k < results->op->num_out && status == OK; k++) {
        const TensorType *type = &c->node->in[results->out[k]]->type;
        if (made.out[k]) dtype_convert(c->in[results->out[k]], type->dtype, made.result[k], made.out[k]->type.dtype, type_numel(type));
    }
    strbuf_deinit(&faults);
    arena_deinit(&made.arena);
    return status;
}

/* ---- running ---- */

/* Offsets of a run's tensors in one allocation, with GUARD bytes before and after each. */
typedef struct Layout {
    size_t in[NODE_MAX_IN], out[NODE_MAX_OUT], bytes;
    int    taken[NODE_MAX_OUT]; /* index of the input whose memory the output takes over; -1: none */
} Layout;

static size_t place(Layout *l, int64_t bytes)
{
    size_t at = l->bytes + GUARD;
    l->bytes = at + ((size_t)bytes + 255) / 256 * 256;
    return at;
}

static Layout lay_out(const Case *c, uint32_t want)
{
    Layout l = {0};
    for (int i = 0; i < c->node->num_in; i++)
        if (c->in[i]) l.in[i] = place(&l, type_bytes(&c->node->in[i]->type));
    for (int k = 0; k < c->node->num_out; k++) {
        l.taken[k] = -1;
        if (!c->out[k] || !(want >> k & 1)) continue;
        for (int i = 0; i < c->node->num_in; i++)
            if (c->node->in[i] && (c->out[k]->storage == c->node->in[i] || (k == 0 && c->over == c->node->in[i]))) l.taken[k] = i;
        l.out[k] = l.taken[k] >= 0 ? l.in[l.taken[k]] : place(&l, type_bytes(&c->out[k]->type));
    }
    l.bytes += GUARD;
    return l;
}

static void write_image(const Case *c, const Layout *l, uint32_t want, int poison, unsigned char *image)
{
    memset(image, GUARD_FILL, l->bytes);
    for (int i = 0; i < c->node->num_in; i++)
        if (c->in[i]) memcpy(image + l->in[i], c->in[i], (size_t)type_bytes(&c->node->in[i]->type));
    for (int k = 0; k < c->node->num_out; k++)
        if (c->out[k] && (want >> k & 1) && l->taken[k] < 0) memset(image + l->out[k], poison, (size_t)type_bytes(&c->out[k]->type));
}

/* Copies the results out of the image. Any other change in it is a fault: an input changed, or a write outside tensors. */
static void read_image(Case *c, const Layout *l, uint32_t want, int poison, unsigned char *image, unsigned char *expected, StrBuf *faults)
{
    write_image(c, l, want, poison, expected);
    for (int k = 0; k < c->node->num_out; k++) {
        if (!c->out[k] || !(want >> k & 1)) continue;
        size_t bytes = (size_t)type_bytes(&c->out[k]->type);
        memcpy(c->result[k], image + l->out[k], bytes);
        memcpy(expected + l->out[k], image + l->out[k], bytes);
    }
    for (int i = 0; i < c->node->num_in; i++)
        if (c->in[i] && memcmp(image + l->in[i], expected + l->in[i], (size_t)type_bytes(&c->node->in[i]->type)) != 0)
            strbuf_printf(faults, "; input %d changed", i);
    if (!faults->len && memcmp(image, expected, l->bytes) != 0) strbuf_printf(faults, "; wrote outside its tensors");
}

typedef struct Run {
    Device    *device;
    Launch     launch;
    TensorView in[NODE_MAX_IN], out[NODE_MAX_OUT];
    char      *memory, *workspace;
    void      *replay;
} Run;

static void run_close(Run *r)
{
    const DeviceApi *api = r->device->api;
    if (r->replay) api->release(r->device, r->replay);
    if (r->memory) api->free(r->device, SPACE_DEVICE, r->memory);
    if (r->workspace) api->free(r->device, SPACE_DEVICE, r->workspace);
}

static Status run_open(Run *r, Device *device, const Case *c, const BoundKernel *kernel, const Layout *l, uint32_t want)
{
    *r = (Run){.device = device};
    TRY(device->api->alloc(device, SPACE_DEVICE, l->bytes, (void **)&r->memory));
    TRY(device->api->alloc(device, SPACE_DEVICE, kernel->workspace_bytes + GUARD, (void **)&r->workspace));
    for (int i = 0; i < c->node->num_in; i++)
        if (c->in[i]) r->in[i] = (TensorView){r->memory + l->in[i], c->node->in[i]->type};
    for (int k = 0; k < c->node->num_out; k++)
        if (c->out[k] && (want >> k & 1)) r->out[k] = (TensorView){r->memory + l->out[k], c->out[k]->type};
    r->launch = (Launch){.kernel = *kernel, .node = c->node};
    r->launch.args = (KernelArgs){.in = r->in,
                                  .out = r->out,
                                  .num_in = c->node->num_in,
                                  .num_out = c->node->num_out,
                                  .attrs = c->node->attrs,
                                  .accumulate = node_accumulate_mask(c->node) & want,
                                  .rows_alone = (c->node->flags & NODE_ROWS_ALONE) != 0,
                                  .workspace = r->workspace,
                                  .workspace_bytes = kernel->workspace_bytes};
    return device->api->prepare(device, &r->launch, 1, &r->replay);
}

static Status run_once(Run *r, Case *c, const Layout *l, uint32_t want, int poison, unsigned char *images, StrBuf *faults)
{
    const DeviceApi *api = r->device->api;
    unsigned char    tail[GUARD];
    memset(tail, GUARD_FILL, GUARD);
    write_image(c, l, want, poison, images);
    TRY(api->upload(r->device, r->memory, images, l->bytes));
    TRY(api->upload(r->device, r->workspace + r->launch.kernel.workspace_bytes, tail, GUARD));
    TRY(api->run(r->device, &r->launch, 1, r->replay));
    TRY(api->sync(r->device));
    TRY(api->download(r->device, images, r->memory, l->bytes));
    TRY(api->download(r->device, tail, r->workspace + r->launch.kernel.workspace_bytes, GUARD));
    for (int i = 0; i < GUARD && !faults->len; i++)
        if (tail[i] != GUARD_FILL) strbuf_printf(faults, "; wrote behind its workspace of %zu bytes", r->launch.kernel.workspace_bytes);
    read_image(c, l, want, poison, images, images + l->bytes, faults);
    return OK;
}

/* Copies the wanted results, which the caller frees; kept[k] of other outputs stays as it is. */
static void keep_results(const Case *c, uint32_t want, void *kept[NODE_MAX_OUT])
{
    for (int k = 0; k < c->node->num_out; k++) {
        if (!c->out[k] || !(want >> k & 1)) continue;
        kept[k] = malloc_or_end((size_t)type_bytes(&c->out[k]->type) + 1);
        memcpy(kept[k], c->result[k], (size_t)type_bytes(&c->out[k]->type));
    }
}

/* Runs the node once; results are in c->result. out_same not NULL: runs again with another poison, and tells whether the bits are the
 * same. */
static Status run_on(Device *device, Case *c, const BoundKernel *kernel, uint32_t want, int poison, bool *out_same, StrBuf *faults)
{
    Layout         l = lay_out(c, want);
    unsigned char *images = malloc_or_end(2 * l.bytes);
    void          *first[NODE_MAX_OUT] = {0};
    Run            r;
    Status         status = run_open(&r, device, c, kernel, &l, want);
    if (status == OK) status = run_once(&r, c, &l, want, poison, images, faults);
    if (out_same) {
        *out_same = true;
        if (status == OK) keep_results(c, want, first);
        if (status == OK) status = run_once(&r, c, &l, want, 0x3C, images, faults);
    }
    for (int k = 0; k < NODE_MAX_OUT; k++) {
        if (first[k] && memcmp(first[k], c->result[k], (size_t)type_bytes(&c->out[k]->type)) != 0) *out_same = false;
        free(first[k]);
    }
    run_close(&r);
    free(images);
    return status;
}

/* ---- comparing ---- */

/* |a - b| / |b| in the L2 norm; infinite if NaNs are in different places. */
static double l2_error(const TensorType *ta, const void *a, const TensorType *tb, const void *b)
{
    double error = 0, scale = 0;
    for (int64_t i = 0, n = type_numel(ta); i < n; i++) {
        double x = get_float(a, ta->dtype, i), y = get_float(b, tb->dtype, i);
        if (x == y || (isnan(x) && isnan(y))) {
            scale += isfinite(y) ? y * y : 0;
            continue;
        }
        error += (x - y) * (x - y);
        scale += y * y;
    }
    if (isnan(error) || isinf(error)) return INFINITY;
    return error == 0 ? 0 : sqrt(error) / (scale > 0 ? sqrt(scale) : 1e-30);
}

static KernelRecord *record_of(Doctor *d, const char *op, const char *name)
{
    for (int i = 0; i < d->num_records; i++)
        if (strcmp(d->records[i].op, op) == 0 && strcmp(d->records[i].name, name) == 0) return &d->records[i];
    d->records = realloc_or_end(d->records, (size_t)(d->num_records + 1) * sizeof *d->records);
    d->records[d->num_records] = (KernelRecord){.op = op, .name = name};
    return &d->records[d->num_records++];
}

/* Computes the node in fp32 on the CPU, from the same values. */
static Status reference(Doctor *d, const Case *c, Case *wide)
{
    TensorType  in[NODE_MAX_IN] = {0};
    BoundKernel kernel;
    StrBuf      faults = {0};
    for (int i = 0; i < c->node->num_in; i++) {
        if (!c->in[i]) continue;
        in[i] = c->node->in[i]->type;
        if (type_is_float(&in[i])) in[i].dtype = DT_F32;
    }
    TRY(case_make(wide, c->node->op, c->node->attrs, in));
    for (int i = 0; i < c->node->num_in; i++) {
        if (!c->in[i]) continue;
        const TensorType *type = &c->node->in[i]->type;
        if (type_is_float(type))
            dtype_convert(wide->in[i], DT_F32, c->in[i], type->dtype, type_numel(type));
        else
            memcpy(wide->in[i], c->in[i], (size_t)type_bytes(type));
    }
    TRY(d->cpu->api->bind(d->cpu, wide->node, &kernel));
    Status status = run_on(d->cpu, wide, &kernel, ~0u, 0xFF, NULL, &faults);
    strbuf_deinit(&faults);
    return status;
}

/* Codes that the kernel made from its result must equal the codes that a separate op makes from it on the device. */
static Status check_codes(Doctor *d, const Case *c, StrBuf *faults)
{
    const OpCodes *codes = &c->node->op->codes;
    const OpDef   *maker = op_codes_maker(c->node);
    TensorType     in[NODE_MAX_IN] = {0};
    Case           apart;
    BoundKernel    kernel;
    if (!maker || !c->out[codes->out]) return OK;
    in[0] = c->out[codes->of]->type;
    for (int i = 1; i < maker->num_in; i++)
        if (c->in[codes->scale + i - 1]) in[i] = c->node->in[codes->scale + i - 1]->type;
    Status status =
        case_make(&apart, maker, (const char *)c->node->attrs + codes->attr, in); /* the maker's one attribute is the codes' dtype */
    if (status == OK) memcpy(apart.in[0], c->result[codes->of], (size_t)type_bytes(&in[0]));
    for (int i = 1; i < maker->num_in && status == OK; i++)
        if (apart.in[i]) memcpy(apart.in[i], c->in[codes->scale + i - 1], (size_t)type_bytes(&in[i]));
    if (status == OK) status = d->device->api->bind(d->device, apart.node, &kernel);
    if (status == OK) status = run_on(d->device, &apart, &kernel, ~0u, 0xFF, NULL, faults);
    for (int k = 0; k < maker->num_out && status == OK; k++)
        if (c->out[codes->out + k] && memcmp(apart.result[k], c->result[codes->out + k], (size_t)type_bytes(&apart.out[k]->type)) != 0)
            strbuf_printf(faults, "; output %d isn't what %s makes of output %d", codes->out + k, maker->name, codes->of);
    arena_deinit(&apart.arena);
    return status;
}

static bool serves_still(Device *device, const Node *node, const BoundKernel *kernel)
{
    BoundKernel other;
    for (int index = 0; device->api->variant(device, node, index, &other) == OK; index++)
        if (other.run == kernel->run) return true;
    status_clear();
    return false;
}

/* Runs with only the outputs in `want` and output 0 in the memory of `over` (NULL: not); the results must have the bits in `kept`. */
static Status check_same(Doctor *d, Case *c, const BoundKernel *kernel, uint32_t want, const Value *over, void *const *kept, StrBuf *faults)
{
    c->over = over;
    TRY(run_on(d->device, c, kernel, want, 0xFF, NULL, faults));
    for (int k = 0; k < c->node->num_out; k++) {
        if (!c->out[k] || !(want >> k & 1) || memcmp(kept[k], c->result[k], (size_t)type_bytes(&c->out[k]->type)) == 0) continue;
        strbuf_printf(faults, "; output %d has other bits when %s", k, over ? "output 0 takes an input's memory" : "it alone is wanted");
    }
    c->over = NULL;
    return OK;
}

/* Bits of an output must not depend on which other outputs are wanted, nor on whether output 0 takes over an input's memory. So each
 * output is also computed alone (with outputs that update state, which are always wanted). */
static Status check_bits(Doctor *d, Case *c, const BoundKernel *kernel, StrBuf *faults)
{
    uint32_t all = 0, always = 0;
    void    *kept[NODE_MAX_OUT] = {0};
    Status   status = OK;
    for (int k = 0; k < c->node->num_out; k++) {
        if (!c->out[k]) continue;
        all |= 1u << k;
        if (c->out[k]->storage && !(node_accumulate_mask(c->node) >> k & 1)) always |= 1u << k;
    }
    keep_results(c, all, kept);
    for (int k = 0; k < c->node->num_out && status == OK && !faults->len; k++) {
        uint32_t want = always | 1u << k;
        if (!(all >> k & 1) || want == all) continue;
        for (int i = 0; i < c->node->num_out; i++) c->node->out[i] = want >> i & 1 ? c->out[i] : NULL;
        if (!serves_still(d->device, c->node, kernel)) continue; /* another kernel computes these outputs */
        status = check_same(d, c, kernel, want, NULL, kept, faults);
    }
    for (int k = 0; k < c->node->num_out; k++) c->node->out[k] = c->out[k];
    for (int i = 0; i < c->node->num_in && status == OK && !faults->len; i++) {
        const Value *in = c->node->op->inplace >> i & 1 ? c->node->in[i] : NULL;
        if (!in || c->out[0]->storage || !type_equal(&in->type, &c->out[0]->type)) continue;
        status = check_same(d, c, kernel, all, in, kept, faults);
    }
    for (int k = 0; k < NODE_MAX_OUT; k++) {
        if (kept[k]) memcpy(c->result[k], kept[k], (size_t)type_bytes(&c->out[k]->type));
        free(kept[k]);
    }
    return status;
}

static Status check_variant(Doctor *d, Case *c, const Case *wide, const BoundKernel *kernel, double tolerance, Rounding rounding,
                            const char *what)
{
    KernelRecord *record = record_of(d, c->node->op->name, kernel->name);
    StrBuf        faults = {0};
    bool          same = true;
    Status        status = run_on(d->device, c, kernel, ~0u, 0xFF, &same, &faults);
    if (status == OK && !same) strbuf_printf(&faults, "; two runs differ");
    for (int k = 0; k < c->node->num_out && status == OK; k++) {
        if (c->out[k] && c->out[k]->type.dtype == DT_I32 &&
            memcmp(c->result[k], wide->result[k], (size_t)type_bytes(&c->out[k]->type)) != 0)
            strbuf_printf(&faults, "; output %d has other whole numbers", k);
        if (!c->out[k] || op_makes_codes(c->node->op, k) || !(type_is_float(&c->out[k]->type) || is_code(c->out[k]->type.dtype))) continue;
        double error = l2_error(&c->out[k]->type, c->result[k], &wide->out[k]->type, wide->result[k]);
        if (!(error <= record->worst[rounding])) record->worst[rounding] = error;
        if (!(error <= tolerance)) strbuf_printf(&faults, "; output %d is off by %.3g", k, error);
    }
    if (status == OK && !faults.len) status = check_codes(d, c, &faults);
    if (status == OK && !faults.len) status = check_bits(d, c, kernel, &faults);
    if (status == OK) *(faults.len ? &record->failed : &record->passed) += 1;
    if (status == OK) *(faults.len ? &d->counts->failed : &d->counts->passed) += 1;
    if (status == OK && faults.len)
        fprintf(d->out, "FAILED %s, %s (%s): %s\n", c->node->op->name, kernel->name, what, strbuf_cstr(&faults) + 2);
    strbuf_deinit(&faults);
    return status;
}

/* A plan made without the GPU must reserve enough workspace for the kernel that is bound on the GPU, up to rounding by libraries. */
static void check_planned(Doctor *d, const Node *node, const BoundKernel *kernel, const char *what)
{
    const size_t rounding = 1 << 20;
    BoundKernel  planned;
    if (!d->planner || d->planner->api->bind(d->planner, node, &planned) != OK) return;
    if (kernel->workspace_bytes <= planned.workspace_bytes + rounding) return;
    fprintf(d->out, "FAILED %s, %s (%s): works in %zu bytes, a plan counts %zu\n", node->op->name, kernel->name, what,
            kernel->workspace_bytes, planned.workspace_bytes);
    d->counts->failed++;
}

static Status run_bound(Doctor *d, Case *c, StrBuf *faults)
{
    BoundKernel kernel;
    TRY(d->device->api->bind(d->device, c->node, &kernel));
    return run_on(d->device, c, &kernel, ~0u, 0, NULL, faults);
}

/* The first row computed alone must have the same bits as together with the other rows. */
static Status check_row_alone(Doctor *d, Case *c, const char *what)
{
    const OpDef *op = c->node->op;
    TensorType   in[NODE_MAX_IN] = {0};
    Case         one;
    StrBuf       faults = {0};
    for (int i = 0; i < op->num_in; i++) {
        const Value *value = c->node->in[i];
        if (value) in[i] = op->by_row >> i & 1 ? type_make(value->type.dtype, 2, INT64_C(1), type_cols(&value->type)) : value->type;
    }
    Status status = case_make(&one, op, c->node->attrs, in);
    if (status == OK) one.node->flags |= NODE_ROWS_ALONE;
    for (int i = 0; i < op->num_in && status == OK; i++)
        if (one.in[i]) memcpy(one.in[i], c->in[i], (size_t)type_bytes(&in[i]));
    if (status == OK) status = run_bound(d, &one, &faults);
    if (status == OK) status = run_bound(d, c, &faults);
    bool same = status == OK && memcmp(one.result[0], c->result[0], (size_t)type_bytes(&one.out[0]->type)) == 0;
    if (!same) fprintf(d->out, "FAILED %s (%s): its first row has other bits alone\n", op->name, what);
    *(same ? &d->counts->passed : &d->counts->failed) += 1;
    strbuf_deinit(&faults);
    arena_deinit(&one.arena);
    return status;
}

static Status check_case(Doctor *d, const OpDef *op, const OpSample *sample, const TensorType *in, Rounding rounding, const char *what)
{
    Case        c, wide = {0};
    BoundKernel kernel;
    Status      status = case_make(&c, op, sample->attrs, in);
    if (status == OK) {
        if (sample->rows_alone) c.node->flags |= NODE_ROWS_ALONE;
        case_fill(&c, sample);
        if (op->results.op) status = fill_results(d, &c);
    }
    double exact = sample->tolerance > 0 ? sample->tolerance : 1e-5;
    double tolerance = rounding == TO_BF16 ? 1e-2 : rounding == TO_F16 ? 1e-2 / 8 : exact; /* f16 has 3 mantissa bits more than bf16 */
    if (status == OK) status = reference(d, &c, &wide);
    for (int index = 0; status == OK; index++) {
        if (d->device->api->variant(d->device, c.node, index, &kernel) != OK) {
            if (index == 0) {
                fprintf(d->out, "FAILED %s (%s): %s\n", op->name, what, status_message());
                d->counts->failed++;
            }
            status_clear();
            break;
        }
        if (index == 0) check_planned(d, c.node, &kernel, what);
        if (!d->kernel || strcmp(d->kernel, kernel.name) == 0) status = check_variant(d, &c, &wide, &kernel, tolerance, rounding, what);
    }
    if (status == OK && sample->rows_alone) status = check_row_alone(d, &c, what);
    arena_deinit(&c.arena);
    arena_deinit(&wide.arena);
    return status == OK ? OK : status_prefix(status, "doctor: %s (%s)", op->name, what);
}

/* Checks the sample as it is, then in bf16 and f16. A sample with several float dtypes gets the tolerance of its least precise one. */
static Status check_sample(Doctor *d, const OpDef *op, const OpSample *sample, const char *which, int index)
{
    for (Rounding to = TO_F32; to <= TO_F16; to++) {
        TensorType in[NODE_MAX_IN];
        char       what[96];
        memcpy(in, sample->in, sizeof in);
        if (to != TO_F32 && !op_round_inputs(op, sample->attrs, rounding_dtypes[to], 1, in)) break;
        if (to == TO_F16 && !op_is_served(op, sample->attrs, in)) break; /* ops that are only used in training have no f16 kernel */
        bool     has_bf16 = op_has_dtype(op, in, DT_BF16);
        Rounding rounding = has_bf16 ? TO_BF16 : op_has_dtype(op, in, DT_F16) ? TO_F16 : TO_F32;
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            if (accumulate && !op_add_accumulators(op, sample->attrs, in)) break;
            snprintf(what, sizeof what, "%s %d, %s%s", which, index, to == TO_F32 && rounding != TO_F32 ? "mixed" : rounding_names[to],
                     accumulate ? ", accumulating" : "");
            TRY(check_case(d, op, sample, in, rounding, what));
        }
    }
    return OK;
}

static Status check_samples(Doctor *d, const OpDef *op, const char *text, const char *which)
{
    Arena     arena = {0};
    OpSamples samples;
    Status    status = op_samples_parse(&arena, op, text, &samples);
    for (int i = 0; i < samples.count && status == OK; i++) status = check_sample(d, op, &samples.items[i], which, i);
    arena_deinit(&arena);
    return status;
}

static void print_records(const Doctor *d)
{
    fprintf(d->out, "%-20s %-14s %6s %6s  %-10s %-10s %-10s\n", "op", "kernel", "passed", "failed", "f32 error", "bf16 error", "f16 error");
    for (int i = 0; i < d->num_records; i++) {
        const KernelRecord *r = &d->records[i];
        fprintf(d->out, "%-20s %-14s %6d %6d  %-10.2g %-10.2g %-10.2g\n", r->op, r->name, r->passed, r->failed, r->worst[TO_F32],
                r->worst[TO_BF16], r->worst[TO_F16]);
    }
}

Status doctor_check_ops(Device *device, Device *cpu, const char *only, FILE *out, DoctorCounts *counts)
{
    Doctor d = {.device = device, .cpu = cpu, .out = out, .counts = counts};
    size_t op_len = only ? strcspn(only, ":") : 0;
    if (only && only[op_len]) d.kernel = only + op_len + 1;
    *counts = (DoctorCounts){0};
    DeviceFacts facts;
    TRY(device->api->facts(device, &facts));
    if (facts.sm) TRY(device_null_of(device, &d.planner));
    Status status = OK;
    for (int id = 0; id < OP_COUNT && status == OK; id++) {
        const OpDef *op = op_table[id];
        if ((op->flags & OP_VIEW) || (facts.sm && op->flags & OP_CPU_ALONE) ||
            (only && (strlen(op->name) != op_len || strncmp(only, op->name, op_len) != 0)))
            continue;
        status = check_samples(&d, op, op->samples, "sample");
        if (status == OK) status = check_samples(&d, op, op->large, "large");
    }
    if (d.planner) d.planner->api->destroy(d.planner);
    if (status == OK) print_records(&d);
    counts->kernels = d.num_records;
    free(d.records);
    return status;
}

/* ---- speed ---- */

/* Seconds of one launch of the node, measured over `repeats` launches in one replayed program. */
static Status time_node(Device *device, Case *c, int repeats, double *out_seconds)
{
    BoundKernel kernel;
    TRY(device->api->bind(device, c->node, &kernel));
    Layout l = lay_out(c, ~0u);
    Run    r;
    Status status = run_open(&r, device, c, &kernel, &l, ~0u);
    if (r.replay) device->api->release(device, r.replay), r.replay = NULL;
    Launch *launches = malloc_or_end((size_t)repeats * sizeof *launches);
    for (int i = 0; i < repeats; i++) launches[i] = r.launch;
    unsigned char *image = malloc_or_end(l.bytes);
    write_image(c, &l, ~0u, 0, image);
    if (status == OK) status = device->api->prepare(device, launches, repeats, &r.replay);
    if (status == OK) status = device->api->upload(device, r.memory, image, l.bytes);
    for (int turn = 0; turn < 2 && status == OK; turn++) {
        status = device->api->sync(device);
        double begin = clock_seconds();
        if (status == OK) status = device->api->run(device, launches, repeats, r.replay);
        if (status == OK) status = device->api->sync(device);
        *out_seconds = (clock_seconds() - begin) / repeats;
    }
    run_close(&r);
    free(launches);
    free(image);
    return status;
}

/* Fills in a scale of 1, in any of its formats. */
static void fill_scale(const TensorType *type, void *data)
{
    enum { ONE = 0x38 /* in e4m3 */ };
    if (type->dtype == DT_E4M3)
        memset(data, ONE, (size_t)type_bytes(type));
    else if (type_numel(type) == FP8_SCALE_FLOATS)
        fp8_scale_set(data, 1);
    else
        *(float *)data = 1;
}

/* Fills operands with random values, as zeros multiply faster, and scales with 1. */
static void fill_product(Case *c)
{
    for (int k = 0; k < 2; k++) {
        const TensorType *type = &c->node->in[k]->type;
        if (type->dtype == DT_E2M1) /* any byte is two valid codes */
            for (int64_t i = 0; i < type_bytes(type); i++) ((uint8_t *)c->in[k])[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
        if (type->dtype == DT_E2M1) continue;
        for (int64_t e = 0, n = type_numel(type); e < n; e++)
            set_float(c->in[k], type->dtype, e, (float)((uint32_t)e * 2654435761u >> 8) / 8388608.0f - 1.0f);
    }
    for (int k = 2; k < c->node->num_in; k++)
        if (c->in[k]) fill_scale(&c->node->in[k]->type, c->in[k]);
}

Status doctor_measure(Device *device, FILE *out)
{
    static const ScaledLinearAttrs fast = {.alpha = 1, .dtype = DTYPE_TO_ATTR(DT_BF16), .fast = true};
    static const TensorType        square[NODE_MAX_IN] = {{DT_BF16, 2, {8192, 8192}}, {DT_BF16, 2, {8192, 8192}}};
    static const TensorType        square_f32[NODE_MAX_IN] = {{DT_F32, 2, {4096, 4096}}, {DT_F32, 2, {4096, 4096}}};
    static const TensorType        square_fp8[NODE_MAX_IN] = {
               {DT_E4M3, 2, {8192, 8192}}, {DT_E4M3, 2, {8192, 8192}}, {DT_F32, 1, {FP8_SCALE_FLOATS}}, {DT_F32, 1, {FP8_SCALE_FLOATS}}};
    static const TensorType square_fp4[NODE_MAX_IN] = {
        {DT_E2M1, 2, {8192, 8192}},   {DT_E2M1, 2, {8192, 8192}}, {DT_E4M3, 3, {64, 128, 512}},
        {DT_E4M3, 3, {64, 128, 512}}, {DT_F32, 1, {1}},           {DT_F32, 1, {1}}};
    static const TensorType flat[NODE_MAX_IN] = {{DT_F32, 1, {1 << 27}}, {DT_F32, 1, {1 << 27}}};
    static const struct {
        const OpDef      *op;
        const void       *attrs;
        const TensorType *in;
        int               repeats;
        double            work; /* flops or bytes of a launch, in the unit */
        const char       *unit;
    } what[] = {
        {&op_linear, NULL, square, 20, 2.0 * 8192 * 8192 * 8192 / 1e12, "TFLOP/s, bf16 matrix product of 8192"},
        {&op_linear, NULL, square_f32, 5, 2.0 * 4096 * 4096 * 4096 / 1e12, "TFLOP/s, f32 matrix product of 4096"},
        {&op_scaled_linear, &fast, square_fp8, 20, 2.0 * 8192 * 8192 * 8192 / 1e12, "TFLOP/s, e4m3 matrix product of 8192"},
        {&op_fp4_linear, &fast, square_fp4, 20, 2.0 * 8192 * 8192 * 8192 / 1e12, "TFLOP/s, e2m1 matrix product of 8192"},
        {&op_add, NULL, flat, 10, 3.0 * 4 * (1 << 27) / 1e9, "GB/s, sum of two tensors of 512 MiB (read and written)"},
    };
    DeviceFacts facts;
    TRY(device->api->facts(device, &facts));
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
        Case   c;
        double seconds = 1;
        if (what[i].op == &op_scaled_linear && !(facts.gemm_flops[DT_E4M3] > 0)) continue; /* the device has no units for FP8 */
        if (what[i].op == &op_fp4_linear && !facts.fp4_blocks) continue;
        TRY(case_make(&c, what[i].op, what[i].attrs, what[i].in));
        if (what[i].op != &op_add) fill_product(&c);
        Status status = time_node(device, &c, what[i].repeats, &seconds);
        arena_deinit(&c.arena);
        TRY(status);
        fprintf(out, "%10.1f %s\n", what[i].work / seconds, what[i].unit);
    }
    return OK;
}
