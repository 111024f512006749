/* Each message is formatted whole and written with one call, so that lines of several threads don't mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static LogLevel current_level = LOG_NORMAL;

void log_set_level(LogLevel level)
{
    __atomic_store_n(&current_level, level, __ATOMIC_RELAXED);
}

static void log_line(const char *prefix, const char *fmt, va_list args)
{
    char    fixed[1024];
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(fixed, sizeof fixed, fmt, args);
    if (n >= 0 && (size_t)n < sizeof fixed) {
        fprintf(stderr, "%s%s\n", prefix, fixed);
    } else if (n >= 0) {
        StrBuf text = { 0 };
        strbuf_reserve(&text, (size_t)n);
        vsnprintf(text.data, (size_t)n + 1, fmt, again);
        fprintf(stderr, "%s%s\n", prefix, text.data);
        strbuf_deinit(&text);
    }
    va_end(again);
}

#define LOG_BODY(cond, prefix)                                                        \
    if (cond) {                                                                       \
        va_list args;                                                                 \
        va_start(args, fmt);                                                          \
        log_line(prefix, fmt, args);                                                  \
        va_end(args);                                                                 \
    }

void log_info(const char *fmt, ...)
{
    LOG_BODY(__atomic_load_n(&current_level, __ATOMIC_RELAXED) >= LOG_NORMAL, "")
}

void log_warn(const char *fmt, ...)
{
    LOG_BODY(true, "warning: ")
}

void log_error(const char *fmt, ...)
{
    LOG_BODY(true, "error: ")
}

void log_debug(const char *fmt, ...)
{
    LOG_BODY(__atomic_load_n(&current_level, __ATOMIC_RELAXED) >= LOG_VERBOSE, "")
}

void log_note(StrBuf *notes, bool is_warning, const char *fmt, ...)
{
    char    line[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (is_warning) log_warn("%s", line);
    else log_info("%s", line);
    if (notes) strbuf_printf(notes, "%s%s\n", is_warning ? "warning: " : "", line);
}

bool log_is_terminal(void)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(STDERR_FILENO) && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
}
