/* nf4_dequantise: decodes a weight from NF4 codes (ops/lowbit/nf4.h). A scale times the code's value is rounded to fp32, then to the
 * weight's dtype.
 *
 * Scales are codes with nested scales and an offset, or fp32 if they weren't quantised. Several weights may become one matrix at once: each
 * has blocks and an offset of its own. */
#include "ops/infer.h"
#include "ops/lowbit/nf4.h"

static const AttrDef nf4_dequantise_attrs[] = {ATTR_DTYPE(DequantiseAttrs, dtype), DEQUANTISE_ROWS, {0}};

enum { IN_CODES, IN_ABSMAX, IN_NESTED, IN_OFFSET };

/* codes nf4 (N,K), absmax u8 (N K / 64), nested f32 (absmax / 256), quotients rounded up, offset f32 (1), or absmax f32 without
 * nested and offset -> w (N,K). With members each has blocks and an offset of its own, one after the other. */
static Status nf4_dequantise_infer(Node *node)
{
    const DequantiseAttrs *attrs = node->attrs;
    DType                  dtype;
    Nf4Member              members[DEQUANTISE_MAX_MEMBERS + 1];
    TRY(infer_input(node, IN_CODES, "codes", DT_SET(DT_NF4), DIMS(-1, -1)));
    const TensorType *codes = &node->in[IN_CODES]->type;
    TRY(type_check(codes));
    TRY(infer_dequantised(attrs, codes->dim[0], &dtype));
    int              count = nf4_members(attrs, codes->dim[0], codes->dim[1], members);
    const Nf4Member *end = &members[count];
    bool             is_nested = node->in[IN_ABSMAX]->type.dtype == DT_U8;
    TRY(infer_input(node, IN_ABSMAX, "absmax", is_nested ? DT_SET(DT_U8) : DT_SET_F32, DIMS(end->block)));
    FAIL_IF(!node->in[IN_NESTED] != !is_nested || !node->in[IN_OFFSET] != !is_nested, ERR_INVALID,
            "absmax is %s; expected u8 with nested and offset, or f32 without them", dtype_info(node->in[IN_ABSMAX]->type.dtype)->name);
    if (is_nested) TRY(infer_input(node, IN_NESTED, "nested", DT_SET_F32, DIMS(end->nested)));
    if (is_nested) TRY(infer_input(node, IN_OFFSET, "offset", DT_SET_F32, DIMS((int64_t)count)));
    node->out[0]->type = type_as(codes, dtype);
    return OK;
}

static OpCost nf4_dequantise_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
}

typedef struct Dequantise {
    const KernelArgs *args;
    Nf4Member         member;
    int               index; /* index of the member */
    DynamicMap        map;
} Dequantise;

/* block: counted within the member. */
static float block_scale(const Dequantise *d, int64_t block)
{
    const TensorView *in = d->args->in;
    const float      *nested = in[IN_NESTED].data, *offset = in[IN_OFFSET].data;
    int64_t           at = d->member.block + block;
    if (!nested) return ((const float *)in[IN_ABSMAX].data)[at];
    float value = dynamic_value(&d->map, true, ((const uint8_t *)in[IN_ABSMAX].data)[at]);
    return nf4_scale_of(value, nested[d->member.nested + block / NF4_NESTED], offset[d->index]);
}

static void dequantise_task(void *context, int64_t task, int worker)
{
    const Dequantise *d = context;
    const TensorView *w = &d->args->out[0];
    int64_t           first = d->member.first, numel = d->member.numel, begin = task * NF4_NESTED * NF4_BLOCK;
    (void)worker;
    for (int64_t at = begin; at < min_i64(numel, begin + NF4_NESTED * NF4_BLOCK); at += NF4_BLOCK) {
        const uint8_t *codes = (const uint8_t *)d->args->in[IN_CODES].data + (first + at) / 2;
        float          values[NF4_CODES], scratch[NF4_BLOCK], *row = tile_result(w, first + at, scratch);
        float          scale = block_scale(d, at / NF4_BLOCK);
        int64_t        count = min_i64(NF4_BLOCK, numel - at);
        for (int code = 0; code < NF4_CODES; code++) values[code] = nf4_value(code) * scale;
        for (int64_t i = 0; i < count; i += 2) {
            row[i] = values[codes[i / 2] >> 4];
            row[i + 1] = values[codes[i / 2] & 15];
        }
        tile_store(w, first + at, row, count);
    }
}

static Status nf4_dequantise_cpu(const KernelArgs *args)
{
    const TensorType *w = &args->out[0].type;
    Nf4Member         members[DEQUANTISE_MAX_MEMBERS + 1];
    Dequantise        d = {.args = args};
    int               count = nf4_members(args->attrs, w->dim[0], w->dim[1], members);
    dynamic_map_fill(&d.map, true);
    for (d.index = 0; d.index < count; d.index++) {
        d.member = members[d.index];
        pool_run(args->pool, div_up(d.member.numel, NF4_NESTED * NF4_BLOCK), dequantise_task, &d);
    }
    return OK;
}

const OpDef op_nf4_dequantise = {
    .id = OP_NF4_DEQUANTISE,
    .name = "nf4_dequantise",
    .synopsis = "w = values of codes times their block's scale, which is absmax, or, with nested, the value of code absmax times "
                "nested, plus offset",
    .num_in = 4,
    .num_out = 1,
    .min_in = 2,
    .attrs_size = sizeof(DequantiseAttrs),
    .attrs = nf4_dequantise_attrs,
    .infer = nf4_dequantise_infer,
    .cost = nf4_dequantise_cost,
    .cpu = {{DT_SET_FLOAT,
             nf4_dequantise_cpu,
             "reference",
             {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_NF4)}, {.in = 1u << IN_ABSMAX, .dtypes = DT_SET(DT_U8) | DT_SET_F32}}}},
    .holds = {[IN_NESTED] = HOLDS_SQUARES},
    .samples = "nf4[1,2], u8[1] below=256, [1], [1]\n"
               "nf4[3,50], u8[3] below=256, [1], [1] {dtype=bf16}\n"
               "nf4[70,1036], u8[1134] below=256, [5], [1]\n"
               "nf4[33,2048], u8[1056] below=256, [5], [1] {dtype=bf16}\n"
               "nf4[37,114], [66] {dtype=bf16}\n"
               "nf4[100,530], u8[829] below=256, [6], [3] {rows0=33, rows1=3, rows2=64}\n"
               "nf4[70,1036], u8[1134] below=256, [5], [2] {dtype=bf16, rows0=40, rows1=30}\n"
               "nf4[70,6], [7] {dtype=bf16, rows0=40, rows1=30}\n",
    .large = "nf4[4096,1024], u8[65536] below=256, [256], [1] {dtype=bf16}\n"
             "nf4[4096,1024], u8[65536] below=256, [256], [1]\n",
};
