/* Which layers get adapters, by run settings with the keys of adapter_config.json. Each name, number and expression is also tried alone, so
 * that one without effect is noticed. */
#include "model/peft.h"

#include "base/scoped.h"
#include "model/peft_match.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME "the run's LoRA settings"

typedef struct Layers {
    const Graph  *graph;
    const Param **params; /* the model's linear layers that have a path */
    int           count;
    const bool   *adapted; /* indexed by layer: whether it gets an adapter */
} Layers;

static Status find_layers(Arena *arena, const HfModel *model, Layers *out)
{
    Graph *graph;
    TRY(hf_model_bind(arena, model, DT_F32, &graph));
    out->graph = graph;
    out->params = arena_array(arena, const Param *, graph->num_params);
    for (int i = 0; i < graph->num_params; i++)
        if (graph->params[i]->is_linear && graph->params[i]->module && !graph->params[i]->ns) out->params[out->count++] = graph->params[i];
    return OK;
}

/* *out: which layers these settings choose; *out_count: how many. */
static Status ask(Arena *arena, const Layers *layers, const JsonValue *selection, const bool **out, int *out_count)
{
    SCOPED(peft_targets_close_at) PeftTargets *targets = NULL;
    bool                                      *found = arena_array(arena, bool, layers->count);
    *out_count = 0;
    TRY(peft_targets_open(selection, FILE_NAME, &targets));
    for (int i = 0; i < layers->count; i++) {
        const Param *param = layers->params[i];
        TRY(peft_targets_have(targets, param->module, param->is_head || lora_other_reader(layers->graph, param), &found[i]));
        *out_count += found[i];
    }
    *out = found;
    return OK;
}

static JsonValue object_of(Arena *arena, const char *const *keys, const JsonValue *const *values, int count)
{
    JsonValue object = {.type = JSON_OBJECT, .members = arena_array(arena, JsonMember, count)};
    for (int i = 0; i < count; i++)
        if (values[i]) object.members[object.count++] = (JsonMember){str_of(keys[i]), *values[i]};
    return object;
}

static JsonValue list_of(const JsonValue *item)
{
    return (JsonValue){.type = JSON_ARRAY, .count = 1, .items = (JsonValue *)item};
}

/* ---- settings without effect ---- */

static Status unmatched(const Layers *layers, const char *key, const char *name)
{
    SCOPED_STRBUF(known);
    for (int i = 0; i < layers->count; i++) {
        const char *path = layers->params[i]->module, *dot = strrchr(path, '.'), *last = dot ? dot + 1 : path;
        const char *at = strstr(strbuf_cstr(&known), last);
        size_t      len = strlen(last);
        if (lora_other_reader(layers->graph, layers->params[i])) continue;
        while (at && ((at > known.data && at[-1] != ' ') || (at[len] && at[len] != ','))) at = strstr(at + 1, last);
        if (!at) strbuf_printf(&known, "%s%s", known.len ? ", " : "", last);
    }
    if (!layers->count) strbuf_puts(&known, "none: no weight of its IR has \"linear\": true");
    Status status =
        status_fail(ERR_INVALID, "%s: \"%.200s\" matches no linear layer of this model; it has %s", key, name, strbuf_cstr(&known));
    return status;
}

/* key: target_modules or exclude_modules. Each of its names, or its expression, must match a layer. */
static Status check_names(Arena *arena, const Layers *layers, const JsonValue *selection, const char *key)
{
    const JsonValue *names = json_get(selection, key);
    uint32_t         count = !names ? 0 : names->type == JSON_ARRAY ? names->count : 1;
    for (uint32_t i = 0; i < count; i++) {
        const JsonValue *item = names->type == JSON_ARRAY ? &names->items[i] : names;
        JsonValue        one = names->type == JSON_ARRAY ? list_of(item) : *item, alone;
        const bool      *found;
        int              num_found;
        alone = object_of(arena, (const char *const[]){"target_modules"}, (const JsonValue *const[]){&one}, 1);
        TRY(ask(arena, layers, &alone, &found, &num_found));
        if (!num_found) return unmatched(layers, arena_printf(arena, "lora_%s", key), item->string.data);
    }
    return OK;
}

static Status check_layers(Arena *arena, const Layers *layers, const JsonValue *selection)
{
    const JsonValue *numbers = json_get(selection, "layers_to_transform");
    for (uint32_t i = 0; numbers && i < numbers->count; i++) {
        static const char *const keys[] = {"target_modules", "layers_pattern", "layers_to_transform"};
        const JsonValue          one = list_of(&numbers->items[i]);
        const JsonValue         *values[] = {json_get(selection, keys[0]), json_get(selection, keys[1]), &one};
        const JsonValue          alone = object_of(arena, keys, values, 3);
        const bool              *found;
        int                      num_found;
        TRY(ask(arena, layers, &alone, &found, &num_found));
        FAIL_IF(!num_found, ERR_INVALID,
                "lora_layers_to_transform: no block with the number %lld has a layer that lora_target_modules names%s",
                (long long)numbers->items[i].integer, values[1] ? " (lora_layers_pattern says what stands before the number)" : "");
    }
    return OK;
}

