/* New tokens under LoRA whose rows are not trained. */
#pragma once

#include "config/config.h"
#include "model/hf_model.h"
#include "run/program.h"

/* Notes in one line which new tokens (new_tokens, new_special_tokens) keep their initial rows in the embedding or the output head, and
 * which key would train them. model: has rows for the new tokens already; plan: the run's. */
NODISCARD Status frozen_tokens_tell(const Config *config, const HfModel *model, const Plan *plan, StrBuf *notes);
