/* Shared by pt and sft, which run the same trainer. */
#pragma once

#include "cli/cli.h"

/* Trains as the run file among the arguments says. */
NODISCARD Status cli_train(CliArgs *args);
