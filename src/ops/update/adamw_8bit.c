/* adamw_8bit: adamw with 8-bit moments. Each block of MOMENT_BLOCK elements has a scale, its largest magnitude; elements divided by it are
 * stored as codes of the dynamic map (Dettmers 2022; as in bitsandbytes' AdamW8bit). m uses the signed map, v the unsigned one.
 *
 * Moments are decoded, updated and applied in fp32 as in adamw, then encoded to the nearest code: the step itself uses the unrounded
 * moments. A scale of 0 means a block of zeros, whatever its codes are. */
#include "ops/update/adamw.h"

#include "ops/lowbit/dynamic_map.h"
#include "ops/update/update.h"

static const AttrDef adamw_8bit_attrs[] = {
    ATTR_FLOAT(AdamwAttrs, beta1, 0.9),
    ATTR_FLOAT(AdamwAttrs, beta2, 0.999),
    ATTR_FLOAT(AdamwAttrs, eps, 1e-8),
    ATTR_FLOAT(AdamwAttrs, weight_decay, 0),
    ATTR_FLOAT(AdamwAttrs, max_grad_norm, 0),
    ATTR_BOOL(AdamwAttrs, stochastic, true),
    {0},
};

enum { IN_W, IN_G, IN_M, IN_V, IN_M_SCALE, IN_V_SCALE, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_SEGMENTS, IN_MASTER };
enum { OUT_W, OUT_M, OUT_V, OUT_M_SCALE, OUT_V_SCALE, OUT_MASTER };

/* w, g (E), m, v u8 (E), m_scale, v_scale f32 (MOMENT_FIRST(E, S)), norm2, loss (1) f32, hyper f32 (HYPER_COUNT), step i64 (STEP_COUNT),
 * segments i64 (S,SEGMENT_COLUMNS), [master (E) f32] -> w', m', v', m_scale', v_scale', master' in place. */
static Status adamw_8bit_infer(Node *node)
{
    TRY(infer_input(node, IN_W, "w", DT_SET_FLOAT, DIMS(-1)));
    const TensorType *w = &node->in[IN_W]->type;
    TRY(infer_like(node, IN_G, "g", DT_SET_FLOAT, w));
    TRY(infer_like(node, IN_M, "m", DT_SET(DT_U8), w));
    TRY(infer_like(node, IN_V, "v", DT_SET(DT_U8), w));
    TRY(infer_input(node, IN_SEGMENTS, "segments", DT_SET(DT_I64), DIMS(-1, SEGMENT_COLUMNS)));
    int64_t blocks = MOMENT_FIRST(w->dim[0], node->in[IN_SEGMENTS]->type.dim[0]);
    TRY(infer_input(node, IN_M_SCALE, "m_scale", DT_SET_F32, DIMS(blocks)));
    TRY(infer_input(node, IN_V_SCALE, "v_scale", DT_SET_F32, DIMS(blocks)));
    TRY(infer_input(node, IN_NORM2, "norm2", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_LOSS, "loss", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_HYPER, "hyper", DT_SET_F32, DIMS(HYPER_COUNT)));
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    if (node->in[IN_MASTER]) TRY(infer_like(node, IN_MASTER, "master", DT_SET_F32, w));
    for (int i = IN_W; i <= IN_V_SCALE; i++) {
        static const int outs[] = {OUT_W, -1, OUT_M, OUT_V, OUT_M_SCALE, OUT_V_SCALE};
        if (outs[i] >= 0) node->out[outs[i]]->type = node->in[i]->type;
    }
    node->out[OUT_MASTER]->type = node->in[IN_MASTER] ? node->in[IN_MASTER]->type : (TensorType){0};
    return OK;
}

static OpCost adamw_8bit_cost(const Node *node)
{
    return cost_streaming(node, 60.0 * (double)type_numel(&node->in[IN_W]->type));
}

/* The signed and the unsigned map, in the kernel's workspace. */
typedef struct Maps {
    DynamicMap m, v;
} Maps;

static size_t adamw_8bit_workspace(const Node *node, int num_workers)
{
    (void)node, (void)num_workers;
    return sizeof(Maps);
}

typedef struct Step8 {
    const KernelArgs *args;
    const Maps       *maps;
    AdamwScalars      scalars;
} Step8;

/* Updates elements [at, at + count), which are block `block`. first: index of element `at` within its parameter. */
static void update_block(const Step8 *s, int64_t block, int64_t at, int64_t first, int64_t count, float decay, uint64_t key)
{
    const TensorView *in = s->args->in, *out = s->args->out, *source = in[IN_MASTER].data ? &in[IN_MASTER] : &in[IN_W];
    float             w[MOMENT_BLOCK], m[MOMENT_BLOCK], v[MOMENT_BLOCK], scratch[MOMENT_BLOCK];
    uint32_t          random[MOMENT_BLOCK];
    uint8_t          *m_codes = (uint8_t *)out[OUT_M].data + at, *v_codes = (uint8_t *)out[OUT_V].data + at;
    float            *m_scale = (float *)out[OUT_M_SCALE].data + block, *v_scale = (float *)out[OUT_V_SCALE].data + block;
    const AdamwAttrs *attrs = s->args->attrs;
    const float      *g = tile_load(&in[IN_G], at, count, scratch);
    vec_copy_in(w, vec_at(source->data, source->type.dtype, at), source->type.dtype, count);
    dynamic_decode(&s->maps->m, true, m_codes, *m_scale, count, m);
    dynamic_decode(&s->maps->v, false, v_codes, *v_scale, count, v);
    for (int64_t i = 0; i < count; i++) adamw_element(&s->scalars, decay, g[i], &w[i], &m[i], &v[i]);
    *m_scale = dynamic_encode(&s->maps->m, true, m, count, m_codes);
    *v_scale = dynamic_encode(&s->maps->v, false, v, count, v_codes);
    if (in[IN_MASTER].data) tile_store(&out[OUT_MASTER], at, w, count);
    if (in[IN_W].type.dtype == DT_BF16 && !in[IN_MASTER].data && attrs->stochastic) {
        update_random(random, key, first, count);
        store_stochastic(&out[OUT_W], at, w, random, 0, count);
    } else {
        tile_store(&out[OUT_W], at, w, count);
    }
}

