/* Preloaded into a program, makes a step of a rank go wrong. It changes the FAIL_AT-th copy to the device of a step's inputs: 8 floats, the
 * first of which is the learning rate FAIL_RATE. FAIL_AS=nan: the second float becomes NaN, and so does the rank's loss. FAIL_AS=hang: the
 * copy never returns. The copy calls no function: the dynamic linker and drivers call memcpy in places where not every function may be
 * called. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLOATS = 8 };

static float fail_rate = -1;
static long  fail_at, num_copies;
static int   hangs;

__attribute__((constructor)) static void read_environment(void)
{
    const char *rate = getenv("FAIL_RATE"), *at = getenv("FAIL_AT"), *as = getenv("FAIL_AS");
    if (!rate || !at || !as) return;
    fail_at = atol(at);
    hangs = strcmp(as, "hang") == 0;
    fail_rate = (float)atof(rate);
}

static void copy(void *to, const void *from, size_t bytes)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    float floats[FLOATS];
    copy(to, from, bytes);
    if (bytes != sizeof floats || fail_rate < 0) return to;
    copy(floats, from, bytes);
    if (floats[0] != fail_rate || __atomic_add_fetch(&num_copies, 1, __ATOMIC_RELAXED) != fail_at) return to;
    while (hangs) pause();
    floats[1] = NAN;
    copy(to, floats, bytes);
    return to;
}
