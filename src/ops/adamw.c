/* adamw: one optimizer step over all trained parameters at once, laid out flat (E elements) with a table of segments.
 *
 *   g <- g min(1, max_grad_norm / (norm + 1e-6))      norm = sqrt(norm2), as torch.nn.utils.clip_grad_norm_
 *   m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
 *   w <- w - lr weight_decay w (in segments that decay) - lr (m / bias1) / (sqrt(v / bias2) + eps)
 *
 * A step whose loss or norm isn't finite touches nothing and reports applied = 0. Padding between segments is never
 * touched. Arithmetic is fp32. bf16 weights without a master copy are rounded stochastically: with nearest rounding
 * updates under half an ulp (2^-9 of the weight) would be lost for good. So is a bf16 v, which moves by 0.1% a step; a
 * bf16 m moves by 10% a step and is rounded to nearest. A bf16 weight with an fp32 master is the master rounded to
 * nearest. */
#include "ops/infer.h"
#include "ops/random_row.h"

static const AttrDef adamw_attrs[] = {
    ATTR_FLOAT(AdamwAttrs, beta1, 0.9),
    ATTR_FLOAT(AdamwAttrs, beta2, 0.999),
    ATTR_FLOAT(AdamwAttrs, eps, 1e-8),
    ATTR_FLOAT(AdamwAttrs, weight_decay, 0),
    ATTR_FLOAT(AdamwAttrs, max_grad_norm, 0),
    ATTR_BOOL(AdamwAttrs, stochastic, true),
    { 0 },
};

enum { IN_W, IN_G, IN_M, IN_V, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_SEGMENTS, IN_MASTER };
enum { OUT_W, OUT_M, OUT_V, OUT_APPLIED, OUT_MASTER };

/* w, g, m, v (E), norm2, loss (1) f32, hyper f32 (HYPER_COUNT), step i64 (STEP_COUNT), segments i64 (S,4), [master (E)
 * f32] -> w', m', v' in place, applied (1) f32, master' in place. */
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
    TRY(infer_input(node, IN_SEGMENTS, "segments", DT_SET(DT_I64), DIMS(-1, 4)));
    if (node->in[IN_MASTER]) TRY(infer_like(node, IN_MASTER, "master", DT_SET_F32, w));
    node->out[OUT_W]->type = *w;
    node->out[OUT_M]->type = node->in[IN_M]->type;
    node->out[OUT_V]->type = node->in[IN_V]->type;
    node->out[OUT_APPLIED]->type = type_make(DT_F32, 1, INT64_C(1));
    node->out[OUT_MASTER]->type = node->in[IN_MASTER] ? node->in[IN_MASTER]->type : (TensorType){ 0 };
    return OK;
}

static OpCost adamw_cost(const Node *node)
{
    return cost_streaming(node, 18.0 * (double)type_numel(&node->in[IN_W]->type));
}

/* A segment in units of work; tiles start at multiples of TILE within their segment, so that a tile's draws are whole
 * quads. */
enum { TILES_PER_TASK = 16, ADAMW_PER_TASK = TILES_PER_TASK * TILE };

/* The step's scalars, fp32 once and for all. */
typedef struct AdamwStep {
    const KernelArgs *args;
    float             clip, beta1, beta2, rest1, rest2, decay, step_size, inv_sqrt_bias2, eps;
} AdamwStep;

/* w, m and v of `count` elements in place. */
static void adamw_update(const AdamwStep *s, float *w, const float *g, float *m, float *v, float decay, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float grad = g[i] * s->clip;
        m[i] = s->beta1 * m[i] + s->rest1 * grad;
        v[i] = s->beta2 * v[i] + s->rest2 * grad * grad;
        w[i] = w[i] * decay - s->step_size * m[i] / (sqrtf(v[i]) * s->inv_sqrt_bias2 + s->eps);
    }
}

static void store_stochastic(const TensorView *t, int64_t at, const float *src, const uint32_t *random, int shift,
                             int64_t count)
{
    uint16_t *dst = vec_at_mut(t->data, DT_BF16, at);
    for (int64_t i = 0; i < count; i++) dst[i] = bf16_from_f32_stochastic(src[i], random[i] >> shift);
}

