/* Texts decoded together: each has the same bits as if decoded alone, whatever else is decoded. */
#include "infer/infer_model.h"
#include "infer/pages.h"
#include "setup/setup.h"

#include "texts.h"

static const char *dtype_of_models; /* NULL: the folder's dtype */
static const char *cache_of_models; /* argument of infer_use_cache */

enum { TOGETHER = 5 };

/* Whether one of the programs reads several prompts at once. */
static bool reads_several(const InferModel *infer)
{
    for (int i = 0; i < infer->options.num_programs; i++)
        if (infer->options.programs[i].entry == &entry_prefill && infer->options.programs[i].batch > 1) return true;
    return false;
}

static int num_together; /* number of runs that read several prompts */

/* As run_all, but counts in num_together the runs that read several prompts. */
static void run_texts(Decoder *decoder)
{
    for (int steps = 0; decoder_is_busy(decoder); steps++) {
        EXPECT(steps < 100000);
        EXPECT_OK(decoder_step(decoder));
        const Program *ran = decoder_ran(decoder);
        num_together += ran && ran->spec.entry == &entry_prefill && ran->spec.batch > 1;
    }
}

static void open_decoder(InferModel *infer, const char *family, const DecoderOptions *options, Decoder **out)
{
    char dir[256];
    snprintf(dir, sizeof dir, "tests/fixtures/%s", family);
    EXPECT_OK(infer_open(infer, dir, NULL, TEXTS_DEVICE, 2));
    EXPECT_OK(infer_use_dtype(infer, dtype_of_models));
    EXPECT_OK(infer_use_cache(infer, cache_of_models));
    infer_want_decoding(infer, options);
    if (options->rows >= TOGETHER && !reads_several(infer)) { /* short prompts are read together on every device */
        compile_add(&infer->options, &entry_prefill, TOGETHER, 8);
        compile_add(&infer->options, &entry_prefill, TOGETHER - 1, 64);
    }
    EXPECT_OK(infer_start(infer));
    EXPECT_OK(decoder_create(infer->session, out));
}

static void close_decoder(InferModel *infer, Decoder *decoder)
{
    decoder_destroy(decoder);
    infer_close(infer);
}

/* Decodes all texts of a family with options->rows places. They are submitted at once, or with `one_by_one` each after the one before has
 * ended. Returns how often a text was preempted. */
static int64_t decode_texts(const char *family, const DecoderOptions *options, bool one_by_one, Text *texts)
{
    InferModel infer;
    Decoder   *decoder;
    open_decoder(&infer, family, options, &decoder);
    for (int i = 0; i < REQUESTS; i++) {
        DecodeRequest request = make_request(&texts[i], i, infer.model->vocab_size);
        EXPECT_OK(decoder_submit(decoder, &request, NULL));
        if (one_by_one) run_all(decoder);
    }
    run_texts(decoder);
    for (int i = 0; i < REQUESTS; i++) EXPECT(texts[i].has_ended && texts[i].end == DECODE_AT_LENGTH);
    int64_t preempted = decoder_num_preempted(decoder);
    close_decoder(&infer, decoder);
    return preempted;
}

static void expect_same_in_company(const char *family)
{
    Text          *alone = calloc(REQUESTS, sizeof *alone), *beside = calloc(REQUESTS, sizeof *beside);
    DecoderOptions one = {.rows = 1, .context = CONTEXT, .prompt = 100, .penalties = true},
                   seven = {.rows = 7, .context = CONTEXT, .prompt = 9, .penalties = true},
                   few = {.rows = 16, .context = CONTEXT, .prompt = 33, .pages = 9, .penalties = true},
                   least = {.rows = 7, .context = CONTEXT, .prompt = 9, .pages = 4, .penalties = true};
    EXPECT(decode_texts(family, &one, true, alone) == 0);
    num_together = 0;
    EXPECT(decode_texts(family, &seven, false, beside) == 0);
    EXPECT(num_together > 0);
    expect_same(alone, beside, family);
    EXPECT(decode_texts(family, &few, false, beside) > 0);
    expect_same(alone, beside, "few pages");
    EXPECT(decode_texts(family, &least, false, beside) > 0);
    expect_same(alone, beside, "the fewest pages");
    free(alone), free(beside);
}

