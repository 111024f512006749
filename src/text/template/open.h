/* Open texts: a conversation is rendered without reading its texts, so that one rendering (a trace) serves all conversations of the same
 * shape (memo.c). An open text (V_OPEN) refers to a text in the conversation, or joins such texts and texts of the template. It may only be
 * printed, joined, stripped, or asked one of five questions (GuardKind), whose answers are recorded as guards. Everything else stops the
 * trace. So the result of a trace depends only on the shape and the guards. */
#pragma once

#include "text/template/render.h"

/* A part of an open text: a literal text of the template, or a text of the conversation (is_open). */
typedef struct OpenPart {
    bool     is_open;
    bool     left, right;     /* is_open: sides that are stripped of the characters in `text` (text.data NULL: of white space) */
    uint32_t message, member; /* is_open: which text of the conversation */
    Str      text;
} OpenPart;

typedef struct OpenText {
    OpenPart *parts;
    uint32_t  count, capacity;
} OpenText;

typedef enum GuardKind { GUARD_EMPTY, GUARD_STARTS, GUARD_ENDS, GUARD_HOLDS, GUARD_EQUALS } GuardKind;
typedef struct Guard {
    GuardKind kind;
    OpenPart  of;
    Str       with;
} Guard;

typedef struct GuardUse {
    Guard guard;
    bool  holds; /* the answer for the traced conversation */
} GuardUse;

/* An open part in the output, where it takes one byte. */
typedef struct OpenPlace {
    size_t   at;
    OpenPart part;
} OpenPlace;

typedef struct OpenTrace {
    const JsonValue *messages; /* the traced conversation, which answers the questions */
    GuardUse        *guards;
    uint32_t         num_guards, guard_capacity;
    OpenPlace       *places;
    uint32_t         num_places, place_capacity;
    uint64_t         num_ops; /* number of operations on open texts */
} OpenTrace;

/* The text that an open part stands for in a conversation. */
Str open_part_text(const JsonValue *messages, const OpenPart *part);
/* The answer to a guard's question in a conversation. */
bool guard_holds(const JsonValue *messages, const Guard *guard);

/* The messages as the template sees them: roles are plain texts, all other texts open. Stops the trace if a member is a list or an
 * object. */
Value open_messages(Render *r, const JsonValue *messages);

/* Operations on values during a trace (r->open is set). open_stop ends the trace with an error. */
_Noreturn void open_stop(Render *r);
bool           open_truth(Render *r, Value v);
bool           open_equal(Render *r, Value a, Value b);
bool           open_contains(Render *r, Value item, Value container);
Value          open_join(Render *r, const Value *items, uint32_t count); /* joins texts, open and plain */
Value          open_binary(Render *r, TokenKind op, Value a, Value b);
void           open_print(Render *r, Value v);
/* Cuts off the output from `start` on and returns it, as an open text if it contains one. */
Value open_capture(Render *r, size_t start);
/* To be called before a filter, test, function or method. True: *out is the result. False: the caller calls the builtin. */
bool open_builtin(Render *r, const Builtin *builtin, Value *self, const Args *args, Value *out);
