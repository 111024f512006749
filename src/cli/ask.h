/* Shared by the commands in which a model writes text: the flags of sampling, and one text streamed to stdout. */
#pragma once

#include "cli/model_flags.h"
#include "infer/answer.h"

#include <signal.h>

typedef struct SampleArgs {
    SampleOptions sample;
    int64_t       max_tokens, seed;
    const char   *kv;
    StrList       stops, biases, bans;
    bool          ignore_eos, split_k;
} SampleArgs;
#define SAMPLE_DEFAULTS(most_tokens) \
    { \
        .max_tokens = most_tokens, .sample = {.temperature = 0.8, .top_p = 1, .repetition = 1 } \
    }
#define SAMPLE_FLAGS(s, most_tokens) \
    {"--stop", FLAG_LIST, &(s)->stops, "TEXT", "stop when the model writes this (it isn't printed); may be given several times"}, \
        {"--max-tokens", FLAG_INT, &(s)->max_tokens, "N", "most tokens to generate (" most_tokens ")"}, \
        {"--temperature", FLAG_FLOAT, &(s)->sample.temperature, "T", "0: always the likeliest token (0.8)"}, \
        {"--top-k", FLAG_INT, &(s)->sample.top_k, "N", "choose among the N likeliest tokens; 0: all (0)"}, \
        {"--top-p", FLAG_FLOAT, &(s)->sample.top_p, "P", "choose among the likeliest tokens that together have probability P (1)"}, \
        {"--min-p", FLAG_FLOAT, &(s)->sample.min_p, "P", \
         "choose among the tokens that have at least P times the probability of the likeliest (0)"}, \
        {"--repetition-penalty", FLAG_FLOAT, &(s)->sample.repetition, "R", \
         "above 1: tokens of the prompt and the text become less likely; 1: none (1)"}, \
        {"--presence-penalty", FLAG_FLOAT, &(s)->sample.presence, "X", \
         "taken from the score of each token that the text has already, -2 to 2 (0)"}, \
        {"--frequency-penalty", FLAG_FLOAT, &(s)->sample.frequency, "X", \
         "taken from a token's score for each time that the text has it, -2 to 2 (0)"}, \
        {"--logit-bias", FLAG_LIST, &(s)->biases, "ID=V", "add V to the score of this token; may be given several times"}, \
        {"--ban", FLAG_LIST, &(s)->bans, "ID", "never choose this token; may be given several times"}, \
        {"--seed", FLAG_INT, &(s)->seed, "N", "of the random choices (0)"}, KV_FLAG(&(s)->kv), SPLIT_K_FLAG(&(s)->split_k), \
    { \
        "--ignore-eos", FLAG_SWITCH, &(s)->ignore_eos, NULL, "go on after an end-of-text token" \
    }

/* Checks the flags, and fills in s->sample from them. */
NODISCARD Status ask_check(CliArgs *args, SampleArgs *s);
/* cli_open_model; also checks that the token ids in `s` exist. infer_close frees in every case. */
NODISCARD Status ask_open(InferModel *infer, const char *dir, const ModelArgs *m, const SampleArgs *s);

typedef struct AskStream {
    bool                         prints;  /* prints the text to stdout as it is generated */
    const volatile sig_atomic_t *stopped; /* once *stopped isn't 0, the text ends; NULL: not used */
} AskStream;

/* Generates one text for the prompt and sampling in `request`, whose callbacks are set here. answer_init must have been called for *answer;
 * *out_end says why it ended. */
NODISCARD Status ask_generate(Decoder *decoder, DecodeRequest *request, const AskStream *stream, Answer *answer, DecodeEnd *out_end);
