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
    /* What the template puts around a plain answer, from turns_probe. Empty: nothing, or not known */
    StrBuf         opening;     /* what add_generation_prompt adds */
    StrBuf         header;      /* what stands before the answer's content, behind the question's turn */
    size_t         header_open; /* bytes of the header that open the turn; the rest is trained */
    bool           has_header;  /* else it isn't known */
    StrBuf         stop;        /* what ends an answer, also when more follows */
    StrBuf         tail;        /* what ends the conversation behind that */
    int64_t        now_unix;    /* one clock for all rows */
    bool           forbids_shortcuts, forbids_memo;
    TemplateTraits traits;
};

struct TurnSpan {
    size_t begin_byte, end_byte;
    size_t first, end;  /* tokens */
    bool   lacks_calls; /* the message calls tools, which the template doesn't print */
    bool   is_empty;    /* an answer without content or call: its stop token alone is trained */
};

typedef struct TurnList {
    TurnSpan *spans; /* in the arena, in order */
    uint32_t  count;
    uint32_t  num_unprinted; /* messages whose content isn't in the text */
    bool      is_all;        /* every token is trained */
} TurnList;

/* Without the blanks at its end. */
Str turns_trim_end(Str text);

/* Does a token of its own end turns: a special one, EOS? */
bool turns_is_stop(const Tokenizer *tokenizer, int32_t id);

/* Settles opening, header, stop and tail by rendering plain talks. */
void turns_probe(MaskRules *rules);

/* Settles `traits`. */
void content_probe(MaskRules *rules);

/* What stands behind thinking, which templates leave out of earlier turns on purpose. */
Str content_behind_thinking(Str text);

/* Counts messages whose content, or thinking, isn't in the rendered text. ERR_INVALID when the role is one that templates don't know. */
NODISCARD Status content_look(const Sample *sample, const TemplateTraits *traits, const TemplateParts *whole, Str text,
                              uint32_t *out_unprinted);

/* A row on its way. */
typedef struct TurnContext {
    const MaskRules *rules;
    const Sample    *sample;
    TemplateMemo    *memo;                      /* started with the row's messages; NULL: this row goes without */
    Arena           *arena;                     /* the row's */
    bool            *is_assistant, *is_trained; /* (messages) settled by turns_render, in the arena */
    uint32_t         num_assistants;
} TurnContext;

/* Appends the rendered sample to *text and finds its trained turns. */
NODISCARD Status turns_render(TurnContext *context, StrBuf *text, TurnList *out);
