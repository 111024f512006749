/* The run file: values, problems, overrides, names of other tools' keys, and the texts generated from the table. */
#include "base/json.h"
#include "config/options.h"
#include "files/file.h"
#include "test.h"

#include <fnmatch.h>
#include <unistd.h>

static Config config;
static StrBuf problems;

/* Parses text with up to two overrides (NULL: none). */
static Status parse(const char *text, const char *first, const char *second)
{
    const char *overrides[] = {first, second};
    config_deinit(&config);
    strbuf_clear(&problems);
    return config_parse("run.yaml", text, strlen(text), overrides, (size_t)(first != NULL) + (second != NULL), &config, &problems);
}

static void values_are_typed(void)
{
    EXPECT_OK(parse("model: Qwen/Qwen3-0.6B\nlearning_rate: 2e-4\nmax_steps: 100\nlora: yes\nlora_rank: \"8\"\n"
                    "lr_scheduler_type: cosine\nlora_target_modules: [q_proj, v_proj]\nmax_shard_size: 2GiB\n"
                    "adamw_epsilon: .5\nadamw_beta1: 0.\ndevice: CPU\nthreads:\nrun_name: 123\n"
                    "datasets:\n  - path: a.jsonl\n    type: text\n    samples: 10\n  - b.txt\n"
                    "  - {path: c, message_property_mappings: {role: from, content: value}, train_on: all}\n",
                    NULL, NULL));
    EXPECT_STR(config.model, "Qwen/Qwen3-0.6B");
    EXPECT(config.learning_rate == 2e-4);
    EXPECT_INT(config.max_steps, 100);
    EXPECT(config.lora);
    EXPECT_INT(config.lora_rank, 8);
    EXPECT_INT(config.lr_scheduler_type, OPT_LR_COSINE);
    EXPECT_INT(config.lora_target_modules.count, 2);
    EXPECT_STR(config.lora_target_modules.items[1], "v_proj");
    EXPECT_INT(config.max_shard_size, 2147483648);
    EXPECT(config.adamw_epsilon == 0.5 && config.adamw_beta1 == 0);
    EXPECT_INT(config.device, OPT_DEVICE_CPU);
    EXPECT_INT(config.threads, 0);
    EXPECT_STR(config.run_name, "123");
    EXPECT_INT(config.datasets.count, 3);
    EXPECT_INT(config.datasets.items[0].type, OPT_DATASET_TEXT);
    EXPECT_INT(config.datasets.items[0].samples, 10);
    EXPECT_STR(config.datasets.items[0].text_field, "text");
    EXPECT_STR(config.datasets.items[1].path, "b.txt");
    EXPECT_INT(config.datasets.items[1].train_on, OPT_UNSET);
    EXPECT_STR(config.datasets.items[2].message_property_mappings.values[0], "from");
    EXPECT_INT(config.datasets.items[2].train_on, OPT_TRAIN_ON_ALL);
    EXPECT_STR(config.origin[KEY_run_max_steps], "run.yaml:3:12");
    EXPECT(!config.origin[KEY_run_seed] && !config.origin[KEY_run_threads]);
    EXPECT_STR(config.datasets.items[1].origin[KEY_dataset_path], "run.yaml:18:5");
    EXPECT_STR(config.notes, "");
}

static void defaults_are_those_of_the_table(void)
{
    EXPECT_OK(parse("", NULL, NULL));
    EXPECT_INT(config.per_device_train_batch_size, 2);
    EXPECT_INT(config.gradient_accumulation_steps, 4);
    EXPECT_INT(config.sequence_len, 1024);
    EXPECT_INT(config.lr_scheduler_type, OPT_LR_LINEAR);
    EXPECT_INT(config.matmul_dtype, OPT_UNSET);
    EXPECT_STR(config.lora_target_modules.items[0], "all-linear");
    EXPECT(!config.model);
    EXPECT_FAILS(config_require(&config, KEY_run_model, "pt"), ERR_INVALID, "pt needs the key model");
    EXPECT_OK(parse("model: x\n", NULL, NULL));
    EXPECT_OK(config_require(&config, KEY_run_model, "pt"));
}

