/* Modules: how the shipped families read a config.json, and the errors of binding, each with file:line or key. */
#include "fake_ops.h"

#include "ir/module.h"

static Arena arena;

static IrModule *shipped(const char *architecture)
{
    size_t      len = 0;
    const char *text = ir_shipped_module(architecture, &len);
    IrModule   *module = NULL;
    if (text) EXPECT_OK(ir_module_parse(&arena, architecture, text, len, &module));
    return module;
}

/* Reads the dims of a config. `more`: appended to the config, ", \"key\": value". `without`: a key to leave out. */
static Status dims_of(const char *architecture, const char *more, const char *without, IrDims *out)
{
    static const char *const base[] = {"\"vocab_size\": 64",       "\"hidden_size\": 32",        "\"intermediate_size\": 48",
                                       "\"num_hidden_layers\": 2", "\"num_attention_heads\": 4", "\"num_key_value_heads\": 2",
                                       "\"head_dim\": 8"};
    StrBuf                   text = {0};
    JsonValue               *config = arena_new(&arena, JsonValue);
    strbuf_puts(&text, "{\"hidden_act\": \"silu\"");
    for (size_t i = 0; i < sizeof base / sizeof *base; i++)
        if (!without || !strstr(base[i], without)) strbuf_printf(&text, ", %s", base[i]);
    strbuf_printf(&text, "%s}", more);
    Status status = json_parse(&arena, "config.json", text.data, text.len, config);
    strbuf_deinit(&text);
    TRY(status);
    return ir_module_dims(&arena, shipped(architecture), config, "config.json", out);
}

/* Reads the dims of a config with 32 heads of 8 elements, of any family; keys with several names are missing. */
static Status dims_of_any(const char *architecture, const char *more, const char *without, IrDims *out)
{
    JsonValue  *config = arena_new(&arena, JsonValue);
    const char *layers = without && strstr(without, "num_hidden_layers") ? "" : ", \"num_hidden_layers\": 2";
    const char *text = arena_printf(
        &arena, "{\"vocab_size\": 64, \"hidden_size\": 256, \"intermediate_size\": 48, \"num_attention_heads\": 32%s%s}", layers, more);
    TRY(json_parse(&arena, "config.json", text, strlen(text), config));
    return ir_module_dims(&arena, shipped(architecture), config, "config.json", out);
}

static double dim(const IrDims *dims, const char *name)
{
    double value = -1e9;
    EXPECT(ir_dims_get(dims, name, &value));
    return value;
}

/* ---- config.json ---- */

/* Families whose config.json has Llama's keys. */
static const char *const families[] = {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "Olmo2ForCausalLM",
                                       "SmolLM3ForCausalLM"};

static void shipped_families_are_listed(void)
{
    int    count = 0;
    size_t len;
    for (const char *const *name = ir_shipped_architectures(); *name; name++, count++) {
        EXPECT(shipped(*name) != NULL);
        EXPECT_STR(shipped(*name)->architecture, *name);
    }
    EXPECT_INT(count, 10);
    EXPECT(!ir_shipped_module("MambaForCausalLM", &len));
    arena_deinit(&arena);
}

static void symbols_come_from_either_spelling(void)
{
    IrDims dims;
    EXPECT_OK(
        dims_of("Qwen3ForCausalLM", ", \"rope_theta\": 1000000.0, \"rms_norm_eps\": 1e-5, \"torch_dtype\": \"bfloat16\"", NULL, &dims));
    EXPECT_NEAR(dim(&dims, "theta"), 1e6, 0);
    EXPECT_NEAR(dim(&dims, "eps"), 1e-5, 0);
    EXPECT_NEAR(dim(&dims, "tied"), 0, 0);
    /* the form of transformers 5 */
    EXPECT_OK(dims_of("Qwen3ForCausalLM",
                      ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5000}, \"dtype\": \"float32\"", NULL, &dims));
    EXPECT_NEAR(dim(&dims, "theta"), 5000, 0);
    EXPECT_OK(dims_of("LlamaForCausalLM",
                      ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32, "
                      "\"low_freq_factor\": 1.0, "
                      "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 4096}",
                      NULL, &dims));
    EXPECT_NEAR(dim(&dims, "rope_kind"), 1, 0);
    EXPECT_NEAR(dim(&dims, "rope_factor"), 32, 0);
    EXPECT_NEAR(dim(&dims, "rope_original"), 4096, 0);
    EXPECT_OK(dims_of("LlamaForCausalLM",
                      ", \"rope_parameters\": {\"rope_theta\": 10000, \"rope_type\": \"llama3\", \"factor\": 16, "
                      "\"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}",
                      NULL, &dims));
    EXPECT_NEAR(dim(&dims, "rope_factor"), 16, 0);
    EXPECT_OK(dims_of("LlamaForCausalLM", ", \"rope_scaling\": null, \"head_dim\": null", "head_dim", &dims));
    EXPECT_NEAR(dim(&dims, "D"), 8, 0); /* C / H */
    EXPECT_NEAR(dim(&dims, "rope_kind"), 0, 0);
    EXPECT_OK(dims_of("LlamaForCausalLM", "", "num_key_value_heads", &dims));
    EXPECT_NEAR(dim(&dims, "G"), 4, 0);
    double none;
    EXPECT(!ir_dims_get(&dims, "nothing", &none));
    arena_deinit(&arena);
}

