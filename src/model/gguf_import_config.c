/* Writes config.json from the keys of a GGUF file. */
#include "model/gguf_import_internal.h"

#include "base/scoped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double gguf_import_number(Import *import, const char *name, double fallback)
{
    gguf_get_number(import->file, arena_printf(&import->arena, "%s.%s", import->family->written, name), &fallback);
    return fallback;
}

static double number(Import *import, const char *name, double fallback)
{
    return gguf_import_number(import, name, fallback);
}

/* number() as a count; 0 if the number isn't a count. */
static int64_t whole(Import *import, const char *name, double fallback)
{
    double value = number(import, name, fallback);
    return value >= 0 && value <= 1e12 ? (int64_t)value : 0;
}

/* ---- the object ---- */

static void put_key(StrBuf *out, const char *key)
{
    strbuf_printf(out, "%s\n  \"%s\": ", out->len > 1 ? "," : "", key);
}

static void put_number(StrBuf *out, const char *key, double value)
{
    put_key(out, key);
    if (value == floor(value) && fabs(value) < 1e15)
        strbuf_printf(out, "%lld", (long long)value);
    else
        json_write_double(out, value);
}

static void put_text(StrBuf *out, const char *key, const char *text)
{
    put_key(out, key);
    json_write_string(out, text, strlen(text));
}

static void put_flag(StrBuf *out, const char *key, bool value)
{
    put_key(out, key);
    strbuf_puts(out, value ? "true" : "false");
}

/* The shortest decimal that rounds to the same float: 1e-06, not 9.99999997e-07. */
static double shortest(double value)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if ((float)strtod(text, NULL) == (float)value) return strtod(text, NULL);
    }
    return value;
}

/* ---- rotary positions ---- */

static const float *factors_at(Import *import, const char *name, int64_t pairs)
{
    const GgufTensor *tensor = gguf_find(import->file, name);
    if (!tensor || tensor->type != GGUF_F32 || tensor->numel != pairs) return NULL;
    float *values = arena_array(&import->arena, float, pairs);
    memcpy(values, tensor->data, (size_t)pairs * sizeof *values);
    return values;
}

static void put_list(StrBuf *out, const char *key, const float *values, int64_t count)
{
    strbuf_printf(out, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++) {
        if (i) strbuf_puts(out, ", ");
        json_write_double(out, (double)values[i]);
    }
    strbuf_putc(out, ']');
}

/* Whether these settings of rope_type llama3 give the file's factors. */
static bool is_llama3(const float *factors, int64_t pairs, double theta, double factor, double original)
{
    for (int64_t i = 0; i < pairs; i++) {
        double turns = original * pow(theta, -(double)i / (double)pairs) / (2 * M_PI), keep = fmin(1, fmax(0, (turns - 1) / (4 - 1)));
        if (fabs(1 / ((1 - keep) / factor + keep) - (double)factors[i]) > 1e-5 * (double)factors[i]) return false;
    }
    return true;
}

/* Llama 3's rope_freqs: the file has only the factors. config.json needs the settings that they were computed from, so these are searched
 * for. */
static Status put_llama3(Import *import, const float *factors, int64_t pairs, double theta, StrBuf *out)
{
    double factor = 1;
    for (int64_t i = 0; i < pairs; i++) factor = fmax(factor, (double)factors[i]);
    for (double original = 16; original <= 1 << 20; original *= 2) {
        if (!is_llama3(factors, pairs, theta, factor, original)) continue;
        put_key(out, "rope_scaling");
        strbuf_printf(out,
                      "{\"rope_type\": \"llama3\", \"factor\": %g, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                      "\"original_max_position_embeddings\": %g}",
                      factor, original);
        return OK;
    }
    FAIL(ERR_UNSUPPORTED, "%s: rope_freqs.weight: these factors aren't Llama 3's, and no config.json can say them", import->path);
}