static void a_text_is_the_same_alone_and_in_company(void)
{
    NEED_DEVICE();
    static const char *const families[] = {"families/qwen3", "families/llama", "families/gemma2",
                                           "families/phi3",  "families/gpt2",  "architectures/deepseek_v3"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) expect_same_in_company(families[f]);
}

static void a_text_in_fp16_is_the_same_alone_and_in_company(void)
{
    dtype_of_models = "fp16";
    a_text_is_the_same_alone_and_in_company();
    dtype_of_models = NULL;
}

static void a_text_over_keys_in_fp8_is_the_same_alone_and_in_company(void)
{
    static const char *const dtypes[] = {NULL, "bf16"};
    cache_of_models = "fp8";
    for (int i = 0; i < 2; i++) {
        dtype_of_models = dtypes[i];
        a_text_is_the_same_alone_and_in_company();
    }
    dtype_of_models = cache_of_models = NULL;
}

/* A model of DeepSeek-V3's form: 2 layers, latents of 12 elements, and 4 elements of a key that both heads share. Without latents each head
 * has a key of 10 elements and a value of 8. */
static void latents_take_less_of_the_cache(void)
{
    NEED_DEVICE();
    static const struct {
        const char *dtype, *cache;
        int64_t     bytes; /* bytes of an element */
    } cases[] = {{"fp32", NULL, 4}, {"bf16", NULL, 2}, {"fp32", "fp8", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        InferModel infer;
        Decoder   *decoder;
        dtype_of_models = cases[i].dtype, cache_of_models = cases[i].cache;
        open_decoder(&infer, "architectures/deepseek_v3", &(DecoderOptions){.rows = 3, .context = CONTEXT}, &decoder);
        const Plan       *plan = session_plan(infer.session);
        const PlanLatent *latent = &plan->latent;
        EXPECT_INT(latent->layers, 2);
        EXPECT_INT(latent->whole_layers, 0);
        EXPECT_INT(latent->numbers, 12 + 4);
        EXPECT_INT(latent->whole_numbers, 2 * (10 + 8));
        int64_t token = 2 * latent->numbers * cases[i].bytes;
        EXPECT_INT(plan->region_bytes[SPACE_DEVICE][REGION_CACHE], plan->cache_pages * CACHE_PAGE_LEN * token);
        EXPECT_INT(session_allocated_bytes(infer.session), plan_total_bytes(plan));
        close_decoder(&infer, decoder);
        if (!cases[i].cache) expect_same_in_company("architectures/deepseek_v3");
    }
    dtype_of_models = cache_of_models = NULL;
}

/* If an adapter that rows may choose changes the weight that makes keys and values, the cache keeps whole keys and values for all rows. */
static void adapters_of_what_makes_keys_keep_them_whole(void)
{
    NEED_DEVICE();
    static const char *const targets[] = {"q_proj", "kv_b_proj"};
    for (int i = 0; i < 2; i++) {
        InferModel  infer;
        Plan       *plan;
        Arena       arena = {0};
        LoraOptions adapters[] = {{.enabled = true, .r = 2, .alpha = 2, .num_targets = 1, .targets = targets},
                                  {.enabled = true, .r = 2, .alpha = 2, .num_targets = 1, .targets = targets + i}};
        EXPECT_OK(infer_open(&infer, "tests/fixtures/architectures/deepseek_v3", NULL, TEXTS_DEVICE, 2));
        infer_want_decoding(&infer, &(DecoderOptions){.rows = 3, .context = CONTEXT});
        infer.options.row_adapters = adapters, infer.options.num_row_adapters = 2;
        EXPECT_OK(setup_plan(&arena, infer.model, &infer.options, infer.device, &plan));
        EXPECT_INT(plan->latent.whole_layers, i ? 2 : 0);
        EXPECT_INT(plan->latent.layers, i ? 0 : 2);
        arena_deinit(&arena);
        infer_close(&infer);
    }
}

/* Requests arrive at random moments, while others decode. */
static void decode_arrivals(const char *family, const DecoderOptions *options, uint32_t seed, Text *texts)
{
    InferModel infer;
    Decoder   *decoder;
    open_decoder(&infer, family, options, &decoder);
    for (int i = 0, steps = 0; i < REQUESTS || decoder_is_busy(decoder); steps++) {
        EXPECT(steps < 100000);
        Philox4 words = philox4x32((uint32_t)steps, 0, 0, 0, seed);
        int     count = words.v[0] % 8 ? 0 : 1 + (int)(words.v[1] % 4);
        for (; count-- > 0 && i < REQUESTS; i++) {
            DecodeRequest request = make_request(&texts[i], i, infer.model->vocab_size);
            EXPECT_OK(decoder_submit(decoder, &request, NULL));
        }
        EXPECT_OK(decoder_step(decoder));
    }
    for (int i = 0; i < REQUESTS; i++) EXPECT(texts[i].has_ended && texts[i].end == DECODE_AT_LENGTH);
    close_decoder(&infer, decoder);
}

static void a_text_is_the_same_whenever_it_comes(void)
{
    NEED_DEVICE();
    static const char *const families[] = {"families/qwen3", "families/gemma2"};
    static const int64_t     places[] = {1, 5, 64};
    Text                    *alone = calloc(REQUESTS, sizeof *alone), *beside = calloc(REQUESTS, sizeof *beside);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        decode_texts(families[f], &(DecoderOptions){.rows = 1, .context = CONTEXT, .prompt = 100, .penalties = true}, true, alone);
        for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
            DecoderOptions options = {.rows = places[p], .context = CONTEXT, .prompt = 17, .pages = 7, .penalties = true};
            decode_arrivals(families[f], &options, 11 + (uint32_t)p, beside);
            expect_same(alone, beside, families[f]);
        }
    }
    free(alone), free(beside);
}

