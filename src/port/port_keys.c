/* Keys whose value must be computed, and keys that must be read together. */
#include "port/port_internal.h"

#include "files/file.h"

#include <math.h>
#include <string.h>

#define ADDITIONAL "additional_special_tokens"

/* Does nothing: the key is read later, where the keys beside it are known. */
void port_read_later(Port *port, const PortPair *pair)
{
    (void)port;
    (void)pair;
}

/* Reads a mapping whose members have rows of their own, "name.member". */
void port_read_members(Port *port, const PortPair *pair)
{
    if (pair->value->type != YAML_MAPPING) {
        port_problem(port, pair->value, "%s: expected a mapping, found %s", pair->key->text.data, yaml_type_name(pair->value));
        return;
    }
    for (size_t i = 0; i < pair->value->count; i++) {
        const YamlNode *member = pair->value->keys[i];
        YamlNode       *key = arena_new(port->arena, YamlNode);
        PortPair        inner = *pair;
        if (member->type != YAML_SCALAR || yaml_is_null(pair->value->items[i])) continue;
        *key = *member;
        key->text = str_of(arena_printf(port->arena, "%s.%s", pair->key->text.data, member->text.data));
        inner.key = key;
        inner.value = pair->value->items[i];
        port_value(port, &inner);
    }
}

void port_read_betas(Port *port, const PortPair *pair)
{
    const char *from = port_origin(port, pair->key, "");
    if (pair->value->type != YAML_SEQUENCE || pair->value->count != 2) {
        port_problem(port, pair->value, "%s: expected a list of two numbers", pair->key->text.data);
        return;
    }
    port_take(port, pair->target, KEY_run_adamw_beta1, pair->value->items[0], from);
    port_take(port, pair->target, KEY_run_adamw_beta2, pair->value->items[1], from);
}

void port_read_revision(Port *port, const PortPair *pair)
{
    const char *model = port_text(port->root, port->tool == AXOLOTL ? "base_model" : "model_name_or_path");
    const char *revision = pair->value->type == YAML_SCALAR ? pair->value->text.data : "main";
    if (!model || strcmp(revision, "main") == 0) return;
    port_replace(port, pair->target, KEY_run_model, arena_printf(port->arena, "%s@%s", model, revision), port_origin(port, pair->key, ""));
}

/* ---- learning rate ---- */

/* Reads a schedule that no row of foreign.def names. */
void port_read_schedule(Port *port, const PortPair *pair)
{
    const char *from = port_origin(port, pair->key, "");
    if (pair->value->type != YAML_SCALAR || strcmp(pair->value->text.data, "constant") != 0) {
        port_problem(port, pair->value, "%s: not supported here: another schedule: there are linear, cosine, constant and wsd",
                     pair->key->text.data);
        return;
    }
    port_set(port, pair->target, KEY_run_lr_scheduler_type, "constant", from);
}

/* Reads a number of warm-up steps, or a part of all steps. */
void port_read_warmup(Port *port, const PortPair *pair)
{
    double      steps = 0;
    const char *from = port_origin(port, pair->key, "");
    if (!port_number(pair->value, &steps)) {
        port_problem(port, pair->value, "%s: expected a number", pair->key->text.data);
        return;
    }
    if (steps < 1) {
        port_take(port, pair->target, KEY_run_warmup_ratio, pair->value, from);
        return;
    }
    if (port->tool == AXOLOTL && steps == 1) steps = 2;
    port_set(port, pair->target, KEY_run_warmup_steps, arena_printf(port->arena, "%.0f", ceil(steps)), from);
}

/* Reads a member of lr_scheduler_kwargs. */
static void read_schedule_member(Port *port, const YamlNode *key, const YamlNode *value)
{
    const char *name = key->text.data, *from = port_origin(port, key, "lr_scheduler_kwargs.");
    double      number, rate = port->config.learning_rate;
    bool        is_number = port_number(value, &number);
    if (is_number && strcmp(name, "min_lr_rate") == 0)
        port_set_number(port, KEY_run_final_lr_fraction, number, from);
    else if (is_number && strcmp(name, "min_lr") == 0 && rate > 0)
        port_set_number(port, KEY_run_final_lr_fraction, number / rate, from);
    else if (is_number && strcmp(name, "num_decay_steps") == 0)
        port_set_number(port, KEY_run_cooldown_steps, number, from);
    else if (is_number && strcmp(name, "num_cycles") == 0 && number == 0.5)
        return;
    else
        port_problem(port, key, "lr_scheduler_kwargs.%.80s: not supported here: final_lr_fraction and cooldown_steps shape the end", name);
}

