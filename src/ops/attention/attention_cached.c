/* attention_cached: attention of new tokens over a key/value cache in pages: keys and values of row b's tokens are written at positions
 * starts[b], starts[b] + 1, ..; then token t attends keys 0..starts[b]+t, of a window the last ones. Position p of row b lies in page
 * pages[b][p / S], at p mod S. A query's bits depend neither on the tokens beside it nor on where its pages lie.
 *
 * A cache in e4m3 has no scale: what is beyond 448 becomes 448. */
#include "ops/attention/attention.h"
#include "ops/attention/attention_pages.h"

enum { IN_Q, IN_K, IN_V, IN_KC, IN_VC, IN_STARTS, IN_PAGES, IN_SINKS, IN_BIAS, NUM_IN };

/* Positions that a row may have. */
static int64_t room_of(const TensorType *cache, const TensorType *pages)
{
    return cache->dim[1] * pages->dim[1];
}

Status attention_check_room(const TensorType *cache, const TensorType *pages, int64_t tokens)
{
    int64_t room = room_of(cache, pages);
    FAIL_IF(room < tokens, ERR_INVALID, "a row's pages hold %lld positions, q has %lld tokens; expected no fewer positions",
            (long long)room, (long long)tokens);
    return OK;
}

/* q | packed, [k], [v], kc (N,S,G,D) f32|bf16|f16|e4m3: N pages of S positions, vc (N,S,G,E), starts i32 (B), pages i32 (B,P), [sinks],
 * [bias] -> o (B,T,H,E) of q's dtype, kc', vc'. */
static Status attention_cached_infer(Node *node)
{
    const AttentionAttrs *attrs = node->attrs;
    FAIL_IF(attrs->bidirectional, ERR_INVALID, "attribute bidirectional is true, expected false: a cache holds no keys of later tokens");
    TRY(attention_infer_qkv(node, IN_Q, IN_SINKS));
    const TensorType *q = &node->in[IN_Q]->type;
    int64_t           dims[] = {attrs->head_dim, attention_value_dim(node, IN_Q)};
    for (int k = IN_KC; k <= IN_VC; k++) {
        const int64_t *first = node->in[IN_KC]->type.dim;
        TRY(infer_input(node, k, k == IN_KC ? "kc" : "vc", DT_SET_DECODE | DT_SET(DT_E4M3),
                        DIMS(k == IN_KC ? -1 : first[0], k == IN_KC ? -1 : first[1], attrs->num_kv_heads, dims[k - IN_KC])));
        node->out[1 + k - IN_KC]->type = node->in[k]->type;
    }
    TRY(infer_input(node, IN_STARTS, "starts", DT_SET(DT_I32), DIMS(q->dim[0])));
    TRY(infer_input(node, IN_PAGES, "pages", DT_SET(DT_I32), DIMS(q->dim[0], -1)));
    TRY(attention_check_room(&node->in[IN_KC]->type, &node->in[IN_PAGES]->type, q->dim[1]));
    node->out[0]->type = type_make(q->dtype, 4, q->dim[0], q->dim[1], attrs->num_heads, dims[1]);
    return OK;
}

/* Of the longest rows, whose pages are all read. */
static OpCost attention_cached_cost(const Node *node)
{
    const TensorType *cache = &node->in[IN_KC]->type, *pages = &node->in[IN_PAGES]->type;
    Attention         a = attention_dims_of(node, IN_Q);
    int64_t           room = room_of(cache, pages), keys = a.window ? min_i64(room, a.window + a.len) : room;
    a.first = room - a.len;
    OpCost cost = cost_streaming(node, 4 * attention_macs(&a));
    for (int k = 1; k < 3; k++) {
        double bytes = (double)type_bytes(&node->in[IN_KC + k - 1]->type), position = bytes / (double)(cache->dim[0] * cache->dim[1]);
        cost.bytes -= node->out[k] ? 2 * bytes : bytes; /* not all of it is read and written, as cost_streaming has it */
        cost.bytes += (double)a.batch * (double)(keys + a.len) * position;
    }
    cost.matrix_unit = true;
    return cost;
}

