/* Which bytes of a rendered conversation are trained turns. */
#pragma once

#include "data/mask.h"

enum { MOST_TOKEN_BYTES = 255 };

struct MaskRules {
    const Tokenizer *tokenizer;
    const Template  *tmpl;
    TrainOn          train_on;
    int32_t          vocab_size;
    uint8_t         *token_bytes;   /* bytes of text of each token, by id; 8 bits, so that the table stays in cache */
    bool             has_raw_bytes; /* every token decodes to exactly its token_bytes bytes of text, 1 to 254 */
    /* What the template puts around a plain answer, from turns_probe, in the arena. Empty: nothing, or not known */
    Arena          arena;
    Str            opening;        /* the text that add_generation_prompt adds */
    Str            header;         /* text between the question's turn and the answer's content */
    size_t         header_open;    /* bytes of the header that open the turn; the header's other bytes are trained */
    bool           has_header;     /* false: the header isn't known */
    bool           always_prompts; /* the template prints the generation prompt, whether it is asked to or not */
    bool           never_prompts;  /* the template has no generation prompt */
    Str            stops[2];       /* [0] the text that ends every answer, in the middle of a conversation too; [1] EOS */
    Str            tail;           /* the text that ends the conversation after stops[0] */
    Str            ending;         /* all text after the last answer */
    int64_t        now_unix;       /* the time that templates see, the same for all rows */
    bool           forbids_shortcuts, forbids_memo;
    TemplateTraits traits;
    MaskRules     *with_tools; /* rules of the template for conversations with tools, with the same token_bytes; NULL: the same template */
};

/* A trained turn, or a piece of one if the template prints something else inside it. With TurnList.is_all, the spans are the turns that
 * aren't trained. */
struct TurnSpan {
    size_t   begin_byte, end_byte;
    size_t   first, end;  /* token indices [first, end) */
    uint32_t message;     /* NO_MESSAGE: not known */
    bool     goes_on;     /* another piece of the turn follows */
    bool     lacks_calls; /* the message calls tools, which the template doesn't print */
    bool     is_empty;    /* an answer without content or call: its stop token alone is trained */
};
enum { NO_MESSAGE = 0x7FFFFFFF };

typedef struct TurnList {
    TurnSpan *spans; /* in the arena, in the order of the text */
    uint32_t  count, capacity;
    uint32_t  num_unprinted; /* messages whose content isn't in the text */
    bool      is_all;        /* every token is trained except the spans */
} TurnList;

/* Can the token end a turn: is it special, or EOS? */
bool turns_is_stop(const Tokenizer *tokenizer, int32_t id);

/* Sets opening, header, stops and tail by rendering plain talks. */
void turns_probe(MaskRules *rules);
/* Renders a conversation; `conversation` and `tools` (NULL: none) are JSON texts. The text is in the rules' arena; data NULL: the template
 * refuses the conversation. */
Str turns_probe_text(MaskRules *rules, const char *conversation, const char *tools, bool add_prompt);

/* Sets `traits` by rendering small conversations. */
void content_probe(MaskRules *rules);

/* The text after </think>. Templates leave thinking out of earlier turns on purpose. */
Str content_behind_thinking(Str text);

/* Counts messages whose content, or thinking, isn't in the rendered text. ERR_INVALID: templates don't know the message's role. */
NODISCARD Status content_look(const Sample *sample, const TemplateTraits *traits, const TemplateParts *whole, Str text,
                              uint32_t *out_unprinted);

/* The bytes of a turn in the text. */
typedef struct Turn {
    size_t begin, end;
    bool   begins, ends; /* whether begin and end are known */
} Turn;

/* The state of finding one row's turns. */
typedef struct TurnContext {
    const MaskRules *rules;
    const Sample    *sample;
    TemplateMemo    *memo;                      /* started with the row's messages; NULL: not used for this row */
    Arena           *arena;                     /* the row's arena */
    bool            *is_assistant, *is_trained; /* (messages) set by turns_render, in the arena */
    Turn            *turns; /* (messages) set by turns_render: the text that a loop of the template printed for a message; {0}: none */
    uint32_t         num_assistants;
    bool             trains_others; /* some trained message isn't an answer */
} TurnContext;

/* Bytes of a text. */
typedef struct Region {
    size_t begin, end;
} Region;

/* A rendering; parts are in the row's arena or in `output`. */
typedef struct Rendering {
    TemplateParts  text;
    TemplateOutput output; /* what template_render allocated; empty if the memo made the rendering */
} Rendering;
NODISCARD Status turns_render_first(const TurnContext *context, uint32_t count, bool add_prompt, Rendering *out);
void             rendering_deinit(Rendering *rendering);

void   turns_add(TurnContext *context, TurnList *turns, TurnSpan span);
size_t turns_behind_stop(const MaskRules *rules, Str text, size_t at); /* end of the stop that begins at `at`; `at` if none does */
size_t turns_stop_len(const MaskRules *rules, Str turn);               /* bytes of the stop that ends the turn; 0: no stop ends it */
bool   turns_is_result(const TurnContext *context, uint32_t i); /* is message i a tool's result: not the user's, assistant's or system's? */
Str    turns_text(const JsonValue *message, const char *key);   /* the member `key`, if it is a text; else empty */
bool   turns_is_nothing(const JsonValue *message, const char *key); /* is the member `key` missing, null, blank or an empty list? */

/* A piece of a text that templates always print as it is, used to search for the text; empty: the text has none. */
Str content_sign(Str text);

/* Finds message i in the conversation's text: its thinking, content and calls, as rendered. false: it can't be found. */
NODISCARD bool change_find(const TurnContext *context, uint32_t i, Str text, Region *out);

/* Splits the last turn of the list, message i's, if the template prints other messages inside it. `is_alone`: later messages don't
 * change the turn. */
NODISCARD Status change_keep_own(TurnContext *context, uint32_t i, bool is_alone, Str text, TurnList *turns);

/* Appends the rendered sample to *text and finds its trained turns. */
NODISCARD Status turns_render(TurnContext *context, StrBuf *text, TurnList *out);
