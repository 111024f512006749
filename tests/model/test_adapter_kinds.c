/* Adapters that hold more than LoRA's pairs, compared with PEFT in fp64 (fixtures of tests/oracle/make_adapter_kinds.py): what they compute
 * unmerged and merged, how they train, and that saving gives back what was loaded. */
#include "model/merge.h"
#include "model/weights.h"
#include "run/family.h"

#include <unistd.h>

#define FAMILIES "tests/fixtures/families/"
#define KINDS "tests/fixtures/adapter_kinds/"

static const struct {
    const char *name, *base;
} kinds[] = {{"whole", "llama"},
             {"whole_head", "llama"},
             {"whole_divided", "qwen3"},
             {"whole_divided_head", "qwen3"},
             {"whole_divided_both", "gemma2"},
             {"whole_tied", "qwen3"},
             {"whole_gpt2", "gpt2"},
             {"dora", "llama"},
             {"dora_qwen3", "qwen3"},
             {"dora_bias", "qwen2"},
             {"dora_gpt2", "gpt2"},
             {"dora_phi3", "phi3"},
             {"dora_whole", "llama"},
             {"tokens", "llama"},
             {"tokens_both", "llama"},
             {"tokens_tied", "qwen3"},
             {"tokens_scaled", "gemma2"},
             {"tokens_gpt2", "gpt2"}};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

typedef struct Kind {
    Family      family; /* the family's own weights and adapter aren't used */
    PeftAdapter adapter;
    StFile     *expected;
    HfModel    *model;
} Kind;

static void make(char folder[64])
{
    strcpy(folder, "/tmp/surogate_kinds_XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
}

static CompileOptions options_of(void)
{
    CompileOptions options = compile_defaults();
    compile_add_training(&options, 1, FAMILY_T); /* two micro-steps */
    compile_add(&options, &entry_score, FAMILY_B, FAMILY_T);
    options.adamw_beta2 = 0.95;
    options.weight_decay = 0.1;
    options.max_grad_norm = 1.0;
    return options;
}

/* Opens base and adapter from their files. merged: a folder that holds the merged model; NULL: base and adapter. */
static void open_kind(Kind *k, int index, const char *merged)
{
    CompileOptions options = options_of();
    *k = (Kind){0};
    Arena      *arena = &k->family.arena;
    const char *dir = arena_printf(arena, KINDS "%s", kinds[index].name);
    EXPECT_OK(peft_open(arena, dir, &k->adapter));
    EXPECT_OK(st_open(arena_printf(arena, "%s/expected.safetensors", dir), &k->expected));
    EXPECT_OK(hf_model_open(arena, merged ? merged : arena_printf(arena, FAMILIES "%s", kinds[index].base), &k->model));
    EXPECT_OK(hf_model_open_weights(k->model));
    if (!merged) {
        options.lora = k->adapter.lora;
        options.train_base = false;
        EXPECT_OK(peft_check_model(&k->adapter, k->model));
    }
    EXPECT_OK(device_cpu_create(2, &k->family.device));
    options.verify = true;
    EXPECT_OK(compile_plan(arena, k->model->module, &k->model->config, k->model->config_name, &options, k->family.device, &k->family.plan));
    EXPECT_OK(session_create(k->family.plan, k->family.device, &k->family.session));
    EXPECT_OK(weights_load(k->family.session, k->model));
    if (!merged) EXPECT_OK(weights_load_adapter(k->family.session, dir));
    snprintf(k->family.dir, sizeof k->family.dir, "%s", dir);
    EXPECT_OK(st_open(arena_printf(arena, FAMILIES "%s/expected.safetensors", kinds[index].base), &k->family.expected));
}

static void close_kind(Kind *k)
{
    hf_model_close(k->model);
    st_close(k->expected);
    family_close(&k->family);
}

static float *expected(Kind *k, const char *name)
{
    const StTensor *tensor = st_find(k->expected, name);
    CHECK(tensor);
    float *out = arena_array(&k->family.arena, float, tensor->numel);
    EXPECT_OK(st_to_f32(tensor, 0, tensor->numel, out));
    return out;
}

/* The loss of a token by the fixture's logits. */
static double token_loss(const float *logits, int label)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < FAMILY_V; i++) most = fmax(most, (double)logits[i]);
    for (int i = 0; i < FAMILY_V; i++) sum += exp((double)logits[i] - most);
    return label == IGNORE_INDEX ? 0 : most + log(sum) - (double)logits[label];
}

