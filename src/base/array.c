/* Capacity grows by half on the heap. In an arena it doubles, because the old copy of the items stays allocated there. */
#include "base/array.h"

#include <string.h>

void *array_enlarge(void *items, size_t count, size_t *capacity, size_t size)
{
    size_t more = count + count / 2 + 16;
    items = realloc_or_end(items, arena_array_bytes(more, size));
    *capacity = more;
    return items;
}

void *arena_room(Arena *arena, void *items, size_t count, uint32_t *capacity, size_t size)
{
    if (count <= *capacity) return items;
    CHECK(count <= UINT32_MAX / 2);
    uint32_t wanted = count <= 4 ? 8 : 2 * (uint32_t)count;
    void    *more = arena_alloc(arena, arena_array_bytes(wanted, size));
    if (*capacity) memcpy(more, items, *capacity * size);
    *capacity = wanted;
    return more;
}