static size_t attention_cached_workspace(const Node *node, int num_workers)
{
    Attention a = attention_dims_of(node, IN_Q);
    if (node->in[IN_BIAS]) a.bias.type = node->in[IN_BIAS]->type;
    return attention_forward_workspace(&a, num_workers);
}

/* One token a row is served in tiles, wherever the matrix units serve it. */
static size_t attention_cached_gpu_workspace(const Node *node, int sm)
{
    const TensorType *q = &node->in[IN_Q]->type;
    Attention         a = attention_dims_of(node, IN_Q);
    int64_t           tiles = attention_pages_tiles(a.window, room_of(&node->in[IN_KC]->type, &node->in[IN_PAGES]->type));
    (void)sm;
    return q->dtype != DT_F32 && a.len == 1 && a.dim % 16 == 0 ? attention_pages_bytes(a.batch, a.num_heads, a.dim, tiles) : 0;
}

static void append_row(void *to, DType dtype, const void *row, DType from, int64_t count)
{
    float part[TILE];
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t n = min_i64(TILE, count - i);
        dtype_decode(from, (const char *)row + dtype_bytes(from, i), n, part);
        dtype_encode(dtype, part, n, (char *)to + dtype_bytes(dtype, i));
    }
}

void attention_append(const Attention *a, const Heads *cache, const Heads *rows)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->len; t++)
            for (int64_t g = 0; g < a->num_kv_heads; g++)
                append_row(heads_at_mut(cache, b, attention_own_key(a, b, t), g), cache->dtype, heads_at(rows, b, t, g), rows->dtype,
                           rows->dim);
}

Heads heads_of_pages(const TensorView *cache, const TensorView *pages, int64_t dim)
{
    Heads heads = heads_of_view(cache, dim);
    heads.pages = pages->data;
    heads.page_len = cache->type.dim[1];
    heads.row_pages = pages->type.dim[1];
    return heads;
}

Status attention_check_places(const Attention *a, const TensorView *cache, const TensorView *pages)
{
    int64_t        room = room_of(&cache->type, &pages->type);
    const int32_t *page = pages->data;
    for (int64_t b = 0; b < a->batch; b++)
        FAIL_IF(
            a->starts[b] < 0 || a->starts[b] > room - a->len, ERR_INVALID,
            "row %lld: %lld tokens at position %d are outside its %lld positions of the key/value cache: ask for a longer cache or fewer "
            "tokens",
            (long long)b, (long long)a->len, a->starts[b], (long long)room);
    for (int64_t i = 0; i < a->batch * pages->type.dim[1]; i++)
        FAIL_IF(page[i] < 0 || page[i] >= cache->type.dim[0], ERR_INVALID, "page %d of row %lld: the key/value cache has %lld pages",
                page[i], (long long)(i / pages->type.dim[1]), (long long)cache->type.dim[0]);
    return OK;
}

