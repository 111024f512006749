#include "ops/check.h"

#include "base/cpu.h"
#include "base/scoped.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Check { /* one case */
    const OpChecks *with;
    OpCase          c, wide, reference; /* wide: computed in fp32; reference: by the CPU's last kernel, with the same dtypes */
    bool            on_cpu;
    double          exact; /* largest error of results that are rounded to fp32 */
    OpOutcome       outcome;
    BoundKernel     kernel;
    StrBuf          faults;
    bool           *cut; /* set if the sample was computed some rows at a time */
} Check;

static void report(Check *k, const char *kernel)
{
    k->outcome.kernel = kernel;
    k->outcome.faults = k->faults.len ? strbuf_cstr(&k->faults) + 2 : NULL;
    k->with->report(k->with->context, &k->outcome);
    strbuf_clear(&k->faults);
    k->outcome.error = 0;
}

/* *out: the device's kernel with the function of `like`. False: no such kernel serves the node. */
static bool kernel_like(Device *device, const Node *node, const BoundKernel *like, BoundKernel *out)
{
    for (int i = 0; device->api->variant(device, node, i, out) == OK; i++)
        if (out->run == like->run) return true;
    status_clear();
    return false;
}

/* ---- results ---- */

/* Computes the case on the CPU: with floats in fp32 by the CPU's first kernel, or with the same dtypes by its last. */
static Status compute_on_cpu(const Check *k, bool wide, OpCase *out)
{
    const OpCase *c = &k->c;
    Device       *cpu = k->with->cpu;
    TensorView    in[NODE_MAX_IN];
    OpRun         run = {.device = cpu, .want = ~0u};
    SCOPED_STRBUF(faults); /* not reported: faults of the CPU's kernels are found when the CPU itself is checked */
    for (int i = 0; i < c->node->num_in; i++) in[i] = op_case_in(c, i);
    TRY(op_case_of(out, c->node->op, c->node->attrs, in, wide));
    if (!wide) out->node->flags = c->node->flags;
    for (int i = 0; !wide && cpu->api->variant(cpu, out->node, i, &run.kernel) == OK;) i++;
    status_clear();
    return op_run(out, &run, &faults);
}

/* Of the three errors, the one that rounding to the dtype explains. */
static double most_error(DType dtype, double f32, double bf16, double f16)
{
    return dtype == DT_BF16 ? bf16 : dtype == DT_F16 ? f16 : f32;
}

/* Compares results with those of `other`. */
static void compare(Check *k, const OpCase *other, bool wide)
{
    DType  rounding = wide ? k->outcome.rounding : DT_F32;
    double l2 = wide ? most_error(rounding, k->exact, 1e-2, 1e-2 / 8) : INFINITY; /* f16 has 3 mantissa bits more than bf16 */
    for (int i = 0; i < k->c.node->num_out; i++) {
        if (!k->c.all_out[i] || (wide && op_makes_codes(k->c.node->op, i))) continue;
        const TensorType *type = &k->c.all_out[i]->type;
        double            most = rounding == DT_F32 ? most_error(type->dtype, k->exact, 1.0 / 128, 1.0 / 1024)
                                                    : most_error(type->dtype, 1.0 / 64, 1.0 / 64, 1.0 / 512);
        TensorErrors      error = tensor_errors(type, k->c.out[i].data, &other->all_out[i]->type, other->out[i].data, 1e-30);
        if (!k->on_cpu) most = INFINITY; /* sums in another order may leave one element far off */
        if (type->dtype == DT_I32) most = 0;
        if (wide && !(error.l2 <= k->outcome.error)) k->outcome.error = error.l2;
        if (!(error.l2 <= l2 && error.most <= most))
            strbuf_printf(&k->faults, "; output %d is off by %.3g, at most by %.3g of the largest", i, error.l2, error.most);
    }
}

