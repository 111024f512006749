/* Loading for inference. */
#include "infer/infer_model.h"

#include "files/json_file.h"
#include "infer/row_adapters.h"
#include "model/weights.h"
#include "passes/precision.h"
#include "setup/setup.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 1 << 20 };

static void add_eos(Arena *arena, EosIds *eos, int64_t id)
{
    for (int i = 0; i < eos->num; i++)
        if (eos->ids[i] == id) return;
    if (id < 0) return;
    size_t count = (size_t)eos->num;
    if ((count & (count - 1)) == 0) { /* grows at 0, 1, 2, 4, ... elements */
        int32_t *grown = arena_array(arena, int32_t, 2 * count + 1);
        if (count) memcpy(grown, eos->ids, count * sizeof *grown);
        eos->ids = grown;
    }
    eos->ids[eos->num++] = (int32_t)id;
}

static void add_eos_of(Arena *arena, EosIds *eos, const JsonValue *config)
{
    const JsonValue *value = json_get(config, "eos_token_id");
    if (value && value->type == JSON_INT) add_eos(arena, eos, value->integer);
    if (!value || value->type != JSON_ARRAY) return;
    for (uint32_t i = 0; i < value->count; i++)
        if (value->items[i].type == JSON_INT) add_eos(arena, eos, value->items[i].integer);
}

static Status add_eos_of_folder(Arena *arena, EosIds *eos, const char *dir)
{
    const char *path = arena_printf(arena, "%s/generation_config.json", dir);
    JsonValue   config;
    TRY(json_file_read_if_there(arena, path, MAX_CONFIG_BYTES, &config));
    TRY(hf_check_token_ids(&config, path));
    add_eos_of(arena, eos, &config);
    return OK;
}

Status infer_find_eos(const InferModel *infer, const char *adapter, Arena *arena, EosIds *out)
{
    *out = (EosIds){0};
    if (adapter) TRY(add_eos_of_folder(arena, out, adapter));
    TRY(add_eos_of_folder(arena, out, infer->model->dir));
    if (!out->num) add_eos_of(arena, out, &infer->model->config);
    if (infer->tokenizer) add_eos(arena, out, tokenizer_eos_id(infer->tokenizer));
    return OK;
}

static Status find_eos(InferModel *infer)
{
    EosIds eos;
    TRY(infer_find_eos(infer, infer->has_adapter ? infer->adapter.dir : NULL, &infer->arena, &eos));
    infer->eos = eos.ids;
    infer->num_eos = eos.num;
    return OK;
}

static Status find_adapter(InferModel *infer, const char **dir, const char *adapter)
{
    bool is_adapter, is_model;
    TRY(peft_is_adapter_dir(*dir, &is_adapter));
    TRY(file_exists(arena_printf(&infer->arena, "%s/config.json", *dir), &is_model));
    if (!adapter && is_adapter && !is_model) {
        TRY(peft_open(&infer->arena, *dir, &infer->adapter));
        infer->has_adapter = true;
        FAIL_IF(!infer->adapter.base_model, ERR_INVALID,
                "%s/adapter_config.json names no base model; give the base as the model "
                "and this folder with --adapter",
                *dir);
        *dir = infer->adapter.base_model;
    } else if (adapter) {
        TRY(peft_open(&infer->arena, adapter, &infer->adapter));
        infer->has_adapter = true;
    }
    return OK;
}

static void set_dtype(InferModel *infer, DType dtype)
{
    infer->options.model_dtype = infer->options.master_dtype = dtype;
}

/* Refuses fp16 for a feature that exists only in bf16 and fp32. */
static Status refuse_half(const InferModel *infer, const char *what)
{
    FAIL_IF(infer->options.model_dtype == DT_F16, ERR_UNSUPPORTED, "dtype fp16 with %s: expected dtype bf16 or fp32", what);
    return OK;
}

void infer_set_options(InferModel *infer)
{
    infer->options = compile_defaults();
    set_dtype(infer, infer->model->dtype);
    infer->options.train_base = false;
    weights_use_format(infer->model, infer->adapter.base_format != NULL, infer->adapter.base_format, &infer->options);
    if (infer->has_adapter) {
        infer->options.lora = infer->adapter.lora;
        infer->options.lora.dropout = 0;
    }
}

