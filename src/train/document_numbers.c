/* See document_numbers.h: a hash table with open addressing. */
#include "train/document_numbers.h"

#include "base/hash.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SIZE = 256 };

void document_numbers_clear(DocumentNumbers *numbers)
{
    if (numbers->num) memset(numbers->slots, 0, (size_t)numbers->size * sizeof *numbers->slots);
    numbers->num = 0;
}

void document_numbers_deinit(DocumentNumbers *numbers)
{
    free(numbers->slots);
    *numbers = (DocumentNumbers){0};
}

/* The slot that holds the number, or the free slot where it belongs. */
static DocumentNumber *find(const DocumentNumbers *numbers, int32_t number)
{
    uint64_t mask = (uint64_t)numbers->size - 1, at = hash_bytes(&number, sizeof number, 0) & mask;
    while (numbers->slots[at].times && numbers->slots[at].number != number) at = (at + 1) & mask;
    return &numbers->slots[at];
}

static void grow(DocumentNumbers *numbers)
{
    DocumentNumbers more = {.size = numbers->size ? 2 * numbers->size : FIRST_SIZE, .num = numbers->num};
    more.slots = calloc_or_end((size_t)more.size, sizeof *more.slots);
    for (int64_t i = 0; i < numbers->size; i++)
        if (numbers->slots[i].times) *find(&more, numbers->slots[i].number) = numbers->slots[i];
    free(numbers->slots);
    *numbers = more;
}

int32_t document_numbers_take(DocumentNumbers *numbers, int32_t number)
{
    if (numbers->size < 2 * (numbers->num + 2)) grow(numbers);
    DocumentNumber *own = find(numbers, number), *slot = own;
    while (slot->times) { /* tries the next substitute for this number */
        int32_t of[2] = {number, own->times++};
        int32_t other = (int32_t)(hash_bytes(of, sizeof of, 0) & INT32_MAX);
        slot = find(numbers, other);
        if (!slot->times) slot->number = other;
    }
    if (slot == own) slot->number = number;
    slot->times = 1;
    numbers->num++;
    return slot->number;
}
