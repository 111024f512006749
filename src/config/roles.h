/* Names of roles: as datasets spell them, and as chat templates know them. */
#pragma once

/* "assistant" for "gpt"; case doesn't matter. NULL: the role is unknown, and keeps its name. */
const char *role_known(const char *role);
