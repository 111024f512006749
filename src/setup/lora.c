/* See lora.h. */
#include "setup/lora.h"

#include "base/json.h"
#include "base/log.h"
#include "config/options.h"
#include "model/model_ir.h"
#include "model/peft.h"
#include "ops/ops.h"
#include "setup/setup.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Whether a text is a regular expression: it has characters that no module name has. */
static bool is_expression(const char *text)
{
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr("_-.", *text)) return true;
    return false;
}

/* ---- the adapter's settings as keys of a run file ---- */

static const char *text_of(Arena *arena, const JsonValue *value)
{
    StrBuf text = {0};
    if (value->type == JSON_STRING) return arena_strndup(arena, value->string.data, value->string.len);
    json_write(&text, value, -1);
    const char *copy = arena_strdup(arena, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return copy;
}

/* The texts of a value that is one item or a list. In adapter_config.json a text outside a list is a regular expression. is_name: if such a
 * text looks like a plain name, it is put in parentheses, so that it is still read as an expression. "all-linear" stays as it is. */
static StrList list_of(Arena *arena, const JsonValue *value, bool is_name)
{
    StrList list = {0};
    if (!value || value->type == JSON_NULL) return list;
    if (value->type != JSON_ARRAY) {
        const char *text = text_of(arena, value);
        if (is_name && strcmp(text, "all-linear") != 0 && !is_expression(text)) text = arena_printf(arena, "(?:%s)", text);
        if (*text) str_list_push(arena, &list, text);
        return list;
    }
    for (uint32_t i = 0; i < value->count; i++) str_list_push(arena, &list, text_of(arena, &value->items[i]));
    return list;
}

static StrMap map_of(Arena *arena, const JsonValue *object)
{
    StrMap map = {0};
    if (!object || object->type != JSON_OBJECT) return map;
    map = (StrMap){arena_array(arena, const char *, object->count + 1), arena_array(arena, const char *, object->count + 1), object->count};
    for (uint32_t i = 0; i < object->count; i++) {
        map.keys[i] = object->members[i].key.data;
        map.values[i] = text_of(arena, &object->members[i].value);
    }
    return map;
}

static const ConfigKey taken[] = {
    KEY_run_lora_rank,
    KEY_run_lora_alpha,
    KEY_run_lora_use_rslora,
    KEY_run_lora_use_dora,
    KEY_run_lora_target_modules,
    KEY_run_lora_exclude_modules,
    KEY_run_lora_layers_to_transform,
    KEY_run_lora_layers_pattern,
    KEY_run_lora_rank_pattern,
    KEY_run_lora_alpha_pattern,
    KEY_run_lora_modules_to_save,
    KEY_run_lora_ensure_weight_tying,
    KEY_run_trainable_token_indices,
    KEY_run_trainable_token_modules,
};

/* Takes over the format of the adapter's base, unless the run file sets qlora. */
static Status take_format(Config *config, const PeftAdapter *adapter)
{
    const WeightFormat *here = weight_format_find(choice_text(config->qlora)), *there = adapter->base_format;
    if (!there || here == there) return OK;
    if (config->origin[KEY_run_qlora]) {
        log_warn("%s: qlora: %s: the adapter %s was trained over weights in %s", config->origin[KEY_run_qlora], choice_text(config->qlora),
                 adapter->dir, there->name);
        return OK;
    }
    for (size_t i = 0; i < num_choices; i++)
        if (strcmp(choices[i].set, "QLORA") == 0 && strcmp(choices[i].text, there->name) == 0) config->qlora = choices[i].choice;
    FAIL_IF(config->qlora == OPT_QLORA_NONE, ERR_INTERNAL, "qlora: no word of choices.def is named %s", there->name);
    config->origin[KEY_run_qlora] = arena_printf(&config->arena, "%s/base_format.json", adapter->dir);
    log_info("qlora: %s, as %s was trained", there->name, adapter->dir);
    return OK;
}

/* Takes over trainable_token_indices of the adapter: one list, or the same list for several modules. */
static Status take_token_lists(Config *config, const PeftAdapter *adapter)
{
    Arena             *arena = &config->arena;
    const LoraOptions *lora = &adapter->lora;
    config->trainable_token_indices = config->trainable_token_modules = (StrList){0};
    for (int i = 0; i < lora->num_tokens; i++) {
        const LoraTokens *list = &lora->tokens[i];
        FAIL_IF(list->num != lora->tokens[0].num || memcmp(list->ids, lora->tokens[0].ids, (size_t)list->num * sizeof *list->ids) != 0,
                ERR_UNSUPPORTED, "%s: trainable_token_indices has other ids for %s than for %s: training goes on from equal lists alone",
                adapter->dir, list->module, lora->tokens[0].module);
        if (list->module) str_list_push(arena, &config->trainable_token_modules, list->module);
        for (int k = 0; k < list->num && i == 0; k++)
            str_list_push(arena, &config->trainable_token_indices, arena_printf(arena, "%lld", (long long)list->ids[k]));
    }
    return OK;
}

/* A key's value, written as in a run file. */
static const char *value_text(Arena *arena, const Config *config, ConfigKey key)
{
    StrBuf text = {0};
    config_print_value(&text, &options[key], (const char *)config + options[key].offset);
    const char *copy = arena_strdup(arena, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return copy;
}

/* Warns of keys that are off in the run file but not in the adapter. For keys that are on, reading the config has warned already
 * (options.def). given: value of each key in the run file; NULL: not set, or on. */
static void warn_taken(Config *config, const char *dir, const char *const *given)
{
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        const char *now = given[i] ? value_text(&config->arena, config, taken[i]) : NULL;
        if (now && strcmp(given[i], now) != 0)
            log_warn("%s: %s: %s: no effect when adapter is set: %s says %s", config->origin[taken[i]], options[taken[i]].name, given[i],
                     dir, now);
    }
}

static Status take_settings(Config *config)
{
    Arena      *arena = &config->arena;
    PeftAdapter adapter;
    const char *given[sizeof taken / sizeof *taken] = {0};
    const char *dir = config->adapter;
    TRY(peft_open(arena, dir, &adapter));
    const JsonValue *json = &adapter.config;
    FAIL_IF(!(adapter.lora.alpha > 0), ERR_INVALID, "%s: lora_alpha is %g, so that nothing would be trained; expected more than 0", dir,
            adapter.lora.alpha);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (config->origin[taken[i]] && !option_is_on(&options[taken[i]], (const char *)config + options[taken[i]].offset))
            given[i] = value_text(arena, config, taken[i]);
    config->lora_rank = adapter.lora.r;
    config->lora_alpha = adapter.lora.alpha;
    config->lora_use_rslora = adapter.lora.use_rslora;
    config->lora_use_dora = adapter.lora.use_dora;
    config->lora_target_modules = list_of(arena, json_get(json, "target_modules"), true);
    config->lora_exclude_modules = list_of(arena, json_get(json, "exclude_modules"), true);
    config->lora_layers_to_transform = list_of(arena, json_get(json, "layers_to_transform"), false);
    config->lora_layers_pattern = list_of(arena, json_get(json, "layers_pattern"), false);
    config->lora_rank_pattern = map_of(arena, json_get(json, "rank_pattern"));
    config->lora_alpha_pattern = map_of(arena, json_get(json, "alpha_pattern"));
    config->lora_modules_to_save = (StrList){(const char **)adapter.lora.whole, (size_t)adapter.lora.num_whole};
    config->lora_ensure_weight_tying = adapter.lora.tie_whole;
    TRY(take_token_lists(config, &adapter));
    if (!config->origin[KEY_run_lora_dropout]) config->lora_dropout = adapter.lora.dropout;
    warn_taken(config, dir, given);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) config->origin[taken[i]] = arena_printf(arena, "%s/adapter_config.json", dir);
    bool grows = config->new_tokens.count || config->new_special_tokens.count ||
                 config->pad_vocab_multiple; /* the base is then a copy of config->model */
    if (config->model && !grows) peft_check_base(&adapter, config->model);
    return take_format(config, &adapter);
}

