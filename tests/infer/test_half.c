/* Decoding and scoring in fp16 against fp32, with fp32 weights: texts are the same wherever the two likeliest tokens aren't too close, and
 * log-probabilities hardly differ. Runs on the CPU or, compiled with FAMILY_CUDA, on a GPU. */
#include "infer/decoder.h"
#include "infer/score.h"

#include "base/philox.h"
#include "on_device.h"

#include <stdlib.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/families/"

enum { PROMPTS = 24, TOKENS = 12, CONTEXT = 64, MOST_PROMPT = 40 };

/* Limits for fp16 against fp32. MOST_APART: root mean square of the differences of tokens' ln p. MARGIN: if the two likeliest tokens' ln p
 * differ by more, both must choose the same token. */
static const double MOST_APART = 5e-3, MARGIN = 1e-2;

/* fp16 has 3 more mantissa bits than bf16, so its errors are an eighth of bf16's. */
static const double OF_BF16 = 0.25;

static const char *const families[] = {"gemma2",       "gemma3", "gpt2",         "llama",      "llama3",     "llama_linear",
                                       "mistral",      "olmo2",  "phi3",         "phi3_long",  "phi3_short", "qwen2",
                                       "qwen2_window", "qwen3",  "qwen3_untied", "qwen3_yarn", "smollm3"};
enum { FAMILIES = sizeof families / sizeof *families };

typedef struct Text {
    int32_t ids[TOKENS];
    float   logprobs[TOKENS], margins[TOKENS]; /* ln p of the chosen token; its distance to the second likeliest */
    int     count;
} Text;

static void open_model(InferModel *infer, const char *dir, const char *dtype)
{
    EXPECT_OK(infer_open(infer, dir, NULL, TEXTS_DEVICE, 2));
    EXPECT_OK(infer_use_dtype(infer, dtype));
}

static bool take(void *context, const DecodeToken *token)
{
    Text *text = context;
    text->ids[text->count] = token->id;
    text->logprobs[text->count] = token->logprob;
    text->margins[text->count++] = token->best_logprobs[0] - token->best_logprobs[1];
    return true;
}

/* Decodes greedily after random prompts. */
static void decode(InferModel *infer, Text *texts)
{
    Decoder       *decoder;
    DecoderOptions options = {.rows = 7, .context = CONTEXT, .prompt = MOST_PROMPT, .best = 2};
    infer_want_decoding(infer, &options);
    EXPECT_OK(infer_start(infer));
    EXPECT_OK(decoder_create(infer->session, &decoder));
    memset(texts, 0, PROMPTS * sizeof *texts);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        int32_t       prompt[MOST_PROMPT];
        DecodeRequest request = {.prompt = prompt, .max_tokens = TOKENS, .sample = {.top_p = 1}, .context = &texts[i], .token = take};
        request.prompt_len = 1 + philox4x32(i, 0, 0, 0, 21).v[0] % MOST_PROMPT;
        for (uint32_t t = 0; t < request.prompt_len; t++)
            prompt[t] = (int32_t)(philox4x32(t, i, 0, 0, 22).v[0] % (uint32_t)infer->model->vocab_size);
        EXPECT_OK(decoder_submit(decoder, &request, NULL));
    }
    while (decoder_is_busy(decoder)) EXPECT_OK(decoder_step(decoder));
    decoder_destroy(decoder);
    infer_stop(infer);
}

typedef struct Apart {
    double squares;
    int    count;
} Apart;

static void apart_add(Apart *a, double difference)
{
    a->squares += difference * difference;
    a->count++;
}

static double apart_root(const Apart *a)
{
    return sqrt(a->squares / a->count);
}

/* After the first token that differs there is nothing to compare. */
static void compare(const char *family, int i, const Text *half, const Text *full, Apart *apart)
{
    EXPECT_INT(half->count, TOKENS);
    EXPECT_INT(full->count, TOKENS);
    for (int t = 0; t < TOKENS; t++) {
        if (half->ids[t] != full->ids[t]) {
            if (!((double)full->margins[t] <= MARGIN))
                test_fail(__FILE__, __LINE__, "%s: token %d of text %d is %d, in fp32 %d, which is %.3g likelier than the next", family, t,
                          i, half->ids[t], full->ids[t], (double)full->margins[t]);
            return;
        }
        apart_add(apart, (double)half->logprobs[t] - (double)full->logprobs[t]);
    }
}

