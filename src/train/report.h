/* OUTPUT/report.html: the run as one self-contained page, from the history of metrics.jsonl, the settings and the plan. */
#pragma once

#include "train/trainer_internal.h"

/* Writes it anew; a failure is warned about and doesn't stop the run. */
void report_update(Trainer *trainer, bool finished);
