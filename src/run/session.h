/* Session: a Plan on a device. Allocates every region once and replays programs; nothing is allocated after create. */
#pragma once

#include "run/program.h"

typedef struct Session Session;

/* ERR_NO_FIT names the region for which memory is too small. The plan must outlive the session. */
NODISCARD Status session_create(Plan *plan, Device *device, Session **out_session);
void             session_destroy(Session *session);

/* Copy a value to or from the device, by name ("tokens", a parameter's, "weights"); data is dense host memory of exactly the value's
 * bytes. */
NODISCARD Status session_write(Session *session, const char *name, const void *data, size_t bytes);
NODISCARD Status session_read(Session *session, const char *name, void *data, size_t bytes);
/* Uploads the arrays that are given and that the program reads; an array has the elements of the program's shape. program NULL: only arrays
 * of shape FEED_NUMBERS, which are the same for all programs. */
NODISCARD Status session_feed(Session *session, const Program *program, const Feeds *feeds);
/* Copy a range of the value's bytes, from byte `offset` on. */
NODISCARD Status session_write_range(Session *session, const char *name, size_t offset, const void *data, size_t bytes);
NODISCARD Status session_read_range(Session *session, const char *name, size_t offset, void *data, size_t bytes);

/* Writes the first bytes of a value from memory that the device reads by itself (DeviceApi.take): data must not change until the program
 * that is run next has ended. */
NODISCARD Status session_take(Session *session, const char *name, const void *data, size_t bytes);

/* The source of weights. Ranges of elements [first, first + count) are whole rows, in order. */
typedef struct LoadSource {
    void       *context;
    const char *ns;     /* namespace of a second model's parameters (Param.ns); NULL: the model's own parameters */
    bool        begins; /* set for new adapters: weights of the base that are trained whole keep the base's values */
    /* Called before a parameter's first element; NULL: nothing is called. */
    Status (*begin)(void *context, const Param *param);
    /* Writes elements to `out` as floats. first is a multiple of 4. */
    Status (*values)(void *context, const Param *param, int64_t first, int64_t count, float *out);
    /* Returns the elements in the parameter's dtype if they are adjacent in memory, else NULL. `stored` itself may be NULL. */
    const void *(*stored)(void *context, const Param *param, int64_t first, int64_t count);
    /* Returns part k of a parameter that is kept in a format, as the op that quantises makes it; valid until the next call. NULL for part
     * 0: the source doesn't have the parameter in this format, so its elements are quantised. `part` itself may be NULL. */
    const void *(*part)(void *context, const Param *param, int k);
} LoadSource;

/* Fills the parameters of the adapters, or of the base in the source's namespace, with the load program (passes/load.c). Base weights that
 * are trained whole beside adapters (Param.is_whole) are filled in both cases. A piece is read straight into the memory from which launches
 * convert it or, if it arrives as it is kept, straight into its place. The host holds a few MiB at a time. */
NODISCARD Status session_load(Session *session, bool adapters, const LoadSource *source);

/* Runs a program of the session's plan (plan_program). Asynchronous on CUDA; session_read and session_sync wait. */
NODISCARD Status session_run(Session *session, const Program *program);
NODISCARD Status session_sync(Session *session);
/* Mark the beginning and the end of step `number`. `await` waits for the end mark, but not for later work. At most DEVICE_STEP_MARKS / 2
 * steps are remembered. *out_seconds: the device's time between the marks. */
NODISCARD Status session_begin_step(Session *session, int64_t number);
NODISCARD Status session_end_step(Session *session, int64_t number);
NODISCARD Status session_await_step(Session *session, int64_t number, double *out_seconds);
/* Mark, and wait for, single runs; their marks don't disturb those of steps. `await` waits for work that was queued before the mark. The
 * last DEVICE_RUN_MARKS marks are remembered. */
NODISCARD Status session_mark_run(Session *session, int64_t number);
NODISCARD Status session_await_run(Session *session, int64_t number);
/* The device's idle time before step `number`, which has ended: from the end of the step before it to its own beginning. */
NODISCARD Status session_idle_before(Session *session, int64_t number, double *out_seconds);
/* Copies the first `bytes` bytes of a graph output ("loss", "losses", "logits") to `data`. `program` must be the one that ran last. */
NODISCARD Status session_output(Session *session, const Program *program, const char *name, void *data, size_t bytes);
/* The value's memory, if the host can access it (device cpu, values of SPACE_HOST); else NULL. */
void *session_pointer(Session *session, const char *name);

const Plan *session_plan(const Session *session);
Device     *session_device(Session *session);
int64_t     session_allocated_bytes(const Session *session); /* bytes of device memory: equals plan_total_bytes */
/* Device memory taken by others at the moment: the driver's context, libraries, other programs. 0: unknown. */
NODISCARD Status session_beside_bytes(Session *session, int64_t *out_bytes);
