/* The thread-local message buffer behind FAIL, and the exit codes of status.def. */
#include "base/status.h"

#include "base/json_utf8.h"
#include "base/visible.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[STATUS_MESSAGE_BYTES];

static const int exit_codes[] = {
#define STATUS(code, exit_code) exit_code,
#include "base/status.def"
#undef STATUS
};

int status_exit_code(Status status)
{
    return status < STATUS_COUNT ? exit_codes[status] : 1;
}

const char *status_message(void)
{
    return message;
}

void status_clear(void)
{
    message[0] = 0;
}

/* Stores `text` in `message`. If formatting cut a multi-byte character ("%.60s", or the end of the buffer), its remaining bytes become one
 * "?". Control characters are made visible, because messages may quote files and go to terminals. */
static void keep(const char *text)
{
    size_t len = strlen(text), to = 0;
    for (size_t at = 0; at < len;) {
        unsigned char lead = (unsigned char)text[at];
        size_t whole = json_utf8_len((const unsigned char *)text + at, len - at), want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2, have = 1;
        while (have < want && ((unsigned char)text[at + have] & 0xC0) == 0x80) have++;
        bool   is_cut = whole == 0 && lead >= 0xC2 && lead <= 0xF4 && have < want;
        size_t taken = is_cut ? have : whole ? whole : 1;
        char   shown[VISIBLE_BYTES] = "?";
        if (whole) (void)visible_char(text + at, len - at, shown);
        const char *from = is_cut || (whole && shown[0]) ? shown : text + at;
        size_t      bytes = from == shown ? strlen(shown) : taken;
        if (to + bytes >= sizeof message) break;
        memcpy(message + to, from, bytes);
        to += bytes;
        at += taken;
    }
    message[to] = 0;
}

Status status_fail(Status status, const char *fmt, ...)
{
    /* An argument may point into the old message: so format into `text` first, then copy. */
    char    text[STATUS_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    keep(text);
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
    keep(text);
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
