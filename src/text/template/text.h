/* Text functions with Python's rules: code points, white space, letter case, character classes. All texts are UTF-8. */
#pragma once

#include "text/tokenizer_unicode.h"

bool cp_is_space(uint32_t cp);
bool cp_is_decimal(uint32_t cp);
bool cp_is_other_number(uint32_t cp); /* category No: superscripts, circled digits, fractions and the like */
bool cp_is_printable(uint32_t cp);

typedef enum CaseMap { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE } CaseMap;
/* Appends the text in another case, with Unicode's full case mappings, as Python's str.upper() and the like do. */
void text_map_case(StrBuf *out, Str text, CaseMap map);

Str text_strip(Str text, bool left, bool right);                  /* strips white space */
Str text_strip_chars(Str text, Str chars, bool left, bool right); /* strips the characters in `chars`; chars.data NULL: white space */
/* Byte offset of the first `needle` that begins at or after `from`; SIZE_MAX: none. */
size_t text_find(Str text, Str needle, size_t from);
size_t text_find_last(Str text, Str needle);
