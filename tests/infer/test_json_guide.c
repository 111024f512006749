/* Texts guided to be JSON: masks compared with a slow reference, whole texts, and guided rows of a decoder among other rows. */
#include "infer/infer_model.h"
#include "infer/json_guide.h"

#include "json_prefix.h"
#include "texts.h"

/* Fragments that end and begin several states in one token; the other tokens of the vocabulary are bytes. */
static const char *const fragments[] = {
    "{\"",    "\":",          "\": ",         "\",\"", "\", \"",   "\"}",        "\"]",  "}}",       "}}}",
    "]}",     "]]",           "}],",          "[[",    "[{\"",     "{\"a\":{\"", "  ",   "\n    ",   "                    ",
    "00",     "123",          "000000000000", "-1",    "1.",       ".5",         "e+",   "E",        "true",
    "fal",    "se,",          "null}",        "\\u",   "\\ud8",    "d83d\\u",    "\\\"", "\xC3\xA9", "\xE2\x82",
    "\xAC\"", "\xF0\x9F\x98", "\xED\xA0",     "abc",   "[1,[2,[3", "]]]]]]]]",   "}]}]", ": [",      "0,",
    "\t",     "a\"",
};
enum { NUM_FRAGMENTS = sizeof fragments / sizeof *fragments, STOP = 7 };

/* Every byte, and the fragments; one token is the stop id and has no text. */
static JsonTokens *byte_tokens(Str *texts, int64_t *out_count)
{
    static char bytes[256];
    int64_t     count = 0;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        if (count == STOP) texts[count++] = (Str){"", 0};
        texts[count++] = (Str){&bytes[i], 1};
    }
    for (int i = 0; i < NUM_FRAGMENTS; i++) texts[count++] = str_of(fragments[i]);
    *out_count = count;
    return json_tokens_of(texts, count);
}

static bool has_bit(const uint32_t *words, int64_t id)
{
    return words[id / 32] >> (id % 32) & 1;
}

/* Compares each token's bit with the text that the token would give. Returns how many bits are set. */
static int64_t check_mask(const uint32_t *words, const StrBuf *text, const Str *texts, int64_t count)
{
    int64_t set = 0;
    for (int64_t id = 0; id < count; id++) {
        StrBuf longer = {0};
        strbuf_append(&longer, strbuf_cstr(text), text->len);
        strbuf_append(&longer, texts[id].data, texts[id].len);
        bool want = texts[id].len && prefix_of_object(longer.data, longer.len, &json_guide_limits) != PREFIX_BAD;
        if (has_bit(words, id) != want)
            test_fail(__FILE__, __LINE__, "token %lld \"%.*s\" behind \"%s\": %d, expected %d", (long long)id, (int)texts[id].len,
                      texts[id].data, strbuf_cstr(text), has_bit(words, id), want);
        set += has_bit(words, id);
        strbuf_deinit(&longer);
    }
    return set;
}

/* One of the set bits; fragments are preferred to bytes. */
static int32_t draw_allowed(const uint32_t *words, int64_t count, uint32_t text, uint32_t step)
{
    for (uint32_t k = 0;; k++) {
        Philox4 draw = philox4x32(text, step, k, 0, 9);
        int64_t id = draw.v[0] % 4 ? count - 1 - draw.v[1] % NUM_FRAGMENTS : (int64_t)(draw.v[1] % (uint32_t)count);
        if (has_bit(words, id)) return (int32_t)id;
    }
}

static void a_bit_is_set_if_some_text_goes_on_with_the_token(void)
{
    enum { TEXTS = 60, STEPS = 60 };
    static const int32_t stops[] = {STOP, 100000, -1};
    Str                  texts[320];
    int64_t              count;
    JsonTokens          *tokens = byte_tokens(texts, &count);
    int                  whole = 0;
    for (uint32_t i = 0; i < (TEST_IS_WATCHED ? TEXTS / 6 : TEXTS); i++) {
        StrBuf    text = {0};
        JsonGuide guide;
        json_guide_init(&guide, tokens, stops, 3);
        for (uint32_t step = 0; step < STEPS; step++) {
            uint32_t words[16] = {0};
            EXPECT_INT(json_tokens_words(tokens), (count + 31) / 32);
            json_guide_allow(&guide, words);
            if (json_guide_is_whole(&guide)) {
                for (int64_t id = 0; id < count; id++) EXPECT(has_bit(words, id) == (id == STOP));
                EXPECT(!json_guide_push(&guide, STOP));
                whole++;
                break;
            }
            EXPECT(check_mask(words, &text, texts, count) > 0);
            int32_t id = draw_allowed(words, count, i, step);
            EXPECT(json_guide_push(&guide, id));
            strbuf_append(&text, texts[id].data, texts[id].len);
        }
        strbuf_deinit(&text);
    }
    EXPECT(whole > 0);
    json_tokens_destroy(tokens);
}

