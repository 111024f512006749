/* Tool calls in the text of an answer, as models of different families write them:
 *
 *   Hermes, Qwen   <tool_call>{"name": "f", "arguments": {...}}</tool_call>, as many as there are calls
 *   Mistral        [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
 *                  [TOOL_CALLS]f[ARGS]{...}, perhaps f[CALL_ID]id[ARGS]{...}
 *   Llama 3        {"name": "f", "parameters": {...}}, perhaps behind <|python_tag|>, several with ; or blanks between
 *
 * Forms with a mark are found anywhere in the text, in its order. Without a mark the whole text has to be calls: objects as Llama 3 writes
 * them, or a list as Mistral does, whose mark a decoder may have left out. There, keys beside name, arguments, parameters, type and id make
 * it no call. `arguments` and `parameters` mean the same; arguments are an object, or a string that holds the text of one. A call that
 * isn't well formed stays text. Blanks around calls are dropped. */
#pragma once

#include "base/json_walk.h"
#include "base/strbuf.h"

/* What isn't a call, and calls, in the order of the text. The slices end with the call of the function. arguments: JSON text of an object,
 * byte by byte as the model wrote it. */
typedef struct ToolSink {
    void *context;
    void (*text)(void *context, Str text);
    void (*call)(void *context, Str name, Str arguments);
} ToolSink;

/* Reads an answer that comes in pieces. Text that may turn out to be a call is held back. How the answer is cut changes nothing of what is
 * told but where texts are divided. */
typedef struct ToolReader {
    ToolSink sink;
    StrBuf   held;
    bool     has_begun;  /* the answer isn't calls without a mark */
    bool     has_called; /* what was told last is a call */
    size_t   next_try;   /* bytes of held that are waited for */
    size_t   object, walked;
    JsonWalk walk; /* of held's bytes from `object` up to `walked` */
} ToolReader;

void tool_reader_init(ToolReader *reader, ToolSink sink);
void tool_reader_deinit(ToolReader *reader);
void tool_reader_push(ToolReader *reader, Str text); /* whole characters */
void tool_reader_end(ToolReader *reader);            /* the answer ends: all of it is told */

/* Tokens that mark calls, where a tokenizer has them as special ones: an answer that is read for calls keeps their text. NULL ends them. */
extern const char *const tool_marks[];
