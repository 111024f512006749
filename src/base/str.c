#include "base/str.h"

Str str_trim_end(Str text)
{
    while (text.len > 0 && byte_is_blank(text.data[text.len - 1])) text.len--;
    return text;
}

Str str_trim(Str text)
{
    text = str_trim_end(text);
    while (text.len > 0 && byte_is_blank(text.data[0])) text = str_slice(text, 1, text.len);
    return text;
}

size_t str_common(Str a, Str b)
{
    size_t n = 0, most = a.len < b.len ? a.len : b.len;
    while (n < most && a.data[n] == b.data[n]) n++;
    return n;
}

size_t str_common_end(Str a, Str b)
{
    size_t n = 0, most = a.len < b.len ? a.len : b.len;
    while (n < most && a.data[a.len - 1 - n] == b.data[b.len - 1 - n]) n++;
    return n;
}
