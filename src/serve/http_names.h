/* Names in HTTP: methods and fields by their letters' values, whatever the locale; hosts. */
#pragma once

#include "base/strbuf.h"

bool http_is_token(Str text);                  /* RFC 9110's token: at least one character, none of them a separator */
bool http_equal_fold(Str a, Str b);            /* letters A to Z equal a to z */
Str  http_trim(Str text);                      /* without blanks and tabs at its ends */
bool http_next_item(Str *list, Str *out);      /* takes the next item, trimmed, of a list with commas; false: there is none */
bool http_split_host(Str host, Str *out_name); /* "name", "1.2.3.4", "[::1]", each perhaps with ":port"; false: none of these */
bool http_digits(Str text, uint64_t *out);     /* decimal digits alone, at least one; UINT64_MAX where they are more */
bool http_hex_digits(Str text, uint64_t *out); /* the same of hexadecimal ones */
