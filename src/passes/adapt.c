/* adapt: LoRA (Hu et al. 2021). Each target linear y = x W^T becomes y + (alpha / r) dropout(x) A^T B^T, with rsLoRA (Kalajdzievski 2023)
 * alpha / sqrt(r). With DoRA (Liu et al. 2024) the rows of W + s B A get trained lengths. The base is frozen: to later passes this only
 * shows as parameters that aren't trained. Where rows choose among several adapters, the A matrices of all are stacked into one, and op
 * lora_rows adds each row's own adapter. */
#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/adapt_tokens.h"
#include "passes/adapt_whole.h"
#include "passes/pass.h"
#include "passes/peft_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As in PEFT, a target is the module's own name, a suffix of its path, or the whole path. */
static bool target_matches(const char *target, const char *module)
{
    size_t path = strlen(module), name = strlen(target);
    if (name > path || strcmp(module + path - name, target) != 0) return false;
    return name == path || module[path - name - 1] == '.';
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const LoraModule *)a)->path, ((const LoraModule *)b)->path);
}

const LoraModule *lora_find_module(const LoraOptions *lora, const char *path)
{
    LoraModule key = {.path = path};
    return lora->num_modules ? bsearch(&key, lora->modules, (size_t)lora->num_modules, sizeof key, by_path) : NULL;
}

double lora_scale(const LoraOptions *lora, int64_t r, double alpha)
{
    return alpha / (lora->use_rslora ? sqrt((double)r) : (double)r);
}

static bool is_left_out(const LoraOptions *lora, const char *module)
{
    for (int i = 0; i < lora->num_left_out; i++)
        if (strcmp(lora->left_out[i], module) == 0) return true;
    return false;
}

bool lora_has_target(const LoraOptions *lora, const Param *param, char *matched)
{
    if (!param->is_linear || !param->module || param->ns) return false;
    bool found = false;
    if (lora->num_modules) return lora_find_module(lora, param->module) != NULL;
    for (int i = 0; i < lora->num_targets; i++) {
        bool all = strcmp(lora->targets[i], "all-linear") == 0;
        if (all ? param->is_head || is_left_out(lora, param->module) : !target_matches(lora->targets[i], param->module)) continue;
        if (matched) matched[i] = 1;
        found = true;
    }
    return found;
}

const Node *lora_other_reader(const Graph *graph, const Param *param)
{
    const Value *value = param->untied ? NULL : graph_find(graph, param->name);
    const Node  *first = NULL;
    for (const Use *use = value ? value->first_use : NULL; use; use = use->next) {
        if (!use->node || (use->node->op == &op_linear && use->index == 1)) continue;
        if (!first || node_precedes(use->node, first)) first = use->node;
    }
    return first;
}

/* Finds or adds a parameter beside the weight, stored in files as `tensor` (PEFT_TENSOR, ...). All nodes that read the weight share this
 * parameter. */
static Value *add_param(Graph *graph, const Param *base, const char *suffix, const char *tensor, TensorType type, InitKind init)
{
    const char *name = arena_printf(graph->arena, "%s.%s", base->name, suffix);
    Value      *made = graph_find(graph, name);
    if (made && made->param && made->param->is_adapter) return made;
    Param *param = arena_new(graph->arena, Param);
    param->name = name;
    param->type = type;
    param->hf.num_names = 1;
    param->hf.names = arena_array(graph->arena, const char *, 1);
    param->hf.names[0] = tensor;
    param->module = base->module;
    param->decay = param->trained = param->is_adapter = true;
    param->layer = base->layer;
    param->init = init;
    return graph_add_param(graph, param);
}

/* Adds matrix A or B of the weight's adapter. half: PEFT_A or PEFT_B. */
static Value *add_adapter(Graph *graph, const Param *base, const char *half, int64_t rows, int64_t cols, InitKind init)
{
    const char *tensor = arena_printf(graph->arena, PEFT_TENSOR, base->module, half);
    Value      *value = add_param(graph, base, half, tensor, type_make(base->type.dtype, 2, rows, cols), init);
    value->param->init_std = 1.0f / sqrtf((float)cols); /* Kaiming uniform with a = sqrt(5), as in PEFT */
    return value;
}

/* site: the name that chooses which elements are dropped. */
static Status drop(Graph *graph, const char *name, const char *site, double p, Value *x, Value **out)
{
    DropoutAttrs attrs = {.p = p, .site = (int64_t)philox_name_key(site)};
    Value       *in[] = {x, graph_find(graph, "doc_id"), graph_find(graph, "positions"), graph_find(graph, "step")};
    return pass_add(graph, &op_dropout, &attrs, arena_printf(graph->arena, "%s.lora_dropout", name), in, 4, out);
}

