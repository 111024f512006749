/* Passes alone: any pass over a graph that is read from its text (docs/ir.md). `surogate ir FILE.ir --pass NAME`, and what tests of
 * passes are made of. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

/* Runs the passes of these names in this order over the graph in `text`, which `file` names in messages, and appends what they make of
 * it to `out`: the graph, then as comments what place and emit put into the program. Lines `# option NAME=VALUE` before the graph are
 * what the passes see as options; the message about an unknown one lists them. ERR_INVALID, ERR_UNSUPPORTED: the text, an
 * option, a name, or a pass that needs what a text doesn't have; ERR_INTERNAL: the pass broke the graph. */
NODISCARD Status passes_run_alone(Arena *arena, const char *file, const char *text, size_t len, const char *const *names, size_t count,
                                  StrBuf *out);
