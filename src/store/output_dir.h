/* The files of an output folder besides checkpoints: whether a run of ours left them there, and removing them. */
#pragma once

#include "base/status.h"

#include <stdint.h>

/* ERR_INVALID if the folder holds a checkpoint-N or a file that a run would write over, and no run of this program was there. The sign of
 * such a run is run.json or a whole checkpoint of ours. Absent and empty folders pass. */
NODISCARD Status output_dir_check(const char *dir);

/* ERR_INVALID if the folder `source` is output_dir itself, or is below a name in output_dir that a run writes or removes. whose: what
 * `source` is, for the message ("model"). */
NODISCARD Status output_dir_check_source(const char *dir, const char *source, const char *whose);

/* Bytes of the files that output_dir_clear removes. */
NODISCARD Status output_dir_bytes(const char *dir, int64_t *out);

/* Removes half-written files: the names that a run writes, with .partial at the end. */
NODISCARD Status output_dir_clean(const char *dir);

/* Removes the files that a run leaves beside its checkpoints, its log and its record: model, adapter, merged model, tokenizer, report. */
NODISCARD Status output_dir_clear(const char *dir);
