/* The model's thread: texts have the same bits as from a decoder that runs them alone, for every shipped family and its adapters. Each text
 * ends once, a cancelled text frees its slot, and a prompt's tokens have the log-probabilities that they had when generated. */
#include "infer/row_adapters.h"
#include "serve/engine.h"

#include "test.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define FAMILIES "tests/fixtures/families/"

enum { MOST_TOKENS = 24, TOP = 3, CONTEXT = 64 };

typedef struct Text {
    int32_t ids[CONTEXT];
    float   logprobs[CONTEXT], top[CONTEXT][TOP];
    int64_t count, num_given;
    int     num_ends;
    char    reason[16], error[200];
} Text;

/* ---- a receiver on the test's own thread ---- */

typedef struct Receiver {
    pthread_mutex_t lock;
    pthread_cond_t  wake;
    void (*call)(void *);
    void *argument;
    int   num_open;
} Receiver;

static void post(void *context, void (*call)(void *), void *argument)
{
    Receiver *r = context;
    pthread_mutex_lock(&r->lock);
    EXPECT(!r->call); /* one call at a time */
    r->call = call;
    r->argument = argument;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

static void take(void *context, const EngineEvent *event)
{
    Receiver *r = context;
    Text     *text = event->user;
    EXPECT_INT(text->num_ends, 0);
    if (event->kind == ENGINE_END) {
        text->num_ends++;
        r->num_open--;
        snprintf(text->reason, sizeof text->reason, "%s", event->reason ? event->reason : "");
        snprintf(text->error, sizeof text->error, "%s", event->error ? event->error : "");
        return;
    }
    text->ids[text->count] = event->id;
    text->logprobs[text->count] = event->logprob;
    for (int i = 0; i < event->top; i++) text->top[text->count][i] = event->top_logprobs[i];
    text->num_given += event->is_given;
    text->count += !event->is_last;
}

/* Runs until all submitted texts have ended. */
static void serve(Receiver *r)
{
    while (r->num_open) {
        pthread_mutex_lock(&r->lock);
        while (!r->call) pthread_cond_wait(&r->wake, &r->lock);
        void (*call)(void *) = r->call;
        r->call = NULL;
        pthread_mutex_unlock(&r->lock);
        call(r->argument);
    }
}

static Receiver receiver = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static const EngineReceiver interface = {&receiver, post, take};

static uint64_t submit(Engine *engine, EngineText text, Text *out)
{
    static const StrList none;
    *out = (Text){0};
    text.stops = &none;
    text.user = out;
    receiver.num_open++;
    return engine_submit(engine, &text);
}

/* ---- families ---- */

static const char *const families[] = {"gemma2",       "gemma3", "gpt2",         "llama",      "llama3",     "llama_linear",
                                       "mistral",      "olmo2",  "phi3",         "phi3_long",  "phi3_short", "qwen2",
                                       "qwen2_window", "qwen3",  "qwen3_untied", "qwen3_yarn", "smollm3"};

static const DecoderOptions served = {.rows = 5, .context = CONTEXT, .prompt = 9, .best = TOP, .penalties = true, .biases = 8};

static EngineText make_text(int i, int64_t vocab, int32_t *prompt)
{
    EngineText text = {.prompt = prompt,
                       .prompt_len = 1 + (size_t)i * 5 % 23,
                       .max_tokens = MOST_TOKENS,
                       .sample = {.top_p = 1, .repetition = 1, .temperature = i % 3 == 2 ? 0.8 : 0, .seed = (uint64_t)i},
                       .top = TOP};
    for (size_t t = 0; t < text.prompt_len; t++) prompt[t] = (int32_t)((t * 7 + (size_t)i * 13 + 3) % (size_t)vocab);
    return text;
}

static bool take_alone(void *context, const DecodeToken *token)
{
    Text *text = context;
    text->ids[text->count] = token->id;
    text->logprobs[text->count] = token->logprob;
    for (int i = 0; i < TOP; i++) text->top[text->count][i] = token->best_logprobs[i];
    text->count++;
    return true;
}

static void end_alone(void *context, DecodeEnd end)
{
    Text *text = context;
    text->num_ends++;
    snprintf(text->reason, sizeof text->reason, "%s", end == DECODE_AT_STOP ? "eos" : end == DECODE_AT_LENGTH ? "length" : "context");
}

/* As `generate` does: a decoder with one row. */
static void generate(InferModel *infer, const EngineText *text, Text *out)
{
    DecoderOptions options = {.rows = 1, .context = (int64_t)text->prompt_len + text->max_tokens, .best = TOP};
    Decoder       *decoder;
    *out = (Text){0};
    EXPECT_OK(infer_start_decoding(infer, &options));
    EXPECT_OK(decoder_create(infer->session, &decoder));
    DecodeRequest request = {.prompt = text->prompt,
                             .prompt_len = text->prompt_len,
                             .max_tokens = text->max_tokens,
                             .sample = text->sample,
                             .stops = infer->eos,
                             .num_stops = infer->num_eos,
                             .context = out,
                             .token = take_alone,
                             .end = end_alone};
    EXPECT_OK(decoder_submit(decoder, &request, NULL));
    while (decoder_is_busy(decoder)) EXPECT_OK(decoder_step(decoder));
    decoder_destroy(decoder);
}

static void expect_same(const char *family, int i, const Text *a, const Text *b)
{
    size_t bytes = (size_t)a->count * sizeof(float);
    bool same = a->count == b->count && a->num_ends == b->num_ends && strcmp(a->reason, b->reason) == 0 && !memcmp(a->ids, b->ids, bytes) &&
                !memcmp(a->logprobs, b->logprobs, bytes) && !memcmp(a->top, b->top, TOP * bytes);
    if (!same) test_fail(__FILE__, __LINE__, "%s: text %d differs (%s, %s)", family, i, a->reason, b->reason);
}

enum { TEXTS = 12 };

/* Every other text uses the adapter. */
static void a_family_is_served_as_it_generates(const char *family)
{
    static int32_t prompts[TEXTS][CONTEXT];
    static Text    served_texts[TEXTS], alone;
    char           dir[128], adapter[160];
    InferModel     infer, with;
    Engine        *engine;
    EngineText     texts[TEXTS];
    snprintf(dir, sizeof dir, FAMILIES "%s", family);
    snprintf(adapter, sizeof adapter, "%s/adapter", dir);
    EXPECT_OK(infer_open(&infer, dir, NULL, "cpu", 2));
    EXPECT_OK(infer_use_adapters(&infer, &(AdapterName){"tuned", adapter}, 1));
    EXPECT_OK(engine_create(&infer, &served, &interface, &engine));
    for (int i = 0; i < TEXTS; i++) {
        texts[i] = make_text(i, infer.model->vocab_size, prompts[i]);
        texts[i].adapter = i % 2;
        submit(engine, texts[i], &served_texts[i]);
    }
    serve(&receiver);
    engine_destroy(engine);
    infer_close(&infer);
    EXPECT_OK(infer_open(&infer, dir, NULL, "cpu", 2));
    EXPECT_OK(infer_open(&with, dir, adapter, "cpu", 2));
    for (int i = 0; i < TEXTS; i++) {
        generate(i % 2 ? &with : &infer, &texts[i], &alone);
        expect_same(family, i, &served_texts[i], &alone);
    }
    infer_close(&with);
    infer_close(&infer);
}

static void families_are_served_as_they_generate(void)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) a_family_is_served_as_it_generates(families[i]);
}