/* Codes that the kernel made from its result must equal the codes that a separate op makes from it on the device. */
static Status check_codes(Check *k)
{
    const OpCase               *c = &k->c;
    const OpCodes              *codes = &c->node->op->codes;
    const OpDef                *maker = op_codes_maker(c->node);
    TensorView                  in[NODE_MAX_IN];
    OpRun                       run = {.device = k->with->device, .want = ~0u};
    SCOPED(op_case_free) OpCase apart = {0};
    if (!maker || !c->all_out[codes->out]) return OK;
    in[0] = (TensorView){c->out[codes->of].data, c->all_out[codes->of]->type};
    for (int i = 1; i < maker->num_in; i++) in[i] = op_case_in(c, codes->scale + i - 1);
    TRY(op_case_of(&apart, maker, (const char *)c->node->attrs + codes->attr, in, false)); /* its one attribute is the codes' dtype */
    TRY(op_run(&apart, &run, &k->faults));
    for (int i = 0; i < maker->num_out; i++) {
        const Value *out = c->all_out[codes->out + i], *made = apart.all_out[i];
        if (!out && (!made || !codes->turns)) continue;
        if (!out || !made || !type_equal(&made->type, &out->type) ||
            memcmp(apart.out[i].data, c->out[codes->out + i].data, apart.out[i].bytes))
            strbuf_printf(&k->faults, "; output %d isn't what %s makes of output %d", codes->out + i, maker->name, codes->of);
    }
    return OK;
}

/* ---- bits ---- */

/* Outputs that update state; they are always wanted. */
static uint32_t outputs_in_place(const OpCase *c)
{
    uint32_t mask = 0;
    for (int i = 0; i < c->node->num_out; i++)
        if (c->all_out[i] && c->all_out[i]->storage && !(node_accumulate_mask(c->node) >> i & 1)) mask |= 1u << i;
    return mask;
}

/* Checks that outputs have the same bits when fewer are wanted: on the CPU every set of outputs, on other devices each output alone. */
static Status check_wanted(Check *k, OpRun run)
{
    OpCase  *c = &k->c;
    uint32_t always = outputs_in_place(c);
    char     when[48];
    for (uint32_t want = 1; want < c->all && !k->faults.len; want++) {
        uint32_t asked = want & ~always;
        if ((want & c->all) != want || (want & always) != always || (!k->on_cpu && asked & (asked - 1))) continue;
        op_case_want(c, want);
        if (!kernel_like(run.device, c->node, &k->kernel, &run.kernel)) continue; /* another kernel computes these outputs */
        snprintf(when, sizeof when, "when only outputs of mask 0x%x are wanted", want);
        run.want = want;
        run.when = when;
        TRY(op_run(c, &run, &k->faults));
    }
    op_case_want(c, c->all);
    return OK;
}

static Status check_places(Check *k, OpRun run)
{
    const Node *node = k->c.node;
    run.when = "when output 0 takes an input's memory";
    for (int i = 0; i < node->num_in && k->c.all_out[0] && !k->c.all_out[0]->storage; i++) {
        run.over = node->op->inplace >> i & 1 ? node->in[i] : NULL;
        if (run.over && type_equal(&run.over->type, &node->out[0]->type)) TRY(op_run(&k->c, &run, &k->faults));
    }
    return OK;
}

static Status check_threads(Check *k, OpRun run)
{
    const OpChecks *with = k->with;
    if (k->on_cpu) {
        run.when = "with narrow vectors";
        cpu_avx512_forbid(true);
        CHECK(kernel_like(run.device, k->c.node, &k->kernel, &run.kernel)); /* its workspace depends on the width */
        Status status = op_run(&k->c, &run, &k->faults);
        cpu_avx512_forbid(false);
        TRY(status);
    }
    run.when = "with another number of threads";
    for (int i = 0; i < 2 && with->same[i]; i++) {
        run.device = with->same[i];
        CHECK(kernel_like(run.device, k->c.node, &k->kernel, &run.kernel));
        TRY(op_run(&k->c, &run, &k->faults));
    }
    return OK;
}

/* For outputs that add, checks that they are the old contents plus the plain result. Only a kernel of the CPU can be told to make it. */
static Status check_sums(Check *k, OpRun run)
{
    OpCase  *c = &k->c;
    uint32_t mask = node_accumulate_mask(c->node) & c->all;
    if (!mask || !k->on_cpu) return OK;
    const OpData *sums = run.expected;
    run.plain = true;
    run.expected = NULL;
    TRY(op_run(c, &run, &k->faults));
    for (int i = 0; i < c->node->num_out; i++) {
        if (!(mask >> i & 1)) continue;
        const TensorType *type = &c->all_out[i]->type;
        int               acc = 0;
        double            worst = 0, largest = 0;
        while (c->node->in[acc] != c->all_out[i]->storage) acc++;
        for (int64_t e = 0; e < type_numel(type); e++) {
            double sum = tensor_element(type, c->in[acc].data, e) + tensor_element(type, c->out[i].data, e);
            worst = fmax(worst, fabs(sum - tensor_element(type, sums[i].data, e)));
            largest = fmax(largest, fabs(sum));
        }
        if (!(worst <= most_error(type->dtype, 1e-5, 1.0 / 64, 1.0 / 64) * largest))
            strbuf_printf(&k->faults, "; output %d isn't its old contents plus the result: off by %.3g of %.3g", i, worst, largest);
    }
    return OK;
}

