/* precision: products of the blocks' linear layers in FP8, with one scale a tensor (Micikevicius et al. 2022).
 *
 * Each operand is quantised by one node, however many products read it: the weight and the input of a layer to e4m3, the gradient of
 * its output to e5m2, in both layouts, since a product reads its operands along their last axis. What the backward pass keeps of an
 * input is its codes.
 *
 * Scales are delayed: those of a step follow from the largest absolute values of the steps before it, which training programs record
 * and the optimizer's program makes scales from. Program `calibrate` stands for the steps before the first one. It has products of
 * trained weights in the model's dtype, makes no gradients of these, and records: what it finds depends neither on scales nor on how a
 * step is divided into micro-batches. Frozen weights are there in codes alone: what is multiplied with them gets a scale of its own there.
 *
 * Without a history (evaluation and generation of a folder) all weights are frozen, and each input has a scale of its own.
 *
 * Codes of a trained weight are made by a step's first program and last until its end; those of a frozen one are made when it is loaded,
 * and the weight itself isn't kept.
 */
#include "passes/precision.h"

#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "passes/recipe_layers.h"

#include <string.h>

/* ---- recipes ---- */

enum { OPEN = DT_COUNT };

static const Recipe recipes[] = {
#define RECIPE(id, name, forward, backward, help) {name, (DType)(forward), (DType)(backward)},
#include "passes/recipes.def"
#undef RECIPE
};

const Recipe *recipe_at(int index)
{
    return index < (int)(sizeof recipes / sizeof *recipes) ? &recipes[index] : NULL;
}

const Recipe *recipe_find(const char *name)
{
    int i = 0;
    while (recipe_at(i) && strcmp(recipes[i].name, name) != 0) i++;
    return recipe_at(i);
}

bool precision_is_scaled(const PrecisionOptions *options)
{
    return options->forward == DT_E4M3 || options->backward == DT_E5M2;
}

bool precision_in_codes(const PrecisionOptions *options)
{
    return options->forward == DT_E4M3 || options->forward == DT_E2M1;
}

/* ---- the tensors that have scales ---- */

enum { OUT_CODES, OUT_TURNED, OUT_AMAX }; /* of fp8_quantise */

typedef struct Precision {
    Graph                  *graph;
    const PrecisionOptions *options;
    Plan                   *plan;
    const ProgramSpec      *spec;
    bool                    forward, backward; /* these products are in FP8 */
    bool                    codes_alone;       /* nothing else is kept of frozen weights */
    RecipeLayers            layers;
    int                    *operand;         /* by value id: one past its number among the scaled tensors; 0: it is none */
    int                    *gradient;        /* by id of a weight: the same of the gradient of its layer's output, if no layer shares it */
    Value                 **codes, **turned; /* by value id: its codes, and those of its transpose */
    char                   *measured;        /* by value id, for calibrate */
    ScaledTensor           *scaled;
    Value                 **scale, **now; /* by number; both: the latest version */
    int                     num_scaled;
} Precision;

static int add_scaled(Precision *p, const Value *weight, const char *suffix, DType dtype)
{
    p->scaled[p->num_scaled++] = (ScaledTensor){.name = arena_printf(p->plan->arena, "%s%s", weight->name, suffix), .dtype = dtype};
    return p->num_scaled;
}

/* Numbers them in the order of the layers, which is the same in all programs. */
static void find_scaled(Precision *p)
{
    int count = 0;
    for (const Node *node = p->graph->first; node; node = node->next) count += layers_is_forward(&p->layers, node);
    p->scaled = arena_array(p->plan->arena, ScaledTensor, 3 * count + 1);
    p->scale = arena_array(p->graph->arena, Value *, 3 * count + 1);
    p->now = arena_array(p->graph->arena, Value *, 3 * count + 1);
    for (const Node *node = p->graph->first; node; node = node->next) {
        if (!layers_is_forward(&p->layers, node)) continue;
        const Value *x = node->in[0], *w = node->in[1];
        if (!p->operand[x->id]) p->operand[x->id] = add_scaled(p, w, ".x", DT_E4M3);
        if (p->operand[w->id]) continue;
        p->operand[w->id] = add_scaled(p, w, "", DT_E4M3);
        if (p->backward) p->gradient[w->id] = add_scaled(p, w, ".dy", DT_E5M2);
    }
}

/* A product adds less than MOST_ADDED values. */
static void start(Precision *p)
{
    enum { MOST_ADDED = 24 };
    Arena *arena = p->graph->arena;
    int    count = p->graph->num_values + MOST_ADDED * p->graph->num_nodes;
    p->operand = arena_array(arena, int, count);
    p->gradient = arena_array(arena, int, count);
    p->codes = arena_array(arena, Value *, count);
    p->turned = arena_array(arena, Value *, count);
    p->measured = arena_array(arena, char, count);
}

