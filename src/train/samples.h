/* Texts generated while training, after each evaluation. */
#pragma once

#include "train/trainer.h"

/* train_run with the samples that the run file asks for (generate_samples). If the run trains chat turns, prompts are questions that its
 * chat template renders. */
NODISCARD Status train_with_samples(const Config *config, TrainOutcome *out);
