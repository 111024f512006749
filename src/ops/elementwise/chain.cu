/* chain on CUDA: from a chain's steps to what its kernels read (chain.cuh), and their launches. */
#include "ops/elementwise/chain.cuh"

/* If a result has fewer elements, threads take fewer at a time: a GPU isn't full, and steps end sooner. */
enum { SMALL = 1 << 20 };

static const int operands_of[CHAIN_COUNT] = {
#define CHAIN(op, operands, flops) operands,
#include "ops/elementwise/chain.def"
#undef CHAIN
};

static int bytes_of(int dtype)
{
    return dtype == DT_F32 ? 4 : 2;
}

static SourceKind column_kind(int dtype)
{
    return dtype == DT_F32 ? SOURCE_F32 : dtype == DT_BF16 ? SOURCE_BF16 : SOURCE_F16;
}

static Divisor divisor(int64_t by)
{
    Divisor d = {(uint32_t)by, 0, 0};
    while ((int64_t)1 << d.shift < by) d.shift++;
    d.factor = (uint32_t)(((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by) / (uint64_t)by + 1);
    return d;
}

/* How a chain is cut. unit: elements in a unit; units: units that a thread takes at a time; dtype: of all tensors and steps, or -1 if they
 * have several; row: if the result is one row, it is cut into rows of this many units. */
typedef struct Shape {
    int     unit, units, dtype;
    int64_t row;
} Shape;

/* Whether step i takes operand k from registers, where the previous step's result is. A third operand is never taken from there. */
static bool is_latest(int i, int k, int operand)
{
    return i > 0 && k < 2 && operand == CHAIN_RESULT + i - 1;
}

/* Puts the previous result first in a + b and a b, because it needn't be moved then. The bits are the same either way. */
static void order_operands(int i, ChainStep *step)
{
    int  second = step->operand[1];
    bool either = step->code == CHAIN_ADD || step->code == CHAIN_MUL;
    if (!either || !is_latest(i, 1, second)) return;
    step->operand[1] = step->operand[0];
    step->operand[0] = second;
}

/* Assigns columns of shared memory to results that are read later than by the next step, from byte `begin` on. A column is reused after
 * its last reader. Returns where the columns end. */
static int find_slots(ChainRun *run, const ChainStep *steps, int begin, int each)
{
    int last[CHAIN_MAX_STEPS] = {}, free_from[CHAIN_MAX_STEPS] = {}, slots = 0, bytes = 2;
    for (int i = 0; i < run->count; i++)
        for (int k = 0; k < CHAIN_OPERANDS; k++) {
            int from = steps[i].operand[k] - CHAIN_RESULT;
            if (from < 0 || is_latest(i, k, steps[i].operand[k])) continue;
            last[from] = i;
            if (bytes_of(steps[from].dtype) > bytes) bytes = 4;
        }
    for (int i = 0; i < run->count; i++) {
        int slot = 0;
        run->steps[i].slot = -1;
        if (!last[i]) continue;
        while (free_from[slot] > i) slot++;
        free_from[slot] = last[i] + 1;
        run->steps[i].slot = begin + slot * THREADS * each * bytes;
        if (slot >= slots) slots = slot + 1;
    }
    return begin + slots * THREADS * each * bytes;
}

/* Whether all rows of the result read the same row of input k. */
static bool is_one_row(const Broadcast *plan, int k)
{
    bool one = plan->ndim > 1;
    for (int d = 0; d < plan->ndim - 1; d++) one = one && !plan->step[k][d];
    return one;
}

/* Decides which inputs are copied to shared memory: those with a number for each column, unless a unit is one element. Returns the bytes of
 * shared memory that they take. */
static int find_copies(ChainRun *run, const Broadcast *plan, const Shape *shape)
{
    int last = plan->ndim - 1, bytes = 0;
    for (int once = 0; once < 2; once++) {
        for (int k = 0; k < CHAIN_MAX_IN; k++) {
            if (!run->in[k] || shape->unit == 1 || !plan->step[k][last] || is_one_row(plan, k) != once) continue;
            RunCopy *copy = &run->copies[run->num_copies++];
            int64_t  dense = 1;
            *copy = {run->in[k], k, bytes_of(run->dtype[k]), bytes, true};
            for (int d = last; d >= 0; d--) {
                copy->dense = copy->dense && plan->step[k][d] == dense;
                dense *= plan->dim[d];
            }
            bytes += THREADS * (once ? 1 : shape->units) * shape->unit * copy->bytes;
        }
        if (once) continue;
        run->num_staged = run->num_copies;
        run->stage_bytes = bytes;
        bytes *= STAGES;
    }
    return bytes;
}

static Source source_of(const ChainRun *run, const ChainStep *steps, int i, int k)
{
    int at = steps[i].operand[k], from = at - CHAIN_RESULT;
    if (k >= operands_of[steps[i].code]) return {SOURCE_UNREAD};
    if (at < 0) return {SOURCE_ZERO};
    if (is_latest(i, k, at)) return {SOURCE_LATEST};
    if (from >= 0) return {column_kind(steps[from].dtype), run->steps[from].slot};
    for (int c = 0; c < run->num_copies; c++)
        if (run->copies[c].k == at) return {column_kind(run->dtype[at]) + (c < run->num_staged ? 0 : SOURCE_ONE), run->copies[c].at};
    return {SOURCE_INPUT, at};
}

static bool is_staged(const ChainRun *run, int operand)
{
    bool staged = false;
    for (int c = 0; c < run->num_staged; c++) staged = staged || run->copies[c].k == operand;
    return staged;
}

/* What the step has to do. dtype: as in Shape. */
static void set_flags(RunStep *step, int dtype)
{
    int first = step->from[0].kind, second = step->from[1].kind, own = dtype < 0 ? SOURCE_F32 : column_kind(dtype);
    if (first == own) step->flags |= FIRST_COLUMN;
    if (first != own && first != SOURCE_LATEST) step->flags |= FIRST_LOAD;
    if (second == own) step->flags |= SECOND_COLUMN;
    if (second == SOURCE_LATEST) step->flags |= SECOND_LATEST;
    if (second != own && second > SOURCE_UNREAD) step->flags |= SECOND_LOAD;
    if (step->slot >= 0) step->flags |= KEPT;
    if (step->out) step->flags |= WRITTEN;
}

/* Fills in the chain for units of the shape. Returns the bytes of shared memory that it needs. */
static size_t make_run(const KernelArgs *args, ChainRun *run, const Shape *shape)
{
    const ChainAttrs *attrs = (const ChainAttrs *)args->attrs;
    const TensorType *y = chain_result(args);
    Broadcast         plan = broadcast_plan_of(args, y);
    ChainStep         steps[CHAIN_MAX_STEPS];
    int               last = plan.ndim - 1;
    *run = {};
    run->row_dims = last;
    run->count = chain_count(attrs);
    run->units = (uint32_t)(type_numel(y) / shape->unit);
    for (int d = 0; d < last; d++) run->dim[d] = divisor(plan.dim[d]);
    run->row = divisor(last ? plan.dim[last] / shape->unit : shape->row);
    for (int k = 0; k < args->num_in && k < CHAIN_MAX_IN; k++) {
        run->in[k] = (const char *)args->in[k].data;
        run->dtype[k] = (signed char)args->in[k].type.dtype;
        for (int d = 0; d < last; d++) run->step[k][d] = (uint32_t)plan.step[k][d];
        run->col_step[k] = (uint32_t)plan.step[k][last];
    }
    for (int i = 0; i < run->count; i++) {
        steps[i] = chain_step(attrs, i);
        order_operands(i, &steps[i]);
        run->steps[i].code = steps[i].code;
        run->steps[i].dtype = steps[i].dtype;
        run->steps[i].number = steps[i].number;
        run->steps[i].out = steps[i].out < 0 ? NULL : (char *)args->out[steps[i].out].data;
    }
    int bytes = find_copies(run, &plan, shape);
    bytes = find_slots(run, steps, bytes, shape->units * shape->unit);
    for (int i = 0; i < run->count; i++) {
        for (int k = 0; k < CHAIN_OPERANDS; k++) {
            run->steps[i].from[k] = source_of(run, steps, i, k);
            if (is_staged(run, steps[i].operand[k])) run->steps[i].staged |= 1 << k;
        }
        set_flags(&run->steps[i], shape->dtype);
        if (i + 1 == run->count) run->steps[i].flags |= LAST;
    }
    return (size_t)bytes + sizeof(RunStep) * run->count * STAGES;
}

/* Chooses the shape. A unit has as many elements as 16 bytes hold of the widest tensor that has a number for each column, or 1 if rows or
 * addresses don't allow more. With only one input to copy, a thread takes more units, so that enough bytes are in flight. */
static Shape find_shape(const KernelArgs *args)
{
    const ChainAttrs *attrs = (const ChainAttrs *)args->attrs;
    Broadcast         plan = broadcast_plan_of(args, chain_result(args));
    int               last = plan.ndim - 1, count = chain_count(attrs);
    int               staged = 0;
    bool              aligned = true, small = type_numel(chain_result(args)) < SMALL;
    Shape             shape = {8, 2, chain_step(attrs, 0).dtype, WARP};
    for (int i = 0; i < count; i++)
        if (chain_step(attrs, i).dtype != shape.dtype) shape.dtype = -1;
    for (int k = 0; k < args->num_in && k < CHAIN_MAX_IN; k++) {
        if (!args->in[k].data) continue;
        if (args->in[k].type.dtype != shape.dtype) shape.dtype = -1;
        if (!plan.step[k][last]) continue;
        aligned = aligned && is_aligned16(args->in[k].data);
        if (args->in[k].type.dtype == DT_F32) shape.unit = 4;
        if (!is_one_row(&plan, k)) staged++;
    }
    for (int k = 0; k < args->num_out && k < CHAIN_MAX_OUT; k++) {
        if (!args->out[k].data) continue;
        aligned = aligned && is_aligned16(args->out[k].data);
        if (args->out[k].type.dtype == DT_F32) shape.unit = 4;
    }
    if (shape.dtype == DT_F32) shape.unit = 4;
    if (shape.dtype == DT_F16) shape.dtype = -1;
    if (small && shape.dtype < 0) shape.unit = 4;
    if (small && shape.dtype == DT_BF16) shape.units = 1;
    if (!small && shape.dtype >= 0 && staged <= 1) shape.units = 4;
    if (!aligned || (last && plan.dim[last] % shape.unit)) shape.unit = 1;
    if (shape.unit == 1) shape.units = 1, shape.dtype = -1;
    return shape;
}

/* Blocks that the GPU runs at a time. */
static Status find_resident(const void *kernel, size_t shared, int64_t *out_blocks)
{
    int device, count, resident;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, THREADS, shared));
    *out_blocks = (int64_t)count * (resident > 0 ? resident : 1);
    return OK;
}

