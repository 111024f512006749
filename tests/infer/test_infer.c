/* Generation and evaluation, compared with computing everything anew for each token. */
#include "infer/bigram.h"
#include "infer/evaluate.h"
#include "infer/generate.h"

#include "test.h"

#define FAMILY "tests/fixtures/families/qwen3"

static Status open_model(InferModel *infer)
{
    return infer_open(infer, FAMILY, NULL, "cpu", 1);
}

static Status start_cache(InferModel *infer, int64_t cache_len, int64_t chunk)
{
    infer_want_generation(infer, chunk, cache_len);
    return infer_start(infer);
}

static bool push(void *context, int32_t id)
{
    token_ids_push(context, id);
    return true;
}

static void generate_ids(InferModel *infer, const int32_t *prompt, size_t prompt_len, int64_t count, SampleOptions sample, TokenIds *out)
{
    GenerateJob job = {.prompt = prompt, .prompt_len = prompt_len, .max_tokens = count, .sample = sample, .sink = push, .context = out};
    out->len = 0;
    EXPECT_OK(generate(infer->session, &job));
}

static const int32_t prompt[] = {5, 17, 3, 44, 60, 2, 9, 9, 31, 8, 27};
enum { PROMPT = sizeof prompt / sizeof prompt[0], WANTED = 40 };

/* Computes each token by a prefill of all tokens before it, so that no cache is used. */
static void greedy_text_is_that_without_a_cache(void)
{
    InferModel infer;
    TokenIds   cached = {0};
    int32_t    ids[PROMPT + WANTED];
    EXPECT_OK(open_model(&infer));
    EXPECT_OK(start_cache(&infer, 64, 4));
    generate_ids(&infer, prompt, PROMPT, WANTED, (SampleOptions){0}, &cached);
    EXPECT_INT(cached.len, WANTED);
    EXPECT_OK(start_cache(&infer, 64, 64));
    memcpy(ids, prompt, sizeof prompt);
    TokenIds one = {0};
    for (int i = 0; i < WANTED; i++) {
        generate_ids(&infer, ids, PROMPT + (size_t)i, 1, (SampleOptions){0}, &one);
        ids[PROMPT + i] = one.data[0];
        if ((size_t)i < cached.len) EXPECT_INT(cached.data[i], ids[PROMPT + i]);
    }
    token_ids_deinit(&one);
    token_ids_deinit(&cached);
    infer_close(&infer);
}

/* A caller may score thousands of texts, each in a session of its own. */
static void a_plan_is_freed_with_its_session(void)
{
    InferModel infer;
    EXPECT_OK(open_model(&infer));
    EXPECT_OK(start_cache(&infer, 64, 4));
    size_t model = infer.arena.used_bytes, plan = infer.plan_arena.used_bytes;
    for (int i = 0; i < 3; i++) EXPECT_OK(start_cache(&infer, 64, 4));
    EXPECT_INT(infer.arena.used_bytes, model);
    EXPECT_INT(infer.plan_arena.used_bytes, plan);
    infer_stop(&infer);
    EXPECT_INT(infer.plan_arena.used_bytes, 0);
    infer_close(&infer);
}

static void the_context_s_end_ends_the_text(void)
{
    InferModel infer;
    TokenIds   out = {0};
    EXPECT_OK(open_model(&infer));
    EXPECT_OK(start_cache(&infer, 16, 5));
    GenerateJob job = {.prompt = prompt, .prompt_len = PROMPT, .max_tokens = 100, .sink = push, .context = &out};
    EXPECT_OK(generate(infer.session, &job));
    EXPECT_INT(out.len, 16 - PROMPT + 1);
    int32_t longer[17] = {1};
    job.prompt = longer;
    job.prompt_len = 17;
    EXPECT_FAILS(generate(infer.session, &job), ERR_INVALID, "17 tokens");
    job.prompt_len = 0;
    EXPECT_FAILS(generate(infer.session, &job), ERR_INVALID, "empty");
    token_ids_deinit(&out);
    infer_close(&infer);
}