/* All programs have the same ones. */
static Status tell_plan(const Precision *p)
{
    Plan *plan = p->plan;
    if (!plan->scaled) {
        plan->scaled = p->scaled;
        plan->num_scaled = p->num_scaled;
    }
    bool same = plan->num_scaled == p->num_scaled;
    for (int i = 0; same && i < p->num_scaled; i++) same = strcmp(plan->scaled[i].name, p->scaled[i].name) == 0;
    FAIL_IF(!same, ERR_INTERNAL, "precision: program %s has other scaled tensors than the one before it", program_spec_name(p->spec));
    return OK;
}

/* Element or row `number` of a value that all programs share. */
static Value *part_of(Precision *p, const char *name, int number, const char *prefix, int64_t width, Value **slot)
{
    TensorType all = type_make(DT_F32, width > 1 ? 2 : 1, (int64_t)p->num_scaled, width), one = type_make(DT_F32, 1, width);
    if (*slot) return *slot;
    Value *whole = graph_find(p->graph, name);
    if (!whole) whole = graph_add_value(p->graph, VALUE_STATE, name, &all);
    whole->layer = -1;
    *slot = graph_add_value(p->graph, VALUE_STATE, arena_printf(p->graph->arena, "%s.%s", prefix, p->scaled[number].name), &one);
    value_place_in(*slot, whole, number * width);
    return *slot;
}

/* Its latest version. */
static Value *scale_of(Precision *p, int number)
{
    return part_of(p, PRECISION_SCALES, number, "fp8.scale", 4, &p->scale[number]);
}

/* ---- codes ---- */

/* A node that quantises `value` before `reader`, or, wanting no codes, measures it. It is dropped and made again with what makes the
 * value. */
static Status add_quantise(Precision *p, Value *value, int number, Node *reader, bool record, uint32_t want, Node **out)
{
    Fp8QuantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(p->scaled[number].dtype)};
    pass_work_at(p->graph, reader);
    Value *now = record ? part_of(p, PRECISION_NOW, number, "fp8.now", 1, &p->now[number]) : NULL;
    Value *in[] = {value, scale_of(p, number), now};
    if (value->producer) p->graph->part = value->producer->part;
    if (record) want |= 1u << OUT_AMAX;
    TRY(graph_add_node(p->graph, &op_fp8_quantise, &attrs, arena_printf(p->graph->arena, "%s.codes", value->name), in, 3, want, out));
    (*out)->flags |= reader->flags & NODE_BACKWARD;
    if (record) p->now[number] = (*out)->out[OUT_AMAX];
    return OK;
}

static bool is_training(const Precision *p)
{
    return p->spec->entry->has_grads;
}

/* A scale of its own for what no earlier step has measured: in calibrate, and where there are no steps. */
static Status add_own_scale(Precision *p, Value *value, int number, Node *reader)
{
    Fp8OwnScaleAttrs attrs = {.dtype = DTYPE_TO_ATTR(p->scaled[number].dtype), .margin = p->options->margin};
    Value           *in[] = {value, scale_of(p, number)};
    Node            *node;
    pass_work_at(p->graph, reader);
    TRY(graph_add_node(p->graph, &op_fp8_own_scale, &attrs, arena_printf(p->graph->arena, "%s.scale", value->name), in, 2, ~0u, &node));
    node->flags |= reader->flags & NODE_BACKWARD;
    p->scale[number] = node->out[0];
    return OK;
}

static Status quantise(Precision *p, Value *value, int number, Node *reader, uint32_t want)
{
    Node *node;
    if (p->codes[value->id] || p->turned[value->id]) return OK;
    if (p->spec->entry->measures || p->options->own_scales) TRY(add_own_scale(p, value, number, reader));
    TRY(add_quantise(p, value, number, reader, is_training(p), want, &node));
    p->codes[value->id] = node->out[OUT_CODES];
    p->turned[value->id] = node->out[OUT_TURNED];
    return OK;
}

/* Lasting memory for a weight's codes. */
static Value *lasting_codes(Precision *p, const Value *weight, bool turned)
{
    ScaledTensor *scaled = &p->plan->scaled[p->operand[weight->id] - 1];
    const char  **name = turned ? &scaled->transposed : &scaled->codes;
    TensorType    type = type_make(scaled->dtype, 2, weight->type.dim[turned], weight->type.dim[!turned]);
    if (!*name) *name = arena_printf(p->plan->arena, "fp8.%s.%s", turned ? "transposed" : "codes", weight->name);
    bool   trained = layers_param(weight)->trained;
    Value *value = graph_add_value(p->graph, trained ? VALUE_STATE : VALUE_PARAM, *name, &type);
    value->layer = weight->layer;
    return value;
}

