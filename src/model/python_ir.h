/* Builds the IR of a model in Python (docs/dsl.md): another program, python3, runs the file. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

/* Runs `python3 -m surogate.dsl build FILE` and returns what it prints. SUROGATE_PYTHON names another interpreter. The package beside this
 * program is used before an installed one. The caller has checked that the file may be run. */
NODISCARD Status python_ir_build(Arena *arena, const char *file, Str *out_json);
