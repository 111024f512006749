/* Each message is formatted whole and written with one call, so that lines of different threads don't mix. */
#include "base/log.h"

#include "base/visible.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ERASE_LINE "\r\033[K"
#define RED "\033[1;31m"
#define YELLOW "\033[33m"
#define PLAIN "\033[0m"

static bool               has_status; /* the last line of the terminal is a status line */
static _Thread_local bool is_muted;

static bool can_rewrite(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && !(term && strcmp(term, "dumb") == 0);
}

/* Uses a single fprintf, so that a message is one write. */
static void print_line(const char *colour, const char *prefix, const char *text)
{
    const char *erase = __atomic_exchange_n(&has_status, false, __ATOMIC_RELAXED) ? ERASE_LINE : "";
    bool        coloured = colour[0] && log_has_colour(STDERR_FILENO);
    StrBuf      shown = {0};
    visible_append(&shown, text, strlen(text));
    fprintf(stderr, "%s%s%s%s%s\n", erase, coloured ? colour : "", prefix, coloured ? PLAIN : "", strbuf_cstr(&shown));
    strbuf_deinit(&shown);
}

static void log_line(const char *colour, const char *prefix, const char *fmt, va_list args)
{
    char    fixed[1024];
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(fixed, sizeof fixed, fmt, args);
    if (n >= 0 && (size_t)n < sizeof fixed) {
        print_line(colour, prefix, fixed);
    } else if (n >= 0) {
        StrBuf text = {0};
        strbuf_reserve(&text, (size_t)n);
        vsnprintf(text.data, (size_t)n + 1, fmt, again);
        print_line(colour, prefix, text.data);
        strbuf_deinit(&text);
    }
    va_end(again);
}

#define LOG_BODY(colour, prefix) \
    if (!is_muted) { \
        va_list args; \
        va_start(args, fmt); \
        log_line(colour, prefix, fmt, args); \
        va_end(args); \
    }

void log_info(const char *fmt, ...)
{
    LOG_BODY("", "")
}

void log_warn(const char *fmt, ...)
{
    LOG_BODY(YELLOW, "warning: ")
}

void log_error(const char *fmt, ...)
{
    LOG_BODY(RED, "error: ")
}

void log_status(const char *text)
{
    char   line[512];
    StrBuf shown = {0};
    if (is_muted) return;
    visible_append(&shown, text, strlen(text));
    int len = snprintf(line, sizeof line, ERASE_LINE "%.*s", log_columns() - 1, strbuf_cstr(&shown));
    strbuf_deinit(&shown);
    if (len >= (int)sizeof line) len = (int)sizeof line - 1;
    __atomic_store_n(&has_status, text[0] != 0, __ATOMIC_RELAXED);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)len);
    (void)ignored;
}

void log_note(StrBuf *notes, bool is_warning, const char *fmt, ...)
{
    char    line[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (is_warning)
        log_warn("%s", line);
    else
        log_info("%s", line);
    if (notes) strbuf_printf(notes, "%s%s\n", is_warning ? "warning: " : "", line);
}

void log_lines(StrBuf *notes, const char *lines)
{
    for (const char *line = lines; *line;) {
        static const char warning[] = "warning: ";
        bool              is_warning = strncmp(line, warning, sizeof warning - 1) == 0;
        if (is_warning) line += sizeof warning - 1;
        int len = (int)strcspn(line, "\n");
        log_note(notes, is_warning, "%.*s", len, line);
        line += len + (line[len] == '\n');
    }
}

bool log_is_terminal(void)
{
    return can_rewrite(STDERR_FILENO);
}

int log_columns(void)
{
    struct winsize size;
    const char    *text = getenv("COLUMNS");
    int            given = text ? atoi(text) : 0, columns = 0;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
    if (given > 0 && (columns == 0 || given < columns)) columns = given;
    return columns > 0 ? columns : 80;
}

bool log_has_colour(int fd)
{
    const char *no_color = getenv("NO_COLOR");
    return can_rewrite(fd) && !(no_color && *no_color);
}

void log_mute(bool muted)
{
    is_muted = muted;
}