VEC_TASK(adamw_8bit_task)
{
    const Step8 *s = context;
    const int64_t(*segments)[SEGMENT_COLUMNS] = s->args->in[IN_SEGMENTS].data;
    int64_t        index = segment_of_task(segments, &task);
    const int64_t *segment = segments[index];
    int64_t        end = min_i64(segment[SEGMENT_NUMEL], (task + 1) * UPDATE_PER_TASK);
    uint64_t       key = update_key(s->args->in[IN_STEP].data, segment[SEGMENT_KEY]);
    (void)worker;
    for (int64_t first = task * UPDATE_PER_TASK; first < end; first += MOMENT_BLOCK)
        update_block(s, MOMENT_FIRST(segment[SEGMENT_OFFSET], index) + first / MOMENT_BLOCK, segment[SEGMENT_OFFSET] + first,
                     segment[SEGMENT_FIRST] + first, min_i64(MOMENT_BLOCK, end - first), segment[SEGMENT_DECAY] ? s->scalars.decay : 1.0f,
                     key);
}

static Status adamw_8bit_cpu(const KernelArgs *args)
{
    float   norm2 = *(const float *)args->in[IN_NORM2].data, loss = *(const float *)args->in[IN_LOSS].data;
    Maps   *maps = args->workspace;
    int64_t tasks;
    TRY(segments_tasks(&args->in[IN_SEGMENTS], args->in[IN_W].type.dim[0], &tasks));
    bool applied = isfinite(norm2) && isfinite(loss);
    dynamic_map_fill(&maps->m, true);
    dynamic_map_fill(&maps->v, false);
    Step8 step = {args, maps, adamw_scalars(args->attrs, norm2, args->in[IN_HYPER].data)};
    if (applied) pool_run(args->pool, tasks, adamw_8bit_task, &step);
    return OK;
}

const OpDef op_adamw_8bit = {
    .id = OP_ADAMW_8BIT,
    .name = "adamw_8bit",
    .synopsis = "w, m, v after a step of AdamW as in adamw; m and v are 8-bit codes with one scale for each 256 elements",
    .num_in = 12,
    .num_out = 6,
    .min_in = 11,
    .flags = OP_RANDOM,
    .alias = {{.out = OUT_W, .in = IN_W},
              {.out = OUT_M, .in = IN_M},
              {.out = OUT_V, .in = IN_V},
              {.out = OUT_M_SCALE, .in = IN_M_SCALE},
              {.out = OUT_V_SCALE, .in = IN_V_SCALE},
              {.out = OUT_MASTER, .in = IN_MASTER}},
    .num_alias = 6,
    .attrs_size = sizeof(AdamwAttrs),
    .attrs = adamw_8bit_attrs,
    .infer = adamw_8bit_infer,
    .cost = adamw_8bit_cost,
    .workspace = adamw_8bit_workspace,
    .cpu = {{DT_SET_FLOAT,
             adamw_8bit_cpu,
             "reference",
             {{.in = 1u << IN_M | 1u << IN_V, .out = 1u << OUT_M | 1u << OUT_V, .dtypes = DT_SET(DT_U8)}}}},
    .holds = {[IN_M_SCALE] = HOLDS_SQUARES,
              [IN_V_SCALE] = HOLDS_SQUARES,
              [IN_NORM2] = HOLDS_NORM2,
              [IN_HYPER] = HOLDS_HYPER,
              [IN_SEGMENTS] = HOLDS_SEGMENTS},
    /* Tolerance: kernels fuse different products, so a moment halfway between two codes may get either. */
    .samples = "[700], [700], u8[700] below=256, u8[700] below=256, [5], [5], [1], [1], [8], i64[4] below=99, i64[3,5]"
               "  {beta2=0.95, weight_decay=0.1, max_grad_norm=1} tolerance=0.001\n"
               "[40000], [40000], u8[40000] below=256, u8[40000] below=256, [158], [158], [1], [1], [8], i64[4] below=99, i64[2,5],"
               "  [40000] {beta2=0.95, weight_decay=0.1, max_grad_norm=1} tolerance=0.001\n",
    /* fp32 gradients with bf16 weights, without and with a master copy */
    .large = "bf16[400000], [400000], u8[400000] below=256, u8[400000] below=256, [1564], [1564], [1], [1], [8], i64[4] below=99,"
             "  i64[2,5] {beta2=0.95, weight_decay=0.1, max_grad_norm=1} tolerance=0.001\n"
             "bf16[400000], [400000], u8[400000] below=256, u8[400000] below=256, [1564], [1564], [1], [1], [8], i64[4] below=99,"
             "  i64[2,5], [400000] {beta2=0.95, weight_decay=0.1, max_grad_norm=1} tolerance=0.001\n",
};
