/* The locale of our own calls. A program that uses the library may have set one with a decimal comma: then printf, strtod, strftime and
 * isalpha of this process follow it. Numbers, dates and letters of files, messages and settings are those of C everywhere, so each call
 * into the library and each thread of ours works in C's locale. */
#pragma once

#include <locale.h>
#include <pthread.h>

/* The calling thread works in C's locale, until c_locale_end gets what this returns. */
locale_t c_locale_begin(void);
void     c_locale_end(locale_t before);

/* pthread_create, for a thread in C's locale: a new thread would have the process's. */
int c_locale_thread(pthread_t *thread, void *(*run)(void *), void *context);