static void check_losses(Kind *k, const char *what)
{
    Family        *f = &k->family;
    const int32_t *labels = fixture_ints(f, "packed.labels");
    const Program *program = plan_program(f->plan, &entry_score);
    float         *logits = expected(k, "packed.logits"), losses[FAMILY_TOKENS];
    family_batch(f, fixture_ints(f, "packed.ids"), labels, fixture_ints(f, "packed.position_ids"), fixture_ints(f, "packed.doc_start"), 0,
                 FAMILY_B, 1, 0);
    EXPECT_OK(session_run(f->session, program));
    EXPECT_OK(session_output(f->session, program, "losses", losses, sizeof losses));
    for (int i = 0; i < FAMILY_TOKENS; i++) {
        double want = token_loss(logits + (size_t)i * FAMILY_V, labels[i]);
        if (!(fabs((double)losses[i] - want) <= 1e-5 * (1 + want)))
            test_fail(__FILE__, __LINE__, "%s, %s, token %d: loss %.8g, expected %.8g", f->dir, what, i, (double)losses[i], want);
    }
}

static void losses_and_ten_steps_match_peft(void)
{
    for (int i = 0; i < NUM_KINDS; i++) {
        Kind k;
        open_kind(&k, i, NULL);
        check_losses(&k, "as it is");
        const float *losses = expected(&k, "steps.loss"), *norms = expected(&k, "steps.grad_norm");
        for (int step = 0; step < 10; step++) {
            double norm, loss = step_once(&k.family, step, &norm);
            if (!(fabs(loss - (double)losses[step]) <= 1e-5 * (double)losses[step]))
                test_fail(__FILE__, __LINE__, "%s step %d: loss %.8g, expected %.8g", k.family.dir, step, loss, (double)losses[step]);
            if (!(fabs(norm - (double)norms[step]) <= 1e-5 * (double)norms[step]))
                test_fail(__FILE__, __LINE__, "%s step %d: norm %.8g, expected %.8g", k.family.dir, step, norm, (double)norms[step]);
        }
        close_kind(&k);
    }
}

static void merged_they_compute_the_same(void)
{
    for (int i = 0; i < NUM_KINDS; i++) {
        Kind     k;
        char     folder[64];
        Arena    arena = {0};
        HfModel *base;
        make(folder);
        PeftAdapter adapter;
        EXPECT_OK(hf_model_open(&arena, arena_printf(&arena, FAMILIES "%s", kinds[i].base), &base));
        EXPECT_OK(hf_model_open_weights(base));
        EXPECT_OK(peft_open(&arena, arena_printf(&arena, KINDS "%s", kinds[i].name), &adapter));
        EXPECT_OK(merge_adapter(base, &adapter, false, folder, 1 << 30, NULL));
        hf_model_close(base);
        open_kind(&k, i, folder);
        check_losses(&k, "merged");
        close_kind(&k);
        EXPECT_OK(file_remove_tree(folder));
        arena_deinit(&arena);
    }
}

static void check_saved(Kind *k, const StFile *saved)
{
    StFile *given;
    EXPECT_OK(st_open(arena_printf(&k->family.arena, "%s/adapter_model.safetensors", k->family.dir), &given));
    for (size_t i = 0; i < st_count(saved); i++) {
        const StTensor *mine = st_at(saved, i), *theirs = st_find(given, mine->name);
        if (!theirs || theirs->bytes != mine->bytes || memcmp(theirs->data, mine->data, mine->bytes) != 0)
            test_fail(__FILE__, __LINE__, "%s: tensor %s differs or isn't PEFT's", k->family.dir, mine->name);
    }
    EXPECT_INT(st_count(saved), st_count(given));
    st_close(given);
}

static void they_go_out_as_they_came(void)
{
    for (int i = 0; i < NUM_KINDS; i++) {
        Kind        k;
        char        folder[64];
        PeftAdapter again;
        StFile     *saved;
        make(folder);
        open_kind(&k, i, NULL);
        EXPECT_OK(weights_save(k.family.session, k.model, true, NULL, folder, "adapter_model", 1 << 30, NULL));
        EXPECT_OK(peft_write_config(&k.adapter.lora, "base", folder));
        EXPECT_OK(peft_open(&k.family.arena, folder, &again));
        EXPECT_INT(again.lora.num_whole, k.adapter.lora.num_whole);
        EXPECT_INT(again.lora.tie_whole, k.adapter.lora.tie_whole);
        EXPECT_OK(st_open(folder, &saved));
        check_saved(&k, saved);
        st_close(saved);
        close_kind(&k);
        EXPECT_OK(file_remove_tree(folder));
    }
}

TEST_MAIN(TEST(losses_and_ten_steps_match_peft), TEST(merged_they_compute_the_same), TEST(they_go_out_as_they_came))
