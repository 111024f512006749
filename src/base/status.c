/* The thread-local message buffer behind FAIL, and the table expanded from status.def. */
#include "base/status.h"

#include "base/json_utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[STATUS_MESSAGE_BYTES];

static const struct {
    const char *name;
    int         exit_code;
} table[] = {
#define STATUS(code, name, exit_code) {name, exit_code},
#include "base/status.def"
#undef STATUS
};

const char *status_name(Status status)
{
    return status < STATUS_COUNT ? table[status].name : "unknown";
}

int status_exit_code(Status status)
{
    return status < STATUS_COUNT ? table[status].exit_code : 1;
}

const char *status_message(void)
{
    return message;
}

void status_clear(void)
{
    message[0] = 0;
}

/* A text cut within a character ("%.60s", or the buffer's end) leaves the first bytes of it: one ? stands for them. */
static void mend_cuts(char *text)
{
    size_t len = strlen(text), to = 0;
    for (size_t at = 0; at < len;) {
        unsigned char lead = (unsigned char)text[at];
        size_t whole = json_utf8_len((const unsigned char *)text + at, len - at), want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2, have = 1;
        while (have < want && ((unsigned char)text[at + have] & 0xC0) == 0x80) have++;
        bool   is_cut = whole == 0 && lead >= 0xC2 && lead <= 0xF4 && have < want;
        size_t taken = is_cut ? have : whole ? whole : 1;
        memmove(text + to, is_cut ? "?" : text + at, is_cut ? 1 : taken);
        to += is_cut ? 1 : taken;
        at += taken;
    }
    text[to] = 0;
}

Status status_fail(Status status, const char *fmt, ...)
{
    /* An argument may be the old message itself: format aside, then copy. */
    char    text[STATUS_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    mend_cuts(text);
    memcpy(message, text, sizeof text);
    return status;
}

Status status_prefix(Status status, const char *fmt, ...)
{
    char    text[STATUS_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof text - 3) {
        size_t room = sizeof text - (size_t)n - 3, len = strnlen(message, room);
        memcpy(text + n, ": ", 2);
        memcpy(text + n + 2, message, len);
        text[(size_t)n + 2 + len] = 0;
    }
    mend_cuts(text);
    memcpy(message, text, sizeof text);
    return status;
}

void check_failed(const char *expr, const char *file, int line)
{
    fprintf(stderr, "surogate: internal error: %s:%d: CHECK(%s) failed%s%s\nThis is a bug in Surogate.\n", file, line, expr,
            message[0] ? "; last message: " : "", message);
    fflush(stderr);
    abort();
}

void fatal_out_of_memory(size_t bytes)
{
    fprintf(stderr, "surogate: out of host memory (%zu bytes asked for)\n", bytes);
    _Exit(status_exit_code(ERR_NO_FIT));
}
