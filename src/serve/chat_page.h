/* The chat page of a server, served at "/": one document that asks /v1/models and /v1/chat/completions of the server that it came from, and
 * nothing else. */
#pragma once

#include "base/strbuf.h"

/* text/html; charset=utf-8. */
Str chat_page(void);

/* Appends the value of the header Content-Security-Policy that the page goes with: its own script and style, named by their hashes, and
 * requests to its own server are all that a browser allows. */
void chat_page_policy(StrBuf *out);
