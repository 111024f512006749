/* Greedy texts of tiny models equal the texts that transformers (and PEFT) made of the same prompts in double precision:
 * tests/oracle/make_greedy.py and make_row_adapters.py. Decoding in fp32 may choose another token where the reference's two largest logits
 * hardly differ. Runs on the CPU or, compiled with FAMILY_CUDA, on a GPU. */
#include "infer/decoder.h"
#include "infer/infer_model.h"

#include "on_device.h"

#define FIXTURES "tests/fixtures/"

enum { TOKENS = 16, CONTEXT = 64, MOST_PROMPTS = 256, SCALE = 2 };

static StFile *greedy, *of_rows;
static char    scratch[] = "/tmp/greedy_XXXXXX";

typedef struct Text {
    int32_t ids[TOKENS];
    float   logprobs[TOKENS];
    int     count;
} Text;

typedef struct Expected {
    const int32_t *prompt_ids, *prompt_lens, *texts, *near;
    const float   *margins, *logprobs;
    int64_t        num_prompts, num_near, num_logprobs;
} Expected;

static const StTensor *find(const StFile *source, const char *name, const char *what)
{
    const StTensor *tensor;
    char            key[256];
    snprintf(key, sizeof key, "%s%s", name, what);
    EXPECT_OK(st_require(source, key, &tensor));
    return tensor;
}

static Expected find_expected(const StFile *source, const char *name)
{
    const StTensor *texts = find(source, name, ".texts"), *near = find(source, name, ".near"), *logprobs = find(source, name, ".logprobs");
    EXPECT(texts->dim[0] <= MOST_PROMPTS && texts->dim[1] == TOKENS);
    return (Expected){.prompt_ids = find(source, "", "prompt_ids")->data,
                      .prompt_lens = find(source, "", "prompt_lens")->data,
                      .texts = texts->data,
                      .near = near->data,
                      .margins = find(source, name, ".margins")->data,
                      .logprobs = logprobs->data,
                      .num_prompts = texts->dim[0],
                      .num_near = near->numel,
                      .num_logprobs = logprobs->dim[0]};
}

/* ---- decoding ---- */

static bool take(void *context, const DecodeToken *token)
{
    Text *text = context;
    text->ids[text->count] = token->id;
    text->logprobs[text->count++] = token->logprob;
    return true;
}

static void decode(InferModel *infer, const DecoderOptions *options, const Expected *expected, Text *texts)
{
    Decoder       *decoder;
    const int32_t *prompt = expected->prompt_ids;
    infer_want_decoding(infer, options);
    EXPECT_OK(infer_start(infer));
    EXPECT_OK(decoder_create(infer->session, &decoder));
    memset(texts, 0, MOST_PROMPTS * sizeof *texts);
    for (int64_t i = 0; i < expected->num_prompts; prompt += expected->prompt_lens[i++]) {
        DecodeRequest request = {.prompt = prompt,
                                 .prompt_len = (size_t)expected->prompt_lens[i],
                                 .max_tokens = TOKENS,
                                 .sample = {.top_p = 1},
                                 .context = &texts[i],
                                 .token = take,
                                 .adapter = (int)(i % (infer->num_row_adapters + 1))};
        EXPECT_OK(decoder_submit(decoder, &request, NULL));
    }
    while (decoder_is_busy(decoder)) EXPECT_OK(decoder_step(decoder));
    decoder_destroy(decoder);
    infer_stop(infer);
}

/* ---- comparing ---- */

/* Difference of the reference's two largest logits for token `place`, counted over the tokens of all texts. */
static float margin_at(const Expected *expected, int64_t place)
{
    for (int64_t i = 0; i < expected->num_near; i++)
        if (expected->near[i] == place) return expected->margins[i];
    return INFINITY;
}