Status infer_open(InferModel *infer, const char *dir, const char *adapter, const char *device, int threads)
{
    *infer = (InferModel){0};
    TRY(find_adapter(infer, &dir, adapter));
    Status status = hf_model_open(&infer->arena, dir, &infer->model);
    if (status != OK && infer->has_adapter && !adapter)
        return status_prefix(
            status, "the base model that %s/adapter_config.json names (or give the base as the model, and this folder with --adapter)",
            infer->adapter.dir);
    TRY(status);
    TRY(hf_model_open_weights(infer->model));
    if (infer->has_adapter) {
        peft_check_base(&infer->adapter, infer->model->gguf ? infer->model->gguf : infer->model->dir);
        TRY(peft_check_model(&infer->adapter, infer->model));
    }
    infer->tokenizer_dir = infer->model->dir;
    bool has_own = false, has_tokenizer;
    if (infer->has_adapter) TRY(file_exists(arena_printf(&infer->arena, "%s/tokenizer.json", infer->adapter.dir), &has_own));
    if (has_own) infer->tokenizer_dir = infer->adapter.dir;
    TRY(file_exists(arena_printf(&infer->arena, "%s/tokenizer.json", infer->tokenizer_dir), &has_tokenizer));
    if (has_tokenizer) {
        TRY(tokenizer_load(infer->tokenizer_dir, &infer->tokenizer));
        infer->scratch = tokenizer_scratch_create(infer->tokenizer);
    }
    TRY(find_eos(infer));
    TRY(device_open(device, 0, threads, &infer->device));
    infer_set_options(infer);
    return OK;
}

Status infer_use_dtype(InferModel *infer, const char *name)
{
    if (!name) return OK;
    DType dtype;
    TRY(compile_parse_dtype(name, &dtype));
    set_dtype(infer, dtype);
    return infer->options.weight_format ? refuse_half(infer, "quantised weights") : OK;
}

Status infer_use_format(InferModel *infer, const char *word)
{
    const WeightFormat *format;
    if (!word) return OK;
    TRY(peft_parse_base_format(word, &format));
    weights_use_format(infer->model, true, format, &infer->options);
    return format ? refuse_half(infer, "quantised weights") : OK;
}

Status infer_use_cache(InferModel *infer, const char *word)
{
    return word ? compile_parse_cache(word, &infer->options.fp8_cache) : OK;
}

Status infer_use_recipe(InferModel *infer, const char *name)
{
    if (!name) return OK;
    const Recipe *recipe = recipe_find(name);
    if (!recipe) {
        StrBuf names = {0};
        for (int i = 0; recipe_at(i); i++) strbuf_printf(&names, "%s%s", i ? ", " : "", recipe_at(i)->name);
        Status status = status_fail(ERR_INVALID, "there is no recipe %.100s; expected one of %s", name, strbuf_cstr(&names));
        strbuf_deinit(&names);
        return status;
    }
    if (recipe->forward == DT_COUNT) return OK;
    infer->options.precision.forward = recipe->forward;
    infer->options.precision.own_scales = true;
    FAIL_IF(infer->has_adapter && infer->adapter.lora.use_dora && precision_in_codes(&infer->options.precision), ERR_UNSUPPORTED,
            "recipe %s with %s, an adapter of DoRA (use_dora): DoRA takes norms of weights, which are kept as codes alone then; leave the "
            "recipe out, or merge the adapter",
            recipe->name, infer->adapter.dir);
    return refuse_half(infer, "a recipe");
}

void infer_want_decoding(InferModel *infer, const DecoderOptions *want)
{
    infer->options.num_programs = 0;
    decoder_want(&infer->options, infer->device, want, infer_num_choices(infer));
}

void infer_want_generation(InferModel *infer, int64_t prompt_len, int64_t cache_len)
{
    infer_want_decoding(infer, &(DecoderOptions){.rows = 1, .context = cache_len, .prompt = prompt_len});
}

Status infer_start(InferModel *infer)
{
    infer_stop(infer);
    if (!infer->is_told) hf_model_tell(infer->model, infer->options.model_dtype, infer->options.weight_format, NULL, NULL);
    TRY(setup_session(&infer->plan_arena, infer->model, &infer->options, infer->device, &infer->plan, &infer->session));
    TRY(setup_refuse_inputs(infer->model, infer->plan));
    TRY(weights_load(infer->session, infer->model));
    if (!infer->is_told) TRY(weights_tell_requantised(infer->session, infer->model));
    infer->is_told = true;
    if (infer->has_adapter) TRY(weights_load_adapter(infer->session, infer->adapter.dir));
    return infer_read_adapters(infer);
}

