/* alibi_table: the bias of ALiBi (Press, Smith and Lewis 2022) as a table that attention reads. A head's score falls by the head's slope
 * for each token between query and key. */
#include "ops/attention/alibi_table.h"
#include "ops/infer.h"

static const AttrDef alibi_table_attrs[] = {
    ATTR_INT(AlibiTableAttrs, len, 0), ATTR_INT(AlibiTableAttrs, num_heads, 0), ATTR_LIST(AlibiTableAttrs, slopes), {0}};

/* No inputs -> table (len, num_heads) f32. */
static Status alibi_table_infer(Node *node)
{
    const AlibiTableAttrs *attrs = node->attrs;
    FAIL_IF(attrs->len < 1, ERR_INVALID, "attribute len is %lld, expected the number of distances", (long long)attrs->len);
    FAIL_IF(attrs->num_heads < 1, ERR_INVALID, "attribute num_heads is %lld, expected at least 1", (long long)attrs->num_heads);
    FAIL_IF(attrs->slopes.count && attrs->slopes.count != attrs->num_heads, ERR_INVALID,
            "attribute slopes has %lld numbers, expected one for each of %lld heads", (long long)attrs->slopes.count,
            (long long)attrs->num_heads);
    for (int64_t h = 0; h < attrs->slopes.count; h++)
        FAIL_IF(!isfinite(attrs->slopes.values[h]), ERR_INVALID, "attribute slopes has %g for head %lld, expected a finite number",
                attrs->slopes.values[h], (long long)h);
    node->out[0]->type = type_make(DT_F32, 2, attrs->len, attrs->num_heads);
    return OK;
}

static OpCost alibi_table_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
}

static Status alibi_table_cpu(const KernelArgs *args)
{
    const AlibiTableAttrs *attrs = args->attrs;
    float                 *table = args->out[0].data;
    for (int64_t h = 0; h < attrs->num_heads; h++) {
        double slope = alibi_slope(attrs, h);
        for (int64_t d = 0; d < attrs->len; d++) table[d * attrs->num_heads + h] = (float)(-slope * (double)d);
    }
    return OK;
}

const OpDef op_alibi_table = {
    .id = OP_ALIBI_TABLE,
    .name = "alibi_table",
    .synopsis = "table[d,h] = -slope_h d; for 2^k heads slope_h = 2^(-8 (h + 1) / 2^k); other numbers of heads take the slopes "
                "of the next lower power of two, then every second slope of twice as many heads",
    .num_out = 1,
    .attrs_size = sizeof(AlibiTableAttrs),
    .attrs = alibi_table_attrs,
    .infer = alibi_table_infer,
    .cost = alibi_table_cost,
    .cpu = {{DT_SET_FLOAT, alibi_table_cpu, "reference"}},
    .samples = "{len=40, num_heads=8}\n"
               "{len=300, num_heads=13}\n"
               "{len=70, num_heads=3, slopes=[0.5, -0.25, 0.3]}\n",
};
