/* Part of pass cache: latent attention (DeepSeek-V2's MLA) makes keys and values from one vector of each token, its latent. The KV
 * cache then holds that latent, and the part of the keys that all heads share:
 *
 *     k = concat(rows of linear(latent, Wk), expand(shared)), v = rows of linear(latent, Wv), o = attention(concat(q, r), k, v)
 *
 * Since q k^T = (q Wk) latent^T, each head multiplies its query by its matrix, instead of the latents of all keys. In the same way each
 * head multiplies its result by a matrix, instead of the latents of all values:
 *
 *     o = group_linear(attention_latent(concat(group_linear(q, Wk), r), concat(latent, shared)), Wv)
 *
 * Prompts are read in this form too, so that cutting a prompt changes no bits. The order of sums differs from training's. */
#include "ops/attention/attention_latent.h"
#include "ops/ops.h"
#include "ops/products/group_linear.h"
#include "passes/pass.h"

#include <math.h>

enum { IN_Q, IN_K, IN_V, IN_DOC_START };

/* The rows of each head's matrix that make keys, or values, from the latent. */
typedef struct HeadRows {
    Value  *latent, *weight; /* (B,T,K); (H R,K): R rows a head */
    int64_t begin, size;     /* a part of the R rows of a head */
} HeadRows;

typedef struct Latent {
    HeadRows k, v;
    Value   *q, *q_shared, *k_shared; /* (B,T,H,N), (B,T,H,D), (B,T,1,D) */
    double   scale;
} Latent;

static Node *made_by(const Value *value, const OpDef *op)
{
    return value->producer && value->producer->op == op ? value->producer : NULL;
}

/* Whether the attribute names the last of four dims. */
static bool is_last(int64_t dim)
{
    return dim == -1 || dim == 3;
}

/* Whether value (B,T,H,size) consists of some rows of each head of linear(latent, weight). */
static bool find_part(Value *value, int64_t heads, HeadRows *out)
{
    Node *columns = made_by(value, &op_columns), *slice = made_by(value, &op_slice);
    *out = (HeadRows){.size = type_cols(&value->type)};
    if (slice && !is_last(((const SliceAttrs *)slice->attrs)->dim)) return false;
    if (columns) out->begin = ((const ColumnsAttrs *)columns->attrs)->begin;
    if (slice) out->begin = ((const SliceAttrs *)slice->attrs)->begin;
    if (columns || slice) value = value->producer->in[0];
    Node *split = made_by(value, &op_reshape), *linear = split ? made_by(split->in[0], &op_linear) : NULL;
    if (!linear || linear->in[2] || !linear->in[1]->param || linear->in[0]->type.ndim != 3) return false;
    const int64_t *dim = value->type.dim, *of_latent = linear->in[0]->type.dim;
    if (linear->out[0]->type.dtype != linear->in[0]->type.dtype) return false;
    if (value->type.ndim != 4 || dim[0] != of_latent[0] || dim[1] != of_latent[1] || dim[2] != heads) return false;
    out->latent = linear->in[0], out->weight = linear->in[1];
    return true;
}

/* Whether value (B,T,heads,.) concatenates two parts in each head. */
static bool find_halves(const Value *value, Value *out[2])
{
    Node *concat = made_by(value, &op_concat);
    if (!concat || !is_last(((const ConcatAttrs *)concat->attrs)->dim)) return false;
    for (int i = 2; i < concat->num_in; i++)
        if (concat->in[i]) return false;
    out[0] = concat->in[0], out[1] = concat->in[1];
    return true;
}

/* The single head that is expanded to all heads of the value; NULL: the value isn't expanded from one head. */
static Value *spread_from(const Value *value)
{
    Node        *expand = made_by(value, &op_expand);
    const Value *one = expand ? expand->in[0] : NULL;
    bool         fits = one && one->type.ndim == 4 && one->type.dim[2] == 1 && one->type.dtype == value->type.dtype;
    return fits && value->type.dim[2] == ((const ReduceAttrs *)expand->attrs)->size ? expand->in[0] : NULL;
}

static bool find_latent(const Graph *graph, const Node *node, Latent *out)
{
    const AttentionAttrs *attrs = node->attrs;
    Value                *q[2], *k[2], *doc_start = graph_find(graph, feed_info(FEED_DOC_START)->name);
    if (node->op != &op_attention || !node->in[IN_K] || node->num_in <= IN_DOC_START || node->in[IN_DOC_START] != doc_start) return false;
    for (int i = IN_DOC_START + 1; i < node->num_in; i++)
        if (node->in[i]) return false;
    if (attrs->num_heads != attrs->num_kv_heads || attrs->window || attrs->softcap > 0 || attrs->bidirectional) return false;
    if (!find_halves(node->in[IN_Q], q) || !find_halves(node->in[IN_K], k)) return false;
    int shared = spread_from(k[0]) ? 0 : 1;
    *out = (Latent){.q = q[!shared], .q_shared = q[shared], .k_shared = spread_from(k[shared]), .scale = attrs->scale};
    if (!out->k_shared || type_cols(&out->q_shared->type) != type_cols(&out->k_shared->type)) return false;
    if (out->scale == 0) out->scale = 1 / sqrt((double)attrs->head_dim);
    return find_part(k[!shared], attrs->num_heads, &out->k) && find_part(node->in[IN_V], attrs->num_heads, &out->v) &&
           out->k.latent == out->v.latent;
}