/* In other tools the schedule `constant` has no warm-up, even if the file gives one: drops it. */
static void drop_warmup_of_constant(Port *port)
{
    static const ConfigKey keys[] = {KEY_run_warmup_steps, KEY_run_warmup_ratio};
    const char            *name = port_text(port->root, "lr_scheduler_type");
    if (!name) name = port_text(port->root, "lr_scheduler");
    if (!name || strcmp(name, "constant") != 0) return;
    for (int i = 0; i < 2; i++) {
        if (port->from[keys[i]])
            str_list_push(port->arena, &port->same, arena_printf(port->arena, "%s: constant doesn't warm up there", port->from[keys[i]]));
        port_unset(port, &port->run, keys[i]);
    }
    port_set(port, &port->run, KEY_run_warmup_ratio, "0", "constant doesn't warm up there");
}

static void finish_schedule(Port *port)
{
    const YamlNode *members = port_get(port->root, "lr_scheduler_kwargs");
    for (size_t i = 0; members && members->type == YAML_MAPPING && i < members->count; i++)
        if (members->keys[i]->type == YAML_SCALAR && !yaml_is_null(members->items[i]))
            read_schedule_member(port, members->keys[i], members->items[i]);
    drop_warmup_of_constant(port);
    if (port->from[KEY_run_warmup_steps]) {
        port_unset(port, &port->run, KEY_run_warmup_ratio); /* in all tools a number of warm-up steps overrides a part */
        port->has_no_default[KEY_run_warmup_ratio] = true;
    }
}

/* Axolotl's warm-up: a part of all steps is rounded down; the default is 3 % of all steps, at most 100; 1 step becomes 2. */
static void finish_axolotl_warmup(Port *port)
{
    enum { MOST_BY_DEFAULT = 100 };
    const char *from = port->from[KEY_run_warmup_ratio];
    double      part = from ? port->config.warmup_ratio : 0.03;
    if (port->from[KEY_run_warmup_steps] || (from && part == 0)) return;
    if (port->config.max_steps <= 0) {
        if (from) port->from[KEY_run_warmup_ratio] = arena_printf(port->arena, "%s; rounded down to whole steps there", from);
        return;
    }
    double steps = floor(part * (double)port->config.max_steps);
    if (!from) steps = fmin(steps, MOST_BY_DEFAULT);
    if (steps == 1) steps = 2;
    port_unset(port, &port->run, KEY_run_warmup_ratio);
    from = arena_printf(port->arena, "%s, of max_steps", from ? from : "Axolotl's default: 3 %, at most 100");
    if (steps > 0)
        port_set_number(port, KEY_run_warmup_steps, steps, from);
    else
        port_set(port, &port->run, KEY_run_warmup_ratio, "0", from);
    port->has_no_default[KEY_run_warmup_ratio] = true;
}

/* A warm-up longer than the run is refused here: shortens it to max_steps, and lowers the learning rate to the rate that the warm-up
 * reaches by then. */
static void finish_long_warmup(Port *port)
{
    double      most = (double)port->config.max_steps, warmup = (double)port->config.warmup_steps, rate = port->config.learning_rate;
    const char *of_rate = port->from[KEY_run_learning_rate], *of_steps = port->from[KEY_run_warmup_steps];
    if (most <= 0 || !of_steps || !of_rate || warmup <= most) return;
    port_replace(port, &port->run, KEY_run_learning_rate, arena_printf(port->arena, "%.10g", rate * most / warmup),
                 arena_printf(port->arena, "%s, as far as it comes in %.0f of %.0f steps of warm-up", of_rate, most, warmup));
    port_replace(port, &port->run, KEY_run_warmup_steps, arena_printf(port->arena, "%.0f", most),
                 arena_printf(port->arena, "%s, no more than max_steps", of_steps));
}

/* ---- batch, held-out rows ---- */

static void finish_batch(Port *port)
{
    const YamlNode *size = port_get(port->root, port->tool == AXOLOTL ? "batch_size" : "global_batch_size");
    double          rows, micro = (double)(port->from[KEY_run_per_device_train_batch_size] ? port->config.per_device_train_batch_size : 1);
    if (!(port->tool & (AXOLOTL | FACTORY_V1)) || !port_number(size, &rows)) return;
    if (port->from[KEY_run_gradient_accumulation_steps])
        str_list_push(port->arena, &port->same, "batch_size: gradient_accumulation_steps says it");
    else
        port_set_number(port, KEY_run_gradient_accumulation_steps, fmax(1, floor(rows / micro)),
                        "batch size / micro_batch_size, with one device");
}

