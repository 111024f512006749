/* precision: products of the blocks' linear layers in FP8, with one scale a tensor (Micikevicius et al. 2022).
 *
 * Each operand is quantised by one node, however many products read it: the weight and the input of a layer to e4m3, the gradient of its
 * output to e5m2. Codes are made in both layouts, since a product reads its operands along their last axis. The backward pass keeps an
 * input's codes only, not the input.
 *
 * Scales are delayed: a step's scales follow from the largest magnitudes of earlier steps, which training programs record and the
 * optimizer's program makes scales from. Before the first step, program `calibrate` takes the place of earlier steps: it computes products
 * of trained weights in the model's dtype, makes no gradients of these weights, and records. Its measurements depend neither on scales nor
 * on how a step is divided into micro-batches. If only codes of a frozen weight exist, its products are in FP8 here too, and their inputs
 * get scales from their own values.
 *
 * Without a history (evaluation and generation of a folder) all weights are frozen, and each input has a scale of its own.
 *
 * Codes of a trained weight are made by a step's first program and last until the step's end. Codes of a frozen weight are made when it is
 * loaded, and the weight itself isn't kept. */
#include "passes/precision.h"

#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/operands.h"

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

enum { OUT_CODES, OUT_TURNED, OUT_AMAX }; /* outputs of fp8_quantise */
enum { OPERAND_CODES, OPERAND_SCALE };    /* parts of an operand */

typedef struct Fp8 {
    Precision    *p;
    bool          forward, backward; /* whether forward products, and whether backward products, are in FP8 */
    bool          codes_alone;       /* only codes are kept of frozen weights */
    ScaledTensor *scaled;
    Value       **scale, **now; /* latest versions, by scaled tensor. scale: its scale; now: its largest magnitude since the last step */
    int           num_scaled;
} Fp8;

static Operand *operand(const Fp8 *f, const Value *value)
{
    return &f->p->of[value->id];
}

static bool is_trained(const Value *weight)
{
    return layers_param(weight)->trained;
}

static int add_scaled(Fp8 *f, const Value *weight, const char *suffix, DType dtype)
{
    f->scaled[f->num_scaled++] = (ScaledTensor){.name = arena_printf(f->p->plan->arena, "%s%s", weight->name, suffix), .dtype = dtype};
    return f->num_scaled;
}

static Status number_product(void *context, const Product *product)
{
    Fp8         *f = context;
    const Value *w = product->weight;
    Operand     *of_x = operand(f, product->node->in[0]), *of_w = operand(f, w);
    if (product->kind != PRODUCT_Y) return OK;
    if (!of_x->number) of_x->number = add_scaled(f, w, ".x", DT_E4M3);
    if (of_w->number) return OK;
    of_w->number = add_scaled(f, w, "", DT_E4M3);
    if (f->backward) of_w->gradient = add_scaled(f, w, ".dy", DT_E5M2);
    return OK;
}

/* Numbers the scaled tensors in the order of the layers, which is the same in all programs. */
static Status find_scaled(Fp8 *f)
{
    int most = 1;
    for (const Node *node = f->p->graph->first; node; node = node->next) most += node->op == &op_linear ? 3 : 0;
    f->scaled = arena_array(f->p->plan->arena, ScaledTensor, most);
    f->scale = arena_array(f->p->graph->arena, Value *, most);
    f->now = arena_array(f->p->graph->arena, Value *, most);
    return layers_walk(&f->p->layers, number_product, f);
}

/* Gives the plan the scaled tensors, or checks that earlier programs gave it the same. */
static Status tell_plan(const Fp8 *f)
{
    Plan *plan = f->p->plan;
    if (!plan->scaled) {
        plan->scaled = f->scaled;
        plan->num_scaled = f->num_scaled;
    }
    bool same = plan->num_scaled == f->num_scaled;
    for (int i = 0; same && i < f->num_scaled; i++) same = strcmp(plan->scaled[i].name, f->scaled[i].name) == 0;
    FAIL_IF(!same, ERR_INTERNAL, "precision: program %s has other scaled tensors than the one before it", program_spec_name(f->p->spec));
    return OK;
}

/* Element `number` (if width is 1), else row `number`, of a value that all programs share. */
static Value *part_of(const Fp8 *f, const char *name, int number, const char *prefix, int64_t width, Value **slot)
{
    Graph     *graph = f->p->graph;
    TensorType all = type_make(DT_F32, width > 1 ? 2 : 1, (int64_t)f->num_scaled, width), one = type_make(DT_F32, 1, width);
    if (*slot) return *slot;
    Value *whole = graph_find(graph, name);
    if (!whole) whole = graph_add_value(graph, VALUE_STATE, name, &all);
    whole->layer = -1;
    *slot = graph_add_value(graph, VALUE_STATE, arena_printf(graph->arena, "%s.%s", prefix, f->scaled[number].name), &one);
    value_place_in(*slot, whole, number * width);
    return *slot;
}

/* The latest version of a tensor's scale. */
static Value *scale_of(const Fp8 *f, int number)
{
    return part_of(f, PRECISION_SCALES, number, "fp8.scale", 4, &f->scale[number]);
}