/* Why the cache must hold whole keys and values; NULL: it needn't. */
static const char *reason_against(const PassContext *context, const Latent *latent)
{
    const CompileOptions *options = context->options;
    const Param          *params[] = {latent->k.weight->param, latent->v.weight->param};
    if (options->precision.forward != DT_COUNT) return "products aren't in the model's dtype";
    for (int i = 0; i < 2; i++) {
        if (adapt_wraps(context, params[i])) return "an adapter changes the weights that make them";
        if (options->weight_format && (!options->keeps_format || options->keeps_format(options->keeps_format_model, params[i])))
            return "the weights that make them are kept in few bits";
    }
    return NULL;
}

static Status add_product(Graph *graph, const char *name, Value *x, const HeadRows *part, bool turned, Value **out)
{
    GroupLinearAttrs attrs = {.begin = part->begin, .size = part->size, .turned = turned};
    return pass_add(graph, &op_group_linear, &attrs, name, (Value *[]){x, part->weight}, 2, out);
}

static Status join(Graph *graph, const char *name, Value *a, Value *b, Value **out)
{
    ConcatAttrs attrs = {.dim = -1};
    return pass_add(graph, &op_concat, &attrs, name, (Value *[]){a, b}, 2, out);
}

/* The latent as one head: (B,T,1,K). */
static Status as_head(Graph *graph, const char *name, Value *latent, Value **out)
{
    const int64_t *dim = latent->type.dim;
    ReshapeAttrs   attrs = {.ndim = 4, .d0 = dim[0], .d1 = dim[1], .d2 = 1, .d3 = dim[2]};
    return pass_add(graph, &op_reshape, &attrs, name, &latent, 1, out);
}

static Status rewrite(Graph *graph, Node *node, const Latent *latent, const CacheShape *shape)
{
    const char *name = node->out[0]->name;
    int64_t     heads = ((const AttentionAttrs *)node->attrs)->num_heads, rank = type_cols(&latent->k.latent->type);
    Value      *q, *k, *out;
    pass_work_at(graph, node);
    TRY(add_product(graph, arena_printf(graph->arena, "%s.q_latent", name), latent->q, &latent->k, true, &q));
    TRY(join(graph, arena_printf(graph->arena, "%s.q", name), q, latent->q_shared, &q));
    TRY(as_head(graph, arena_printf(graph->arena, "%s.latent", name), latent->k.latent, &k));
    TRY(join(graph, arena_printf(graph->arena, "%s.k", name), k, latent->k_shared, &k));
    LatentAttrs attrs = {.num_heads = heads, .head_dim = type_cols(&k->type), .value_dim = rank, .scale = latent->scale};
    TensorType  type = type_make(shape->fp8 ? DT_E4M3 : k->type.dtype, 4, shape->pages, shape->page_len, (int64_t)1, attrs.head_dim);
    Value      *cache = graph_add_value(graph, VALUE_CACHE, arena_printf(graph->arena, "cache.latent.%d", node->layer), &type);
    Value      *in[LATENT_IN] = {q, k, cache, shape->starts, shape->row_pages};
    TRY(pass_add(graph, &op_attention_latent, &attrs, arena_printf(graph->arena, "%s.latents", name), in, LATENT_IN, &out));
    TRY(add_product(graph, name, out, &latent->v, false, &out));
    graph_replace_uses(graph, node->out[0], out, node);
    graph_remove_node(graph, node);
    return OK;
}

Status cache_latent(const PassContext *context, Graph *graph, Node *node, const CacheShape *shape, bool *out_done)
{
    Latent      latent;
    PlanLatent *told = &context->plan->latent;
    *out_done = false;
    if (!find_latent(graph, node, &latent)) return OK;
    const AttentionAttrs *attrs = node->attrs;
    int64_t               few = type_cols(&latent.k.latent->type) + type_cols(&latent.k_shared->type);
    int64_t               many = attrs->num_heads * (attrs->head_dim + latent.v.size);
    if (few >= many) return OK;
    const char *why = reason_against(context, &latent);
    told->numbers = few, told->whole_numbers = many;
    if (why) {
        told->whole_layers++;
        told->why = why;
        return OK;
    }
    told->layers++;
    *out_done = true;
    return rewrite(graph, node, &latent, shape);
}