/* Three texts that outgrow four pages: the third is preempted, and cancelled while it waits; the second is preempted later, and
 * continues. */
static void a_preempted_text_can_be_cancelled(void)
{
    NEED_DEVICE();
    InferModel infer;
    Decoder   *decoder;
    Text       text[3], alone[3];
    uint64_t   handle[3];
    open_decoder(&infer, "families/qwen3", &(DecoderOptions){.rows = 3, .context = CONTEXT, .pages = 4, .penalties = true}, &decoder);
    for (int beside = 0; beside < 2; beside++)
        for (int i = 0; i < 3; i++) {
            Text         *own = beside ? &text[i] : &alone[i];
            DecodeRequest request = make_request(own, 6 * i + 5, infer.model->vocab_size); /* with penalties */
            own->prompt_len = request.prompt_len = 20;
            request.max_tokens = 100;
            EXPECT_OK(decoder_submit(decoder, &request, &handle[i]));
            if (!beside) run_all(decoder);
        }
    EXPECT_INT(decoder_num_preempted(decoder), 0);
    while (decoder_num_preempted(decoder) == 0) EXPECT_OK(decoder_step(decoder));
    EXPECT_INT(decoder_num_waiting(decoder), 1);
    EXPECT_INT(text[2].count, 13);
    decoder_cancel(decoder, handle[2]);
    EXPECT(text[2].has_ended && text[2].end == DECODE_BY_CALLER && decoder_num_waiting(decoder) == 0);
    run_all(decoder);
    EXPECT_INT(decoder_num_preempted(decoder), 2);
    for (int i = 0; i < 3; i++) EXPECT(memcmp(text[i].ids, alone[i].ids, (size_t)text[i].count * 4) == 0);
    EXPECT(text[0].count == 100 && text[1].count == 100 && text[2].count == 13);
    close_decoder(&infer, decoder);
}

