/* Hyper-parameters of a model as keys of GGUF. A setting that the format can't express is refused, or limits the context if it matters only
 * for long texts. */
#include "model/gguf_internal.h"

#include "base/log.h"
#include "base/scoped.h"

#include <math.h>
#include <string.h>

enum { ANY_POSITIONS = 1 << 30 }; /* max_positions if config.json names no longest text */

static const GgufFamily families[] = {
#define GGUF_FAMILY(name, architecture, written, traits) {GGUF_FAMILY_##name, architecture, written, traits},
#include "model/gguf_families.def"
#undef GGUF_FAMILY
};

const GgufFamily *gguf_family_of(Str written)
{
    for (int i = 0; i < GGUF_NUM_FAMILIES; i++)
        if (str_equal(written, families[i].written)) return &families[i];
    return NULL;
}

Status gguf_find_family(const HfModel *model, const GgufFamily **out)
{
    const IrModule *module = model->module;
    size_t          len;
    SCOPED_STRBUF(known);
    for (int i = 0; i < GGUF_NUM_FAMILIES; i++) {
        *out = &families[i];
        if (strcmp(families[i].architecture, module->architecture) != 0) {
            strbuf_printf(&known, "%s%s", known.len ? ", " : "", families[i].architecture);
            continue;
        }
        FAIL_IF(module->text != ir_shipped_module(module->architecture, &len), ERR_UNSUPPORTED,
                "%s says what %s computes; a GGUF file can only say what the shipped family of that name computes", module->file,
                module->architecture);
        return OK;
    }
    return status_fail(ERR_UNSUPPORTED, "%s: %s isn't exported to GGUF; families that are: %s", model->config_name, module->architecture,
                       strbuf_cstr(&known));
}

double gguf_dim(const HfModel *model, const char *name)
{
    double value;
    CHECK(ir_dims_get(&model->dims, name, &value));
    return value;
}

static double dim_at(const HfModel *model, const char *name, int64_t at)
{
    double value, index = (double)at;
    CHECK(ir_dims_at(&model->dims, name, &index, &value) == OK);
    return value;
}

/* ---- what differs between families, as one look ---- */

typedef struct KeyWriter {
    Arena            *arena;
    const HfModel    *model;
    const GgufFamily *family;
    GgufKeys         *keys;
    GgufFactors      *factors;
    int               num_factors;
    int64_t           context;
} KeyWriter;

static const char *key(const KeyWriter *writer, const char *name)
{
    return arena_printf(writer->arena, "%s.%s", writer->family->written, name);
}

static void put_count(const KeyWriter *writer, const char *name, double value)
{
    gguf_put_u32(writer->keys, key(writer, name), (uint32_t)value);
}

static void put_real(const KeyWriter *writer, const char *name, double value)
{
    gguf_put_f32(writer->keys, key(writer, name), (float)value);
}

static bool is_family(const KeyWriter *writer, GgufFamilyId id)
{
    return writer->family->id == id;
}

static bool has_dim(const KeyWriter *writer, const char *name)
{
    double value;
    return ir_dims_get(&writer->model->dims, name, &value);
}

/* ---- windows ---- */

static bool is_near(const KeyWriter *writer, int64_t layer)
{
    bool by_layer = is_family(writer, GGUF_FAMILY_QWEN2) || is_family(writer, GGUF_FAMILY_QWEN3) ||
                    is_family(writer, GGUF_FAMILY_SMOLLM3) || writer->family->traits & GGUF_WINDOWS;
    return !by_layer || dim_at(writer->model, "near", layer) != 0;
}

/* How many layers have a sliding window. Layers of qwen2, qwen3 and smollm3 have one only if use_sliding_window is true. */
static int64_t count_near(const KeyWriter *writer)
{
    int64_t count = 0, layers = (int64_t)gguf_dim(writer->model, "L");
    bool    asks = is_family(writer, GGUF_FAMILY_QWEN2) || is_family(writer, GGUF_FAMILY_QWEN3) || is_family(writer, GGUF_FAMILY_SMOLLM3);
    if (!has_dim(writer, "window") || gguf_dim(writer->model, "window") == 0) return 0;
    if (asks && gguf_dim(writer->model, "use_window") == 0) return 0;
    for (int64_t i = 0; i < layers; i++) count += is_near(writer, i);
    return count;
}

