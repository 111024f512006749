/* Choices that a run file leaves open are made in this file, and nowhere else. */
#include "setup/setup.h"

#include "base/log.h"
#include "config/options.h"
#include "data/record.h"
#include "files/hub.h"
#include "model/gguf_import.h"
#include "model/weights.h"
#include "passes/precision.h"
#include "setup/lora.h"

#include <stdio.h>
#include <string.h>

/* Checks that rows of new tokens would be trained, before a copy of the model is written. */
static Status check_trained(Arena *arena, const Config *config, const char *dir, const NewTokens *tokens)
{
    GrownTokenizer grown;
    if (!config->lora || config->lora_modules_to_save.count || config->trainable_token_indices.count) return OK;
    TRY(grow_tokenizer(arena, dir, tokens, &grown));
    FAIL_IF(
        grown.num_added && config->adapter, ERR_INVALID,
        "%s trains no rows of tokens, so that new ones would stay as they begin: merge it (surogate merge), and train an adapter over that",
        config->adapter);
    FAIL_IF(
        grown.num_added, ERR_INVALID,
        "with lora the rows of new tokens are trained only if lora_modules_to_save names embedding and head, or trainable_token_indices "
        "the new ids; set lora_modules_to_save: [embed_tokens, lm_head]");
    return OK;
}

NewTokens setup_new_tokens(const Config *config)
{
    return (NewTokens){.num_tokens = (int)config->new_tokens.count,
                       .tokens = config->new_tokens.items,
                       .num_special = (int)config->new_special_tokens.count,
                       .special = config->new_special_tokens.items,
                       .multiple = config->pad_vocab_multiple};
}

static bool grows(const Config *config)
{
    return config->new_tokens.count || config->new_special_tokens.count || config->pad_vocab_multiple;
}

/* The key that enlarges the vocabulary. */
static ConfigKey growing_key(const Config *config)
{
    return config->new_tokens.count           ? KEY_run_new_tokens
           : config->new_special_tokens.count ? KEY_run_new_special_tokens
                                              : KEY_run_pad_vocab_multiple;
}

/* Checks that the run's tokens can be added to the model's folder; *out_dir: that folder. */
static Status check_growth(Arena *arena, const Config *config, const char **out_dir)
{
    const char *gguf;
    NewTokens   tokens = setup_new_tokens(config);
    TRY(hf_local_dir(arena, config->model, out_dir, &gguf));
    FAIL_IF(config->tokenizer, ERR_INVALID, "new tokens with a tokenizer of another folder (tokenizer): expected the model's own");
    return check_trained(arena, config, *out_dir, &tokens);
}

static Status with_new_tokens(Arena *arena, const Config *config, const char **out_dir)
{
    const char *dir;
    NewTokens   tokens = setup_new_tokens(config);
    TRY(check_growth(arena, config, &dir));
    TRY(grow_local_dir(arena, dir, &tokens, out_dir));
    if (*out_dir == dir) *out_dir = config->model;
    return OK;
}

Status setup_model_dir(Arena *arena, const Config *config, const char **out_dir)
{
    *out_dir = config->model;
    return grows(config) ? config_at(config->origin, growing_key(config), with_new_tokens(arena, config, out_dir)) : OK;
}

/* The folder that holds the tokenizer. from: folder or repository of the model, or of the tokenizer if config->tokenizer is set. */
static Status find_tokenizer_dir(Arena *arena, const Config *config, const char *from, const char **out_dir)
{
    StrBuf      path = {0};
    const char *end = "/tokenizer.json";
    ConfigKey   key = config->tokenizer ? KEY_run_tokenizer : KEY_run_model;
    Status      status = hub_local_path(HUB_MODEL, from, &path);
    if (status == OK) {
        size_t len = path.len, cut = strlen(end);
        *out_dir = arena_strndup(arena, path.data, len > cut && strcmp(path.data + len - cut, end) == 0 ? len - cut : len);
        status = gguf_local_dir(arena, *out_dir, out_dir);
    }
    strbuf_deinit(&path);
    return config_at(config->origin, key, status);
}