/* key: rank_pattern or alpha_pattern. Each of its expressions must match an adapted layer. */
static Status check_pattern(Arena *arena, const Layers *layers, const JsonValue *selection, const char *key)
{
    const JsonValue *object = json_get(selection, key);
    for (uint32_t i = 0; object && i < object->count; i++) {
        const JsonValue one = {.type = JSON_OBJECT, .count = 1, .members = &object->members[i]};
        const JsonValue alone = object_of(arena, (const char *const[]){key}, (const JsonValue *const[]){&one}, 1);
        SCOPED(peft_numbers_close_at) PeftNumbers *numbers = NULL;
        bool                                       is_used = false;
        TRY(peft_numbers_open(&alone, FILE_NAME, key, &numbers));
        for (int k = 0; k < layers->count && !is_used; k++) {
            double value = NAN;
            if (layers->adapted[k]) TRY(peft_numbers_find(numbers, layers->params[k]->module, &value));
            is_used = !isnan(value);
        }
        FAIL_IF(!is_used, ERR_INVALID, "lora_%s: \"%.200s\" matches the end of no path of an adapted layer", key,
                object->members[i].key.data);
    }
    return OK;
}

static Status check_effects(Arena *arena, const Layers *layers, const JsonValue *selection)
{
    TRY(check_names(arena, layers, selection, "target_modules"));
    TRY(check_names(arena, layers, selection, "exclude_modules"));
    TRY(check_layers(arena, layers, selection));
    TRY(check_pattern(arena, layers, selection, "rank_pattern"));
    return check_pattern(arena, layers, selection, "alpha_pattern");
}

/* ---- names before the number of a block ---- */

/* Appends the names that come before a number in the layers' paths. *out_most: the largest number; -1: none. */
static void put_containers(const Layers *layers, StrBuf *out, int64_t *out_most)
{
    *out_most = -1;
    for (int i = 0; i < layers->count; i++) {
        const char *name = layers->params[i]->module;
        for (const char *dot = strchr(name, '.'); dot; dot = strchr(name, '.')) {
            char part[128];
            snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
            name = dot + 1;
            size_t  digits = strspn(name, "0123456789");
            int64_t number = strtoll(name, NULL, 10);
            if (!digits || digits != strcspn(name, ".")) continue;
            if (number > *out_most) *out_most = number;
            if (!strstr(strbuf_cstr(out), part)) strbuf_printf(out, "%s%s", out->len ? ", " : "", part);
        }
    }
}

static Status check_containers(Arena *arena, const Layers *layers, const char *const *names, int count, StrBuf *known)
{
    static const char *const keys[] = {"target_modules", "layers_pattern", "layers_to_transform"};
    int64_t                  most;
    put_containers(layers, known, &most);
    JsonValue all = {.type = JSON_STRING, .string = str_of("all-linear")}, numbers = {.type = JSON_ARRAY}, list = {.type = JSON_ARRAY};
    numbers.items = arena_array(arena, JsonValue, most + 2);
    list.items = arena_array(arena, JsonValue, count + 1);
    for (int64_t i = 0; i <= most; i++) numbers.items[numbers.count++] = (JsonValue){.type = JSON_INT, .integer = i};
    for (int i = 0; i < count; i++) list.items[list.count++] = (JsonValue){.type = JSON_STRING, .string = str_of(names[i])};
    const JsonValue selection = object_of(arena, keys, (const JsonValue *const[]){&all, &list, &numbers}, 3);
    const bool     *found;
    int             num_found;
    TRY(ask(arena, layers, &selection, &found, &num_found));
    FAIL_IF(!num_found, ERR_INVALID, "lora_layers_pattern: \"%.200s\" stands before the number of no block of this model; there is %s",
            names[0], strbuf_cstr(known));
    return OK;
}

Status peft_check_layers_pattern(const HfModel *model, const char *const *names, int count)
{
    SCOPED_ARENA(arena);
    Layers layers = {0};
    SCOPED_STRBUF(known);
    TRY(find_layers(&arena, model, &layers));
    return check_containers(&arena, &layers, names, count, &known);
}

/* ---- the layers ---- */

static int by_path(const void *a, const void *b)
{
    return strcmp(((const LoraModule *)a)->path, ((const LoraModule *)b)->path);
}

static Status make_modules(Arena *arena, const Layers *layers, const JsonValue *selection, LoraOptions *lora)
{
    SCOPED(peft_numbers_close_at) PeftNumbers *ranks = NULL, *alphas = NULL;
    LoraModule                                *modules = arena_array(arena, LoraModule, layers->count);
    TRY(peft_numbers_open(selection, FILE_NAME, "rank_pattern", &ranks));
    TRY(peft_numbers_open(selection, FILE_NAME, "alpha_pattern", &alphas));
    lora->num_modules = 0;
    for (int i = 0; i < layers->count; i++) {
        double      rank = (double)lora->r;
        LoraModule *module = &modules[lora->num_modules];
        if (!layers->adapted[i]) continue;
        *module = (LoraModule){.path = arena_strdup(arena, layers->params[i]->module), .alpha = lora->alpha};
        TRY(peft_numbers_find(ranks, module->path, &rank));
        TRY(peft_numbers_find(alphas, module->path, &module->alpha));
        module->r = (int64_t)rank;
        lora->num_modules++;
    }
    qsort(modules, (size_t)lora->num_modules, sizeof *modules, by_path);
    lora->modules = modules;
    return OK;
}

Status peft_select(Arena *arena, const HfModel *model, const JsonValue *selection, bool all_count, LoraOptions *inout)
{
    SCOPED_ARENA(scratch);
    Layers layers = {0};
    int    num_adapted = 0;
    TRY(find_layers(&scratch, model, &layers));
    TRY(ask(&scratch, &layers, selection, &layers.adapted, &num_adapted));
    if (all_count) TRY(check_effects(&scratch, &layers, selection));
    FAIL_IF(!num_adapted, ERR_INVALID,
            "LoRA: no linear layer of this model is left (lora_target_modules, lora_exclude_modules, "
            "lora_layers_to_transform)");
    TRY(make_modules(arena, &layers, selection, inout));
    inout->selection = selection;
    return OK;
}