static void requests_that_cant_be_decoded_are_refused(void)
{
    NEED_DEVICE();
    InferModel infer;
    Decoder   *decoder;
    Text       text;
    int32_t    id = 3;
    float      bias = 1;
    open_decoder(&infer, "families/qwen3", &(DecoderOptions){.rows = 2, .context = 48, .pages = 1}, &decoder);
    DecodeRequest large = make_request(&text, 1, infer.model->vocab_size);
    large.prompt_len = 10, large.max_tokens = 24;
    EXPECT_FAILS(decoder_submit(decoder, &large, NULL), ERR_INVALID,
                 "a prompt of 10 tokens and up to 24 more need 2 pages of the cache, which has 1");
    close_decoder(&infer, decoder);
    open_decoder(&infer, "families/qwen3", &(DecoderOptions){.rows = 2, .context = 32}, &decoder);
    const DecodeRequest fine = make_request(&text, 1, infer.model->vocab_size);
#define EXPECT_REFUSED(says, ...) \
    do { \
        DecodeRequest request = fine; \
        request.prompt_len = 3; \
        __VA_ARGS__; \
        EXPECT_FAILS(decoder_submit(decoder, &request, NULL), ERR_INVALID, says); \
    } while (0)
    EXPECT_REFUSED("empty", request.prompt_len = 0);
    EXPECT_REFUSED("the prompt has 33 tokens, the context only 32", request.prompt_len = 33);
    EXPECT_REFUSED("0 tokens are wanted", request.max_tokens = 0);
    EXPECT_REFUSED("temperature -1", request.sample.temperature = -1);
    EXPECT_REFUSED("top-p 1.5", request.sample.top_p = 1.5);
    EXPECT_REFUSED("min-p -0.1", request.sample.min_p = -0.1);
    EXPECT_REFUSED("without memory for penalties", request.sample.presence = 0.5);
    EXPECT_REFUSED("opened for 0 a request", request.sample.bias_ids = &id, request.sample.biases = &bias, request.sample.num_biases = 1);
    id = (int32_t)infer.model->vocab_size;
    EXPECT_REFUSED("beyond the model's vocabulary", request.prompt = &id, request.prompt_len = 1);
    EXPECT(!decoder_is_busy(decoder));
    close_decoder(&infer, decoder);
}

/* While a long prompt is read, a text continues: it never waits for more than 512 tokens of the prompt. */
static void a_long_prompt_keeps_nobody_waiting(void)
{
    NEED_DEVICE();
    enum { LONG = 1100, CHUNK = 32, MOST_READ = 512 };
    InferModel     infer;
    Decoder       *decoder;
    Text           text, other, alone;
    static int32_t prompt[LONG];
    int64_t        read = 0, most = 0, before;
    for (int i = 0; i < LONG; i++) prompt[i] = (int32_t)(philox4x32((uint32_t)i, 0, 0, 0, 9).v[0] % 60);
    DecoderOptions options = {.rows = 2, .context = LONG + 32, .prompt = CHUNK};
    open_decoder(&infer, "families/qwen3", &options, &decoder);
    DecodeRequest request = make_request(&text, 4, infer.model->vocab_size), large = make_request(&alone, 8, infer.model->vocab_size);
    large.prompt = prompt;
    large.prompt_len = LONG;
    large.max_tokens = 5;
    EXPECT_OK(decoder_submit(decoder, &large, NULL));
    run_all(decoder);
    close_decoder(&infer, decoder);
    open_decoder(&infer, "families/qwen3", &options, &decoder); /* opened anew: the cache has no pages of the run above */
    request.max_tokens = 30;
    EXPECT_OK(decoder_submit(decoder, &request, NULL));
    while (text.count < 2) EXPECT_OK(decoder_step(decoder));
    other = (Text){0};
    large.context = &other;
    before = text.count;
    EXPECT_OK(decoder_submit(decoder, &large, NULL));
    while (other.count == 0) {
        EXPECT_OK(decoder_step(decoder));
        bool is_prompt = decoder_ran(decoder)->spec.entry == &entry_prefill;
        read = is_prompt ? read + CHUNK : 0;
        if (read > most) most = read;
    }
    EXPECT_INT(most, MOST_READ);
    EXPECT(text.count - before >= LONG / MOST_READ);
    run_all(decoder);
    EXPECT(text.count == 30 && other.count == 5);
    EXPECT(!memcmp(other.ids, alone.ids, 5 * sizeof *alone.ids) && !memcmp(other.logprobs, alone.logprobs, 5 * sizeof *alone.logprobs));
    close_decoder(&infer, decoder);
}

