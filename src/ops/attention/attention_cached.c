/* attention_cached: attention of new tokens over a key/value cache in pages. First, keys and values of row b's tokens are written at
 * positions starts[b], starts[b] + 1, ..; then token t attends keys 0..starts[b]+t (with a window, only the last `window` of these).
 * Position p of row b is in page pages[b][p / S], at slot p mod S. A query's bits don't depend on the other tokens of the call, nor on
 * which pages its row uses.
 *
 * A cache in e4m3 has no scale: values beyond 448 become 448. */
#include "ops/attention/attention.h"
#include "ops/attention/attention_pages.h"

enum { IN_Q, IN_K, IN_V, IN_KC, IN_VC, IN_STARTS, IN_PAGES, IN_SINKS, IN_BIAS, NUM_IN };

/* The number of positions that a row may have. */
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

/* Assumes that every row has the greatest length, so that all its pages are read. */
static OpCost attention_cached_cost(const Node *node)
{
    const TensorType *cache = &node->in[IN_KC]->type, *pages = &node->in[IN_PAGES]->type;
    Attention         a = attention_dims_of(node, IN_Q);
    int64_t           room = room_of(cache, pages), keys = a.window ? min_i64(room, a.window + a.len) : room;
    a.first = room - a.len;
    OpCost cost = cost_streaming(node, 4 * attention_macs(&a));
    for (int k = 1; k < 3; k++) {
        double bytes = (double)type_bytes(&node->in[IN_KC + k - 1]->type), position = bytes / (double)(cache->dim[0] * cache->dim[1]);
        cost.bytes -= node->out[k] ? 2 * bytes : bytes; /* cost_streaming counts the whole cache, but only part of it is read and written */
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

/* Only rows of one token need a workspace: for these the matrix-unit kernels store each tile's sums. */
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
    if (dtype == from) memcpy(to, row, (size_t)dtype_bytes(dtype, count));
    for (int64_t i = 0; i < count && dtype != from; i += TILE) {
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

/* Binds the operands and appends the new keys and values to the cache. */
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

#define CACHES \
    { \
        { \
            .in = 1u << IN_KC | 1u << IN_VC, .out = 1u << 1 | 1u << 2, .dtypes = DT_SET_DECODE | DT_SET(DT_E4M3) \
        } \
    }

const OpDef op_attention_cached = {
    .id = OP_ATTENTION_CACHED,
    .name = "attention_cached",
    .synopsis = "kc[starts + t], vc[starts + t] = k, v, in the row's pages; o = softmax(scale q kc^T) vc over keys 0..starts + "
                "t; sinks and bias as in attention",
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
    .samples = "[1,1,4,6], [1,1,2,6], [1,1,2,6], [3,4,2,6], [3,4,2,6], i32[1] below=12, i32[1,3] below=3"
               "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[1,70,80], _, _, [40,32,1,16], [40,32,1,16], i32[1] below=251, i32[1,10] below=40"
               "  {num_heads=3, num_kv_heads=1, head_dim=16, scale=0.3}\n"
               "[1,70,80], _, _, [40,32,1,16], [40,32,1,16], i32[1] below=251, i32[1,10] below=40"
               "  {num_heads=3, num_kv_heads=1, head_dim=16, window=60, scale=0.3, softcap=0.7}\n"
               "[2,3,4,6], [2,3,2,6], [2,3,2,6], [7,4,2,6], [7,4,2,6], i32[2] below=10, i32[2,3] below=7, [4]"
               "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[2,3,4,6], [2,3,2,6], [2,3,2,4], [7,4,2,6], [7,4,2,4], i32[2] below=10, i32[2,3] below=7, _, [5,4]"
               "  {num_heads=4, num_kv_heads=2, head_dim=6, window=3, softcap=0.7}\n",
    .holds = {[IN_PAGES] = HOLDS_PAGES},
    /* Rows of one token and of several, each row at another position and with its own pages. */
    .large = "[1,1,768], _, _, [60,32,1,128], [60,32,1,128], i32[1] below=704, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=1, head_dim=128}\n"
             "[1,200,512], _, _, [60,32,2,64], [60,32,2,64], i32[1] below=505, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=2, head_dim=64}\n"
             "[1,200,512], _, _, [60,32,2,64], [60,32,2,64], i32[1] below=505, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, window=100}\n"
             "[1,1,512], _, _, [60,32,2,64], [60,32,2,64], i32[1] below=704, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, window=100}\n"
             "[1,150,1536], _, _, [60,32,4,128], [60,32,4,128], i32[1] below=555, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=4, head_dim=128, window=129, softcap=0.8, dense=true}\n"
             "[1,90,2048], _, _, [60,32,2,256], [60,32,2,256], i32[1] below=615, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=2, head_dim=256}\n"
             "[1,70,1024], _, _, [60,32,1,256], [60,32,1,256], i32[1] below=635, i32[1,22] below=60"
             "  {num_heads=2, num_kv_heads=1, head_dim=256, window=130, scale=0.1, softcap=0.8, dense=true}\n"
             "[1,1,1024], _, _, [60,32,1,256], [60,32,1,256], i32[1] below=704, i32[1,22] below=60"
             "  {num_heads=2, num_kv_heads=1, head_dim=256, window=130, scale=0.1, softcap=0.8, dense=true}\n"
             "[1,3,480], _, _, [60,32,2,80], [60,32,2,80], i32[1] below=702, i32[1,22] below=60"
             "  {num_heads=2, num_kv_heads=2, head_dim=80, window=77, softcap=0.8, dense=true}\n"
             "[3,1,96], _, _, [25,32,2,16], [25,32,2,16], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=2, num_kv_heads=2, head_dim=16}\n"
             "[17,1,320], _, _, [140,32,1,32], [140,32,1,32], i32[17] below=256, i32[17,8] below=140"
             "  {num_heads=8, num_kv_heads=1, head_dim=32, window=65}\n"
             "[17,1,8,96], [17,1,2,96], [17,1,2,96], [140,32,2,96], [140,32,2,96], i32[17] below=256, i32[17,8] below=140"
             "  {num_heads=8, num_kv_heads=2, head_dim=96, window=128}\n"
             /* more heads in a group than a warp has rows */
             "[3,1,2816], _, _, [25,32,2,64], [25,32,2,64], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=40, num_kv_heads=2, head_dim=64, window=64}\n"
             /* a thread block has several tiles */
             "[64,1,768], _, _, [769,32,16,16], [769,32,16,16], i32[64] below=384, i32[64,12] below=769"
             "  {num_heads=16, num_kv_heads=16, head_dim=16}\n"
             "[17,1,2560], _, _, [140,32,2,128], [140,32,2,128], i32[17] below=256, i32[17,8] below=140"
             "  {num_heads=16, num_kv_heads=2, head_dim=128}\n"
             "[3,1,4,128], [3,1,2,128], [3,1,2,128], [46,32,2,128], [46,32,2,128], i32[3] below=480, i32[3,15] below=46"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, window=300, softcap=0.8}\n"
             "[3,1,2560], _, _, [25,32,1,256], [25,32,1,256], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=8, num_kv_heads=1, head_dim=256, window=100, softcap=0.8}\n"
             "[17,1,512], _, _, [140,32,2,64], [140,32,2,64], i32[17] below=256, i32[17,8] below=140"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, window=1, softcap=0.8}\n"
             "[3,1,480], _, _, [25,32,2,80], [25,32,2,80], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=2, num_kv_heads=2, head_dim=80, window=77, softcap=0.8, dense=true}\n"
             "[3,1,1024], _, _, [25,32,2,128], [25,32,2,128], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, scale=-0.3, dense=true}\n"
             "[3,70,96], _, _, [25,32,2,16], [25,32,2,16], i32[3] below=187, i32[3,8] below=25"
             "  {num_heads=2, num_kv_heads=2, head_dim=16}\n"
             "[17,5,320], _, _, [140,32,1,32], [140,32,1,32], i32[17] below=252, i32[17,8] below=140"
             "  {num_heads=8, num_kv_heads=1, head_dim=32, window=65}\n"
             "[3,100,8,96], [3,100,2,96], [3,100,2,96], [25,32,2,96], [25,32,2,96], i32[3] below=157, i32[3,8] below=25"
             "  {num_heads=8, num_kv_heads=2, head_dim=96, window=128}\n"
             "[3,130,2560], _, _, [25,32,2,128], [25,32,2,128], i32[3] below=127, i32[3,8] below=25"
             "  {num_heads=16, num_kv_heads=2, head_dim=128}\n"
             "[3,65,4,128], [3,65,2,128], [3,65,2,128], [46,32,2,128], [46,32,2,128], i32[3] below=416, i32[3,15] below=46"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, window=300, softcap=0.8}\n"
             "[3,66,2560], _, _, [25,32,1,256], [25,32,1,256], i32[3] below=191, i32[3,8] below=25"
             "  {num_heads=8, num_kv_heads=1, head_dim=256, window=100, softcap=0.8}\n"
             "[17,2,512], _, _, [140,32,2,64], [140,32,2,64], i32[17] below=255, i32[17,8] below=140"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, window=1, softcap=0.8}\n"
             "[1,1,48], _, _, e4m3[60,32,2,6], e4m3[60,32,2,6], i32[1] below=704, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
             "[3,1,96], _, _, e4m3[25,32,2,16], e4m3[25,32,2,16], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=2, num_kv_heads=2, head_dim=16}\n"
             "[17,1,1152], _, _, e4m3[140,32,2,96], e4m3[140,32,2,96], i32[17] below=256, i32[17,8] below=140"
             "  {num_heads=8, num_kv_heads=2, head_dim=96, window=128}\n"
             "[3,1,2816], _, _, e4m3[25,32,2,64], e4m3[25,32,2,64], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=40, num_kv_heads=2, head_dim=64, window=64}\n"
             "[17,1,2560], _, _, e4m3[140,32,2,128], e4m3[140,32,2,128], i32[17] below=256, i32[17,8] below=140"
             "  {num_heads=16, num_kv_heads=2, head_dim=128}\n"
             "[3,1,1024], _, _, e4m3[46,32,2,128], e4m3[46,32,2,128], i32[3] below=480, i32[3,15] below=46"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, window=300, softcap=0.8}\n"
             "[3,1,2560], _, _, e4m3[25,32,1,256], e4m3[25,32,1,256], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=8, num_kv_heads=1, head_dim=256, window=100, softcap=0.8}\n"
             "[3,1,480], _, _, e4m3[25,32,2,80], e4m3[25,32,2,80], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=2, num_kv_heads=2, head_dim=80, window=77, softcap=0.8, dense=true}\n"
             "[1,70,48], _, _, e4m3[60,32,2,6], e4m3[60,32,2,6], i32[1] below=635, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
             "[3,100,1152], _, _, e4m3[25,32,2,96], e4m3[25,32,2,96], i32[3] below=157, i32[3,8] below=25"
             "  {num_heads=8, num_kv_heads=2, head_dim=96, window=128}\n"
             "[1,200,512], _, _, e4m3[60,32,2,64], e4m3[60,32,2,64], i32[1] below=505, i32[1,22] below=60"
             "  {num_heads=4, num_kv_heads=2, head_dim=64}\n"
             "[3,130,2560], _, _, e4m3[25,32,2,128], e4m3[25,32,2,128], i32[3] below=127, i32[3,8] below=25"
             "  {num_heads=16, num_kv_heads=2, head_dim=128}\n"
             "[3,65,1024], _, _, e4m3[46,32,2,128], e4m3[46,32,2,128], i32[3] below=416, i32[3,15] below=46"
             "  {num_heads=4, num_kv_heads=2, head_dim=128, window=300, softcap=0.8}\n"
             "[3,66,2560], _, _, e4m3[25,32,1,256], e4m3[25,32,1,256], i32[3] below=191, i32[3,8] below=25"
             "  {num_heads=8, num_kv_heads=1, head_dim=256, window=100, softcap=0.8}\n"
             "[3,1,8,64], [3,1,1,64], [3,1,1,64], [25,32,1,64], [25,32,1,64], i32[3] below=256, i32[3,8] below=25, [8]"
             "  {num_heads=8, num_kv_heads=1, head_dim=64, window=128}\n"
             "[3,70,8,64], [3,70,1,64], [3,70,1,64], [25,32,1,64], [25,32,1,64], i32[3] below=187, i32[3,8] below=25, [8]"
             "  {num_heads=8, num_kv_heads=1, head_dim=64, window=128}\n"
             "[1,1,4,128], [1,1,2,128], [1,1,2,128], [60,32,2,128], [60,32,2,128], i32[1] below=704, i32[1,22] below=60, [4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[17,1,4,128], [17,1,2,128], [17,1,2,128], [140,32,2,128], [140,32,2,128], i32[17] below=256, i32[17,8] below=140,"
             "  [4] {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[1,200,4,128], [1,200,2,128], [1,200,2,128], [60,32,2,128], [60,32,2,128], i32[1] below=505, i32[1,22] below=60, [4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[3,1,4,128], [3,1,2,128], [3,1,2,128], e4m3[25,32,2,128], e4m3[25,32,2,128], i32[3] below=256, i32[3,8] below=25,"
             "  [4] {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[3,65,4,128], [3,65,2,128], [3,65,2,128], e4m3[25,32,2,128], e4m3[25,32,2,128], i32[3] below=192, i32[3,8] below=25,"
             "  [4] {num_heads=4, num_kv_heads=2, head_dim=128}\n"
             "[3,1,8,256], [3,1,1,256], [3,1,1,256], [25,32,1,256], [25,32,1,256], i32[3] below=256, i32[3,8] below=25, [8]"
             "  {num_heads=8, num_kv_heads=1, head_dim=256, window=100, softcap=0.8}\n"
             "[3,70,8,256], [3,70,1,256], [3,70,1,256], [25,32,1,256], [25,32,1,256], i32[3] below=187, i32[3,8] below=25, [8]"
             "  {num_heads=8, num_kv_heads=1, head_dim=256, window=100, softcap=0.8}\n"
             "[3,1,2,16], [3,1,2,16], [3,1,2,16], [25,32,2,16], [25,32,2,16], i32[3] below=256, i32[3,8] below=25, [2]"
             "  {num_heads=2, num_kv_heads=2, head_dim=16}\n"
             "[3,1,2,192], [3,1,2,192], [3,1,2,128], [25,32,2,192], [25,32,2,128], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[3,40,2,192], [3,40,2,192], [3,40,2,128], e4m3[25,32,2,192], e4m3[25,32,2,128], i32[3] below=217, i32[3,8] below=25"
             "  {num_heads=2, num_kv_heads=2, head_dim=192}\n"
             "[3,1,4,64], [3,1,2,64], [3,1,2,64], [25,32,2,64], [25,32,2,64], i32[3] below=256, i32[3,8] below=25, _, [129,4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, scale=1}\n"
             "[3,50,4,64], [3,50,2,64], [3,50,2,64], [25,32,2,64], [25,32,2,64], i32[3] below=207, i32[3,8] below=25, [4], [129,4]"
             "  {num_heads=4, num_kv_heads=2, head_dim=64, scale=1}\n",
};
