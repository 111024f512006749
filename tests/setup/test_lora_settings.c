/* Which layers a run's LoRA settings adapt: the same layers as in PEFT (tests/oracle/make_adapters.py); and settings taken from an
 * adapter's folder instead of the run file. */
#include "setup/lora.h"
#include "setup/setup.h"

#include "base/json.h"
#include "device/device.h"
#include "files/file.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/adapters"
#define QWEN3 "tests/fixtures/families/qwen3"

static Status open_lines(const char *family, const char *lines, Arena *arena, Config *config, HfModel **model, CompileOptions *options)
{
    const char *text = arena_printf(arena, "model: tests/fixtures/families/%s\nmodel_dtype: fp32\nlora: true\n%s", family, lines);
    *model = NULL;
    TRY(config_parse("run.yaml", text, strlen(text), NULL, 0, config, NULL));
    Status status = setup_adapter(config);
    if (status == OK) status = setup_model(arena, config, model);
    if (status == OK) status = setup_options(arena, config, *model, options);
    return status;
}

/* ---- the layers ---- */

static const Param *half_of(const Plan *plan, const char *module, const char *half)
{
    for (int i = 0; i < plan->num_params; i++)
        if (plan->params[i]->is_adapter && strcmp(plan->params[i]->module, module) == 0 && strstr(plan->params[i]->name, half))
            return plan->params[i];
    return NULL;
}

static void expect_modules(const Plan *plan, const LoraOptions *lora, const JsonValue *want, int index)
{
    int count = 0;
    for (int i = 0; i < plan->num_params; i++) count += plan->params[i]->is_adapter;
    if (count != 2 * (int)want->count) test_fail(__FILE__, __LINE__, "case %d: %d halves, PEFT has %u layers", index, count, want->count);
    for (uint32_t i = 0; i < want->count; i++) {
        const JsonValue  *row = &want->items[i];
        const char       *path = row->items[0].string.data;
        const Param      *a = half_of(plan, path, "lora_A"), *b = half_of(plan, path, "lora_B");
        const LoraModule *module = lora_find_module(lora, path), of_all = {.r = lora->r, .alpha = lora->alpha};
        double            scale = row->items[2].type == JSON_INT ? (double)row->items[2].integer : row->items[2].number;
        if (!module) module = &of_all;
        if (!a || !b || a->type.dim[0] != row->items[1].integer || b->type.dim[1] != row->items[1].integer)
            test_fail(__FILE__, __LINE__, "case %d: %s: the rank isn't %lld", index, path, (long long)row->items[1].integer);
        EXPECT_NEAR(lora_scale(lora, module->r, module->alpha), scale, 1e-12);
    }
}

/* The settings as lines of a run file, which accepts JSON. */
static const char *lines_of(Arena *arena, const JsonValue *one)
{
    StrBuf           text = {0};
    const JsonValue *settings = json_get(one, "settings");
    bool             rslora = false;
    json_get_bool(one, "use_rslora", &rslora);
    strbuf_printf(&text, "lora_rank: 4\nlora_alpha: 8\nlora_use_rslora: %s\n", rslora ? "true" : "false");
    for (uint32_t i = 0; i < settings->count; i++) {
        strbuf_printf(&text, "lora_%s: ", settings->members[i].key.data);
        json_write(&text, &settings->members[i].value, -1);
        strbuf_putc(&text, '\n');
    }
    const char *lines = arena_strdup(arena, text.data);
    strbuf_deinit(&text);
    return lines;
}

static void expect_case(const JsonValue *one, int index)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    Device        *device;
    Plan          *plan = NULL;
    const char    *family = "";
    json_get_str(one, "family", &family);
    EXPECT_OK(device_null_create("h200", &device));
    EXPECT_OK(open_lines(family, lines_of(&arena, one), &arena, &config, &model, &options));
    EXPECT_OK(setup_plan(&arena, model, &options, device, &plan));
    if (plan) expect_modules(plan, &options.lora, json_get(one, "modules"), index);
    hf_model_close(model);
    device->api->destroy(device);
    config_deinit(&config);
    arena_deinit(&arena);
}

