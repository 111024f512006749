/* Building lists of messages. */
#pragma once

#include "data/format.h"

typedef struct MessageList {
    Arena     *arena;
    JsonValue *items;
    int8_t    *train;
    uint32_t   count, capacity;
} MessageList;

/* {role, content}; returns the message. Keys and roles are borrowed. */
JsonValue *message_push(MessageList *list, const char *role, Str content);

/* Into out->messages and out->train. */
NODISCARD Status message_list_finish(MessageList *list, Sample *out);

NODISCARD Status format_messages(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                                 const TemplateTraits *tmpl, Str system, Sample *out);