Status setup_adapter(Config *config)
{
    bool is_there = true;
    if (!config->adapter) return OK;
    Status status = file_is_dir(config->adapter, &is_there);
    if (status == OK && !is_there)
        status = status_fail(ERR_NOT_FOUND, "there is no folder %s; expected the folder of a LoRA adapter, or the word lora or qlora",
                             config->adapter);
    if (status == OK) status = take_settings(config);
    return config_at(config->origin, KEY_run_adapter, status != OK ? status_prefix(status, "adapter") : OK);
}

static Status compare_tokens(const char *dir, const Tokenizer *own, const Tokenizer *run)
{
    int32_t least = tokenizer_vocab_size(own) < tokenizer_vocab_size(run) ? tokenizer_vocab_size(own) : tokenizer_vocab_size(run);
    for (int32_t id = 0; id < least; id++) {
        const char *before = tokenizer_id_to_token(own, id), *now = tokenizer_id_to_token(run, id);
        FAIL_IF(before && now && strcmp(before, now) != 0, ERR_INVALID,
                "id %d is the token %s in %s and %s in this run: name new_tokens in its order", id, before, dir, now);
    }
    return OK;
}

Status setup_check_tokens(Arena *arena, const char *dir, const Tokenizer *run)
{
    Tokenizer *own;
    bool       is_there;
    TRY(file_exists(arena_printf(arena, "%s/tokenizer.json", dir), &is_there));
    if (!is_there) return OK;
    TRY(tokenizer_load(dir, &own));
    Status status = compare_tokens(dir, own, run);
    tokenizer_destroy(own);
    return status;
}