static void put_longrope(Import *import, int64_t pairs, StrBuf *out)
{
    const float *longs = factors_at(import, "rope_factors_long.weight", pairs),
                *shorts = factors_at(import, "rope_factors_short.weight", pairs);
    double scale = number(import, "rope.scaling.attn_factor", 0);
    if (!longs || !shorts) return;
    put_key(out, "rope_scaling");
    strbuf_puts(out, "{\"rope_type\": \"longrope\"");
    put_list(out, "long_factor", longs, pairs);
    put_list(out, "short_factor", shorts, pairs);
    if (scale) {
        strbuf_puts(out, ", \"attention_factor\": ");
        json_write_double(out, scale);
    }
    strbuf_putc(out, '}');
}

static Status put_rope(Import *import, int64_t head, StrBuf *out)
{
    int64_t      pairs = whole(import, "rope.dimension_count", (double)head) / 2;
    double       theta = number(import, "rope.freq_base", 10000), factor = number(import, "rope.scaling.factor", 1);
    const char  *key = arena_printf(&import->arena, "%s.rope.scaling.type", import->family->written);
    const float *factors = factors_at(import, "rope_freqs.weight", pairs);
    Str          type = {"none", 4};
    put_number(out, "rope_theta", shortest(theta));
    if (2 * pairs != head) put_number(out, "partial_rotary_factor", 2.0 * (double)pairs / (double)head);
    gguf_get_str(import->file, key, &type);
    FAIL_IF(gguf_find(import->file, "rope_freqs.weight") && !factors, ERR_INVALID, "%s: rope_freqs.weight: expected %lld numbers of F32",
            import->path, (long long)pairs);
    if (factors) return put_llama3(import, factors, pairs, theta, out);
    put_longrope(import, pairs, out);
    double usual = 0.1 * log(factor) + 1, scale = number(import, "rope.scaling.attn_factor", 1);
    if (str_equal(type, "linear") && factor != 1) {
        put_key(out, "rope_scaling");
        strbuf_printf(out, "{\"rope_type\": \"linear\", \"factor\": %.9g}", factor);
    } else if (str_equal(type, "yarn")) {
        put_key(out, "rope_scaling");
        strbuf_printf(out, "{\"rope_type\": \"yarn\", \"factor\": %.9g, \"original_max_position_embeddings\": %.0f, \"attention_factor\": ",
                      factor, number(import, "rope.scaling.original_context_length", 0));
        json_write_double(out, scale * usual);
        strbuf_putc(out, '}');
    }
    return OK;
}

/* ---- families ---- */

static void put_gemma(Import *import, double heads, double hidden, int64_t head, int64_t layers, StrBuf *out)
{
    bool   is_gemma2 = import->family->id == GGUF_FAMILY_GEMMA2, largest = layers == (is_gemma2 ? 46 : 62);
    double window = number(import, "attention.sliding_window", is_gemma2 ? 4096 : 0);
    put_text(out, "hidden_activation", "gelu_pytorch_tanh");
    put_number(out, "query_pre_attn_scalar", largest ? floor(hidden / heads) : (double)head);
    put_key(out, "sliding_window");
    if (window)
        strbuf_printf(out, "%.0f", window);
    else
        strbuf_puts(out, "null");
    int64_t period = whole(import, "attention.sliding_window_pattern", is_gemma2 ? 2 : 6);
    put_key(out, "layer_types");
    for (int64_t i = 0; i < layers; i++)
        strbuf_printf(out, "%s\"%s\"", i ? ", " : "[",
                      window && (i + 1) % (period > 0 ? period : 1) != 0 ? "sliding_attention" : "full_attention");
    strbuf_puts(out, "]");
    if (is_gemma2) put_number(out, "attn_logit_softcapping", shortest(number(import, "attn_logit_softcapping", 50)));
    if (is_gemma2) put_number(out, "final_logit_softcapping", shortest(number(import, "final_logit_softcapping", 30)));
    if (!is_gemma2) put_number(out, "rope_local_base_freq", shortest(number(import, "rope.freq_base_swa", 10000)));
    double cap = number(import, "final_logit_softcapping", 0);
    if (!is_gemma2 && cap) put_number(out, "final_logit_softcapping", shortest(cap));
}

