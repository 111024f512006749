/* attention_cached: attention of new tokens over a key/value cache: their keys and values are written at `position`,
 * then token t attends keys 0..position+t, of a window the last ones. The same position for all batch rows. */
#include "ops/attention/attention.h"

enum { IN_Q, IN_K, IN_V, IN_KC, IN_VC, IN_STEP };

/* q | packed, [k], [v], kc (B,P,G,D), vc, step i64 -> o (B,T,H,D) of q's dtype, kc', vc'. */
static Status attention_cached_infer(Node *node)
{
    const AttentionAttrs *attrs = node->attrs;
    TRY(attention_infer_qkv(node, IN_Q));
    const TensorType *q = &node->in[IN_Q]->type;
    for (int k = IN_KC; k <= IN_VC; k++) {
        TRY(infer_input(node, k, k == IN_KC ? "kc" : "vc", DT_SET_FLOAT,
                        DIMS(q->dim[0], k == IN_KC ? -1 : node->in[IN_KC]->type.dim[1], attrs->num_kv_heads, attrs->head_dim)));
        node->out[1 + k - IN_KC]->type = node->in[k]->type;
    }
    FAIL_IF(node->in[IN_KC]->type.dim[1] < q->dim[1], ERR_INVALID, "a cache of %lld positions is shorter than the %lld tokens of q",
            (long long)node->in[IN_KC]->type.dim[1], (long long)q->dim[1]);
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    node->out[0]->type = type_make(q->dtype, 4, q->dim[0], q->dim[1], attrs->num_heads, attrs->head_dim);
    return OK;
}

/* Of the longest run: the whole cache. */
static OpCost attention_cached_cost(const Node *node)
{
    Attention a = attention_dims(node->attrs, &node->in[IN_Q]->type);
    a.first = node->in[IN_KC]->type.dim[1] - a.len;
    OpCost cost = cost_streaming(node, 4 * attention_macs(&a));
    for (int k = 1; k < 3; k++) /* only the new rows are written */
        if (node->out[k]) cost.bytes -= (double)type_bytes(&node->out[k]->type);
    cost.matrix_unit = true;
    return cost;
}

static size_t attention_cached_workspace(const Node *node, int num_workers)
{
    Attention a = attention_dims(node->attrs, &node->in[IN_Q]->type);
    return attention_forward_workspace(&a, num_workers);
}

static void append_rows(const Attention *a, const Heads *cache, const Heads *rows)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->len; t++)
            for (int64_t g = 0; g < a->num_kv_heads; g++)
                dtype_convert(heads_at_mut(cache, b, a->first + t, g), cache->dtype, heads_at(rows, b, t, g), rows->dtype, a->dim);
}

/* Appends the new keys and values; the rest is attention over the cache. */
static Status attention_cached_append(const KernelArgs *args, Attention *out)
{
    Attention a = attention_dims(args->attrs, &args->in[IN_Q].type);
    Heads     k, v;
    int64_t   len = args->in[IN_KC].type.dim[1];
    a.first = ((const int64_t *)args->in[IN_STEP].data)[STEP_POSITION];
    FAIL_IF(a.first < 0 || a.first > len - a.len, ERR_INVALID,
            "%lld tokens at position %lld are outside the key/value cache of %lld positions: ask for a longer cache or "
            "fewer tokens",
            (long long)a.len, (long long)a.first, (long long)len);
    attention_bind_qkv(&a, args->in, &a.q, &k, &v);
    a.k = heads_of_view(&args->out[1], a.dim);
    a.v = heads_of_view(&args->out[2], a.dim);
    a.o = heads_of_view(&args->out[0], a.dim);
    append_rows(&a, &a.k, &k);
    append_rows(&a, &a.v, &v);
    *out = a;
    return OK;
}

static Status attention_cached_blocks(const KernelArgs *args)
{
    Attention a;
    TRY(attention_cached_append(args, &a));
    attention_forward(&a, args->pool, args->workspace);
    return OK;
}

static Status attention_cached_reference(const KernelArgs *args)
{
    Attention a;
    TRY(attention_cached_append(args, &a));
    attention_forward_reference(&a);
    return OK;
}

static const AttentionAttrs attention_cached_small = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6};
static const AttentionAttrs attention_cached_packed = {.num_heads = 3, .num_kv_heads = 1, .head_dim = 16, .scale = 0.3};
static const AttentionAttrs attention_cached_window = {
    .num_heads = 3, .num_kv_heads = 1, .head_dim = 16, .scale = 0.3, .window = 60, .softcap = 0.7};