static bool serves(const DecoderOptions *has, const DecoderOptions *want)
{
    return has->rows >= want->rows && has->context == want->context && has->pages == want->pages && has->prompt >= want->prompt &&
           has->best >= want->best && has->penalties >= want->penalties && has->biases >= want->biases && has->guides >= want->guides;
}

Status infer_start_decoding(InferModel *infer, const DecoderOptions *options)
{
    if (infer->session && serves(&infer->decoding, options)) return infer_read_adapters(infer);
    infer_want_decoding(infer, options);
    TRY(infer_start(infer));
    infer->decoding = *options;
    return OK;
}

void infer_stop(InferModel *infer)
{
    session_destroy(infer->session);
    arena_deinit(&infer->plan_arena);
    infer->plan = NULL;
    infer->session = NULL;
    infer->decoding = (DecoderOptions){0};
    infer->adapters_are_read = false;
}

void infer_close(InferModel *infer)
{
    infer_stop(infer);
    if (infer->scratch) tokenizer_scratch_destroy(infer->scratch);
    if (infer->tokenizer) tokenizer_destroy(infer->tokenizer);
    if (infer->device) infer->device->api->destroy(infer->device);
    hf_model_close(infer->model);
    arena_deinit(&infer->adapters_arena);
    arena_deinit(&infer->arena);
    *infer = (InferModel){0};
}

Status infer_check_ids(const InferModel *infer, const TokenIds *ids, size_t first)
{
    for (size_t i = first; i < ids->len; i++)
        FAIL_IF(ids->data[i] >= infer->model->vocab_size, ERR_INVALID,
                "token id %d (%s) is beyond the model's vocabulary of %lld: tokenizer and config.json don't belong together", ids->data[i],
                tokenizer_id_to_token(infer->tokenizer, ids->data[i]), (long long)infer->model->vocab_size);
    return OK;
}

int64_t infer_num_choices(const InferModel *infer)
{
    int64_t model = infer->model->vocab_size, tokenizer = infer->tokenizer ? tokenizer_vocab_size(infer->tokenizer) : model;
    return tokenizer < model ? tokenizer : model;
}

bool infer_longrope(const InferModel *infer, int64_t *out_original)
{
    const char       key[] = "original_max_position_embeddings";
    const JsonValue *config = &infer->model->config, *rope = json_get(config, "rope_scaling");
    const char      *type;
    if (!rope) rope = json_get(config, "rope_parameters");
    if (!rope || (!json_get_str(rope, "rope_type", &type) && !json_get_str(rope, "type", &type))) return false;
    return strcmp(type, "longrope") == 0 && (json_get_int(rope, key, out_original) || json_get_int(config, key, out_original));
}

Status infer_encode(InferModel *infer, const char *text, size_t len, bool add_special, TokenIds *out)
{
    EncodeOptions options = {.add_special = add_special};
    size_t        first = out->len;
    FAIL_IF(!infer->tokenizer, ERR_NOT_FOUND, "%s has no tokenizer.json, which is needed to read text", infer->tokenizer_dir);
    TRY(tokenizer_encode(infer->tokenizer, infer->scratch, text, len, options, out));
    return infer_check_ids(infer, out, first);
}

size_t infer_first_bytes(const InferModel *infer, Str text, int32_t first)
{
    const char *name = tokenizer_id_to_token(infer->tokenizer, first);
    size_t      len = name ? strlen(name) : 0;
    StrBuf      decoded = {0};
    if (tokenizer_is_special(infer->tokenizer, first)) { /* the token is written in the text, or was added */
        bool is_added = tokenizer_adds_bos(infer->tokenizer) && first == tokenizer_bos_id(infer->tokenizer);
        return !is_added && len <= text.len && memcmp(name, text.data, len) == 0 ? len : 0;
    }
    int64_t bytes = tokenizer_token_bytes(infer->tokenizer, first);
    if (bytes < 0 && tokenizer_decode(infer->tokenizer, &first, 1, true, &decoded) == OK) bytes = (int64_t)decoded.len;
    strbuf_deinit(&decoded);
    return bytes < 0 ? 0 : (size_t)bytes < text.len ? (size_t)bytes : text.len;
}