static void texts_in_fp16_are_those_in_fp32(void)
{
    static Text half[PROMPTS], full[PROMPTS];
    NEED_DEVICE();
    for (size_t f = 0; f < FAMILIES; f++) {
        InferModel infer;
        char       dir[128];
        snprintf(dir, sizeof dir, FIXTURES "%s", families[f]);
        open_model(&infer, dir, "fp16");
        decode(&infer, half);
        EXPECT_OK(infer_use_dtype(&infer, "fp32"));
        decode(&infer, full);
        Apart apart = {0};
        for (int i = 0; i < PROMPTS; i++) compare(families[f], i, &half[i], &full[i], &apart);
        if (!(apart_root(&apart) <= MOST_APART) || apart.count < PROMPTS * TOKENS / 2)
            test_fail(__FILE__, __LINE__, "%s: ln p of %d tokens are off by %.3g", families[f], apart.count, apart_root(&apart));
        infer_close(&infer);
    }
}

static void draw_rows(int64_t vocab, StrBuf *out)
{
    for (uint32_t row = 0; row < PROMPTS; row++) {
        uint32_t count = 2 + philox4x32(row, 0, 0, 0, 23).v[0] % 90;
        for (uint32_t t = 0; t < count; t++)
            strbuf_printf(out, "%s%u", t ? ", " : "{\"ids\": [", philox4x32(t, row, 0, 0, 24).v[0] % (uint32_t)vocab);
        strbuf_puts(out, "]}\n");
    }
}

static void score(InferModel *infer, const char *dtype, Str text, Scores *out)
{
    infer_stop(infer);
    EXPECT_OK(infer_use_dtype(infer, dtype));
    EXPECT_OK(scores_read(infer, "rows", text, 0, out));
    EXPECT_OK(scores_run(infer, out));
}

static void scores_in_fp16_are_those_in_fp32(void)
{
    NEED_DEVICE();
    for (size_t f = 0; f < FAMILIES; f++) {
        InferModel infer;
        Scores     full, half, brief;
        StrBuf     text = {0};
        Apart      of_half = {0}, of_brief = {0};
        char       dir[128];
        snprintf(dir, sizeof dir, FIXTURES "%s", families[f]);
        open_model(&infer, dir, NULL);
        draw_rows(infer.model->vocab_size, &text);
        score(&infer, "fp32", (Str){text.data, text.len}, &full);
        score(&infer, "fp16", (Str){text.data, text.len}, &half);
        score(&infer, "bf16", (Str){text.data, text.len}, &brief);
        for (size_t i = 0; i < full.ids.len; i++) {
            EXPECT(isnan(half.logprobs[i]) == isnan(full.logprobs[i]));
            if (isnan(full.logprobs[i])) continue;
            apart_add(&of_half, (double)half.logprobs[i] - (double)full.logprobs[i]);
            apart_add(&of_brief, (double)brief.logprobs[i] - (double)full.logprobs[i]);
        }
        double root = apart_root(&of_half);
        if (!(root <= MOST_APART && root <= OF_BF16 * apart_root(&of_brief)))
            test_fail(__FILE__, __LINE__, "%s: ln p are off by %.3g, in bf16 by %.3g", families[f], root, apart_root(&of_brief));
        scores_deinit(&full);
        scores_deinit(&half);
        scores_deinit(&brief);
        strbuf_deinit(&text);
        infer_close(&infer);
    }
}

/* ---- folders ---- */

typedef struct Copy {
    Arena arena;
    char *dir;
} Copy;

/* Whether the oracle scales this matrix (tests/oracle/make_half.py). */
static bool is_projection(const char *name)
{
    size_t len = strlen(name), tail = strlen("proj.weight");
    return len > tail && (strcmp(name + len - tail, "proj.weight") == 0 || (strstr(name, ".c_") && strcmp(name + len - 7, ".weight") == 0));
}

