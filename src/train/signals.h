/* Signals that ask a run to end: SIGINT, SIGTERM, SIGUSR1, SIGHUP. While nothing could be resumed they end the program at once; once
 * training runs the first one is noted for the loop to see, and a second one ends the program at once. The state is the
 * process's, as signals are. */
#pragma once

#include "base/status.h"

void signals_install(void);
void signals_set_resumable(bool resumable); /* from now on the loop looks at signals_pending */
int  signals_pending(void);                 /* the signal's number; 0: none */
void signals_ask(void);                     /* what the first SIGINT does while training; from any thread or handler */
void signals_clear(void);                   /* none is pending */
