/* New tokens under LoRA whose rows nothing trains. */
#pragma once

#include "config/config.h"
#include "model/hf_model.h"
#include "run/program.h"

/* Says in one line which new tokens (new_tokens, new_special_tokens) stay as they begin in the embedding or the output head, and which key
 * would train them. model: with its new rows; plan: of the run. */
NODISCARD Status frozen_tokens_tell(const Config *config, const HfModel *model, const Plan *plan, StrBuf *notes);