/* Writes a copy of a family in fp16 or fp32, with its projections multiplied by `scale`. */
static void copy_make(Copy *c, const char *family, StDType dtype, float scale)
{
    StFile *file;
    Str     bytes, config;
    *c = (Copy){0};
    c->dir = mkdtemp(arena_strdup(&c->arena, "/tmp/half_XXXXXX"));
    EXPECT(c->dir != NULL);
    EXPECT_OK(file_read(&c->arena, arena_printf(&c->arena, FIXTURES "%s/config.json", family), 1 << 20, &config));
    EXPECT_OK(file_read(&c->arena, arena_printf(&c->arena, FIXTURES "%s/model.safetensors", family), 1 << 20, &bytes));
    char *name = strstr(config.data, "\"float32\"");
    EXPECT(name != NULL);
    if (dtype == ST_F16) memcpy(name, "\"float16\"", strlen("\"float16\""));
    EXPECT_OK(file_write_atomic(arena_printf(&c->arena, "%s/config.json", c->dir), config.data, config.len));
    EXPECT_OK(st_open_memory(family, (char *)(uintptr_t)bytes.data, bytes.len, &file));
    StDecl *decls = arena_array(&c->arena, StDecl, st_count(file));
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor *t = st_at(file, i);
        float          *values = arena_array(&c->arena, float, (size_t)t->numel), *stored = arena_array(&c->arena, float, (size_t)t->numel);
        EXPECT_OK(st_to_f32(t, 0, t->numel, values));
        for (int64_t k = 0; k < t->numel && is_projection(t->name); k++) values[k] *= scale;
        dtype_encode(dtype == ST_F16 ? DT_F16 : DT_F32, values, t->numel, stored);
        decls[i] = (StDecl){.name = t->name, .dtype = dtype, .ndim = t->ndim, .data = stored};
        memcpy(decls[i].dim, t->dim, sizeof t->dim);
    }
    EXPECT_OK(st_write(arena_printf(&c->arena, "%s/model.safetensors", c->dir), decls, st_count(file), NULL, NULL, NULL));
    st_close(file);
}

static void copy_remove(Copy *c)
{
    remove(arena_printf(&c->arena, "%s/model.safetensors", c->dir));
    remove(arena_printf(&c->arena, "%s/config.json", c->dir));
    rmdir(c->dir);
    arena_deinit(&c->arena);
}

/* ---- transformers ---- */

static const float *oracle(const StFile *file, const char *family, const char *what, int64_t numel)
{
    const StTensor *tensor;
    char            name[64];
    snprintf(name, sizeof name, "%s%s", family, what);
    EXPECT_OK(st_require(file, name, &tensor));
    EXPECT_INT(tensor->numel, numel);
    return tensor->data;
}

/* Returns the root mean square of a - b; *most: the largest difference. */
static double apart(const float *a, const float *b, int64_t count, double *most)
{
    double sum = 0;
    *most = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        sum += d * d;
        if (!(d <= *most)) *most = d;
    }
    return sqrt(sum / (double)count);
}

/* transformers in float16 rounds wherever we do, so rounding is its only difference from the exact result. We may be no further from the
 * exact result than transformers is, and no further from transformers than twice that distance. */
static void fp16_is_no_further_from_exact_than_that_of_transformers(void)
{
    static const char *const named[] = {"qwen3", "llama", "gpt2", "gemma3"};
    StFile                  *file;
    const StTensor          *ids;
    NEED_DEVICE();
    EXPECT_OK(st_open("tests/fixtures/half.safetensors", &file));
    EXPECT_OK(st_require(file, "ids", &ids));
    int64_t rows = ids->dim[0], tokens = ids->dim[1], count = rows * (tokens - 1);
    for (size_t f = 0; f < sizeof named / sizeof *named; f++) {
        const float *half = oracle(file, named[f], ".half", count), *whole = oracle(file, named[f], ".exact", count);
        float       *ours = calloc((size_t)count, sizeof *ours);
        Copy         copy;
        InferModel   infer;
        Scores       scores;
        StrBuf       text = {0};
        double       their_most, our_most, between;
        copy_make(&copy, named[f], ST_F16, 2);
        open_model(&infer, copy.dir, "fp16");
        for (int64_t i = 0; i < ids->numel; i++)
            strbuf_printf(&text, "%s%d%s", i % tokens ? ", " : "{\"ids\": [", ((const int32_t *)ids->data)[i],
                          (i + 1) % tokens ? "" : "]}\n");
        EXPECT_OK(scores_read(&infer, "rows", (Str){text.data, text.len}, 0, &scores));
        EXPECT_OK(scores_run(&infer, &scores));
        for (int64_t i = 0; i < count; i++) ours[i] = scores.logprobs[i / (tokens - 1) * tokens + 1 + i % (tokens - 1)];
        double theirs = apart(half, whole, count, &their_most), own = apart(ours, whole, count, &our_most);
        (void)apart(ours, half, count, &between);
        if (!(own <= theirs && between <= 2 * their_most))
            test_fail(__FILE__, __LINE__, "%s: %.3g from exact (at most %.3g), transformers %.3g (%.3g); %.3g between them", named[f], own,
                      our_most, theirs, their_most, between);
        scores_deinit(&scores);
        strbuf_deinit(&text);
        infer_close(&infer);
        copy_remove(&copy);
        free(ours);
    }
    st_close(file);
}

