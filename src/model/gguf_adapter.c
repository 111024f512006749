/* A LoRA adapter as a GGUF file: two factors for each matrix, named after that matrix in the base's file. */
#include "base/log.h"
#include "base/scoped.h"
#include "model/gguf_internal.h"
#include "model/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A factor (A or B) to write. */
typedef struct Half {
    const StTensor *tensor;
    float           factor; /* multiplies all values */
    int64_t         width;  /* rows are permuted within heads of this many rows; 0: not permuted */
} Half;

typedef struct AdapterWriter {
    Arena             *arena;
    const HfModel     *base;
    const PeftAdapter *adapter;
    const GgufFamily  *family;
    StFile            *file;
    GgufType           type;
    Half              *halves;
    GgufDecl          *decls;
    size_t             count;
} AdapterWriter;

/* Readers multiply a pair by alpha / r, with one alpha for the whole file. The rest of the pair's scale goes into B. */
static float factor_of(const AdapterWriter *writer, const LoraModule *module)
{
    const LoraOptions *lora = &writer->adapter->lora;
    return (float)(lora_scale(lora, module->r, module->alpha) * (double)module->r / lora->alpha);
}

static Status add_half(AdapterWriter *writer, const LoraModule *module, const GgufPlace *place, bool is_b)
{
    Half       *half = &writer->halves[writer->count];
    GgufDecl   *decl = &writer->decls[writer->count];
    const char *name = arena_printf(writer->arena, PEFT_PREFIX PEFT_TENSOR, module->path, is_b ? PEFT_B : PEFT_A);
    bool        turns = writer->family->traits & GGUF_PERMUTES && (place->role == GGUF_Q || place->role == GGUF_K);
    TRY(st_require(writer->file, name, &half->tensor));
    TRY(st_check_range(half->tensor, DT_F32));
    FAIL_IF(half->tensor->ndim != 2, ERR_INVALID, "%s: tensor %s has %d dims, expected 2", half->tensor->path, name, half->tensor->ndim);
    half->factor = is_b ? factor_of(writer, module) : 1;
    half->width = is_b && turns ? (int64_t)gguf_dim(writer->base, "D") : 0;
    *decl =
        (GgufDecl){.name = arena_printf(writer->arena, "%s.%s", place->name, is_b ? "lora_b" : "lora_a"), .type = writer->type, .ndim = 2};
    for (int i = 0; i < 2; i++) decl->dim[i] = half->tensor->dim[i];
    if (decl->dim[1] % gguf_block(decl->type) != 0) decl->type = GGUF_F16;
    writer->count++;
    return OK;
}

/* Adds both factors of each matrix that is adapted. */
static Status add_modules(AdapterWriter *writer)
{
    Graph *graph;
    TRY(hf_model_bind(writer->arena, writer->base, DT_F32, &graph));
    writer->halves = arena_array(writer->arena, Half, 2 * (size_t)graph->num_params);
    writer->decls = arena_array(writer->arena, GgufDecl, 2 * (size_t)graph->num_params);
    for (int i = 0; i < graph->num_params; i++) {
        const Param      *param = graph->params[i];
        const LoraModule *module = param->module ? lora_find_module(&writer->adapter->lora, param->module) : NULL;
        GgufPlace         place;
        if (!module) continue;
        FAIL_IF(param->untied, ERR_UNSUPPORTED,
                "%s adapts the head, which is the embedding: a GGUF adapter can't say that; export the merged model", writer->adapter->dir);
        TRY(gguf_place(writer->arena, writer->family, weights_source(writer->base->weights, param)->names[0], &place));
        TRY(add_half(writer, module, &place, false));
        TRY(add_half(writer, module, &place, true));
    }
    return OK;
}

static Status append_half(void *context, size_t index, FileWriter *out)
{
    const AdapterWriter *writer = context;
    const Half          *half = &writer->halves[index];
    const GgufDecl      *decl = &writer->decls[index];
    int64_t              cols = decl->dim[1];
    SCOPED_ARRAY(float, values, cols);
    SCOPED_ARRAY(char, blocks, gguf_bytes(decl->type, cols));
    DType as = decl->type == GGUF_F32 || decl->type == GGUF_BF16 ? DT_F32 : DT_F16;
    for (int64_t row = 0; row < decl->dim[0]; row++) {
        int64_t from = half->width ? gguf_permuted_row(row, half->width) : row;
        TRY(st_to_f32(half->tensor, from * cols, cols, values));
        for (int64_t i = 0; i < cols; i++) values[i] *= half->factor;
        FAIL_IF(dtype_first_unfit(as, values, cols) < cols, ERR_INVALID, "%s: tensor %s holds values that %s can't hold; take --type f32",
                half->tensor->path, half->tensor->name, gguf_type_name(decl->type));
        gguf_encode(decl->type, values, cols, blocks);
        TRY(file_writer_append(out, blocks, (size_t)gguf_bytes(decl->type, cols)));
    }
    return OK;
}

/* ERR_UNSUPPORTED if the adapter has something that the format can't express. */
static Status check_adapter(const PeftAdapter *adapter)
{
    const LoraOptions *lora = &adapter->lora;
    FAIL_IF(lora->num_whole, ERR_UNSUPPORTED,
            "%s holds %s, trained whole (modules_to_save): a GGUF adapter can't say that; export the merged model", adapter->dir,
            lora->whole[0]);
    FAIL_IF(lora->use_dora, ERR_UNSUPPORTED, "%s is an adapter of DoRA (use_dora): a GGUF adapter can't say that; export the merged model",
            adapter->dir);
    FAIL_IF(lora->num_tokens, ERR_UNSUPPORTED,
            "%s holds rows of tokens (trainable_token_indices): a GGUF adapter can't say that; export the merged model", adapter->dir);
    FAIL_IF(lora->alpha == 0, ERR_INVALID, "%s: lora_alpha is 0, so that the adapter changes nothing", adapter->dir);
    return OK;
}

Status gguf_export_adapter(HfModel *base, const PeftAdapter *adapter, GgufPreset preset, const char *path)
{
    static const GgufType types[GGUF_NUM_PRESETS] = {
        [GGUF_PRESET_F32] = GGUF_F32, [GGUF_PRESET_F16] = GGUF_F16, [GGUF_PRESET_BF16] = GGUF_BF16, [GGUF_PRESET_Q8_0] = GGUF_Q8_0};
    SCOPED_ARENA(arena);
    SCOPED(st_close_at) StFile       *file = NULL;
    SCOPED(gguf_keys_deinit) GgufKeys keys = {0};
    AdapterWriter                     writer = {.arena = &arena, .base = base, .adapter = adapter, .type = types[preset]};
    FAIL_IF(preset != GGUF_PRESET_F32 && types[preset] == GGUF_F32, ERR_INVALID,
            "--type: an adapter alone is written as f32, f16, bf16 or q8_0; fewer bits would lose what was learnt");
    TRY(hf_model_open_weights(base));
    TRY(gguf_find_family(base, &writer.family));
    TRY(peft_check_model(adapter, base));
    TRY(check_adapter(adapter));
    TRY(peft_open_tensors(adapter->dir, &file));
    writer.file = file;
    TRY(add_modules(&writer));
    gguf_put_str(&keys, "general.architecture", str_of(writer.family->written));
    gguf_put_str(&keys, "general.type", str_of("adapter"));
    gguf_put_str(&keys, "adapter.type", str_of("lora"));
    gguf_put_f32(&keys, "adapter.lora.alpha", (float)adapter->lora.alpha);
    return gguf_write(path, &keys, writer.decls, writer.count, append_half, &writer);
}
