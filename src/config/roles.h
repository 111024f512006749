/* Roles in datasets, and as templates know them. */
#pragma once

/* "assistant" of "gpt"; whatever the case. NULL: none that is known, which stays as it is. */
const char *role_known(const char *role);
