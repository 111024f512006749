/* The page is whole, and its content policy allows only what the page itself contains. */
#include "serve/chat_page.h"

#include "test.h"

static void the_page_is_whole(void)
{
    Str page = chat_page();
    EXPECT(page.len > 4096 && strlen(page.data) == page.len);
    EXPECT(strncmp(page.data, "<!doctype html>", 15) == 0 && strcmp(page.data + page.len - 8, "</html>\n") == 0);
    EXPECT(!strstr(page.data, "http:") || strstr(strstr(page.data, "http:"), "http://www.w3.org/2000/svg"));
    EXPECT(!strstr(page.data, "https:"));
    EXPECT(!strstr(page.data, "innerHTML") && !strstr(page.data, " style="));
}

/* tests/serve/page.t shows that a browser accepts hashes made in this way. */
static void the_policy_names_script_and_style_by_hash(void)
{
    StrBuf policy = {0};
    char   script[64] = "", style[64] = "";
    chat_page_policy(&policy);
    EXPECT_INT(
        sscanf(policy.data,
               "default-src 'none'; connect-src 'self'; script-src 'sha256-%44[A-Za-z0-9+/=]'; style-src 'sha256-%44[A-Za-z0-9+/=]'; ",
               script, style),
        2);
    EXPECT(strlen(script) == 44 && script[43] == '=' && strlen(style) == 44 && strcmp(script, style) != 0);
    EXPECT(!strstr(policy.data, "unsafe"));
    strbuf_deinit(&policy);
}

TEST_MAIN(TEST(the_page_is_whole), TEST(the_policy_names_script_and_style_by_hash))