/* Codes of a frozen weight, which are there when the program begins. They take the place of the weight itself if no product reads that. */
static void use_frozen(Precision *p, Value *weight)
{
    ScaledTensor *scaled = &p->plan->scaled[p->operand[weight->id] - 1];
    if (!scaled->params) scaled->num_params = layers_list_params(p->plan->arena, weight, &scaled->params);
    if (p->codes_alone) {
        scaled->codes = scaled->name;
        weight->type.dtype = scaled->dtype;
        for (Value *member = weight->first_member; member; member = member->next_member) member->type.dtype = scaled->dtype;
        p->codes[weight->id] = weight;
    } else if (p->forward) {
        p->codes[weight->id] = lasting_codes(p, weight, false);
    }
    if (p->backward && is_training(p)) p->turned[weight->id] = lasting_codes(p, weight, true);
}

/* A program that only goes forward doesn't know whether the step's codes still stand for the weight: it makes its own. */
static Status quantise_weight(Precision *p, Value *weight, Node *reader)
{
    bool turned = p->backward && is_training(p);
    if (p->codes[weight->id] || p->turned[weight->id]) return OK;
    if (!layers_param(weight)->trained) {
        use_frozen(p, weight);
        return OK;
    }
    if (p->spec->adds) {
        if (p->forward) p->codes[weight->id] = lasting_codes(p, weight, false);
        if (turned) p->turned[weight->id] = lasting_codes(p, weight, true);
        return OK;
    }
    uint32_t want = (uint32_t)p->forward << OUT_CODES | (uint32_t)turned << OUT_TURNED;
    TRY(quantise(p, weight, p->operand[weight->id] - 1, reader, want));
    if (!is_training(p)) return OK;
    if (p->forward) value_place_in(p->codes[weight->id], lasting_codes(p, weight, false), 0);
    if (turned) value_place_in(p->turned[weight->id], lasting_codes(p, weight, true), 0);
    return OK;
}

/* ---- products ---- */

/* y = a b^T by their codes in place of what `node` makes. */
static Status add_product(Precision *p, Node *node, Value *const *in, double alpha)
{
    Value            *old = node->out[0];
    ScaledLinearAttrs attrs = {.alpha = alpha, .dtype = DTYPE_TO_ATTR(old->type.dtype), .fast = !(node->flags & NODE_BACKWARD)};
    Node             *product;
    pass_work_at(p->graph, node);
    TRY(graph_add_node(p->graph, &op_scaled_linear, &attrs, old->name, in, 6, ~0u, &product));
    product->flags |= node->flags & NODE_BACKWARD;
    p->operand[product->out[0]->id] = p->operand[old->id];
    if (old->sharing == STORAGE_HOME) value_place_in(product->out[0], old->storage, old->offset);
    graph_replace_uses(p->graph, old, product->out[0], NULL);
    graph_remove_node(p->graph, node);
    return OK;
}

static Status rewrite_forward(Precision *p, Node *node)
{
    Value *x = node->in[0], *w = node->in[1];
    int    of_x = p->operand[x->id] - 1, of_w = p->operand[w->id] - 1;
    bool   has_dw = is_training(p) && p->backward && layers_param(w)->trained;
    if (p->forward || has_dw) TRY(quantise(p, x, of_x, node, ~0u));
    if (p->forward || (is_training(p) && p->backward)) TRY(quantise_weight(p, w, node));
    if (!p->forward) return OK;
    pass_work_at(p->graph, node);
    Value *in[] = {p->codes[x->id], p->codes[w->id], scale_of(p, of_x), scale_of(p, of_w), node->in[2], NULL};
    return add_product(p, node, in, 1);
}

/* The number of dy. Layers whose outputs are added, as attention and MLP side by side, share it: it is the first reader's. */
static int gradient_of(Precision *p, const Value *dy, const Value *w)
{
    if (!p->operand[dy->id]) p->operand[dy->id] = p->gradient[w->id];
    return p->operand[dy->id] - 1;
}

static Status rewrite_dx(Precision *p, Node *node)
{
    Value *dy = node->in[0], *w = node->in[1];
    int    of_dy = gradient_of(p, dy, w);
    TRY(quantise(p, dy, of_dy, node, ~0u));
    Value *in[] = {p->codes[dy->id], p->turned[w->id], scale_of(p, of_dy), scale_of(p, p->operand[w->id] - 1), NULL, node->in[2]};
    return add_product(p, node, in, ((const LinearAttrs *)node->attrs)->alpha);
}

