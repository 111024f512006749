/* Open texts: rendering a conversation without looking at its texts, so that one rendering serves all conversations of a
 * shape (memo.c). An open text (V_OPEN) is a place in the conversation, or a join of such places and of texts of
 * the template. What may be done with one is listed here: print, join, strip, ask one of five questions, whose answers are
 * kept as guards. Everything else stops the trace, so that what a trace gives follows from shape and guards alone. */
#pragma once

#include "text/template/render.h"

/* A part of a text: the template's own, or an open one. */
typedef struct OpenPart {
    bool     is_open;
    bool     left, right;     /* stripped of `text`'s characters; text.data NULL: of white space */
    uint32_t message, member; /* where an open one stands */
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
    bool  holds; /* in the conversation that was traced */
} GuardUse;

/* An open text in the output, where it takes one byte. */
typedef struct OpenPlace {
    size_t   at;
    OpenPart part;
} OpenPlace;

typedef struct OpenTrace {
    const JsonValue *messages; /* the conversation at hand: it answers */
    GuardUse        *guards;
    uint32_t         num_guards, guard_capacity;
    OpenPlace       *places;
    uint32_t         num_places, place_capacity;
    uint64_t         num_ops; /* on open texts */
} OpenTrace;

/* The text of an open part in a conversation, and whether a guard holds there. */
Str  open_part_text(const JsonValue *messages, const OpenPart *part);
bool guard_holds(const JsonValue *messages, const Guard *guard);

/* Messages as the template sees them: roles as they are, other texts open. Stops when they hold more than texts. */
Value open_messages(Render *r, const JsonValue *messages);

/* What values do in a trace; r->open is set. */
_Noreturn void open_stop(Render *r);
bool           open_truth(Render *r, Value v);
bool           open_equal(Render *r, Value a, Value b);
bool           open_contains(Render *r, Value item, Value container);
Value          open_join(Render *r, const Value *items, uint32_t count); /* of texts */
Value          open_binary(Render *r, TokenKind op, Value a, Value b);
void           open_print(Render *r, Value v);
/* The output from `start` on, cut off: open when there is something open in it. */
Value open_capture(Render *r, size_t start);
/* Before a filter, test, function or method is called: true when it was answered here. */
bool open_builtin(Render *r, const Builtin *builtin, Value *self, const Args *args, Value *out);