/* Checks that each token row of the adapter belongs to the same token in this run. */
static Status check_tokens(Arena *arena, const Config *config, const PeftAdapter *adapter, const HfModel *model)
{
    bool       is_there;
    Tokenizer *run;
    NewTokens  tokens = setup_new_tokens(config); /* the folder has them already, unless the run is only planned */
    if (!adapter->lora.num_tokens && !adapter->lora.num_whole) return OK;
    TRY(file_exists(arena_printf(arena, "%s/tokenizer.json", model->dir), &is_there));
    if (!is_there) return OK;
    TRY(grow_load_tokenizer(model->dir, &tokens, &run));
    Status status = setup_check_tokens(arena, adapter->dir, run);
    tokenizer_destroy(run);
    return status;
}

Status setup_check_adapter(Arena *arena, const Config *config, const HfModel *model)
{
    PeftAdapter adapter;
    if (!config->adapter) return OK;
    Status status = peft_open(arena, config->adapter, &adapter);
    if (status == OK) status = peft_check_model(&adapter, model);
    if (status == OK) status = check_tokens(arena, config, &adapter, model);
    return config_at(config->origin, KEY_run_adapter, status != OK ? status_prefix(status, "adapter") : OK);
}

/* ---- keys of a run file as adapter_config.json has them ---- */

static JsonValue text_value(const char *text)
{
    return (JsonValue){.type = JSON_STRING, .string = str_of(text)};
}

/* An array of names, or a text for one regular expression. */
static Status names_value(Arena *arena, const StrList *list, const char *key, JsonValue *out)
{
    bool is_text = list->count == 1 && (is_expression(list->items[0]) || strcmp(list->items[0], "all-linear") == 0);
    *out = (JsonValue){.type = JSON_ARRAY, .count = (uint32_t)list->count, .items = arena_array(arena, JsonValue, list->count + 1)};
    for (size_t i = 0; i < list->count; i++) {
        FAIL_IF(list->count > 1 && is_expression(list->items[i]), ERR_INVALID,
                "%s: %.200s is a regular expression, which stands alone; put all names into one: .*\\.(?:q_proj|v_proj)", key,
                list->items[i]);
        out->items[i] = text_value(list->items[i]);
    }
    if (is_text) *out = out->items[0];
    return OK;
}

static Status numbers_value(Arena *arena, const StrList *list, JsonValue *out)
{
    *out = (JsonValue){.type = JSON_ARRAY, .count = (uint32_t)list->count, .items = arena_array(arena, JsonValue, list->count + 1)};
    for (size_t i = 0; i < list->count; i++) {
        char   *end;
        int64_t number = (errno = 0, strtoll(list->items[i], &end, 10));
        FAIL_IF(errno || *end || end == list->items[i] || number < 0, ERR_INVALID,
                "lora_layers_to_transform: expected numbers of blocks from 0, found %.100s", list->items[i]);
        out->items[i] = (JsonValue){.type = JSON_INT, .integer = number};
    }
    return OK;
}

/* A map from patterns to numbers. most: largest whole number allowed; 0: any number above 0. */
static Status pattern_value(Arena *arena, const StrMap *map, const char *key, int64_t most, JsonValue *out)
{
    *out = (JsonValue){.type = JSON_OBJECT, .count = (uint32_t)map->count, .members = arena_array(arena, JsonMember, map->count + 1)};
    for (size_t i = 0; i < map->count; i++) {
        char     *end;
        double    number = strtod(map->values[i], &end);
        bool      fits = !*end && end != map->values[i] && number > 0 && number < 1e30;
        JsonValue value = {.type = JSON_DOUBLE, .number = number};
        if (fits && most) {
            fits = number == (double)(int64_t)number && number <= (double)most;
            value = (JsonValue){.type = JSON_INT, .integer = (int64_t)number};
        }
        FAIL_IF(!fits, ERR_INVALID, "%s: %.200s: %.100s; expected a%s", key, map->keys[i], map->values[i],
                most ? arena_printf(arena, " whole number from 1 to %lld", (long long)most) : " number above 0");
        out->members[i] = (JsonMember){str_of(map->keys[i]), value};
    }
    return OK;
}