Status setup_tokenizer_dir(Arena *arena, const Config *config, const char **out_dir)
{
    const char *from = config->tokenizer;
    if (!from) TRY(setup_model_dir(arena, config, &from));
    return find_tokenizer_dir(arena, config, from, out_dir);
}

static Status load_grown_tokenizer(Arena *arena, const Config *config, Tokenizer **out)
{
    const char *dir;
    NewTokens   tokens = setup_new_tokens(config);
    TRY(check_growth(arena, config, &dir));
    return grow_load_tokenizer(dir, &tokens, out);
}

Status setup_view_tokenizer(Arena *arena, const Config *config, const char **out_dir, Tokenizer **out)
{
    TRY(find_tokenizer_dir(arena, config, config->tokenizer ? config->tokenizer : config->model, out_dir));
    if (!out) return OK;
    if (!grows(config)) return tokenizer_load(*out_dir, out);
    return config_at(config->origin, growing_key(config), load_grown_tokenizer(arena, config, out));
}

static NamedIr named_ir(const Config *config, ConfigKey key, const char *file, const char *name, const char *kind)
{
    const char *origin = config->origin[key];
    return (NamedIr){file, config->allow_python || (origin && config_is_argument(origin)), name, kind};
}

NamedIr setup_ir(const Config *config)
{
    return named_ir(config, KEY_run_ir, config->ir, "ir", "model");
}

int64_t setup_sequence_len(const Config *config, const HfModel *model)
{
    bool is_default = !config->origin[KEY_run_sequence_len];
    return is_default && config->sequence_len > model->max_positions ? model->max_positions : config->sequence_len;
}

int64_t setup_run_length(Arena *arena, const Config *config, const char *dir)
{
    HfModel *model;
    bool     is_there;
    Status   status = file_exists(arena_printf(arena, "%s/config.json", dir), &is_there);
    if (status == OK) status = is_there ? hf_model_open_as(arena, dir, setup_ir(config), &model) : ERR_NOT_FOUND;
    if (status == OK) return setup_sequence_len(config, model);
    status_clear(); /* the folder has only a tokenizer, or a model that isn't supported */
    return config->sequence_len;
}

static Status open_teacher(Arena *arena, const Config *config, HfModel **out)
{
    TRY(hf_model_open(arena, config->teacher_model, out));
    (*out)->ns = "teacher";
    return hf_model_require_weights(*out);
}

/* Links an objective other than the model's own, and the teacher model that it reads. */
static Status link_objective(Arena *arena, const Config *config, HfModel *model)
{
    HfModel  *teacher;
    IrModule *objective;
    NamedIr   ir = named_ir(config, KEY_run_objective, config->objective, "objective", "objective");
    FAIL_IF(config->teacher_model && !ir.file, ERR_INVALID,
            "%s: only an objective reads a teacher's outputs; name one under objective, as "
            "examples/dsl/objectives/forward_kl.py, or remove teacher_model",
            config->origin[KEY_run_teacher_model]);
    if (!ir.file) return OK;
    TRY(config_at(config->origin, KEY_run_objective, model_ir_objective(arena, ir, &objective)));
    if (config->teacher_model) TRY(config_at(config->origin, KEY_run_teacher_model, open_teacher(arena, config, &teacher)));
    return config_at(config->origin, KEY_run_objective, hf_model_link(model, objective, &teacher, config->teacher_model ? 1 : 0));
}

static Status grow_view(const Config *config, HfModel *model)
{
    const char *dir;
    NewTokens   tokens = setup_new_tokens(config);
    TRY(check_growth(model->arena, config, &dir));
    return grow_model(model, &tokens);
}