/* ---- one model ---- */

static void open_qwen(InferModel *infer, Engine **engine)
{
    EXPECT_OK(infer_open(infer, FAMILIES "qwen3", NULL, "cpu", 2));
    EXPECT_OK(engine_create(infer, &served, &interface, engine));
}

/* A generated text is given as a prompt: its tokens have the same log-probabilities, and it continues as before. */
static void given_tokens_have_the_numbers_of_a_text(void)
{
    static int32_t prompt[CONTEXT];
    static Text    whole, again;
    InferModel     infer;
    Engine        *engine;
    open_qwen(&infer, &engine);
    for (int i = 0; i < 6; i++) {
        EngineText text = make_text(i, infer.model->vocab_size, prompt);
        text.ignore_eos = true;
        submit(engine, text, &whole);
        serve(&receiver);
        EXPECT_INT(whole.count, MOST_TOKENS);
        memcpy(prompt + text.prompt_len, whole.ids, MOST_TOKENS * sizeof *prompt);
        size_t given = MOST_TOKENS / 2;
        text.prompt_len += given;
        text.given = given;
        text.max_tokens = MOST_TOKENS - (int64_t)given;
        submit(engine, text, &again);
        serve(&receiver);
        EXPECT_INT(again.num_given, given);
        again.num_given = whole.num_given;
        expect_same("given", i, &whole, &again);
    }
    engine_destroy(engine);
    infer_close(&infer);
}