/* ---- codes ---- */

/* Adds before `reader` a node that quantises `value` or, with want 0, only measures it. The node is dropped and recomputed together with
 * the node that makes `value`. */
static Status add_quantise(const Fp8 *f, Value *value, const Node *reader, bool record, uint32_t want, Node **out)
{
    Graph           *graph = f->p->graph;
    int              number = operand(f, value)->number - 1;
    Fp8QuantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(f->scaled[number].dtype)};
    operands_work_at(f->p, value, reader);
    Value *now = record ? part_of(f, PRECISION_NOW, number, "fp8.now", 1, &f->now[number]) : NULL;
    Value *in[] = {value, scale_of(f, number), now};
    if (record) want |= 1u << OUT_AMAX;
    TRY(graph_add_node(graph, &op_fp8_quantise, &attrs, arena_printf(graph->arena, "%s.codes", value->name), in, 3, want, out));
    (*out)->flags |= reader->flags & NODE_BACKWARD;
    if (record) f->now[number] = (*out)->out[OUT_AMAX];
    return OK;
}

static bool is_training(const Fp8 *f)
{
    return f->p->spec->entry->has_grads;
}

/* Makes a scale from a value's own elements if no earlier step measured the value: in calibrate, and without a history. */
static Status add_own_scale(const Fp8 *f, Value *value, Node *reader)
{
    Graph           *graph = f->p->graph;
    int              number = operand(f, value)->number - 1;
    Fp8OwnScaleAttrs attrs = {.dtype = DTYPE_TO_ATTR(f->scaled[number].dtype), .margin = f->p->options->precision.margin};
    Value           *in[] = {value, scale_of(f, number)};
    Node            *node;
    pass_work_at(graph, reader);
    TRY(graph_add_node(graph, &op_fp8_own_scale, &attrs, arena_printf(graph->arena, "%s.scale", value->name), in, 2, ~0u, &node));
    node->flags |= reader->flags & NODE_BACKWARD;
    f->scale[number] = node->out[0];
    return OK;
}

static bool has_codes(const Operand *of)
{
    return of->along[OPERAND_CODES] || of->turned[OPERAND_CODES];
}

static Status quantise(const Fp8 *f, Value *value, Node *reader, uint32_t want)
{
    Operand *of = operand(f, value);
    Node    *node;
    if (has_codes(of)) return OK;
    if (f->p->spec->entry->measures || f->p->options->precision.own_scales) TRY(add_own_scale(f, value, reader));
    TRY(add_quantise(f, value, reader, is_training(f), want, &node));
    of->along[OPERAND_CODES] = node->out[OUT_CODES];
    of->turned[OPERAND_CODES] = node->out[OUT_TURNED];
    return OK;
}

/* The lasting value of a weight's codes or, turned, of its transpose's codes. */
static Value *lasting_codes(const Fp8 *f, const Value *weight, bool turned)
{
    ScaledTensor *scaled = &f->p->plan->scaled[operand(f, weight)->number - 1];
    const char  **name = turned ? &scaled->transposed : &scaled->codes;
    TensorType    type = type_make(scaled->dtype, 2, weight->type.dim[turned], weight->type.dim[!turned]);
    if (!*name) *name = arena_printf(f->p->plan->arena, "fp8.%s.%s", turned ? "transposed" : "codes", weight->name);
    return operands_lasting(f->p, weight, *name, &type);
}

/* Uses the codes of a frozen weight, which exist before the program begins. If no product reads the weight itself, the codes take its
 * place. */
static void use_frozen(const Fp8 *f, Value *weight)
{
    Operand      *of = operand(f, weight);
    ScaledTensor *scaled = &f->p->plan->scaled[of->number - 1];
    if (!scaled->params) scaled->num_params = operands_list_params(f->p, weight, &scaled->params);
    if (f->codes_alone) {
        scaled->codes = scaled->name;
        operands_become_codes(weight, scaled->dtype);
        of->along[OPERAND_CODES] = weight;
    } else if (f->forward) {
        of->along[OPERAND_CODES] = lasting_codes(f, weight, false);
    }
    if (f->backward && is_training(f)) of->turned[OPERAND_CODES] = lasting_codes(f, weight, true);
}

/* Makes or finds the codes of a weight. A program without a backward pass can't know whether the step's codes still stand for the weight:
 * it makes its own. */
static Status quantise_weight(const Fp8 *f, Value *weight, Node *reader)
{
    bool     wanted[] = {f->forward, f->backward && is_training(f)}, is_made = f->p->spec->adds;
    Operand *of = operand(f, weight);
    if (has_codes(of)) return OK;
    if (!is_trained(weight)) {
        use_frozen(f, weight);
        return OK;
    }
    if (!is_made) TRY(quantise(f, weight, reader, (uint32_t)wanted[0] << OUT_CODES | (uint32_t)wanted[1] << OUT_TURNED));
    for (int turned = 0; turned < 2 && is_training(f); turned++) {
        Value **codes = turned ? &of->turned[OPERAND_CODES] : &of->along[OPERAND_CODES];
        if (!wanted[turned]) continue;
        if (is_made)
            *codes = lasting_codes(f, weight, turned);
        else
            value_place_in(*codes, lasting_codes(f, weight, turned), 0);
    }
    return OK;
}

