/* Rows of a few tokens that are trained beside a frozen embedding or head (PEFT's trainable_token_indices). */
#pragma once

#include "passes/compile.h"

#define TOKENS_TENSOR "%s.token_adapter.trainable_tokens_delta" /* in PEFT's file; the module's path */

/* Whether it is an output head, or an embedding with a row for each of the head's. */
bool tokens_is_vocabulary(const Graph *graph, const Param *param);

/* The embedding or head whose rows a list is of; NULL: the model has none such. *out_path: the module, which lives in graph's arena. */
Param *tokens_param(const Graph *graph, const LoraTokens *list, const char **out_path);

/* Has what reads these weights read them with the trained rows in place. */
NODISCARD Status tokens_replace(Graph *graph, const LoraOptions *lora);