/* Appends the new keys and values; the rest is attention over the cache. */
static Status attention_cached_append(const KernelArgs *args, Attention *out)
{
    Attention         a = attention_dims(args->attrs, &args->in[IN_Q].type, &args->in[IN_V].type);
    const TensorView *pages = &args->in[IN_PAGES];
    Heads             k, v;
    a.starts = args->in[IN_STARTS].data;
    TRY(attention_check_places(&a, &args->out[1], pages));
    attention_bind_qkv(&a, args->in, &a.q, &k, &v);
    a.k = heads_of_pages(&args->out[1], pages, a.dim);
    a.v = heads_of_pages(&args->out[2], pages, a.v_dim);
    a.o = heads_of_view(&args->out[0], a.v_dim);
    if (args->in[IN_SINKS].data) a.sinks = args->in[IN_SINKS];
    if (args->in[IN_BIAS].data) a.bias = args->in[IN_BIAS];
    attention_append(&a, &a.k, &k);
    attention_append(&a, &a.v, &v);
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

/* B rows of T tokens, a cache of N pages of S positions, P pages a row; q apart, or packed, or packed over a cache in e4m3. */
#define APART(b, t, h, g, d, n, s, p) \
    .in = {{DT_F32, 4, {b, t, h, d}}, {DT_F32, 4, {b, t, g, d}}, {DT_F32, 4, {b, t, g, d}}, {DT_F32, 4, {n, s, g, d}}, \
           {DT_F32, 4, {n, s, g, d}}, {DT_I32, 1, {b}},          {DT_I32, 2, {b, p}}}, \
    .int_range = {0, 0, 0, 0, 0, (p) * (s) - (t) + 1, n}
#define PACKED_OVER(dtype, b, t, h, g, d, n, s, p) \
    .in = {{DT_F32, 3, {b, t, ((h) + 2 * (g)) * (d)}}, \
           {0}, \
           {0}, \
           {dtype, 4, {n, s, g, d}}, \
           {dtype, 4, {n, s, g, d}}, \
           {DT_I32, 1, {b}}, \
           {DT_I32, 2, {b, p}}}, \
    .int_range = {0, 0, 0, 0, 0, (p) * (s) - (t) + 1, n}
/* Values of heads of e; sinks and bias: types. */
#define WITH_SCORES(dtype, b, t, h, g, d, e, n, s, p, ...) \
    .in = {{DT_F32, 4, {b, t, h, d}}, {DT_F32, 4, {b, t, g, d}}, {DT_F32, 4, {b, t, g, e}}, {dtype, 4, {n, s, g, d}}, \
           {dtype, 4, {n, s, g, e}},  {DT_I32, 1, {b}},          {DT_I32, 2, {b, p}},       __VA_ARGS__}, \
    .int_range = {0, 0, 0, 0, 0, (p) * (s) - (t) + 1, n}
#define SINKS(h) \
    { \
        DT_F32, 1, \
        { \
            h \
        } \
    }
#define BIAS(rows, h) \
    { \
        DT_F32, 2, \
        { \
            rows, h \
        } \
    }
#define NONE \
    { \
        0 \
    }
#define PACKED(...) PACKED_OVER(DT_F32, __VA_ARGS__)
#define CODED(...) PACKED_OVER(DT_E4M3, __VA_ARGS__)

static const OpSample attention_cached_samples[] = {
    {APART(1, 1, 4, 2, 6, 3, 4, 3), .attrs = &attention_cached_small},
    {PACKED(1, 70, 3, 1, 16, 40, 32, 10), .attrs = &attention_cached_packed},
    {PACKED(1, 70, 3, 1, 16, 40, 32, 10), .attrs = &attention_cached_window},
    {WITH_SCORES(DT_F32, 2, 3, 4, 2, 6, 6, 7, 4, 3, SINKS(4)), .attrs = &attention_more_attrs[0]},
    {WITH_SCORES(DT_F32, 2, 3, 4, 2, 6, 4, 7, 4, 3, NONE, BIAS(5, 4)), .attrs = &attention_more_attrs[1]},
};

static const AttentionAttrs large_gqa_128 = {.num_heads = 4, .num_kv_heads = 1, .head_dim = 128};
static const AttentionAttrs large_gqa_64 = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
static const AttentionAttrs large_narrow[] = {
    {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
    {.num_heads = 8, .num_kv_heads = 1, .head_dim = 32, .window = 65},
    {.num_heads = 8, .num_kv_heads = 2, .head_dim = 96, .window = 128},
    {.num_heads = 40, .num_kv_heads = 2, .head_dim = 64, .window = 64},
    {.num_heads = 16, .num_kv_heads = 16, .head_dim = 16},
};
static const AttentionAttrs large_wide[] = {
    {.num_heads = 16, .num_kv_heads = 2, .head_dim = 128},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .window = 300, .softcap = 0.8},
    {.num_heads = 8, .num_kv_heads = 1, .head_dim = 256, .window = 100, .softcap = 0.8},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .window = 1, .softcap = 0.8},
};