void port_read_held_out(Port *port, const PortPair *pair)
{
    double part;
    if (!port_number(pair->value, &part))
        port_problem(port, pair->value, "%s: expected a number", pair->key->text.data);
    else if (part >= 1)
        port_tell(port, true, pair->key, "", "a number of rows: none is held out; set validation_split_ratio, a part of them");
    else if (part > 0)
        port_take(port, pair->target, KEY_run_validation_split_ratio, pair->value, port_origin(port, pair->key, ""));
}

/* TRL's max_length: null means that rows aren't cut: reports it. */
static void finish_length(Port *port)
{
    const YamlNode *key = port_key(port->root, "max_length");
    if (port->tool == TRL && key && !port->from[KEY_run_sequence_len])
        port_tell(port, true, key, "", "rows aren't cut there; set sequence_len to the tokens of the longest one");
}

/* ---- LoRA ---- */

/* Whether the beginning of a pattern matches the paths of every layer: it has only digits, wildcards, and words that occur in all paths. */
static bool is_open_prefix(const char *text, const char *end)
{
    static const char *const parts[] = {"language_model", "text_model", "base_model", "model", "layers", "[0-9]+", "[\\d]+",
                                        "\\d+",           "\\.",        ".*",         ".+",    ".",      "^"};
    while (text < end) {
        size_t i = 0, count = sizeof parts / sizeof *parts;
        while (i < count && strncmp(text, parts[i], strlen(parts[i])) != 0) i++;
        if (i == count) return false;
        text += strlen(parts[i]);
    }
    return true;
}

/* Expands "layers.*.(q|k|v)_proj" to the names q_proj, k_proj, v_proj, if the pattern matches them in every layer. False: it doesn't. */
static bool expand_pattern(const char *pattern, StrBuf *out)
{
    const char *open = strrchr(pattern, '('), *close = open ? strchr(open, ')') : NULL;
    if (!close || !is_open_prefix(pattern, open)) return false;
    size_t tail = strspn(close + 1, "abcdefghijklmnopqrstuvwxyz0123456789_"), inside = (size_t)(close - open - 1);
    if (strspn(open + 1, "abcdefghijklmnopqrstuvwxyz0123456789_|") != inside || (close[1 + tail] && close[1 + tail] != '$')) return false;
    for (const char *at = open + 1; at < close;) {
        size_t len = strcspn(at, "|)");
        if (len) strbuf_printf(out, "%s%.*s%.*s", out->len ? ", " : "", (int)len, at, (int)tail, close + 1);
        at += len + 1;
    }
    return out->len > 0;
}

/* Adds names separated by commas. False: the text is a pattern that can't be written as names. */
static bool add_targets(Port *port, const PortPair *pair, const char *text, StrBuf *out)
{
    if (strpbrk(text, "\\()[]*^$|+?")) {
        StrBuf names = {0};
        bool   fits = expand_pattern(text, &names);
        if (fits) {
            strbuf_printf(out, "%s%s", out->len ? ", " : "", names.data);
            port_tell(port, true, pair->key, "", "a pattern, read as the names at its end: layers of these names in every block");
        } else {
            port_problem(port, pair->value, "%s: not supported here: patterns of layers: write their names", pair->key->text.data);
        }
        strbuf_deinit(&names);
        return fits;
    }
    for (const char *at = text; *at;) {
        at += strspn(at, ", ");
        size_t len = strcspn(at, ", ");
        if (len) strbuf_printf(out, "%s%.*s", out->len ? ", " : "", (int)len, at);
        at += len;
    }
    return true;
}

static bool is_every_target(const YamlNode *value)
{
    static const char *const words[] = {"all", "all-linear", "all_linear"};
    for (size_t i = 0; value->type == YAML_SCALAR && i < sizeof words / sizeof *words; i++)
        if (strcmp(value->text.data, words[i]) == 0) return true;
    return false;
}

/* A single text is a regular expression in PEFT, and here. A pattern that only lists final names in every block is read as those names. */
static bool is_own_pattern(const Port *port, const YamlNode *value)
{
    StrBuf names = {0};
    bool   is_own = port->tool & (AXOLOTL | TRL) && value->type == YAML_SCALAR && strpbrk(value->text.data, "\\()[]*^$|+?") &&
                  !expand_pattern(value->text.data, &names);
    strbuf_deinit(&names);
    return is_own;
}

