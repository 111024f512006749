/* Names in HTTP: methods, field names and hosts. Letters are compared as ASCII, whatever the locale. */
#pragma once

#include "base/strbuf.h"

bool http_is_token(Str text);                  /* RFC 9110's token: at least one character, none of them a separator */
bool http_equal_fold(Str a, Str b);            /* whether a and b are equal if A to Z count as a to z */
Str  http_trim(Str text);                      /* the text without blanks and tabs at its ends */
bool http_next_item(Str *list, Str *out);      /* removes the first item of a list with commas; *out is trimmed; false: the list is empty */
bool http_split_host(Str host, Str *out_name); /* a name, "1.2.3.4" or "[::1]", each with or without ":port"; false: none of these */
bool http_digits(Str text, uint64_t *out);     /* at least one decimal digit and nothing else; UINT64_MAX if the number is larger */
bool http_hex_digits(Str text, uint64_t *out); /* as http_digits, for hexadecimal digits */
