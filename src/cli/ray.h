/* Runs on the nodes of a Ray cluster: python3 -m surogate.ray takes over this process. */
#pragma once

#include "cli/cli.h"

#define RAY_FLAG "--ray"

/* Returns only where it fails. Python gets the command line and what of the run file the launcher must know. */
NODISCARD Status ray_start(CliArgs *args, const Config *config);
