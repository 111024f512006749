/* Text of files, hubs and models on its way to a terminal. Control characters there would move the cursor, set the title, or make a line
 * look like one of ours: they are shown as \x1b and the like. Line ends and tabs stay. */
#pragma once

#include "base/strbuf.h"

enum { VISIBLE_BYTES = 8 }; /* of one character, NUL included */

/* *out_text: what the character at text[0..len), len > 0, is shown as, or "" where that is itself. Returns the bytes it has. A byte that is
 * no UTF-8 is one character. */
size_t visible_char(const char *text, size_t len, char out_text[VISIBLE_BYTES]);

void visible_append(StrBuf *out, const char *text, size_t len);