/* Texts deep in containers of mixed kinds, where similar states share masks; up to the greatest depth. */
static void masks_of_deep_texts_are_right(void)
{
    Str         texts[320];
    int64_t     count;
    JsonTokens *tokens = byte_tokens(texts, &count);
    for (uint32_t i = 0; i < (TEST_IS_WATCHED ? 20 : 200); i++) {
        StrBuf    text = {0};
        JsonGuide guide;
        uint32_t  depth = 1 + philox4x32(i, 0, 0, 0, 3).v[0] % json_guide_limits.depth;
        for (uint32_t d = 0; d < depth; d++) {
            bool is_object = d == 0 || philox4x32(i, d, 1, 0, 3).v[0] % 2;
            strbuf_puts(&text, is_object ? d + 1 < depth ? "{\"\":" : "{\"\":0" : d + 1 < depth ? "[" : "[0");
        }
        json_guide_init(&guide, tokens, NULL, 0);
        for (size_t k = 0; k < text.len; k++) {
            int32_t id = (unsigned char)text.data[k] + ((unsigned char)text.data[k] >= STOP);
            EXPECT(json_guide_push(&guide, id));
        }
        uint32_t words[16] = {0};
        json_guide_allow(&guide, words);
        check_mask(words, &text, texts, count);
        strbuf_deinit(&text);
    }
    json_tokens_destroy(tokens);
}

/* Whether the text may continue: it is the beginning of a lead, or a lead followed by the beginning of an object. */
static bool goes_on(const Str *leads, int num, Str text)
{
    for (int i = 0; i < num; i++) {
        size_t n = text.len < leads[i].len ? text.len : leads[i].len;
        if (memcmp(text.data, leads[i].data, n) != 0) continue;
        if (text.len <= n || prefix_of_object(text.data + n, text.len - n, &json_guide_limits) != PREFIX_BAD) return true;
    }
    return false;
}

/* Tokens may end within a lead, and may reach from a lead into the object. */
static void a_text_begins_with_one_of_the_leads(void)
{
    Str         texts[320];
    int64_t     count;
    JsonTokens *tokens = byte_tokens(texts, &count);
    const Str   leads[] = {str_of("ab\": "), str_of("abc\":"), str_of("x"), str_of("xabc"), str_of("true"), str_of("[1, {\"")};
    int         seen[6] = {0};
    for (uint32_t i = 0; i < 150; i++) {
        int       num = 1 + (int)(i % 6);
        StrBuf    text = {0};
        JsonGuide guide;
        json_guide_init(&guide, tokens, NULL, 0);
        json_guide_lead(&guide, leads, num);
        for (uint32_t step = 0; step < 24; step++) {
            uint32_t words[16] = {0};
            json_guide_allow(&guide, words);
            EXPECT(!json_guide_is_whole(&guide));
            for (int64_t id = 0; id < count; id++) {
                StrBuf    longer = {0};
                JsonGuide next = guide;
                strbuf_append(&longer, text.len ? text.data : "", text.len);
                strbuf_append(&longer, texts[id].data, texts[id].len);
                bool want = texts[id].len && goes_on(leads, num, (Str){longer.data, longer.len});
                EXPECT(has_bit(words, id) == want);
                EXPECT(json_guide_push(&next, (int32_t)id) == want);
                strbuf_deinit(&longer);
            }
            int32_t id = draw_allowed(words, count, i, step);
            EXPECT(json_guide_push(&guide, id));
            strbuf_append(&text, texts[id].data, texts[id].len);
            if (json_guide_is_whole(&guide)) break;
        }
        for (int k = 0; k < num; k++) seen[k] += text.len >= leads[k].len && memcmp(text.data, leads[k].data, leads[k].len) == 0;
        strbuf_deinit(&text);
    }
    EXPECT(seen[0] > 0 && seen[1] > 0 && seen[2] > seen[3] && seen[3] > 0);
    json_tokens_destroy(tokens);
}

static void what_is_no_token_is_refused(void)
{
    Str         texts[320];
    int64_t     count;
    JsonTokens *tokens = byte_tokens(texts, &count);
    JsonGuide   guide;
    json_guide_init(&guide, tokens, NULL, 0);
    EXPECT(!json_guide_push(&guide, -1));
    EXPECT(!json_guide_push(&guide, (int32_t)count));
    EXPECT(!json_guide_push(&guide, STOP));
    json_tokens_destroy(tokens);
}

/* ---- rows of a decoder ---- */

enum { VOCAB = 61, EOS = 2 };