/* Returns whether the texts differ. After the first difference there is nothing to compare. */
static bool compare(const char *what, const Expected *expected, int64_t i, const Text *text)
{
    const int32_t *want = expected->texts + i * TOKENS;
    EXPECT_INT(text->count, TOKENS);
    for (int t = 0; t < text->count; t++) {
        float margin = margin_at(expected, i * TOKENS + t);
        if (text->ids[t] != want[t]) {
            if (!(margin < 1e-4f))
                test_fail(__FILE__, __LINE__, "%s: token %d of text %lld is %d, expected %d", what, t, (long long)i, text->ids[t], want[t]);
            return true;
        }
        if (i >= expected->num_logprobs) continue;
        double logprob = (double)expected->logprobs[i * TOKENS + t], error = fabs((double)text->logprobs[t] - logprob);
        if (!(error <= 1e-5 * fmax(1, fabs(logprob))))
            test_fail(__FILE__, __LINE__, "%s: ln p of token %d of text %lld is %.9g, expected %.9g", what, t, (long long)i,
                      (double)text->logprobs[t], logprob);
    }
    return false;
}

/* Decodes all prompts with one slot, with a few (prompts are read in pieces) and with many. With `adapters`, prompt i uses no adapter, the
 * first or the second, by i mod 3. format: format of the matrices; NULL: unchanged. */
static void compare_texts(const StFile *source, const char *name, const char *dir, const char *adapter, const AdapterName *adapters,
                          const char *format)
{
    static const DecoderOptions options[] = {
        {.rows = 1, .context = CONTEXT}, {.rows = 5, .context = CONTEXT, .prompt = 7}, {.rows = 64, .context = CONTEXT}};
    Expected   expected = find_expected(source, name);
    InferModel infer;
    Text      *texts = calloc(MOST_PROMPTS, sizeof *texts);
    EXPECT_OK(infer_open(&infer, dir, adapter, TEXTS_DEVICE, 2));
    infer.options.model_dtype = infer.options.master_dtype = DT_F32;
    if (adapters) EXPECT_OK(infer_use_adapters(&infer, adapters, 2));
    EXPECT_OK(infer_use_format(&infer, format));
    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        int  different = 0;
        char what[256];
        snprintf(what, sizeof what, "%s, %lld places", name, (long long)options[k].rows);
        decode(&infer, &options[k], &expected, texts);
        for (int64_t i = 0; i < expected.num_prompts; i++) different += compare(what, &expected, i, &texts[i]);
        if (different * 100 > expected.num_prompts) test_fail(__FILE__, __LINE__, "%s: %d texts differ", what, different);
    }
    infer_close(&infer);
    free(texts);
}

static void compare_all(const char *name, const char *dir, const char *adapter, const char *format)
{
    compare_texts(greedy, name, dir, adapter, NULL, format);
}

/* ---- models ---- */

/* Whether the oracle scales this matrix; without scaling, texts repeat one token. */
static bool is_scaled(const char *name)
{
    size_t len = strlen(name), tail = strlen("proj.weight");
    return len > tail && (strcmp(name + len - tail, "proj.weight") == 0 || (strstr(name, ".c_") && strcmp(name + len - 7, ".weight") == 0));
}

/* Writes a copy of the family with scaled matrices into the scratch folder. */
static void scale_family(const char *family)
{
    Arena   arena = {0};
    StFile *file;
    Str     bytes;
    int     count = 0;
    EXPECT_OK(file_read(&arena, arena_printf(&arena, FIXTURES "families/%s/model.safetensors", family), 1 << 20, &bytes));
    char *copy = arena_alloc(&arena, bytes.len);
    memcpy(copy, bytes.data, bytes.len);
    EXPECT_OK(st_open_memory(family, copy, bytes.len, &file));
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor *tensor = st_at(file, i);
        float          *values = (float *)(uintptr_t)tensor->data; /* memory of `copy` */
        if (!is_scaled(tensor->name)) continue;
        count++;
        for (int64_t k = 0; k < tensor->numel; k++) values[k] *= SCALE;
    }
    EXPECT(count > 0);
    st_close(file);
    EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/model.safetensors", scratch), copy, bytes.len));
    test_copy(arena_printf(&arena, FIXTURES "families/%s/config.json", family), arena_printf(&arena, "%s/config.json", scratch));
    arena_deinit(&arena);
}