static void a_session_serves_what_needs_no_more(void)
{
    static const DecoderOptions started = {.rows = 4, .context = 64, .prompt = 32, .best = 2, .penalties = true, .biases = 3};
    static const DecoderOptions served[] = {{.rows = 4, .context = 64, .prompt = 32, .best = 1, .penalties = true, .biases = 3},
                                            {.rows = 1, .context = 64, .prompt = 1}};
    static const DecoderOptions others[] = {{.rows = 5, .context = 64},
                                            {.rows = 1, .context = 32},
                                            {.rows = 1, .context = 64, .prompt = 33},
                                            {.rows = 1, .context = 64, .best = 3},
                                            {.rows = 1, .context = 64, .biases = 4},
                                            {.rows = 1, .context = 64, .pages = 5}};
    InferModel                  infer;
    EXPECT_OK(open_model(&infer));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        EXPECT_OK(infer_start_decoding(&infer, &started));
        for (int k = 0; k < 2; k++) EXPECT_OK(infer_start_decoding(&infer, &served[k]));
        EXPECT(infer.decoding.rows == 4 && infer.decoding.best == 2 && infer.decoding.biases == 3);
        EXPECT_OK(infer_start_decoding(&infer, &others[i]));
        EXPECT(infer.decoding.rows == others[i].rows);
    }
    EXPECT_OK(start_cache(&infer, 64, 64)); /* a session with other programs */
    EXPECT_INT(infer.decoding.rows, 0);
    infer_close(&infer);
}

/* A long text is read in windows: a token's loss equals its loss in a text that begins where its window begins. */
static void losses_of_windows_are_those_of_their_texts(void)
{
    enum { N = 90, CONTEXT = 32 };
    InferModel infer;
    int32_t    ids[N];
    float      losses[N - 1], part[CONTEXT];
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + i / 7) % 61;
    EXPECT_OK(open_model(&infer));
    EXPECT_OK(evaluate_start(&infer, N, CONTEXT));
    EXPECT_OK(evaluate_ids(&infer, ids, N, losses));
    EXPECT_OK(evaluate_start(&infer, CONTEXT + 1, CONTEXT));
    for (int begin = 0, scored = 0; scored < N - 1; begin += CONTEXT / 2) {
        int len = N - begin < CONTEXT + 1 ? N - begin : CONTEXT + 1;
        EXPECT_OK(evaluate_ids(&infer, ids + begin, (size_t)len, part));
        for (; scored < begin + len - 1; scored++) EXPECT_NEAR(losses[scored], part[scored - begin], 1e-5);
    }
    infer_close(&infer);
}

/* The tensor of a folder that holds this part of a matrix. */
static const StTensor *stored_part(const StFile *file, const char *matrix, const char *part)
{
    static const char *const suffixes[][2] = {
        {"codes", ""},           {"absmax", ".absmax"}, {"nested", ".nested_absmax"}, {"offset", ".quant_state.bitsandbytes__nf4"},
        {"scale", "_scale_inv"}, {"scale", "_scale"},   {"global", "_scale_2"}};
    const StTensor *found = NULL;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && !found; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", matrix, suffixes[i][1]);
        if (strcmp(part, suffixes[i][0]) == 0) found = st_find(file, name);
    }
    return found;
}

/* Every code and scale that a plan keeps must equal the folder's. Returns the number of parameters that are kept as codes. */
static int expect_kept_codes(const InferModel *infer, const char *dir)
{
    StFile *file;
    int     kept = 0;
    EXPECT_OK(st_open(dir, &file));
    for (int i = 0; i < infer->plan->num_params; i++) {
        const Param *param = infer->plan->params[i];
        for (int k = 0; param->format && k < param->format->num_parts; k++) {
            Arena           arena = {0};
            const char     *part = param->format->parts[k], *value = weight_part_name(&arena, param->format, param->name, k);
            const StTensor *tensor = stored_part(file, param->hf.names[0], part);
            const void     *want = tensor ? tensor->data : NULL;
            size_t          bytes = (size_t)type_bytes(&plan_find(infer->plan, value)->type);
            float           offset = NAN;
            EXPECT(tensor);
            if (tensor && strcmp(part, "offset") == 0) {
                const char *text = memmem(tensor->data, tensor->bytes, "\"nested_offset\": ", 17);
                if (text) offset = strtof(text + 17, NULL);
                want = &offset;
            }
            void *got = arena_alloc(&arena, bytes);
            EXPECT_OK(session_read(infer->session, value, got, bytes));
            if (!want || memcmp(got, want, bytes) != 0) test_fail(__FILE__, __LINE__, "%s: %s isn't the file's", dir, value);
            arena_deinit(&arena);
        }
        kept += param->format != NULL;
    }
    st_close(file);
    return kept;
}

