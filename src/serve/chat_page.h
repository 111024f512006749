/* The chat page of a server, served at "/". It is one document that requests only /v1/models and /v1/chat/completions, from its own server.
 */
#pragma once

#include "base/strbuf.h"

/* text/html; charset=utf-8. */
Str chat_page(void);

/* Appends the value of the header Content-Security-Policy for the page. It allows only the page's own script and style, named by their
 * hashes, and requests to its own server. */
void chat_page_policy(StrBuf *out);
