/* Session: a Plan on a device. Allocates every region once and replays programs; nothing is allocated after create. */
#pragma once

#include "run/program.h"

typedef struct Session Session;

/* ERR_NO_FIT with the plan's regions when memory is too small. The plan must outlive the session. */
NODISCARD Status session_create(Plan *plan, Device *device, Session **out_session);
void             session_destroy(Session *session);

/* Values by name ("tokens", a parameter's, "weights"); data is dense host memory of exactly the value's bytes. */
NODISCARD Status session_write(Session *session, const char *name, const void *data, size_t bytes);
NODISCARD Status session_read(Session *session, const char *name, void *data, size_t bytes);
/* The arrays that are given and that the program reads, as many elements of each as its shape has; program NULL: the numbers that any
 * program reads, rows of none. */
NODISCARD Status session_feed(Session *session, const Program *program, const Feeds *feeds);
/* A range of a value, bytes. */
NODISCARD Status session_write_range(Session *session, const char *name, size_t offset, const void *data, size_t bytes);
NODISCARD Status session_read_range(Session *session, const char *name, size_t offset, void *data, size_t bytes);

/* Writes the first bytes of a value from memory that the device reads itself (DeviceApi.take): data stays as it is until what is run next
 * ends. */
NODISCARD Status session_take(Session *session, const char *name, const void *data, size_t bytes);

/* Where weights arrive from. Ranges of elements [first, first + count) are whole rows, in order. */
typedef struct LoadSource {
    void       *context;
    const char *ns;     /* of a second model's parameters (Param); NULL: of the model's own */
    bool        begins; /* of adapters: weights of the base that are trained whole stay as they were loaded with it */
    /* Before a parameter's first element; NULL: nothing is to be done. */
    Status (*begin)(void *context, const Param *param);
    /* Elements as floats. first is a multiple of 4. */
    Status (*values)(void *context, const Param *param, int64_t first, int64_t count, float *out);
    /* The elements where they lie in one piece in the parameter's dtype; NULL: they don't. The function may be NULL. */
    const void *(*stored)(void *context, const Param *param, int64_t first, int64_t count);
    /* Part k of a parameter that is kept in a format, as the op that quantises makes it; valid until the next call. NULL for part 0: it
     * isn't stored in this format, and is made of its elements. The function may be NULL. */
    const void *(*part)(void *context, const Param *param, int k);
} LoadSource;

/* Fills the parameters of the adapters, or those of the base in the source's namespace, by the load program (passes/load.c); weights that
 * are trained whole beside adapters (Param.is_whole) are of both. Each piece is read straight into where the launches that keep it read it,
 * or, where it arrives as it is kept, into its place. The host holds a few MiB at a time. */
NODISCARD Status session_load(Session *session, bool adapters, const LoadSource *source);

/* Runs a program of the session's plan (plan_program). Asynchronous on CUDA; session_read and session_sync wait. */
NODISCARD Status session_run(Session *session, const Program *program);
NODISCARD Status session_sync(Session *session);
/* Step `number` begins and ends: marks stand before and behind what is run in between, and `await` waits for the second without what
 * was run since. At most DEVICE_STEP_MARKS / 2 steps are known. *out_seconds: what the device took from one mark to the other. */
NODISCARD Status session_begin_step(Session *session, int64_t number);
NODISCARD Status session_end_step(Session *session, int64_t number);
NODISCARD Status session_await_step(Session *session, int64_t number, double *out_seconds);
/* The same of single runs, which don't disturb the marks of steps: `await` waits for what was run before the mark. The last
 * DEVICE_RUN_MARKS are known. */
NODISCARD Status session_mark_run(Session *session, int64_t number);
NODISCARD Status session_await_run(Session *session, int64_t number);
/* What the device idled before step `number`, which has ended: from the end of the step before it to its beginning. */
NODISCARD Status session_idle_before(Session *session, int64_t number, double *out_seconds);
/* A graph output of a program ("loss", "losses", "logits"): valid until the next run of any program. */
NODISCARD Status session_output(Session *session, const Program *program, const char *name, void *data, size_t bytes);
/* Direct pointer where the host sees the memory (device cpu, values of SPACE_HOST), else NULL. */
void *session_pointer(Session *session, const char *name);

const Plan *session_plan(const Session *session);
Device     *session_device(Session *session);
int64_t     session_allocated_bytes(const Session *session); /* of the device: equals the plan's total */
/* What is taken of the device's memory beside that, at the moment: by the driver's context, libraries, and other programs. 0: unknown. */
NODISCARD Status session_beside_bytes(Session *session, int64_t *out_bytes);
