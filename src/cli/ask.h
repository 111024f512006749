/* What the commands that have a model write text share: flags, and one text streamed to stdout. */
#pragma once

#include "cli/cli.h"
#include "infer/answer.h"
#include "infer/infer_model.h"

#include <signal.h>

typedef struct ModelArgs {
    const char *adapter, *qlora, *recipe, *device;
    int64_t     threads;
} ModelArgs;
#define MODEL_DEFAULTS \
    { \
        .device = "auto" \
    }
#define MODEL_FLAGS(m) \
    {"--adapter", FLAG_TEXT, &(m)->adapter, "DIR", "a LoRA adapter over the model"}, \
        {"--qlora", FLAG_TEXT, &(m)->qlora, "FORMAT", \
         "quantise the model's matrices: nf4, nf4_once, fp8, nvfp4 or none (as the adapter was trained)"}, \
        {"--recipe", FLAG_TEXT, &(m)->recipe, "NAME", \
         "products in blocks as in training: bf16, fp8-hybrid or nvfp4 (bf16: in the model's dtype)"}, \
        {"--device", FLAG_TEXT, &(m)->device, "NAME", "auto, cpu or cuda (auto)"}, \
    { \
        "--threads", FLAG_INT, &(m)->threads, "N", "CPU threads; 0: all (0)" \
    }

typedef struct SampleArgs {
    SampleOptions sample;
    int64_t       max_tokens, seed;
    StrList       stops, biases, bans;
    bool          ignore_eos;
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
        {"--frequency-penalty", FLAG_FLOAT, &(s)->sample.frequency, "X", "the same for each time that the text has it, -2 to 2 (0)"}, \
        {"--logit-bias", FLAG_LIST, &(s)->biases, "ID=V", "add V to the score of this token; may be given several times"}, \
        {"--ban", FLAG_LIST, &(s)->bans, "ID", "never choose this token; may be given several times"}, \
        {"--seed", FLAG_INT, &(s)->seed, "N", "of the random choices (0)"}, \
    { \
        "--ignore-eos", FLAG_SWITCH, &(s)->ignore_eos, NULL, "go on after an end-of-text token" \
    }

/* Checks the flags, and makes s->sample of them. */
NODISCARD Status ask_check(CliArgs *args, SampleArgs *s, const ModelArgs *m);
/* infer_open with these flags, and that the tokens which `s` names are there. infer_close frees in every case. */
NODISCARD Status ask_open(InferModel *infer, const char *dir, const ModelArgs *m, const SampleArgs *s);

/* What a decoder of `rows` texts of these flags needs, each of at most `context` tokens. */
DecoderOptions ask_decoder(const SampleArgs *s, int64_t rows, int64_t context);

typedef struct AskStream {
    bool                         prints;  /* the text to stdout, as it comes */
    const volatile sig_atomic_t *stopped; /* ends the text once it isn't 0; NULL: nothing does */
} AskStream;

/* Generates one text, whose prompt, tokens and sampling `request` has. *answer is initialised; *out_end says why it ended. */
NODISCARD Status ask_generate(Decoder *decoder, DecodeRequest *request, const AskStream *stream, Answer *answer, DecodeEnd *out_end);
