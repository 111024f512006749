/* Whole weights beside adapters. A marked weight is trained and saved as adapters are, but starts with the base's values. */
#include "passes/adapt_whole.h"

#include "ops/ops.h"

#include <string.h>

static const char *without_last(Arena *arena, const char *tensor)
{
    const char *dot = strrchr(tensor, '.');
    return dot ? arena_strndup(arena, tensor, (size_t)(dot - tensor)) : NULL;
}

const char *whole_path(Arena *arena, const Param *param)
{
    const HfSource *hf = param_saved(param);
    bool            is_one = hf->num_names == 1 && (hf->kind == HF_WHOLE || hf->kind == HF_TRANSPOSE);
    return is_one ? without_last(arena, hf->names[0]) : NULL;
}

const char *whole_head_path(Arena *arena, const Param *param)
{
    return param->untied ? without_last(arena, param->untied) : NULL;
}

bool whole_has(const LoraOptions *lora, const char *path, char *matched)
{
    bool found = false;
    for (int i = 0; path && i < lora->num_whole; i++) {
        size_t len = strlen(path), end = strlen(lora->whole[i]);
        if (end > len || strcmp(path + len - end, lora->whole[i]) != 0) continue;
        if (matched) matched[i] = 1;
        found = true;
    }
    return found;
}

static bool is_linear_layer(const Param *param)
{
    return param->is_linear && !param->is_head;
}

/* Gives the head of a tied embedding its own parameter. Both start with the same weights and are trained apart. */
static void divide(Graph *graph, Value *embedding)
{
    Param *param = embedding->param, *head = arena_new(graph->arena, Param);
    *head = *param;
    head->name = arena_printf(graph->arena, "%s.head", param->name);
    head->saved = (HfSource){.num_names = 1, .names = arena_array(graph->arena, const char *, 1)};
    head->saved.names[0] = param->untied;
    head->untied = param->untied = param->module = NULL;
    head->module = without_last(graph->arena, head->saved.names[0]);
    param->is_linear = param->is_head = false;
    Value *value = graph_add_param(graph, head);
    for (Node *node = graph->first; node; node = node->next)
        if (node->op == &op_linear && node->in[1] == embedding) node_set_input(node, 1, value);
}

/* Whether lora->whole names a module of the weight: the module of its own tensor or, for a tied embedding, the head's module. */
static bool is_named(Graph *graph, const LoraOptions *lora, const Param *param, char *matched)
{
    if (param->ns) return false;
    bool found = whole_has(lora, whole_path(graph->arena, param), matched);
    return whole_has(lora, whole_head_path(graph->arena, param), matched) || found;
}

static Status mark(Param *param, const char *name)
{
    FAIL_IF(is_linear_layer(param), ERR_UNSUPPORTED,
            "lora_modules_to_save: \"%s\" is %s, a linear layer; expected embeddings, heads or norms (layers: lora_target_modules)", name,
            param->module ? param->module : param->name);
    param->is_whole = param->is_adapter = param->trained = true;
    return OK;
}

static Status unmatched(const Graph *graph, const char *name)
{
    StrBuf      known = {0};
    const char *names[16];
    int         num = 0;
    for (int i = 0; i < graph->num_params && num < 16; i++) {
        const Param *param = graph->params[i];
        const char  *path = param->ns || is_linear_layer(param) ? NULL : whole_path(graph->arena, param);
        const char  *dot = path ? strrchr(path, '.') : NULL;
        int          k = 0;
        if (!path) continue;
        names[num] = dot ? dot + 1 : path;
        while (strcmp(names[k], names[num]) != 0) k++;
        if (k < num) continue;
        strbuf_printf(&known, "%s%s", num++ ? ", " : "", names[k]);
        const char *head = whole_head_path(graph->arena, param);
        if (head) strbuf_printf(&known, ", %s", head);
    }
    Status status = status_fail(ERR_INVALID, "lora_modules_to_save: \"%s\" is no embedding, head or norm of this model; it has %s", name,
                                strbuf_cstr(&known));
    strbuf_deinit(&known);
    return status;
}

Status whole_mark(Graph *graph, const LoraOptions *lora)
{
    char *matched = arena_alloc(graph->arena, (size_t)lora->num_whole + 1);
    memset(matched, 0, (size_t)lora->num_whole + 1);
    for (int i = 0; i < graph->num_params; i++) { /* divide() appends heads to the list */
        Param *param = graph->params[i];
        if (!is_named(graph, lora, param, matched)) continue;
        if (param->untied && !lora->tie_whole) {
            divide(graph, graph_find(graph, param->name));
            if (!whole_has(lora, whole_path(graph->arena, param), NULL)) continue; /* only the head is named */
        }
        TRY(mark(param, param_saved(param)->names[0]));
    }
    for (int i = 0; i < lora->num_whole; i++)
        if (!matched[i]) return unmatched(graph, lora->whole[i]);
    return OK;
}
