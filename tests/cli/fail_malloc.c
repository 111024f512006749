/* Preloaded into a program: allocation number FAIL_ALLOC, counted from 1, returns NULL, and so do all later ones. Only calls from the
 * program itself count, not calls from libraries. With FAIL_COUNT=FILE the number of allocations is written to FILE at exit. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t bytes);

static long count, fail_at = -1;

static int fails(const void *caller)
{
    static __thread int inside; /* dladdr may allocate: its allocations don't count */
    Dl_info             info;
    if (inside) return 0;
    inside = 1;
    if (fail_at < 0) fail_at = getenv("FAIL_ALLOC") ? atol(getenv("FAIL_ALLOC")) : 0;
    int own = dladdr(caller, &info) && !strstr(info.dli_fname, ".so");
    int fail = own && __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) >= fail_at && fail_at > 0;
    inside = 0;
    return fail;
}

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t number, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(number, size);
}

void *realloc(void *memory, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, bytes);
}

__attribute__((destructor)) static void tell(void)
{
    FILE *file = getenv("FAIL_COUNT") ? fopen(getenv("FAIL_COUNT"), "w") : NULL;
    if (file) fprintf(file, "%ld\n", count), fclose(file);
}
