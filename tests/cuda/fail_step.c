/* Preloaded into a program, makes a rank's step go wrong: the FAIL_AT-th copy of what a step is told (8 floats, the first of which is the
 * learning rate FAIL_RATE) on its way to the device. FAIL_AS nan: the second float becomes NaN, and the rank's loss with it; hang: the copy
 * never returns. Built with -fno-builtin: memmove is to stay memmove. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLOATS = 8 };

static long num_copies;

static int is_the_one(const float *floats)
{
    const char *rate = getenv("FAIL_RATE"), *at = getenv("FAIL_AT");
    if (!rate || !at || floats[0] != (float)atof(rate)) return 0;
    return __atomic_add_fetch(&num_copies, 1, __ATOMIC_RELAXED) == atol(at);
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    float       floats[FLOATS];
    const char *as = getenv("FAIL_AS");
    memmove(to, from, bytes);
    if (bytes != sizeof floats) return to;
    memmove(floats, from, bytes);
    if (!is_the_one(floats)) return to;
    while (strcmp(as, "hang") == 0) pause();
    floats[1] = NAN;
    memmove(to, floats, bytes);
    return to;
}