/* *out = y + scale x A^T B^T. */
static Status add_pair(Graph *graph, const char *name, Value *y, Value *x, Value *a, Value *b, double scale, Value **out)
{
    LinearAttrs attrs = {.alpha = scale};
    Value      *down_in[] = {x, a}, *up_in[] = {y, NULL, b};
    TRY(pass_add(graph, &op_linear, NULL, arena_printf(graph->arena, "%s.lora_down", name), down_in, 2, &up_in[1]));
    return pass_add(graph, &op_linear_add, &attrs, arena_printf(graph->arena, "%s.lora", name), up_in, 3, out);
}

/* ---- DoRA ---- */

/* DoRA's lengths of the weight's rows, in f32: a step changes them by less than bf16 resolves. */
static Value *add_magnitude(Graph *graph, const Param *base)
{
    const char *tensor = arena_printf(graph->arena, PEFT_MAGNITUDE, base->module);
    return add_param(graph, base, "lora_magnitude", tensor, type_make(DT_F32, 1, base->type.dim[0]), INIT_NORMS);
}

/* The base's part that no adapter changes, as in PEFT: W (x - dropped) + bias, where `dropped` is x after dropout. */
static Status add_rest(Graph *graph, const Node *linear, Value *dropped, Value **out)
{
    const char *name = linear->out[0]->name;
    Value      *in[] = {linear->in[0], dropped}, *rest_in[] = {NULL, linear->in[1], linear->in[2]};
    TRY(pass_add(graph, &op_sub, NULL, arena_printf(graph->arena, "%s.dora_kept", name), in, 2, &rest_in[0]));
    return pass_add(graph, &op_linear, linear->attrs, arena_printf(graph->arena, "%s.dora_rest", name), rest_in, 3, out);
}

/* Replaces the linear layer y = x W^T + bias: *out = (x W^T + scale x A^T B^T) m / |W + scale B A| + bias; |.| is the norm of each row. */
static Status wrap_dora(Graph *graph, Node *linear, Value *x, Value *a, Value *b, double scale, Value **out)
{
    const char *name = linear->out[0]->name;
    Value      *w = linear->in[1], *bias = linear->in[2], *rest = NULL, *product_in[] = {x, w}, *norm_in[] = {w, a, b}, *y;
    LinearAttrs attrs = {.alpha = scale};
    if (x != linear->in[0]) {
        TRY(add_rest(graph, linear, x, &rest));
        bias = NULL;
    }
    TRY(pass_add(graph, &op_linear, linear->attrs, arena_printf(graph->arena, "%s.dora_base", name), product_in, 2, &y));
    TRY(add_pair(graph, name, y, x, a, b, scale, &y));
    Value *in[] = {y, add_magnitude(graph, w->param), NULL, bias};
    TRY(pass_add(graph, &op_dora_norm, &attrs, arena_printf(graph->arena, "%s.dora_norm", name), norm_in, 3, &in[2]));
    TRY(pass_add(graph, &op_dora, NULL, arena_printf(graph->arena, "%s.dora", name), in, 4, out));
    Value *sum_in[] = {*out, rest};
    return rest ? pass_add(graph, &op_add, NULL, arena_printf(graph->arena, "%s.dora_sum", name), sum_in, 2, out) : OK;
}

/* Readers of y after the linear layer read `wrapped` instead; `wrapped` itself still reads y, the plain result. */
static void put_behind(Graph *graph, Node *after, Value *y, Value *wrapped)
{
    graph_replace_uses(graph, y, wrapped, after);
    node_set_input(wrapped->producer, 0, y);
}

static void work_behind(Graph *graph, const Node *linear)
{
    graph->cursor = linear->next;
    graph->layer = linear->layer;
    graph->part = linear->part;
}

static Status wrap(Graph *graph, Node *linear, const LoraOptions *lora, bool training)
{
    Value            *x = linear->in[0], *w = linear->in[1], *y = linear->out[0], *wrapped;
    const Param      *base = w->param;
    const LoraModule *module = lora_find_module(lora, base->module), of_all = {.r = lora->r, .alpha = lora->alpha};
    if (!module) module = &of_all;
    FAIL_IF(base->is_whole, ERR_INVALID,
            "%s is trained whole (lora_modules_to_save), and lora_target_modules names it; expected one of the two", base->module);
    bool   is_normal = lora->init == LORA_GAUSSIAN;
    int    before = graph->num_params;
    Value *a = add_adapter(graph, base, PEFT_A, module->r, type_cols(&w->type), is_normal ? INIT_NORMAL : INIT_UNIFORM);
    Value *b = add_adapter(graph, base, PEFT_B, w->type.dim[0], module->r, INIT_ZEROS);
    Node  *after = linear->next;
    if (is_normal) a->param->init_std = 1.0f / (float)module->r;
    work_behind(graph, linear);
    const char *site = graph->num_params > before ? base->name : y->name; /* each further reader of a weight has its own dropout mask */
    if (training && lora->dropout > 0) TRY(drop(graph, y->name, site, lora->dropout, x, &x));
    double scale = lora_scale(lora, module->r, module->alpha);
    if (lora->use_dora) {
        TRY(wrap_dora(graph, linear, x, a, b, scale, &wrapped));
        graph_replace_uses(graph, y, wrapped, after);
        graph_remove_node(graph, linear);
        return OK;
    }
    TRY(add_pair(graph, y->name, y, x, a, b, scale, &wrapped));
    put_behind(graph, after, y, wrapped);
    return OK;
}

