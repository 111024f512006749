/* Errors as values. A function that can fail returns Status; the message waits in a fixed thread-local
 * buffer, so that failing works when memory is gone.
 *
 * Three classes, three tools: the user's input and the world -> FAIL(code, "what, where, expected, what to do");
 * our own bug -> CHECK(expr), which prints and aborts, in release too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum Status {
#define STATUS(code, exit_code) code,
#include "base/status.def"
#undef STATUS
    STATUS_COUNT
} Status;

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Longest message kept; what is longer is cut. */
enum { STATUS_MESSAGE_BYTES = 4096 };

int status_exit_code(Status status);

/* The message of the last failure on this thread; "" when there was none. Valid until the next failure. */
const char *status_message(void);

/* Records a message and returns `status`, for `return status_fail(...)`; use FAIL. */
Status status_fail(Status status, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Puts "prefix: " before the last message, while unwinding, and returns `status`. */
Status status_prefix(Status status, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Forgets the last message (for a caller that handled the failure). */
void status_clear(void);

_Noreturn void check_failed(const char *expr, const char *file, int line);

/* Host bookkeeping memory is never worth recovering from: prints and exits with ERR_NO_FIT's code.
 * Big buffers (device regions, shards) are allocated through calls that return Status instead. */
_Noreturn void fatal_out_of_memory(size_t bytes);
/* malloc, calloc and realloc of such memory: never NULL. */
void *malloc_or_end(size_t bytes);
void *calloc_or_end(size_t count, size_t size);
void *realloc_or_end(void *memory, size_t bytes);

/* `code` is returned as such (and evaluated twice): so the compiler sees that a failed call isn't OK. */
#define FAIL(code, ...) return status_fail((code), __VA_ARGS__), (code)
#define FAIL_IF(cond, code, ...) \
    do { \
        if (cond) return status_fail((code), __VA_ARGS__), (code); \
    } while (0)
#define TRY(expr) \
    do { \
        Status try_status_ = (expr); \
        if (try_status_ != OK) return try_status_; \
    } while (0)
#define CHECK(expr) ((expr) ? (void)0 : check_failed(#expr, __FILE__, __LINE__))
