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
    StrBuf           opening;     /* what add_generation_prompt adds; empty: not known, no shortcut */
};

typedef struct TurnSpan {
    size_t begin_byte, end_byte;
    size_t first, end;    /* tokens */
    bool   ends_at_stop;  /* end_byte is only a bound: the turn ends at its first stop token */
} TurnSpan;

typedef struct TurnList {
    TurnSpan *spans; /* in the arena, in order */
    uint32_t  count;
    bool      is_all; /* every token is trained */
} TurnList;

/* Finds `opening`; leaves it empty when the template doesn't show one. */
void turns_probe(MaskRules *rules);

/* Renders the sample into *text and finds its trained turns. */
NODISCARD Status turns_render(const MaskRules *rules, Arena *arena, const Sample *sample, StrBuf *text, TurnList *out);

/* Moves the span's end to behind its first EOS. ERR_INVALID when there is none in it. */
NODISCARD Status turns_find_stop(const MaskRules *rules, const TokenIds *ids, TurnSpan *span);