/* Shapes of real models; one token a row and several, each row at another position, pages of each row's own. */
static const OpSample attention_cached_large_samples[] = {
    {PACKED(1, 1, 4, 1, 128, 60, 32, 22), .attrs = &large_gqa_128},
    {PACKED(1, 200, 4, 2, 64, 60, 32, 22), .attrs = &large_gqa_64},
    {PACKED(1, 200, 4, 2, 64, 60, 32, 22), .attrs = &attention_large_attrs[0]},
    {PACKED(1, 1, 4, 2, 64, 60, 32, 22), .attrs = &attention_large_attrs[0]},
    {PACKED(1, 150, 4, 4, 128, 60, 32, 22), .attrs = &attention_large_attrs[4]},
    {PACKED(1, 90, 4, 2, 256, 60, 32, 22), .attrs = &attention_large_attrs[5]},
    {PACKED(1, 70, 2, 1, 256, 60, 32, 22), .attrs = &attention_large_attrs[8]},
    {PACKED(1, 1, 2, 1, 256, 60, 32, 22), .attrs = &attention_large_attrs[8]},
    {PACKED(1, 3, 2, 2, 80, 60, 32, 22), .attrs = &attention_large_attrs[9]},
    {PACKED(3, 1, 2, 2, 16, 25, 32, 8), .attrs = &large_narrow[0]},
    {PACKED(17, 1, 8, 1, 32, 140, 32, 8), .attrs = &large_narrow[1]},
    {APART(17, 1, 8, 2, 96, 140, 32, 8), .attrs = &large_narrow[2]},
    {PACKED(3, 1, 40, 2, 64, 25, 32, 8), .attrs = &large_narrow[3]},     /* more heads of a group than a warp has rows */
    {PACKED(64, 1, 16, 16, 16, 769, 32, 12), .attrs = &large_narrow[4]}, /* a block of the GPU has several tiles */
    {PACKED(17, 1, 16, 2, 128, 140, 32, 8), .attrs = &large_wide[0]},
    {APART(3, 1, 4, 2, 128, 46, 32, 15), .attrs = &large_wide[1]},
    {PACKED(3, 1, 8, 1, 256, 25, 32, 8), .attrs = &large_wide[2]},
    {PACKED(17, 1, 4, 2, 64, 140, 32, 8), .attrs = &large_wide[3]},
    {PACKED(3, 1, 2, 2, 80, 25, 32, 8), .attrs = &attention_large_attrs[9]},
    {PACKED(3, 1, 4, 2, 128, 25, 32, 8), .attrs = &attention_large_attrs[10]},
    {PACKED(3, 70, 2, 2, 16, 25, 32, 8), .attrs = &large_narrow[0]},
    {PACKED(17, 5, 8, 1, 32, 140, 32, 8), .attrs = &large_narrow[1]},
    {APART(3, 100, 8, 2, 96, 25, 32, 8), .attrs = &large_narrow[2]},
    {PACKED(3, 130, 16, 2, 128, 25, 32, 8), .attrs = &large_wide[0]},
    {APART(3, 65, 4, 2, 128, 46, 32, 15), .attrs = &large_wide[1]},
    {PACKED(3, 66, 8, 1, 256, 25, 32, 8), .attrs = &large_wide[2]},
    {PACKED(17, 2, 4, 2, 64, 140, 32, 8), .attrs = &large_wide[3]},
    {CODED(1, 1, 4, 2, 6, 60, 32, 22), .attrs = &attention_cached_small},
    {CODED(3, 1, 2, 2, 16, 25, 32, 8), .attrs = &large_narrow[0]},
    {CODED(17, 1, 8, 2, 96, 140, 32, 8), .attrs = &large_narrow[2]},
    {CODED(3, 1, 40, 2, 64, 25, 32, 8), .attrs = &large_narrow[3]},
    {CODED(17, 1, 16, 2, 128, 140, 32, 8), .attrs = &large_wide[0]},
    {CODED(3, 1, 4, 2, 128, 46, 32, 15), .attrs = &large_wide[1]},
    {CODED(3, 1, 8, 1, 256, 25, 32, 8), .attrs = &large_wide[2]},
    {CODED(3, 1, 2, 2, 80, 25, 32, 8), .attrs = &attention_large_attrs[9]},
    {CODED(1, 70, 4, 2, 6, 60, 32, 22), .attrs = &attention_cached_small},
    {CODED(3, 100, 8, 2, 96, 25, 32, 8), .attrs = &large_narrow[2]},
    {CODED(1, 200, 4, 2, 64, 60, 32, 22), .attrs = &large_gqa_64},
    {CODED(3, 130, 16, 2, 128, 25, 32, 8), .attrs = &large_wide[0]},
    {CODED(3, 65, 4, 2, 128, 46, 32, 15), .attrs = &large_wide[1]},
    {CODED(3, 66, 8, 1, 256, 25, 32, 8), .attrs = &large_wide[2]},
    {WITH_SCORES(DT_F32, 3, 1, 8, 1, 64, 64, 25, 32, 8, SINKS(8)), .attrs = &attention_large_more[1]},
    {WITH_SCORES(DT_F32, 3, 70, 8, 1, 64, 64, 25, 32, 8, SINKS(8)), .attrs = &attention_large_more[1]},
    {WITH_SCORES(DT_F32, 1, 1, 4, 2, 128, 128, 60, 32, 22, SINKS(4)), .attrs = &attention_large_more[4]},
    {WITH_SCORES(DT_F32, 17, 1, 4, 2, 128, 128, 140, 32, 8, SINKS(4)), .attrs = &attention_large_more[4]},
    {WITH_SCORES(DT_F32, 1, 200, 4, 2, 128, 128, 60, 32, 22, SINKS(4)), .attrs = &attention_large_more[4]},
    {WITH_SCORES(DT_E4M3, 3, 1, 4, 2, 128, 128, 25, 32, 8, SINKS(4)), .attrs = &attention_large_more[4]},
    {WITH_SCORES(DT_E4M3, 3, 65, 4, 2, 128, 128, 25, 32, 8, SINKS(4)), .attrs = &attention_large_more[4]},
    {WITH_SCORES(DT_F32, 3, 1, 8, 1, 256, 256, 25, 32, 8, SINKS(8)), .attrs = &large_wide[2]},
    {WITH_SCORES(DT_F32, 3, 70, 8, 1, 256, 256, 25, 32, 8, SINKS(8)), .attrs = &large_wide[2]},
    {WITH_SCORES(DT_F32, 3, 1, 2, 2, 16, 16, 25, 32, 8, SINKS(2)), .attrs = &large_narrow[0]},
    {WITH_SCORES(DT_F32, 3, 1, 2, 2, 192, 128, 25, 32, 8, NONE), .attrs = &attention_large_more[0]},
    {WITH_SCORES(DT_E4M3, 3, 40, 2, 2, 192, 128, 25, 32, 8, NONE), .attrs = &attention_large_more[0]},
    {WITH_SCORES(DT_F32, 3, 1, 4, 2, 64, 64, 25, 32, 8, NONE, BIAS(129, 4)), .attrs = &attention_large_more[2]},
    {WITH_SCORES(DT_F32, 3, 50, 4, 2, 64, 64, 25, 32, 8, SINKS(4), BIAS(129, 4)), .attrs = &attention_large_more[2]},
};