/* The pattern without the path prefix of the language model in a model with images: our paths begin behind it. */
static const char *without_language_model(Port *port, const char *pattern)
{
    static const char *const names[] = {"language_model", "text_model"};
    StrBuf                   out = {0};
    for (const char *at = pattern; *at;) {
        size_t len = 0;
        for (int i = 0; i < 2; i++)
            if (strncmp(at, names[i], strlen(names[i])) == 0) len = strlen(names[i]);
        size_t escape = len && at[len] == '\\', dot = len + escape;
        if (len && at[dot] == '.') /* a repeated dot (.*) matches anything and stays: only the name is removed */
            at += at[dot + 1] && strchr("*+?{", at[dot + 1]) ? len : dot + 1;
        else
            strbuf_putc(&out, *at++);
    }
    const char *text = arena_strdup(port->arena, strbuf_cstr(&out));
    strbuf_deinit(&out);
    return text;
}

static void take_pattern(Port *port, const PortPair *pair, const char *from)
{
    YamlNode *node = arena_new(port->arena, YamlNode);
    *node = *pair->value;
    node->text = str_of(without_language_model(port, pair->value->text.data));
    if (node->text.len != pair->value->text.len)
        port_tell(port, false, pair->key, "", "paths of layers have no name of the language model here");
    port_take(port, pair->target, KEY_run_lora_target_modules, node, from);
}

/* Takes lora_target_linear beside names: all linear layers of the blocks, and the named layers outside of blocks. */
static void take_all_linear(Port *port, const PortPair *pair, const char *from)
{
    static const char *const outside[] = {"lm_head", "embed_tokens"};
    const YamlNode          *value = pair->value;
    const char              *names = "all-linear";
    for (size_t i = 0; i < (value->type == YAML_SCALAR ? 1 : value->count); i++) {
        const YamlNode *item = value->type == YAML_SCALAR ? value : value->items[i];
        for (int k = 0; k < 2; k++)
            if (item->type == YAML_SCALAR && strcmp(item->text.data, outside[k]) == 0)
                names = arena_printf(port->arena, "%s, %s", names, outside[k]);
    }
    if (strchr(names, ','))
        port_replace(port, pair->target, KEY_run_lora_target_modules, arena_printf(port->arena, "[%s]", names), from);
    else
        port_tell(port, false, pair->key, "", "lora_target_linear names all linear layers");
}

void port_read_targets(Port *port, const PortPair *pair)
{
    StrBuf      names = {0};
    const char *from = port_origin(port, pair->key, "");
    bool        fits = true;
    if (value_is_inert(pair->value)) return;
    if (port_is_true(port->root, "lora_target_linear")) {
        take_all_linear(port, pair, from);
        return;
    }
    if (is_every_target(pair->value)) {
        port_set(port, pair->target, KEY_run_lora_target_modules, "all-linear", from);
        return;
    }
    if (is_own_pattern(port, pair->value)) {
        take_pattern(port, pair, from);
        return;
    }
    for (size_t i = 0; fits && (i < pair->value->count || (pair->value->type == YAML_SCALAR && i == 0)); i++) {
        const YamlNode *item = pair->value->type == YAML_SCALAR ? pair->value : pair->value->items[i];
        if (item->type == YAML_SCALAR) fits = add_targets(port, pair, item->text.data, &names);
    }
    if (fits && names.len) port_set(port, pair->target, KEY_run_lora_target_modules, arena_printf(port->arena, "[%s]", names.data), from);
    strbuf_deinit(&names);
}

void port_read_whole(Port *port, const PortPair *pair)
{
    StrBuf          names = {0};
    const YamlNode *value = pair->value;
    bool            fits = true;
    if (value_is_inert(value)) return;
    if (value->type == YAML_SCALAR) fits = add_targets(port, pair, value->text.data, &names);
    for (size_t i = 0; fits && value->type != YAML_SCALAR && i < value->count; i++)
        if (value->items[i]->type == YAML_SCALAR) fits = add_targets(port, pair, value->items[i]->text.data, &names);
    if (fits && names.len)
        port_set(port, pair->target, KEY_run_lora_modules_to_save, arena_printf(port->arena, "[%s]", names.data),
                 port_origin(port, pair->key, ""));
    strbuf_deinit(&names);
}

