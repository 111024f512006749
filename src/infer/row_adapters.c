/* See row_adapters.h. */
#include "infer/row_adapters.h"

#include "base/log.h"
#include "model/weights.h"

#include <string.h>

static Status check_name(const AdapterName *names, int index)
{
    const AdapterName *own = &names[index];
    FAIL_IF(!own->name || !own->name[0] || !own->dir || !own->dir[0], ERR_INVALID, "adapter %d: expected a name and a folder", index);
    for (int k = 0; k < index; k++)
        FAIL_IF(strcmp(names[k].name, own->name) == 0, ERR_INVALID, "two adapters are called %s: %s and %s", own->name, names[k].dir,
                own->dir);
    return OK;
}

static Status check_tokenizer(const InferModel *infer, const RowAdapter *adapter)
{
    Tokenizer *own;
    bool       is_there;
    StrBuf     path = {0};
    strbuf_printf(&path, "%s/tokenizer.json", adapter->peft.dir);
    Status status = file_exists(strbuf_cstr(&path), &is_there);
    strbuf_deinit(&path);
    TRY(status);
    if (!is_there) return OK;
    TRY(tokenizer_load(adapter->peft.dir, &own));
    bool is_same = infer->tokenizer && tokenizer_hash(own) == tokenizer_hash(infer->tokenizer);
    tokenizer_destroy(own);
    FAIL_IF(!is_same, ERR_UNSUPPORTED,
            "%s has a tokenizer of its own, which isn't the model's; expected one that all adapters share. Give it alone: --adapter %s",
            adapter->peft.dir, adapter->peft.dir);
    return OK;
}

static Status open_adapter(const InferModel *infer, Arena *arena, const AdapterName *name, RowAdapter *out)
{
    out->name = arena_strdup(arena, name->name);
    TRY(peft_open(arena, name->dir, &out->peft));
    FAIL_IF(
        out->peft.lora.num_whole, ERR_UNSUPPORTED,
        "%s holds %s, trained whole (modules_to_save), which rows can't choose; give it alone (--adapter %s; served: its folder as the model), or merge it",
        name->dir, out->peft.lora.whole[0], name->dir);
    FAIL_IF(
        out->peft.lora.use_dora, ERR_UNSUPPORTED,
        "%s is an adapter of DoRA (use_dora), which rows can't choose; give it alone (--adapter %s; served: its folder as the model), or merge it",
        name->dir, name->dir);
    FAIL_IF(
        out->peft.lora.num_tokens, ERR_UNSUPPORTED,
        "%s holds rows of tokens (trainable_token_indices), which rows can't choose; give it alone (--adapter %s; served: its folder as the model), or merge it",
        name->dir, name->dir);
    peft_check_base(&out->peft, infer->model->dir);
    TRY(peft_check_model(&out->peft, infer->model));
    if (out->peft.base_format && out->peft.base_format != infer->options.weight_format)
        log_warn("adapter %s was trained over weights in %s, and is used over others (--qlora)", name->name, out->peft.base_format->name);
    TRY(check_tokenizer(infer, out));
    return infer_find_eos(infer, out->peft.dir, arena, &out->eos);
}

static bool same_modules(const LoraOptions *a, const LoraOptions *b)
{
    if (a->num_modules != b->num_modules || a->use_rslora != b->use_rslora) return false;
    for (int i = 0; i < a->num_modules; i++) {
        const LoraModule *x = &a->modules[i], *y = &b->modules[i];
        if (strcmp(x->path, y->path) != 0 || x->r != y->r || x->alpha != y->alpha) return false;
    }
    return true;
}

/* Whether a session compiled for adapters `a` can load the weights of adapters `b`. */
static bool same_shapes(const RowAdapter *a, int num_a, const RowAdapter *b, int num_b)
{
    if (num_a != num_b) return false;
    for (int i = 0; i < num_a; i++)
        if (!same_modules(&a[i].peft.lora, &b[i].peft.lora)) return false;
    return true;
}

static void take_options(InferModel *infer, Arena *arena)
{
    LoraOptions *options = arena_array(arena, LoraOptions, infer->num_row_adapters + 1);
    for (int i = 0; i < infer->num_row_adapters; i++) options[i] = infer->row_adapters[i].peft.lora;
    infer->options.row_adapters = options;
    infer->options.num_row_adapters = infer->num_row_adapters;
}

Status infer_use_adapters(InferModel *infer, const AdapterName *names, int count)
{
    FAIL_IF(count && infer->has_adapter, ERR_INVALID,
            "the model was opened with the adapter %s, which all texts have; adapters by name need a model without", infer->adapter.dir);
    Arena       arena = {0};
    RowAdapter *adapters = arena_array(&arena, RowAdapter, count + 1);
    Status      status = OK;
    for (int i = 0; i < count && status == OK; i++) {
        status = check_name(names, i);
        if (status != OK) break;
        status = open_adapter(infer, &arena, &names[i], &adapters[i]);
        if (status != OK) status = status_prefix(status, "adapter %s", names[i].name);
    }
    if (status != OK) {
        arena_deinit(&arena);
        return status;
    }
    if (!same_shapes(infer->row_adapters, infer->num_row_adapters, adapters, count)) infer_stop(infer);
    arena_deinit(&infer->adapters_arena);
    infer->row_adapters = adapters;
    infer->num_row_adapters = count;
    infer->adapters_are_read = false;
    take_options(infer, &arena);
    infer->adapters_arena = arena;
    return OK;
}

Status infer_read_adapters(InferModel *infer)
{
    bool decodes = compile_cache_rows(&infer->options) > 0;
    if (!decodes || !infer->num_row_adapters || infer->adapters_are_read) return OK;
    const char **dirs = arena_array(&infer->adapters_arena, const char *, infer->num_row_adapters);
    for (int i = 0; i < infer->num_row_adapters; i++) dirs[i] = infer->row_adapters[i].peft.dir;
    TRY(weights_load_row_adapters(infer->session, dirs, infer->num_row_adapters));
    infer->adapters_are_read = true;
    return OK;
}

Status infer_find_adapter(const InferModel *infer, Str name, int *out_index)
{
    StrBuf names = {0};
    for (int i = 0; i < infer->num_row_adapters; i++) {
        *out_index = i;
        if (str_equal(name, infer->row_adapters[i].name)) return OK;
    }
    for (int i = 0; i < infer->num_row_adapters; i++) strbuf_printf(&names, "%s%s", i ? ", " : "", infer->row_adapters[i].name);
    Status status = status_fail(ERR_INVALID, "there is no adapter %.*s%s%s", (int)(name.len < 100 ? name.len : 100), name.data,
                                names.len ? "; expected one of " : ": none was given by name (--adapter NAME=DIR)", strbuf_cstr(&names));
    strbuf_deinit(&names);
    return status;
}