static void texts_end_as_they_should(void)
{
    NEED_DEVICE();
    InferModel    infer;
    Decoder      *decoder;
    Text          text[5];
    uint64_t      handle;
    DecodeRequest request[5];
    open_decoder(&infer, "families/qwen3", &(DecoderOptions){.rows = 3, .context = 32, .best = 2}, &decoder);
    for (int i = 0; i < 5; i++) {
        request[i] = make_request(&text[i], 4, infer.model->vocab_size); /* greedy */
        text[i].prompt_len = request[i].prompt_len = 10;
        request[i].max_tokens = 12;
    }
    request[1].max_tokens = 100; /* more than the context has room for */
    text[2].stop_after = 5;
    EXPECT_OK(decoder_submit(decoder, &request[0], NULL));
    EXPECT_OK(decoder_submit(decoder, &request[1], NULL));
    EXPECT_OK(decoder_submit(decoder, &request[2], NULL));
    EXPECT_OK(decoder_submit(decoder, &request[3], &handle));
    EXPECT_INT(decoder_num_waiting(decoder), 4);
    EXPECT_OK(decoder_step(decoder));
    EXPECT_INT(decoder_num_waiting(decoder), 1);
    decoder_cancel(decoder, handle);
    EXPECT(text[3].end == DECODE_BY_CALLER && text[3].has_ended && text[3].count == 0);
    run_all(decoder);
    EXPECT(text[0].end == DECODE_AT_LENGTH && text[0].count == 12);
    EXPECT(text[1].end == DECODE_AT_CONTEXT && text[1].count == 32 - 10 + 1);
    EXPECT(text[2].end == DECODE_BY_CALLER && text[2].count == 5);
    int32_t stop = text[0].ids[7];
    request[4].stops = &stop;
    request[4].num_stops = 1;
    EXPECT_OK(decoder_submit(decoder, &request[4], NULL));
    run_all(decoder);
    EXPECT(text[4].end == DECODE_AT_STOP);
    for (int64_t i = 0; i < text[4].count; i++) EXPECT(text[4].ids[i] == text[0].ids[i] && text[4].ids[i] != stop);
    close_decoder(&infer, decoder);
}

static void pages_are_shared_by_what_they_hold(void)
{
    enum { LEN = 4, COUNT = 6 };
    const int32_t a[LEN] = {1, 2, 3, 4}, b[LEN] = {5, 6, 7, 8};
    Pages        *pages = pages_create(COUNT, LEN);
    int32_t       first = pages_take(pages), second = pages_take(pages);
    EXPECT(pages_free(pages) == COUNT - 2 && first != second && first > 0);
    const PageBefore begin = {0}, other = {.kind = 1}, behind_first = {.page = first}, behind_second = {.page = second};
    pages_name(pages, first, begin, a);
    pages_name(pages, second, behind_first, b);
    EXPECT(pages_find(pages, begin, a) == first && pages_find(pages, behind_first, b) == second);
    EXPECT(pages_find(pages, begin, b) == 0 && pages_find(pages, behind_second, b) == 0 && pages_find(pages, other, a) == 0);
    pages_drop(pages, first);
    pages_drop(pages, second);
    EXPECT(pages_free(pages) == COUNT && pages_find(pages, begin, a) == first); /* freed pages keep their contents while there is room */
    pages_hold(pages, first);
    for (int i = 0; i < COUNT - 1; i++) EXPECT(pages_take(pages) != first);
    EXPECT(pages_free(pages) == 0 && pages_find(pages, begin, a) == first && pages_find(pages, behind_first, b) == 0);
    pages_drop(pages, first);
    EXPECT(pages_take(pages) == first && pages_find(pages, begin, a) == 0);
    pages_destroy(pages);
}

TEST_MAIN(TEST(pages_are_shared_by_what_they_hold), TEST(requests_that_cant_be_decoded_are_refused), TEST(texts_end_as_they_should),
          TEST(a_long_prompt_keeps_nobody_waiting), TEST(a_preempted_text_can_be_cancelled), TEST(a_text_is_the_same_alone_and_in_company),
          TEST(a_text_in_fp16_is_the_same_alone_and_in_company), TEST(a_text_over_keys_in_fp8_is_the_same_alone_and_in_company),
          TEST(a_text_is_the_same_whenever_it_comes), TEST(latents_take_less_of_the_cache),
          TEST(adapters_of_what_makes_keys_keep_them_whole))
