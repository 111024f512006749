/* The C locale for calls into this library. A program that uses the library may have set a locale with a decimal comma, and printf, strtod,
 * strftime and isalpha would follow it. Files, messages and settings are read and written in the C locale everywhere. So each call into the
 * library, and each thread that it starts, switches to the C locale. */
#pragma once

#include <locale.h>
#include <pthread.h>

/* Switches the calling thread to the C locale; returns the previous locale, to be passed to c_locale_end. */
locale_t c_locale_begin(void);
void     c_locale_end(locale_t before);

/* As pthread_create, but the new thread uses the C locale instead of the process's locale. */
int c_locale_thread(pthread_t *thread, void *(*run)(void *), void *context);
