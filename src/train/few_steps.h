/* Explains a run that has few steps only because of a default. */
#pragma once

#include "config/config.h"
#include "data/loader.h"

/* Adds a note if a run has fewer than 20 steps, or an epoch has fewer rows than a step, because a key has its default. The note names the
 * key. Nothing is noted if the run file sets all such keys, or if max_steps itself asks for few steps. steps: how many the run has. */
void few_steps_tell(const Config *config, const Loader *train, int64_t steps, StrBuf *notes);
