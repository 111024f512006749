/* Answer: the text that a decoder's tokens become, up to the first stop text. Only whole characters are handed out, and nothing that may be
 * the beginning of a stop text. */
#pragma once

#include "config/config.h"
#include "infer/decoder.h"
#include "text/tokenizer.h"

enum { ANSWER_MOST_TOP = 20 }; /* log-probabilities beside that of a token */

typedef struct Answer {
    const Tokenizer *tokenizer; /* NULL: tokens become no text */
    const StrList   *stops;     /* texts */
    const StrList   *shown;     /* special tokens that become text, as marks of tool calls; NULL: none does */
    int              top;       /* log-probabilities of so many tokens are kept beside that of each; -1: none at all */
    TokenStream      stream;
    TokenIds         ids;         /* all tokens, those of a stop text too */
    StrBuf           text;        /* ends before a stop text */
    size_t           settled;     /* bytes of it that are there to stay */
    StrBuf           logprobs;    /* JSON objects, a comma between */
    bool             has_stopped; /* at a stop text */
    Status           status;
} Answer;

/* What follows this prompt. top: at most ANSWER_MOST_TOP. The tokenizer, or NULL without stop texts, and
 * these are borrowed. */
void answer_init(Answer *answer, const Tokenizer *tokenizer, const StrList *stops, int top, const int32_t *prompt, size_t prompt_len);
/* What a decoder of `rows` such answers at once needs, each of at most `context` tokens with its prompt. */
DecoderOptions answer_decoder(const SampleOptions *sample, int top, int64_t rows, int64_t context);

void answer_deinit(Answer *answer);

/* false: it ends here, at a stop text or since answer->status isn't OK. */
bool answer_push(Answer *answer, const DecodeToken *token);
/* After the last token: all of the text is settled. */
void answer_end(Answer *answer);

/* eos, stop, length or context; `stopped` where the caller ended it. */
const char *answer_reason(const Answer *answer, DecodeEnd end);

/* A list: {"id", "logprob"} of each token, and with top > 0 "top", a list of the same of the likeliest tokens. */
void answer_write_logprobs(const Answer *answer, StrBuf *out);
