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
/* A range of a value, bytes. */
NODISCARD Status session_write_range(Session *session, const char *name, size_t offset, const void *data, size_t bytes);
NODISCARD Status session_read_range(Session *session, const char *name, size_t offset, void *data, size_t bytes);

/* Asynchronous on CUDA; session_read and session_sync wait. */
NODISCARD Status session_run(Session *session, ProgramKind kind);
NODISCARD Status session_sync(Session *session);
/* Waiting for what was run up to a point without what was run since: a mark stands behind the runs before it; see Device. */
NODISCARD Status session_mark(Session *session, int64_t number);  /* of number mod DEVICE_MARKS */
NODISCARD Status session_await(Session *session, int64_t number);
/* A graph output of a program ("loss", "losses", "logits"): valid until the next run of any program. */
NODISCARD Status session_output(Session *session, ProgramKind kind, const char *name, void *data, size_t bytes);
/* Direct pointer where the host sees the memory (device cpu, values of SPACE_HOST), else NULL. */
void *session_pointer(Session *session, const char *name);

const Plan *session_plan(const Session *session);
Device     *session_device(Session *session);
int64_t     session_allocated_bytes(const Session *session); /* of the device: equals the plan's total */
