/* json_walk allows every byte that may come next, and no other: compared with a recursive descent parser. */
#include "base/json.h"
#include "base/json_walk.h"
#include "base/philox.h"

#include "json_prefix.h"
#include "test.h"

static const JsonLimits narrow = {.depth = 4, .blanks = 3, .digits = 5, .exponent = 2},
                        wide = {.depth = JSON_WALK_DEPTH, .blanks = JSON_WALK_FREE, .digits = JSON_WALK_FREE, .exponent = JSON_WALK_FREE};

static uint32_t draw(uint32_t text, uint32_t at, uint32_t purpose)
{
    return philox4x32(text, at, purpose, 0, 11).v[0];
}

/* Tries all 256 bytes after text[0..len); returns one that is allowed, or -1. */
static int try_bytes(const JsonLimits *limits, const JsonWalk *walk, char *text, size_t len, uint32_t random)
{
    int allowed[256], count = 0;
    for (int byte = 0; byte < 256; byte++) {
        JsonWalk next = *walk;
        text[len] = (char)byte;
        bool     is_allowed = json_walk(&next, limits, (unsigned char)byte);
        PrefixIs is = prefix_of_object(text, len + 1, limits);
        if (is_allowed != (is != PREFIX_BAD) || (is_allowed && json_walk_is_whole(&next) != (is == PREFIX_WHOLE)))
            test_fail(__FILE__, __LINE__, "byte %d behind \"%.*s\": %d, expected %d", byte, (int)len, text, is_allowed, is);
        if (is_allowed) allowed[count++] = byte;
    }
    return count ? allowed[random % (uint32_t)count] : -1;
}

/* Texts that grow by allowed bytes. Inside strings and numbers most bytes are letters of `alphabet`, so that every part of the grammar is
 * reached often. */
static void expect_bytes(const JsonLimits *limits, const char *begin, uint32_t texts, size_t most)
{
    static const char alphabet[] = "{}[]\",:\\u0178dDcCbeE+-.tfn \n\xC3\xA9\xED\x9F\xE2\x82\xF4\x8F\xF0\x90";
    for (uint32_t i = 0; i < texts; i++) {
        char     text[256];
        JsonWalk walk = {0};
        for (size_t len = 0; len < strlen(begin) + most; len++) {
            int byte = try_bytes(limits, &walk, text, len, draw(i, (uint32_t)len, 0));
            if (byte < 0) break;
            for (uint32_t k = 1; k < 20; k++) {
                JsonWalk next = walk;
                char     letter = alphabet[draw(i, (uint32_t)len, k) % (sizeof alphabet - 1)];
                if (letter == '}' && k < 8) continue;
                if (!json_walk(&next, limits, (unsigned char)letter)) continue;
                byte = (unsigned char)letter;
                break;
            }
            if (len < strlen(begin)) byte = (unsigned char)begin[len];
            text[len] = (char)byte;
            EXPECT(json_walk(&walk, limits, (unsigned char)byte));
        }
    }
}

static void a_byte_is_let_through_if_some_text_goes_on_with_it(void)
{
    static const char *const begins[] = {
        "",          "{\"\":[[", "{\"a\":{\"b\":[{", "{\"\\ud83d\\u", "{\"\\uDb",  "{\"\":1234",
        "{\"\":-0.", "{\"\":1e", "{\"\":f",          "{\"\xF4",       "{\"\":[[]",
    };
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        expect_bytes(&narrow, begins[i], TEST_IS_WATCHED ? 5 : 30, 60);
        expect_bytes(&wide, begins[i], TEST_IS_WATCHED ? 2 : 10, 60);
    }
}

static bool walks(const char *text, size_t len, bool *out_whole)
{
    JsonWalk walk = {0};
    for (size_t i = 0; i < len; i++)
        if (!json_walk(&walk, &wide, (unsigned char)text[i])) return false;
    *out_whole = json_walk_is_whole(&walk);
    return true;
}

static void texts_are_what_the_reader_takes(void)
{
    static const char *const texts[] = {
        "{}",
        " { } ",
        "{\"a\":1}",
        "{\"a\":[1,2.5e-3,{\"b\":null}],\"c\":\"\\u00e9\\ud83d\\ude00\xF0\x9F\x98\x80\"}",
        "{\"a\":01}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\"}",
        "{\"a\":tru}",
        "{\"a\":-}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":1e}",
        "{\"a\":\"\t\"}",
        "{\"a\":\"\\x\"}",
        "[1]",
        "1",
        "{\"a\":\"\xC0\x80\"}",
        "{\"a\":\"\xED\xA0\x80\"}",
        "{\"a\":[}",
        "{\"a\":[1}]",
        "{\"\":\"\\\"\"}",
        "{\"a\":-0.0E+10 , \"b\" : false\n}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Arena     arena = {0};
        JsonValue value;
        bool      whole = false, ok = json_parse(&arena, "text", texts[i], strlen(texts[i]), &value) == OK && value.type == JSON_OBJECT;
        bool      walked = walks(texts[i], strlen(texts[i]), &whole) && whole;
        if (strcmp(texts[i], " { } ") == 0) ok = false; /* nothing may follow the object here */
        if (walked != ok) test_fail(__FILE__, __LINE__, "%s: %d, expected %d", texts[i], walked, ok);
        arena_deinit(&arena);
    }
}

TEST_MAIN(TEST(a_byte_is_let_through_if_some_text_goes_on_with_it), TEST(texts_are_what_the_reader_takes))
