/* A model in Python (docs/dsl.md) as the IR that it builds: another program, python3, runs the file. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

/* Runs `python3 -m surogate.dsl build FILE` and takes what it prints. SUROGATE_PYTHON names another interpreter. The package beside this
 * program goes before an installed one. The caller has made sure that the file may be run. */
NODISCARD Status python_ir_build(Arena *arena, const char *file, Str *out_json);
