/* The files of an output folder besides checkpoints: whether a run of ours left them there, and their removal. */
#pragma once

#include "base/status.h"

#include <stdint.h>

/* ERR_INVALID when the folder holds something that a run would write over, or a checkpoint-N, and no record of a run of this
 * program: neither run.json nor a whole checkpoint of ours. Absent and empty folders are fine. */
NODISCARD Status output_dir_check(const char *dir);

/* ERR_INVALID when `source`, the folder of a `whose` ("model"), is output_dir, or lies in it where a run writes and removes. */
NODISCARD Status output_dir_check_source(const char *dir, const char *source, const char *whose);

/* Bytes of the files that output_dir_clear removes. */
NODISCARD Status output_dir_bytes(const char *dir, int64_t *out);

/* Removes files of these names that were left half written. */
NODISCARD Status output_dir_clean(const char *dir);

/* Removes the files that a run leaves beside its checkpoints, its log and its record: model, adapter, merged model, tokenizer, report. */
NODISCARD Status output_dir_clear(const char *dir);
