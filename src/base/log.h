/* Messages for people, on stderr: stdout carries only results. The level is the one global besides the error buffer. */
#pragma once

#include "base/strbuf.h"

typedef enum LogLevel { LOG_QUIET, LOG_NORMAL, LOG_VERBOSE } LogLevel;

void log_set_level(LogLevel level);
void log_info(const char *fmt, ...) PRINTF_LIKE(1, 2);  /* a line */
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2);  /* "warning: " a line; shown at every level */
void log_error(const char *fmt, ...) PRINTF_LIKE(1, 2); /* "error: " a line */
void log_debug(const char *fmt, ...) PRINTF_LIKE(1, 2); /* only at LOG_VERBOSE */

/* A line for people that is kept, too: appended to notes ("warning: " before a warning); NULL: only said. */
void log_note(StrBuf *notes, bool is_warning, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* True when stderr is a terminal and NO_COLOR/TERM=dumb don't forbid colour. */
bool log_is_terminal(void);
