/* Trained rows of tokens are a parameter with one row for each id, which start with the base's values. Op replace_rows puts these rows into
 * a copy of the matrix. */
#include "passes/adapt_tokens.h"

#include "ops/ops.h"
#include "passes/adapt_whole.h"
#include "passes/pass.h"
#include "passes/peft_names.h"

#include <string.h>

bool tokens_is_vocabulary(const Graph *graph, const Param *param)
{
    if (param->ns || param->type.ndim != 2) return false;
    if (param->is_head) return true;
    const Value *value = graph_find(graph, param->name);
    bool         is_table = false, fits = false;
    for (const Use *use = value ? value->first_use : NULL; use; use = use->next) is_table |= use->node && use->node->op == &op_embedding;
    for (int i = 0; i < graph->num_params && is_table; i++)
        fits |= graph->params[i]->is_head && graph->params[i]->type.dim[0] == param->type.dim[0];
    return fits;
}

/* Whether the list is for this parameter. A list without a module is for the embedding's matrix, even if the head shares it, but not for a
 * head with a matrix of its own. */
static bool is_meant(const LoraTokens *list, const Param *param, const char *path)
{
    if (!path) return false;
    if (!list->module) return !param->is_head || param->untied;
    LoraOptions one = {.num_whole = 1, .whole = &list->module};
    return whole_has(&one, path, NULL);
}

Param *tokens_param(const Graph *graph, const LoraTokens *list, const char **out_path)
{
    for (int i = 0; i < graph->num_params; i++) {
        *out_path = whole_path(graph->arena, graph->params[i]);
        if (tokens_is_vocabulary(graph, graph->params[i]) && is_meant(list, graph->params[i], *out_path)) return graph->params[i];
    }
    return NULL;
}

static Value *add_rows(Graph *graph, const Param *base, const LoraTokens *list, const char *path)
{
    Param *param = arena_new(graph->arena, Param);
    param->name = arena_printf(graph->arena, "%s.tokens", base->name);
    param->type = type_make(base->type.dtype, 2, (int64_t)list->num, base->type.dim[1]);
    param->hf = (HfSource){.kind = HF_ROWS, .num_names = 1, .names = base->hf.names, .rows = list->num, .ids = list->ids};
    param->saved = (HfSource){.num_names = 1, .names = arena_array(graph->arena, const char *, 1)};
    param->saved.names[0] = arena_printf(graph->arena, TOKENS_TENSOR, path);
    param->decay = param->trained = param->is_adapter = param->is_whole = true;
    param->layer = -1;
    param->init = base->init;
    param->init_std = base->init_std;
    return graph_add_param(graph, param);
}

/* Refuses rows of a tied model's embedding whose head is trained whole: PEFT can't read such an adapter. */
static Status check_head(const Graph *graph, const Param *param, const char *path)
{
    for (int i = 0; i < graph->num_params && !param->is_head; i++) {
        const Param *other = graph->params[i];
        FAIL_IF(other->is_head && other->is_whole && strcmp(other->hf.names[0], param->hf.names[0]) == 0, ERR_UNSUPPORTED,
                "trainable_token_indices: rows of %s beside an output head that is trained whole, of a model in which both are one matrix; "
                "name both in lora_modules_to_save, or neither",
                path);
    }
    return OK;
}

static Status check_ids(const LoraTokens *list, const Param *param, const char *path)
{
    FAIL_IF(param->hf.kind != HF_WHOLE || param->is_whole, ERR_UNSUPPORTED,
            "trainable_token_indices: %s is trained whole (lora_modules_to_save), or isn't one tensor", path);
    for (int i = 0; i < list->num; i++) {
        FAIL_IF(list->ids[i] < 0 || list->ids[i] >= param->type.dim[0], ERR_INVALID, "trainable_token_indices: %lld; %s has rows 0 to %lld",
                (long long)list->ids[i], path, (long long)param->type.dim[0] - 1);
        for (int k = 0; k < i; k++)
            FAIL_IF(list->ids[k] == list->ids[i], ERR_INVALID, "trainable_token_indices: %lld stands there twice", (long long)list->ids[i]);
    }
    return OK;
}

/* The tied embedding that the list names by the path of its head; NULL: none. */
static const Param *tied_param(const Graph *graph, const LoraTokens *list)
{
    LoraOptions one = {.num_whole = 1, .whole = &list->module};
    for (int i = 0; i < graph->num_params && list->module; i++)
        if (whole_has(&one, whole_head_path(graph->arena, graph->params[i]), NULL)) return graph->params[i];
    return NULL;
}

static bool same_ids(const LoraTokens *a, const LoraTokens *b)
{
    return a->num == b->num && memcmp(a->ids, b->ids, (size_t)a->num * sizeof *a->ids) == 0;
}

/* Accepts a list for a tied head if, as in PEFT, the embedding has a list of the same ids. The head's list then adds nothing. */
static Status check_tied(const Graph *graph, const LoraOptions *lora, const LoraTokens *list)
{
    const char  *name = list->module ? list->module : "", *path;
    const Param *tied = tied_param(graph, list);
    FAIL_IF(!tied, ERR_INVALID, "trainable_token_modules: \"%s\" is no embedding or output head of this model", name);
    for (int i = 0; i < lora->num_tokens; i++)
        if (tokens_param(graph, &lora->tokens[i], &path) == tied && same_ids(&lora->tokens[i], list)) return OK;
    FAIL(ERR_INVALID, "trainable_token_modules: \"%s\" is the embedding in this model; name that, with the same ids: %s", name,
         whole_path(graph->arena, tied));
}

static Status replace(Graph *graph, const LoraOptions *lora, const LoraTokens *list)
{
    const char *path;
    Param      *param = tokens_param(graph, list, &path);
    if (!param) return check_tied(graph, lora, list);
    TRY(check_head(graph, param, path));
    TRY(check_ids(list, param, path));
    FAIL_IF(graph_find(graph, arena_printf(graph->arena, "%s." PEFT_A, param->name)), ERR_INVALID,
            "%s has an adapter (lora_target_modules) and trained rows (trainable_token_indices): expected one of the two", path);
    Value     *whole = graph_find(graph, param->name), *replaced;
    Node      *first = graph->first;
    TensorType type = type_make(DT_I64, 1, (int64_t)list->num);
    while (first && !((first->op == &op_embedding || first->op == &op_linear) && first->in[1] == whole)) first = first->next;
    if (!first) return OK; /* this program doesn't read the parameter */
    Value *ids = graph_add_value(graph, VALUE_CONST, arena_printf(graph->arena, "%s.ids", param->name), &type);
    ids->const_data = list->ids;
    Value *in[] = {whole, ids, add_rows(graph, param, list, path)};
    pass_work_nowhere(graph);
    graph->cursor = first;
    TRY(pass_add(graph, &op_replace_rows, NULL, arena_printf(graph->arena, "%s.replaced", param->name), in, 3, &replaced));
    for (; first; first = first->next)
        if ((first->op == &op_embedding || first->op == &op_linear) && first->in[1] == whole) node_set_input(first, 1, replaced);
    return OK;
}

Status tokens_replace(Graph *graph, const LoraOptions *lora)
{
    for (int i = 0; i < lora->num_tokens; i++) TRY(replace(graph, lora, &lora->tokens[i]));
    return OK;
}
