/* adamw: one optimizer step over all trained parameters at once, stored flat (E elements) with a table of segments.
 *
 *   g <- g min(1, max_grad_norm / (norm + 1e-6))      norm = sqrt(norm2), as torch.nn.utils.clip_grad_norm_
 *   m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
 *   w <- w - lr weight_decay w (in segments that decay) - lr (m / bias1) / (sqrt(v / bias2) + eps)
 *
 * A step whose loss or norm isn't finite changes nothing. Padding between segments is never changed. Arithmetic is fp32. bf16 weights
 * without a master copy are rounded stochastically: with rounding to nearest, updates under half an ulp (2^-9 of the weight) would be
 * lost for good. A bf16 v, which moves by 0.1% a step, is rounded stochastically too; a bf16 m moves by 10% a step and is rounded to
 * nearest. With an fp32 master copy a bf16 weight is the master rounded to nearest. */
#include "ops/update/adamw.h"

#include "ops/update/update.h"

static const AttrDef adamw_attrs[] = {
    ATTR_FLOAT(AdamwAttrs, beta1, 0.9),
    ATTR_FLOAT(AdamwAttrs, beta2, 0.999),
    ATTR_FLOAT(AdamwAttrs, eps, 1e-8),
    ATTR_FLOAT(AdamwAttrs, weight_decay, 0),
    ATTR_FLOAT(AdamwAttrs, max_grad_norm, 0),
    ATTR_BOOL(AdamwAttrs, stochastic, true),
    {0},
};

enum { IN_W, IN_G, IN_M, IN_V, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_SEGMENTS, IN_MASTER };
enum { OUT_W, OUT_M, OUT_V, OUT_MASTER };

/* w, g, m, v (E), norm2, loss (1) f32, hyper f32 (HYPER_COUNT), step i64 (STEP_COUNT), segments i64 (S,SEGMENT_COLUMNS), [master (E)
 * f32] -> w', m', v', master' in place. */
static Status adamw_infer(Node *node)
{
    TRY(infer_input(node, IN_W, "w", DT_SET_FLOAT, DIMS(-1)));
    const TensorType *w = &node->in[IN_W]->type;
    TRY(infer_like(node, IN_G, "g", DT_SET_FLOAT, w));
    TRY(infer_like(node, IN_M, "m", DT_SET_FLOAT, w));
    TRY(infer_like(node, IN_V, "v", DT_SET_FLOAT, w));
    TRY(infer_input(node, IN_NORM2, "norm2", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_LOSS, "loss", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_HYPER, "hyper", DT_SET_F32, DIMS(HYPER_COUNT)));
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    TRY(infer_input(node, IN_SEGMENTS, "segments", DT_SET(DT_I64), DIMS(-1, SEGMENT_COLUMNS)));
    if (node->in[IN_MASTER]) TRY(infer_like(node, IN_MASTER, "master", DT_SET_F32, w));
    node->out[OUT_W]->type = *w;
    node->out[OUT_M]->type = node->in[IN_M]->type;
    node->out[OUT_V]->type = node->in[IN_V]->type;
    node->out[OUT_MASTER]->type = node->in[IN_MASTER] ? node->in[IN_MASTER]->type : (TensorType){0};
    return OK;
}

static OpCost adamw_cost(const Node *node)
{
    return cost_streaming(node, 18.0 * (double)type_numel(&node->in[IN_W]->type));
}

typedef struct AdamwStep {
    const KernelArgs *args;
    AdamwScalars      scalars;
} AdamwStep;

enum { AHEAD = 512 }; /* distance of prefetching, in elements */

/* Elements [at, at + count) of an updated tensor as floats: in place, if the output is f32 and wanted, else copied to `scratch`. */
static float *updated(const TensorView *in, const TensorView *out, int64_t at, int64_t count, float *scratch)
{
    if (out->data && in->type.dtype == DT_F32) return (float *)out->data + at;
    vec_copy_in(scratch, vec_at(in->data, in->type.dtype, at), in->type.dtype, count);
    return scratch;
}

