/* Variables that clean up after themselves: what they hold is let go at the end of their block, however it is left. So a function may
 * return early, as TRY does, and leak nothing. They are cleaned up in reverse order, after the value of `return` was computed. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdlib.h>

/* Before a declaration: clean_up gets the variable's address at the end. Initialise the variable at once. */
#define SCOPED(clean_up) __attribute__((cleanup(clean_up)))

#define SCOPED_ARENA(name) SCOPED(arena_deinit) Arena name = {0}
#define SCOPED_STRBUF(name) SCOPED(strbuf_deinit) StrBuf name = {0}
/* Type name[count] on the heap; its content isn't set. */
#define SCOPED_ARRAY(Type, name, count) SCOPED(scoped_free) Type *name = malloc_or_end((size_t)(count) * sizeof(Type))

/* free of a pointer that stands at this address. */
static inline void scoped_free(void *pointer)
{
    free(*(void **)pointer);
}
