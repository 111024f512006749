/* Comparison functions for qsort and bsearch. */
#pragma once

#include <stdint.h>
#include <string.h>

/* Compares elements of type `const char *` by the bytes of their texts. */
static inline int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Compares elements of type int64_t. */
static inline int compare_int64s(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