/* Defaults of transformers' classes for keys that config.json lacks, and for null; tests/oracle/check_config_keys.py finds others. */
static void defaults_are_those_of_transformers(void)
{
    static const struct {
        const char *architecture, *symbol;
        double      absent, null;
        const char *key;
    } cases[] = {
        {"Olmo2ForCausalLM", "eps", 1e-5, 1e-5, "rms_norm_eps"},
        {"LlamaForCausalLM", "eps", 1e-6, 1e-6, "rms_norm_eps"},
        {"Gemma2ForCausalLM", "score_cap", 50, 0, "attn_logit_softcapping"},
        {"Gemma2ForCausalLM", "logit_cap", 30, 0, "final_logit_softcapping"},
        {"Gemma3ForCausalLM", "logit_cap", 0, 0, "final_logit_softcapping"},
        {"Gemma2ForCausalLM", "window", 4096, 0, "sliding_window"},
        {"MistralForCausalLM", "window", 4096, 0, "sliding_window"},
        {"Qwen2ForCausalLM", "window", 4096, 0, "sliding_window"},
        {"Qwen2ForCausalLM", "full_layers", 28, 28, "max_window_layers"},
        {"SmolLM3ForCausalLM", "window", 0, 0, "sliding_window"},
        {"SmolLM3ForCausalLM", "theta", 2000000, 2000000, "rope_theta"},
        {"MistralForCausalLM", "G", 8, 32, "num_key_value_heads"},
        {"SmolLM3ForCausalLM", "G", 4, 32, "num_key_value_heads"},
        {"LlamaForCausalLM", "G", 32, 32, "num_key_value_heads"},
        {"Qwen3ForCausalLM", "D", 128, 128, "head_dim"},
        {"Gemma2ForCausalLM", "D", 256, 256, "head_dim"},
        {"MistralForCausalLM", "D", 8, 8, "head_dim"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        IrDims      dims = {0};
        double      absent = -1, null = -1;
        const char *without = arena_printf(&arena, "\"%s\"", cases[i].key), *more = arena_printf(&arena, ", %s: null", without);
        Status      status = dims_of_any(cases[i].architecture, "", without, &dims);
        if (status == OK) ir_dims_get(&dims, cases[i].symbol, &absent);
        if (status == OK) status = dims_of_any(cases[i].architecture, more, without, &dims);
        if (status == OK) ir_dims_get(&dims, cases[i].symbol, &null);
        if (status != OK || absent != cases[i].absent || null != cases[i].null)
            test_fail(__FILE__, __LINE__, "%s: %s is %g and %g, expected %g and %g %s", cases[i].architecture, cases[i].symbol, absent,
                      null, cases[i].absent, cases[i].null, status == OK ? "" : status_message());
    }
    arena_deinit(&arena);
}

static void values_of_wrong_types_are_refused(void)
{
    static const struct {
        const char *architecture, *more, *without, *message;
    } cases[] = {
        {"LlamaForCausalLM", ", \"hidden_act\": 3", "\"hidden_act\"", "config.json: hidden_act: expected a text, found integer"},
        {"LlamaForCausalLM", ", \"hidden_act\": [\"silu\"]", "\"hidden_act\"", "hidden_act: expected a text, found array"},
        {"LlamaForCausalLM", ", \"num_hidden_layers\": [2]", "\"num_hidden_layers\"", "num_hidden_layers: expected a number, found array"},
        {"LlamaForCausalLM", ", \"layer_types\": 5", NULL, "layer_types: expected a text, found integer"},
        {"LlamaForCausalLM", ", \"rms_norm_eps\": []", NULL, "rms_norm_eps: expected a number, found array"},
        {"LlamaForCausalLM", ", \"rms_norm_eps\": true", NULL, "rms_norm_eps: expected a number, found boolean"},
        {"LlamaForCausalLM", ", \"tie_word_embeddings\": 2", NULL, "tie_word_embeddings: expected true or false, found integer"},
        {"LlamaForCausalLM", ", \"attention_bias\": \"no\"", NULL, "attention_bias: expected true or false, found string"},
        {"LlamaForCausalLM", ", \"rope_scaling\": {\"rope_type\": 0}", NULL, "rope_scaling.rope_type: expected a text, found integer"},
        {"Gemma3ForCausalLM", ", \"rope_parameters\": {\"full_attention\": 2}", NULL,
         "rope_parameters.full_attention: expected an object, found integer"},
        {"Qwen3ForCausalLM", ", \"layer_types\": [1, 0]", NULL, "layer_types: expected a text, found integer"},
        {"SmolLM3ForCausalLM", ", \"no_rope_layers\": [1, 2]", NULL, "no_rope_layers: expected true or false, found integer"},
    };
    IrDims dims;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT_FAILS(dims_of_any(cases[i].architecture, cases[i].more, cases[i].without, &dims), ERR_INVALID, cases[i].message);
    EXPECT_OK(dims_of_any("LlamaForCausalLM", ", \"tie_word_embeddings\": 1", NULL, &dims));
    EXPECT_NEAR(dim(&dims, "tied"), 1, 0);
    arena_deinit(&arena);
}

#define LLAMA3_FIELDS ", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192"

#define POSITIONS ", \"max_position_embeddings\": 64"
#define LONGROPE POSITIONS ", \"original_max_position_embeddings\": 16, \"rope_scaling\": {\"type\": \"longrope\""

static void every_family_refuses_what_it_does_not_compute(void)
{
    static const struct {
        const char *more, *without;
        Status      status;
        const char *message;
    } cases[] = {
        {"", "vocab_size", ERR_INVALID, "config.json: vocab_size: missing; "},
        {"", "hidden_size", ERR_INVALID, "config.json: hidden_size: missing; "},
        {", \"vocab_size\": null", "vocab_size", ERR_INVALID, "config.json: vocab_size: missing; "},
        {", \"vocab_size\": 0", "vocab_size", ERR_INVALID, "config.json: vocab_size: 0; expected at least 1"},
        {", \"vocab_size\": -5", "vocab_size", ERR_INVALID, "vocab_size: -5; expected at least 1"},
        {", \"vocab_size\": 1e12", "vocab_size", ERR_INVALID, "vocab_size: 1e+12; expected at most"},
        {", \"vocab_size\": 64.5", "vocab_size", ERR_INVALID, "vocab_size: 64.5; expected a whole number"},
        {", \"vocab_size\": \"many\"", "vocab_size", ERR_INVALID, "vocab_size: expected a number, found the text \"many\""},
        {", \"vocab_size\": {}", "vocab_size", ERR_INVALID, "vocab_size: expected a number, found "},
        {", \"vocab_size\": [64, 65]", "vocab_size", ERR_INVALID, "vocab_size: expected a number, found array"},
        {", \"head_dim\": 7", "head_dim", ERR_UNSUPPORTED, "head_dim must be even"},
        {", \"num_key_value_heads\": 3", "num_key_value_heads", ERR_UNSUPPORTED, "num_attention_heads must be a multiple"},
        {", \"rope_scaling\": {\"rope_type\": \"ntk\", \"factor\": 4}", NULL, ERR_UNSUPPORTED,
         "rope_scaling.rope_type: \"ntk\" isn't supported for "},
        {", \"rope_scaling\": \"yarn\"", NULL, ERR_INVALID, "config.json: rope_scaling: expected an object, found "},
        {", \"rope_scaling\": {\"type\": \"linear\"}", NULL, ERR_INVALID, "rope_scaling.factor: missing; "},
        {", \"rope_parameters\": {\"rope_type\": \"linear\"}", NULL, ERR_INVALID, "rope_parameters.factor: missing; "},
        {", \"rope_scaling\": {\"type\": \"linear\"}", NULL, ERR_INVALID,
         " needs it, as rope_scaling.type is \"linear\"; expected a number of at least 1: copy it from the config.json"},
        {", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}", NULL, ERR_INVALID, "rope_scaling.factor: 0; expected at least 1"},
        {", \"rope_scaling\": {\"type\": \"linear\", \"factor\": \"2\"}", NULL, ERR_INVALID,
         "rope_scaling.factor: expected a number, found the text \"2\""},
        {", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}", NULL, ERR_INVALID, "max_position_embeddings: missing; "},
        {", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4}", NULL, ERR_INVALID, "max_position_embeddings: missing; "},
        {POSITIONS ", \"rope_scaling\": {\"type\": \"yarn\"}", NULL, ERR_INVALID, "rope_scaling.factor: missing; "},
        {POSITIONS ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": -4}", NULL, ERR_INVALID,
         "rope_scaling.factor: -4; expected at least 1"},
        {POSITIONS ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"attention_factor\": 0}", NULL, ERR_INVALID,
         "rope_scaling.attention_factor: 0; expected more than 0"},
        {POSITIONS ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_fast\": -1}", NULL, ERR_INVALID,
         "rope_scaling.beta_fast: -1; expected at least 0"},
        {POSITIONS ", \"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                   "\"original_max_position_embeddings\": 4096}",
         NULL, ERR_INVALID, "rope_first: inf; expected a finite number"},
        {POSITIONS ", \"rope_parameters\": {\"rope_type\": \"longrope\"}", NULL, ERR_INVALID,
         "original_max_position_embeddings: missing; "},
        {LONGROPE ", \"long_factor\": [1, 2, 3, 4]}", NULL, ERR_INVALID, "rope_scaling.short_factor: missing; "},
        {LONGROPE ", \"long_factor\": [1, 2, 3, 4]}", NULL, ERR_INVALID,
         " needs it, as rope_scaling.type is \"longrope\"; expected a list of 4 numbers above 0: copy it from the config.json"},
        {LONGROPE ", \"short_factor\": [1, 2, 3, 4]}", NULL, ERR_INVALID, "rope_scaling.long_factor: missing; "},
        {LONGROPE ", \"short_factor\": [1, 2, 3], \"long_factor\": [1, 2, 3, 4]}", NULL, ERR_INVALID,
         "rope_scaling.short_factor: 3 entries; expected 4, as "},
        {LONGROPE ", \"short_factor\": [1, 2, 3, 4], \"long_factor\": [1, 2, 3, 4, 5]}", NULL, ERR_INVALID,
         "rope_scaling.long_factor: 5 entries; expected 4, as "},
        {LONGROPE ", \"short_factor\": [1, 2, 3, 4], \"long_factor\": [1, 0, 3, 4]}", NULL, ERR_INVALID,
         "rope_scaling.long_factor: 0; expected more than 0"},
        {", \"partial_rotary_factor\": 1.5", NULL, ERR_INVALID, "partial_rotary_factor: 1.5; expected at most 1"},
        {", \"partial_rotary_factor\": 0.5", NULL, ERR_UNSUPPORTED, "partial rotary embedding isn't supported"},
        {", \"layer_types\": [\"full_attention\", \"chunked_attention\"]", NULL, ERR_UNSUPPORTED,
         "layer_types: \"chunked_attention\" isn't supported for "},
        {", \"num_experts\": 8", NULL, ERR_UNSUPPORTED, "config.json: num_experts: this setting isn't supported for "},
        {", \"logit_scale\": 0.5", NULL, ERR_UNSUPPORTED, "config.json: logit_scale: this setting isn't supported for "},
        {", \"quantization_config\": {\"bits\": 4}", NULL, ERR_UNSUPPORTED, "quantization_config: this setting isn't supported"},
        {", \"final_logit_softcapping\": 30.0", NULL, ERR_UNSUPPORTED, "final_logit_softcapping: this setting"},
        {", \"hidden_size\": 64", NULL, ERR_INVALID, "config.json:1:193: the key \"hidden_size\" occurs twice"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"sharpness\": 32" LLAMA3_FIELDS "}", NULL, ERR_UNSUPPORTED,
         "config.json: rope_scaling.sharpness: this setting"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4, "
         "\"original_max_position_embeddings\": 64}",
         NULL, ERR_UNSUPPORTED, "high_freq_factor must be greater than low_freq_factor"},
        {", \"head_dim\": 7", "head_dim", ERR_UNSUPPORTED, "head_dim is 7)"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 64}", NULL, ERR_INVALID,
         "rope_scaling.factor: missing; "},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 64, \"factor\": 0}", NULL, ERR_INVALID,
         "rope_scaling.factor: 0; expected at least 1"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 64, \"factor\": 8}", NULL, ERR_INVALID,
         "rope_scaling.low_freq_factor: missing; "},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 64, \"factor\": 8, \"low_freq_factor\": 1}",
         NULL, ERR_INVALID, "rope_scaling.high_freq_factor: missing; "},
        {", \"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}", NULL,
         ERR_INVALID, "original_max_position_embeddings: missing; "},
        {", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}", NULL, ERR_UNSUPPORTED,
         "rope_parameters.full_attention: this setting"},
    };
    IrDims dims;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        EXPECT_OK(dims_of(families[f], "", NULL, &dims));
        EXPECT_OK(dims_of(families[f],
                          ", \"layer_types\": [\"full_attention\", \"full_attention\"], \"num_experts\": 0, \"logit_scale\": null, "
                          "\"alibi\": false, \"rope_sharpness\": 0.0, \"my_own_note\": \"kept\", \"rope_scaling\": {\"type\": "
                          "\"llama3\", \"rope_type\": \"llama3\", \"mscale\": null" LLAMA3_FIELDS "}, "
                          " \"sliding_window\": 4096",
                          NULL, &dims));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            Status status = dims_of(families[f], cases[i].more, cases[i].without, &dims);
            if (status != cases[i].status || !strstr(status_message(), cases[i].message))
                test_fail(__FILE__, __LINE__, "%s with %s: %s \"%s\", expected \"%s\"", families[f], cases[i].more,
                          test_status_names[status], status == OK ? "" : status_message(), cases[i].message);
        }
    }
    for (int f = 0; f < 2; f++) {
        static const char *const full[] = {"LlamaForCausalLM", "Olmo2ForCausalLM"};
        EXPECT_FAILS(dims_of(full[f], ", \"use_sliding_window\": true", NULL, &dims), ERR_UNSUPPORTED,
                     "sliding window attention isn't supported");
        EXPECT_FAILS(dims_of(full[f], ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]", NULL, &dims), ERR_UNSUPPORTED,
                     "layer_types: \"sliding_attention\" isn't supported for ");
    }
    EXPECT_FAILS(dims_of("LlamaForCausalLM", ", \"attention_bias\": true", NULL, &dims), ERR_UNSUPPORTED, "attention_bias isn't supported");
    EXPECT_FAILS(dims_of("LlamaForCausalLM", ", \"mlp_bias\": true", NULL, &dims), ERR_UNSUPPORTED, "biases in the MLP aren't supported");
    EXPECT_FAILS(dims_of("Qwen3ForCausalLM", ", \"attention_bias\": true", NULL, &dims), ERR_UNSUPPORTED, "attention_bias");
    JsonValue list = {.type = JSON_ARRAY};
    EXPECT_FAILS(ir_module_dims(&arena, shipped("LlamaForCausalLM"), &list, "config.json", &dims), ERR_INVALID,
                 "config.json: expected an object");
    arena_deinit(&arena);
}

