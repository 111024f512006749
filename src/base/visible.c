/* Control characters are U+0000 to U+001F, DEL, and U+0080 to U+009F; terminals read U+009B as ESC [. */
#include "base/visible.h"

#include "base/json_utf8.h"

#include <stdio.h>

size_t visible_char(const char *text, size_t len, char out_text[VISIBLE_BYTES])
{
    const unsigned char *at = (const unsigned char *)text;
    size_t               bytes = json_utf8_len(at, len);
    bool                 is_kept = *at == '\n' || *at == '\t';
    out_text[0] = 0;
    if ((*at < 0x20 && !is_kept) || *at == 0x7F || (bytes == 0 && *at < 0xA0))
        snprintf(out_text, VISIBLE_BYTES, "\\x%02x", *at);
    else if (bytes == 2 && *at == 0xC2 && at[1] < 0xA0)
        snprintf(out_text, VISIBLE_BYTES, "\\u%04x", at[1]);
    return bytes ? bytes : 1;
}

void visible_append(StrBuf *out, const char *text, size_t len)
{
    char   shown[VISIBLE_BYTES];
    size_t plain = 0; /* start of the text not yet appended */
    for (size_t at = 0, bytes; at < len; at += bytes) {
        bytes = visible_char(text + at, len - at, shown);
        if (!shown[0]) continue;
        strbuf_append(out, text + plain, at - plain);
        strbuf_puts(out, shown);
        plain = at + bytes;
    }
    if (len > plain) strbuf_append(out, text + plain, len - plain);
}
