/* Several adapters merged with weights: the sum that PEFT's matrices give in double precision (tests/oracle/make_adapters.py). */
#include "model/merge.h"
#include "model/peft_combine.h"

#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/"
#define BASE FIXTURES "families/qwen3"
#define PATTERNS FIXTURES "adapters/qwen3"

static char        folder[64];
static const char *under(const char *name)
{
    static char paths[4][128];
    static int  next;
    char       *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static Status combine(Arena *arena, const char *const *dirs, const double *weights, int count, const char *out)
{
    WeightedAdapter *parts = arena_array(arena, WeightedAdapter, count);
    for (int i = 0; i < count; i++) {
        parts[i].weight = weights[i];
        TRY(peft_open(arena, dirs[i], &parts[i].adapter));
    }
    return peft_combine(parts, count, out);
}

static void expect_merged(const StFile *merged, const StFile *expected)
{
    int compared = 0;
    for (size_t i = 0; i < st_count(expected); i++) {
        const StTensor *want = st_at(expected, i), *got;
        if (strncmp(want->name, "merged.", 7) != 0) continue;
        got = st_find(merged, want->name + 7);
        if (!got || got->numel != want->numel) {
            test_fail(__FILE__, __LINE__, "%s isn't as PEFT has it", want->name);
            continue;
        }
        const float *a = want->data, *b = got->data;
        double       most = 0, error = 0;
        for (int64_t k = 0; k < want->numel; k++) {
            most = fmax(most, fabs((double)a[k]));
            error = fmax(error, fabs((double)a[k] - (double)b[k]));
        }
        if (!(error < 1e-5 * most)) test_fail(__FILE__, __LINE__, "%s is off by %g of %g", want->name, error, most);
        compared++;
    }
    EXPECT_INT(compared, 14);
}

static void weighted_adapters_are_added(void)
{
    static const char *const dirs[] = {BASE "/adapter", PATTERNS, FIXTURES "row_adapters/qwen3"};
    static const double      weights[] = {0.25, -1.5, 0.5};
    Arena                    arena = {0};
    HfModel                 *base;
    PeftAdapter              adapter;
    StFile                  *expected, *merged;
    EXPECT_OK(combine(&arena, dirs, weights, 3, under("sum")));
    EXPECT_OK(peft_open(&arena, under("sum"), &adapter));
    EXPECT_INT(lora_find_module(&adapter.lora, "model.layers.1.self_attn.v_proj")->r, 4 + 3 + 3);
    EXPECT_INT(lora_find_module(&adapter.lora, "model.layers.0.self_attn.k_proj")->r, 4);
    EXPECT_OK(hf_model_open(&arena, BASE, &base));
    EXPECT_OK(merge_adapter(base, &adapter, false, under("out"), 1 << 30, NULL));
    EXPECT_OK(st_open(under("out"), &merged));
    EXPECT_OK(st_open(FIXTURES "adapters/expected.safetensors", &expected));
    expect_merged(merged, expected);
    st_close(merged);
    st_close(expected);
    hf_model_close(base);
    arena_deinit(&arena);
}

static void what_cannot_be_added_is_refused(void)
{
    static const char *const others[] = {PATTERNS, FIXTURES "families/gpt2/adapter"}, *const whole[] = {FIXTURES "adapter_kinds/whole"};
    static const char *const widths[] = {BASE "/adapter", FIXTURES "families/qwen3_untied/adapter"};
    static const double      weights[] = {1, 2};
    Arena                    arena = {0};
    EXPECT_FAILS(combine(&arena, whole, weights, 1, under("a")), ERR_UNSUPPORTED, "holds more than pairs of linear layers");
    EXPECT_FAILS(combine(&arena, widths, weights, 2, under("b")), ERR_INVALID, "has other dims than in the adapters before it");
    EXPECT_OK(combine(&arena, others, weights, 2, under("c"))); /* the names of layers differ; the base decides */
    EXPECT_OK(file_make_dirs(under("d")));
    EXPECT_OK(combine(&arena, others, weights, 1, under("d")));
    EXPECT_OK(peft_write_base_format(weight_format_find("nf4"), under("d")));
    const char *formats[] = {PATTERNS, under("d")};
    EXPECT_FAILS(combine(&arena, formats, weights, 2, under("e")), ERR_INVALID, "was trained over weights in their own format");
    EXPECT_OK(combine(&arena, others, weights, 1, under("f")));
    EXPECT_OK(file_write_atomic(under("d/tokenizer.json"), "{}", 2));
    EXPECT_OK(file_write_atomic(under("f/tokenizer.json"), "[]", 2));
    EXPECT_OK(file_remove_tree(under("d/base_format.json")));
    const char *tokenizers[] = {under("d"), under("f")};
    EXPECT_FAILS(combine(&arena, tokenizers, weights, 2, under("g")), ERR_INVALID, "has another tokenizer.json");
    arena_deinit(&arena);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(weighted_adapters_are_added), TEST(what_cannot_be_added_is_refused)};
    strcpy(folder, "/tmp/surogate_combine_XXXXXX");
    if (!mkdtemp(folder)) return 1;
    int status = test_run(cases, 2, argc, argv);
    EXPECT_OK(file_remove_tree(folder));
    return status;
}
