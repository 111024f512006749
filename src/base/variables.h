/* The environment variables of this program: SUROGATE_... */
#pragma once

/* Warns of each SUROGATE_... variable in the environment that the program doesn't read, and names the nearest one that it reads. */
void variables_check(void);
