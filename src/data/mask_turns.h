/* Which bytes of a rendered conversation are trained turns. */
#pragma once

#include "data/mask.h"

enum { TOKEN_BYTES_UNKNOWN = 255 };

struct MaskRules {
    const Tokenizer *tokenizer;
    const Template  *tmpl;
    TrainOn          train_on;
    int32_t          vocab_size;
    uint8_t         *token_bytes; /* by id; TOKEN_BYTES_UNKNOWN: can't be told. Small, so that it stays in cache */
    uint8_t         *raw_bytes;   /* the same of tokens that decode to bytes, parts of characters too */
    bool             has_raw_bytes; /* of all tokens, each 1 to 254 */
    StrBuf           opening;     /* what add_generation_prompt adds; empty: not known, no shortcut */
    int64_t          now_unix;    /* one clock for all rows */
    bool             forbids_shortcuts, forbids_memo;
    TemplateTraits   traits;
};

struct TurnSpan {
    size_t begin_byte, end_byte;
    size_t first, end;    /* tokens */
    bool   ends_at_stop;  /* end_byte is only a bound: the turn ends at its first stop token */
    bool   lacks_calls;   /* the message calls tools, which the template doesn't print */
    bool   is_empty;      /* an answer without content or call: its stop token alone is trained */
};

typedef struct TurnList {
    TurnSpan *spans; /* in the arena, in order */
    uint32_t  count;
    uint32_t  num_unprinted; /* messages whose content isn't in the text */
    bool      is_all; /* every token is trained */
} TurnList;

/* Finds `opening`; leaves it empty when the template doesn't show one. */
void turns_probe(MaskRules *rules);

/* Settles `traits`. */
void content_probe(MaskRules *rules);

/* Counts messages whose content, or thinking, isn't in the rendered text. ERR_INVALID when the role is one that templates don't know. */
NODISCARD Status content_look(const Sample *sample, const TemplateTraits *traits, const TemplateParts *whole, Str text, uint32_t *out_unprinted);

/* A row on its way. */
typedef struct TurnContext {
    const MaskRules *rules;
    const Sample    *sample;
    TemplateMemo    *memo;  /* started with the row's messages; NULL: this row goes without */
    Arena           *arena; /* the row's */
    bool            *is_assistant, *is_trained; /* (messages) settled by turns_render, in the arena */
    uint32_t         num_assistants;
} TurnContext;

/* Appends the rendered sample to *text and finds its trained turns. */
NODISCARD Status turns_render(TurnContext *context, StrBuf *text, TurnList *out);

/* Moves the span's end to behind its first EOS. ERR_INVALID when there is none in it. */
NODISCARD Status turns_find_stop(const MaskRules *rules, const TokenIds *ids, TurnSpan *span);