/* Reads a list of ids, or a mapping from module to ids. */
void port_read_token_indices(Port *port, const PortPair *pair)
{
    StrBuf          ids = {0}, modules = {0}, first = {0};
    const YamlNode *value = pair->value;
    bool            is_map = value->type == YAML_MAPPING, fits = true;
    if (value_is_inert(value)) return;
    for (size_t i = 0; i < (is_map ? value->count : 1); i++) {
        const YamlNode *list = is_map ? value->items[i] : value;
        if (is_map) strbuf_printf(&modules, "%s%s", i ? ", " : "", value->keys[i]->text.data);
        ids.len = 0;
        for (size_t k = 0; list->type == YAML_SEQUENCE && k < list->count; k++)
            strbuf_printf(&ids, "%s%s", k ? ", " : "", list->items[k]->type == YAML_SCALAR ? list->items[k]->text.data : "");
        if (i == 0) strbuf_puts(&first, strbuf_cstr(&ids));
        fits = fits && ids.len && strcmp(strbuf_cstr(&first), strbuf_cstr(&ids)) == 0;
    }
    if (!fits) port_problem(port, value, "%s: not supported here: other ids of each module", pair->key->text.data);
    if (fits)
        port_set(port, pair->target, KEY_run_trainable_token_indices, arena_printf(port->arena, "[%s]", strbuf_cstr(&ids)),
                 port_origin(port, pair->key, ""));
    if (fits && is_map)
        port_set(port, pair->target, KEY_run_trainable_token_modules, arena_printf(port->arena, "[%s]", strbuf_cstr(&modules)),
                 port_origin(port, pair->key, ""));
    strbuf_deinit(&first);
    strbuf_deinit(&modules);
    strbuf_deinit(&ids);
}

void port_read_all_linear(Port *port, const PortPair *pair)
{
    if (port_is_true(port->root, pair->key->text.data) && !port->from[KEY_run_lora_target_modules])
        port_set(port, pair->target, KEY_run_lora_target_modules, "all-linear", port_origin(port, pair->key, ""));
}

/* Checks an adapter that is continued. It keeps its own settings, so lora_dropout is dropped. */
static void finish_adapter(Port *port)
{
    const char *dropout = port->from[KEY_run_lora_dropout];
    if (!port->config.adapter) return;
    if (!port->config.lora) {
        str_list_push(port->arena, &port->same,
                      arena_printf(port->arena, "%s: nothing reads it without LoRA", port->from[KEY_run_adapter]));
        port_unset(port, &port->run, KEY_run_adapter);
        return;
    }
    if (port_is_true(port->root, "create_new_adapter"))
        port_problem(
            port, port->root,
            "not supported here: create_new_adapter, a new adapter over one that is there: `surogate merge` that into the model first");
    port->has_no_default[KEY_run_lora_dropout] = true;
    if (!dropout) return;
    str_list_push(port->arena, &port->same, arena_printf(port->arena, "%s: the adapter has its own", dropout));
    port_unset(port, &port->run, KEY_run_lora_dropout);
}

/* PiSSA and OLoRA are saved as LoRA of the unchanged base. DoRA's magnitudes belong to the changed base, so DoRA is refused beside them. */
static void check_beginning(Port *port)
{
    bool            takes = port->config.lora_init == OPT_LORA_INIT_PISSA || port->config.lora_init == OPT_LORA_INIT_OLORA;
    const YamlNode *key = port_key(port->root, port->tool == AXOLOTL ? "peft_init_lora_weights" : "pissa_init");
    if (!port->config.lora || port->config.adapter || !takes || !port->config.lora_use_dora) return;
    port_problem(port, key ? key : port->root, "%s: not supported here: beside DoRA (%s): take one of them",
                 key ? key->text.data : "lora_init", port->from[KEY_run_lora_use_dora]);
}

/* TRL keeps the scales of NF4 in full precision, unless the file asks for nested quantization: reports that they are quantised here. */
static void finish_nested(Port *port)
{
    if (port->tool != TRL || !port->config.lora || port->config.qlora != OPT_QLORA_NF4 || port_get(port->root, "use_bnb_nested_quant"))
        return;
    str_list_push(port->arena, &port->changes,
                  arena_printf(port->arena, "%s: the scales of NF4 are quantised too; TRL's default: use_bnb_nested_quant false",
                               port->from[KEY_run_qlora]));
}

