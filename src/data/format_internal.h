/* Building lists of messages, and what the parts of reading a row share. */
#pragma once

#include "data/format.h"

typedef struct MessageList {
    Arena     *arena;
    JsonValue *items;
    int8_t    *train;
    uint32_t   count, capacity, train_capacity;
} MessageList;

/* {role, content}; returns the message. Keys and roles are borrowed. */
JsonValue *message_push(MessageList *list, const char *role, Str content);

/* Into out->messages and out->train. */
NODISCARD Status message_list_finish(MessageList *list, Sample *out);

/* len 0: there is none. field: of the row, that it is from; NULL: none. */
typedef struct SystemPrompt {
    Str         text;
    const char *field;
} SystemPrompt;

NODISCARD Status format_messages(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                                 const TemplateTraits *tmpl, SystemPrompt system, Sample *out);

/* `key` of the object becomes `value`; its members are copied first where they are the row's. */
void message_set(Arena *arena, JsonValue *message, const char *key, const JsonValue *value);

/* ERR_INVALID: the run file's `key` says a field that the row doesn't have. */
NODISCARD Status format_fail_missing(const char *key, const char *name, const JsonValue *row);

/* Null, or an empty text, list or object. */
bool says_nothing(const JsonValue *value);

/* Adds the object's fields that say something and aren't among `used` (num_used). unused NULL: nothing is added. */
void note_unused(FieldSet *unused, const char *in, const JsonValue *object, const char *const *used, int num_used);

/* The sample was made of this field; NULL: of none. */
void sample_reads(Sample *sample, const char *name);

/* A text that is JSON becomes its value; other values stay. */
const JsonValue *format_parsed(Arena *arena, const JsonValue *value);

/* The list of messages that a field holds, as such or as JSON text; items that are JSON text become objects. NULL: it holds none. */
const JsonValue *format_message_list(Arena *arena, const JsonValue *value);

/* The tools of a row's field, a list or JSON text of one; "functions" stands in for an empty one. Into
 * out->tools, which stays where there are none. */
NODISCARD Status format_tools(Arena *arena, const JsonValue *row, const char *name, const TemplateTraits *tmpl, Sample *out);

/* A message's tool calls as {"type": "function", "function": {...}}, from any of the forms that datasets have. */
NODISCARD Status format_calls(Arena *arena, const RowFormat *format, const TemplateTraits *tmpl, JsonValue *message, const JsonValue *calls,
                              uint32_t number);

/* A message's content: a text, or parts. Thinking among the parts that the template doesn't take there goes to *out_thoughts,
 * len 0: there is none. */
NODISCARD Status format_content(Arena *arena, const RowFormat *format, JsonValue *message, const JsonValue *content,
                                const TemplateTraits *tmpl, uint32_t number, Str *out_thoughts);
