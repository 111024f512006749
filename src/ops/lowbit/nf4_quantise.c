/* nf4_quantise: encodes a weight in NF4 with scales, which are encoded too unless `once` (ops/lowbit/nf4.h). It runs once for a weight.
 *
 * If a tensor has NaN or infinity its offset is NaN or infinity too, so that no code decodes to a finite value. */
#include "ops/infer.h"
#include "ops/lowbit/nf4.h"

enum { OUT_CODES, OUT_ABSMAX, OUT_NESTED, OUT_OFFSET };

static const AttrDef nf4_quantise_attrs[] = {ATTR_BOOL(Nf4QuantiseAttrs, once, false), {0}};

/* x (N,K) -> codes nf4 (N,K), absmax u8 (N K / 64), nested f32 (absmax / 256), offset f32 (1), quotients rounded up; once: absmax f32,
 * without nested and offset. */
static Status nf4_quantise_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_FLOAT, DIMS(-1, -1)));
    const TensorType *x = &node->in[0]->type;
    int64_t           blocks = div_up(type_numel(x), NF4_BLOCK);
    node->out[OUT_CODES]->type = type_as(x, DT_NF4);
    bool once = ((const Nf4QuantiseAttrs *)node->attrs)->once;
    node->out[OUT_ABSMAX]->type = type_make(once ? DT_F32 : DT_U8, 1, blocks);
    if (once) return OK;
    node->out[OUT_NESTED]->type = type_make(DT_F32, 1, div_up(blocks, NF4_NESTED));
    node->out[OUT_OFFSET]->type = type_make(DT_F32, 1, INT64_C(1));
    return OK;
}

static OpCost nf4_quantise_cost(const Node *node)
{
    return cost_streaming(node, 20.0 * (double)type_numel(&node->in[0]->type));
}

/* Room for the scales in fp32 and, on CUDA, the offset. */
static size_t nf4_quantise_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return (size_t)(div_up(type_numel(&node->in[0]->type), NF4_BLOCK) + 1) * sizeof(float);
}

static size_t nf4_quantise_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return nf4_quantise_gpu_workspace(node, 0);
}

typedef struct Quantise {
    const KernelArgs *args;
    int64_t           numel, blocks;
    float            *scales, offset;
    DynamicMap        map;
} Quantise;

static void quantise_block(const Quantise *q, int64_t block)
{
    float        scratch[NF4_BLOCK];
    int          nearest[NF4_BLOCK];
    int64_t      at = block * NF4_BLOCK, count = min_i64(NF4_BLOCK, q->numel - at);
    const float *x = tile_load(&q->args->in[0], at, count, scratch);
    uint8_t     *codes = (uint8_t *)q->args->out[OUT_CODES].data;
    float        scale = nf4_scale(most_magnitude(0, x, count), count < NF4_BLOCK);
    q->scales[block] = scale;
    if (!codes) return;
    for (int64_t i = 0; i < count; i++) nearest[i] = nf4_nearest(nf4_in_block(x[i], scale, count < NF4_BLOCK));
    for (int64_t i = 0; i < count; i += 2) codes[(at + i) / 2] = (uint8_t)(nearest[i] << 4 | nearest[i + 1]);
}

static void quantise_task(void *context, int64_t task, int worker)
{
    const Quantise *q = context;
    int64_t         end = min_i64(q->blocks, (task + 1) * NF4_NESTED);
    (void)worker;
    for (int64_t block = task * NF4_NESTED; block < end; block++) quantise_block(q, block);
}

static float mean_scale(const Quantise *q)
{
    double lanes[NF4_LANES] = {0};
    for (int64_t i = 0; i < q->blocks; i++) lanes[i % NF4_LANES] += (double)q->scales[i];
    for (int half = NF4_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return (float)(lanes[0] / (double)q->blocks);
}

static void scales_task(void *context, int64_t task, int worker)
{
    const Quantise *q = context;
    int64_t         begin = task * NF4_NESTED, end = min_i64(q->blocks, begin + NF4_NESTED);
    uint8_t        *absmax = q->args->out[OUT_ABSMAX].data;
    float          *nested = q->args->out[OUT_NESTED].data, most = 0;
    (void)worker;
    for (int64_t i = begin; i < end; i++) most = fmaxf(most, fabsf(q->scales[i] - q->offset));
    for (int64_t i = begin; i < end && absmax; i++) absmax[i] = (uint8_t)nf4_scale_code(&q->map, q->scales[i] - q->offset, most);
    if (nested) nested[task] = most;
}

static Status nf4_quantise_cpu(const KernelArgs *args)
{
    int64_t  numel = type_numel(&args->in[0].type), blocks = div_up(numel, NF4_BLOCK), tasks = div_up(blocks, NF4_NESTED);
    float   *offset = args->out[OUT_OFFSET].data;
    bool     once = ((const Nf4QuantiseAttrs *)args->attrs)->once;
    Quantise q = {.args = args, .numel = numel, .blocks = blocks, .scales = once ? args->out[OUT_ABSMAX].data : NULL};
    if (!q.scales) q.scales = args->workspace;
    pool_run(args->pool, tasks, quantise_task, &q);
    if (once) return OK;
    dynamic_map_fill(&q.map, true);
    q.offset = mean_scale(&q);
    pool_run(args->pool, tasks, scales_task, &q);
    if (offset) *offset = q.offset;
    return OK;
}

const OpDef op_nf4_quantise = {
    .id = OP_NF4_QUANTISE,
    .name = "nf4_quantise",
    .synopsis = "NF4 codes of x in blocks of 64 elements of the flat tensor, and a scale for each block, itself quantised "
                "(bitsandbytes' double quantisation) unless `once`",
    .num_in = 1,
    .num_out = 4,
    .min_in = 1,
    .attrs_size = sizeof(Nf4QuantiseAttrs),
    .attrs = nf4_quantise_attrs,
    .infer = nf4_quantise_infer,
    .cost = nf4_quantise_cost,
    .workspace = nf4_quantise_workspace,
    .gpu_workspace = nf4_quantise_gpu_workspace,
    .cpu = {{DT_SET_FLOAT,
             nf4_quantise_cpu,
             "reference",
             {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_NF4)}, {.out = 1u << OUT_ABSMAX, .dtypes = DT_SET(DT_U8) | DT_SET_F32}}}},
    .samples = "[1,2]\n"
               "[3,50]\n"
               "[70,1036]\n"
               "[37,114] {once=true}\n",
    .large = "[4096,1024]\n",
};
