/* Variables with automatic cleanup: their resources are freed at the end of their block, however it is left. So a function may return
 * early, as TRY does, and leak nothing. Cleanup runs in reverse order of declaration, after the value of `return` was computed. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdlib.h>

/* Put it before a declaration: clean_up gets the address of the variable. The variable must be initialised in its declaration. */
#define SCOPED(clean_up) __attribute__((cleanup(clean_up)))

#define SCOPED_ARENA(name) SCOPED(arena_deinit) Arena name = {0}
#define SCOPED_STRBUF(name) SCOPED(strbuf_deinit) StrBuf name = {0}
/* Type name[count] on the heap, uninitialised. */
#define SCOPED_ARRAY(Type, name, count) SCOPED(scoped_free) Type *name = malloc_or_end((size_t)(count) * sizeof(Type))

/* Frees the pointer stored at this address. */
static inline void scoped_free(void *pointer)
{
    free(*(void **)pointer);
}
