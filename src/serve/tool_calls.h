/* Tool calls in the text of an answer, as models of different families write them:
 *
 *   Hermes, Qwen   <tool_call>{"name": "f", "arguments": {...}}</tool_call>, as many as there are calls
 *   Mistral        [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
 *                  [TOOL_CALLS]f[ARGS]{...}, or f[CALL_ID]id[ARGS]{...}
 *   Llama 3        {"name": "f", "parameters": {...}}, optionally after <|python_tag|>; several with ; or blanks between
 *
 * Forms with a mark are found anywhere in the text, in its order. Without a mark the whole text has to be calls: objects as Llama 3 writes
 * them, or a list as Mistral does, whose mark a decoder may have left out. There, an object with keys other than name, arguments,
 * parameters, type and id isn't a call. `arguments` and `parameters` mean the same; arguments are an object, or a string that contains the
 * text of one. A call that isn't well formed stays text. Blanks around calls are dropped. */
#pragma once

#include "base/json_walk.h"
#include "base/strbuf.h"

/* Receives text and calls, in the order of the answer. The slices are valid until the function returns. arguments: JSON text of an object,
 * byte by byte as the model wrote it. */
typedef struct ToolSink {
    void *context;
    void (*text)(void *context, Str text);
    void (*call)(void *context, Str name, Str arguments);
} ToolSink;

/* Reads an answer that arrives in pieces. Text that may turn out to be a call is held back. The pieces affect only how the text is divided
 * among calls of ToolSink.text. */
typedef struct ToolReader {
    ToolSink sink;
    StrBuf   held;
    bool     has_begun;  /* the answer no longer can be calls without a mark */
    bool     has_called; /* the last thing reported was a call */
    size_t   next_try;   /* bytes of `held` at which the next try is made */
    size_t   object, walked;
    JsonWalk walk; /* over the bytes held[object..walked) */
} ToolReader;

void tool_reader_init(ToolReader *reader, ToolSink sink);
void tool_reader_deinit(ToolReader *reader);
void tool_reader_push(ToolReader *reader, Str text); /* text: whole characters */
void tool_reader_end(ToolReader *reader);            /* the answer has ended: reports all text that is held back */

/* Tokens that mark calls; some tokenizers have them as special tokens. Their text is kept in answers that are read for calls.
 * NULL-terminated. */
extern const char *const tool_marks[];