static void layers_are_those_of_peft(void)
{
    Arena     arena = {0};
    Str       text;
    JsonValue cases;
    EXPECT_OK(file_read(&arena, FIXTURES "/selected.json", 1 << 20, &text));
    EXPECT_OK(json_parse(&arena, "selected.json", text.data, text.len, &cases));
    EXPECT(cases.count >= 15);
    for (uint32_t i = 0; i < cases.count; i++) expect_case(&cases.items[i], (int)i);
    arena_deinit(&arena);
}

static void refuse(const char *lines, Status status, const char *says)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    EXPECT_FAILS(open_lines("qwen3", lines, &arena, &config, &model, &options), status, says);
    if (model) hf_model_close(model);
    config_deinit(&config);
    arena_deinit(&arena);
}

static void what_means_no_layer_is_refused(void)
{
    refuse("lora_target_modules: [q_proj, query]\nlora_exclude_modules: [k_proj]", ERR_INVALID,
           "lora_target_modules: \"query\" matches no linear layer of this model; it has lm_head, q_proj, k_proj, v_proj, o_proj");
    refuse("lora_target_modules: .*query.*", ERR_INVALID, "lora_target_modules: \".*query.*\" matches no linear layer");
    refuse("lora_target_modules: .*(q_proj", ERR_UNSUPPORTED, "target_modules: \".*(q_proj\"");
    refuse("lora_target_modules: [q_proj, .*mlp.*]", ERR_INVALID,
           "run.yaml:4:22: lora_target_modules: .*mlp.* is a regular expression, which");
    refuse("lora_exclude_modules: [c_attn]", ERR_INVALID, "lora_exclude_modules: \"c_attn\" matches no linear layer");
    refuse("lora_exclude_modules: .*_proj", ERR_INVALID, "no linear layer of this model is left");
    refuse("lora_layers_to_transform: [0, 2]", ERR_INVALID, "lora_layers_to_transform: no block with the number 2");
    refuse("lora_layers_to_transform: [last]", ERR_INVALID, "lora_layers_to_transform: expected numbers of blocks from 0, found last");
    refuse("lora_layers_to_transform: [0]\nlora_layers_pattern: h", ERR_INVALID,
           "run.yaml:5:22: lora_layers_pattern: \"h\" stands before the number of no block of this model; there is layers");
    refuse("lora_layers_pattern: nosuch", ERR_INVALID, "\"nosuch\" stands before the number of no block");
    refuse("lora_layers_to_transform: [0]\nlora_target_modules: .*q_proj", ERR_INVALID, "says the blocks itself");
    refuse("lora_rank_pattern: {query: 3}", ERR_INVALID, "lora_rank_pattern: \"query\" matches the end of no path of an adapted layer");
    refuse("lora_rank_pattern: {q_proj: 1.5}", ERR_INVALID, "lora_rank_pattern: q_proj: 1.5; expected a whole number from 1 to 65536");
    refuse("lora_rank_pattern: {q_proj: 0}", ERR_INVALID, "expected a whole number from 1 to 65536");
    refuse("lora_alpha_pattern: {q_proj: -1}", ERR_INVALID, "lora_alpha_pattern: q_proj: -1; expected a number above 0");
    refuse("lora_alpha_pattern: {k_proj: 2}\nlora_target_modules: [q_proj]", ERR_INVALID, "lora_alpha_pattern: \"k_proj\" matches");
}

/* ---- an adapter's folder ---- */

