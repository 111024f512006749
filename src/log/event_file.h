/* An event file of TensorBoard: a record a step and an evaluation, each with scalars by tag. docs/metrics.md lists the tags. Each start of
 * a run makes a file of its own. */
#pragma once

#include "log/metrics.h"

typedef struct EventFile EventFile;

/* Makes `folder`, and in it events.out.tfevents.<seconds>.<host>.<pid>.0. Readers take the files of a folder in the order of their names:
 * this one comes last. first_step: its first record tells readers to drop that step and later ones of the files before it. It is written
 * with the first event, or by event_file_sync. */
NODISCARD Status event_file_open(const char *folder, int64_t first_step, EventFile **out);
void             event_file_close(EventFile *events); /* NULL is fine */

/* On an error the event isn't lost: it is written with the next one, or by event_file_sync. */
NODISCARD Status event_file_step(EventFile *events, const StepMetrics *step);
NODISCARD Status event_file_eval(EventFile *events, const EvalMetrics *eval);

/* All events are on the disk. */
NODISCARD Status event_file_sync(EventFile *events);