/* Opens the model in `dir`. is_view: the run's new tokens are added in memory only. */
static Status open_model(Arena *arena, const Config *config, const char *dir, bool is_view, HfModel **out_model)
{
    HfModel *model;
    TRY(config_at(config->origin, config->ir ? KEY_run_ir : KEY_run_model, hf_model_open_as(arena, dir, setup_ir(config), &model)));
    *out_model = model;
    TRY(link_objective(arena, config, model));
    if (setup_sequence_len(config, model) > model->max_positions) {
        Status status = status_fail(ERR_INVALID, "sequence_len is %lld, but %s was made for %lld positions (%s); lower sequence_len",
                                    (long long)config->sequence_len, config->model, (long long)model->max_positions, model->positions_key);
        return config_at(config->origin, KEY_run_sequence_len, status);
    }
    bool has_weights;
    TRY(hf_model_has_weights(model, &has_weights));
    bool is_read = !config->from_scratch && has_weights;
    if (is_read) TRY(hf_model_open_weights(model));
    if (is_view && grows(config)) TRY(config_at(config->origin, growing_key(config), grow_view(config, model)));
    return is_read ? setup_check_adapter(arena, config, model) : OK;
}

Status setup_model(Arena *arena, const Config *config, HfModel **out_model)
{
    const char *dir;
    TRY(config_require(config, KEY_run_model, "a run"));
    TRY(setup_model_dir(arena, config, &dir));
    return open_model(arena, config, dir, false, out_model);
}

Status setup_view_model(Arena *arena, const Config *config, HfModel **out_model)
{
    TRY(config_require(config, KEY_run_model, "a plan"));
    return open_model(arena, config, config->model, true, out_model);
}

static DType float_dtype(Choice choice)
{
    return choice == OPT_FLOAT_BF16 ? DT_BF16 : DT_F32;
}

/* The wider of fp32 and bf16. */
static DType wider(DType a, DType b)
{
    return a == DT_F32 || b == DT_F32 ? DT_F32 : DT_BF16;
}

/* Chooses the dtypes of moments, master weights and gradient sums. The sums must be fp32 if the model or the backward pass is fp32, or if
 * forward products read fp32 master weights. Many micro-steps make them fp32 too, unless grad_accum_dtype is set. */
static Status choose_dtypes(const Config *config, CompileOptions *out)
{
    const PrecisionOptions *precision = &out->precision;
    DType                   model = out->model_dtype, sums = model;
    out->moment_dtype = float_dtype(config->moment_dtype);
    out->master_dtype = config->lora                        ? float_dtype(config->lora_dtype)
                        : config->master_dtype == OPT_UNSET ? model
                                                            : float_dtype(config->master_dtype);
    out->master_weights = out->master_dtype != model;
    if (precision->backward == DT_F32) sums = DT_F32;
    if (precision->forward == DT_F32 && !config->lora) sums = wider(sums, out->master_dtype);
    DType accum = config->grad_accum_dtype != OPT_UNSET                    ? float_dtype(config->grad_accum_dtype)
                  : config->gradient_accumulation_steps > MOST_NARROW_SUMS ? DT_F32
                  : config->lora                                           ? wider(sums, out->master_dtype)
                                                                           : sums;
    FAIL_IF(wider(accum, sums) != accum, ERR_UNSUPPORTED,
            "grad_accum_dtype bf16 with %s: sums of gradients can't be narrower than the gradients; leave grad_accum_dtype out",
            model == DT_F32                 ? "model_dtype fp32"
            : precision->backward == DT_F32 ? "gradient_dtype fp32"
                                            : "matmul_dtype fp32 and master_dtype fp32");
    out->fp32_grads = accum == DT_F32 && (model == DT_BF16 || out->master_dtype == DT_BF16);
    return OK;
}

/* The dtype that matmul_dtype or gradient_dtype names; `unset` if the key isn't set. */
static DType operand_dtype(Choice choice, DType unset)
{
    switch (choice) {
    case OPT_MATMUL_FP32:
    case OPT_GRADIENT_FP32:
        return DT_F32;
    case OPT_MATMUL_BF16:
    case OPT_GRADIENT_BF16:
        return DT_BF16;
    case OPT_MATMUL_E4M3:
        return DT_E4M3;
    case OPT_GRADIENT_E5M2:
        return DT_E5M2;
    default:
        return unset;
    }
}