/* ---- adapters that rows choose among ---- */

enum { RANK_MULTIPLE = 8 }; /* kernels read at least pairs of bf16 */

/* The rank that all adapters are padded to: the same in all layers, so that adapters of one input become one op (fuse). */
static int64_t rank_room(const CompileOptions *options)
{
    int64_t most = 0;
    for (int a = 0; a < options->num_row_adapters; a++) {
        const LoraOptions *lora = &options->row_adapters[a];
        if (!lora->num_modules && lora->r > most) most = lora->r;
        for (int i = 0; i < lora->num_modules; i++)
            if (lora->modules[i].r > most) most = lora->modules[i].r;
    }
    return (most + RANK_MULTIPLE - 1) / RANK_MULTIPLE * RANK_MULTIPLE;
}

/* Finds each adapter's rank and scale for the weight; rank 0: the adapter leaves the weight alone. False: every adapter leaves it alone. */
static bool find_ranks(const PassContext *context, const Param *param, LoraRowsAttrs *attrs)
{
    const CompileOptions *options = context->options;
    bool                  is_adapted = false;
    attrs->ranks.count = attrs->scales.count = options->num_row_adapters;
    for (int a = 0; a < options->num_row_adapters; a++) {
        const LoraOptions *lora = &options->row_adapters[a];
        LoraModule         own = {.r = lora->r, .alpha = lora->alpha};
        if (!lora_has_target(lora, param, NULL)) continue;
        if (lora->num_modules) own = *lora_find_module(lora, param->module);
        attrs->ranks.values[a] = (double)own.r;
        attrs->scales.values[a] = lora_scale(lora, own.r, own.alpha);
        is_adapted = true;
    }
    return is_adapted;
}

/* *out: the input that holds each row's choice of adapter. Refuses layers whose rows aren't the program's rows: rows sorted by expert, for
 * example, belong to several sequences. */
static Status row_adapters(const PassContext *context, Graph *graph, const Node *linear, Value **out)
{
    const ProgramSpec *spec = &context->program->spec;
    const TensorType  *x = &linear->in[0]->type;
    char               text[64];
    FAIL_IF(x->ndim != 3 || x->dim[0] != spec->batch || (x->dim[1] != spec->seq && x->dim[1] != 1), ERR_UNSUPPORTED,
            "%s reads %s, which aren't the rows of the batch: adapters that rows choose need that; decode with one adapter at a time",
            linear->in[1]->param->module, type_text(x, text));
    *out = graph_find(graph, feed_info(FEED_ADAPTERS)->name);
    if (!*out) *out = graph_add_feed(graph, FEED_ADAPTERS, spec->batch, 1);
    return OK;
}

static Status wrap_rows(const PassContext *context, Graph *graph, Node *linear)
{
    Value         *x = linear->in[0], *w = linear->in[1], *y = linear->out[0], *wrapped;
    LoraRowsAttrs *attrs = arena_new(context->arena, LoraRowsAttrs);
    int64_t        r = rank_room(context->options), count = context->options->num_row_adapters;
    if (!find_ranks(context, w->param, attrs)) return OK;
    Value *down_in[] = {x, NULL}, *up_in[] = {y, NULL, NULL, NULL};
    attrs->rows[0] = w->type.dim[0];
    TRY(row_adapters(context, graph, linear, &up_in[3]));
    down_in[1] = add_adapter(graph, w->param, PEFT_A, count * r, type_cols(&w->type), INIT_UNIFORM);
    up_in[2] = add_adapter(graph, w->param, PEFT_B, count * w->type.dim[0], r, INIT_ZEROS);
    Node *after = linear->next;
    work_behind(graph, linear);
    TRY(pass_add(graph, &op_linear, NULL, arena_printf(graph->arena, "%s.lora_down", y->name), down_in, 2, &up_in[1]));
    TRY(pass_add(graph, &op_lora_rows, attrs, arena_printf(graph->arena, "%s.lora", y->name), up_in, 4, &wrapped));
    put_behind(graph, after, y, wrapped);
    return OK;
}