/* Launches as many blocks as run at a time; fewer, if they need no more iterations; more, if one row has more units than these blocks have
 * threads. */
template <typename T, int UNIT, int UNITS> static Status launch_units(const KernelArgs *args, ChainRun *run, size_t shared)
{
    const auto kernel = chain_units<T, UNIT, UNITS>;
    int64_t    resident, rows = cuda_div_up(run->units, run->row.by);
    if (!run->units) return OK;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    TRY(find_resident((const void *)kernel, shared, &resident));
    int64_t most = resident * THREADS / run->row.by, iterations = cuda_div_up(rows, UNITS * (most > 0 ? most : 1));
    run->rows_apart = (uint32_t)cuda_div_up(rows, UNITS * iterations);
    run->apart = run->rows_apart * run->row.by;
    kernel<<<(unsigned)cuda_div_up(run->apart, THREADS), THREADS, shared, cuda_stream(args)>>>(*run);
    return CUDA_LAUNCHED();
}

static Status launch_elements(const KernelArgs *args, int64_t done)
{
    static const Shape element = {1, 1, -1, (int64_t)1 << 32};
    ChainRun           run;
    int64_t            most;
    size_t             shared = make_run(args, &run, &element);
    TRY(find_resident((const void *)chain_elements, shared, &most));
    int64_t blocks = cuda_div_up(run.units - done, THREADS);
    chain_elements<<<(unsigned)(blocks < most ? blocks : most), THREADS, shared, cuda_stream(args)>>>(run, done);
    return CUDA_LAUNCHED();
}

