/* attention_latent: attention_cached for keys whose first value_dim elements are the values, so that the cache holds one array. All query
 * heads share one key head. Latent attention (DeepSeek-V2's MLA) becomes this op if each head's key and value projections are applied to
 * queries and results instead of to keys and values. */
#include "ops/attention/attention_latent.h"

#include "ops/attention/attention.h"
#include "ops/attention/attention_pages.h"

static const AttrDef attention_latent_attrs[] = {ATTR_INT(LatentAttrs, num_heads, 0),
                                                 ATTR_INT(LatentAttrs, head_dim, 0),
                                                 ATTR_INT(LatentAttrs, value_dim, 0),
                                                 ATTR_FLOAT(LatentAttrs, scale, 0),
                                                 {0}};

/* q (B,T,H,D), k (B,T,1,D), kc (N,S,1,D) f32|bf16|f16|e4m3: N pages of S positions, starts i32 (B), pages i32 (B,P) -> o (B,T,H,value_dim)
 * of q's dtype, kc'. */
static Status attention_latent_infer(Node *node)
{
    const LatentAttrs *attrs = node->attrs;
    int64_t            heads = attrs->num_heads, dim = attrs->head_dim;
    FAIL_IF(heads < 1 || dim < 1 || attrs->value_dim < 1 || attrs->value_dim > dim, ERR_INVALID,
            "attributes num_heads %lld, head_dim %lld, value_dim %lld: expected at least 1, and value_dim of at most head_dim",
            (long long)heads, (long long)dim, (long long)attrs->value_dim);
    FAIL_IF(!isfinite(attrs->scale), ERR_INVALID, "attribute scale is %g, expected a finite number", attrs->scale);
    TRY(infer_input(node, LATENT_Q, "q", DT_SET_DECODE, DIMS(-1, -1, heads, dim)));
    const TensorType *q = &node->in[LATENT_Q]->type;
    TRY(infer_input(node, LATENT_K, "k", DT_SET_DECODE, DIMS(q->dim[0], q->dim[1], 1, dim)));
    TRY(infer_input(node, LATENT_KC, "kc", DT_SET_DECODE | DT_SET(DT_E4M3), DIMS(-1, -1, 1, dim)));
    TRY(infer_input(node, LATENT_STARTS, "starts", DT_SET(DT_I32), DIMS(q->dim[0])));
    TRY(infer_input(node, LATENT_PAGES, "pages", DT_SET(DT_I32), DIMS(q->dim[0], -1)));
    TRY(attention_check_room(&node->in[LATENT_KC]->type, &node->in[LATENT_PAGES]->type, q->dim[1]));
    node->out[0]->type = *q;
    node->out[0]->type.dim[3] = attrs->value_dim;
    node->out[1]->type = node->in[LATENT_KC]->type;
    return OK;
}

static Attention latent_dims(const LatentAttrs *attrs, const TensorType *q)
{
    AttentionAttrs all = {.num_heads = attrs->num_heads, .num_kv_heads = 1, .head_dim = attrs->head_dim, .scale = attrs->scale};
    Attention      a = attention_dims(&all, q, NULL);
    a.v_dim = attrs->value_dim;
    return a;
}

/* Assumes that every row has the greatest length, so that all its pages are read. */
static OpCost attention_latent_cost(const Node *node)
{
    const TensorType *cache = &node->in[LATENT_KC]->type, *pages = &node->in[LATENT_PAGES]->type;
    Attention         a = latent_dims(node->attrs, &node->in[LATENT_Q]->type);
    int64_t           room = cache->dim[1] * pages->dim[1];
    double            bytes = (double)type_bytes(cache), position = bytes / (double)(cache->dim[0] * cache->dim[1]);
    a.first = room - a.len;
    OpCost cost = cost_streaming(node, 4 * attention_macs(&a));
    cost.bytes += (double)a.batch * (double)(room + a.len) * position - (node->out[1] ? 2 * bytes : bytes);
    cost.matrix_unit = true;
    return cost;
}

static size_t attention_latent_workspace(const Node *node, int num_workers)
{
    Attention a = latent_dims(node->attrs, &node->in[LATENT_Q]->type);
    return attention_forward_workspace(&a, num_workers);
}

/* Only rows of one token need a workspace: for these the matrix-unit kernel stores partial sums. */
static size_t attention_latent_gpu_workspace(const Node *node, int sm)
{
    const TensorType *cache = &node->in[LATENT_KC]->type, *q = &node->in[LATENT_Q]->type;
    Attention         a = latent_dims(node->attrs, q);
    int64_t           tiles = attention_pages_tiles(0, cache->dim[1] * node->in[LATENT_PAGES]->type.dim[1]);
    (void)sm;
    return q->dtype != DT_F32 && a.len == 1 ? attention_pages_bytes(1, a.num_heads, a.v_dim, latent_slots(a.batch, a.num_heads, tiles)) : 0;
}

