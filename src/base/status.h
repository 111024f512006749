/* Errors as values. A function that can fail returns Status; the message is in a fixed thread-local buffer, so that reporting an error
 * works without memory.
 *
 * Errors of the user's input or the environment -> FAIL(code, "what, where, expected, what to do"). Our own bugs -> CHECK(expr), which
 * prints and aborts, also in release builds. */
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

/* size of the message buffer; longer messages are cut */
enum { STATUS_MESSAGE_BYTES = 4096 };

int status_exit_code(Status status);

/* The last error message of this thread; "" if there is none. Valid until the next error. */
const char *status_message(void);

/* Records a message and returns `status`, for `return status_fail(...)`; use FAIL. */
Status status_fail(Status status, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Puts "prefix: " before the last message, while an error is passed up; returns `status`. */
Status status_prefix(Status status, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Clears the last message (for a caller that handled the error). */
void status_clear(void);

_Noreturn void check_failed(const char *expr, const char *file, int line);

/* For small host allocations, which are never worth recovering from: prints and exits with the exit code of ERR_NO_FIT. Big buffers (device
 * regions, shards) are allocated by functions that return Status instead. */
_Noreturn void fatal_out_of_memory(size_t bytes);
/* malloc, calloc and realloc that call fatal_out_of_memory instead of returning NULL. */
void *malloc_or_end(size_t bytes);
void *calloc_or_end(size_t count, size_t size);
void *realloc_or_end(void *memory, size_t bytes);

/* Returns `code` itself (evaluated twice), so that the compiler knows that a failed call doesn't return OK. */
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