/* For a family in which readers have no window: limits the context to the window. In texts that short a window makes no difference. */
static void limit_context(KeyWriter *writer)
{
    int64_t window = has_dim(writer, "window") ? (int64_t)gguf_dim(writer->model, "window") : 0;
    if (!count_near(writer) || window >= writer->context) return;
    writer->context = window;
    log_note(NULL, true, "%s: llama.cpp has no sliding window for this family: the file's context is the window's %lld tokens",
             writer->model->config_name, (long long)window);
}

/* *out: the period of the layers. In each period the last layer has no window. */
static Status find_period(const KeyWriter *writer, int64_t *out)
{
    int64_t layers = (int64_t)gguf_dim(writer->model, "L"), period = 1;
    while (period <= layers && is_near(writer, period - 1)) period++;
    for (int64_t i = 0; i < layers; i++)
        FAIL_IF(is_near(writer, i) != ((i + 1) % period != 0), ERR_UNSUPPORTED,
                "%s: layer_types: layer %lld breaks the period of %lld layers, the last of which has no window; a GGUF file can't say that",
                writer->model->config_name, (long long)i, (long long)period);
    *out = period;
    return OK;
}

static Status put_windows(KeyWriter *writer)
{
    bool    is_gemma3 = is_family(writer, GGUF_FAMILY_GEMMA3);
    int64_t window = (int64_t)gguf_dim(writer->model, "window"), usual = is_gemma3 ? 6 : 2, period = usual;
    if (count_near(writer)) TRY(find_period(writer, &period));
    /* gemma2 always has a window; one as long as the context changes nothing */
    if (!count_near(writer)) window = is_gemma3 ? 0 : writer->context;
    if (window) put_count(writer, "attention.sliding_window", (double)window);
    if (!window || period == usual) return OK;
    put_count(writer, "attention.sliding_window_pattern", (double)period);
    log_note(NULL, true, "%s: every %lldth layer is without a window, which llama.cpp reads since 2026; older ones take %lld",
             writer->model->config_name, (long long)period, (long long)usual);
    return OK;
}

/* ---- rotary positions ---- */

static void add_factors(KeyWriter *writer, const char *name, float *values, int64_t count)
{
    writer->factors[writer->num_factors++] = (GgufFactors){name, count, values};
}

static float *factors_of(KeyWriter *writer, const char *list, int64_t count)
{
    float *values = arena_array(writer->arena, float, count);
    for (int64_t i = 0; i < count; i++) values[i] = (float)dim_at(writer->model, list, i);
    return values;
}

static Status put_llama3(KeyWriter *writer, int64_t pairs)
{
    FAIL_IF(!(writer->family->traits & GGUF_FACTORS), ERR_UNSUPPORTED,
            "%s: rope_type llama3: a GGUF file has no place for its factors in the family %s", writer->model->config_name,
            writer->family->written);
    float *factors = arena_array(writer->arena, float, pairs);
    double factor = gguf_dim(writer->model, "rope_factor");
    for (int64_t i = 0; i < pairs; i++) {
        double keep = dim_at(writer->model, "rope_keep", i);
        factors[i] = (float)(1 / ((1 - keep) / factor + keep));
    }
    add_factors(writer, "rope_freqs.weight", factors, pairs);
    return OK;
}