/* Quantised matrices are decoded for products: losses equal those of transformers over the same folder. For `nf4`, transformers first
 * rounds the decoded values to bf16, which isn't done here. */
static void quantised_folders_evaluate_as_in_transformers(void)
{
    static const struct {
        const char *name;
        double      tolerance; /* for a token's loss */
        int         kept;      /* number of matrices that stay codes */
    } folders[] = {{"nf4", 5e-2, 6}, {"nf4_double", 1e-5, 6}, {"fp8", 1e-5, 6}, {"nvfp4", 1e-5, 6}};
    enum { ROWS = 2, TOKENS = 25, LOSSES = ROWS * (TOKENS - 1) };
    for (int i = 0; i < 4; i++) {
        InferModel      infer;
        StFile         *expected;
        char            path[128], expected_path[256];
        const StTensor *ids, *losses;
        float           want[LOSSES], got[LOSSES];
        double          mean = 0, most = 0;
        snprintf(path, sizeof path, "tests/fixtures/quantised/%s", folders[i].name);
        EXPECT_OK(infer_open(&infer, path, NULL, "cpu", 1));
        snprintf(expected_path, sizeof expected_path, "%s/expected.safetensors", path);
        EXPECT_OK(st_open(expected_path, &expected));
        EXPECT_OK(st_require(expected, "ids", &ids));
        EXPECT_OK(st_require(expected, "losses", &losses));
        EXPECT_OK(st_to_f32(losses, 0, LOSSES, want));
        infer.options.model_dtype = infer.options.master_dtype = DT_F32;
        EXPECT_OK(evaluate_start(&infer, TOKENS, 0));
        EXPECT_INT(expect_kept_codes(&infer, path), folders[i].kept);
        for (int r = 0; r < ROWS; r++)
            EXPECT_OK(evaluate_ids(&infer, (const int32_t *)ids->data + r * TOKENS, TOKENS, got + r * (TOKENS - 1)));
        for (int k = 0; k < LOSSES; k++) {
            mean += ((double)got[k] - (double)want[k]) / LOSSES;
            most = fmax(most, fabs((double)got[k] - (double)want[k]));
        }
        if (!(most <= folders[i].tolerance && fabs(mean) <= 1e-3))
            test_fail(__FILE__, __LINE__, "%s: losses are up to %.3g off, %.3g in the mean", folders[i].name, most, mean);
        st_close(expected);
        infer_close(&infer);
    }
}

static void bigram_is_witten_bell(void)
{
    const int32_t text[] = {0, 1, 0, 1, 0, 2};
    Bigram       *bigram = bigram_create(4);
    bigram_add(bigram, text, 6);
    bigram_finish(bigram);
    double p1 = (2 + 3 * 0.25) / (6 + 3), after0 = (2 + 2 * p1) / (3 + 2); /* c(0,1) = 2, n(0) = 2, c(0) = 3 */
    EXPECT_NEAR(bigram_loss(bigram, (const int32_t[]){0, 1}, 2), -log(after0), 1e-12);
    double p3 = (0 + 3 * 0.25) / 9;
    EXPECT_NEAR(bigram_loss(bigram, (const int32_t[]){2, 3}, 2), -log(p3), 1e-12); /* no token was ever seen after 2 */
    double total = 0;
    for (int32_t w = 0; w < 4; w++) total += exp(-bigram_loss(bigram, (const int32_t[]){0, w}, 2));
    EXPECT_NEAR(total, 1, 1e-12);
    bigram_destroy(bigram);
}

TEST_MAIN(TEST(greedy_text_is_that_without_a_cache), TEST(a_plan_is_freed_with_its_session), TEST(the_context_s_end_ends_the_text),
          TEST(a_session_serves_what_needs_no_more), TEST(losses_of_windows_are_those_of_their_texts),
          TEST(quantised_folders_evaluate_as_in_transformers), TEST(bigram_is_witten_bell))
