/* An event file of TensorBoard: a record for each step and each evaluation, with scalars by tag. docs/metrics.md lists the tags. Each start
 * of a run makes its own file. */
#pragma once

#include "log/metrics.h"

typedef struct EventFile EventFile;

/* Makes `folder` and the file events.out.tfevents.<seconds>.<host>.<pid>.0 in it. Readers go through a folder's files in name order, and
 * the new file sorts last. Its first record tells readers to drop the steps of earlier files from first_step on. That record is written
 * with the first event, or by event_file_sync. */
NODISCARD Status event_file_open(const char *folder, int64_t first_step, EventFile **out);
void             event_file_close(EventFile *events); /* NULL is fine */

/* After an error the event isn't lost: it is written with the next event, or by event_file_sync. */
NODISCARD Status event_file_step(EventFile *events, const StepMetrics *step);
NODISCARD Status event_file_eval(EventFile *events, const EvalMetrics *eval);

/* Writes all events that wait, and syncs the file to disk. */
NODISCARD Status event_file_sync(EventFile *events);
