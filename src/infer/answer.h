/* Answer: the text that a decoder's tokens decode to, up to the first stop text. Settled text consists of whole characters and excludes a
 * possible beginning of a stop text. */
#pragma once

#include "config/config.h"
#include "infer/decoder.h"
#include "text/tokenizer.h"

enum { ANSWER_MOST_TOP = 20 }; /* most log-probabilities kept beside each token's own */

typedef struct Answer {
    const Tokenizer *tokenizer; /* NULL: tokens aren't decoded */
    const StrList   *stops;     /* texts that end the answer */
    const StrList   *shown;     /* special tokens whose text is kept, such as marks of tool calls; NULL: none */
    int              top;       /* how many likeliest tokens' log-probabilities are kept beside each token's own; -1: keep none at all */
    TokenStream      stream;
    TokenIds         ids;         /* all tokens, including those of a stop text */
    StrBuf           text;        /* ends before the stop text */
    size_t           settled;     /* bytes of the text that won't change */
    StrBuf           logprobs;    /* JSON objects, separated by commas */
    bool             has_stopped; /* a stop text was found */
    Status           status;
} Answer;

/* Begins the answer to this prompt. tokenizer: NULL only without stop texts. top: at most ANSWER_MOST_TOP. tokenizer and stops are
 * borrowed. */
void answer_init(Answer *answer, const Tokenizer *tokenizer, const StrList *stops, int top, const int32_t *prompt, size_t prompt_len);
/* The options of a decoder for `rows` answers at once, each of at most `context` tokens with its prompt. */
DecoderOptions answer_decoder(const SampleOptions *sample, int top, int64_t rows, int64_t context);

void answer_deinit(Answer *answer);

/* Adds a token. False: the answer ends here, because of a stop text or because answer->status isn't OK. */
bool answer_push(Answer *answer, const DecodeToken *token);
/* Call after the last token: all of the text is settled then. */
void answer_end(Answer *answer);

/* Why the text ended: eos, stop, length or context; `stopped`: the caller ended it, or it failed. */
const char *answer_reason(const Answer *answer, DecodeEnd end);

/* Appends a JSON list with {"id", "logprob"} of each token; with top > 0 also "top", such a list of the likeliest tokens. */
void answer_write_logprobs(const Answer *answer, StrBuf *out);