static Status make_selection(Arena *arena, const Config *config, JsonValue *out)
{
    enum { MOST_RANK = 65536 };
    static const char *const names[] = {"target_modules", "exclude_modules", "layers_to_transform",
                                        "layers_pattern", "rank_pattern",    "alpha_pattern"};
    JsonValue               *values = arena_array(arena, JsonValue, 6), *layers = &values[3];
    const StrList           *patterns = &config->lora_layers_pattern;
    const char *const       *origin = config->origin;
    *layers =
        (JsonValue){.type = JSON_ARRAY, .count = (uint32_t)patterns->count, .items = arena_array(arena, JsonValue, patterns->count + 1)};
    for (size_t i = 0; i < patterns->count; i++) layers->items[i] = text_value(patterns->items[i]);
    TRY(config_at(origin, KEY_run_lora_target_modules,
                  names_value(arena, &config->lora_target_modules, "lora_target_modules", &values[0])));
    TRY(config_at(origin, KEY_run_lora_exclude_modules,
                  names_value(arena, &config->lora_exclude_modules, "lora_exclude_modules", &values[1])));
    TRY(config_at(origin, KEY_run_lora_layers_to_transform, numbers_value(arena, &config->lora_layers_to_transform, &values[2])));
    TRY(config_at(origin, KEY_run_lora_rank_pattern,
                  pattern_value(arena, &config->lora_rank_pattern, "lora_rank_pattern", MOST_RANK, &values[4])));
    TRY(config_at(origin, KEY_run_lora_alpha_pattern,
                  pattern_value(arena, &config->lora_alpha_pattern, "lora_alpha_pattern", 0, &values[5])));
    *out = (JsonValue){.type = JSON_OBJECT, .members = arena_array(arena, JsonMember, 6)};
    for (int i = 0; i < 6; i++)
        if (values[i].count || values[i].type == JSON_STRING) out->members[out->count++] = (JsonMember){str_of(names[i]), values[i]};
    return OK;
}

/* Whether target module names alone choose the layers with adapters, all with one rank and alpha. */
static bool is_plain(const Config *config)
{
    bool is_plain = !config->adapter && !config->lora_exclude_modules.count && !config->lora_layers_to_transform.count &&
                    !config->lora_rank_pattern.count && !config->lora_alpha_pattern.count;
    for (size_t i = 0; i < config->lora_target_modules.count; i++) is_plain &= !is_expression(config->lora_target_modules.items[i]);
    return is_plain;
}

/* Gives every trained matrix the same token ids. */
static Status take_tokens(Arena *arena, const Config *config, LoraOptions *out)
{
    const StrList *list = &config->trainable_token_indices, *modules = &config->trainable_token_modules;
    int            count = modules->count ? (int)modules->count : 1;
    LoraTokens    *tokens = arena_array(arena, LoraTokens, count);
    int64_t       *ids = arena_array(arena, int64_t, list->count + 1);
    if (!list->count) return OK;
    for (size_t i = 0; i < list->count; i++) {
        char *end;
        ids[i] = (errno = 0, strtoll(list->items[i], &end, 10));
        FAIL_IF(errno || *end || end == list->items[i] || ids[i] < 0, ERR_INVALID,
                "trainable_token_indices: expected ids of tokens, found %.100s", list->items[i]);
    }
    for (int i = 0; i < count; i++)
        tokens[i] = (LoraTokens){.module = modules->count ? modules->items[i] : NULL, .num = (int)list->count, .ids = ids};
    out->tokens = tokens;
    out->num_tokens = count;
    return OK;
}

/* ---- layers whose weights other ops read ---- */

static Status refuse_reader(const Graph *graph, const Param *param, const Node *reader)
{
    const Value *weight = graph_find(graph, param->name);
    bool         is_layer = false;
    for (const Use *use = weight->first_use; use; use = use->next) is_layer |= use->node && use->node->op == &op_linear && use->index == 1;
    FAIL_IF(!is_layer, ERR_UNSUPPORTED, "lora_target_modules: %s: no linear layer reads its weight, but %s at %s; leave it out",
            param->module, reader->op->name, reader->source);
    FAIL(
        ERR_UNSUPPORTED,
        "lora_target_modules: %s: %s at %s reads its weight too, so that the model with the adapter merged into it would be another; leave "
        "it out",
        param->module, reader->op->name, reader->source);
}

static bool has_all_linear(const LoraOptions *lora)
{
    for (int i = 0; i < lora->num_targets; i++)
        if (strcmp(lora->targets[i], "all-linear") == 0) return true;
    return false;
}

