/* Trained rows of tokens in PEFT's folders: trainable_token_indices of adapter_config.json, and a tensor of rows for each matrix. */
#pragma once

#include "model/peft.h"
#include "run/session.h"

/* Reads trainable_token_indices: a list for the embedding, or lists by module. `name`: of the file, for errors. */
NODISCARD Status peft_read_tokens(Arena *arena, const JsonValue *config, const char *name, LoraOptions *lora);
/* Keeps the lists that the file has tensors of. ERR_INVALID names a tensor without a list, or that there are none. */
NODISCARD Status peft_find_tokens(Arena *arena, const StFile *file, const char *name, LoraOptions *lora);
void             peft_write_tokens(const LoraOptions *lora, StrBuf *out); /* num_tokens isn't 0 */

/* The module whose rows a tensor holds; NULL: it holds none. And the list of them; NULL: there is none. */
const char       *peft_tokens_path(Arena *arena, const char *tensor);
const LoraTokens *peft_tokens_of(const LoraOptions *lora, const char *path);

/* Whether the tensor's rows are as many as the list has and as long as the matrix's, which has them all; whether they are finite. */
NODISCARD Status peft_check_tokens(const StTensor *tensor, const LoraTokens *list, const StTensor *matrix);

/* Writes the rows over those of the session's matrices. */
NODISCARD Status peft_place_tokens(Session *session, const StFile *file, const LoraOptions *lora);
