/* Trained rows of tokens in PEFT's folders: trainable_token_indices of adapter_config.json, and a tensor of rows for each matrix. */
#pragma once

#include "model/peft.h"
#include "run/session.h"

/* Reads trainable_token_indices: a list for the embedding, or lists by module. name: the file's name, for messages. */
NODISCARD Status peft_read_tokens(Arena *arena, const JsonValue *config, const char *name, LoraOptions *lora);
/* Drops the lists of ids without a tensor in the file. ERR_INVALID: a tensor has no list, or there are lists but no tensors. */
NODISCARD Status peft_find_tokens(Arena *arena, const StFile *file, const char *name, LoraOptions *lora);
void             peft_write_tokens(const LoraOptions *lora, StrBuf *out); /* lora->num_tokens must be above 0 */

/* The path of the module whose token rows the tensor holds; NULL: it holds none. */
const char       *peft_tokens_path(Arena *arena, const char *tensor);
const LoraTokens *peft_tokens_of(const LoraOptions *lora, const char *path); /* the list of this module; NULL: none */

/* Checks a tensor of token rows: it must have one row for each id of the list, as long as a row of the matrix, and only finite values. Each
 * id must be that of a row of the matrix. */
NODISCARD Status peft_check_tokens(const StTensor *tensor, const LoraTokens *list, const StTensor *matrix);

/* Writes the token rows of the adapter's file into the session's matrices. */
NODISCARD Status peft_place_tokens(Session *session, const StFile *file, const LoraOptions *lora);
