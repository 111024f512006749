/* What an output folder holds besides checkpoints: whether a run of ours left it there, and its removal. */
#pragma once

#include "base/status.h"

#include <stdint.h>

/* ERR_INVALID when the folder holds something that a run would write over, or a checkpoint-N, and no record of a run of this
 * program: neither run.json nor a whole checkpoint of ours. Absent and empty folders are fine. */
NODISCARD Status output_dir_check(const char *dir);

/* ERR_INVALID when `source`, the folder of a `whose` ("model"), is output_dir, or lies in it where a run writes and removes. */
NODISCARD Status output_dir_check_source(const char *dir, const char *source, const char *whose);

/* Bytes of what output_dir_clear removes. */
NODISCARD Status output_dir_bytes(const char *dir, int64_t *out);

/* Removes what writing them left half done. */
NODISCARD Status output_dir_clean(const char *dir);

/* Removes what a run leaves beside its checkpoints, its log and its record: model, adapter, merged model, tokenizer, report. */
NODISCARD Status output_dir_clear(const char *dir);
