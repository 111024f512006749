/* The token with which the chat template ends a turn. If it isn't the tokenizer's EOS, a server must stop at both tokens, so the saved
 * generation_config.json names both. */
#pragma once

#include "text/template/template.h"
#include "text/tokenizer.h"

/* *out_id: the special token that ends an assistant's turn; -1: none, or the template refuses a plain question and answer. */
NODISCARD Status stop_token_find(const Tokenizer *tokenizer, const Template *tmpl, int32_t *out_id);

/* Adds the id to eos_token_id of FOLDER/generation_config.json, which is created if absent. eos: the tokenizer's; -1: none. */
NODISCARD Status stop_token_save(int32_t id, int32_t eos, const char *folder);
