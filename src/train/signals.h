/* Signals that ask a run to end: SIGINT, SIGTERM, SIGUSR1, SIGHUP. Before there is anything to resume they end the program at once. During
 * training the first signal is recorded for the loop, and a second one ends the program at once. The state belongs to the process, as
 * signals do. */
#pragma once

#include "base/status.h"

#include <stdint.h>

void signals_install(void);
void signals_set_resumable(bool resumable); /* true: from now on the loop checks signals_pending */
void signals_ask(void);                     /* acts like the first SIGINT during training; from any thread or handler */

/* Returns a number that marks the present. Work that keeps it and passes it to signals_pending isn't stopped by earlier signals. 0 means
 * the start of the process. */
int64_t signals_begin(void);
int     signals_pending(int64_t begun); /* the last signal if any came since `begun`; 0: none */