static const OpSample attention_cached_samples[] = {
    {.in = {{DT_F32, 4, {2, 1, 4, 6}},
            {DT_F32, 4, {2, 1, 2, 6}},
            {DT_F32, 4, {2, 1, 2, 6}},
            {DT_F32, 4, {2, 9, 2, 6}},
            {DT_F32, 4, {2, 9, 2, 6}},
            {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_cached_small,
     .int_range = {0, 0, 0, 0, 0, 9}},
    {.in = {{DT_F32, 3, {1, 70, 80}}, {0}, {0}, {DT_F32, 4, {1, 300, 1, 16}}, {DT_F32, 4, {1, 300, 1, 16}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_cached_packed,
     .int_range = {0, 0, 0, 0, 0, 231}},
    {.in = {{DT_F32, 3, {1, 70, 80}}, {0}, {0}, {DT_F32, 4, {1, 300, 1, 16}}, {DT_F32, 4, {1, 300, 1, 16}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_cached_window,
     .int_range = {0, 0, 0, 0, 0, 231}},
};

static const AttentionAttrs large_gqa_128 = {.num_heads = 4, .num_kv_heads = 1, .head_dim = 128};
static const AttentionAttrs large_gqa_64 = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64};

/* Shapes of real models. */
static const OpSample attention_cached_large_samples[] = {
    {.in = {{DT_F32, 3, {2, 1, 768}}, {0}, {0}, {DT_F32, 4, {2, 700, 1, 128}}, {DT_F32, 4, {2, 700, 1, 128}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &large_gqa_128,
     .int_range = {0, 0, 0, 0, 0, 700}},
    {.in = {{DT_F32, 3, {1, 200, 512}}, {0}, {0}, {DT_F32, 4, {1, 700, 2, 64}}, {DT_F32, 4, {1, 700, 2, 64}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &large_gqa_64,
     .int_range = {0, 0, 0, 0, 0, 500}},
    {.in = {{DT_F32, 3, {1, 200, 512}}, {0}, {0}, {DT_F32, 4, {1, 700, 2, 64}}, {DT_F32, 4, {1, 700, 2, 64}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_large_attrs[0],
     .int_range = {0, 0, 0, 0, 0, 500}},
    {.in = {{DT_F32, 3, {1, 1, 512}}, {0}, {0}, {DT_F32, 4, {1, 700, 2, 64}}, {DT_F32, 4, {1, 700, 2, 64}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_large_attrs[0],
     .int_range = {0, 0, 0, 0, 0, 500}},
    {.in = {{DT_F32, 3, {1, 150, 1536}}, {0}, {0}, {DT_F32, 4, {1, 700, 4, 128}}, {DT_F32, 4, {1, 700, 4, 128}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_large_attrs[4],
     .int_range = {0, 0, 0, 0, 0, 500}},
    {.in = {{DT_F32, 3, {1, 90, 2048}}, {0}, {0}, {DT_F32, 4, {1, 700, 2, 256}}, {DT_F32, 4, {1, 700, 2, 256}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_large_attrs[5],
     .int_range = {0, 0, 0, 0, 0, 500}},
    {.in = {{DT_F32, 3, {1, 70, 1024}}, {0}, {0}, {DT_F32, 4, {1, 700, 1, 256}}, {DT_F32, 4, {1, 700, 1, 256}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_large_attrs[8],
     .int_range = {0, 0, 0, 0, 0, 500}},
    {.in = {{DT_F32, 3, {1, 1, 1024}}, {0}, {0}, {DT_F32, 4, {1, 700, 1, 256}}, {DT_F32, 4, {1, 700, 1, 256}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_large_attrs[8],
     .int_range = {0, 0, 0, 0, 0, 500}},
    {.in = {{DT_F32, 3, {1, 3, 480}}, {0}, {0}, {DT_F32, 4, {1, 700, 2, 80}}, {DT_F32, 4, {1, 700, 2, 80}}, {DT_I64, 1, {STEP_COUNT}}},
     .attrs = &attention_large_attrs[9],
     .int_range = {0, 0, 0, 0, 0, 500}},
};

const OpDef op_attention_cached = {
    .id = OP_ATTENTION_CACHED,
    .name = "attention_cached",
    .synopsis = "kc, vc [position + t] = k, v; o = softmax(scale q kc^T) vc over keys 0..position+t",
    .num_in = 6,
    .num_out = 3,
    .min_in = 6,
    .optional_in = 1u << IN_K | 1u << IN_V,
    .alias = {{.out = 1, .in = IN_KC}, {.out = 2, .in = IN_VC}},
    .num_alias = 2,
    .attrs_size = sizeof(AttentionAttrs),
    .attrs = attention_attrs,
    .infer = attention_cached_infer,
    .cost = attention_cached_cost,
    .workspace = attention_cached_workspace,
    .cpu = {{DT_SET_FLOAT, attention_cached_blocks, "blocks"}, {DT_SET_FLOAT, attention_cached_reference, "reference"}},
    .samples = attention_cached_samples,
    .num_samples = sizeof attention_cached_samples / sizeof attention_cached_samples[0],
    .large = attention_cached_large_samples,
    .num_large = sizeof attention_cached_large_samples / sizeof attention_cached_large_samples[0],
};