/* Leaves out linear layers whose weights other ops read too. all-linear skips them with a warning; naming one is an error. */
static Status leave_out(Arena *arena, const Graph *graph, LoraOptions *lora)
{
    const Node  *first = NULL;
    const char **paths = arena_array(arena, const char *, graph->num_params);
    lora->left_out = paths;
    for (int i = 0; i < graph->num_params; i++) {
        const Param *param = graph->params[i];
        const Node  *reader = param->is_linear && param->module && !param->ns ? lora_other_reader(graph, param) : NULL;
        if (!reader) continue;
        if (!first) first = reader;
        paths[lora->num_left_out++] = arena_strdup(arena, param->module);
        if (lora_has_target(lora, param, NULL)) return refuse_reader(graph, param, reader);
    }
    if (first && has_all_linear(lora))
        log_warn("lora_target_modules: all-linear leaves out %s%s: %s at %s reads its weight", paths[0],
                 lora->num_left_out > 1 ? arena_printf(arena, " and %d more", lora->num_left_out - 1) : "", first->op->name, first->source);
    return OK;
}

/* Calls leave_out, except for shipped models: they have no layers to leave out. Skipping them saves binding a graph, which takes an eighth
 * of a plan's time. */
static Status check_readers(Arena *arena, const Config *config, const HfModel *model, LoraOptions *lora)
{
    Arena  scratch = {0};
    Graph *graph;
    if (model_ir_is_shipped(model->module)) return OK;
    Status status = hf_model_bind(&scratch, model, DT_F32, &graph);
    if (status == OK) status = config_at(config->origin, KEY_run_lora_target_modules, leave_out(arena, graph, lora));
    arena_deinit(&scratch);
    return status;
}

Status setup_lora(Arena *arena, const Config *config, const HfModel *model, LoraOptions *out)
{
    static const LoraInit inits[] = {[OPT_LORA_INIT_DEFAULT - OPT_LORA_INIT_DEFAULT] = LORA_UNIFORM,
                                     [OPT_LORA_INIT_GAUSSIAN - OPT_LORA_INIT_DEFAULT] = LORA_GAUSSIAN,
                                     [OPT_LORA_INIT_PISSA - OPT_LORA_INIT_DEFAULT] = LORA_PISSA,
                                     [OPT_LORA_INIT_OLORA - OPT_LORA_INIT_DEFAULT] = LORA_OLORA};
    *out = (LoraOptions){.enabled = config->lora,
                         .init = config->adapter ? LORA_UNIFORM : inits[config->lora_init - OPT_LORA_INIT_DEFAULT],
                         .r = config->lora_rank,
                         .alpha = config->lora_alpha,
                         .dropout = config->lora_dropout,
                         .use_rslora = config->lora_use_rslora,
                         .use_dora = config->lora_use_dora,
                         .num_targets = (int)config->lora_target_modules.count,
                         .targets = config->lora_target_modules.items,
                         .num_whole = (int)config->lora_modules_to_save.count,
                         .whole = config->lora_modules_to_save.items,
                         .tie_whole = config->lora_ensure_weight_tying};
    FAIL_IF(out->use_dora && lora_init_takes(out->init), ERR_UNSUPPORTED,
            "lora_init: %s beside lora_use_dora: what is saved is a plain adapter for the unchanged base, which DoRA's lengths don't fit; "
            "take lora_init: default or gaussian",
            choice_text(config->lora_init));
    if (config->lora) TRY(config_at(config->origin, KEY_run_trainable_token_indices, take_tokens(arena, config, out)));
    const StrList *patterns = &config->lora_layers_pattern;
    if (config->lora && !config->adapter && patterns->count)
        TRY(config_at(config->origin, KEY_run_lora_layers_pattern,
                      peft_check_layers_pattern(model, patterns->items, (int)patterns->count)));
    if (!config->lora) return OK;
    if (is_plain(config)) return check_readers(arena, config, model, out);
    JsonValue *selection = arena_new(arena, JsonValue);
    TRY(make_selection(arena, config, selection));
    const JsonValue *targets = json_get(selection, "target_modules");
    FAIL_IF(config->lora_layers_to_transform.count && targets && targets->type == JSON_STRING && is_expression(targets->string.data),
            ERR_INVALID,
            "lora_layers_to_transform: a regular expression under lora_target_modules says the blocks itself; remove one of the two");
    TRY(peft_select(arena, model, selection, !config->adapter, out));
    return config->adapter ? OK : check_readers(arena, config, model, out);
}
