/* Signals that ask a run to end: SIGINT, SIGTERM, SIGUSR1, SIGHUP. While nothing could be resumed they end the program at once; once
 * training runs the first one is noted for the loop to see, and a second one ends the program at once. The state is the
 * process's, as signals are. */
#pragma once

#include "base/status.h"

#include <stdint.h>

void signals_install(void);
void signals_set_resumable(bool resumable); /* from now on the loop looks at signals_pending */
void signals_ask(void);                     /* what the first SIGINT does while training; from any thread or handler */

/* What begins now isn't stopped by what was asked for before: it keeps this number, and asks with it. 0: since the process began. */
int64_t signals_begin(void);
int     signals_pending(int64_t begun); /* the number of a signal that came since; 0: none */
