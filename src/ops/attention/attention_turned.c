/* attention_turned: takes one packed token a row (queries, keys, values), normalizes and rotates it, and attends over a key/value cache. It
 * equals qkv_norm_rope followed by attention_cached, to the bit. Types, costs and workspace are computed by asking both of these ops. */
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

/* The attention_turned node, presented as a node of qkv_norm_rope or of attention_cached. */
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

/* qkv (B,1,(H+2G)D), kc, vc, starts, pages as in attention_cached, [wq (D)], [wk (D)], table (P,D) f32, positions i32 (B,1) -> o (B,1,H,D),
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

#define CACHES \
    { \
        { \
            .in = 1u << TURNED_KC | 1u << TURNED_VC, .out = 1u << 1 | 1u << 2, .dtypes = DT_SET_DECODE | DT_SET(DT_E4M3) \
        } \
    }

const OpDef op_attention_turned = {
    .id = OP_ATTENTION_TURNED,
    .name = "attention_turned",
    .synopsis = "q, k, v = qkv_norm_rope(qkv); kc[starts], vc[starts] = k, v, in the row's pages; o = softmax(scale q kc^T) vc",
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
    .samples = "[1,1,48], [3,4,2,6], [3,4,2,6], i32[1] below=12, i32[1,3] below=3, _, _, [300,6], i32[1,1] below=300"
               "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[2,1,48], [7,4,2,6], [7,4,2,6], i32[2] below=12, i32[2,3] below=7, [6], [6], [300,6], i32[2,1] below=300"
               "  {num_heads=4, num_kv_heads=2, head_dim=6}\n"
               "[3,1,80], [25,32,1,16], [25,32,1,16], i32[3] below=256, i32[3,8] below=25, [16], [16], [300,16], i32[3,1] below=300"
               "  {num_heads=3, num_kv_heads=1, head_dim=16, window=40, eps=0.01, offset=1}\n",
    .holds = {[TURNED_PAGES] = HOLDS_PAGES},
    /* Each row is at another position. */
    .large = "[1,1,4096], [60,32,8,128], [60,32,8,128], i32[1] below=704, i32[1,22] below=60, [128], [128], [300,128],"
             "  i32[1,1] below=300 {num_heads=16, num_kv_heads=8, head_dim=128}\n"
             "[64,1,4096], [769,32,8,128], [769,32,8,128], i32[64] below=384, i32[64,12] below=769, [128], [128], [300,128],"
             "  i32[64,1] below=300 {num_heads=16, num_kv_heads=8, head_dim=128}\n"
             "[17,1,768], [140,32,2,64], [140,32,2,64], i32[17] below=256, i32[17,8] below=140, _, _, [300,64],"
             "  i32[17,1] below=300 {num_heads=8, num_kv_heads=2, head_dim=64}\n"
             "[3,1,3072], [25,32,2,256], [25,32,2,256], i32[3] below=256, i32[3,8] below=25, [256], [256], [300,256],"
             "  i32[3,1] below=300 {num_heads=8, num_kv_heads=2, head_dim=256, window=100, offset=1}\n"
             "[3,1,3584], [25,32,2,128], [25,32,2,128], i32[3] below=256, i32[3,8] below=25, [128], [128], [300,128],"
             "  i32[3,1] below=300 {num_heads=24, num_kv_heads=2, head_dim=128, softcap=0.8}\n"
             "[3,1,480], [25,32,2,80], [25,32,2,80], i32[3] below=256, i32[3,8] below=25, [80], [80], [300,80], i32[3,1] below=300"
             "  {num_heads=2, num_kv_heads=2, head_dim=80, window=77}\n",
};
