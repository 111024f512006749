/* Chunks double in size up to 1 MiB; a larger request gets a chunk of its own. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ArenaChunk {
    ArenaChunk *next;
    size_t      size, used; /* bytes of data */
    _Alignas(16) unsigned char data[];
};

enum { ARENA_FIRST_BYTES = 4096, ARENA_MOST_BYTES = 1 << 20 };

size_t arena_array_bytes(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) fatal_out_of_memory(SIZE_MAX);
    return bytes;
}

static ArenaChunk *chunk_new(Arena *arena, size_t bytes)
{
    size_t size = arena->chunk ? arena->chunk->size * 2 : ARENA_FIRST_BYTES;
    if (size > ARENA_MOST_BYTES) size = ARENA_MOST_BYTES;
    if (size < bytes) size = bytes;
    ArenaChunk *chunk = size > SIZE_MAX - sizeof(ArenaChunk) ? NULL : malloc(sizeof(ArenaChunk) + size);
    if (!chunk) fatal_out_of_memory(size);
    chunk->next = arena->chunk;
    chunk->size = size;
    chunk->used = 0;
    arena->chunk = chunk;
    return chunk;
}

/* As arena_alloc, but doesn't zero the memory: arena_printf has already written there. */
static void *take(Arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - 15) fatal_out_of_memory(bytes);
    size_t      want = (bytes + 15) & ~(size_t)15;
    ArenaChunk *chunk = arena->chunk;
    if (!chunk || chunk->size - chunk->used < want) chunk = chunk_new(arena, want);
    void *out = chunk->data + chunk->used;
    chunk->used += want;
    arena->used_bytes += want;
    return out;
}

void *arena_alloc(Arena *arena, size_t bytes)
{
    return memset(take(arena, bytes), 0, bytes);
}

void arena_deinit(Arena *arena)
{
    for (ArenaChunk *chunk = arena->chunk, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    *arena = (Arena){0};
}

void arena_reset(Arena *arena)
{
    size_t      used = arena->used_bytes;
    ArenaChunk *only = arena->chunk && !arena->chunk->next ? arena->chunk : NULL;
    if (!only) {
        arena_deinit(arena);
        if (used) only = chunk_new(arena, used);
    }
    if (only) only->used = 0;
    arena->used_bytes = 0;
}

char *arena_strndup(Arena *arena, const char *text, size_t len)
{
    char *out = take(arena, len + 1);
    if (len) memcpy(out, text, len);
    out[len] = 0;
    return out;
}

char *arena_strdup(Arena *arena, const char *text)
{
    return arena_strndup(arena, text, strlen(text));
}

char *arena_printf(Arena *arena, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    size_t room = arena->chunk ? arena->chunk->size - arena->chunk->used : 0;
    int    n = vsnprintf(room ? (char *)arena->chunk->data + arena->chunk->used : NULL, room, fmt, args);
    va_end(args);
    CHECK(n >= 0);
    char *out = take(arena, (size_t)n + 1); /* if the text fits into the chunk, it was already printed at this address */
    if ((size_t)n >= room) vsnprintf(out, (size_t)n + 1, fmt, again);
    va_end(again);
    return out;
}