bool adapt_wraps(const PassContext *context, const Param *param)
{
    const LoraOptions *lora = &context->options->lora;
    LoraRowsAttrs      of_rows = {0};
    if (context->options->num_row_adapters) return context->program->spec.entry->is_cached && find_ranks(context, param, &of_rows);
    return lora->enabled && lora_has_target(lora, param, NULL);
}

/* Programs without a cache get no adapters. */
static Status adapt_rows(const PassContext *context, Graph *graph)
{
    FAIL_IF(context->options->lora.enabled, ERR_INTERNAL, "adapters that rows choose stand beside one that all have");
    FAIL_IF(context->options->num_row_adapters > LORA_MOST_ADAPTERS, ERR_INVALID, "%d adapters; expected at most %d",
            context->options->num_row_adapters, LORA_MOST_ADAPTERS);
    for (Node *node = graph->first, *next; node && context->program->spec.entry->is_cached; node = next) {
        next = node->next;
        if (node->op == &op_linear && node->in[1]->param) TRY(wrap_rows(context, graph, node));
    }
    return OK;
}

/* ---- the pass ---- */

static int compare_modules(const void *a, const void *b)
{
    return strcmp((*(const Param *const *)a)->module, (*(const Param *const *)b)->module);
}

/* Files of adapters name a weight by its module alone, so no two targets may share a module. */
static Status check_modules(const PassContext *context, const Graph *graph, const LoraOptions *lora)
{
    const Param **targets = arena_array(context->arena, const Param *, graph->num_params + 1);
    size_t        count = 0;
    for (int i = 0; i < graph->num_params; i++)
        if (lora_has_target(lora, graph->params[i], NULL)) targets[count++] = graph->params[i];
    qsort(targets, count, sizeof *targets, compare_modules);
    for (size_t i = 1; i < count; i++)
        FAIL_IF(
            strcmp(targets[i - 1]->module, targets[i]->module) == 0, ERR_INVALID,
            "%s: %s and %s are both the weight of module %s, and files of adapters name a weight by its module; give each a \"module\" of "
            "its own",
            context->file, targets[i - 1]->name, targets[i]->name, targets[i]->module);
    return OK;
}

static Status unmatched(const Graph *graph, const char *target)
{
    StrBuf      known = {0};
    const char *names[64];
    int         num = 0;
    for (int i = 0; i < graph->num_params; i++) {
        const Param *p = graph->params[i];
        if (!p->is_linear || !p->module || p->ns || num == 64 || lora_other_reader(graph, p)) continue;
        const char *dot = strrchr(p->module, '.');
        const char *name = dot ? dot + 1 : p->module;
        int         k = 0;
        while (k < num && strcmp(names[k], name) != 0) k++;
        if (k == num) names[num++] = name;
    }
    for (int i = 0; i < num; i++) strbuf_printf(&known, "%s%s", i ? ", " : "", names[i]);
    if (!num) strbuf_puts(&known, "none: no weight of its IR has \"linear\": true");
    Status status = status_fail(ERR_INVALID, "lora_target_modules: \"%s\" matches no linear layer of this model; it has %s%s", target,
                                strbuf_cstr(&known), num ? " (or all-linear)" : "");
    strbuf_deinit(&known);
    return status;
}

/* Whether some program has gradients. Without any, trained rows of tokens are written into the matrix when loaded
 * (weights_load_adapter). */
static bool trains(const CompileOptions *options)
{
    bool has_grads = false;
    for (int i = 0; i < options->num_programs; i++) has_grads |= options->programs[i].entry->has_grads;
    return has_grads;
}

Status pass_adapt(PassContext *context, Graph **graph)
{
    const LoraOptions *lora = &context->options->lora;
    if (context->options->num_row_adapters) return adapt_rows(context, *graph);
    if (!lora->enabled) return OK;
    FAIL_IF(lora->r < 1, ERR_INVALID, "lora_rank: %lld; expected at least 1", (long long)lora->r);
    FAIL_IF(!(lora->dropout >= 0 && lora->dropout < 1), ERR_INVALID, "lora_dropout: %g; expected 0 <= p < 1", lora->dropout);
    TRY(check_modules(context, *graph, lora));
    TRY(whole_mark(*graph, lora));
    bool  training = context->program->spec.entry->has_grads;
    char *matched = arena_alloc(context->arena, (size_t)lora->num_targets + 1);
    for (Node *node = (*graph)->first, *next; node; node = next) {
        next = node->next;
        if (node->op == &op_linear && node->in[1]->param && lora_has_target(lora, node->in[1]->param, matched))
            TRY(wrap(*graph, node, lora, training));
    }
    for (int i = 0; i < lora->num_targets && !lora->num_modules; i++)
        if (!matched[i]) return unmatched(*graph, lora->targets[i]);
    return trains(context->options) ? tokens_replace(*graph, lora) : OK;
}