/* Updates elements [at, at + count) of the flat tensors. first: index of element `at` within its parameter. */
static void adamw_tile(const AdamwStep *s, int64_t at, int64_t first, int64_t count, float decay, uint64_t key)
{
    const KernelArgs *args = s->args;
    const AdamwAttrs *attrs = args->attrs;
    const TensorView *in = args->in, *out = args->out;
    int               kept_in = in[IN_MASTER].data ? IN_MASTER : IN_W, kept_out = in[IN_MASTER].data ? OUT_MASTER : OUT_W;
    float             scratch_w[TILE], scratch_m[TILE], scratch_v[TILE], scratch_g[TILE];
    float            *w = updated(&in[kept_in], &out[kept_out], at, count, scratch_w);
    float            *m = updated(&in[IN_M], &out[OUT_M], at, count, scratch_m), *v = updated(&in[IN_V], &out[OUT_V], at, count, scratch_v);
    const float      *g = tile_load(&in[IN_G], at, count, scratch_g);
    uint32_t          random[UPDATE_RANDOM];
    bool              random_w = in[IN_W].type.dtype == DT_BF16 && !in[IN_MASTER].data && attrs->stochastic;
    bool              random_v = in[IN_V].type.dtype == DT_BF16;
    for (int64_t i = 0; i < count; i += VEC_BLOCK) {
        int64_t block_end = min_i64(count, i + VEC_BLOCK);
        vec_ahead(g, DT_F32, i + AHEAD);
        vec_ahead(w, DT_F32, i + AHEAD);
        vec_ahead(m, DT_F32, i + AHEAD);
        vec_ahead(v, DT_F32, i + AHEAD);
        VEC_LOOP
        for (int64_t k = i; k < block_end; k++) adamw_element(&s->scalars, decay, g[k], &w[k], &m[k], &v[k]);
    }
    if (random_w || random_v) update_random(random, key, first, count);
    if (out[OUT_W].data && random_w)
        store_stochastic(&out[OUT_W], at, w, random, 0, count);
    else if (out[OUT_W].data)
        tile_store(&out[OUT_W], at, w, count);
    if (out[OUT_M].data) tile_store(&out[OUT_M], at, m, count);
    if (out[OUT_V].data && random_v)
        store_stochastic(&out[OUT_V], at, v, random, 16, count);
    else if (out[OUT_V].data)
        tile_store(&out[OUT_V], at, v, count);
    if (out[OUT_MASTER].data) tile_store(&out[OUT_MASTER], at, w, count);
}

VEC_TASK(adamw_task)
{
    const AdamwStep *s = context;
    const int64_t(*segments)[SEGMENT_COLUMNS] = s->args->in[IN_SEGMENTS].data;
    const int64_t *segment = segments[segment_of_task(segments, &task)];
    int64_t        end = min_i64(segment[SEGMENT_NUMEL], (task + 1) * UPDATE_PER_TASK);
    uint64_t       key = update_key(s->args->in[IN_STEP].data, segment[SEGMENT_KEY]);
    (void)worker;
    for (int64_t first = task * UPDATE_PER_TASK; first < end; first += TILE)
        adamw_tile(s, segment[SEGMENT_OFFSET] + first, segment[SEGMENT_FIRST] + first, min_i64(TILE, end - first),
                   segment[SEGMENT_DECAY] ? s->scalars.decay : 1.0f, key);
}

static Status adamw_cpu(const KernelArgs *args)
{
    float   norm2 = *(const float *)args->in[IN_NORM2].data, loss = *(const float *)args->in[IN_LOSS].data;
    int64_t tasks;
    TRY(segments_tasks(&args->in[IN_SEGMENTS], args->in[IN_W].type.dim[0], &tasks));
    bool      applied = isfinite(norm2) && isfinite(loss);
    AdamwStep step = {args, adamw_scalars(args->attrs, norm2, args->in[IN_HYPER].data)};
    if (applied) pool_run(args->pool, tasks, adamw_task, &step);
    return OK;
}

const OpDef op_adamw = {
    .id = OP_ADAMW,
    .name = "adamw",
    .synopsis = "w, m, v after a step of AdamW with clipping; unchanged if norm or loss isn't finite",
    .num_in = 10,
    .num_out = 4,
    .min_in = 9,
    .flags = OP_RANDOM,
    .alias = {{.out = OUT_W, .in = IN_W}, {.out = OUT_M, .in = IN_M}, {.out = OUT_V, .in = IN_V}, {.out = OUT_MASTER, .in = IN_MASTER}},
    .num_alias = 4,
    .attrs_size = sizeof(AdamwAttrs),
    .attrs = adamw_attrs,
    .infer = adamw_infer,
    .cost = adamw_cost,
    .cpu = {{DT_SET_FLOAT, adamw_cpu, "reference"}},
    .holds = {[IN_V] = HOLDS_SQUARES, [IN_NORM2] = HOLDS_NORM2, [IN_HYPER] = HOLDS_HYPER, [IN_SEGMENTS] = HOLDS_SEGMENTS},
    .samples = "[64], [64], [64], [64], [1], [1], [8], i64[4] below=99, i64[3,5] {beta2=0.95, weight_decay=0.1, max_grad_norm=1}\n"
               "[40000], [40000], [40000], [40000], [1], [1], [8], i64[4] below=99, i64[2,5], [40000]\n",
    /* fp32 gradients and moments with bf16 weights, without and with a master copy */
    .large = "bf16[40000], [40000], [40000], [40000], [1], [1], [8], i64[4] below=99, i64[2,5] tolerance=0.01\n"
             "bf16[40000], [40000], [40000], [40000], [1], [1], [8], i64[4] below=99, i64[2,5], [40000] tolerance=0.01\n",
};
