/* distance_buckets: maps each distance between a query and a key to the id of a bucket (T5: Raffel et al. 2020). An embedding of the bucket
 * ids, learned, is the bias that attention reads. */
#include "ops/attention/distance_buckets.h"
#include "ops/infer.h"

static const AttrDef distance_buckets_attrs[] = {ATTR_INT(DistanceBucketsAttrs, len, 0),
                                                 ATTR_INT(DistanceBucketsAttrs, buckets, 32),
                                                 ATTR_INT(DistanceBucketsAttrs, most, 128),
                                                 ATTR_RARE(DistanceBucketsAttrs, bidirectional),
                                                 {0}};

/* No inputs -> ids (1, len) i32. */
static Status distance_buckets_infer(Node *node)
{
    const DistanceBucketsAttrs *attrs = node->attrs;
    int64_t                     signs = attrs->bidirectional ? 2 : 1, of_sign = attrs->buckets / signs;
    FAIL_IF(attrs->len < 1 || (attrs->bidirectional && attrs->len % 2 == 0), ERR_INVALID,
            "attribute len is %lld, expected the number of distances%s", (long long)attrs->len,
            attrs->bidirectional ? ", an odd one: -(len - 1) / 2 to (len - 1) / 2" : "");
    FAIL_IF(of_sign < 2 || attrs->buckets % signs, ERR_INVALID, "attribute buckets is %lld, expected at least %lld%s",
            (long long)attrs->buckets, (long long)(2 * signs), signs == 2 ? " and even" : "");
    FAIL_IF(attrs->most <= of_sign / 2, ERR_INVALID,
            "attribute most is %lld, expected more than the %lld distances with buckets of their own", (long long)attrs->most,
            (long long)(of_sign / 2));
    node->out[0]->type = type_make(DT_I32, 2, (int64_t)1, attrs->len);
    return OK;
}

static OpCost distance_buckets_cost(const Node *node)
{
    return cost_streaming(node, 40.0 * (double)type_numel(&node->out[0]->type));
}

static Status distance_buckets_cpu(const KernelArgs *args)
{
    const DistanceBucketsAttrs *attrs = args->attrs;
    int32_t                    *ids = args->out[0].data;
    for (int64_t i = 0; i < attrs->len; i++) ids[i] = (int32_t)distance_bucket(attrs, i);
    return OK;
}

const OpDef op_distance_buckets = {
    .id = OP_DISTANCE_BUCKETS,
    .name = "distance_buckets",
    .synopsis = "ids[0,d] = d for d < e = buckets / 2, else e + floor(log(d / e) / log(most / e) (buckets - e)), at most buckets "
                "- 1; bidirectional: of |d|, with half of the buckets for keys up to the query, then half for later keys",
    .num_out = 1,
    .attrs_size = sizeof(DistanceBucketsAttrs),
    .attrs = distance_buckets_attrs,
    .infer = distance_buckets_infer,
    .cost = distance_buckets_cost,
    .cpu = {{DT_SET_FLOAT, distance_buckets_cpu, "reference"}},
    .samples = "{len=200}\n"
               "{len=301, buckets=12, most=96, bidirectional=true}\n",
};