/* gradient_dtype defaults to matmul_dtype, but to the model's dtype if that is e4m3, as gradients can't be e4m3. */
static Status choose_precision(const Config *config, CompileOptions *out)
{
    const Recipe     *recipe = recipe_find(choice_text(config->recipe));
    PrecisionOptions *precision = &out->precision;
    FAIL_IF(!recipe, ERR_INTERNAL, "recipe: no row of recipes.def is named %s", choice_text(config->recipe));
    *precision = (PrecisionOptions){.forward = recipe->forward,
                                    .backward = recipe->backward,
                                    .amax_history = config->fp8_amax_history,
                                    .margin = config->fp8_margin,
                                    .most_recent = config->fp8_amax_algorithm == OPT_AMAX_MOST_RECENT,
                                    .skip_first = config->skip_quant_first_layers,
                                    .skip_last = config->skip_quant_last_layers,
                                    .fp4_nearest = config->no_fp4_stochastic_rounding,
                                    .fp4_hadamard = config->fp4_hadamard,
                                    .fp4_four_six = config->fp4_four_over_six};
    out->model_dtype = float_dtype(config->model_dtype);
    if (recipe->forward != DT_COUNT) return OK;
    DType model = out->model_dtype, matmul = operand_dtype(config->matmul_dtype, model);
    DType gradient = operand_dtype(config->gradient_dtype, matmul == DT_E4M3 ? model : matmul);
    if (gradient == DT_E5M2 && model == DT_BF16 && matmul == DT_F32)
        return config_at(config->origin, KEY_run_gradient_dtype,
                         status_fail(ERR_UNSUPPORTED,
                                     "gradient_dtype e5m2 with model_dtype bf16 and matmul_dtype fp32: there is no product of e5m2 and "
                                     "fp32; set matmul_dtype: e4m3 or bf16, or gradient_dtype: bf16 or fp32"));
    precision->forward = matmul == model ? DT_COUNT : matmul;
    precision->backward = gradient == model ? DT_COUNT : gradient;
    return OK;
}

static Status choose_optimizer(const Config *config, CompileOptions *out)
{
    FAIL_IF(!optimizer_parse(choice_text(config->optimizer), &out->optimizer), ERR_INTERNAL,
            "optimizer: no row of optimizers.def is named %s", choice_text(config->optimizer));
    FAIL_IF(config->lora && config->optimizer == OPT_OPTIMIZER_NORMUON, ERR_INVALID,
            "optimizer: normuon updates the matrices of blocks, which lora freezes; adapters take adamw or adamw_8bit");
    out->normuon.momentum = config->normuon_momentum;
    out->normuon.beta2 = config->normuon_beta2;
    out->normuon.nesterov = config->normuon_nesterov;
    out->normuon.steps = config->normuon_coefficients == OPT_NORMUON_NEWTON_SCHULZ ? NORMUON_NEWTON_SCHULZ : NORMUON_POLAR_EXPRESS;
    return OK;
}

static Status unknown_fusion(const char *name, const char *const names[FUSION_COUNT])
{
    StrBuf list = {0};
    for (int i = 0; i < FUSION_COUNT; i++) strbuf_printf(&list, ", %s", names[i]);
    Status status = status_fail(ERR_INVALID, "fusion: there is none named %s%s; expected all, none%s", name,
                                did_you_mean(", ", name, names, FUSION_COUNT), list.data);
    strbuf_deinit(&list);
    return status;
}

static Status choose_fusions(const Config *config, CompileOptions *out)
{
    const char *names[FUSION_COUNT];
    for (int i = 0; i < FUSION_COUNT; i++) names[i] = fusion_name((Fusion)i);
    out->no_fuse = (1u << FUSION_COUNT) - 1;
    for (size_t k = 0; k < config->fusion.count; k++) {
        const char *item = config->fusion.items[k];
        if (strcmp(item, "all") == 0) out->no_fuse = 0;
        if (strcmp(item, "all") == 0 || strcmp(item, "none") == 0) continue;
        int i = 0;
        while (i < FUSION_COUNT && strcmp(names[i], item) != 0) i++;
        if (i == FUSION_COUNT) return config_at(config->origin, KEY_run_fusion, unknown_fusion(item, names));
        out->no_fuse &= ~(1u << i);
    }
    return OK;
}