/* Reads the dims of a config.json from the hub. more: members that are put before its own. */
static Status hub_dims(const char *architecture, const char *more, IrDims *out)
{
    static const struct {
        const char *architecture, *text;
    } hub[] = {
        {"MistralForCausalLM",
         "\"architectures\": [\"MistralForCausalLM\"], \"bos_token_id\": 1, \"eos_token_id\": 2, \"hidden_act\": \"silu\", \"hidden_size\": 4096, "
         "\"initializer_range\": 0.02, \"intermediate_size\": 14336, \"max_position_embeddings\": 32768, \"model_type\": \"mistral\", "
         "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, "
         "\"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.34.0.dev0\", "
         "\"use_cache\": true, \"vocab_size\": 32000"},
        {"Phi3ForCausalLM",
         "\"_name_or_path\": \"Phi-3-mini-4k-instruct\", \"architectures\": [\"Phi3ForCausalLM\"], \"attention_dropout\": 0.0, "
         "\"auto_map\": {\"AutoConfig\": \"configuration_phi3.Phi3Config\"}, \"embd_pdrop\": 0.0, \"hidden_act\": \"silu\", "
         "\"hidden_size\": 3072, \"intermediate_size\": 8192, \"max_position_embeddings\": 4096, \"model_type\": \"phi3\", "
         "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 32, "
         "\"original_max_position_embeddings\": 4096, \"pad_token_id\": 32000, \"resid_pdrop\": 0.0, \"rms_norm_eps\": 1e-05, "
         "\"rope_theta\": 10000.0, \"sliding_window\": 2047, \"tie_word_embeddings\": false, \"attention_bias\": false, "
         "\"vocab_size\": 32064"},
        {"SmolLM3ForCausalLM",
         "\"architectures\": [\"SmolLM3ForCausalLM\"], \"attention_bias\": false, \"hidden_act\": \"silu\", \"hidden_size\": 2048, "
         "\"intermediate_size\": 11008, \"max_position_embeddings\": 65536, \"max_window_layers\": 28, \"mlp_bias\": false, "
         "\"num_attention_heads\": 16, \"num_hidden_layers\": 4, \"num_key_value_heads\": 4, \"pretraining_tp\": 2, "
         "\"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 5000000.0, \"sliding_window\": null, "
         "\"use_sliding_window\": false, \"no_rope_layer_interval\": 4, \"vocab_size\": 128256"},
        {"Gemma2ForCausalLM",
         "\"architectures\": [\"Gemma2ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
         "\"attn_logit_softcapping\": 50.0, \"cache_implementation\": \"hybrid\", \"final_logit_softcapping\": 30.0, \"head_dim\": 256, "
         "\"hidden_act\": \"gelu_pytorch_tanh\", \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size\": 2304, "
         "\"intermediate_size\": 9216, \"max_position_embeddings\": 8192, \"model_type\": \"gemma2\", \"num_attention_heads\": 8, "
         "\"num_hidden_layers\": 3, \"num_key_value_heads\": 4, \"query_pre_attn_scalar\": 256, \"rms_norm_eps\": 1e-06, "
         "\"rope_theta\": 10000.0, \"sliding_window\": 4096, \"vocab_size\": 256000"},
        {"Gemma3ForCausalLM",
         "\"architectures\": [\"Gemma3ForCausalLM\"], \"attention_bias\": false, \"attn_logit_softcapping\": null, "
         "\"cache_implementation\": \"hybrid\", \"final_logit_softcapping\": null, \"head_dim\": 256, "
         "\"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size\": 1152, \"intermediate_size\": 6912, "
         "\"max_position_embeddings\": 32768, \"model_type\": \"gemma3_text\", \"num_attention_heads\": 4, \"num_hidden_layers\": 7, "
         "\"num_key_value_heads\": 1, \"query_pre_attn_scalar\": 256, \"rms_norm_eps\": 1e-06, \"rope_local_base_freq\": 10000, "
         "\"rope_theta\": 1000000, \"sliding_window\": 512, \"sliding_window_pattern\": 6, \"vocab_size\": 262144"},
        {"GPT2LMHeadModel",
         "\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.1, \"bos_token_id\": 50256, "
         "\"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": 0.02, \"layer_norm_epsilon\": 1e-05, "
         "\"model_type\": \"gpt2\", \"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 12, \"n_positions\": 1024, "
         "\"resid_pdrop\": 0.1, \"summary_activation\": null, \"summary_first_dropout\": 0.1, \"summary_proj_to_labels\": true, "
         "\"summary_type\": \"cls_index\", \"summary_use_proj\": true, \"task_specific_params\": {\"text-generation\": "
         "{\"do_sample\": true, \"max_length\": 50}}, \"vocab_size\": 50257"},
    };
    JsonValue *config = arena_new(&arena, JsonValue);
    size_t     k = 0;
    while (strcmp(hub[k].architecture, architecture) != 0) k++;
    const char *text = arena_printf(&arena, "{%s%s}", more, hub[k].text);
    TRY(json_parse(&arena, "config.json", text, strlen(text), config));
    return ir_module_dims(&arena, shipped(architecture), config, "config.json", out);
}

static double entry(const IrDims *dims, const char *name, double index)
{
    double value = -1e9;
    EXPECT_OK(ir_dims_at(dims, name, &index, &value));
    return value;
}

static void configs_of_the_hub_are_read(void)
{
    IrDims dims;
    EXPECT_OK(hub_dims("MistralForCausalLM", "\"sliding_window\": 4096, ", &dims));
    EXPECT_NEAR(dim(&dims, "window"), 4096, 0);
    EXPECT_NEAR(dim(&dims, "D"), 128, 0);
    EXPECT_OK(hub_dims("MistralForCausalLM", "\"sliding_window\": null, \"head_dim\": 64, ", &dims));
    EXPECT_NEAR(dim(&dims, "window"), 0, 0);
    EXPECT_NEAR(dim(&dims, "D"), 64, 0);
    EXPECT_OK(hub_dims("Phi3ForCausalLM", "\"rope_scaling\": null, ", &dims));
    EXPECT_NEAR(dim(&dims, "window"), 2047, 0);
    EXPECT_OK(hub_dims("SmolLM3ForCausalLM", "", &dims));
    EXPECT_NEAR(dim(&dims, "tied"), 1, 0);
    EXPECT(entry(&dims, "has_rope", 2) == 1 && entry(&dims, "has_rope", 3) == 0);
    EXPECT_OK(hub_dims("SmolLM3ForCausalLM", "\"no_rope_layers\": [0, 1, 1, 1], ", &dims));
    EXPECT(entry(&dims, "has_rope", 0) == 0 && entry(&dims, "has_rope", 3) == 1);
    EXPECT_OK(hub_dims("Gemma2ForCausalLM", "", &dims));
    EXPECT(entry(&dims, "near", 0) == 1 && entry(&dims, "near", 1) == 0 && entry(&dims, "near", 2) == 1);
    EXPECT_NEAR(dim(&dims, "tied"), 1, 0);
    EXPECT_OK(hub_dims("Gemma3ForCausalLM", "\"rope_scaling\": null, ", &dims));
    EXPECT(entry(&dims, "near", 4) == 1 && entry(&dims, "near", 5) == 0 && entry(&dims, "near", 6) == 1);
    EXPECT_NEAR(dim(&dims, "theta"), 1e6, 0);
    EXPECT_NEAR(dim(&dims, "near_theta"), 1e4, 0);
    EXPECT_NEAR(dim(&dims, "logit_cap"), 0, 0);
    EXPECT_OK(hub_dims("Gemma3ForCausalLM", "\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, ", &dims));
    EXPECT_NEAR(dim(&dims, "rope_factor"), 8, 0);
    EXPECT_OK(hub_dims("GPT2LMHeadModel", "", &dims));
    EXPECT_NEAR(dim(&dims, "F"), 3072, 0);
    EXPECT_NEAR(dim(&dims, "tied"), 1, 0);
    arena_deinit(&arena);
}

