/* Messages for people, on stderr; stdout carries only results. Control characters in messages are made visible (visible.h). Whether a
 * status line is shown is a global variable, because a process has one stderr. */
#pragma once

#include "base/strbuf.h"

void log_info(const char *fmt, ...) PRINTF_LIKE(1, 2);  /* prints a line */
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2);  /* prints "warning: " and a line */
void log_error(const char *fmt, ...) PRINTF_LIKE(1, 2); /* prints "error: " and a line */

/* Prints a line and appends it to `notes`, after "warning: " if is_warning. notes NULL: only prints. */
void log_note(StrBuf *notes, bool is_warning, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Calls log_note for each line of `lines`; a line that begins with "warning: " is a warning. */
void log_lines(StrBuf *notes, const char *lines);

/* Replaces the status line with `text`, cut to the terminal's width; "" only removes the line. The next message overwrites it. Call it only
 * if log_is_terminal(). */
void log_status(const char *text);

/* Whether stderr is a terminal whose last line can be rewritten; false if TERM=dumb. */
bool log_is_terminal(void);
/* Width of stderr's terminal in columns. The variable COLUMNS counts instead if it is smaller, or if the terminal's width isn't known. 80
 * if neither is known. */
int log_columns(void);
/* Whether text for file descriptor `fd` may be coloured: it is a terminal, TERM isn't dumb, and NO_COLOR isn't set. */
bool log_has_colour(int fd);

/* true: drops messages of the calling thread until called with false. Calls into the library do this, because a library doesn't print. */
void log_mute(bool muted);
