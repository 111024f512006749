/* A run of few steps that nobody asked for: which default makes it so. */
#pragma once

#include "config/config.h"
#include "data/loader.h"

/* One note, of a run of fewer than 20 steps, or whose epoch has less than the rows of a step, that a key which isn't set makes so; nothing
 * where the run file sets them all, or max_steps asks for few. steps: of the run. */
void few_steps_tell(const Config *config, const Loader *train, int64_t steps, StrBuf *notes);