static void what_a_family_lacks_is_refused_by_name(void)
{
    static const struct {
        const char *architecture, *more, *message;
    } cases[] = {
        {"Phi3ForCausalLM", "\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1.0], \"short_factor\": [1.0]}, ",
         "rope_scaling.short_factor: 1 entries; expected 48, as "},
        {"Phi3ForCausalLM", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}, ",
         "rope_scaling.type: \"linear\" isn't supported for Phi3ForCausalLM; supported: default, longrope, su, yarn"},
        {"Phi3ForCausalLM", "\"partial_rotary_factor\": 0.33, ", "partial_rotary_factor must give an even number of a head's elements"},
        {"Phi3ForCausalLM", "\"layer_types\": [\"sliding_attention\"], ", "layer_types: 1 entries; expected 32, as "},
        {"MistralForCausalLM", "\"sliding_window\": -1, ", "sliding_window: -1; expected at least 0"},
        {"MistralForCausalLM", "\"sliding_window\": 2.5, ", "sliding_window: 2.5; expected a whole number"},
        {"SmolLM3ForCausalLM", "\"no_rope_layers\": [1, 0], ", "no_rope_layers: "},
        {"Gemma2ForCausalLM", "\"use_bidirectional_attention\": true, ", "use_bidirectional_attention isn't supported"},
        {"Gemma2ForCausalLM", "\"layer_types\": [\"full_attention\"], ", "layer_types: "},
        {"Gemma3ForCausalLM", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8.0}, ",
         "rope_scaling.rope_type: \"yarn\" isn't supported"},
        {"Gemma3ForCausalLM", "\"rope_scaling\": {\"rope_type\": \"linear\"}, ", "rope_scaling.factor: missing"},
        {"Gemma3ForCausalLM", "\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"linear\"}}, ",
         "rope_parameters.sliding_attention.rope_type: \"linear\" isn't supported"},
        {"GPT2LMHeadModel", "\"add_cross_attention\": true, ", "add_cross_attention isn't supported"},
    };
    IrDims dims;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Status status = hub_dims(cases[i].architecture, cases[i].more, &dims);
        if (status == OK || !strstr(status_message(), cases[i].message))
            test_fail(__FILE__, __LINE__, "%s with %s: \"%s\", expected \"%s\"", cases[i].architecture, cases[i].more,
                      status == OK ? "OK" : status_message(), cases[i].message);
    }
    arena_deinit(&arena);
}

/* ---- modules ---- */

static void what_is_no_module_is_refused(void)
{
#define MODULE(rest) "{\"surogate_ir\": 1, \"architecture\": \"X\", \"config\": [], \"graph\": [], " rest "}"
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{", "m.json:1:"},
        {"[]", "m.json: expected \"surogate_ir\": 1, found 0"},
        {"{\"surogate_ir\": 2}", "m.json: expected \"surogate_ir\": 1, found 2"},
        {"{\"surogate_ir\": 1}", "m.json: expected a text under \"architecture\""},
        {"{\"surogate_ir\": 1, \"architecture\": \"X\"}", "m.json: expected an array under \"config\""},
        {"{\"surogate_ir\": 1, \"architecture\": \"X\", \"config\": []}", "m.json: expected an array under \"graph\""},
        {MODULE("\"roles\": []"), "m.json: roles: expected an object"},
        {MODULE("\"roles\": {\"size\": \"V\"}"), "m.json: roles: size; expected symbols under vocabulary, positions, tied"},
        {MODULE("\"roles\": {\"tied\": 1}"), "m.json: roles: tied; expected symbols"},
        {MODULE("\"unread\": {}"), "m.json: unread: expected an array of ends of tensors' names"},
        {MODULE("\"unread\": [3]"), "m.json: unread: expected ends of tensors' names"},
        {MODULE("\"unread\": [\"\"]"), "m.json: unread: expected ends of tensors' names"},
        {MODULE("\"prefix\": \"\""), "m.json: prefix: expected a text of 1 to 64 bytes"},
        {MODULE("\"prefix\": [\"a\"]"), "m.json: prefix: expected a text of 1 to 64 bytes"},
    };
    IrModule *module;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT_FAILS(ir_module_parse(&arena, "m.json", cases[i].text, strlen(cases[i].text), &module), ERR_INVALID, cases[i].message);
    EXPECT_FAILS(ir_module_parse(&arena, "m.json", "{}", IR_MAX_BYTES + 1, &module), ERR_INVALID, "m.json: a module of 16777217 bytes");
    arena_deinit(&arena);
}

/* Binds a module in which the config section is on line 2, rules on line 3, the first statement on line 5. */
static Status bind_text(const char *config_section, const char *rules, const char *statements, const char *config_text, Graph **out)
{
    StrBuf      text = {0};
    JsonValue   config;
    IrModule   *module;
    BindOptions options = {.graph_name = "bound",
                           .batch = 2,
                           .seq = 3,
                           .max_len = 6,
                           .reach = 5,
                           .dtype = DT_F32,
                           .ops = fake_ops,
                           .num_ops = NUM_FAKE_OPS,
                           .max_work = 100000};
    strbuf_printf(&text, "{\"surogate_ir\": 1, \"architecture\": \"X\",\n\"config\": [%s],\n\"require\": [%s],\n\"graph\": [\n%s\n]}",
                  config_section, rules, statements);
    char  *copy = arena_strndup(&arena, text.data, text.len); /* names of the graph point into the copy */
    Status status = ir_module_parse(&arena, "m.json", copy, text.len, &module);
    strbuf_deinit(&text);
    TRY(status);
    TRY(json_parse(&arena, "c.json", config_text, strlen(config_text), &config));
    return ir_module_bind(&arena, module, &config, "c.json", &options, out);
}

static void config_sections_are_checked(void)
{
#define LIST(key, per, more) "{\"symbol\": \"l\", \"key\": \"" key "\", \"per\": " per more "}"
#define RULE(that) "{\"that\": \"" that "\", \"message\": \"no\"}"
    static const struct {
        const char *section, *rules, *message;
    } cases[] = {
        {"{\"key\": \"a\"}", "", "m.json: a config entry has no \"symbol\""},
        {"{\"symbol\": \"B\", \"key\": \"a\"}", "", "m.json: symbol B has a meaning already"},
        {"{\"symbol\": \"n\", \"key\": \"a\"}, {\"symbol\": \"n\", \"key\": \"a\"}", "", "m.json: second symbol n"},
        {"{\"symbol\": \"n\", \"key\": \"b\", \"default\": \"m + 1\"}", "", "m.json: default of n: expression \"m + 1\": unknown symbol m"},
        {"{\"symbol\": \"n\", \"key\": \"b\", \"default\": \"1 / 0\"}", "", "c.json: b: inf; expected a finite number"},
        {"{\"symbol\": \"n\", \"key\": [\"b\", 3, \"c.d\"]}", "", "c.json: b: missing; X needs it; expected a number: copy it"},
        {"{\"symbol\": \"n\"}", "", "c.json: n: missing"},
        {"{\"symbol\": \"n\", \"key\": \"a\", \"above\": 3}", "", "c.json: a: 3; expected more than 3"},
        {"{\"symbol\": \"reach\", \"key\": \"a\"}", "", "m.json: symbol reach has a meaning already"},
        {"{\"symbol\": \"n\", \"key\": \"t\", \"choices\": {\"on\": 1, \"off\": 0}}", "",
         "c.json: t: \"odd\" isn't supported for X; supported: on, off"},
        {"{\"symbol\": \"n\", \"key\": \"t\"}", "", "c.json: t: expected a number, found the text \"odd\""},
        {"", "{\"that\": \"1\"}", "m.json: a rule needs \"that\" and \"message\""},
        {"", "{\"that\": \"q\", \"message\": \"m\"}", "m.json: rule: expression \"q\": unknown symbol q"},
        {"{\"symbol\": \"n\", \"key\": \"a\"}", "{\"that\": \"n == 4\", \"message\": \"n isn't 4\"}", "c.json: n isn't 4 (X: a is 3)"},
        {LIST("a", "\"n\"", ""), "", "m.json: per of l: expression \"n\": unknown symbol n"},
        {LIST("a", "\"0\"", ""), "", "m.json: l has 0 values (0); expected 1 to 65536"},
        {LIST("a", "\"1 / 0\"", ""), "", "m.json: l has inf values"},
        {LIST("a", "\"2.5\"", ""), "", "m.json: l has 2.5 values"},
        {LIST("a", "\"65537\"", ""), "", "m.json: l has 65537 values"},
        {LIST("a", "\"65536\"", "") ", {\"symbol\": \"m\", \"key\": \"a\", \"per\": \"1\"}", "",
         "m.json: m has 1 values (1); expected 1 to 0"},
        {LIST("kinds", "\"3\"", ""), "", "c.json: kinds: 4 entries; expected 3"},
        {LIST("kinds", "\"4\"", ", \"choices\": {\"near\": 1}"), "", "c.json: kinds: \"far\" isn't supported for X; supported: near"},
        {LIST("b", "\"4\"", ", \"default\": \"i - 1\", \"min\": 0"), "", "c.json: b: -1; expected at least 0"},
        {LIST("b", "\"4\"", ", \"default\": \"j\""), "", "m.json: default of l: expression \"j\": unknown symbol j"},
        {LIST("b", "\"4\"", ""), "", "c.json: b: missing"},
        {LIST("a", "\"4\"", ""), RULE("l[4]"), "m.json: rule: expression \"l[4]\": l[4]: expected an index from 0 to 3"},
        {LIST("a", "\"4\"", ""), RULE("l[0/0]"), "expected an index from 0 to 3"},
        {LIST("a", "\"4\"", ""), RULE("l[0.5]"), "l[0.5]: expected an index from 0 to 3"},
        {LIST("a", "\"4\"", ""), RULE("l"), "l is a list of 4; expected the index of one, as l[i]"},
        {"{\"symbol\": \"n\", \"key\": \"a\"}", RULE("n[0]"), "n is one number; expected it without [ ]"},
        {"{\"symbol\": \"n\", \"key\": \"a\"}", RULE("k[0]"), "unknown symbol k"},
    };
    Graph *graph;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char config[] = "{\"a\": 3, \"t\": \"odd\", \"kinds\": [\"near\", \"near\", \"near\", \"far\"]}";
        Status            status = bind_text(cases[i].section, cases[i].rules, "", config, &graph);
        if (status == OK || !strstr(status_message(), cases[i].message))
            test_fail(__FILE__, __LINE__, "case %zu: \"%s\", expected \"%s\"", i, status == OK ? "OK" : status_message(), cases[i].message);
    }
    StrBuf many = {0};
    for (int i = 0; i < 65; i++) strbuf_printf(&many, "%s{\"symbol\": \"s%d\", \"key\": \"a\"}", i ? ", " : "", i);
    EXPECT_FAILS(bind_text(many.data, "", "", "{\"a\": 3}", &graph), ERR_INVALID, "m.json: more than 64 config entries");
    strbuf_deinit(&many);
    arena_deinit(&arena);
}

