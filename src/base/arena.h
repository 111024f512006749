/* Arena: a bump allocator for memory that is freed all at once. The memory is zeroed. Allocation never fails (fatal_out_of_memory): arenas
 * hold bookkeeping, not tensors. Not thread-safe. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ArenaChunk ArenaChunk;

typedef struct Arena {
    ArenaChunk *chunk;      /* list of chunks, newest first */
    size_t      used_bytes; /* bytes handed out since init or reset */
} Arena;

/* Frees all memory. There is no init function: a zero-initialised arena is ready to use. */
void arena_deinit(Arena *arena);

/* Frees all allocations. The arena then has a single chunk, with room for as many bytes as were handed out. */
void arena_reset(Arena *arena);

/* Returns 16-byte aligned, zeroed memory. */
void *arena_alloc(Arena *arena, size_t bytes) __attribute__((malloc, returns_nonnull));

char *arena_strdup(Arena *arena, const char *text);
char *arena_strndup(Arena *arena, const char *text, size_t len); /* copies `len` bytes and adds a NUL */
char *arena_printf(Arena *arena, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define arena_new(arena, Type) ((Type *)arena_alloc((arena), sizeof(Type)))
#define arena_array(arena, Type, count) ((Type *)arena_alloc((arena), arena_array_bytes((size_t)(count), sizeof(Type))))

/* Returns count * size; an overflow is fatal. */
size_t arena_array_bytes(size_t count, size_t size);