/* ---- products ---- */

static Status multiply(const Fp8 *f, const Product *product)
{
    static const OperandFormat format = {&op_scaled_linear, 2, .fast = true};
    int                        number = operand(f, product->node->out[0])->number;
    Value                     *made;
    for (int i = 0; i < 2; i++) {
        Operand *of = operand(f, product->node->in[i]);
        of->along[OPERAND_SCALE] = of->turned[OPERAND_SCALE] = scale_of(f, of->number - 1);
    }
    TRY(operands_multiply(f->p, product, &format, &made));
    operand(f, made)->number = number;
    return OK;
}

/* Numbers dy. Layers whose outputs are added, such as attention and MLP side by side, share one dy: it gets the first reader's number. */
static void number_gradient(const Fp8 *f, const Product *product)
{
    Operand *of = operand(f, product->node->in[0]);
    if (!of->number) of->number = operand(f, product->weight)->gradient;
}

static Status rewrite(void *context, const Product *product)
{
    const Fp8 *f = context;
    Node      *node = product->node;
    Value     *w = product->weight;
    bool       goes_back = f->backward && is_training(f);
    if (product->kind == PRODUCT_Y) {
        if (f->forward || (goes_back && is_trained(w))) TRY(quantise(f, node->in[0], node, ~0u));
        if (f->forward || goes_back) TRY(quantise_weight(f, w, node));
        return f->forward ? multiply(f, product) : OK;
    }
    if (!f->backward) return OK;
    number_gradient(f, product);
    TRY(quantise(f, node->in[0], node, ~0u));
    return multiply(f, product);
}

/* ---- calibrate ---- */

static Status measure(const Fp8 *f, Value *value, const Node *reader)
{
    Node *node;
    if (operand(f, value)->is_measured) return OK;
    operand(f, value)->is_measured = true;
    return add_quantise(f, value, reader, true, 0, &node);
}

/* Measures a product's operands. A product with a weight of which only codes exist can't run in the model's dtype: it is rewritten. */
static Status calibrate(void *context, const Product *product)
{
    const Fp8 *f = context;
    Value     *w = product->weight, *read = product->node->in[0];
    bool       is_y = product->kind == PRODUCT_Y;
    if (!is_trained(w) && f->codes_alone) return rewrite(context, product);
    if (!is_y && !f->backward) return OK;
    if (is_y && is_trained(w)) TRY(measure(f, w, product->node));
    if (!is_y) number_gradient(f, product);
    return measure(f, read, product->node);
}

static Status calibrate_all(Fp8 *f)
{
    Graph *graph = f->p->graph;
    Value *weight;
    TRY(layers_walk(&f->p->layers, calibrate, f));
    for (Node *node = graph->last, *prev; node; node = prev) {
        prev = node->prev;
        if (layers_kind(&f->p->layers, node, &weight) == PRODUCT_DW) graph_remove_node(graph, node);
    }
    return OK;
}

/* A GPU whose rates are known, but not the FP8 rate, has no FP8 units. */
static Status check_device(const DeviceFacts *facts)
{
    FAIL_IF(facts->gemm_flops[DT_BF16] > 0 && !(facts->gemm_flops[DT_E4M3] > 0), ERR_UNSUPPORTED,
            "%s has no FP8 units (GPUs from compute capability 8.9 on have them), which recipe: fp8-hybrid, matmul_dtype: e4m3 and "
            "gradient_dtype: e5m2 need; set recipe: bf16",
            facts->name);
    return OK;
}

static Status precision_fp8(Precision *p)
{
    const PrecisionOptions *options = &p->options->precision;
    Fp8                     f = {.p = p, .forward = options->forward == DT_E4M3, .backward = options->backward == DT_E5M2};
    bool                    trains = is_training(&f);
    if (!f.forward && !(f.backward && trains)) return OK;
    TRY(precision_tiles(p));
    for (int i = 0; i < p->options->num_programs; i++) trains = trains || entry_makes_steps(p->options->programs[i].entry);
    f.codes_alone = f.forward && (f.backward || !trains);
    operands_start(p);
    TRY(find_scaled(&f));
    if (!f.num_scaled) return OK;
    TRY(check_device(&p->plan->facts));
    TRY(tell_plan(&f));
    return p->spec->entry->measures ? calibrate_all(&f) : layers_walk(&p->layers, rewrite, &f);
}

Status pass_precision(PassContext *context, Graph **graph)
{
    Precision p = {.graph = *graph, .options = context->options, .plan = context->plan, .spec = &context->program->spec};
    layers_find(&p.layers, p.graph, &p.options->precision);
    TRY(p.options->precision.forward == DT_E2M1 ? precision_nvfp4(&p) : precision_fp8(&p));
    return precision_floats(&p);
}