static void roles_name_symbols(void)
{
    static const char text[] =
        "{\"surogate_ir\": 1, \"architecture\": \"X\", \"graph\": [], \"unread\": [\".freq\", \"mask\"], \"config\": ["
        "{\"symbol\": \"n\", \"key\": [\"a.b\", \"c\"], \"unused\": \"no matter\"}, {\"symbol\": \"l\", \"key\": \"c\", \"per\": \"2\"},"
        "{\"symbol\": \"m\", \"key\": [\"d\", \"e\"], \"default\": \"0\"}], "
        "\"roles\": {\"vocabulary\": \"n\", \"positions\": \"l\", \"tied\": \"m\"}}";
    static const char config_text[] = "{\"c\": 7}";
    IrModule         *module;
    JsonValue         config;
    IrDims            dims;
    const IrSymbol   *symbol;
    EXPECT_OK(ir_module_parse(&arena, "m.json", text, strlen(text), &module));
    EXPECT_OK(json_parse(&arena, "c.json", config_text, strlen(config_text), &config));
    EXPECT_OK(ir_module_dims(&arena, module, &config, "c.json", &dims));
    EXPECT_OK(ir_module_role(module, &dims, IR_ROLE_VOCABULARY, &symbol));
    EXPECT_STR(symbol->key, "c");
    EXPECT_STR(symbol->unused, "no matter");
    EXPECT_INT(symbol->value, 7);
    EXPECT_FAILS(ir_module_role(module, &dims, IR_ROLE_POSITIONS, &symbol), ERR_INVALID,
                 "m.json: roles: positions is l, which is no symbol of one number");
    EXPECT_OK(ir_module_role(module, &dims, IR_ROLE_TIED, &symbol));
    EXPECT_STR(symbol->key, "d"); /* config.json has none of the symbol's names: key is the first one */
    EXPECT(ir_module_is_unread(module, "h.0.freq") && ir_module_is_unread(module, "mask"));
    EXPECT(!ir_module_is_unread(module, "freq") && !ir_module_is_unread(module, "mask.0") && !ir_module_is_unread(module, ""));
    arena_deinit(&arena);
}