/* Texts of the tiny models' ids. */
static JsonTokens *model_tokens(Str texts[VOCAB])
{
    static const char *const words[] = {
        "{",    "}",    "<s>",  "[", "]",     "\"",     ":",    ",",    "\\", "u",  "d",    "8",    "0",    "1",    "9",    "-",
        ".",    "e",    "E",    "+", "t",     "r",      "true", "null", " ",  "\n", "\xC3", "\xA9", "\xE2", "\x82", "\xAC", "\xF0",
        "\x9F", "\x98", "\x80", "a", "\":",   "\",\"",  "\"}",  "{\"",  "[[", "]]", "}}",   "12",   "l",    "s",    "z",    "  ",
        "/",    "b",    "n",    "f", "false", "\"a\":", "]}",   "},",   "c",  "4",  "7",    "\t",   "D",
    };
    _Static_assert(sizeof words / sizeof *words == VOCAB, "a text of each id");
    for (int i = 0; i < VOCAB; i++) texts[i] = i == EOS ? (Str){"", 0} : str_of(words[i]);
    return json_tokens_of(texts, VOCAB);
}

typedef struct Guided {
    Text      text; /* first member: the callbacks of texts.h take it */
    JsonGuide guide;
} Guided;

static bool take_guided(void *context, const DecodeToken *token)
{
    Guided *guided = context;
    EXPECT(json_guide_push(&guided->guide, token->id));
    EXPECT(isfinite(token->logprob) && isfinite(token->drawn_logprob));
    return take(&guided->text, token);
}

static void allow(void *context, uint32_t *words)
{
    json_guide_allow(&((Guided *)context)->guide, words);
}

static const int32_t eos = EOS;

/* Every second request of texts.h is guided, at a high temperature, and ends at its stop id. */
static DecodeRequest make_guided(Guided *guided, int i, JsonTokens *tokens)
{
    DecodeRequest request = make_request(&guided->text, i, VOCAB);
    request.max_tokens = MOST;
    if (i % 2) return request;
    json_guide_init(&guided->guide, tokens, &eos, 1);
    request.sample.temperature = 1.5;
    request.sample.number = (uint32_t)i;
    request.context = guided;
    request.token = take_guided;
    request.guide = allow;
    request.stops = &eos;
    request.num_stops = 1;
    return request;
}

static void open_guided(InferModel *infer, const DecoderOptions *options, Decoder **out)
{
    EXPECT_OK(infer_open(infer, "tests/fixtures/families/qwen3", NULL, TEXTS_DEVICE, 2));
    infer_want_decoding(infer, options);
    EXPECT_OK(infer_start(infer));
    EXPECT_OK(decoder_create(infer->session, out));
}

static void decode_guided(const DecoderOptions *options, bool one_by_one, JsonTokens *tokens, Guided *texts)
{
    InferModel infer;
    Decoder   *decoder;
    open_guided(&infer, options, &decoder);
    for (int i = 0; i < REQUESTS; i++) {
        DecodeRequest request = make_guided(&texts[i], i, tokens);
        EXPECT_OK(decoder_submit(decoder, &request, NULL));
        if (one_by_one) run_all(decoder);
    }
    run_all(decoder);
    decoder_destroy(decoder);
    infer_close(&infer);
}

/* Each row's text must be a complete object if it ended at its stop id, otherwise the beginning of one. */
static void expect_json(const Guided *guided, const Str *texts)
{
    StrBuf text = {0};
    for (int64_t t = 0; t < guided->text.count; t++) {
        Str token = texts[guided->text.ids[t]];
        strbuf_append(&text, token.data, token.len);
    }
    PrefixIs is = prefix_of_object(strbuf_cstr(&text), text.len, &json_guide_limits);
    EXPECT(guided->text.has_ended && (guided->text.end == DECODE_AT_STOP || guided->text.end == DECODE_AT_LENGTH));
    EXPECT(guided->text.end == DECODE_AT_STOP ? is == PREFIX_WHOLE : is != PREFIX_BAD);
    if (is == PREFIX_BAD) test_fail(__FILE__, __LINE__, "no beginning of an object: %s", strbuf_cstr(&text));
    strbuf_deinit(&text);
}

