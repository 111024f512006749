/* surogate bench decoder. */
#pragma once

#include "cli/cli.h"

NODISCARD Status cli_bench_decoder(CliArgs *args);
