/* Messages for people, on stderr: stdout carries only results. Control characters in them are made visible (visible.h). Whether a status
 * line is shown is the global besides the error buffer: a process has one stderr. */
#pragma once

#include "base/strbuf.h"

void log_info(const char *fmt, ...) PRINTF_LIKE(1, 2);  /* a line */
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2);  /* "warning: " a line */
void log_error(const char *fmt, ...) PRINTF_LIKE(1, 2); /* "error: " a line */

/* A line for people that is kept, too: appended to notes ("warning: " before a warning); NULL: only said. */
void log_note(StrBuf *notes, bool is_warning, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same for each of some lines; those that begin with "warning: " are warnings. */
void log_lines(StrBuf *notes, const char *lines);

/* Shows text in place of the status line before, cut to the terminal's width; "" only removes that. The next message takes its place. For
 * terminals: ask log_is_terminal. */
void log_status(const char *text);

/* A terminal whose last line can be written anew: TERM isn't dumb. */
bool log_is_terminal(void);
/* Columns of that terminal, less where COLUMNS says less; 80 where nothing tells. */
int log_columns(void);
/* Whether text for a file descriptor may be coloured: such a terminal, and NO_COLOR isn't set. */
bool log_has_colour(int fd);

/* Drops the messages of the calling thread until false is passed: libraries don't print. */
void log_mute(bool muted);