/* ---- some rows alone ---- */

/* Cuts an operand's type, whose first dims make `all` rows, to `rows` rows: dim 0 becomes `rows`, the other dims of rows become 1. */
static void cut_type(TensorType *type, int64_t all, int64_t rows)
{
    int64_t first = 1;
    for (int d = 0; d < type->ndim && first < all; d++) {
        first *= type->dim[d];
        type->dim[d] = d ? 1 : rows;
    }
}

/* Checks that rows [begin, end) by themselves have the bits that they have among `all` rows. ordered true: with the kernel that the device
 * chooses; false: with the same kernel, and sums of products may be in another order. */
static Status check_part(Check *k, const OpData *whole, int64_t all, int64_t begin, int64_t end, bool ordered)
{
    const Node                 *node = k->c.node;
    int64_t                     in_row[NODE_MAX_IN] = {0}, out_row[NODE_MAX_OUT] = {0};
    TensorView                  in[NODE_MAX_IN];
    bool                        exact = ordered || !node->op->cost(node).matrix_unit;
    OpRun                       run = {.device = k->with->device, .want = ~0u};
    SCOPED(op_case_free) OpCase part = {0};
    CHECK(op_cut(node, all, in_row, out_row));
    for (int i = 0; i < node->num_in; i++) {
        in[i] = op_case_in(&k->c, i);
        if (in_row[i]) cut_type(&in[i].type, all, end - begin);
        if (in_row[i]) in[i].data = k->c.in[i].data + dtype_bytes(in[i].type.dtype, begin * in_row[i]);
    }
    TRY(op_case_of(&part, node->op, node->attrs, in, false));
    part.node->flags = node->flags;
    if (!ordered && !kernel_like(run.device, part.node, &k->kernel, &run.kernel)) run.kernel = (BoundKernel){0}; /* the device chooses */
    TRY(op_run(&part, &run, &k->faults));
    for (int i = 0; i < node->num_out; i++) {
        if (!part.all_out[i]) continue;
        const TensorType *type = &part.all_out[i]->type;
        bool              fits = type_numel(type) == (end - begin) * out_row[i];
        const void       *want = whole[i].data + dtype_bytes(type->dtype, begin * out_row[i]);
        if (fits && memcmp(want, part.out[i].data, part.out[i].bytes) == 0) continue;
        double error = fits ? tensor_errors(type, part.out[i].data, type, want, 1e-30).most : INFINITY;
        if (exact || !(error <= most_error(type->dtype, 1e-5, 1.0 / 64, 1.0 / 64)))
            strbuf_printf(&k->faults, "; rows %lld to %lld of output %d aren't those of all rows: off by %.3g", (long long)begin,
                          (long long)end - 1, i, error);
    }
    return OK;
}

/* On the CPU checks both halves of the rows, counted as finely as the op can be cut; on any device the first row, if `rows_alone`. */
static Status check_rows(Check *k, const OpData *whole, bool rows_alone)
{
    const Node *node = k->c.node;
    int64_t     in[NODE_MAX_IN], out[NODE_MAX_OUT], rows = 0, first = 1;
    for (int d = 0; node->op->by_row && d < node->out[0]->type.ndim; d++) {
        first *= node->out[0]->type.dim[d];
        if (op_cut(node, first, in, out)) rows = first;
    }
    if (rows_alone && rows) TRY(check_part(k, whole, rows, 0, 1, true));
    if (rows < 2 || !k->on_cpu) return OK;
    *k->cut = true;
    TRY(check_part(k, whole, rows, 0, rows / 2, false));
    return check_part(k, whole, rows, rows / 2, rows, false);
}

/* ---- cases ---- */

/* A plan made without the device must reserve enough workspace for its first kernel, up to rounding by libraries. */
static void check_planned(Check *k)
{
    const size_t rounding = 1 << 20;
    Device      *planner = k->with->planner;
    BoundKernel  planned;
    if (!planner || planner->api->bind(planner, k->c.node, &planned) != OK) return;
    if (k->kernel.workspace_bytes > planned.workspace_bytes + rounding)
        strbuf_printf(&k->faults, "; works in %zu bytes, a plan counts %zu", k->kernel.workspace_bytes, planned.workspace_bytes);
}

