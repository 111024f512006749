/* Text as Python sees it: code points, white space, letter case, character classes. UTF-8 throughout. */
#pragma once

#include "text/tokenizer_unicode.h"

bool cp_is_space(uint32_t cp);
bool cp_is_decimal(uint32_t cp);
bool cp_is_other_number(uint32_t cp); /* beyond decimal digits and letters that count: raised, circled, fractions */
bool cp_is_printable(uint32_t cp);

typedef enum CaseMap { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE } CaseMap;
/* Appends the text mapped with Unicode's full mappings, as Python's str.upper() and so on do. */
void text_map_case(StrBuf *out, Str text, CaseMap map);

Str text_strip(Str text, bool left, bool right);                  /* white space */
Str text_strip_chars(Str text, Str chars, bool left, bool right); /* chars.data NULL: white space */
/* Byte offset of the first `needle` at or after `from`, or SIZE_MAX. */
size_t text_find(Str text, Str needle, size_t from);
size_t text_find_last(Str text, Str needle);
