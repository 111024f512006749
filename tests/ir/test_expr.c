/* Expressions: values, precedence, and texts that aren't expressions. */
#include "ir/expr.h"

#include "test.h"

/* Looks up a symbol; "odd" is a list of 4. */
static Status lookup(const void *context, const char *name, const double *index, double *out)
{
    const char *known = context;
    const char *at = strstr(known, name);
    if (strcmp(name, "odd") == 0 && index) {
        FAIL_IF(!(*index >= 0 && *index < 4), ERR_INVALID, "odd[%g]", *index);
        *out = 2 * *index + 1;
        return OK;
    }
    FAIL_IF(index || !at || at[strlen(name)] != '=', ERR_INVALID, "unknown symbol %s", name);
    *out = strtod(at + strlen(name) + 1, NULL);
    return OK;
}

static void values(void)
{
    static const struct {
        const char *text;
        double      value;
    } cases[] = {
        {"1", 1},
        {" 2.5e2 ", 250},
        {".5", 0.5},
        {"H", 8},
        {"H * D_2", 128},
        {"1 + 2 * 3", 7},
        {"(1 + 2) * 3", 9},
        {"10 - 4 - 3", 3},
        {"2 * 7 % 4", 2},
        {"7 / 2", 3.5},
        {"-3 + 5", 2},
        {"--3", 3},
        {"!0", 1},
        {"!H", 0},
        {"!!H", 1},
        {"1 < 2", 1},
        {"2 <= 2", 1},
        {"3 > 3", 0},
        {"3 >= 3", 1},
        {"1 == 1", 1},
        {"1 != 1", 0},
        {"1 < 2 == 1", 1},
        {"0 || 2", 1},
        {"0 && 2", 0},
        {"1 || 0 && 0", 1},
        {"1 + 1 == 2 && 3 > 2", 1},
        {"H ? 1 : 2", 1},
        {"0 ? 1 : 0 ? 2 : 3", 3},
        {"1 ? 0 ? 4 : 5 : 6", 5},
        {"H == 8 ? H / 2 : 0", 4},
        {"1 / 0 > 1e300", 1},
        {"((((1))))", 1},
        {"odd[3]", 7},
        {"sqrt(H * 2) / 2 + sqrt (9)", 5},
        {"odd [ H / 8 + 1 ] * 2", 10},
        {"odd[odd[1]]", 7},
        {"H < 4 ? odd[H] : 2", 2},
        {"H > 4 ? 2 : odd[H]", 2},
        {"H < 4 && odd[H]", 0},
        {"(H > 4 || odd[H] == 3) + odd[2]", 6},
        {"0 ? odd[0 ? odd[7] : 9] : odd[1]", 3},
        {"log(1) + floor(-1.5) + ceil(1.25)", 0},
        {"pow(2, H / 2) + min(3, 4) * max(-1, H)", 40},
        {"max ( min(1, 2) , 0 ? 3 : pow(H, 0.5 * 2) )", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double value = -77;
        Status status = expr_eval(cases[i].text, lookup, "H=8 D_2=16", &value);
        if (status != OK || value != cases[i].value)
            test_fail(__FILE__, __LINE__, "%s gives %g (%s), expected %g", cases[i].text, value, status == OK ? "" : status_message(),
                      cases[i].value);
    }
}

static void errors_quote_what_they_mean(void)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "expected a number, name or ( at \"\""},
        {"1 +", "expected a number, name or ( at \"\""},
        {"(1", "expected ) at \"\""},
        {"1 2", "expression \"1 2\": unexpected \"2\""},
        {"1)", "unexpected \")\""},
        {"H ? 1", "expected : at \"\""},
        {"K", "unknown symbol K"},
        {"H & 1", "unexpected \"& 1\""},
        {"1 = 1", "unexpected \"= 1\""},
        {". ", "bad number at \". \""},
        {"a\tb", "unknown symbol a"},
        {"\xff", "expected a number, name or ("},
        {"1 ? : 2", "expected a number, name or ("},
        {"*", "expected a number, name or ("},
        {"odd[4]", "expression \"odd[4]\": odd[4]"},
        {"odd[-1]", "odd[-1]"},
        {"odd[0", "expected ] at \"\""},
        {"odd[]", "expected a number, name or ( at \"]\""},
        {"odd", "unknown symbol odd"},
        {"0 ? odd[K] : 1", "unknown symbol K"},
        {"1 || odd[H", "expected ]"},
        {"sqrt(4", "expected ) at \"\""},
        {"sqrt", "unknown symbol sqrt"},
        {"root(4)", "unknown function root; expected sqrt, log, floor, ceil, round_bf16, pow, min or max"},
        {"pow(4)", "expected , at \")\""},
        {"sqrt(4, 2)", "expected ) at \", 2)\""},
        {"min(4, 2, 1)", "expected ) at \", 1)\""},
    };
    double value;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT_FAILS(expr_eval(cases[i].text, lookup, "H=8", &value), ERR_INVALID, cases[i].message);
}

static void depth_and_length_are_bounded(void)
{
    static const char *const openings[] = {"(", "-", "!", "1?", "1?1:", "odd["};
    char                     text[6000];
    double                   value;
    for (int i = 0; i < 6; i++) {
        size_t n = strlen(openings[i]);
        for (size_t at = 0; at < 1000; at++) memcpy(text + n * at, openings[i], n);
        strcpy(text + n * 1000, "1");
        if (strlen(text) <= 4096)
            EXPECT_FAILS(expr_eval(text, lookup, "", &value), ERR_INVALID, "is nested too deeply");
        else
            EXPECT_FAILS(expr_eval(text, lookup, "", &value), ERR_INVALID, "is longer than 4096 bytes");
    }
    for (size_t at = 0; at < 4094; at += 2) memcpy(text + at, "1+", 2);
    strcpy(text + 4094, "1");
    EXPECT_OK(expr_eval(text, lookup, "", &value)); /* long texts are fine if they aren't deeply nested */
    EXPECT_INT(value, 2048);
    memset(text, 'n', 300);
    text[300] = 0;
    EXPECT_FAILS(expr_eval(text, lookup, "", &value), ERR_INVALID, "unknown symbol nnn");
}

TEST_MAIN(TEST(values), TEST(errors_quote_what_they_mean), TEST(depth_and_length_are_bounded))