/* Binds the operands and appends the new keys to the cache. */
static Status latent_append(const KernelArgs *args, Attention *out)
{
    Attention         a = latent_dims(args->attrs, &args->in[LATENT_Q].type);
    const TensorView *pages = &args->in[LATENT_PAGES];
    Heads             k = heads_of_view(&args->in[LATENT_K], a.dim);
    a.starts = args->in[LATENT_STARTS].data;
    TRY(attention_check_places(&a, &args->out[1], pages));
    a.q = heads_of_view(&args->in[LATENT_Q], a.dim);
    a.k = a.v = heads_of_pages(&args->out[1], pages, a.dim);
    a.v.dim = a.v_dim; /* a value is the first part of its key */
    a.o = heads_of_view(&args->out[0], a.v_dim);
    attention_append(&a, &a.k, &k);
    *out = a;
    return OK;
}

static Status attention_latent_blocks(const KernelArgs *args)
{
    Attention a;
    TRY(latent_append(args, &a));
    attention_forward(&a, args->pool, args->workspace);
    return OK;
}

static Status attention_latent_reference(const KernelArgs *args)
{
    Attention a;
    TRY(latent_append(args, &a));
    attention_forward_reference(&a);
    return OK;
}

#define CACHE \
    { \
        { \
            .in = 1u << LATENT_KC, .out = 1u << 1, .dtypes = DT_SET_DECODE | DT_SET(DT_E4M3) \
        } \
    }

const OpDef op_attention_latent = {
    .id = OP_ATTENTION_LATENT,
    .name = "attention_latent",
    .synopsis = "kc[starts + t] = k, in the row's pages; o = softmax(scale q kc^T) vc, where vc is the first value_dim elements "
                "of each key in kc",
    .num_in = LATENT_IN,
    .num_out = 2,
    .min_in = LATENT_IN,
    .alias = {{.out = 1, .in = LATENT_KC}},
    .num_alias = 1,
    .attrs_size = sizeof(LatentAttrs),
    .attrs = attention_latent_attrs,
    .infer = attention_latent_infer,
    .cost = attention_latent_cost,
    .workspace = attention_latent_workspace,
    .gpu_workspace = attention_latent_gpu_workspace,
    .cpu = {{DT_SET_DECODE, attention_latent_blocks, "blocks", CACHE}, {DT_SET_DECODE, attention_latent_reference, "reference", CACHE}},
    .samples = "[1,1,4,10], [1,1,1,10], [3,4,1,10], i32[1] below=12, i32[1,3] below=3 {num_heads=4, head_dim=10, value_dim=6}\n"
               "[2,5,4,10], [2,5,1,10], [7,4,1,10], i32[2] below=8, i32[2,3] below=7 {num_heads=4, head_dim=10, value_dim=6}\n"
               "[1,70,3,16], [1,70,1,16], [40,32,1,16], i32[1] below=251, i32[1,10] below=40"
               "  {num_heads=3, head_dim=16, value_dim=16, scale=0.3}\n",
    .holds = {[LATENT_PAGES] = HOLDS_PAGES},
    /* DeepSeek-V3's head dims, with fewer heads. */
    .large = "[1,1,16,576], [1,1,1,576], [60,32,1,576], i32[1] below=704, i32[1,22] below=60"
             "  {num_heads=16, head_dim=576, value_dim=512, scale=0.0722}\n"
             "[3,1,16,576], [3,1,1,576], [25,32,1,576], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=16, head_dim=576, value_dim=512, scale=0.0722}\n"
             "[1,70,16,576], [1,70,1,576], [25,32,1,576], i32[1] below=187, i32[1,8] below=25"
             "  {num_heads=16, head_dim=576, value_dim=512, scale=0.0722}\n"
             "[2,1,4,10], [2,1,1,10], e4m3[7,4,1,10], i32[2] below=12, i32[2,3] below=7 {num_heads=4, head_dim=10, value_dim=6}\n"
             "[1,40,4,10], [1,40,1,10], e4m3[60,32,1,10], i32[1] below=665, i32[1,22] below=60"
             "  {num_heads=4, head_dim=10, value_dim=6}\n"
             "[3,1,16,576], [3,1,1,576], e4m3[25,32,1,576], i32[3] below=256, i32[3,8] below=25"
             "  {num_heads=16, head_dim=576, value_dim=512, scale=0.0722}\n",
};