static uint32_t recompute_parts(const Config *config)
{
    return (uint32_t)config->recompute_block << PART_BLOCK | (uint32_t)config->recompute_att << PART_ATT |
           (uint32_t)config->recompute_ffn << PART_FFN | (uint32_t)config->recompute_qkv << PART_QKV |
           (uint32_t)config->recompute_swiglu << PART_SWIGLU | (uint32_t)config->recompute_rmsnorm << PART_NORM;
}

void setup_add_program(const Config *config, const HfModel *model, ProgramSpec spec, CompileOptions *options)
{
    enum { PREFILL_CHUNK = 64 };
    const Entry *entry = spec.entry;
    spec.batch = config->per_device_train_batch_size;
    spec.seq = setup_sequence_len(config, model);
    if (entry->source != ENTRY_OF_MODEL) spec.batch = spec.seq = 0;
    if (!entry->has_grads && config->per_device_eval_batch_size > 0) spec.batch = config->per_device_eval_batch_size;
    if (entry->one_row) spec.batch = 1;
    if (entry->is_cached) spec.batch = spec.seq = 1;
    if (entry->one_token) spec.seq = options->cache_len < PREFILL_CHUNK ? options->cache_len : PREFILL_CHUNK;
    if (entry->source != ENTRY_OF_WEIGHTS) compile_add_spec(options, spec); /* compile always adds that program */
}

static void choose_offload(const Config *config, CompileOptions *out)
{
    out->offload = (uint32_t)config->offload_optimizer << OFFLOAD_OPTIMIZER | (uint32_t)config->offload_master << OFFLOAD_MASTER |
                   (uint32_t)config->offload_residual << OFFLOAD_RESIDUAL | (uint32_t)config->offload_weights << OFFLOAD_WEIGHTS |
                   (uint32_t)config->offload_quants << OFFLOAD_QUANTS | (uint32_t)config->offload_grads << OFFLOAD_GRADS;
}

static void choose_programs(const Config *config, const HfModel *model, CompileOptions *out)
{
    bool    has_eval = config->validation_datasets.count > 0 || config->validation_split_ratio > 0;
    bool    has_samples = has_eval && config->generate_samples > 0;
    int64_t micros = config->gradient_accumulation_steps, middle = micros - 1 - (out->world > 1);
    setup_add_program(config, model, program_micro(0, micros, out->world), out);
    if (middle > 0) setup_add_program(config, model, program_micro(1, micros, out->world), out);
    if (out->world > 1 && micros > 1) setup_add_program(config, model, program_micro(micros - 1, micros, out->world), out);
    setup_add_program(config, model, (ProgramSpec){.entry = &entry_optimizer}, out);
    if (out->world > 1) setup_add_program(config, model, (ProgramSpec){.entry = &entry_gather}, out);
    if (has_eval) setup_add_program(config, model, (ProgramSpec){.entry = &entry_eval}, out);
    if (config->whole_logits) setup_add_program(config, model, (ProgramSpec){.entry = &entry_logits}, out);
    if (has_samples) setup_add_program(config, model, (ProgramSpec){.entry = &entry_prefill}, out);
    if (has_samples) setup_add_program(config, model, (ProgramSpec){.entry = &entry_decode}, out);
}

int setup_world(const Config *config)
{
    return (int)(config->gpus * config->world_size);
}

int setup_zero_level(const Config *config)
{
    int least = config->shard_weights ? 3 : config->shard_gradients ? 2 : 1;
    return config->zero_level > least ? (int)config->zero_level : least;
}

/* Two keys may say how gradients are exchanged; they must agree. */
static Status check_crossing(const Config *config)
{
    Choice send = config->memcpy_send_recv, reduce = config->use_all_to_all_reduce;
    FAIL_IF(send != reduce && send != OPT_SWITCH_AUTO && reduce != OPT_SWITCH_AUTO, ERR_INVALID,
            "use_all_to_all_reduce: %s with memcpy_send_recv: %s: they mean the same, leave one of them out", choice_text(reduce),
            choice_text(send));
    return OK;
}