static void put_gpt2(Import *import, double context, StrBuf *out)
{
    double hidden = number(import, "embedding_length", 0);
    put_number(out, "n_embd", hidden);
    put_number(out, "n_layer", number(import, "block_count", 0));
    put_number(out, "n_head", number(import, "attention.head_count", 0));
    put_number(out, "n_inner", number(import, "feed_forward_length", 4 * hidden));
    put_number(out, "n_positions", context);
    put_number(out, "layer_norm_epsilon", shortest(number(import, "attention.layer_norm_epsilon", 1e-5)));
    put_text(out, "activation_function", "gelu_new");
}

static Status put_others(Import *import, double context, StrBuf *out)
{
    double  hidden = number(import, "embedding_length", 0), heads = number(import, "attention.head_count", 0);
    int64_t layers = whole(import, "block_count", 0), head = whole(import, "attention.key_length", heads ? hidden / heads : 0);
    FAIL_IF(!(hidden >= 1 && heads >= 1 && layers >= 1 && head >= 1 && layers <= 10000), ERR_INVALID,
            "%s: %s.embedding_length, block_count or attention.head_count is missing or 0", import->path, import->family->written);
    FAIL_IF(number(import, "expert_count", 0) > 0, ERR_UNSUPPORTED, "%s: %s.expert_count: mixtures of experts aren't read", import->path,
            import->family->written);
    put_number(out, "hidden_size", hidden);
    put_number(out, "intermediate_size", number(import, "feed_forward_length", 0));
    put_number(out, "num_hidden_layers", (double)layers);
    put_number(out, "num_attention_heads", heads);
    put_number(out, "num_key_value_heads", number(import, "attention.head_count_kv", heads));
    put_number(out, "head_dim", (double)head);
    put_number(out, "max_position_embeddings", context);
    put_number(out, "rms_norm_eps", shortest(number(import, "attention.layer_norm_rms_epsilon", 1e-6)));
    if (import->family->id == GGUF_FAMILY_PHI3)
        put_number(out, "original_max_position_embeddings", number(import, "rope.scaling.original_context_length", context));
    if (import->family->traits & GGUF_WINDOWS)
        put_gemma(import, heads, hidden, head, layers, out);
    else
        put_text(out, "hidden_act", "silu");
    return put_rope(import, head, out);
}

static void put_ids(Import *import, StrBuf *out)
{
    static const char *const names[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token_id", "tokenizer.ggml.padding_token_id"}};
    double                   id;
    for (int i = 0; i < 3; i++)
        if (gguf_get_number(import->file, names[i][1], &id)) put_number(out, names[i][0], id);
}

/* The dtype that config.json names: the embedding's; if that is stored in blocks, import->quantised. */
static const char *weights_dtype(const Import *import, const GgufTensor *embedding)
{
    if (embedding->type == GGUF_F32) return "float32";
    if (embedding->type == GGUF_F16) return "float16";
    return embedding->type == GGUF_BF16 || import->quantised == DT_BF16 ? "bfloat16" : "float32";
}

Status gguf_import_config(Import *import)
{
    const GgufTensor *embedding = gguf_find(import->file, "token_embd.weight");
    SCOPED_STRBUF(out);
    double context = number(import, "context_length", 0);
    FAIL_IF(!embedding || embedding->ndim != 2, ERR_INVALID, "%s: token_embd.weight is missing, or no matrix", import->path);
    FAIL_IF(!(context >= 1), ERR_INVALID, "%s: %s.context_length is missing", import->path, import->family->written);
    strbuf_putc(&out, '{');
    put_key(&out, "architectures");
    strbuf_printf(&out, "[\"%s\"]", import->family->architecture);
    put_number(&out, "vocab_size", (double)embedding->dim[0]);
    put_flag(&out, "tie_word_embeddings", !gguf_find(import->file, "output.weight"));
    put_text(&out, "torch_dtype", weights_dtype(import, embedding));
    put_ids(import, &out);
    if (import->family->id == GGUF_FAMILY_GPT2)
        put_gpt2(import, context, &out);
    else
        TRY(put_others(import, context, &out));
    strbuf_puts(&out, "\n}\n");
    return file_write_atomic(arena_printf(&import->arena, "%s/config.json", import->folder), out.data, out.len);
}
