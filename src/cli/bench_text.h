/* surogate bench text DIR. */
#pragma once

#include "cli/cli.h"

NODISCARD Status cli_bench_text(CliArgs *args);