/* offload_grads needs sharded gradients. With LoRA it is allowed without: adapters' gradients stay on the GPU. */
static Status check_grads(const Config *config)
{
    FAIL_IF(config->offload_grads && !config->lora && setup_zero_level(config) < 2, ERR_INVALID,
            "offload_grads: true: gradients go to the host layer by layer, and none is whole on a GPU then; set shard_gradients: true, on "
            "one GPU too");
    return OK;
}

/* Refuses DoRA, and names the key because of which products read codes. */
static Status refuse_dora(const Config *config)
{
    bool      of_recipe = config->recipe != OPT_RECIPE_BF16;
    ConfigKey key = of_recipe ? KEY_run_recipe : KEY_run_matmul_dtype;
    FAIL(ERR_UNSUPPORTED, "lora_use_dora beside %s: %s: DoRA takes norms of weights, which are kept as codes alone then; %s",
         options[key].name, choice_text(of_recipe ? config->recipe : config->matmul_dtype),
         of_recipe ? "take recipe: bf16" : "leave matmul_dtype out");
}

Status setup_options(Arena *arena, const Config *config, const HfModel *model, CompileOptions *out)
{
    *out = compile_defaults();
#define COMPILES(kind, name) out->name = config->name;
#include "config/options.def"
    out->world = setup_world(config);
    out->rank = (int)config->rank;
    out->zero_level = setup_zero_level(config);
    TRY(config_at(config->origin, KEY_run_use_all_to_all_reduce, check_crossing(config)));
    TRY(config_at(config->origin, KEY_run_offload_grads, check_grads(config)));
    out->dense = !config->sample_packing; /* each row then holds one sequence */
    out->cache_len = setup_sequence_len(config, model) + config->sample_max_tokens;
    if (out->cache_len > model->max_positions) out->cache_len = model->max_positions;
    choose_programs(config, model, out);
    TRY(choose_precision(config, out));
    TRY(config_at(config->origin, KEY_run_grad_accum_dtype, choose_dtypes(config, out)));
    if (precision_is_scaled(&out->precision)) setup_add_program(config, model, (ProgramSpec){.entry = &entry_calibrate}, out);
    TRY(config_at(config->origin, KEY_run_optimizer, choose_optimizer(config, out)));
    TRY(choose_fusions(config, out));
    out->scalars = config->log_scalars;
    out->recompute = recompute_parts(config);
    out->micro_steps = config->gradient_accumulation_steps;
    choose_offload(config, out);
    TRY(setup_lora(arena, config, model, &out->lora));
    const WeightFormat *format = weight_format_find(choice_text(config->qlora));
    if (config->lora) weights_use_format(model, config->origin[KEY_run_qlora] != NULL, format, out);
    FAIL_IF(out->weight_format && out->lora.enabled && lora_init_takes(out->lora.init), ERR_UNSUPPORTED,
            "lora_init: %s takes a part of the base's weights, and %s is quantised; take the unquantised model, or lora_init: default",
            choice_text(config->lora_init), model->dir);
    if (out->lora.use_dora && precision_in_codes(&out->precision)) return refuse_dora(config);
    out->train_base = !config->lora;
    return OK;
}

static Status check_list(Arena *arena, const DatasetList *list, bool pull)
{
    for (size_t i = 0; i < list->count; i++) {
        const Dataset *d = &list->items[i];
        char         **paths;
        int            count;
        bool           is_remote = false;
        if (d->path && !pull) TRY(hub_is_remote(d->path, &is_remote));
        if (!d->path || is_remote) continue;
        TRY(config_at(d->origin, KEY_dataset_path,
                      reader_find_files(arena, d->path, d->split, d->type == OPT_DATASET_TEXT, NULL, &paths, &count)));
    }
    return OK;
}

Status setup_check_datasets(Arena *arena, const Config *config, bool pull)
{
    TRY(check_list(arena, &config->datasets, pull));
    return check_list(arena, &config->validation_datasets, pull);
}