/* Drops a quantized base without adapters: all parameters are trained then. */
static void finish_lora(Port *port)
{
    if (port->config.lora || !port->from[KEY_run_qlora]) return;
    str_list_push(port->arena, &port->changes,
                  arena_printf(port->arena, "%s: all parameters are trained, in the bits of model_dtype", port->from[KEY_run_qlora]));
    port_unset(port, &port->run, KEY_run_qlora);
}

/* ---- precision ---- */

static bool is_word(const char *text, const char *a, const char *b)
{
    return text && (strcmp(text, a) == 0 || strcmp(text, b) == 0);
}

/* Whether bf16 is true, auto or full. If so, fp16 beside it has no effect. */
static bool asks_bf16(const Port *port)
{
    const char *text = port_text(port->root, "bf16");
    return text && !port_is_false(port->root, "bf16");
}

void port_read_precision(Port *port, const PortPair *pair)
{
    const char *text = pair->value->type == YAML_SCALAR ? pair->value->text.data : "";
    bool        on = true, is_half = strstr(pair->key->text.data, "bf") == NULL;
    if (bool_read(text, &on) && !on) return;
    if (port->from[KEY_run_model_dtype] || (is_half && asks_bf16(port))) return;
    port_set(port, &port->run, KEY_run_model_dtype, "bf16", port_origin(port, pair->key, ""));
    if (is_half) port_tell(port, true, pair->key, "", "there is no fp16; bf16 takes its place");
}

static void set_dtype(Port *port, const char *dtype, const char *from)
{
    if (!port->from[KEY_run_model_dtype]) port_set(port, &port->run, KEY_run_model_dtype, dtype, from);
}

static void keep_fp32(Port *port, const char *from)
{
    if (!port->config.lora) port_set(port, &port->run, KEY_run_master_dtype, "fp32", from);
}

static void finish_axolotl_precision(Port *port, const char *dtype)
{
    bool off = port_is_false(port->root, "bf16");
    if (dtype && !port_get(port->root, "bf16"))
        set_dtype(port, is_word(dtype, "float32", "fp32") ? "fp32" : "bf16", "torch_dtype");
    else
        set_dtype(port, off ? "fp32" : "bf16", off ? "bf16: false" : "Axolotl's default: bf16: auto");
}

/* LLaMA-Factory keeps trained parameters in fp32, unless pure_bf16 is set. */
static void finish_factory_precision(Port *port)
{
    bool pure = port_is_true(port->root, "pure_bf16");
    if (pure)
        set_dtype(port, "bf16", "pure_bf16");
    else if (port->from[KEY_run_model_dtype])
        keep_fp32(port, "LLaMA-Factory keeps trained parameters in fp32: src/llamafactory/model/adapter.py");
    else
        set_dtype(port, port->config.lora ? "bf16" : "fp32",
                  port->config.lora ? "LLaMA-Factory takes the model's dtype" : "LLaMA-Factory's default without bf16");
}

/* TRL keeps weights in dtype (default fp32) and computes products in bf16 (by default). */
static void finish_trl_precision(Port *port, const char *dtype)
{
    const YamlNode *key = port_key(port->root, port_text(port->root, "dtype") ? "dtype" : "torch_dtype");
    bool        off = port_is_false(port->root, "bf16"), is_low = is_word(dtype, "bfloat16", "auto") || is_word(dtype, "float16", "half");
    const char *from = dtype ? "dtype" : "TRL's default: dtype float32, trl/trainer/model_config.py";
    set_dtype(port, off && !is_low ? "fp32" : "bf16", off ? "bf16: false" : "TRL's default: bf16, trl/trainer/base_config.py");
    if (!off && !is_low) keep_fp32(port, from);
    if (!off && !is_low && dtype && port->config.lora)
        port_tell(port, true, key, "",
                  "frozen weights are kept in bf16, or as qlora says; model_dtype: fp32 with matmul_dtype: bf16 keeps them in fp32");
}

static void finish_precision(Port *port)
{
    port->has_no_default[KEY_run_master_dtype] = true; /* its value follows from other keys */
    const char *dtype = port_text(port->root, "dtype");
    if (!dtype) dtype = port_text(port->root, "torch_dtype");
    if (port->tool == AXOLOTL) finish_axolotl_precision(port, dtype);
    if (port->tool == LLAMAFACTORY) finish_factory_precision(port);
    if (port->tool == TRL) finish_trl_precision(port, dtype);
    if (port->from[KEY_run_lora_dtype] && port->config.model_dtype == OPT_FLOAT_FP32) {
        str_list_push(port->arena, &port->changes,
                      arena_printf(port->arena, "%s: adapters beside a base in fp32 are in fp32", port->from[KEY_run_lora_dtype]));
        port_unset(port, &port->run, KEY_run_lora_dtype);
    }
}

