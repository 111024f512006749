/* The environment variables of this program: SUROGATE_... */
#pragma once

/* A warning for each SUROGATE_... of the environment that nothing here reads, with the nearest name that something does. */
void variables_check(void);