/* A value for each layer: from an array, one for all layers, or computed from the layer's index. */
static void lists_have_a_value_for_each_layer(void)
{
    static const char section[] = "{\"symbol\": \"L\", \"key\": \"L\"},"
                                  "{\"symbol\": \"near\", \"key\": \"kinds\", \"per\": \"L\", \"default\": \"(i + 1) % 3 != 0\", "
                                  "\"choices\": {\"near\": 1, \"far\": 0}},"
                                  "{\"symbol\": \"wide\", \"key\": \"w\", \"per\": \"L\", \"default\": \"2 + near[i]\"}";
    static const char statements[] = "{\"repeat\": \"L\", \"index\": \"i\", \"body\": [{\"op\": \"source\", \"in\": [], \"out\": \"s{i}\", "
                                     "\"attrs\": {\"len\": \"10 * near[i] + wide[i] + (i > 0 ? near[i - 1] : 5)\"}}]}";
    static const struct {
        const char *config;
        int         len[4];
    } cases[] = {
        {"{\"L\": 4}", {18, 14, 3, 13}},
        {"{\"L\": 4, \"kinds\": null, \"w\": 1}", {16, 12, 2, 11}},
        {"{\"L\": 4, \"kinds\": [\"far\", \"far\", \"near\", \"far\"]}", {7, 2, 13, 3}},
        {"{\"L\": 4, \"kinds\": \"near\", \"w\": [1, 2, 3, 4]}", {16, 13, 14, 15}},
        {"{\"L\": 4, \"kinds\": [true, 0, 0, 1]}", {18, 3, 2, 13}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Graph *graph;
        EXPECT_OK(bind_text(section, "", statements, cases[i].config, &graph));
        for (int k = 0; k < 4; k++) EXPECT_INT(graph_find(graph, (char[]){'s', (char)('0' + k), 0})->type.dim[0], cases[i].len[k]);
        arena_deinit(&arena);
    }
}

static void statements_become_a_graph(void)
{
    static const char statements[] =
        "{\"param\": \"w\", \"shape\": [\"2 * n\", 2], \"hf\": {\"transpose\": \"W\"}, \"module\": \"m.w\", "
        "\"linear\": true, \"head\": true, \"matrices\": [1, \"n - 1\"], \"init\": {\"normal\": \"1 / 4\"}},\n"
        "{\"param\": \"v\", \"shape\": [4], \"hf\": {\"slice\": \"V\", \"begin\": \"n - 2\", \"total\": 8}, \"init\": "
        "\"zeros\", \"frozen\": true},\n"
        "{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"len\": \"B * T + P\", \"scale\": 2, \"flip\": "
        "true, \"list\": {\"per\": \"n\", \"value\": \"reach * i + n\"}}},\n"
        "{\"repeat\": \"n\", \"index\": \"i\", \"carry\": {\"x\": \"s\"}, \"body\": [\n"
        "  {\"if\": \"i % 2\", \"then\": [{\"let\": \"y\", \"is\": \"x\"}], \"else\": [{\"let\": \"y\", \"is\": "
        "\"s\"}]},\n"
        "  {\"op\": \"split\", \"in\": [\"x\", null, \"y\"], \"out\": \"b.{i}.o\", \"part\": \"ffn\", \"source\": "
        "\"dsl.py:9\"},\n"
        "  {\"repeat\": 2, \"index\": \"k\", \"body\": [{\"op\": \"flat\", \"in\": [\"b.{i}.o\"], \"out\": \"b.{i}.{k "
        "* 10}\"}]}],\n"
        " \"yield\": {\"x\": \"b.{i}.o.1\"}},\n"
        "{\"if\": 0, \"then\": [{\"no\": \"statement\"}]},\n"
        "{\"repeat\": 2, \"index\": \"i\", \"body\": [{\"op\": \"flat\", \"in\": [\"s\"], \"out\": \"late.{i}\"}]},\n"
        "{\"param\": \"v0\", \"shape\": [1], \"hf\": {\"slice\": \"V\", \"begin\": 0, \"total\": 8}},\n"
        "{\"param\": \"v5\", \"shape\": [3], \"hf\": {\"slice\": \"V\", \"begin\": 5, \"total\": 8}},\n"
        "{\"param\": \"pieces\", \"shape\": [6, 2], \"hf\": {\"concat\": [\"a\", \"b\"]}},\n"
        "{\"param\": \"whole\", \"shape\": [6, 2], \"hf\": {\"concat\": [\"c\", \"d\"]}, \"matrices\": [6]},\n"
        "{\"param\": \"row\", \"shape\": [6], \"hf\": {\"concat\": [\"e\", \"f\"]}},\n"
        "{\"param\": \"heads\", \"shape\": [\"4 * n\"], \"hf\": {\"concat\": [\"g.{h}\", \"k.{n - h}\"], \"index\": \"h\", \"per\": \"n - 1\"}},\n"
        "{\"output\": \"y\", \"is\": \"x\"}";
    Graph  *graph = NULL;
    int64_t period;
    EXPECT_OK(bind_text("{\"symbol\": \"n\", \"key\": \"n\"}", "", statements, "{\"n\": 3}", &graph));
    if (!graph) return;
    EXPECT_OK(graph_verify(graph));
    EXPECT_INT(graph->num_nodes, 1 + 3 * 3 + 2);
    EXPECT_INT(graph_find(graph, "late.1")->layer, 4); /* layers continue after those of the first repeat */
    EXPECT(graph_output(graph, "y") == graph_find(graph, "b.2.o.1"));
    EXPECT_INT(graph_find(graph, "s")->type.dim[0], 12);
    const AttrList *list = &((const SourceAttrs *)graph_find(graph, "s")->producer->attrs)->list;
    EXPECT(list->count == 3 && list->values[0] == 3 && list->values[1] == 8 && list->values[2] == 13 && list->values[3] == 0);
    const Node *first = graph_find(graph, "b.0.o")->producer, *second = graph_find(graph, "b.1.o")->producer;
    EXPECT(first->in[0] == graph_find(graph, "s") && first->in[2] == graph_find(graph, "s") && !first->in[1]);
    EXPECT(second->in[0] == graph_find(graph, "b.0.o.1") && second->in[2] == second->in[0]);
    EXPECT(first->layer == 0 && second->layer == 1 && first->part == PART_FFN);
    EXPECT_STR(second->source, "dsl.py:9");
    EXPECT_STR(graph_find(graph, "s")->producer->source, "m.json:7");
    EXPECT_INT(graph_find(graph, "b.1.10")->producer->part, PART_BLOCK);
    const Param *w = graph->params[0], *v = graph->params[1];
    EXPECT(w->hf.kind == HF_TRANSPOSE && w->is_linear && w->is_head && w->decay && w->trained && w->layer == -1);
    EXPECT_NEAR(w->init_std, 0.25, 0);
    EXPECT(w->num_matrices == 2 && w->matrices[0] == 1 && w->matrices[1] == 2 && param_period(w, &period) == OK && period == 3);
    const Param *pieces = graph_find(graph, "pieces")->param;
    EXPECT(pieces->num_matrices == 2 && pieces->matrices[0] == 3 && pieces->matrices[1] == 3);
    EXPECT(graph_find(graph, "whole")->param->num_matrices == 1 && !graph_find(graph, "row")->param->num_matrices && !v->num_matrices);
    static const char *const by_head[] = {"g.0", "k.3", "g.1", "k.2"};
    const HfSource          *heads = &graph_find(graph, "heads")->param->hf;
    EXPECT(heads->kind == HF_CONCAT && heads->num_names == 4);
    for (int i = 0; i < heads->num_names; i++) EXPECT_STR(heads->names[i], by_head[i]);
    EXPECT(v->hf.kind == HF_SLICE && v->hf.begin == 1 && v->hf.rows == 4 && v->hf.total_rows == 8 && !v->decay && v->init == INIT_ZEROS &&
           !v->trained);
    EXPECT_INT(graph_find(graph, "tokens")->type.dim[1], 3);
    arena_deinit(&arena);
}

#define LIST_ATTR(list) "{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"list\": " list "}}"

static void bad_statements_say_where(void)
{
#define PARAM(rest) "{\"param\": \"w\", \"shape\": [4], \"hf\": \"W\"" rest "}"
#define MATRIX(rows) "{\"param\": \"w\", \"shape\": [8, 2], \"hf\": \"W\", \"matrices\": " rows "}"
#define SOURCE "{\"op\": \"source\", \"in\": [], \"out\": \"s\"}"
    static const struct {
        const char *statements, *message;
    } cases[] = {
        {"3", "m.json:5: expected a statement, found "},
        {"{}", "m.json:5: unknown statement; expected param, op"},
        {"\n\n{\"oops\": 1}", "m.json:7: unknown statement"},
        {PARAM(", \"colour\": 1"), "m.json:5: param has no \"colour\"; it may have shape hf"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"atrs\": {}}", "m.json:5: op has no \"atrs\"; it may have in out attrs"},
        {"{\"param\": 3}", "m.json:5: expected a name, found "},
        {"{\"param\": \"\", \"shape\": [4], \"hf\": \"W\"}", "m.json:5: \"\" isn't fit for a name"},
        {"{\"param\": \"a b\", \"shape\": [4], \"hf\": \"W\"}", "m.json:5: \"a b\" isn't fit for a name"},
        {"{\"param\": \"a\\u0000b\", \"shape\": [4], \"hf\": \"W\"}", "m.json:5: a name of 3 bytes; expected 1 to 256 without NUL"},
        {"{\"param\": \"a.{i\", \"shape\": [4], \"hf\": \"W\"}", "m.json:5: { without } in \"a.{i\""},
        {"{\"param\": \"a.{i}\", \"shape\": [4], \"hf\": \"W\"}", "m.json:5: expression \"i\": unknown symbol i"},
        {"{\"param\": \"a.{1/2}\", \"shape\": [4], \"hf\": \"W\"}", "m.json:5: 0.5 isn't a whole number"},
        {"{\"param\": \"w\", \"hf\": \"W\"}", "m.json:5: expected a shape of 1 to 4 dims"},
        {"{\"param\": \"w\", \"shape\": [], \"hf\": \"W\"}", "m.json:5: expected a shape of 1 to 4 dims"},
        {"{\"param\": \"w\", \"shape\": [1,1,1,1,1], \"hf\": \"W\"}", "m.json:5: expected a shape of 1 to 4 dims"},
        {"{\"param\": \"w\", \"shape\": [\"T / 2\"], \"hf\": \"W\"}", "m.json:5: 1.5 isn't a whole number: T / 2"},
        {"{\"param\": \"w\", \"shape\": [\"0/0\"], \"hf\": \"W\"}", "m.json:5: "},
        {"{\"param\": \"w\", \"shape\": [1e300], \"hf\": \"W\"}", "m.json:5: 1e+300 isn't a whole number"},
        {"{\"param\": \"w\", \"shape\": [-1], \"hf\": \"W\"}", "m.json:5: a dim would be -1"},
        {"{\"param\": \"w\", \"shape\": [16777216, 16777216, 16777216], \"hf\": \"W\"}", "m.json:5: a tensor of "},
        {"{\"param\": \"w\", \"shape\": [null], \"hf\": \"W\"}", "m.json:5: expected a number or an expression, found null"},
        {"{\"param\": \"w\", \"shape\": [\"1\\u0000\"], \"hf\": \"W\"}", "m.json:5: an expression with a NUL in it"},
        {"{\"param\": \"w\", \"shape\": [4]}", "m.json:5: parameter w: expected \"hf\""},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": 3}", "m.json:5: hf: expected a name, concat, transpose or slice"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": []}}", "m.json:5: hf: expected a name"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a\", \"b\", \"c\"]}}",
         "m.json:5: concat: 3 pieces don't divide 4 rows"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a\", 3]}}", "m.json:5: expected a name, found "},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a.{h}\"], \"per\": 2}}",
         "m.json:5: concat: expected \"index\" beside \"per\""},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a.{h}\"], \"index\": \"h\", \"per\": 3}}",
         "m.json:5: concat: 3 pieces don't divide 4 rows"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a.{h}\"], \"index\": \"h\", \"per\": 0}}",
         "m.json:5: concat: 0 times; expected 1 to 4096"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a.{h}\"], \"index\": \"h\", \"per\": 5000}}",
         "m.json:5: concat: 5000 times; expected 1 to 4096"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a.{h}\", \"b.{h}\"], \"index\": \"h\", \"per\": 4000}}",
         "m.json:5: concat: 8000 pieces; at most 4096 are possible"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a\"], \"index\": \"h\", \"per\": 2}}",
         "m.json:5: parameters w and w are both tensor a"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"transpose\": \"a\"}}", "m.json:5: transpose: only for two dims"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"slice\": \"a\"}}", "m.json:5: slice: expected begin and total"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"slice\": \"a\", \"begin\": 5, \"total\": 8}}", "m.json:5: slice: rows 5 to 9 of 8"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"slice\": \"a\", \"begin\": -1, \"total\": 8}}",
         "m.json:5: slice: rows -1 to 3 of 8"},
        {PARAM(", \"init\": \"sevens\""), "m.json:5: init: expected \"zeros\", \"ones\" or {\"normal\": std}"},
        {PARAM(", \"init\": {\"normal\": -1}"), "m.json:5: init: a deviation of -1"},
        {PARAM(", \"init\": {\"normal\": \"1/0\"}"), "m.json:5: 1/0 is inf, expected a finite number"},
        {MATRIX("[[4]]"), "m.json:5: expected a number or an expression, found array"},
        {MATRIX("[]"), "m.json:5: matrices: expected an array of 1 to 4096 numbers of rows"},
        {MATRIX("8"), "m.json:5: matrices: expected an array of 1 to 4096 numbers of rows"},
        {MATRIX("[4, 0]"), "m.json:5: w: its matrix 2 has 0 rows; expected at least 1, and no more than 8 in all"},
        {MATRIX("[4, 5]"), "m.json:5: w: its matrix 2 has 5 rows; expected at least 1, and no more than 8 in all"},
        {MATRIX("[2, 1]"), "m.json:5: w: its matrices have 3 rows, which don't divide its 8"},
        {PARAM(", \"matrices\": [2, 2]"), "m.json:5: w holds 2 matrices, but has 1 dims; expected 2"},
        {PARAM(", \"linear\": 1"), "m.json:5: linear: expected true or false, found "},
        {PARAM(",\n \"decay\": \"no\""), "m.json:6: decay: expected true or false, found "},
        {PARAM("") ",\n" PARAM(""), "m.json:6: second value named w"},
        {PARAM(", \"frozen\": 1"), "m.json:5: frozen: expected true or false, found "},
        {PARAM("") ",\n{\"param\": \"v\", \"shape\": [4], \"hf\": \"W\"}",
         "m.json:6: parameters w and v are both tensor W of a model folder"},
        {"{\"param\": \"u\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 3, \"total\": 8}},\n"
         "{\"param\": \"v\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 0, \"total\": 8}}",
         "m.json:5: parameters v and u are both tensor W of a model folder"},
        {"{\"param\": \"v\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 2, \"total\": 6}}",
         "m.json:5: tensor W of a model folder has 6 rows, and no parameter those from 0 on; make one for them"},
        {"{\"param\": \"v\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 0, \"total\": 6}}",
         "m.json:5: tensor W of a model folder has 6 rows, and no parameter those from 4 on"},
        {"{\"param\": \"u\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 5, \"total\": 9}},\n"
         "{\"param\": \"v\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 0, \"total\": 9}}",
         "m.json:5: tensor W of a model folder has 9 rows, and no parameter those from 4 on"},
        {"{\"param\": \"u\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 4, \"total\": 8}},\n"
         "{\"param\": \"v\", \"shape\": [4], \"hf\": {\"slice\": \"W\", \"begin\": 0, \"total\": 9}}",
         "m.json:5: tensor W of a model folder: v says that it has 9 rows, u 8"},
        {PARAM(", \"export\": 3"), "m.json:5: hf: expected a name, concat, transpose or slice"},
        {PARAM(", \"export\": \"V\"") ",\n{\"param\": \"v\", \"shape\": [4], \"hf\": \"V\"}",
         "m.json:6: parameters w and v are both tensor V of a model folder"},
        {"{\"param\": \"w\", \"shape\": [4], \"hf\": {\"concat\": [\"a\", \"a\"]}}", "m.json:5: parameters w and w are both tensor a"},
        {"{\"repeat\": 2, \"index\": \"i\", \"body\": [\n{\"param\": \"w{i}\", \"shape\": [4], \"hf\": \"W\"}]}",
         "m.json:6: parameters w0 and w1 are both tensor W"},
        {"{\"param\": \"tokens\", \"shape\": [4], \"hf\": \"W\"}", "m.json:5: second value named tokens"},
        {"{\"op\": \"nothing\", \"in\": [], \"out\": \"s\"}", "m.json:5: unknown op nothing"},
        {"{\"op\": 3, \"in\": [], \"out\": \"s\"}", "m.json:5: unknown op "},
        {"{\"op\": \"source\", \"out\": \"s\"}", "m.json:5: source: expected \"in\" with at most 0 names"},
        {"{\"op\": \"source\", \"in\": [\"tokens\"], \"out\": \"s\"}", "m.json:5: source: expected \"in\" with at most 0 names"},
        {"{\"op\": \"source\", \"in\": []}", "m.json:5: source: expected \"out\", a name"},
        {SOURCE ",\n" SOURCE, "m.json:6: second value named s"},
        {"{\"op\": \"flat\", \"in\": [\"x\"], \"out\": \"s\"}", "m.json:5: no value is named x here"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"width\": 3}}", "m.json:5: source has no attribute width"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": []}", "m.json:5: attrs: expected an object, found "},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"len\": 0.5}}", "m.json:5: 0.5 isn't a whole number"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"scale\": \"q\"}}", "m.json:5: expression \"q\": unknown symbol q"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"len\": -3}}", "m.json:5: s = source(): a dim would be -3"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"scale\": \"1 / 0\"}}",
         "m.json:5: 1 / 0 is inf, expected a finite number"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"scale\": \"log(-1)\"}}", "m.json:5: log(-1) is "},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"attrs\": {\"scale\": 1e300}}",
         "m.json:5: attribute scale is 1e+300, expected a number that fp32 can hold"},
        {LIST_ATTR("{\"per\": 2, \"value\": \"1 / i\"}"), "m.json:5: 1 / i is inf, expected a finite number"},
        {"{\"if\": \"0 / 0\", \"then\": []}", "m.json:5: 0 / 0 is "},
        {LIST_ATTR("3"), "m.json:5: attribute list: expected {\"per\": e, \"value\": e}"},
        {LIST_ATTR("{\"per\": 3}"), "m.json:5: attribute list: expected {\"per\""},
        {LIST_ATTR("{\"per\": 3, \"value\": 1, \"more\": 2}"), "m.json:5: attribute list: expected {\"per\""},
        {LIST_ATTR("{\"per\": \"5 / 2\", \"value\": 1}"), "m.json:5: 2.5 isn't a whole number: 5 / 2"},
        {LIST_ATTR("{\"per\": 257, \"value\": 1}"), "m.json:5: attribute list: 257 numbers; expected 0 to 256"},
        {LIST_ATTR("{\"per\": -1, \"value\": 1}"), "m.json:5: attribute list: -1 numbers"},
        {LIST_ATTR("{\"per\": 2, \"value\": \"j\"}"), "m.json:5: expression \"j\": unknown symbol j"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"part\": \"tail\"}", "m.json:5: unknown part tail"},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"save\": 1}", "m.json:5: save: expected true or false, found "},
        {"{\"op\": \"source\", \"in\": [], \"out\": \"s\", \"part\": 3}", "m.json:5: unknown part "},
        {"{\"op\": \"add\", \"in\": [\"tokens\", \"step\"], \"out\": \"s\", \"source\": \"my.py:3\"}",
         "my.py:3: s = add(tokens: i32[2,3], step: i64[4]): a and b differ"},
        {"{\"op\": \"add\", \"in\": [\"tokens\"], \"out\": \"s\"}", "m.json:5: s = add(tokens: i32[2,3], _): input 1 of add is missing"},
        {"{\"repeat\": 2, \"body\": []}", "m.json:5: repeat: expected \"index\" and \"body\""},
        {"{\"repeat\": 2, \"index\": \"i\"}", "m.json:5: repeat: expected \"index\" and \"body\""},
        {"{\"repeat\": -1, \"index\": \"i\", \"body\": []}", "m.json:5: repeat: -1 times"},
        {"{\"repeat\": 0.5, \"index\": \"i\", \"body\": []}", "m.json:5: 0.5 isn't a whole number"},
        {"{\"repeat\": 2, \"index\": \"i\", \"body\": [], \"carry\": 3}", "m.json:5: repeat: carry and yield are objects"},
        {"{\"repeat\": 2, \"index\": \"i\", \"body\": [], \"carry\": {\"x\": \"q\"}}", "m.json:5: no value is named q here"},
        {"{\"repeat\": 2, \"index\": \"i\", \"body\": [], \"carry\": {\"x\": \"tokens\"}}", "m.json:5: repeat: \"yield\" has no x"},
        {"{\"repeat\": 2, \"index\": \"i\", \"body\": [], \"carry\": {\"x\": \"tokens\"}, \"yield\": {\"x\": \"q\"}}",
         "m.json:5: no value is named q here"},
        {"{\"repeat\": 2, \"index\": \"i\", \"body\": [\n4]}", "m.json:6: expected a statement"},
        {"{\"if\": \"q\", \"then\": []}", "m.json:5: expression \"q\": unknown symbol q"},
        {"{\"if\": 1, \"then\": 3}", "m.json:5: expected an array of statements"},
        {"{\"let\": \"a\"}", "m.json:5: let: expected \"is\""},
        {"{\"let\": 3, \"is\": \"tokens\"}", "m.json:5: let: expected a name"},
        {"{\"let\": \"a\", \"is\": \"q\"}", "m.json:5: no value is named q here"},
        {"{\"output\": \"a\"}", "m.json:5: output: expected \"is\""},
        {"{\"output\": \"a b\", \"is\": \"tokens\"}", "m.json:5: output: expected a name"},
        {"{\"output\": \"a\", \"is\": \"q\"}", "m.json:5: no value is named q here"},
        {"{\"output\": \"losses\", \"is\": \"tokens\"}",
         "m.json:5: output losses is i32[2,3], expected f32[2,3]: the rows and their tokens"},
        {"{\"output\": \"a\", \"is\": \"tokens\"}, {\"output\": \"a\", \"is\": \"labels\"}", "m.json:5: second output named a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Graph *graph;
        Status status = bind_text("", "", cases[i].statements, "{}", &graph);
        if (status != ERR_INVALID || strncmp(status_message(), cases[i].message, strlen(cases[i].message)) != 0)
            test_fail(__FILE__, __LINE__, "%s\n  gives \"%s\"\n  expected \"%s\"", cases[i].statements,
                      status == OK ? "OK" : status_message(), cases[i].message);
        arena_deinit(&arena);
    }
}