/* is_first: the device chooses this kernel. */
static Status check_kernel(Check *k, bool is_first)
{
    OpData kept[NODE_MAX_OUT];
    OpRun  run = {.device = k->with->device, .kernel = k->kernel, .want = ~0u, .twice = true};
    TRY(op_run(&k->c, &run, &k->faults));
    op_case_keep(&k->c, kept);
    run.twice = false;
    run.expected = kept;
    compare(k, &k->wide, true);
    if (k->on_cpu) compare(k, &k->reference, false);
    if (!k->faults.len) TRY(check_codes(k));
    if (!k->faults.len) TRY(check_wanted(k, run));
    if (!k->faults.len) TRY(check_places(k, run));
    if (!k->faults.len) TRY(check_threads(k, run));
    if (!k->faults.len) TRY(check_sums(k, run));
    if (!k->faults.len) TRY(check_rows(k, kept, is_first && k->c.node->flags & NODE_ROWS_ALONE));
    report(k, k->kernel.name);
    return OK;
}

static Status check_case(Check *k, const OpDef *op, const OpSample *sample, const TensorType *in)
{
    Device *device = k->with->device;
    TRY(op_case_make(&k->c, op, sample->attrs, in));
    if (sample->rows_alone) k->c.node->flags |= NODE_ROWS_ALONE;
    TRY(op_case_draw(&k->c, sample, k->with->cpu));
    TRY(compute_on_cpu(k, true, &k->wide));
    if (k->on_cpu) TRY(compute_on_cpu(k, false, &k->reference));
    OpCost cost = op->cost(k->c.node);
    if (!(cost.flops >= 0 && cost.bytes >= 0 && cost.flops + cost.bytes > 0)) strbuf_puts(&k->faults, "; costs nothing");
    for (int index = 0; device->api->variant(device, k->c.node, index, &k->kernel) == OK || !index; index++) {
        if (!k->kernel.run) strbuf_printf(&k->faults, "; %s", status_message());
        if (!k->kernel.run) report(k, NULL);
        if (!k->kernel.run) break;
        if (index == 0) check_planned(k);
        if (!k->with->kernel || strcmp(k->with->kernel, k->kernel.name) == 0) TRY(check_kernel(k, index == 0));
    }
    status_clear();
    return OK;
}

static Status check_sample(const OpChecks *with, const OpDef *op, const OpSample *sample, OpOutcome outcome, bool *cut)
{
    bool on_cpu = device_cpu_pool(with->device) != NULL;
    for (int i = 0; i < (on_cpu ? OP_TYPES : OP_TYPES_UNIFORM); i++) {
        TensorType in[NODE_MAX_IN];
        if (!op_sample_types(op, sample, i, in, &outcome.types)) continue;
        outcome.rounding = op_has_dtype(op, in, DT_BF16) ? DT_BF16 : op_has_dtype(op, in, DT_F16) ? DT_F16 : DT_F32;
        Check k = {
            .with = with, .on_cpu = on_cpu, .exact = sample->tolerance > 0 ? sample->tolerance : 1e-5, .outcome = outcome, .cut = cut};
        Status status = check_case(&k, op, sample, in);
        op_case_free(&k.c), op_case_free(&k.wide), op_case_free(&k.reference);
        strbuf_deinit(&k.faults);
        if (status != OK) return status_prefix(status, "%s (%s %d, %s)", op->name, outcome.sample, outcome.index, outcome.types);
    }
    return OK;
}

Status op_check(const OpChecks *checks, const OpDef *op)
{
    OpOutcome outcome = {.op = op->name, .sample = "sample"};
    OpSamples samples;
    bool      cut = false;
    SCOPED_ARENA(arena);
    TRY(op_samples_parse(&arena, op, op->samples, &samples));
    for (; outcome.index < samples.count; outcome.index++) TRY(check_sample(checks, op, &samples.items[outcome.index], outcome, &cut));
    if (checks->large) TRY(op_samples_parse(&arena, op, op->large, &samples));
    for (outcome.index = 0, outcome.sample = "large"; checks->large && outcome.index < samples.count; outcome.index++)
        TRY(check_sample(checks, op, &samples.items[outcome.index], outcome, &cut));
    outcome = (OpOutcome){.op = op->name, .sample = "sample", .types = "all types", .faults = "can't be computed some rows at a time"};
    if (op->by_row && device_cpu_pool(checks->device) && !checks->kernel && !cut) checks->report(checks->context, &outcome);
    return OK;
}
