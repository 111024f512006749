/* rope_table: cosines and sines of the rotary embedding for every position. Angles are computed in fp64: in fp32 they would be off by 1e-3
 * at position 10^4. */
#include "ops/infer.h"

static const AttrDef rope_table_attrs[] = {
    ATTR_INT(RopeTableAttrs, len, 0),     ATTR_INT(RopeTableAttrs, head_dim, 0),  ATTR_FLOAT(RopeTableAttrs, theta, 10000),
    ATTR_FLOAT(RopeTableAttrs, scale, 1), ATTR_LIST(RopeTableAttrs, frequencies), {0},
};

/* No inputs -> table (len, head_dim) f32. */
static Status rope_table_infer(Node *node)
{
    const RopeTableAttrs *attrs = node->attrs;
    FAIL_IF(attrs->len < 1, ERR_INVALID, "attribute len is %lld, expected the number of positions", (long long)attrs->len);
    FAIL_IF(attrs->head_dim < 2 || attrs->head_dim % 2, ERR_INVALID, "attribute head_dim is %lld, expected an even number",
            (long long)attrs->head_dim);
    FAIL_IF(!(attrs->theta > 0), ERR_INVALID, "attribute theta is %g, expected a positive number", attrs->theta);
    FAIL_IF(!(attrs->scale > 0 && isfinite(attrs->scale)), ERR_INVALID, "attribute scale is %g, expected a positive number", attrs->scale);
    const AttrList *given = &attrs->frequencies;
    FAIL_IF(given->count && given->count != attrs->head_dim / 2, ERR_INVALID,
            "attribute frequencies has %lld numbers, expected one for each of %lld pairs", (long long)given->count,
            (long long)(attrs->head_dim / 2));
    for (int64_t i = 0; i < given->count; i++)
        FAIL_IF(!(given->values[i] >= 0 && isfinite(given->values[i])), ERR_INVALID,
                "attribute frequencies has %g for pair %lld, expected a number from 0 (it doesn't turn) on", given->values[i],
                (long long)i);
    node->out[0]->type = type_make(DT_F32, 2, attrs->len, attrs->head_dim);
    return OK;
}

static OpCost rope_table_cost(const Node *node)
{
    return cost_streaming(node, 40.0 * (double)type_numel(&node->out[0]->type));
}

/* The frequency of pair i, in radians per position. */
static double rope_frequency(const RopeTableAttrs *attrs, int64_t i)
{
    return attrs->frequencies.count ? attrs->frequencies.values[i] : pow(attrs->theta, -2.0 * (double)i / (double)attrs->head_dim);
}

static void rope_table_task(void *context, int64_t task, int worker)
{
    const KernelArgs     *args = context;
    const RopeTableAttrs *attrs = args->attrs;
    float                *table = args->out[0].data;
    int64_t               half = attrs->head_dim / 2, step = rows_per_task(attrs->head_dim), end = min_i64(attrs->len, (task + 1) * step);
    (void)worker;
    for (int64_t i = 0; i < half; i++) {
        double frequency = rope_frequency(attrs, i);
        for (int64_t p = task * step; p < end; p++) {
            table[p * 2 * half + i] = (float)(attrs->scale * cos((double)p * frequency));
            table[p * 2 * half + half + i] = (float)(attrs->scale * sin((double)p * frequency));
        }
    }
}

static Status rope_table_cpu(const KernelArgs *args)
{
    const RopeTableAttrs *attrs = args->attrs;
    pool_run(args->pool, div_up(attrs->len, rows_per_task(attrs->head_dim)), rope_table_task, (void *)args);
    return OK;
}

const OpDef op_rope_table = {
    .id = OP_ROPE_TABLE,
    .name = "rope_table",
    .synopsis = "row p: scale cos(p f_i) for i < D/2, then scale sin(p f_i); f_i = theta^(-2i/D) unless frequencies are given",
    .num_out = 1,
    .attrs_size = sizeof(RopeTableAttrs),
    .attrs = rope_table_attrs,
    .infer = rope_table_infer,
    .cost = rope_table_cost,
    .cpu = {{DT_SET_FLOAT, rope_table_cpu, "reference"}},
    .samples = "{len=40, head_dim=16}\n"
               "{len=300, head_dim=12, theta=500000, scale=1.19, frequencies=[1, 0.3, 0.05, 0.004, 0.0002, 3e-06]}\n"
               "{len=9, head_dim=4, frequencies=[0.5, 0]}\n",
};