/* A message says: the line, the turns of the repeats, the value, what was found and what is expected. */
static void messages_name_the_statement(void)
{
#define TURNS(body) "{\"repeat\": 2, \"index\": \"i\", \"body\": [\n" body "]}"
#define OP(more) "{\"op\": \"source\", \"in\": [], \"out\": \"h.{i}.s\"" more "}"
#define LEN(e) OP(", \"attrs\": {\"len\": " e "}")
#define WEIGHT(shape, more) "{\"param\": \"h.{i}.w\", \"shape\": " shape ", \"hf\": \"h.{i}.W\"" more "}"
    static const struct {
        const char *statements, *message;
    } cases[] = {
        {TURNS(LEN("\"1 / i\"")), "m.json:6: 1 / i is inf, expected a finite number, as attribute len, in h.0.s"},
        {TURNS(LEN("\"1 + i / 2\"")), "m.json:6: 1.5 isn't a whole number: 1 + i / 2, as attribute len, in h.1.s"},
        {TURNS(LEN("\"i +\"")), "m.json:6: expression \"i +\": expected a number, name or ( at \"\", as attribute len, in h.0.s"},
        {TURNS(LEN("\"k\"")), "m.json:6: expression \"k\": unknown symbol k, as attribute len, in h.0.s"},
        {TURNS(LEN("null")), "m.json:6: expected a number or an expression, found null, as attribute len, in h.0.s"},
        {TURNS(LEN("\"2 - 3 * i\"")), "m.json:6: h.1.s = source(): a dim would be -1; dims are at least 1"},
        {TURNS(OP(", \"attrs\": {\"length\": 3}")), "m.json:6: source has no attribute length; it has len, scale, flip, list, in h.0.s"},
        {TURNS(OP(", \"attrs\": {\"list\": {\"per\": 2, \"value\": \"1 / (i - 1)\"}}")),
         "m.json:6: 1 / (i - 1) is inf, expected a finite number, as attribute list[1], in h.0.s"},
        {TURNS(OP(", \"attrs\": {\"list\": {\"per\": \"1 / 2\", \"value\": 1}}")),
         "m.json:6: 0.5 isn't a whole number: 1 / 2, as the number of those of attribute list, in h.0.s"},
        {TURNS(OP(", \"part\": \"mlp\"")), "m.json:6: unknown part mlp; expected norm, qkv, att, ffn, swiglu or block, in h.0.s"},
        {TURNS(OP(", \"save\": \"yes\"")), "m.json:6: save: expected true or false, found string, in h.0.s"},
        {TURNS(OP(", \"when\": 1")), "m.json:6: op has no \"when\"; it may have in out attrs part save source "},
        {TURNS("{\"op\": \"sourse\", \"in\": [], \"out\": \"h.{i}.s\"}"), "m.json:6: unknown op sourse; did you mean source?, in h.0.s"},
        {TURNS("{\"op\": \"zzz\", \"in\": [], \"out\": \"h.{i}.s\"}"), "m.json:6: unknown op zzz; `surogate ops` lists them, in h.0.s"},
        {TURNS("{\"op\": \"flat\", \"in\": [\"h.{i}.x\"], \"out\": \"h.{i}.s\"}"), "m.json:6: no value is named h.0.x here, in h.0.s"},
        {TURNS("{\"op\": \"flat\", \"in\": \"tokens\", \"out\": \"h.{i}.s\"}"),
         "m.json:6: flat: expected \"in\" with at most 1 names, found string, in h.0.s"},
        {TURNS("{\"op\": \"flat\", \"in\": [\"tokens\", \"step\"], \"out\": \"h.{i}.s\"}"),
         "m.json:6: flat: expected \"in\" with at most 1 names, found 2, in h.0.s"},
        {TURNS("{\"op\": \"add\", \"in\": [\"tokens\", \"step\"], \"out\": \"h.{i}.s\"}"),
         "m.json:6: h.0.s = add(tokens: i32[2,3], step: i64[4]): a and b differ"},
        {TURNS(WEIGHT("[4, \"i - 1\"]", "")), "m.json:6: a dim would be -1; dims are at least 1, in h.0.w"},
        {TURNS(WEIGHT("[4, \"T / 2\"]", "")), "m.json:6: 1.5 isn't a whole number: T / 2, as shape[1], in h.0.w"},
        {TURNS(WEIGHT("[4]", ", \"init\": {\"normal\": \"0 - i\"}")), "m.json:6: init: a deviation of -1, expected 0 or more, in h.1.w"},
        {TURNS(WEIGHT("[8, 2]", ", \"matrices\": [4, \"4.5\"]")), "m.json:6: 4.5 isn't a whole number: 4.5, as matrices[1], in h.0.w"},
        {TURNS(WEIGHT("[4]", ", \"dtype\": \"f64\"")), "m.json:6: dtype: expected f32 or bf16, in h.0.w"},
        {TURNS(WEIGHT("[4]", ", \"export\": {\"slice\": \"a\", \"begin\": \"i / 2\", \"total\": 8}")),
         "m.json:6: 0.5 isn't a whole number: i / 2, as begin, in h.1.w"},
        {TURNS("{\"if\": \"1 / i\", \"then\": []}"), "m.json:6: 1 / i is inf, expected a finite number, where i = 0"},
        {TURNS("{\"let\": \"a\", \"is\": \"h.{i}.b\"}"), "m.json:6: no value is named h.0.b here, where i = 0"},
        {TURNS("{\"repeat\": \"i / 2\", \"index\": \"k\", \"body\": []}"),
         "m.json:6: 0.5 isn't a whole number: i / 2, as repeat, where i = 1"},
        {"{\"repeat\": -1, \"index\": \"i\", \"body\": []}", "m.json:5: repeat: -1 times, expected 0 or more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Graph *graph;
        Status status = bind_text("", "", cases[i].statements, "{}", &graph);
        if (status != ERR_INVALID || strcmp(status_message(), cases[i].message) != 0)
            test_fail(__FILE__, __LINE__, "%s\n  gives \"%s\"\n  expected \"%s\"", cases[i].statements,
                      status == OK ? "OK" : status_message(), cases[i].message);
        arena_deinit(&arena);
    }
#undef TURNS
#undef OP
#undef LEN
#undef WEIGHT
}

static void what_a_module_may_cost_is_bounded(void)
{
#define DEEP "{\"repeat\": 1, \"index\": \"i\", \"body\": ["
#define LOOP "{\"repeat\": 1000000, \"index\": \"i\", \"body\": ["
    static const struct {
        const char *statements, *message;
    } cases[] = {
        {LOOP "]}", "m.json:5: the module goes on without end: more than 100000 JSON members"},
        {LOOP LOOP LOOP "]}]}]}", "the module goes on without end"},
        {"{\"repeat\": 9e15, \"index\": \"i\", \"body\": []}", "isn't a whole number"},
        {LOOP "{\"op\": \"source\", \"in\": [], \"out\": \"s{i}\"}]}", "the module goes on without end"},
        {LOOP "{\"param\": \"w{i}\", \"shape\": [4], \"hf\": \"W{i}\"}]}", "the module goes on without end"},
        {LOOP "{\"let\": \"a\", \"is\": \"tokens\"}]}", NULL},
        {DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP DEEP "]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}",
         "repeat nested deeper than 16"},
    };
    Graph *graph;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Status status = bind_text("", "", cases[i].statements, "{}", &graph);
        if (status == OK || !strstr(status_message(), cases[i].message ? cases[i].message : "goes on without end"))
            test_fail(__FILE__, __LINE__, "case %zu gives \"%s\"", i, status == OK ? "OK" : status_message());
        EXPECT(arena.used_bytes < (size_t)64 << 20);
        arena_deinit(&arena);
    }
    StrBuf lets = {0};
    for (int i = 0; i < 65; i++) strbuf_printf(&lets, "%s{\"let\": \"a%d\", \"is\": \"tokens\"}", i ? ", " : "", i);
    EXPECT_FAILS(bind_text("", "", lets.data, "{}", &graph), ERR_INVALID, "m.json:5: more than 64 names carried");
    strbuf_clear(&lets);
    strbuf_puts(&lets, "{\"param\": \"");
    for (int i = 0; i < 257; i++) strbuf_putc(&lets, 'n');
    strbuf_puts(&lets, "\", \"shape\": [4], \"hf\": \"W\"}");
    EXPECT_FAILS(bind_text("", "", lets.data, "{}", &graph), ERR_INVALID, "m.json:5: a name of 257 bytes; expected 1 to 256");
    strbuf_clear(&lets);
    strbuf_puts(&lets, "{\"param\": \"");
    for (int i = 0; i < 20; i++) strbuf_puts(&lets, "{8e15}"); /* each becomes longer when it is expanded */
    strbuf_puts(&lets, "\", \"shape\": [4], \"hf\": \"W\"}");
    EXPECT_FAILS(bind_text("", "", lets.data, "{}", &graph), ERR_INVALID, "isn't fit for a name: empty, too long");
    strbuf_clear(&lets);
    strbuf_puts(&lets, "{\"param\": \"w\", \"shape\": [4097], \"hf\": {\"concat\": [\"p\"");
    for (int i = 0; i < 4096; i++) strbuf_puts(&lets, ", \"p\"");
    strbuf_puts(&lets, "]}}");
    EXPECT_FAILS(bind_text("", "", lets.data, "{}", &graph), ERR_INVALID, "concat: 4097 pieces; at most 4096");
    strbuf_deinit(&lets);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(shipped_families_are_listed), TEST(symbols_come_from_either_spelling), TEST(defaults_are_those_of_transformers),
          TEST(values_of_wrong_types_are_refused), TEST(every_family_refuses_what_it_does_not_compute), TEST(configs_of_the_hub_are_read),
          TEST(what_a_family_lacks_is_refused_by_name), TEST(what_is_no_module_is_refused), TEST(config_sections_are_checked),
          TEST(roles_name_symbols), TEST(lists_have_a_value_for_each_layer), TEST(statements_become_a_graph),
          TEST(bad_statements_say_where), TEST(messages_name_the_statement), TEST(what_a_module_may_cost_is_bounded))