/* Elements [at, at + count) of the flat tensors, the first of which is element `first` of its segment. */
static void adamw_tile(const AdamwStep *s, int64_t at, int64_t first, int64_t count, float decay, uint64_t key)
{
    const KernelArgs *args = s->args;
    const AdamwAttrs *attrs = args->attrs;
    const TensorView *out = args->out, *source = args->in[IN_MASTER].data ? &args->in[IN_MASTER] : &args->in[IN_W];
    float             w[TILE], m[TILE], v[TILE], scratch_g[TILE];
    uint32_t          random[TILE];
    bool              random_w = args->in[IN_W].type.dtype == DT_BF16 && !args->in[IN_MASTER].data && attrs->stochastic;
    bool              random_v = args->in[IN_V].type.dtype == DT_BF16;
    vec_copy_in(w, vec_at(source->data, source->type.dtype, at), source->type.dtype, count);
    vec_copy_in(m, vec_at(args->in[IN_M].data, args->in[IN_M].type.dtype, at), args->in[IN_M].type.dtype, count);
    vec_copy_in(v, vec_at(args->in[IN_V].data, args->in[IN_V].type.dtype, at), args->in[IN_V].type.dtype, count);
    adamw_update(s, w, tile_load(&args->in[IN_G], at, count, scratch_g), m, v, decay, count);
    if (random_w || random_v) random_row(random, key, (uint32_t)(first / 4), (uint32_t)(first / 4 >> 32), 0, count);
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

static void adamw_task(void *context, int64_t task, int worker)
{
    const AdamwStep *s = context;
    const int64_t(*segment)[4] = s->args->in[IN_SEGMENTS].data;
    const int64_t *now = s->args->in[IN_STEP].data;
    (void)worker;
    for (;; segment++) {
        int64_t tasks = div_up((*segment)[SEGMENT_NUMEL], ADAMW_PER_TASK);
        if (task < tasks) break;
        task -= tasks;
    }
    int64_t  end = min_i64((*segment)[SEGMENT_NUMEL], (task + 1) * ADAMW_PER_TASK);
    uint64_t key = random_key(now[STEP_SEED], now[STEP_INDEX], RANDOM_ADAMW, (*segment)[SEGMENT_KEY]);
    for (int64_t first = task * ADAMW_PER_TASK; first < end; first += TILE)
        adamw_tile(s, (*segment)[SEGMENT_OFFSET] + first, first, min_i64(TILE, end - first),
                   (*segment)[SEGMENT_DECAY] ? s->decay : 1.0f, key);
}

static AdamwStep adamw_step(const KernelArgs *args)
{
    const AdamwAttrs *attrs = args->attrs;
    const float      *hyper = args->in[IN_HYPER].data;
    double            norm = sqrt((double)*(const float *)args->in[IN_NORM2].data), lr = (double)hyper[HYPER_LR];
    double            clip = attrs->max_grad_norm > 0 ? attrs->max_grad_norm / (norm + 1e-6) : 1;
    return (AdamwStep){
        .args = args,
        .clip = (float)(clip < 1 ? clip : 1),
        .beta1 = (float)attrs->beta1,
        .beta2 = (float)attrs->beta2,
        .rest1 = (float)(1 - attrs->beta1),
        .rest2 = (float)(1 - attrs->beta2),
        .decay = (float)(1 - lr * attrs->weight_decay),
        .step_size = (float)(lr / (double)hyper[HYPER_BIAS1]),
        .inv_sqrt_bias2 = (float)(1 / sqrt((double)hyper[HYPER_BIAS2])),
        .eps = (float)attrs->eps,
    };
}

static Status adamw_cpu(const KernelArgs *args)
{
    const int64_t(*segments)[4] = args->in[IN_SEGMENTS].data;
    int64_t num_segments = args->in[IN_SEGMENTS].type.dim[0], numel = args->in[IN_W].type.dim[0], tasks = 0, end = 0;
    float   norm2 = *(const float *)args->in[IN_NORM2].data, loss = *(const float *)args->in[IN_LOSS].data;
    for (int64_t i = 0; i < num_segments; i++) {
        int64_t first = segments[i][SEGMENT_OFFSET], count = segments[i][SEGMENT_NUMEL];
        FAIL_IF(first < end || count < 0 || count > numel - first, ERR_INVALID,
                "segment %lld is [%lld, +%lld): segments are sorted, apart, and within %lld elements", (long long)i,
                (long long)first, (long long)count, (long long)numel);
        end = first + count;
        tasks += div_up(count, ADAMW_PER_TASK);
    }
    bool applied = isfinite(norm2) && isfinite(loss);
    if (args->out[OUT_APPLIED].data) *(float *)args->out[OUT_APPLIED].data = applied ? 1.0f : 0.0f;
    AdamwStep step = adamw_step(args);
    if (applied) pool_run(args->pool, tasks, adamw_task, &step);
    return OK;
}

static const AdamwAttrs adamw_clipped = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1, .stochastic = true
};