static void all_problems_are_told_at_once(void)
{
    EXPECT_FAILS(parse("modell: x\nmax_steps: many\nlora_rank: 0\ndevice: cpuu\nlora: maybe\nseed: [1]\nseed: 2\n"
                       "sequence_len: 1e3\nlearning_rate: fast\ndatasets:\n  - pth: x\n  - []\n? [1]\n: 2\nmax_shard_size: 3 XB\n"
                       "lora_target_modules: [a, [b]]\nload_in_8bit: true\nadamw_epsilon: 0\nwarmup_ratio: 1.5\nsave_steps: -1\n"
                       "eval_steps: 99999999999999999999\nadamw_beta2: 1e999\nmodel: {}\n",
                       "stepps=3", "max_steps"),
                 ERR_INVALID, "problems:\nrun.yaml:1:1: unknown key modell; did you mean model?\n");
    static const char *const lines[] = {
        "run.yaml:2:12: max_steps: expected an integer, found \"many\"\n",
        "run.yaml:3:12: lora_rank: 0 is out of range, expected 1 to 65536\n",
        "run.yaml:4:9: device: expected one of auto, cpu, cuda, found \"cpuu\"; did you mean cpu?\n",
        "run.yaml:5:7: lora: expected true or false, found \"maybe\"\n",
        "run.yaml:6:7: seed: expected an integer, found a list\n",
        "run.yaml:7:1: seed is given twice; first at run.yaml:6:7\n",
        "run.yaml:8:15: sequence_len: expected an integer, found 1e3; write 1000\n",
        "run.yaml:9:16: learning_rate: expected a number, found \"fast\"\n",
        "run.yaml:11:5: unknown key datasets[0].pth; did you mean path?\n",
        "datasets[0]: the key path is missing\n",
        "run.yaml:12:5: datasets[1]: expected a mapping or a path, found a list\n",
        "expected a key, found a list\n",
        "max_shard_size: expected a size like 8GB, found \"3 XB\"\n",
        "lora_target_modules: expected a text as item 2, found a list\n",
        "load_in_8bit: for a base in 8 bits set qlora: fp8",
        "adamw_epsilon: 0 is out of range, expected above 0\n",
        "warmup_ratio: 1.5 is out of range, expected 0 to 1\n",
        "save_steps: -1 is out of range, expected at least 0\n",
        "eval_steps: expected an integer, found \"99999999999999999999\"\n",
        "adamw_beta2: expected a number, found \"1e999\"\n",
        "model: expected a text, found a mapping\n",
        "argument stepps=3: unknown key stepps",
        "argument max_steps: expected key=value\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) EXPECT_CONTAINS(strbuf_cstr(&problems), lines[i]);
}

static void more_problems(void)
{
    static const char *const cases[][2] = {
        {"- a\n", "run.yaml:1:1: expected lines of \"key: value\", found a list"},
        {"just text\n", "found a value"},
        {"a: [\n", "run.yaml:"},
        {"datasets: [~]\n", "datasets[0]: expected a mapping or a path, found nothing"},
        {"datasets: {type: text}\n", "datasets[0]: the key path is missing"},
        {"datasets: [{path: x, message_property_mappings: [a]}]\n", "message_property_mappings: expected a mapping of texts, found a list"},
        {"datasets: [{path: x, message_property_mappings: {a: [b]}}]\n", "expected texts as keys and values"},
        {"lora_target_linear: 3\n", "lora_target_linear: expected true, found \"3\""},
        {"memory_limit: 8\n", "run.yaml:1:15: memory_limit: 8 means that many bytes; give a unit: 8GB or 8GiB"},
        {"finetuning_type: [x]\n", "finetuning_type: expected lora or full, found a list"},
        {"qqqqqqqqqqqq: 1\n", "unknown key qqqqqqqqqqqq; `surogate help keys` lists all"},
        {"on_bad_row: skip\n", "run.yaml:1:1: unknown key on_bad_row; it is one of a dataset: datasets.0.on_bad_row"},
        {"datasets: [{path: x, seed: 3}]\n", "unknown key datasets[0].seed; it is one of the whole run"},
        {"lora_rank: 8\nlora_r: 16\n", "run.yaml:2:1: lora_r and lora_rank (at run.yaml:1:12) both set lora_rank; keep one of them"},
        {"train_on: all\ntrain_on_prompt: false\n", "train_on_prompt and train_on (at run.yaml:1:11) both set train_on"},
        {"train_on_prompt: true\nmask_history: true\n", "mask_history and train_on_prompt (at run.yaml:1:18) both set train_on"},
        {"adamw_beta2: 1.0\n", "adamw_beta2: 1.0 is out of range, expected 0 to 0.999999999"},
        {"stage: dpo\n", "run.yaml:1:1: stage: only pre-training (surogate pt) and fine-tuning on answers (surogate sft)"},
        {"datasets: [{path: a, roles_to_train: [user, assistant]}]\n",
         "datasets[0].roles_to_train: set train_on: assistant, last_turn or all"},
        {"sample_prompts: [~]\n", "expected a text as item 1, found nothing"},
        {"memory_limit: 999999999TB\n", "expected a size"},
        {"memory_limit: 1.2.3GB\n", "expected a size"},
        {"memory_limit: GB\n", "expected a size"},
        {"learning_rate: 1e\n", "expected a number"},
        {"learning_rate: 0x10\n", "expected a number"},
        {"learning_rate: .\n", "expected a number"},
        {"seed: 1.5\n", "expected an integer, found \"1.5\""},
        {"threads: 129\n", "threads: 129 is out of range, expected 0 to 128"},
        {"seed: -1\n", "out of range, expected at least 0"},
        {"from_scratch: true\nlora: true\n", "run.yaml:1:15: from_scratch: an adapter is of no use without its base"},
        {"output_dir: $HOME/out\n", "run.yaml:1:13: output_dir: only a leading ~/ stands for something"},
        {"datasets: [{path: ~other/x}]\n", "path: only a leading ~/"},
        {"datasets: [{path: x, weight: 0}]\n", "datasets[0].weight: 0 is out of range, expected above 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) EXPECT_FAILS(parse(cases[i][0], NULL, NULL), ERR_INVALID, cases[i][1]);
    EXPECT_FAILS(parse("", "datasets.1.path=x", NULL), ERR_INVALID, "datasets has 0 items; the next would be datasets.0");
    EXPECT_FAILS(parse("", "datasets.0.type=text", NULL), ERR_INVALID, "datasets[0]: the key path is missing; set datasets.0.path first");
    EXPECT_FAILS(parse("", "datasets.x.type=text", NULL), ERR_INVALID, "unknown key datasets.x.type");
    EXPECT_FAILS(parse("", "lora_target_modules=[a", NULL), ERR_INVALID, "argument lora_target_modules=[a:");
    EXPECT_FAILS(parse("", "=3", NULL), ERR_INVALID, "expected key=value");
}

static void overrides_win(void)
{
    EXPECT_OK(parse("max_steps: 5\ndatasets: [a.txt]\n", "max_steps=7", "datasets.0.samples=3"));
    EXPECT_INT(config.max_steps, 7);
    EXPECT_INT(config.datasets.items[0].samples, 3);
    EXPECT_STR(config.origin[KEY_run_max_steps], "argument max_steps=7");
    EXPECT_OK(parse("chat_template: x\n", "datasets.0.path=[v2] x.jsonl", "datasets.1.path={a,b}.jsonl"));
    EXPECT_STR(config.datasets.items[0].path, "[v2] x.jsonl");
    EXPECT_STR(config.datasets.items[1].path, "{a,b}.jsonl");
    EXPECT_OK(parse("", "chat_template={{ messages[0].content }}", NULL));
    EXPECT_STR(config.chat_template, "{{ messages[0].content }}");
    EXPECT_OK(parse("datasets: [a.txt]\nlora: true\n", "datasets.1.path=b = c", "lora_target_modules=[q_proj, 'k: x']"));
    EXPECT_INT(config.datasets.count, 2);
    EXPECT_STR(config.datasets.items[0].path, "a.txt");
    EXPECT_STR(config.datasets.items[1].path, "b = c");
    EXPECT_STR(config.datasets.items[1].split, "train");
    EXPECT_STR(config.lora_target_modules.items[1], "k: x");
    EXPECT_OK(parse("lora: true\n", "lora_target_modules=q_proj,v_proj", "sample_prompts=Hello, world"));
    EXPECT_INT(config.lora_target_modules.count, 2);
    EXPECT_STR(config.lora_target_modules.items[0], "q_proj");
    EXPECT_STR(config.lora_target_modules.items[1], "v_proj");
    EXPECT_INT(config.sample_prompts.count, 1);
    EXPECT_OK(parse("lora_target_modules: \"a,b\"\nlora: no\n", NULL, NULL));
    EXPECT_INT(config.lora_target_modules.count, 1);
    EXPECT_OK(parse("micro_batch_size: 3\nseed: 5\n", "per_device_train_batch_size=6", "seed="));
    EXPECT_INT(config.per_device_train_batch_size, 6);
    EXPECT_INT(config.seed, 42);
}

static void distributed_holds_keys_of_the_run(void)
{
    EXPECT_OK(parse("distributed: {ray_address: auto, num_nodes: 3}\n", "distributed.gpus_per_node=8", "distributed={num_nodes: 4}"));
    EXPECT_STR(config.ray_address, "auto");
    EXPECT_INT(config.num_nodes, 4);
    EXPECT_INT(config.gpus_per_node, 8);
    EXPECT_OK(parse("distributed:\nray_address: auto\n", "distributed.ray_address=", NULL));
    EXPECT(config.ray_address == NULL);
    EXPECT_FAILS(parse("num_nodes: 2\ndistributed: {num_nodes: 3}\n", NULL, NULL), ERR_INVALID, "num_nodes is given twice");
    EXPECT_FAILS(parse("distributed: [auto]\n", NULL, NULL), ERR_INVALID, "distributed: expected a mapping");
    EXPECT_FAILS(parse("distributed: {seed: 3}\n", NULL, NULL), ERR_INVALID, "unknown key distributed.seed; it takes ray_address, ");
    EXPECT_FAILS(parse("", "distributed.seed=3", NULL), ERR_INVALID, "unknown key distributed.seed");
}

static void a_leading_tilde_is_the_home_folder(void)
{
    setenv("HOME", "/home/someone", 1);
    EXPECT_OK(parse("output_dir: ~/out\nmodel: a~b\ndatasets: [~/x.jsonl]\n", "validation_datasets.0.path=~/v.txt", NULL));
    EXPECT_STR(config.output_dir, "/home/someone/out");
    EXPECT_STR(config.model, "a~b");
    EXPECT_STR(config.datasets.items[0].path, "/home/someone/x.jsonl");
    EXPECT_STR(config.validation_datasets.items[0].path, "/home/someone/v.txt");
    EXPECT_OK(parse("dataset_cache_dir: ~/cache\ntokenizer: ~/t\nir: ~/ir.json\nresume_from_checkpoint: ~/out/checkpoint-3\n"
                    "rendezvous_secret: ~/secret\ndistributed: {worker_output_dir: ~/w}\nchat_template: ~/t.jinja\n",
                    "model=~/m", NULL));
    EXPECT_STR(config.dataset_cache_dir, "/home/someone/cache");
    EXPECT_STR(config.tokenizer, "/home/someone/t");
    EXPECT_STR(config.ir, "/home/someone/ir.json");
    EXPECT_STR(config.resume_from_checkpoint, "/home/someone/out/checkpoint-3");
    EXPECT_STR(config.rendezvous_secret, "/home/someone/secret");
    EXPECT_STR(config.worker_output_dir, "/home/someone/w");
    EXPECT_STR(config.chat_template, "/home/someone/t.jinja");
    EXPECT_STR(config.model, "/home/someone/m");
    EXPECT_OK(parse("chat_template: '~{{ messages }}'\n", NULL, NULL));
    EXPECT_STR(config.chat_template, "~{{ messages }}");
    EXPECT_FAILS(parse("dataset_cache_dir: ~other/x\n", NULL, NULL), ERR_INVALID, "dataset_cache_dir: only a leading ~/");
}

/* The warnings of a run file, one per line. */
static const char *warnings_of(const char *text, const char *override)
{
    static StrBuf lines;
    strbuf_clear(&lines);
    strbuf_puts(&lines, "");
    EXPECT_OK(parse(text, override, NULL));
    for (size_t i = 0; i < config.warnings.count; i++) strbuf_printf(&lines, "%s\n", config.warnings.items[i]);
    return strbuf_cstr(&lines);
}

static void keys_without_effect_are_named_and_why(void)
{
    static const char *const cases[][3] = {
        {"eval_steps: 5\n", NULL, "run.yaml:1:13: eval_steps: no effect without validation_datasets or validation_split_ratio\n"},
        {"eval_steps: 5\nval_set_size: 0.1\n", NULL, ""},
        {"generate_samples: 2\nsample_max_tokens: 9\n", NULL,
         "run.yaml:1:19: generate_samples: no effect without validation_datasets or validation_split_ratio\n"},
        {"r: 8\nseed: 1\nlora_dtype: bf16\nmerge_adapter: true\n", NULL,
         "run.yaml:1:4: lora_rank, lora_dtype, merge_adapter: no effect without lora: true\n"},
        {"recipe: fp8-hybrid\nmatmul_dtype: bf16\ngradient_dtype: bf16\n", NULL,
         "run.yaml:2:15: matmul_dtype, gradient_dtype: no effect without recipe: bf16\n"},
        {"recipe: fp8-hybrid\nskip_quant_last_layers: 2\n", NULL, ""},
        {"skip_quant_first_layers: 2\nfp8_amax_history: 16\n", NULL,
         "run.yaml:2:19: fp8_amax_history: no effect without recipe: fp8-hybrid or matmul_dtype: e4m3 or gradient_dtype: e5m2\n"
         "run.yaml:1:26: skip_quant_first_layers: no effect without recipe: fp8-hybrid or nvfp4 or matmul_dtype: fp32 or bf16 or e4m3 or "
         "gradient_dtype: bf16 or e5m2\n"},
        {"skip_quant_last_layers: 1\nmodel_dtype: fp32\nmatmul_dtype: bf16\n", NULL, ""},
        {"recipe: nvfp4\nfp8_margin: 1\nskip_quant_last_layers: 1\n", NULL,
         "run.yaml:2:13: fp8_margin: no effect without recipe: fp8-hybrid or matmul_dtype: e4m3 or gradient_dtype: e5m2\n"},
        {"gradient_dtype: e5m2\nskip_quant_first_layers: 2\nfp8_amax_algorithm: most_recent\n", NULL, ""},
        {"fp4_hadamard: false\nnormuon_nesterov: false\n", NULL,
         "run.yaml:2:19: normuon_nesterov: no effect without optimizer: normuon\n"
         "run.yaml:1:15: fp4_hadamard: no effect without recipe: nvfp4\n"},
        {"offload_master: true\n", NULL, "run.yaml:1:17: offload_master: no effect without master_dtype: fp32 or lora: true\n"},
        {"offload_master: true\nlora: true\n", NULL, ""},
        {"recipe: fp8-hybrid\nlora: true\nqlora: nf4\n", NULL, "run.yaml:1:9: recipe: no effect without qlora: none or fp8\n"},
        {"recipe: fp8-hybrid\nlora: true\nqlora: fp8\n", NULL, ""},
        {"lora: false\nlora_rank: 8\n", NULL, "run.yaml:2:12: lora_rank: no effect without lora: true\n"},
        {"lora_rank: 8\nmaster_dtype: fp32\n", "lora=true", "run.yaml:2:15: master_dtype: no effect when lora is set\n"},
        {"merge_adapter: false\nlora_dropout: 0\neval_steps: 0\n", NULL, ""}, /* such values switch nothing on: no warning */
        {"num_epochs: 2\nwarmup_ratio: 0.1\n", "max_steps=5", "run.yaml:1:13: num_epochs: no effect when max_steps is set\n"},
        {"num_epochs: 2\nmax_steps: -1\n", NULL, ""},
        {"cooldown_steps: 3\nfinal_lr_fraction: 0.1\n", NULL,
         "run.yaml:1:17: cooldown_steps: no effect without lr_scheduler_type: constant or wsd\n"},
        {"lr_scheduler_type: constant_with_warmup\nfinal_lr_fraction: 0.1\n", NULL,
         "run.yaml:2:20: final_lr_fraction: no effect without lr_scheduler_type: linear or cosine or cooldown_steps\n"},
        {"lr_scheduler_type: wsd\ncooldown_steps: 3\nfinal_lr_fraction: 0.1\n", NULL, ""},
        {"normuon_momentum: 0.9\nnormuon_beta2: 0.9\n", NULL,
         "run.yaml:1:19: normuon_momentum, normuon_beta2: no effect without optimizer: normuon\n"},
        {"optimizer: normuon\nnormuon_coefficients: newton_schulz\nmoment_dtype: bf16\nadamw_beta2: 0.95\n", NULL, ""},
        {"optimizer: adamw_bnb_8bit\nmoment_dtype: bf16\n", NULL,
         "run.yaml:2:15: moment_dtype: no effect without optimizer: adamw or normuon\n"},
        {"recompute_block: true\nrecompute_att: true\n", NULL, "run.yaml:2:16: recompute_att: no effect when recompute_block is set\n"},
        {"validation_datasets: [{path: v, type: text, messages_field: x}]\nvalidation_split_ratio: 0.1\n", NULL,
         "run.yaml:2:25: validation_split_ratio: no effect when validation_datasets is set\n"
         "run.yaml:1:61: validation_datasets[0].messages_field: no effect without type: conversation or auto\n"},
        {"lora: true\nlora_ensure_weight_tying: true\n", NULL,
         "run.yaml:2:27: lora_ensure_weight_tying: no effect without lora_modules_to_save\n"},
        {"lora: true\nlora_ensure_weight_tying: true\nlora_modules_to_save: [embed_tokens]\n", NULL, ""},
        {"eval_strategy: steps\nval_size: 0.1\n", NULL, "run.yaml:1:16: eval_strategy: steps: no effect without eval_steps\n"},
        {"eval_strategy: steps\nval_size: 0.1\neval_steps: 5\n", NULL, ""},
        {"save_strategy: steps\n", NULL, "run.yaml:1:16: save_strategy: steps: no effect without save_steps\n"},
        {"eval_strategy: no\neval_steps: 5\nval_size: 0.1\n", NULL,
         "run.yaml:1:16: eval_strategy: no: no effect when eval_steps is set: remove one of the two\n"},
        {"evals_per_epoch: 2\nevaluation_strategy: 'no'\nval_size: 0.1\n", NULL,
         "run.yaml:2:22: evaluation_strategy: no: no effect when evals_per_epoch is set: remove one of the two\n"},
        {"save_strategy: no\nsave_steps: 5\n", NULL,
         "run.yaml:1:16: save_strategy: no: no effect when save_steps is set: remove one of the two\n"},
        {"eval_strategy: no\nsave_strategy: no\neval_steps: 0\n", NULL, ""},
        {"eval_steps: 5\nval_size: 0.1\n", "eval_strategy=no",
         "argument eval_strategy=no: eval_strategy: no: no effect when eval_steps is set: remove one of the two\n"},
        {"datasets: [{path: a, system_prompt: x, system_prompt_type: none}, {path: b, system_prompt: x}]\n", NULL,
         "run.yaml:1:37: datasets[0].system_prompt: no effect without system_prompt_type: fixed or field\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) EXPECT_STR(warnings_of(cases[i][0], cases[i][1]), cases[i][2]);
}

/* The words of a need's `values` are choices of the other key, and both keys have the same scope. */
static void needs_name_values(void)
{
    for (size_t i = 0; i < num_option_needs; i++) {
        const OptionNeed *need = &option_needs[i];
        EXPECT_INT(options[need->key].scope, options[need->other].scope);
        EXPECT(!need->is_alternative || need[-1].key == need->key);
        char words[128], *rest = words;
        snprintf(words, sizeof words, "%s", need->values);
        for (char *word; (word = strtok_r(rest, " ", &rest));) {
            bool known = strcmp(word, "or") == 0 || strcmp(need->values, "on") == 0 || strcmp(need->values, "off") == 0;
            for (size_t k = 0; k < num_choices && !known; k++)
                known = options[need->other].limits.words && strcmp(choices[k].set, options[need->other].limits.words) == 0 &&
                        strcmp(choices[k].text, word) == 0;
            char *end; /* end of a number that the key accepts */
            long  number = strtol(word, &end, 10);
            if (options[need->other].kind == KIND_INT && !*end)
                known = (double)number >= options[need->other].limits.min && (double)number <= options[need->other].limits.max;
            if (!known) test_fail(__FILE__, __LINE__, "%s needs %s: %s", options[need->key].name, options[need->other].name, word);
        }
    }
}

/* Several names of one key: they must agree, except that a name whose value switches nothing on gives way to the other. */
static void names_of_one_key_agree(void)
{
    static const struct {
        const char *text;
        Choice      train_on;
    } cases[] = {
        {"train_on_prompt: false\nmask_history: false\n", OPT_TRAIN_ON_ASSISTANT},
        {"train_on_prompt: false\nmask_history: true\n", OPT_TRAIN_ON_LAST_TURN},
        {"mask_history: true\ntrain_on_prompt: false\n", OPT_TRAIN_ON_LAST_TURN},
        {"train_on_prompt: true\nmask_history: false\n", OPT_TRAIN_ON_ALL},
        {"train_on: assistant\ntrain_on_inputs: false\n", OPT_TRAIN_ON_ASSISTANT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_OK(parse(cases[i].text, NULL, NULL));
        EXPECT_INT(config.train_on, cases[i].train_on);
    }
    EXPECT_OK(parse("lora: true\nlora_rank: 8\nlora_r: 8\n", NULL, NULL));
    EXPECT_INT(config.lora_rank, 8);
}

static void other_tools_names_are_read_and_noted(void)
{
    EXPECT_OK(parse("base_model: m\nadapter: lora\nlora_r: 4\ntrain_on_inputs: no\nlora_target_linear: true\noptimizer: adamw_torch\n"
                    "auto_resume_from_checkpoints: on\nval_set_size: 0.05\nwandb_name:\n",
                    NULL, NULL));
    EXPECT_STR(config.model, "m");
    EXPECT(config.lora);
    EXPECT_INT(config.lora_rank, 4);
    EXPECT_INT(config.train_on, OPT_TRAIN_ON_ASSISTANT);
    EXPECT_INT(config.optimizer, OPT_OPTIMIZER_ADAMW);
    EXPECT_STR(config.resume_from_checkpoint, "auto");
    EXPECT_CONTAINS(config.notes, "run.yaml:1:1: base_model is read as model\n");
    EXPECT_CONTAINS(config.notes, "run.yaml:2:1: adapter is read as lora: true\n");
    EXPECT(!strstr(config.notes, "wandb_name"));
}

/* Lines from the examples of Axolotl, LLaMA-Factory, Trainer and Unsloth. */
static void other_tools_keys_are_answered(void)
{
    EXPECT_OK(parse("base_model: m\nmodel_type: AutoModelForCausalLM\nload_in_8bit: false\nstrict: false\nfp16:\nbf16: auto\ntf32: true\n"
                    "flash_attention: true\nwandb_entity:\nspecial_tokens:\ndeepspeed: null\nfsdp: []\nreport_to: none\nbias: none\n"
                    "lora_target: all\nlora: true\nr: 8\nrandom_state: 7\nuse_gradient_checkpointing: unsloth\neval_strategy: \"no\"\n"
                    "gradient_checkpointing_kwargs: {use_reentrant: false}\ndebug:\nlora_target_linear: false\n"
                    "datasets: [{path: a, type: sharegpt, ds_type: json}, {path: b, type: alpaca}]\n",
                    NULL, NULL));
    EXPECT_INT(config.lora_rank, 8);
    EXPECT_INT(config.seed, 7);
    EXPECT(config.recompute_block);
    EXPECT_STR(config.lora_target_modules.items[0], "all-linear");
    EXPECT_INT(config.datasets.items[0].type, OPT_DATASET_CONVERSATION);
    EXPECT_INT(config.datasets.items[1].type, OPT_DATASET_INSTRUCTION);
    EXPECT_CONTAINS(config.notes, "run.yaml:6:1: bf16 is read as model_dtype: bf16\n");
    EXPECT_CONTAINS(config.notes, "run.yaml:24:28: datasets[0].type: sharegpt is read as conversation\n");
    EXPECT_CONTAINS(config.notes, "ignored, as they change nothing here: model_type, load_in_8bit, strict, fp16, tf32, flash_attention, "
                                  "wandb_entity, special_tokens, deepspeed, fsdp, bias, eval_strategy, "
                                  "gradient_checkpointing_kwargs, debug, lora_target_linear, datasets[0].ds_type\n");
    EXPECT_OK(parse("gradient_checkpointing: unsloth\nstage: sft\nspecial_tokens: {pad_token: <pad>}\ndevice: gpu\n"
                    "datasets: [{path: a, train_on_eos: turn, roles_to_train: [assistant], train_on_split: train}]\n",
                    NULL, NULL));
    EXPECT(config.recompute_block);
    EXPECT_INT(config.device, OPT_DEVICE_CUDA);
    EXPECT_INT(config.datasets.items[0].train_on, OPT_TRAIN_ON_ASSISTANT);
    EXPECT_STR(config.datasets.items[0].split, "train");
    EXPECT_CONTAINS(config.notes, "ignored, as they change nothing here: stage, special_tokens, datasets[0].train_on_eos\n");
    /* QLoRA in the spelling of Axolotl, of LLaMA-Factory and of the first Surogate. */
    static const char axolotl[] =
        "adapter: qlora\nload_in_4bit: true\nload_in_8bit: false\nbnb_4bit_quant_type: nf4\nbnb_4bit_use_double_quant: true\n"
        "bnb_4bit_compute_dtype: bfloat16\nbnb_config_kwargs: {bnb_4bit_use_double_quant: true}\n";
    static const char *const qlora[] = {
        axolotl,
        "adapter: qlora\n",
        "finetuning_type: lora\nquantization_bit: 4\nquantization_method: bitsandbytes\n",
        "lora: true\nqlora_bnb: true\nqlora_fp8: false\nqlora_bnb_double_quant: true\n",
    };
    for (size_t i = 0; i < sizeof qlora / sizeof *qlora; i++) {
        EXPECT_OK(parse(qlora[i], NULL, NULL));
        EXPECT(config.lora);
        EXPECT_INT(config.qlora, OPT_QLORA_NF4);
    }
    EXPECT_OK(parse("lora: true\nqlora_bnb: false\nqlora_fp8: true\nqlora_fp8_block_size: 128\n", NULL, NULL));
    EXPECT_INT(config.qlora, OPT_QLORA_FP8);
    EXPECT_OK(parse("lora: true\nqlora_fp4: true\nqlora_four_over_six: true\n", NULL, NULL));
    EXPECT_INT(config.qlora, OPT_QLORA_NVFP4);
    EXPECT_OK(parse("adapter: qlora\n", "qlora=none", NULL));
    EXPECT_INT(config.qlora, OPT_QLORA_NONE);
    /* In Trainer, bf16: false and fp16: false mean no mixed precision: fp32. */
    EXPECT_OK(parse("bf16: false\nfp16: false\n", NULL, NULL));
    EXPECT_INT(config.model_dtype, OPT_FLOAT_FP32);
    EXPECT_CONTAINS(config.notes, "run.yaml:1:1: bf16 is read as model_dtype: fp32\n");
    EXPECT_CONTAINS(options[KEY_run_gradient_dtype].help,
                    "activation gradients and of the inputs of backward products"); /* the help doesn't speak of weight gradients */
    EXPECT_OK(parse("recipe: nvfp4\nfp4_backend: cudnn\n", NULL, NULL));
    EXPECT_OK(parse("recipe: fp8_hybrid\nfp8_amax_history: 16\n", NULL, NULL));
    EXPECT_INT(config.recipe, OPT_RECIPE_FP8_HYBRID);
    static const char *const cases[][2] = {
        {"recipe: int8\n", "expected one of bf16, fp8-hybrid, nvfp4, found \"int8\""},
        {"fp8: true\n", "run.yaml:1:1: fp8: set recipe: fp8-hybrid"},
        {"fp4_backend: cublas\n", "run.yaml:1:1: fp4_backend: expected cutlass or cudnn"},
        {"matmul_dtype: e5m2\n", "expected one of fp32, bf16, e4m3, found \"e5m2\""},
        {"gradient_dtype: e4m3\n", "expected one of fp32, bf16, e5m2, found \"e4m3\""},
        {"load_in_8bit: true\n", "run.yaml:1:1: load_in_8bit: for a base in 8 bits set qlora: fp8"},
        {"load_in_4bit: true\n", "run.yaml:1:15: qlora: it is for a frozen base under adapters; write lora: true"},
        {"adapter: qlora\nlora: false\n", "run.yaml:2:1: lora and adapter (at run.yaml:1:10) both set lora; keep one of them"},
        {"bnb_4bit_quant_type: fp4\n", "for a base in 4 bits set qlora: nf4 or nvfp4"},
        {"bnb_4bit_compute_dtype: float16\n", "a matrix is made in model_dtype; set model_dtype: bf16 or fp32"},
        {"quantization_bit: 8\n", "for a base in 8 bits set qlora: fp8"},
        {"fp16: true\n", "fp16: there is no fp16; set model_dtype: bf16 or fp32"},
        {"model_dtype: fp16\n", "expected one of fp32, bf16, found \"fp16\""},
        {"optim: paged_adamw_8bit\n", "optim: optimizer state isn't paged; write adamw_8bit"},
        {"optim: paged_adamw_32bit\n", "optim: optimizer state isn't paged; write adamw, or adamw_8bit"},
        {"optim: lion_8bit\n", "optim: for moments in 8 bits set adamw_8bit"},
        {"optimizer: muon\n", "optimizer: the optimizer of this kind is normuon"},
        {"wandb_project: x\n", "wandb_project: `python -m surogate.log wandb OUTPUT_DIR` sends the numbers"},
        {"special_tokens: {pad_token: x, eos_token: y}\n", "special_tokens: special tokens are those of"},
        {"eval_strategy: each\n", "run.yaml:1:16: eval_strategy: expected epoch, found \"each\""},
        {"save_strategy: each\n", "save_strategy: expected epoch or best or no, found \"each\""},
        {"greater_is_better: true\n", "greater_is_better: evaluations report loss and perplexity, for which lower is better"},
        {"metric_for_best_model: rouge\n", "metric_for_best_model: expected one of eval_loss, perplexity, found \"rouge\""},
        {"report_to: wandb\n", "report_to: `python -m surogate.log wandb OUTPUT_DIR` sends the numbers"},
        {"report_to: comet\n", "run.yaml:1:12: report_to: expected one of none, tensorboard, found \"comet\""},
        {"report_to: [tensorboard, mlflow]\n", "run.yaml:1:26: report_to: expected one of none, tensorboard, found \"mlflow\""},
        {"dataset: alpaca_en_demo\n", "datasets: [{path: FILE}]"},
        {"datasets: [{path: a, train_on_eos: last}]\n", "datasets[0].train_on_eos: a trained turn has"},
        {"max_sampels: 3\n", "unknown key max_sampels; `surogate help keys` lists all"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_FAILS(parse(cases[i][0], NULL, NULL), ERR_INVALID, cases[i][1]);
        EXPECT(!strstr(status_message(), "did you mean"));
    }
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) /* none of our keys is also listed as another tool's */
        for (size_t i = 0; i < num_peer_keys; i++)
            if (peer_keys[i].scope == options[key].scope && !peer_keys[i].value && fnmatch(peer_keys[i].name, options[key].name, 0) == 0)
                test_fail(__FILE__, __LINE__, "%s is both", options[key].name);
}

/* When to save and evaluate, in Trainer's and Axolotl's words. */
static void strategies_are_read(void)
{
    EXPECT_OK(parse(
        "save_strategy: epoch\neval_strategy: epoch\nearly_stopping_steps: 3\nmetric_for_best_model: loss\ngreater_is_better: false\n",
        NULL, NULL));
    EXPECT_INT(config.saves_per_epoch, 1);
    EXPECT_INT(config.evals_per_epoch, 1);
    EXPECT_INT(config.early_stopping_patience, 3);
    EXPECT_INT(config.metric_for_best_model, OPT_BEST_EVAL_LOSS);
    EXPECT(!config.origin[KEY_run_save_steps]);
    EXPECT_OK(parse("save_strategy: best\nevaluation_strategy: steps\n", NULL, NULL));
    EXPECT(config.save_best && config.saves_per_epoch == 0);
    EXPECT_OK(parse("save_strategy: \"no\"\n", NULL, NULL));
    EXPECT(config.save_minutes == 0);
    EXPECT_OK(parse("save_strategy: \"no\"\nsave_steps: 500\neval_strategy: \"no\"\neval_steps: 100\n", NULL,
                    NULL)); /* save_steps and eval_steps win over "no" */
    EXPECT_INT(config.save_steps, 500);
    EXPECT_INT(config.eval_steps, 100);
}

/* Words that switch nothing on in report_to are read as an empty list, and replace the file's list. */
static void report_to_is_a_list_of_words(void)
{
    static const char *const nothing[] = {"none", "None", "false", "no", "auto", "0", "\"\"", "[]", "[none]", "", "null"};
    EXPECT_OK(parse("report_to: tensorboard\n", NULL, NULL));
    EXPECT(str_list_has(&config.report_to, "tensorboard"));
    EXPECT_OK(parse("use_tensorboard: true\n", NULL, NULL));
    EXPECT(str_list_has(&config.report_to, "tensorboard"));
    EXPECT_OK(parse("use_tensorboard: false\n", NULL, NULL));
    EXPECT(!str_list_has(&config.report_to, "tensorboard"));
    EXPECT_OK(parse("report_to: [none, TensorBoard]\n", NULL, NULL));
    EXPECT(str_list_has(&config.report_to, "tensorboard"));
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        char text[64], argument[64];
        snprintf(text, sizeof text, "report_to: %s\n", nothing[i]);
        snprintf(argument, sizeof argument, "report_to=%s", nothing[i][0] == '"' ? "" : nothing[i]);
        EXPECT_OK(parse(text, NULL, NULL));
        EXPECT(!str_list_has(&config.report_to, "tensorboard"));
        EXPECT_OK(parse("report_to: tensorboard\n", argument, NULL));
        EXPECT(!str_list_has(&config.report_to, "tensorboard"));
    }
}

static int is_known(const char *name)
{
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (strcmp(options[i].name, name) == 0) return 1;
    for (size_t i = 0; i < num_option_aliases; i++)
        if (strcmp(option_aliases[i].name, name) == 0) return 1;
    for (size_t i = 0; i < num_peer_keys; i++)
        if (fnmatch(peer_keys[i].name, name, 0) == 0) return 1;
    return 0;
}

/* Every key with one letter deleted, or with two neighbours swapped, is an error that suggests the key. */
static void every_typo_is_an_error_that_suggests_the_key(void)
{
    char text[160], wrong[80];
    int  tried = 0;
    for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
        const OptionInfo *option = &options[key];
        size_t            len = strlen(option->name);
        const char       *dataset = option->scope == SCOPE_dataset ? "datasets:\n- path: x\n  " : "";
        for (size_t i = 0; i < 2 * len; i++) {
            strcpy(wrong, option->name);
            if (i < len)
                memmove(wrong + i, wrong + i + 1, len - i);
            else if (i - len + 1 < len) {
                char c = wrong[i - len];
                wrong[i - len] = wrong[i - len + 1];
                wrong[i - len + 1] = c;
            }
            snprintf(text, sizeof text, "%s%s: 1\n", dataset, wrong);
            if (is_known(wrong)) continue;
            tried++;
            if (parse(text, NULL, NULL) != ERR_INVALID || !strstr(status_message(), "unknown key"))
                test_fail(__FILE__, __LINE__, "%s is no error", wrong);
            const char *hint = strstr(status_message(), "did you mean");
            if (!hint || !strstr(hint, option->name)) test_fail(__FILE__, __LINE__, "%s: %s", wrong, status_message());
        }
    }
    EXPECT(tried > 1000);
}

static void a_printed_config_reads_back_the_same(void)
{
    StrBuf first = {0}, second = {0}, long_key = {0};
    strbuf_printf(&long_key, "datasets:\n- path: x\n  message_property_mappings: {? \"%01100d\" : c}\n", 0);
    const char *texts[] = {
        "", "memory_limit: 1.9B\n", long_key.data,
        "model: \"a: b\\n#\\x7f\\u2028\"\nlearning_rate: 3e-05\nmax_shard_size: 1500000\nlora: true\nlora_target_modules: [\"\", null_, "
        "\"~\", \"-\"]\nfusion: []\n"
        "run_name: \"null\"\ndatasets:\n- {path: x y, prompt_format: \"{i}\\n\", message_property_mappings: {\"a b\": c}}\n- z\n"};
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(parse(texts[i], NULL, NULL));
        strbuf_clear(&first);
        strbuf_clear(&second);
        config_print(&config, &first);
        EXPECT_OK(parse(strbuf_cstr(&first), NULL, NULL));
        config_print(&config, &second);
        EXPECT_STR(strbuf_cstr(&second), strbuf_cstr(&first));
    }
    EXPECT_CONTAINS(first.data, "learning_rate: 3e-05\n");
    EXPECT_CONTAINS(first.data, "max_shard_size: 1500000B\n");
    EXPECT_CONTAINS(first.data, "lora_target_modules: [\"\", null_, \"~\", \"-\"]\n");
    EXPECT_CONTAINS(first.data, "  - path: \"x y\"\n    type: auto\n");
    strbuf_deinit(&first);
    strbuf_deinit(&second);
    strbuf_deinit(&long_key);
}

static void arguments_and_files(void)
{
    char path[] = "/tmp/surogate-test-XXXXXX.yaml";
    int  fd = mkstemps(path, 5);
    EXPECT(fd >= 0 && write(fd, "max_steps: 3\n", 13) == 13);
    close(fd);
    StrBuf long_form = {0};
    config_deinit(&config);
    const char *bare[] = {path, "seed=1"}, *option[] = {"--seed=2", "--config", path}, *two[] = {path, "--config", path},
               *open[] = {"--config"}, *odd[] = {"--fast"}, *missing[] = {"absent.yaml"};
    strbuf_printf(&long_form, "--config=%s", path);
    const char *joined[] = {long_form.data};
    EXPECT_OK(config_load_args(bare, 2, &config, NULL));
    EXPECT(config.max_steps == 3 && config.seed == 1);
    config_deinit(&config);
    EXPECT_OK(config_load_args(option, 3, &config, NULL));
    EXPECT(config.max_steps == 3 && config.seed == 2);
    config_deinit(&config);
    EXPECT_OK(config_load_args(joined, 1, &config, NULL));
    EXPECT_INT(config.max_steps, 3);
    config_deinit(&config);
    EXPECT_FAILS(config_load_args(two, 3, &config, NULL), ERR_INVALID, "two run files");
    EXPECT_FAILS(config_load_args(open, 1, &config, NULL), ERR_INVALID, "a file name must follow");
    EXPECT_FAILS(config_load_args(odd, 1, &config, NULL), ERR_INVALID, "\"--fast\": expected a run file");
    EXPECT_FAILS(config_load_args(missing, 1, &config, NULL), ERR_NOT_FOUND, "absent.yaml");
    unlink(path);
    strbuf_deinit(&long_form);
}

static void the_schema_is_json_and_complete(void)
{
    StrBuf    text = {0};
    Arena     arena = {0};
    JsonValue schema;
    config_schema(&text);
    EXPECT_OK(json_parse(&arena, "schema", text.data, text.len, &schema));
    const JsonValue *run = json_get(&schema, "properties");
    const JsonValue *dataset = json_get(json_get(json_get(&schema, "$defs"), "dataset"), "properties");
    for (int key = 0; key < CONFIG_KEY_COUNT; key++)
        if (!json_get(options[key].scope == SCOPE_run ? run : dataset, options[key].name))
            test_fail(__FILE__, __LINE__, "%s is missing", options[key].name);
    EXPECT(json_get(run, "base_model") != NULL);
    arena_deinit(&arena);
    strbuf_clear(&text);
    strbuf_deinit(&text);
}

static void help_answers_every_name(void)
{
    static const char *const cases[][2] = {
        {"lora_r",
         "lora_rank (integer, default 16)\n    Rank of the adapters. No effect without lora: true. No effect when adapter\n    is set.\n    Values: 1 to 65536.\n"},
        {"load_in_4bit", "qlora (word, default none)\n    Keep the frozen matrices"},
        {"load_in_8bit", "load_in_8bit (another tool's)\n    for a base in 8 bits set qlora: fp8"},
        {"datasets.path", "datasets[].path (text)\n"},
        {"validation_datasets.0.field_messages", "datasets[].messages_field (text"},
        {"special_tokens.pad_token", "changes nothing here, and is ignored.\n"},
        {"stage", "    sft: changes nothing here, and is ignored.\n    pt: the command decides this"},
    };
    StrBuf text = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strbuf_clear(&text);
        EXPECT_OK(config_help(&text, cases[i][0]));
        EXPECT_CONTAINS(strbuf_cstr(&text), cases[i][1]);
    }
    EXPECT_FAILS(config_help(&text, "nothing"), ERR_INVALID, "there is no key nothing; `surogate help keys` lists all");
    EXPECT_FAILS(config_help(&text, "lora_rnak"), ERR_INVALID, "there is no key lora_rnak; did you mean lora_rank?");
    EXPECT_FAILS(config_help(&text, "datasets.smaples"), ERR_INVALID, "there is no key datasets.smaples; did you mean samples?");
    EXPECT_FAILS(config_help(&text, "messages_feild"), ERR_INVALID, "did you mean messages_field");
    config_keys(&text);
    EXPECT_CONTAINS(text.data, "\nLoRA\n");
    strbuf_deinit(&text);
}

/* Runs at the top of the project; UPDATE=1 rewrites the file. */
static void the_reference_is_current(void)
{
    static const char path[] = "docs/reference/config.md";
    Arena             arena = {0};
    StrBuf            text = {0};
    Str               found = {"", 0};
    config_markdown(&text);
    if (getenv("UPDATE")) EXPECT_OK(file_write_atomic(path, text.data, text.len));
    EXPECT_OK(file_read(&arena, path, 1 << 20, &found));
    EXPECT_STR(found.data, text.data);
    strbuf_deinit(&text);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(values_are_typed), TEST(defaults_are_those_of_the_table), TEST(all_problems_are_told_at_once), TEST(more_problems),
          TEST(overrides_win), TEST(distributed_holds_keys_of_the_run), TEST(a_leading_tilde_is_the_home_folder),
          TEST(keys_without_effect_are_named_and_why), TEST(needs_name_values), TEST(names_of_one_key_agree),
          TEST(other_tools_names_are_read_and_noted), TEST(other_tools_keys_are_answered), TEST(strategies_are_read),
          TEST(report_to_is_a_list_of_words), TEST(every_typo_is_an_error_that_suggests_the_key),
          TEST(a_printed_config_reads_back_the_same), TEST(arguments_and_files), TEST(the_schema_is_json_and_complete),
          TEST(help_answers_every_name), TEST(the_reference_is_current))
