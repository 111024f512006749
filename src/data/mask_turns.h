/* Which bytes of a rendered conversation are trained turns. */
#pragma once

#include "data/mask.h"

enum { MOST_TOKEN_BYTES = 255 };

struct MaskRules {
    const Tokenizer *tokenizer;
    const Template  *tmpl;
    TrainOn          train_on;
    int32_t          vocab_size;
    uint8_t         *token_bytes;   /* by id, in the same measure for all; small, so that it stays in cache */
    bool             has_raw_bytes; /* token_bytes are the bytes of the text, 1 to 254 each */
    /* What the template puts around a plain answer, from turns_probe, in the arena. Empty: nothing, or not known */
    Arena          arena;
    Str            opening;        /* what add_generation_prompt adds */
    Str            header;         /* what stands before the answer's content, behind the question's turn */
    size_t         header_open;    /* bytes of the header that open the turn; the rest is trained */
    bool           has_header;     /* else it isn't known */
    bool           always_prompts; /* the template prints the generation prompt, whether it is asked to or not */
    bool           never_prompts;  /* it has no generation prompt */
    Str            stops[2];       /* what ends an answer, also when more follows; EOS */
    Str            tail;           /* what ends the conversation behind the first of them */
    Str            ending;         /* all that stands behind the last answer */
    int64_t        now_unix;       /* one clock for all rows */
    bool           forbids_shortcuts, forbids_memo;
    TemplateTraits traits;
    MaskRules     *with_tools; /* of the template for conversations with tools, with the same tokens; NULL: these hold */
};

/* A trained turn, or a piece of one, where the template prints something else inside. */
struct TurnSpan {
    size_t   begin_byte, end_byte;
    size_t   first, end;  /* tokens */
    uint32_t message;     /* NO_MESSAGE: not known */
    bool     goes_on;     /* the turn has another piece */
    bool     lacks_calls; /* the message calls tools, which the template doesn't print */
    bool     is_empty;    /* an answer without content or call: its stop token alone is trained */
};
enum { NO_MESSAGE = 0x7FFFFFFF };

typedef struct TurnList {
    TurnSpan *spans; /* in the arena, in order */
    uint32_t  count, capacity;
    uint32_t  num_unprinted; /* messages whose content isn't in the text */
    bool      is_all;        /* every token is trained, but the spans */
} TurnList;

/* Does a token of its own end turns: a special one, EOS? */
bool turns_is_stop(const Tokenizer *tokenizer, int32_t id);

/* Settles opening, header, stop and tail by rendering plain talks. */
void turns_probe(MaskRules *rules);
/* A conversation as the template renders it, in the rules' arena; both are JSON. tools NULL: none. data NULL: the template refuses it. */
Str turns_probe_text(MaskRules *rules, const char *conversation, const char *tools, bool add_prompt);

/* Settles `traits`. */
void content_probe(MaskRules *rules);

/* What stands behind thinking, which templates leave out of earlier turns on purpose. */
Str content_behind_thinking(Str text);

/* Counts messages whose content, or thinking, isn't in the rendered text. ERR_INVALID when the role is one that templates don't know. */
NODISCARD Status content_look(const Sample *sample, const TemplateTraits *traits, const TemplateParts *whole, Str text,
                              uint32_t *out_unprinted);

/* Where a turn stands. */
typedef struct Turn {
    size_t begin, end;
    bool   begins, ends; /* known */
} Turn;

/* A row on its way. */
typedef struct TurnContext {
    const MaskRules *rules;
    const Sample    *sample;
    TemplateMemo    *memo;                      /* started with the row's messages; NULL: this row goes without */
    Arena           *arena;                     /* the row's */
    bool            *is_assistant, *is_trained; /* (messages) settled by turns_render, in the arena */
    Turn            *turns;                     /* (messages) what a loop of the template printed for each, or {0}; as they */
    uint32_t         num_assistants;
    bool             trains_others; /* a trained message is no answer */
} TurnContext;

/* Bytes of a text. */
typedef struct Region {
    size_t begin, end;
} Region;

/* A rendering; parts are in the row's arena or in `output`. */
typedef struct Rendering {
    TemplateParts  text;
    TemplateOutput output; /* of template_render */
} Rendering;
NODISCARD Status turns_render_first(const TurnContext *context, uint32_t count, bool add_prompt, Rendering *out);
void             rendering_deinit(Rendering *rendering);

void   turns_add(TurnContext *context, TurnList *turns, TurnSpan span);
size_t turns_behind_stop(const MaskRules *rules, Str text, size_t at); /* the place behind the stop that begins at `at`; `at`: none does */
size_t turns_stop_len(const MaskRules *rules, Str turn);               /* of the stop at its end */
bool   turns_is_result(const TurnContext *context, uint32_t i);        /* message i is neither a question, an answer nor a rule */
Str    turns_text(const JsonValue *message, const char *key);          /* of a member that is a text; else empty */
bool   turns_is_nothing(const JsonValue *message, const char *key);    /* no such member, or there is nothing in it */

/* Some bytes of a text by which it is found again however templates print it; empty: it has none. */
Str content_sign(Str text);

/* Where message i stands in the conversation's text: its thinking, content and calls, as rendered. false: this can't be told. */
NODISCARD bool change_find(const TurnContext *context, uint32_t i, Str text, Region *out);

/* Splits the last turn of the list, message i's, where the template prints other messages inside. `is_alone`: the turn was
 * the same before later messages came. */
NODISCARD Status change_keep_own(TurnContext *context, uint32_t i, bool is_alone, Str text, TurnList *turns);

/* Appends the rendered sample to *text and finds its trained turns. */
NODISCARD Status turns_render(TurnContext *context, StrBuf *text, TurnList *out);
