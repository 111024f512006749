/* Rows of a few tokens that are trained beside a frozen embedding or head (PEFT's trainable_token_indices). */
#pragma once

#include "passes/compile.h"

#define TOKENS_TENSOR "%s.token_adapter.trainable_tokens_delta" /* name of the tensor in PEFT's file; %s: the module's path */

/* Whether the parameter is an output head, or an embedding with as many rows as the head. */
bool tokens_is_vocabulary(const Graph *graph, const Param *param);

/* The embedding or head that a list is for; NULL: the model has none. *out_path: its module's path, in the graph's arena. */
Param *tokens_param(const Graph *graph, const LoraTokens *list, const char **out_path);

/* Makes embeddings and linear layers that read these weights read a copy that contains the trained rows. */
NODISCARD Status tokens_replace(Graph *graph, const LoraOptions *lora);
