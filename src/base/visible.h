/* Makes text from files, hubs and models safe to print on a terminal. Control characters could move the cursor, set the title, or imitate
 * our own lines: they are shown as \x1b and the like. Newlines and tabs are kept. */
#pragma once

#include "base/strbuf.h"

enum { VISIBLE_BYTES = 8 }; /* size of one shown character, NUL included */

/* Sets out_text to how the character at text[0..len), len > 0, is shown, or to "" if it needs no change. Returns the character's length in
 * bytes. A byte that isn't UTF-8 counts as one character. */
size_t visible_char(const char *text, size_t len, char out_text[VISIBLE_BYTES]);

void visible_append(StrBuf *out, const char *text, size_t len);