static void an_adapter_says_what_is_adapted(void)
{
    Arena          arena = {0};
    Config         config;
    HfModel       *model;
    CompileOptions options;
    EXPECT_OK(open_lines("qwen3", "adapter: " FIXTURES "/qwen3\nlora_rank: 2\nlora_target_modules: [k_proj]\n", &arena, &config, &model,
                         &options));
    EXPECT_INT(config.warnings.count, 1);
    EXPECT_CONTAINS(config.warnings.items[0], "lora_rank, lora_target_modules: no effect when adapter is set");
    EXPECT_INT(config.lora_rank, 5);
    EXPECT(config.lora_alpha == 12 && config.lora_use_rslora && config.lora_rank_pattern.count == 2);
    EXPECT_INT(options.lora.num_modules, 9); /* 5 names in 2 layers, one of them excluded in the first */
    EXPECT_INT(lora_find_module(&options.lora, "model.layers.1.mlp.down_proj")->r, 8);
    EXPECT(lora_find_module(&options.lora, "model.layers.1.self_attn.o_proj")->alpha == 4.5);
    StrBuf printed = {0}; /* reads back to the same */
    Config again;
    config_print(&config, &printed);
    EXPECT_OK(config_parse("run.yaml", printed.data, printed.len, NULL, 0, &again, NULL));
    EXPECT_INT(again.lora_rank, 5);
    EXPECT_STR(again.lora_exclude_modules.items[0], config.lora_exclude_modules.items[0]);
    config_deinit(&again);
    strbuf_deinit(&printed);
    hf_model_close(model);
    config_deinit(&config);
    arena_deinit(&arena);
}

static void words_keep_their_meaning(void)
{
    const char *text = "model: x\nadapter: qlora\n";
    Config      config;
    EXPECT_OK(config_parse("run.yaml", text, strlen(text), NULL, 0, &config, NULL));
    EXPECT(config.lora && config.qlora == OPT_QLORA_NF4 && !config.adapter);
    config_deinit(&config);
    text = "model: x\nadapter: lora\nlora_model_dir: there\n";
    EXPECT_OK(config_parse("run.yaml", text, strlen(text), NULL, 0, &config, NULL));
    EXPECT(config.lora && config.qlora == OPT_QLORA_NONE);
    EXPECT_STR(config.adapter, "there");
    config_deinit(&config);
    text = "model: x\nadapter: none\n";
    EXPECT_OK(config_parse("run.yaml", text, strlen(text), NULL, 0, &config, NULL));
    EXPECT(!config.lora && !config.adapter);
    config_deinit(&config);
    text = "model: x\nadapter: there\nlora: false\n";
    EXPECT_FAILS(config_parse("run.yaml", text, strlen(text), NULL, 0, &config, NULL), ERR_INVALID, "lora: false trains all parameters");
}

static void other_folders_are_refused(void)
{
    char  folder[] = "/tmp/surogate_lora_XXXXXX";
    Arena arena = {0};
    refuse("adapter: nowhere", ERR_NOT_FOUND, "run.yaml:4:10: adapter: there is no folder nowhere; expected the folder of a LoRA adapter");
    refuse("adapter: tests/fixtures", ERR_INVALID, "adapter: tests/fixtures holds no adapter");
    refuse("adapter: tests/fixtures/families/gpt2/adapter", ERR_INVALID, "adapter: tests/fixtures/families/gpt2/adapter");
    EXPECT(mkdtemp(folder));
    const char *path = arena_printf(&arena, "%s/adapter_config.json", folder), *lines = arena_printf(&arena, "adapter: %s", folder);
    const char *config = "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, \"target_modules\": [\"q_proj\"], \"lora_bias\": true}";
    EXPECT_OK(file_write_atomic(path, config, strlen(config)));
    refuse(lines, ERR_UNSUPPORTED, "\"lora_bias\" isn't supported");
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
}

TEST_MAIN(TEST(layers_are_those_of_peft), TEST(what_means_no_layer_is_refused), TEST(an_adapter_says_what_is_adapted),
          TEST(words_keep_their_meaning), TEST(other_folders_are_refused))
