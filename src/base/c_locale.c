/* uselocale sets the locale of the calling thread only. The C locale is static: it can't be missing and isn't freed. */
#include "base/c_locale.h"

#include "base/status.h"

#include <stdlib.h>

typedef struct Start {
    void *(*run)(void *);
    void *context;
} Start;

locale_t c_locale_begin(void)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) fatal_out_of_memory(0);
    return uselocale(plain);
}

void c_locale_end(locale_t before)
{
    uselocale(before);
}

static void *begin(void *context)
{
    Start start = *(Start *)context;
    free(context);
    (void)c_locale_begin();
    return start.run(start.context);
}

int c_locale_thread(pthread_t *thread, void *(*run)(void *), void *context)
{
    Start *start = malloc_or_end(sizeof *start);
    *start = (Start){run, context};
    int error = pthread_create(thread, NULL, begin, start);
    if (error) free(start);
    return error;
}
