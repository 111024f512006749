/* Texts generated while training, after each evaluation. */
#pragma once

#include "train/trainer.h"

/* train_run, with the samples that the run file asks for (generate_samples). Where the run trains turns of a chat, prompts are
 * questions, laid out by its chat template. */
NODISCARD Status train_with_samples(const Config *config, TrainOutcome *out);
