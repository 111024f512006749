/* Arena: a bump allocator for things that die together. Memory is zeroed. Allocation never fails
 * (fatal_out_of_memory): arenas hold bookkeeping, not tensors. Not thread-safe. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ArenaChunk ArenaChunk;

typedef struct Arena {
    ArenaChunk *chunk;      /* newest first */
    size_t      used_bytes; /* handed out since init or reset */
} Arena;

/* Zero-initialised is ready to use. */
void arena_deinit(Arena *arena);

/* Starts again, with memory for as much as was handed out. */
void arena_reset(Arena *arena);

/* 16-byte aligned, zeroed. */
void *arena_alloc(Arena *arena, size_t bytes) __attribute__((malloc, returns_nonnull));

char *arena_strdup(Arena *arena, const char *text);
char *arena_strndup(Arena *arena, const char *text, size_t len); /* NUL added */
char *arena_printf(Arena *arena, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define arena_new(arena, Type) ((Type *)arena_alloc((arena), sizeof(Type)))
#define arena_array(arena, Type, count) ((Type *)arena_alloc((arena), arena_array_bytes((size_t)(count), sizeof(Type))))

/* count * size; overflow is fatal. */
size_t arena_array_bytes(size_t count, size_t size);