static Status put_yarn(KeyWriter *writer)
{
    double factor = gguf_dim(writer->model, "rope_factor"), scale = gguf_dim(writer->model, "rope_scale"), usual = 0.1 * log(factor) + 1;
    double fast = gguf_dim(writer->model, "rope_fast"), slow = gguf_dim(writer->model, "rope_slow");
    FAIL_IF(gguf_dim(writer->model, "rope_whole") == 0, ERR_UNSUPPORTED, "%s: truncate: false of yarn can't be said in a GGUF file",
            writer->model->config_name);
    FAIL_IF((fast && fast != 32) || (slow && slow != 1), ERR_UNSUPPORTED,
            "%s: beta_fast %g, beta_slow %g of yarn: llama.cpp takes 32 and 1 whatever a file says", writer->model->config_name, fast,
            slow);
    FAIL_IF(writer->family->traits & GGUF_WINDOWS, ERR_UNSUPPORTED, "%s: yarn in the family %s isn't read as it is here",
            writer->model->config_name, writer->family->written);
    gguf_put_str(writer->keys, key(writer, "rope.scaling.type"), str_of("yarn"));
    put_real(writer, "rope.scaling.factor", factor);
    put_count(writer, "rope.scaling.original_context_length", gguf_dim(writer->model, "rope_original"));
    if (fabs(scale / usual - 1) > 1e-7) put_real(writer, "rope.scaling.attn_factor", scale / usual);
    return OK;
}

static Status put_longrope(KeyWriter *writer, int64_t pairs)
{
    FAIL_IF(!(writer->family->traits & GGUF_LONG), ERR_UNSUPPORTED,
            "%s: rope_type longrope: a GGUF file has no place for its factors in the family %s", writer->model->config_name,
            writer->family->written);
    gguf_put_str(writer->keys, key(writer, "rope.scaling.type"), str_of("longrope"));
    put_real(writer, "rope.scaling.attn_factor", gguf_dim(writer->model, "rope_scale"));
    add_factors(writer, "rope_factors_long.weight", factors_of(writer, "rope_long", pairs), pairs);
    add_factors(writer, "rope_factors_short.weight", factors_of(writer, "rope_short", pairs), pairs);
    return OK;
}

static Status put_rope(KeyWriter *writer)
{
    enum { PLAIN, LLAMA3, LINEAR, DYNAMIC, YARN, LONGROPE };
    int     kind = (int)gguf_dim(writer->model, "rope_kind");
    int64_t pairs = (int64_t)gguf_dim(writer->model, "R") / 2;
    put_count(writer, "rope.dimension_count", (double)(2 * pairs));
    put_real(writer, "rope.freq_base", gguf_dim(writer->model, "theta"));
    if (is_family(writer, GGUF_FAMILY_GEMMA3) && gguf_dim(writer->model, "near_theta") != 10000)
        put_real(writer, "rope.freq_base_swa", gguf_dim(writer->model, "near_theta"));
    if (kind == LONGROPE || is_family(writer, GGUF_FAMILY_PHI3)) /* phi3 always has this key */
        put_count(writer, "rope.scaling.original_context_length",
                  kind == LONGROPE ? gguf_dim(writer->model, "rope_original") : (double)writer->context);
    if (kind == LLAMA3) return put_llama3(writer, pairs);
    if (kind == YARN) return put_yarn(writer);
    if (kind == LONGROPE) return put_longrope(writer, pairs);
    if (kind == LINEAR) {
        gguf_put_str(writer->keys, key(writer, "rope.scaling.type"), str_of("linear"));
        put_real(writer, "rope.scaling.factor", gguf_dim(writer->model, "rope_factor"));
    }
    return OK; /* dynamic: nothing is scaled within the context that the model was made for */
}

/* ---- what a family computes whatever the file says ---- */

/* The number by whose square root readers divide gemma's attention scores. */
static double gemma_scalar(const KeyWriter *writer)
{
    int64_t layers = (int64_t)gguf_dim(writer->model, "L"), largest = is_family(writer, GGUF_FAMILY_GEMMA2) ? 46 : 62;
    double  heads = gguf_dim(writer->model, "H");
    return layers == largest ? floor(gguf_dim(writer->model, "C") / heads) : gguf_dim(writer->model, "D");
}

static Status check_gemma(const KeyWriter *writer)
{
    double wanted = gguf_dim(writer->model, "query_scalar"), fixed = gemma_scalar(writer);
    FAIL_IF(wanted != fixed, ERR_UNSUPPORTED, "%s: query_pre_attn_scalar %g: llama.cpp takes %g for a model of this shape",
            writer->model->config_name, wanted, fixed);
    bool is_capped = gguf_dim(writer->model, "score_cap") && gguf_dim(writer->model, "logit_cap");
    FAIL_IF(is_family(writer, GGUF_FAMILY_GEMMA2) && !is_capped, ERR_UNSUPPORTED,
            "%s: attn_logit_softcapping or final_logit_softcapping is null: llama.cpp has no gemma2 without both",
            writer->model->config_name);
    return OK;
}

