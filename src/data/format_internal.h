/* Building lists of messages, and functions that the files format_*.c share. */
#pragma once

#include "data/format.h"

typedef struct MessageList {
    Arena     *arena;
    JsonValue *items;
    int8_t    *train;
    uint32_t   count, capacity, train_capacity;
} MessageList;

/* Appends {role, content}; returns the message. role and content are borrowed. */
JsonValue *message_push(MessageList *list, const char *role, Str content);

/* Stores the list in out->messages and out->train. */
NODISCARD Status message_list_finish(MessageList *list, Sample *out);

/* text.len 0: no system prompt. field: the row's field that it was read from; NULL: it isn't from the row. */
typedef struct SystemPrompt {
    Str         text;
    const char *field;
} SystemPrompt;

NODISCARD Status format_messages(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                                 const TemplateTraits *tmpl, SystemPrompt system, Sample *out);

/* Sets `key` of the object to `value`. Adding a new key copies the object's members; an old key is overwritten in place, so the members
 * must not be the row's. */
void message_set(Arena *arena, JsonValue *message, const char *key, const JsonValue *value);

/* Fails with ERR_INVALID: the run file's `key` names the field `name`, which the row doesn't have. */
NODISCARD Status format_fail_missing(const char *key, const char *name, const JsonValue *row);

/* NULL, null, or an empty text, list or object. */
bool says_nothing(const JsonValue *value);

/* Adds the object's fields that aren't empty and aren't among `used` (num_used). unused NULL: nothing is added. */
void note_unused(FieldSet *unused, const char *in, const JsonValue *object, const char *const *used, int num_used);

/* Records that the sample was made of this field; NULL: does nothing. */
void sample_reads(Sample *sample, const char *name);

/* Parses a text that is JSON; returns any other value as it is. */
const JsonValue *format_parsed(Arena *arena, const JsonValue *value);

/* The list in a field: a list, or JSON text of one. Items that are JSON text of objects are parsed. NULL: the field holds no list. */
const JsonValue *format_message_list(Arena *arena, const JsonValue *value);

/* Sets out->tools to the tools of the row's field `name`: a list, or JSON text of one. If that field is empty, the field "functions" is
 * read instead. If neither has tools, out->tools stays as it is. */
NODISCARD Status format_tools(Arena *arena, const JsonValue *row, const char *name, const TemplateTraits *tmpl, Sample *out);

/* Sets a message's tool_calls, as {"type": "function", "function": {...}}, from any of the forms that datasets use. number: the message's
 * number, from 1, for errors. */
NODISCARD Status format_calls(Arena *arena, const RowFormat *format, const TemplateTraits *tmpl, JsonValue *message, const JsonValue *calls,
                              uint32_t number);

/* Sets a message's content: a text, or parts. Thinking among the parts that the template doesn't take goes to *out_thoughts
 * (len 0: none). */
NODISCARD Status format_content(Arena *arena, const RowFormat *format, JsonValue *message, const JsonValue *content,
                                const TemplateTraits *tmpl, uint32_t number, Str *out_thoughts);