static void compare_family(const char *family, bool has_adapter)
{
    char name[128], adapter[256];
    scale_family(family);
    snprintf(name, sizeof name, "families/%s%s", family, has_adapter ? "+adapter" : "");
    snprintf(adapter, sizeof adapter, FIXTURES "families/%s/adapter", family);
    compare_all(name, scratch, has_adapter ? adapter : NULL, NULL);
}

static void texts_of_all_families_are_those_of_transformers(void)
{
    static const char *const families[] = {"gemma2",       "gemma3", "gpt2",         "llama",      "llama3",     "llama_linear",
                                           "mistral",      "olmo2",  "phi3",         "phi3_long",  "phi3_short", "qwen2",
                                           "qwen2_window", "qwen3",  "qwen3_untied", "qwen3_yarn", "smollm3"};
    NEED_DEVICE();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) compare_family(families[i], false);
}

static void texts_of_adapters_are_those_of_peft(void)
{
    NEED_DEVICE();
    compare_family("qwen3", true);
    compare_family("gpt2", true);
}

static void texts_of_rows_with_adapters_of_their_own_are_those_of_peft(void)
{
    static const AdapterName qwen3[] = {{"a", FIXTURES "families/qwen3/adapter"}, {"b", FIXTURES "row_adapters/qwen3"}};
    static const AdapterName gpt2[] = {{"a", FIXTURES "families/gpt2/adapter"}, {"b", FIXTURES "row_adapters/gpt2"}};
    NEED_DEVICE();
    scale_family("qwen3");
    compare_texts(of_rows, "qwen3", scratch, NULL, qwen3, NULL);
    scale_family("gpt2");
    compare_texts(of_rows, "gpt2", scratch, NULL, gpt2, NULL);
}

static void texts_of_quantised_folders_are_those_of_their_weights_dequantised(void)
{
    static const char *const names[] = {"nf4", "nf4_double", "fp8", "nvfp4"};
    NEED_DEVICE();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[128], dir[256];
        snprintf(name, sizeof name, "quantised/%s", names[i]);
        snprintf(dir, sizeof dir, FIXTURES "%s", name);
        compare_all(name, dir, NULL, NULL);
    }
}

static void texts_of_weights_quantised_as_they_load_are_those_of_them_dequantised(void)
{
    static const char *const formats[] = {"int8", "fp8", "nf4"}, *const families[] = {"gpt2", "phi3", "qwen3"};
    NEED_DEVICE();
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (size_t k = 0; k < sizeof families / sizeof *families; k++) {
            char name[128];
            scale_family(families[k]);
            snprintf(name, sizeof name, "loaded/%s/%s", formats[i], families[k]);
            compare_all(name, scratch, NULL, formats[i]);
        }
}

static void end(void)
{
    EXPECT_OK(file_remove_tree(scratch));
    st_close(greedy);
    st_close(of_rows);
}

static void begin(void)
{
    EXPECT(mkdtemp(scratch));
    EXPECT_OK(st_open(FIXTURES "greedy.safetensors", &greedy));
    EXPECT_OK(st_open(FIXTURES "row_adapters/greedy.safetensors", &of_rows));
}

TEST_MAIN(TEST(begin), TEST(texts_of_all_families_are_those_of_transformers), TEST(texts_of_adapters_are_those_of_peft),
          TEST(texts_of_rows_with_adapters_of_their_own_are_those_of_peft),
          TEST(texts_of_quantised_folders_are_those_of_their_weights_dequantised),
          TEST(texts_of_weights_quantised_as_they_load_are_those_of_them_dequantised), TEST(end))