/* ---- what else keys mean together ---- */

/* The value is a Jinja file, or a folder or a name on the hub of a model whose template is used. */
void port_read_template_path(Port *port, const PortPair *pair)
{
    const char *text = pair->value->type == YAML_SCALAR ? pair->value->text.data : "", *dot = strrchr(text, '.'), *file;
    const char *model = port_text(port->root, "model_name_or_path"), *from = port_origin(port, pair->key, "");
    bool        is_jinja = dot && (strcmp(dot, ".jinja") == 0 || strcmp(dot, ".jinja2") == 0 || strcmp(dot, ".j2") == 0);
    bool        is_file = false, is_dir = false, is_there = false;
    if (!*text) return;
    file = arena_printf(port->arena, "%s/chat_template.jinja", text);
    if (file_exists(text, &is_file) != OK || file_is_dir(text, &is_dir) != OK || file_exists(file, &is_there) != OK) status_clear();
    if (is_jinja || (is_file && !is_dir))
        port_take(port, pair->target, KEY_run_chat_template, pair->value, from);
    else if (model && strcmp(model, text) == 0)
        port_tell(port, false, pair->key, "", "the model's own template is used here too");
    else if (is_there)
        port_set(port, pair->target, KEY_run_chat_template, file, from);
    else
        port_tell(
            port, true, pair->key, "",
            "the template of another model's folder isn't read: the model's own is taken; save the other one as a Jinja file and give "
            "that as chat_template");
}

/* Reads patterns of parameters that are trained. A pattern for the whole language model freezes all else, such as the vision tower. */
void port_read_unfrozen(Port *port, const PortPair *pair)
{
    bool is_whole = false;
    for (size_t i = 0; pair->value->type == YAML_SEQUENCE && i < pair->value->count; i++) {
        const char *text = pair->value->items[i]->type == YAML_SCALAR ? pair->value->items[i]->text.data : "";
        text += *text == '^';
        is_whole |= !strcmp(text, "model.language_model.*") || !strcmp(text, "language_model.*") || !strcmp(text, "model.*");
    }
    if (is_whole)
        port_tell(port, false, pair->key, "", "the whole language model is trained");
    else if (!value_is_inert(pair->value))
        port_problem(port, pair->key, "%s: not supported here: frozen layers", pair->key->text.data);
}

static void add_token(Port *port, YamlNode *list, const char *text, size_t len)
{
    YamlNode *node = arena_new(port->arena, YamlNode);
    *node = (YamlNode){.type = YAML_SCALAR, .source = port->path, .text = {arena_strndup(port->arena, text, len), len}};
    list->items[list->count++] = node;
}

/* Reads a list of tokens, or a text with tokens separated by commas. */
static void read_tokens(Port *port, const PortPair *pair, ConfigKey key)
{
    const YamlNode *value = pair->value;
    const char     *text = value->type == YAML_SCALAR ? value->text.data : "";
    YamlNode       *list = arena_new(port->arena, YamlNode);
    if (value_is_inert(value)) return;
    *list = (YamlNode){.type = YAML_SEQUENCE, .source = port->path};
    list->items = arena_array(port->arena, YamlNode *, value->count + strlen(text) + 1);
    for (size_t i = 0; value->type == YAML_SEQUENCE && i < value->count; i++) {
        if (value->items[i]->type == YAML_SCALAR) add_token(port, list, value->items[i]->text.data, value->items[i]->text.len);
    }
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, ","), begin = strspn(at, " "), end = len;
        while (end > begin && at[end - 1] == ' ') end--;
        if (end > begin) add_token(port, list, at + begin, end - begin);
        at += len + (at[len] == ',');
    }
    port_take(port, pair->target, key, list, port_origin(port, pair->key, ""));
}

void port_read_new_tokens(Port *port, const PortPair *pair)
{
    read_tokens(port, pair, KEY_run_new_tokens);
}

void port_read_new_special_tokens(Port *port, const PortPair *pair)
{
    read_tokens(port, pair, KEY_run_new_special_tokens);
}