static CrossBy crossing(Choice copies)
{
    return copies == OPT_SWITCH_ON ? CROSS_COPIES : copies == OPT_SWITCH_OFF ? CROSS_NCCL : CROSS_AUTO;
}

/* Sets the device's kind of host memory and its ways to gather and reduce over ranks, before anything is allocated on it. */
static void instruct(const Config *config, Device *device)
{
    Choice send = config->memcpy_send_recv, reduce = config->use_all_to_all_reduce;
    device->write_combined = config->use_write_combined;
    device->gather_by = crossing(config->memcpy_all_gather);
    device->reduce_by = crossing(send != OPT_SWITCH_AUTO ? send : reduce);
}

Status setup_device(const Config *config, const char *gpu, Device **out_device)
{
    if (gpu) return device_null_create(gpu, out_device);
    TRY(device_open(choice_text(config->device), 0, (int)config->threads, out_device));
    instruct(config, *out_device);
    return OK;
}

Status setup_rank_device(const Config *config, int index, int count, Device **out_device)
{
    enum { MOST_THREADS = 128 };
    int cores = pool_usable_cores(), all = config->threads ? (int)config->threads : cores < MOST_THREADS ? cores : MOST_THREADS;
    int threads = all / count + (index < all % count);
    if (count == 1) return setup_device(config, NULL, out_device);
    Status status = device_open(choice_text(config->device), index, threads ? threads : 1, out_device);
    if (status != OK) return config_at(config->origin, KEY_run_gpus, status_prefix(status, "gpus: %d", count));
    instruct(config, *out_device);
    return OK;
}

Status setup_plan(Arena *arena, const HfModel *model, const CompileOptions *options, Device *device, Plan **out_plan)
{
    const PrecisionOptions *precision = &options->precision;
    TRY(compile_plan(arena, model->module, &model->config, model->config_name, options, device, out_plan));
    const Plan *plan = *out_plan;
    bool        in_codes = precision_is_scaled(precision) || precision->forward == DT_E2M1;
    bool        in_floats = precision->forward == DT_F32 || precision->forward == DT_BF16 || precision->backward == DT_BF16;
    if ((in_codes || in_floats) && !plan->num_scaled && !plan->num_coded && !plan->num_floats)
        log_warn("all products stay in %s: skip_quant_first_layers, skip_quant_last_layers, qlora%s leave no layer to %s",
                 dtype_info(options->model_dtype)->name, in_codes ? " or dims that aren't multiples of 16" : "",
                 in_codes ? "quantise" : "compute otherwise");
    return OK;
}

Status setup_session(Arena *arena, const HfModel *model, const CompileOptions *options, Device *device, Plan **out_plan,
                     Session **out_session)
{
    TRY(setup_plan(arena, model, options, device, out_plan));
    int64_t limit = (*out_plan)->facts.memory_bytes, need = setup_needed_bytes(*out_plan);
    TRY(setup_check_pinned(*out_plan, 1, device_host_available()));
    FAIL_IF(limit && need > limit, ERR_NO_FIT, "the model needs %.2f GiB of memory, the device has %.2f GiB", (double)need / (1 << 30),
            (double)limit / (1 << 30));
    return session_create(*out_plan, device, out_session);
}

Status setup_refuse_inputs(const HfModel *model, const Plan *plan)
{
    for (int i = 0; i < model->module->num_inputs; i++)
        FAIL_IF(plan_find(plan, model->module->inputs[i].name), ERR_UNSUPPORTED,
                "%s needs the input %s, which no text has; runs over data sets have it, and the steps of a trainer (Python: "
                "Trainer.step(..., inputs={\"%s\": ...}))",
                model->module->architecture, model->module->inputs[i].name, model->module->inputs[i].name);
    return OK;
}

static bool reads_input(const Plan *plan, const char *name, bool trains)
{
    bool does = false;
    for (int i = 0; i < plan->num_programs; i++)
        does |= plan->programs[i].spec.entry->has_grads == trains && program_reads(&plan->programs[i], name);
    return does;
}

static bool gives_input(const Dataset *dataset, const char *name)
{
    for (size_t i = 0; i < dataset->inputs.count; i++)
        if (strcmp(dataset->inputs.keys[i], name) == 0) return true;
    return false;
}