static const OpSample adamw_samples[] = {
    { .in = { { DT_F32, 1, { 64 } },
              { DT_F32, 1, { 64 } },
              { DT_F32, 1, { 64 } },
              { DT_F32, 1, { 64 } },
              { DT_F32, 1, { 1 } },
              { DT_F32, 1, { 1 } },
              { DT_F32, 1, { HYPER_COUNT } },
              { DT_I64, 1, { STEP_COUNT } },
              { DT_I64, 2, { 3, 4 } } },
      .attrs = &adamw_clipped,
      .int_range = { [IN_STEP] = 99 } },
    { .in = { { DT_F32, 1, { 40000 } },
              { DT_F32, 1, { 40000 } },
              { DT_F32, 1, { 40000 } },
              { DT_F32, 1, { 40000 } },
              { DT_F32, 1, { 1 } },
              { DT_F32, 1, { 1 } },
              { DT_F32, 1, { HYPER_COUNT } },
              { DT_I64, 1, { STEP_COUNT } },
              { DT_I64, 2, { 2, 4 } },
              { DT_F32, 1, { 40000 } } },
      .int_range = { [IN_STEP] = 99 } },
};

/* Shapes of real models. */
static const OpSample adamw_large_samples[] = {
    /* fp32 gradients and moments beside bf16 weights, without a master copy and with one */
    { .in = { { DT_BF16, 1, { 40000 } }, { DT_F32, 1, { 40000 } }, { DT_F32, 1, { 40000 } }, { DT_F32, 1, { 40000 } },
            { DT_F32, 1, { 1 } }, { DT_F32, 1, { 1 } }, { DT_F32, 1, { HYPER_COUNT } }, { DT_I64, 1, { STEP_COUNT } },
            { DT_I64, 2, { 2, 4 } }, { 0 } }, .tolerance = 1e-2, .int_range = { [7] = 99 } },
    { .in = { { DT_BF16, 1, { 40000 } }, { DT_F32, 1, { 40000 } }, { DT_F32, 1, { 40000 } }, { DT_F32, 1, { 40000 } },
            { DT_F32, 1, { 1 } }, { DT_F32, 1, { 1 } }, { DT_F32, 1, { HYPER_COUNT } }, { DT_I64, 1, { STEP_COUNT } },
            { DT_I64, 2, { 2, 4 } }, { DT_F32, 1, { 40000 } } }, .tolerance = 1e-2, .int_range = { [7] = 99 } },
};

const OpDef op_adamw = {
    .id = OP_ADAMW,
    .name = "adamw",
    .synopsis =
        "w, m, v after a step of AdamW with clipping; applied = 0 and nothing touched where norm or loss isn't finite",
    .num_in = 10,
    .num_out = 5,
    .min_in = 9,
    .flags = OP_RANDOM,
    .alias = { { .out = OUT_W, .in = IN_W },
               { .out = OUT_M, .in = IN_M },
               { .out = OUT_V, .in = IN_V },
               { .out = OUT_MASTER, .in = IN_MASTER } },
    .num_alias = 4,
    .attrs_size = sizeof(AdamwAttrs),
    .attrs = adamw_attrs,
    .infer = adamw_infer,
    .cost = adamw_cost,
    .cpu = { { DT_SET_FLOAT, adamw_cpu, "reference" } },
    .holds = { [IN_V] = HOLDS_SQUARES, [IN_NORM2] = HOLDS_NORM2, [IN_HYPER] = HOLDS_HYPER, [IN_SEGMENTS] = HOLDS_SEGMENTS },
    .samples = adamw_samples,
    .num_samples = sizeof adamw_samples / sizeof adamw_samples[0],
    .large = adamw_large_samples,
    .num_large = sizeof adamw_large_samples / sizeof adamw_large_samples[0],
};