/* ---- which dtype, and what it can't hold ---- */

static void fp16_is_computed_in_where_it_is_asked_for(void)
{
    Copy       copy;
    InferModel infer;
    NEED_DEVICE();
    copy_make(&copy, "llama", ST_F16, 1);
    open_model(&infer, copy.dir, NULL);
    EXPECT_INT(infer.options.model_dtype, DT_BF16);
    infer_close(&infer);
    open_model(&infer, copy.dir, "fp16");
    EXPECT_INT(infer.options.model_dtype, DT_F16);
    EXPECT_FAILS(infer_use_format(&infer, "int8"), ERR_UNSUPPORTED, "dtype fp16 with quantised weights: expected dtype bf16 or fp32");
    EXPECT_FAILS(infer_use_recipe(&infer, "nvfp4"), ERR_UNSUPPORTED, "dtype fp16 with a recipe: expected dtype bf16 or fp32");
    EXPECT_FAILS(infer_use_dtype(&infer, "fp8"), ERR_INVALID, "dtype fp8: expected fp32, bf16 or fp16");
    infer_close(&infer);
    copy_remove(&copy);
}

static bool pass(void *context, const DecodeToken *token)
{
    (void)context, (void)token;
    return true;
}

static void end(void *context, DecodeEnd how)
{
    *(DecodeEnd *)context = how;
    EXPECT(how != DECODE_FAILED || strstr(status_message(), "fp16 ends at 65504") != NULL);
}

/* Decodes one token greedily; returns how it ended. */
static DecodeEnd decode_one(InferModel *infer)
{
    static const int32_t prompt[] = {5, 9, 11};
    Decoder             *decoder;
    DecodeEnd            how = DECODE_BY_CALLER;
    DecodeRequest        request = {
               .prompt = prompt, .prompt_len = 3, .max_tokens = 1, .sample = {.top_p = 1}, .context = &how, .token = pass, .end = end};
    infer_want_decoding(infer, &(DecoderOptions){.rows = 1, .context = CONTEXT});
    EXPECT_OK(infer_start(infer));
    EXPECT_OK(decoder_create(infer->session, &decoder));
    EXPECT_OK(decoder_submit(decoder, &request, NULL));
    while (decoder_is_busy(decoder)) EXPECT_OK(decoder_step(decoder));
    decoder_destroy(decoder);
    infer_stop(infer);
    return how;
}

/* First the weights fit fp16 but the activations don't; then the weights don't fit either. */
static void what_fp16_cant_hold_is_said(void)
{
    Copy       copy;
    InferModel infer;
    NEED_DEVICE();
    copy_make(&copy, "llama", ST_F32, 30000);
    open_model(&infer, copy.dir, "fp16");
    EXPECT_INT(decode_one(&infer), DECODE_FAILED);
    EXPECT_OK(infer_use_dtype(&infer, "bf16"));
    EXPECT_INT(decode_one(&infer), DECODE_AT_LENGTH);
    infer_close(&infer);
    copy_remove(&copy);
    copy_make(&copy, "llama", ST_F32, 3e7f);
    open_model(&infer, copy.dir, "fp16");
    infer_want_decoding(&infer, &(DecoderOptions){.rows = 1, .context = CONTEXT});
    EXPECT_FAILS(infer_start(&infer), ERR_INVALID, "which f16 can't hold; take dtype bf16 or fp32");
    infer_close(&infer);
    copy_remove(&copy);
}

TEST_MAIN(TEST(texts_in_fp16_are_those_in_fp32), TEST(scores_in_fp16_are_those_in_fp32),
          TEST(fp16_is_no_further_from_exact_than_that_of_transformers), TEST(fp16_is_computed_in_where_it_is_asked_for),
          TEST(what_fp16_cant_hold_is_said))
