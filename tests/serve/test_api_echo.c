/* Offsets of an echoed prompt's tokens in its text, when the decoded tokens differ from the text that was sent. */
#include "serve/api_echo.h"

#include "test.h"
#include "tiny_tokenizer.h"

#include <string.h>

/* A tokenizer like Llama 2's: a blank is prepended, BOS is inserted, and bytes stand for characters outside the vocabulary. */
static const char pieces[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"single_word\":false}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"\xE2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},\"pre_tokenizer\":null,"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":"
    "\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[0],\"tokens\":[\"<s>\"]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},"
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"<s>\":0,\"<0xC3>\":1,\"<0xA9>\":2,\"\xE2\x96\x81\":3,\"a\":4,\"b\":5,"
    "\"\xE2\x96\x81"
    "a\":6},\"merges\":[\"\xE2\x96\x81 a\"]}}";

/* tiny_tokenizer with this normalizer. */
static Tokenizer *tiny_with(const char *normalizer)
{
    static const char none[] = "\"normalizer\":null";
    const char       *at = strstr(tiny_tokenizer, none);
    StrBuf            json = {0};
    Tokenizer        *tokenizer = NULL;
    strbuf_append(&json, tiny_tokenizer, (size_t)(at - tiny_tokenizer));
    strbuf_printf(&json, "\"normalizer\":%s%s", normalizer, at + strlen(none));
    EXPECT_OK(tokenizer_parse("tiny", json.data, json.len, &tokenizer));
    strbuf_deinit(&json);
    return tokenizer;
}

static Tokenizer *of_pieces(void)
{
    Tokenizer *tokenizer = NULL;
    EXPECT_OK(tokenizer_parse("pieces", pieces, strlen(pieces), &tokenizer));
    return tokenizer;
}

/* `text` NULL: the prompt was sent as ids. */
static void expect(const Tokenizer *t, const int32_t *ids, size_t num, const char *text, const char *echo, const char *offsets)
{
    Arena     arena = {0};
    StrBuf    got = {0};
    ApiPrompt prompt = {.num = num, .text = text ? str_of(text) : (Str){0}};
    api_echo(&arena, t, ids, &prompt);
    EXPECT_STR(prompt.echo.data, echo);
    for (size_t i = 0; i < num; i++) strbuf_printf(&got, "%s%u", i ? " " : "", prompt.offsets[i]);
    if (strcmp(strbuf_cstr(&got), offsets) != 0) test_fail(__FILE__, __LINE__, "%s: expected %s, not %s", echo, offsets, got.data);
    strbuf_deinit(&got);
    arena_deinit(&arena);
}

static void expect_text(const Tokenizer *t, const char *text, const char *offsets)
{
    TokenizerScratch *scratch = tokenizer_scratch_create(t);
    TokenIds          ids = {0};
    EXPECT_OK(tokenizer_encode(t, scratch, text, strlen(text), (EncodeOptions){.add_special = true}, &ids));
    expect(t, ids.data, ids.len, text, text, offsets);
    token_ids_deinit(&ids);
    tokenizer_scratch_destroy(scratch);
}

static void characters_that_are_composed(void)
{
    Tokenizer *t = tiny_with("{\"type\":\"NFC\"}");
    expect_text(t,
                "ae\xCC\x81"
                "b",
                "0 1 1 3");
    expect_text(t,
                "e\xCC\x81"
                "e\xCC\x81\xC3\xA9"
                "b",
                "0 0 2 2 4 4 5");
    tokenizer_destroy(t);
}

static void letters_of_another_case(void)
{
    Tokenizer *t = tiny_with("{\"type\":\"Lowercase\"}");
    expect_text(t, "ABcDefGHIJ", "0 1 2 3 4 5 6 7 8 9");
    tokenizer_destroy(t);
}

static void special_tokens_count_where_the_text_has_them(void)
{
    static const int32_t ids[] = {TINY_END, 0, TINY_END, 1};
    Tokenizer           *t = tiny_with("null");
    expect_text(t, "a<end>b", "0 1 6");
    expect(t, ids, 4, "a<end>b", "a<end>b", "0 0 1 6");
    expect(t, ids, 4, "<end>a<end>b", "<end>a<end>b", "0 5 6 11");
    expect(t, ids, 4, NULL, "<end>a<end>b", "0 5 6 11");
    tokenizer_destroy(t);
}

static void bytes_that_are_replaced(void)
{
    static const int32_t ids[] = {TINY_E_SECOND, TINY_E_FIRST, 0, TINY_E_FIRST, TINY_E_SECOND, TINY_E_FIRST, TINY_E_FIRST, 1, TINY_E_FIRST};
    Tokenizer           *t = tiny_with("null");
    expect(t, ids, 9, NULL,
           "\xEF\xBF\xBD\xEF\xBF\xBD"
           "a\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD"
           "b\xEF\xBF\xBD",
           "0 1 2 3 3 4 5 6 7");
    tokenizer_destroy(t);
}

static void blanks_that_are_put_in_front(void)
{
    static const int32_t ids[] = {6, 3, 5};
    Tokenizer           *t = of_pieces();
    expect_text(t, "a b", "0 0 1 2");
    expect_text(t, "b a", "0 0 0 1");
    expect_text(t, "  a", "0 0 0 1");
    expect_text(t,
                "\xC3\xA9"
                "b",
                "0 0 0 0 1");
    expect_text(t, "a<s>b", "0 0 1 4 4");
    expect(t, ids, 3, NULL, "a b", "0 1 2");
    tokenizer_destroy(t);
}

TEST_MAIN(TEST(characters_that_are_composed), TEST(letters_of_another_case), TEST(special_tokens_count_where_the_text_has_them),
          TEST(bytes_that_are_replaced), TEST(blanks_that_are_put_in_front))