static Status chain_run(const KernelArgs *args)
{
    ChainRun run;
    Shape    shape = find_shape(args);
    int64_t  numel = type_numel(chain_result(args));
    int      device, most;
    if (shape.unit == 1) return launch_elements(args, 0);
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    size_t shared = make_run(args, &run, &shape);
    if (shared > (size_t)most && shape.units == 4) {
        shape.units = 2;
        shared = make_run(args, &run, &shape);
    }
    if (shared > (size_t)most) return launch_elements(args, 0);
    if (shape.dtype == DT_BF16 && shape.units == 1)
        TRY((launch_units<__nv_bfloat16, 8, 1>(args, &run, shared)));
    else if (shape.dtype == DT_BF16 && shape.units == 2)
        TRY((launch_units<__nv_bfloat16, 8, 2>(args, &run, shared)));
    else if (shape.dtype == DT_BF16)
        TRY((launch_units<__nv_bfloat16, 8, 4>(args, &run, shared)));
    else if (shape.dtype == DT_F32 && shape.units == 2)
        TRY((launch_units<float, 4, 2>(args, &run, shared)));
    else if (shape.dtype == DT_F32)
        TRY((launch_units<float, 4, 4>(args, &run, shared)));
    else if (shape.unit == 8)
        TRY((launch_units<Mixed, 8, 2>(args, &run, shared)));
    else
        TRY((launch_units<Mixed, 4, 2>(args, &run, shared)));
    return numel % shape.unit ? launch_elements(args, numel - numel % shape.unit) : OK;
}

/* The kernel counts elements in 32 bits. */
static bool chain_fits(const Node *node, CudaDevice *device)
{
    (void)device;
    int k = 0;
    while (!node->out[k]) k++;
    return type_numel(&node->out[k]->type) < (int64_t)1 << 32;
}

CUDA_KERNELS(chain, {.dtypes = DT_SET_DECODE, .run = chain_run, .name = "steps", .match = chain_fits})
