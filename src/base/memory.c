/* Small host allocations that end the process if memory runs out (status.h). The CUDA plugin has its own copy, with its own
 * fatal_out_of_memory. */
#include "base/status.h"

#include <stdlib.h>

void *malloc_or_end(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) fatal_out_of_memory(bytes);
    return memory;
}

void *calloc_or_end(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fatal_out_of_memory(count * size);
    return memory;
}

void *realloc_or_end(void *memory, size_t bytes)
{
    memory = realloc(memory, bytes ? bytes : 1);
    if (!memory) fatal_out_of_memory(bytes);
    return memory;
}