static void a_guided_text_is_the_same_alone_and_in_company(void)
{
    NEED_DEVICE();
    static const DecoderOptions kinds[] = {
        {.rows = 1, .context = CONTEXT, .prompt = 100, .penalties = true, .guides = true},
        {.rows = 7, .context = CONTEXT, .prompt = 9, .penalties = true, .guides = true},
        {.rows = 16, .context = CONTEXT, .prompt = 33, .pages = 9, .penalties = true, .guides = true},
    };
    Str         texts[VOCAB];
    JsonTokens *tokens = model_tokens(texts);
    Guided     *alone = calloc(REQUESTS, sizeof *alone), *beside = calloc(REQUESTS, sizeof *beside);
    decode_guided(&kinds[0], true, tokens, alone);
    for (int i = 0; i < REQUESTS; i += 2) expect_json(&alone[i], texts);
    for (size_t k = 1; k < sizeof kinds / sizeof *kinds; k++) {
        decode_guided(&kinds[k], false, tokens, beside);
        for (int i = 0; i < REQUESTS; i++) {
            const Text *a = &alone[i].text, *b = &beside[i].text;
            size_t      bytes = (size_t)a->count * 4;
            if (a->count != b->count || a->end != b->end || memcmp(a->ids, b->ids, bytes) != 0 || memcmp(a->drawn, b->drawn, bytes) != 0 ||
                memcmp(a->logprobs, b->logprobs, bytes) != 0)
                test_fail(__FILE__, __LINE__, "decoder %zu: text %d differs", k, i);
        }
    }
    free(alone), free(beside);
    json_tokens_destroy(tokens);
}

/* Each answer of a random model that ends by itself is a complete JSON object. */
static void a_thousand_hot_answers_are_json(void)
{
    NEED_DEVICE();
    enum { ANSWERS = 1000 };
    Str         texts[VOCAB];
    JsonTokens *tokens = model_tokens(texts);
    InferModel  infer;
    Decoder    *decoder;
    int         count = TEST_IS_WATCHED ? ANSWERS / 20 : ANSWERS, whole = 0;
    Guided     *answers = calloc(ANSWERS, sizeof *answers);
    open_guided(&infer, &(DecoderOptions){.rows = 32, .context = CONTEXT, .prompt = 16, .guides = true}, &decoder);
    for (int i = 0; i < count; i++) {
        DecodeRequest request = make_guided(&answers[i], 2 * i, tokens);
        request.prompt_len = 1 + (size_t)i % 8;
        request.max_tokens = CONTEXT - 8;
        request.sample = (SampleOptions){.temperature = 1.5, .top_p = 1, .seed = 1, .number = (uint32_t)i};
        EXPECT_OK(decoder_submit(decoder, &request, NULL));
    }
    run_all(decoder);
    for (int i = 0; i < count; i++) {
        expect_json(&answers[i], texts);
        whole += answers[i].text.end == DECODE_AT_STOP;
    }
    EXPECT(whole > count / 4);
    free(answers);
    decoder_destroy(decoder);
    infer_close(&infer);
    json_tokens_destroy(tokens);
}

static void a_guide_needs_a_decoder_for_it(void)
{
    NEED_DEVICE();
    InferModel  infer;
    Decoder    *decoder;
    Guided      guided = {0};
    Str         texts[VOCAB];
    JsonTokens *tokens = model_tokens(texts);
    open_guided(&infer, &(DecoderOptions){.rows = 1, .context = CONTEXT}, &decoder);
    DecodeRequest request = make_guided(&guided, 0, tokens);
    request.sample.presence = request.sample.frequency = request.sample.repetition = 0;
    EXPECT_FAILS(decoder_submit(decoder, &request, NULL), ERR_INVALID, "opened without memory for guides");
    decoder_destroy(decoder);
    infer_close(&infer);
    json_tokens_destroy(tokens);
}

/* A guide that allows no token ends its row, and the row reports it. */
static void allow_nothing(void *context, uint32_t *words)
{
    (void)context, (void)words;
}

static void a_guide_that_forbids_all_fails_its_row_alone(void)
{
    NEED_DEVICE();
    InferModel    infer;
    Decoder      *decoder;
    Text          texts[2];
    DecodeRequest requests[2];
    open_guided(&infer, &(DecoderOptions){.rows = 2, .context = CONTEXT, .guides = true, .penalties = true}, &decoder);
    for (int i = 0; i < 2; i++) requests[i] = make_request(&texts[i], i, VOCAB);
    requests[0].guide = allow_nothing;
    for (int i = 0; i < 2; i++) EXPECT_OK(decoder_submit(decoder, &requests[i], NULL));
    run_all(decoder);
    EXPECT(texts[0].has_ended && texts[0].end == DECODE_FAILED && texts[0].count == 0);
    EXPECT(texts[1].has_ended && texts[1].end == DECODE_AT_LENGTH);
    decoder_destroy(decoder);
    infer_close(&infer);
}

TEST_MAIN(TEST(a_bit_is_set_if_some_text_goes_on_with_the_token), TEST(masks_of_deep_texts_are_right),
          TEST(a_text_begins_with_one_of_the_leads), TEST(what_is_no_token_is_refused),
          TEST(a_guided_text_is_the_same_alone_and_in_company), TEST(a_thousand_hot_answers_are_json), TEST(a_guide_needs_a_decoder_for_it),
          TEST(a_guide_that_forbids_all_fails_its_row_alone))
