/* Starts a run on the nodes of a Ray cluster: this process is replaced by python3 -m surogate.ray. */
#pragma once

#include "cli/cli.h"

#define RAY_FLAG "--ray"

/* Returns only on failure. Python gets the command line, and the settings that the launcher needs. */
NODISCARD Status ray_start(CliArgs *args, const Config *config);
