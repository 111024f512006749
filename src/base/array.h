/* Arrays that grow. Growing never fails (fatal_out_of_memory). */
#pragma once

#include "base/arena.h"

/* On the heap: `items` (first NULL), moved where it must be, with room for at least `count` of `size` bytes. *capacity (first 0) says
 * for how many there is room. New items aren't zeroed. */
void               *array_enlarge(void *items, size_t count, size_t *capacity, size_t size); /* count > *capacity */
static inline void *array_room(void *items, size_t count, size_t *capacity, size_t size)
{
    return count <= *capacity ? items : array_enlarge(items, count, capacity, size);
}

/* The same in an arena, where items are copied when they move. New items are zeroed. */
void *arena_room(Arena *arena, void *items, size_t count, uint32_t *capacity, size_t size);
