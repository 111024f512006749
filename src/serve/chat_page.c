/* The page is page.html, in the program's read-only data. */
#include "serve/chat_page.h"

#include "base/sha256.h"

__asm__(".section .rodata\n.global chat_page_text\n.global chat_page_end\nchat_page_text:\n.incbin \"" SUROGATE_CHAT_PAGE
        "\"\nchat_page_end:\n.byte 0\n.previous\n");
extern const char chat_page_text[], chat_page_end[];

Str chat_page(void)
{
    return (Str){chat_page_text, (size_t)(chat_page_end - chat_page_text)};
}

static void append_base64(StrBuf *out, const uint8_t *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < len; i += 3) {
        size_t   there = len - i < 3 ? len - i : 3;
        uint32_t word = (uint32_t)bytes[i] << 16 | (there > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) | (there > 2 ? bytes[i + 2] : 0);
        for (size_t k = 0; k < 4; k++) strbuf_putc(out, k <= there ? digits[word >> (18 - 6 * k) & 63] : '=');
    }
}

/* Appends 'sha256-...', the hash of the page's text between two tags; the page has each of them once. */
static void append_hash(StrBuf *out, const char *opens, const char *closes)
{
    Str         page = chat_page();
    const char *begin = str_search(page, str_of(opens)), *end;
    uint8_t     hash[SHA256_BYTES];
    Sha256      sha;
    CHECK(begin);
    begin += str_of(opens).len;
    end = str_search((Str){begin, (size_t)(chat_page_end - begin)}, str_of(closes));
    CHECK(end);
    sha256_init(&sha);
    sha256_add(&sha, begin, (size_t)(end - begin));
    sha256_end(&sha, hash);
    strbuf_puts(out, "'sha256-");
    append_base64(out, hash, sizeof hash);
    strbuf_putc(out, '\'');
}

void chat_page_policy(StrBuf *out)
{
    strbuf_puts(out, "default-src 'none'; connect-src 'self'; script-src ");
    append_hash(out, "<script>", "</script>");
    strbuf_puts(out, "; style-src ");
    append_hash(out, "<style>", "</style>");
    strbuf_puts(out, "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}
