/* Texts generated while training, after each evaluation. */
#pragma once

#include "config/config.h"
#include "text/template/template.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

typedef struct Samples {
    const Config     *config;
    Arena             arena;
    Tokenizer        *tokenizer; /* opened at the first use */
    TokenizerScratch *scratch;
    Template         *tmpl; /* NULL: prompts are fed as they stand */
    bool              chat;
} Samples;

/* chat: prompts are questions, laid out by the chat template. */
void samples_init(Samples *samples, const Config *config, bool chat);
void samples_deinit(Samples *samples);

/* TrainHooks.sample; context is a Samples. */
NODISCARD Status samples_generate(void *context, const SampleJob *job);
