/* attention_turned: one token a row of packed queries, keys and values, made ready for attention and attended over a key/value cache: what
 * qkv_norm_rope and attention_cached do one after the other, of the same bits. Both are asked here for all that can be said of a node. */
#include "ops/attention/attention_turned.h"

#include "ops/attention/attention.h"
#include "ops/ops.h"

static const AttrDef attention_turned_attrs[] = {
    ATTR_INT(AttentionAttrs, num_heads, 0), ATTR_INT(AttentionAttrs, num_kv_heads, 0),
    ATTR_INT(AttentionAttrs, head_dim, 0),  ATTR_INT(AttentionAttrs, window, 0),
    ATTR_FLOAT(AttentionAttrs, scale, 0),   ATTR_FLOAT(AttentionAttrs, softcap, 0),
    ATTR_BOOL(AttentionAttrs, dense, 0),    ATTR_FLOAT(TurnedAttrs, eps, 1e-6),
    ATTR_FLOAT(TurnedAttrs, offset, 0),     {0},
};

enum { NUM_TURN = 5, NUM_CACHED = 7, FIRST_CACHE = 3 };

/* The node as one of the two ops'. */
typedef struct HalfNode {
    Node     node;
    Value   *in[NODE_MAX_IN], *out[3], made[3];
    QkvAttrs qkv;
} HalfNode;

static void half_start(HalfNode *half, const Node *node, const OpDef *op)
{
    *half = (HalfNode){.node = *node};
    for (int k = 0; k < 3; k++) half->out[k] = &half->made[k];
    half->node.op = op;
    half->node.in = half->in;
    half->node.out = half->out;
}

static Node *turn_half(HalfNode *half, const Node *node)
{
    static const int8_t from[NUM_TURN] = {TURNED_QKV, TURNED_WQ, TURNED_WK, TURNED_TABLE, TURNED_POSITIONS};
    half_start(half, node, &op_qkv_norm_rope);
    half->qkv = turned_qkv_attrs(node->attrs);
    half->node.attrs = &half->qkv;
    half->node.num_in = NUM_TURN, half->node.num_out = 2;
    for (int k = 0; k < NUM_TURN; k++) half->in[k] = node->in[from[k]];
    return &half->node;
}

static Node *cached_half(HalfNode *half, const Node *node)
{
    half_start(half, node, &op_attention_cached);
    half->node.num_in = NUM_CACHED, half->node.num_out = 3;
    half->in[0] = node->in[TURNED_QKV];
    for (int k = FIRST_CACHE; k < NUM_CACHED; k++) half->in[k] = node->in[TURNED_KC + k - FIRST_CACHE];
    for (int k = 0; k < 3; k++)
        if (node->out[k]) half->made[k].type = node->out[k]->type;
    return &half->node;
}

/* qkv (B,1,(H+2G)D), kc, vc, starts, pages as of attention_cached, [wq (D)], [wk (D)], table (P,D) f32, positions i32 (B,1) -> o (B,1,H,D),
 * kc', vc'. */
static Status attention_turned_infer(Node *node)
{
    HalfNode          turn, cached;
    const TensorType *qkv = &node->in[TURNED_QKV]->type;
    FAIL_IF(qkv->ndim != 3 || qkv->dim[1] != 1, ERR_INVALID, "qkv has %d dims, %lld tokens a row; expected packed rows of one token",
            qkv->ndim, (long long)(qkv->ndim > 1 ? qkv->dim[1] : 0));
    TRY(op_qkv_norm_rope.infer(turn_half(&turn, node)));
    TRY(op_attention_cached.infer(cached_half(&cached, node)));
    for (int k = 0; k < 3; k++) node->out[k]->type = cached.made[k].type;
    return OK;
}

static OpCost attention_turned_cost(const Node *node)
{
    HalfNode half;
    OpCost   turn = op_qkv_norm_rope.cost(turn_half(&half, node)), cost = op_attention_cached.cost(cached_half(&half, node));
    cost.flops += turn.flops;
    return cost;
}

static size_t attention_turned_workspace(const Node *node, int num_workers)
{
    HalfNode half;
    return turned_bytes(&node->in[TURNED_QKV]->type) + op_attention_cached.workspace(cached_half(&half, node), num_workers);
}

static size_t attention_turned_gpu_workspace(const Node *node, int sm)
{
    HalfNode half;
    return turned_bytes(&node->in[TURNED_QKV]->type) + op_attention_cached.gpu_workspace(cached_half(&half, node), sm);
}

static Status attention_turned_blocks(const KernelArgs *args)
{
    return turned_apart(args, op_qkv_norm_rope.cpu[0].run, op_attention_cached.cpu[0].run);
}

static Status attention_turned_reference(const KernelArgs *args)
{
    return turned_apart(args, op_qkv_norm_rope.cpu[0].run, op_attention_cached.cpu[1].run);
}

