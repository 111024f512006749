#include "measure/doctor.h"

#include "base/scoped.h"
#include "ops/attrs.h"
#include "ops/check.h"
#include "ops/lowbit/fp8.h"

#include <stdlib.h>
#include <string.h>

typedef struct KernelRecord { /* one kernel variant of one op */
    const char *op, *name;
    int         passed, failed;
    double      worst[DT_COUNT]; /* largest error, by the dtype that results are rounded to */
} KernelRecord;

typedef struct Doctor {
    FILE         *out;
    DoctorCounts *counts;
    KernelRecord *records; /* one for each kernel of each op, in the order they ran */
    int           num_records;
} Doctor;

static KernelRecord *record_of(Doctor *d, const char *op, const char *name)
{
    for (int i = 0; i < d->num_records; i++)
        if (strcmp(d->records[i].op, op) == 0 && strcmp(d->records[i].name, name) == 0) return &d->records[i];
    d->records = realloc_or_end(d->records, (size_t)(d->num_records + 1) * sizeof *d->records);
    d->records[d->num_records] = (KernelRecord){.op = op, .name = name};
    return &d->records[d->num_records++];
}

static void take_outcome(void *context, const OpOutcome *o)
{
    Doctor       *d = context;
    KernelRecord *record = o->kernel ? record_of(d, o->op, o->kernel) : NULL;
    *(o->faults ? &d->counts->failed : &d->counts->passed) += 1;
    if (record) *(o->faults ? &record->failed : &record->passed) += 1;
    if (record && !(o->error <= record->worst[o->rounding])) record->worst[o->rounding] = o->error;
    if (o->faults)
        fprintf(d->out, "FAILED %s%s%s (%s %d, %s): %s\n", o->op, o->kernel ? ", " : "", o->kernel ? o->kernel : "", o->sample, o->index,
                o->types, o->faults);
}

static void print_records(const Doctor *d)
{
    fprintf(d->out, "%-20s %-14s %6s %6s  %-10s %-10s %-10s\n", "op", "kernel", "passed", "failed", "f32 error", "bf16 error", "f16 error");
    for (int i = 0; i < d->num_records; i++) {
        const KernelRecord *r = &d->records[i];
        fprintf(d->out, "%-20s %-14s %6d %6d  %-10.2g %-10.2g %-10.2g\n", r->op, r->name, r->passed, r->failed, r->worst[DT_F32],
                r->worst[DT_BF16], r->worst[DT_F16]);
    }
}

static bool is_asked(const OpDef *op, const char *only)
{
    size_t len = strlen(op->name);
    if (op->flags & OP_VIEW) return false;
    return !only || (strncmp(only, op->name, len) == 0 && (!only[len] || only[len] == ':'));
}

Status doctor_check_ops(Device *device, Device *cpu, const char *only, FILE *out, DoctorCounts *counts)
{
    Doctor      d = {.out = out, .counts = counts};
    OpChecks    checks = {.device = device, .cpu = cpu, .large = true, .report = take_outcome, .context = &d};
    const char *kernel = only ? strchr(only, ':') : NULL;
    DeviceFacts facts;
    *counts = (DoctorCounts){0};
    if (kernel) checks.kernel = kernel + 1;
    TRY(device->api->facts(device, &facts));
    if (facts.sm) TRY(device_null_of(device, &checks.planner));
    Status status = OK;
    for (int id = 0; id < OP_COUNT && status == OK; id++)
        if (is_asked(op_table[id], only)) status = op_check(&checks, op_table[id]);
    if (checks.planner) checks.planner->api->destroy(checks.planner);
    if (status == OK) print_records(&d);
    counts->kernels = d.num_records;
    free(d.records);
    return status == OK ? OK : status_prefix(status, "doctor");
}

/* ---- speed ---- */

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
static void fill_product(OpCase *c)
{
    for (int k = 0; k < 2; k++) {
        const TensorType *type = &c->node->in[k]->type;
        if (type->dtype == DT_E2M1) /* any byte is two valid codes */
            for (int64_t i = 0; i < type_bytes(type); i++) c->in[k].data[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
        if (type->dtype == DT_E2M1) continue;
        for (int64_t e = 0, n = type_numel(type); e < n; e++) {
            float value = (float)((uint32_t)e * 2654435761u >> 8) / 8388608.0f - 1.0f;
            dtype_encode(type->dtype, &value, 1, c->in[k].data + dtype_bytes(type->dtype, e));
        }
    }
    for (int k = 2; k < c->node->num_in; k++)
        if (c->in[k].data) fill_scale(&c->node->in[k]->type, c->in[k].data);
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
        double            work; /* flops or bytes of a launch, divided by 1e12 or 1e9 as `unit` says */
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
        double                      seconds = 1;
        OpRun                       run = {.device = device, .want = ~0u, .repeats = what[i].repeats, .seconds = &seconds};
        SCOPED(op_case_free) OpCase c = {0};
        SCOPED_STRBUF(faults);
        if (what[i].op == &op_scaled_linear && !(facts.gemm_flops[DT_E4M3] > 0)) continue; /* the device has no units for FP8 */
        if (what[i].op == &op_fp4_linear && !facts.fp4_blocks) continue;
        TRY(op_case_make(&c, what[i].op, what[i].attrs, what[i].in));
        if (what[i].op != &op_add) fill_product(&c);
        TRY(op_run(&c, &run, &faults));
        fprintf(out, "%10.1f %s\n", what[i].work / seconds, what[i].unit);
    }
    return OK;
}
