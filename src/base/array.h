/* Arrays that grow. Growing never fails (fatal_out_of_memory). */
#pragma once

#include "base/arena.h"

/* On the heap: returns `items` (NULL at first), moved if necessary, with room for at least `count` items of `size` bytes. *capacity (0 at
 * first) is the number of items there is room for. New items aren't zeroed. */
void               *array_enlarge(void *items, size_t count, size_t *capacity, size_t size); /* requires count > *capacity */
static inline void *array_room(void *items, size_t count, size_t *capacity, size_t size)
{
    return count <= *capacity ? items : array_enlarge(items, count, capacity, size);
}

/* As array_room, but in an arena; the old copy of moved items stays allocated. New items are zeroed. */
void *arena_room(Arena *arena, void *items, size_t count, uint32_t *capacity, size_t size);