static Status rewrite_dw(Precision *p, Node *node, const Value *w)
{
    Value *dy = node->in[0], *x = node->in[1];
    int    of_dy = gradient_of(p, dy, w);
    TRY(quantise(p, dy, of_dy, node, ~0u));
    Value *in[] = {p->turned[dy->id], p->turned[x->id], scale_of(p, of_dy), scale_of(p, p->operand[x->id] - 1), NULL, node->in[2]};
    return add_product(p, node, in, ((const LinearAttrs *)node->attrs)->alpha);
}

static Status rewrite_all(Precision *p)
{
    for (Node *node = p->graph->first, *next; node; node = next) {
        const Value *w = layers_weight_of_dw(&p->layers, node);
        next = node->next;
        if (layers_is_forward(&p->layers, node))
            TRY(rewrite_forward(p, node));
        else if (p->backward && layers_is_dx(&p->layers, node))
            TRY(rewrite_dx(p, node));
        else if (p->backward && w)
            TRY(rewrite_dw(p, node, w));
    }
    return OK;
}

/* ---- calibrate ---- */

static Status measure(Precision *p, Value *value, int number, Node *reader)
{
    Node *node;
    if (p->measured[value->id]) return OK;
    p->measured[value->id] = 1;
    return add_quantise(p, value, number, reader, true, 0, &node);
}

/* Whether a product stays in the model's dtype, which a weight of which there are codes alone doesn't have. */
static bool is_measured(const Precision *p, const Value *weight)
{
    return layers_param(weight)->trained || !p->codes_alone;
}

static Status calibrate_node(Precision *p, Node *node)
{
    Value *w = layers_weight_of_dw(&p->layers, node), *read = node->in[0];
    if (layers_is_forward(&p->layers, node)) {
        w = node->in[1];
        if (!is_measured(p, w)) return rewrite_forward(p, node);
        if (layers_param(w)->trained) TRY(measure(p, w, p->operand[w->id] - 1, node));
        return measure(p, read, p->operand[read->id] - 1, node);
    }
    if (!p->backward || (!w && !layers_is_dx(&p->layers, node))) return OK;
    if (!w) w = node->in[1];
    return is_measured(p, w) ? measure(p, read, gradient_of(p, read, w), node) : rewrite_dx(p, node);
}

static Status calibrate_all(Precision *p)
{
    for (Node *node = p->graph->first, *next; node; node = next) {
        next = node->next;
        TRY(calibrate_node(p, node));
    }
    for (Node *node = p->graph->last, *prev; node; node = prev) {
        prev = node->prev;
        if (layers_weight_of_dw(&p->layers, node)) graph_remove_node(p->graph, node);
    }
    return OK;
}

/* A GPU whose rates are known has none where there are no units. */
static Status check_device(const DeviceFacts *facts)
{
    FAIL_IF(facts->gemm_flops[DT_BF16] > 0 && !(facts->gemm_flops[DT_E4M3] > 0), ERR_UNSUPPORTED,
            "%s has no FP8 units (GPUs from compute capability 8.9 on have them), which recipe: fp8-hybrid, matmul_dtype: e4m3 and "
            "gradient_dtype: e5m2 need; set recipe: bf16",
            facts->name);
    return OK;
}

static Status quantise_products(PassContext *context, Graph *graph)
{
    const PrecisionOptions *options = &context->options->precision;
    Precision               p = {.graph = graph, .options = options, .plan = context->plan, .spec = &context->program->spec};
    p.forward = options->forward == DT_E4M3;
    p.backward = options->backward == DT_E5M2;
    if (options->forward == DT_E2M1) return precision_nvfp4(context, graph);
    if (!p.forward && !(p.backward && is_training(&p))) return OK;
    TRY(precision_tiles(context, graph));
    bool trains = is_training(&p);
    for (int i = 0; i < context->options->num_programs; i++) trains = trains || entry_makes_steps(context->options->programs[i].entry);
    p.codes_alone = p.forward && (p.backward || !trains);
    layers_find(&p.layers, graph, options);
    start(&p);
    find_scaled(&p);
    if (!p.num_scaled) return OK;
    TRY(check_device(&context->plan->facts));
    TRY(tell_plan(&p));
    return p.spec->entry->measures ? calibrate_all(&p) : rewrite_all(&p);
}

Status pass_precision(PassContext *context, Graph **graph_ref)
{
    RecipeLayers layers;
    layers_find(&layers, *graph_ref, &context->options->precision);
    TRY(quantise_products(context, *graph_ref));
    return precision_floats(context, *graph_ref, &layers);
}