static Status check_smollm3(const KeyWriter *writer)
{
    int64_t layers = (int64_t)gguf_dim(writer->model, "L");
    for (int64_t i = 0; i < layers; i++) {
        bool has_rope = dim_at(writer->model, "has_rope", i) != 0;
        FAIL_IF(has_rope != ((i + 1) % 4 != 0), ERR_UNSUPPORTED,
                "%s: no_rope_layers: layer %lld is %s rotary positions; llama.cpp leaves them out of every fourth layer alone",
                writer->model->config_name, (long long)i, has_rope ? "with" : "without");
    }
    return OK;
}

static Status check_family(const KeyWriter *writer)
{
    if (writer->family->traits & GGUF_NORMS_ADD_ONE) TRY(check_gemma(writer));
    if (is_family(writer, GGUF_FAMILY_SMOLLM3)) TRY(check_smollm3(writer));
    FAIL_IF(is_family(writer, GGUF_FAMILY_GPT2) && gguf_dim(writer->model, "tanh") == 0, ERR_UNSUPPORTED,
            "%s: activation_function gelu: llama.cpp computes gpt2 with gelu_new", writer->model->config_name);
    FAIL_IF(is_family(writer, GGUF_FAMILY_GPT2) && (gguf_dim(writer->model, "scaled_by_layer") || !gguf_dim(writer->model, "scaled")),
            ERR_UNSUPPORTED,
            "%s: scale_attn_weights false or scale_attn_by_inverse_layer_idx true: llama.cpp scales scores of gpt2 alike in all layers",
            writer->model->config_name);
    return OK;
}

static void put_attention(KeyWriter *writer)
{
    const HfModel *model = writer->model;
    bool           is_gpt2 = is_family(writer, GGUF_FAMILY_GPT2);
    put_count(writer, "attention.head_count", gguf_dim(model, "H"));
    put_count(writer, "attention.head_count_kv", gguf_dim(model, is_gpt2 ? "H" : "G"));
    put_count(writer, "attention.key_length", gguf_dim(model, "D"));
    put_count(writer, "attention.value_length", gguf_dim(model, "D"));
    put_real(writer, is_gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", gguf_dim(model, "eps"));
}

static void put_caps(KeyWriter *writer)
{
    double score = gguf_dim(writer->model, "score_cap"), logit = gguf_dim(writer->model, "logit_cap");
    if (is_family(writer, GGUF_FAMILY_GEMMA2)) put_real(writer, "attn_logit_softcapping", score);
    if (logit || is_family(writer, GGUF_FAMILY_GEMMA2)) put_real(writer, "final_logit_softcapping", logit);
}

Status gguf_put_model_keys(Arena *arena, const HfModel *model, const GgufFamily *family, GgufKeys *keys,
                           GgufFactors factors[GGUF_MOST_FACTORS], int *out_num_factors)
{
    KeyWriter writer = {arena, model, family, keys, factors, 0, model->max_positions};
    FAIL_IF(model->max_positions == ANY_POSITIONS, ERR_INVALID,
            "%s: it doesn't say how long texts may be, and a GGUF file must; add max_position_embeddings", model->config_name);
    TRY(check_family(&writer));
    if (!(family->traits & GGUF_WINDOWS)) limit_context(&writer);
    put_count(&writer, "block_count", gguf_dim(model, "L"));
    put_count(&writer, "context_length", (double)writer.context);
    put_count(&writer, "embedding_length", gguf_dim(model, "C"));
    put_count(&writer, "feed_forward_length", gguf_dim(model, "F"));
    put_count(&writer, "vocab_size", (double)model->vocab_size);
    put_attention(&writer);
    if (!(family->traits & GGUF_NO_ROPE)) TRY(put_rope(&writer));
    if (family->traits & GGUF_WINDOWS) {
        TRY(put_windows(&writer));
        put_caps(&writer);
    }
    *out_num_factors = writer.num_factors;
    return OK;
}