static void a_prompt_may_be_given_alone(void)
{
    static const int32_t prompt[] = {3, 5, 7, 11};
    static Text          text;
    InferModel           infer;
    Engine              *engine;
    open_qwen(&infer, &engine);
    EngineText wanted = {.prompt = prompt, .prompt_len = 4, .given = 3, .sample = {.top_p = 1, .repetition = 1, .temperature = 1}};
    submit(engine, wanted, &text);
    serve(&receiver);
    EXPECT_INT(text.count, 3);
    EXPECT_STR(text.reason, "length");
    EXPECT_INT(text.ids[2], 11);
    wanted.given = 4;
    submit(engine, wanted, &text);
    serve(&receiver);
    EXPECT(strstr(text.error, "expected fewer"));
    wanted.given = 3;
    wanted.sample.presence = 1;
    submit(engine, wanted, &text);
    serve(&receiver);
    EXPECT(strstr(text.error, "penalties"));
    engine_destroy(engine);
    infer_close(&infer);
}

static void cancelled_texts_end_once_and_free_their_places(void)
{
    enum { MANY = 60 };
    static int32_t prompts[MANY][CONTEXT];
    static Text    texts[MANY];
    uint64_t       handles[MANY];
    InferModel     infer;
    Engine        *engine;
    open_qwen(&infer, &engine);
    for (int i = 0; i < MANY; i++) {
        EngineText text = make_text(i, infer.model->vocab_size, prompts[i]);
        text.ignore_eos = true;
        handles[i] = submit(engine, text, &texts[i]);
        if (i % 3 == 0) engine_cancel(engine, handles[i / 2]);
    }
    engine_cancel(engine, 1u << 30);
    serve(&receiver);
    for (int i = 0; i < MANY; i++) {
        EXPECT_INT(texts[i].num_ends, 1);
        if (strcmp(texts[i].reason, "stopped") != 0) EXPECT_INT(texts[i].count, MOST_TOKENS);
    }
    EngineStats stats = engine_stats(engine);
    EXPECT_INT(stats.running + stats.waiting, 0);
    EXPECT_INT(stats.pages_free, stats.pages);
    engine_destroy(engine);
    infer_close(&infer);
}

static void a_wrong_text_is_refused_alone(void)
{
    static int32_t prompt[CONTEXT];
    static Text    good, bad;
    InferModel     infer;
    Engine        *engine;
    open_qwen(&infer, &engine);
    EngineText text = make_text(3, infer.model->vocab_size, prompt), wrong = text;
    wrong.adapter = 7;
    submit(engine, text, &good);
    submit(engine, wrong, &bad);
    serve(&receiver);
    EXPECT_STR(good.error, "");
    EXPECT(strstr(bad.error, "adapter 7"));
    engine_destroy(engine);
    infer_close(&infer);
}

/* Texts that haven't ended when the engine is destroyed get no end call. */
static void it_may_be_destroyed_at_any_time(void)
{
    static int32_t prompt[CONTEXT];
    static Text    texts[8];
    InferModel     infer;
    Engine        *engine;
    open_qwen(&infer, &engine);
    for (int i = 0; i < 8; i++) submit(engine, make_text(i, infer.model->vocab_size, prompt), &texts[i]);
    usleep(2000);
    engine_stop(engine);
    receiver.num_open = 0;
    receiver.call = NULL;
    engine_destroy(engine);
    infer_close(&infer);
}

TEST_MAIN(TEST(families_are_served_as_they_generate), TEST(given_tokens_have_the_numbers_of_a_text), TEST(a_prompt_may_be_given_alone),
          TEST(cancelled_texts_end_once_and_free_their_places), TEST(a_wrong_text_is_refused_alone), TEST(it_may_be_destroyed_at_any_time))