/* Adds tokens beyond the standard special tokens. */
static void read_additional(Port *port, const PortPair *pair, const YamlNode *value)
{
    YamlNode *key = arena_new(port->arena, YamlNode);
    PortPair  inner = *pair;
    *key = *pair->key;
    key->text = str_of("special_tokens." ADDITIONAL);
    inner.key = key;
    inner.value = value;
    read_tokens(port, &inner, KEY_run_new_special_tokens);
}

void port_read_special_tokens(Port *port, const PortPair *pair)
{
    bool has_other = false, has_pad = false;
    for (size_t i = 0; pair->value->type == YAML_MAPPING && i < pair->value->count; i++) {
        const YamlNode *value = pair->value->items[i];
        const char     *name = pair->value->keys[i]->type == YAML_SCALAR ? pair->value->keys[i]->text.data : "";
        bool            is_pad = strcmp(name, "pad_token") == 0, is_more = strcmp(name, ADDITIONAL) == 0;
        if (value_is_inert(value)) continue;
        if (is_more) read_additional(port, pair, value);
        has_pad |= is_pad;
        has_other |= !is_pad && !is_more;
    }
    if (has_other)
        port_tell(port, true, pair->key, "", "special tokens are the model's own; the result is the same where these are they");
    else if (has_pad)
        port_tell(port, false, pair->key, "", "padding carries no loss");
}

/* In Axolotl rows of new tokens stay frozen under LoRA, unless the file trains the embedding and the head, or these rows. */
static void finish_axolotl_tokens(Port *port)
{
    static const ConfigKey keys[] = {KEY_run_new_tokens, KEY_run_new_special_tokens};
    bool trains = !port->config.lora || port->config.lora_modules_to_save.count || port->config.trainable_token_indices.count;
    for (int i = 0; i < 2; i++) {
        const char *from = port->from[keys[i]];
        if (!from || trains) continue;
        str_list_push(port->arena, &port->changes,
                      arena_printf(port->arena,
                                   "%s: left out: with LoRA their rows would stay as they begin, unless you set %s and "
                                   "lora_modules_to_save: [embed_tokens, lm_head]. The result is the same where the model has these tokens",
                                   from, options[keys[i]].name));
        port_unset(port, &port->run, keys[i]);
    }
}

/* In LLaMA-Factory new tokens grow the vocabulary, and with LoRA the embedding and the head are then trained whole. */
static void finish_new_tokens(Port *port)
{
    bool has_tokens = port->config.new_tokens.count || port->config.new_special_tokens.count;
    if (has_tokens && !port->from[KEY_run_pad_vocab_multiple])
        port_set(port, &port->run, KEY_run_pad_vocab_multiple, "64",
                 "LLaMA-Factory's default: src/llamafactory/model/model_utils/embedding.py");
    if (port->config.lora && port->config.pad_vocab_multiple && !port->from[KEY_run_lora_modules_to_save])
        port_set(port, &port->run, KEY_run_lora_modules_to_save, "[embed_tokens, lm_head]",
                 "LLaMA-Factory's default of resize_vocab: src/llamafactory/model/adapter.py");
}

static void finish_factory(Port *port)
{
    finish_new_tokens(port);
    bool trains = port_is_true(port->root, "do_train"),
         other = port_is_true(port->root, "do_predict") || port_is_true(port->root, "do_eval");
    if (!trains && other) port_problem(port, port->root, "not supported here: it trains nothing (do_train isn't true)");
    if (port->is_pretraining && !port->from[KEY_run_sample_packing])
        port_set(port, &port->run, KEY_run_sample_packing, "true",
                 "LLaMA-Factory's default of stage pt: src/llamafactory/hparams/parser.py");
    if (port->config.sample_packing && port->from[KEY_run_sample_packing] && !port_is_true(port->root, "neat_packing"))
        str_list_push(port->arena, &port->changes,
                      "packing without neat_packing: documents of a sequence see each other there, and never here");
}

void port_finish(Port *port)
{
    port_default(port, KEY_run_lora);
    port_default(port, KEY_run_learning_rate);
    finish_schedule(port);
    finish_batch(port);
    finish_adapter(port);
    check_beginning(port);
    port_finish_cadence(port);
    finish_lora(port);
    finish_nested(port);
    finish_length(port);
    if (port->tool == AXOLOTL) finish_axolotl_warmup(port);
    if (port->tool == AXOLOTL) finish_axolotl_tokens(port);
    if (port->tool == LLAMAFACTORY) finish_factory(port);
    finish_long_warmup(port);
    finish_precision(port);
}