static const TurnedAttrs turned_small = {{.num_heads = 4, .num_kv_heads = 2, .head_dim = 6}, .eps = 1e-6};
static const TurnedAttrs turned_narrow = {{.num_heads = 3, .num_kv_heads = 1, .head_dim = 16, .window = 40}, .eps = 1e-2, .offset = 1};

/* B rows, a cache of N pages of S positions, P pages a row; norms 1: with weights of heads. */
#define TURNED(b, h, g, d, n, s, p, norms) \
    .in = {{DT_F32, 3, {b, 1, ((h) + 2 * (g)) * (d)}}, \
           {DT_F32, 4, {n, s, g, d}}, \
           {DT_F32, 4, {n, s, g, d}}, \
           {DT_I32, 1, {b}}, \
           {DT_I32, 2, {b, p}}, \
           {DT_F32, norms, {d}}, \
           {DT_F32, norms, {d}}, \
           {DT_F32, 2, {300, d}}, \
           {DT_I32, 2, {b, 1}}}, \
    .int_range = {[TURNED_STARTS] = (p) * (s), [TURNED_PAGES] = n, [TURNED_POSITIONS] = 300}

static const OpSample attention_turned_samples[] = {
    {TURNED(1, 4, 2, 6, 3, 4, 3, 0), .attrs = &turned_small},
    {TURNED(2, 4, 2, 6, 7, 4, 3, 1), .attrs = &turned_small},
    {TURNED(3, 3, 1, 16, 25, 32, 8, 1), .attrs = &turned_narrow},
};

static const TurnedAttrs large_turned[] = {
    {{.num_heads = 16, .num_kv_heads = 8, .head_dim = 128}, .eps = 1e-6},
    {{.num_heads = 8, .num_kv_heads = 2, .head_dim = 64}, .eps = 1e-6},
    {{.num_heads = 8, .num_kv_heads = 2, .head_dim = 256, .window = 100}, .eps = 1e-6, .offset = 1},
    {{.num_heads = 24, .num_kv_heads = 2, .head_dim = 128, .softcap = 0.8}, .eps = 1e-6},
    {{.num_heads = 2, .num_kv_heads = 2, .head_dim = 80, .window = 77}, .eps = 1e-6},
};

/* Shapes of real models, each row at another position. */
static const OpSample attention_turned_large_samples[] = {
    {TURNED(1, 16, 8, 128, 60, 32, 22, 1), .attrs = &large_turned[0]}, {TURNED(64, 16, 8, 128, 769, 32, 12, 1), .attrs = &large_turned[0]},
    {TURNED(17, 8, 2, 64, 140, 32, 8, 0), .attrs = &large_turned[1]},  {TURNED(3, 8, 2, 256, 25, 32, 8, 1), .attrs = &large_turned[2]},
    {TURNED(3, 24, 2, 128, 25, 32, 8, 1), .attrs = &large_turned[3]},  {TURNED(3, 2, 2, 80, 25, 32, 8, 1), .attrs = &large_turned[4]},
};

#define CACHES \
    { \
        { \
            .in = 1u << TURNED_KC | 1u << TURNED_VC, .out = 1u << 1 | 1u << 2, .dtypes = DT_SET_DECODE | DT_SET(DT_E4M3) \
        } \
    }

const OpDef op_attention_turned = {
    .id = OP_ATTENTION_TURNED,
    .name = "attention_turned",
    .synopsis = "q, k, v = qkv_norm_rope(qkv); kc, vc [starts] = k, v, in the row's pages; o = softmax(scale q kc^T) vc",
    .num_in = TURNED_IN,
    .num_out = 3,
    .min_in = TURNED_IN,
    .optional_in = 1u << TURNED_WQ | 1u << TURNED_WK,
    .alias = {{.out = 1, .in = TURNED_KC}, {.out = 2, .in = TURNED_VC}},
    .num_alias = 2,
    .attrs_size = sizeof(TurnedAttrs),
    .attrs = attention_turned_attrs,
    .infer = attention_turned_infer,
    .cost = attention_turned_cost,
    .workspace = attention_turned_workspace,
    .gpu_workspace = attention_turned_gpu_workspace,
    .cpu = {{DT_SET_DECODE, attention_turned_blocks, "blocks", CACHES}, {DT_SET_DECODE, attention_turned_reference, "reference", CACHES}},
    .params = 1u << TURNED_WQ | 1u << TURNED_WK,
    .constants = 1u << TURNED_TABLE,
    .samples = attention_turned_samples,
    .holds = {[TURNED_PAGES] = HOLDS_PAGES},
    .num_samples = sizeof attention_turned_samples / sizeof attention_turned_samples[0],
    .large = attention_turned_large_samples,
    .num_large = sizeof attention_turned_large_samples / sizeof attention_turned_large_samples[0],
};
