/* Passes alone: runs any pass over a graph that is read from its text (docs/ir.md), for `surogate ir FILE.ir --pass NAME` and for the tests
 * of passes. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

/* Runs the named passes in this order over the graph in `text`, which messages call `file`. Appends the graph to `out`, then as comments
 * what place and emit put into the program. Lines `# option NAME=VALUE` before the graph set options; the message about an unknown one
 * lists all. ERR_INVALID, ERR_UNSUPPORTED: a fault in the text, an option or a name, or a pass that needs something no text contains;
 * ERR_INTERNAL: a pass broke the graph. */
NODISCARD Status passes_run_alone(Arena *arena, const char *file, const char *text, size_t len, const char *const *names, size_t count,
                                  StrBuf *out);