static Status check_given(const HfModel *model, const Plan *plan, const DatasetList *list, bool trains)
{
    const IrModule *module = model->module;
    for (int i = 0; i < module->num_inputs; i++) {
        const char *name = module->inputs[i].name;
        if (!reads_input(plan, name, trains)) continue;
        for (size_t k = 0; k < list->count; k++) {
            const Dataset  *dataset = &list->items[k];
            const IrModule *declares = ir_module_declaring(module, name);
            if (gives_input(dataset, name)) continue;
            Status status = status_fail(ERR_INVALID,
                                        "the data set %s doesn't give the input %s, which %s reads; write inputs: {%s: FIELD} there, with "
                                        "the field of its rows that has numbers of their tokens",
                                        dataset->path, name, declares->architecture ? declares->architecture : declares->file, name);
            return config_at(dataset->origin, KEY_dataset_path, status);
        }
    }
    return OK;
}

static void tell_unread(const IrModule *module, const Plan *plan, const DatasetList *list)
{
    for (size_t k = 0; k < list->count; k++)
        for (size_t i = 0; i < list->items[k].inputs.count; i++) {
            const char     *name = list->items[k].inputs.keys[i];
            const IrModule *declares = ir_module_declaring(module, name);
            if (reads_input(plan, name, true) || reads_input(plan, name, false)) continue;
            if (declares)
                log_warn("%s: inputs: nothing reads %s: %s declares it, but no output is computed of it", list->items[k].path, name,
                         declares->file);
            else
                log_warn("%s: inputs: nothing reads %s: neither the model nor its objective has such an input", list->items[k].path, name);
        }
}

Status setup_check_inputs(const Config *config, const HfModel *model, const Plan *plan, bool tells)
{
    bool is_split = config->validation_datasets.count == 0;
    TRY(check_given(model, plan, &config->datasets, true));
    TRY(check_given(model, plan, is_split ? &config->datasets : &config->validation_datasets, false));
    if (!tells) return OK;
    tell_unread(model->module, plan, &config->datasets);
    tell_unread(model->module, plan, &config->validation_datasets);
    return OK;
}

/* ---- what a plan may take ---- */

int64_t setup_memory_limit(const Config *config, const Plan *plan, ConfigKey *out_key)
{
    const struct {
        ConfigKey key;
        int64_t   bytes, taken; /* taken: bytes of these that the driver takes */
    } bounds[] = {{CONFIG_KEY_COUNT, plan->facts.memory_bytes / (plan->facts.is_host ? config->gpus : 1), 0},
                  {KEY_run_memory_limit, config->memory_limit, 0},
                  {KEY_run_gpu_memory, config->gpu_memory, plan->facts.driver_bytes}};
    int64_t   limit = 0;
    ConfigKey key = CONFIG_KEY_COUNT;
    for (int i = 0; i < 3; i++) {
        int64_t left = bounds[i].bytes > bounds[i].taken ? bounds[i].bytes - bounds[i].taken : 1;
        if (!bounds[i].bytes || (limit && left >= limit)) continue;
        limit = left;
        key = bounds[i].key;
    }
    if (out_key) *out_key = key;
    return limit;
}

int64_t setup_needed_bytes(const Plan *plan)
{
    return plan_total_bytes(plan) + (plan->facts.is_host ? plan_host_bytes(plan) : 0);
}

Status setup_check_pinned(const Plan *plan, int ranks_here, int64_t available)
{
    char    a[32], b[32], of[64] = "the plan pins";
    int64_t need = plan_host_bytes(plan) * ranks_here;
    if (ranks_here > 1) snprintf(of, sizeof of, "the plans of %d ranks pin", ranks_here);
    FAIL_IF(!plan->facts.is_host && available && need > available, ERR_NO_FIT,
            "%s %s of the host's memory, which has %s to spare; leave some of offload_optimizer, offload_master, offload_weights, "
            "offload_quants, offload_grads and offload_residual out",
            of, size_text(need, a), size_text(available, b));
    return OK;
}