#define CACHES \
    { \
        { \
            .in = 1u << IN_KC | 1u << IN_VC, .out = 1u << 1 | 1u << 2, .dtypes = DT_SET_DECODE | DT_SET(DT_E4M3) \
        } \
    }

const OpDef op_attention_cached = {
    .id = OP_ATTENTION_CACHED,
    .name = "attention_cached",
    .synopsis =
        "kc, vc [starts + t] = k, v, in the row's pages; o = softmax(scale q kc^T) vc over keys 0..starts+t, sinks and bias as in attention",
    .num_in = NUM_IN,
    .num_out = 3,
    .min_in = 7,
    .optional_in = 1u << IN_K | 1u << IN_V,
    .alias = {{.out = 1, .in = IN_KC}, {.out = 2, .in = IN_VC}},
    .num_alias = 2,
    .attrs_size = sizeof(AttentionAttrs),
    .attrs = attention_attrs,
    .infer = attention_cached_infer,
    .cost = attention_cached_cost,
    .workspace = attention_cached_workspace,
    .gpu_workspace = attention_cached_gpu_workspace,
    .cpu = {{DT_SET_DECODE, attention_cached_blocks, "blocks", CACHES}, {DT_SET_DECODE, attention_cached_reference, "reference", CACHES}},
    .samples = attention_cached_samples,
    .holds = {[IN_PAGES] = HOLDS_PAGES},
    .num_samples = sizeof attention_cached_samples / sizeof attention_cached_samples[0],
    .large = attention_cached_large_samples,
    .num_large = sizeof attention_cached_large_samples / sizeof attention_cached_large_samples[0],
};
