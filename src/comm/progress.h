/* Whether a rank moves: when it last did something that others can see, in which phase, and how long that phase's longest wait for such
 * a sign was. One lock of its owner's guards it. */
#pragma once

#include "comm/comm.h"

enum { PROGRESS_PHASES = 16, PROGRESS_NAME = 32 };

typedef struct ProgressPhase {
    char   name[PROGRESS_NAME];
    double longest; /* seconds between two signs within it */
} ProgressPhase;

typedef struct Progress {
    ProgressPhase phases[PROGRESS_PHASES]; /* [0] is before the first beat */
    int           num_phases, phase;
    double        since;  /* the last sign, in seconds of progress_now */
    double        waited; /* seconds for others, in all */
    bool          waits;  /* in a collective: others must move */
    bool          named;  /* as one that doesn't move, since the last sign */
} Progress;

/* The first failure, which ended all. */
typedef struct CommEnd {
    bool   ended;
    int    rank;
    Status cause;
    char   why[1024];
} CommEnd;

double progress_now(void); /* seconds of a clock that only runs forward */
void   progress_init(Progress *progress);
void   progress_beat(Progress *progress, const char *phase);
void   progress_enter(Progress *progress); /* a collective; others are waited for */
void   progress_leave(Progress *progress);
/* Seconds without a sign, of a rank that should give one; 0 while it waits for others. */
double progress_silence(const Progress *progress, double now);
/* Seconds of silence that are too many. */
double progress_limit(const Progress *progress, const CommLimits *limits);
/* Names on stderr a rank that is silent too long, once; true: its grace has passed, and `why` says so. */
bool progress_judge(Progress *progress, int rank, const CommLimits *limits, double now, char *why, size_t size);

CommLimits comm_limits(const CommLimits *given);
/* Keeps the first failure; false: there was one before. */
bool comm_end_keep(CommEnd *end, int rank, Status cause, const char *why);
/* OK, or ERR_RANK with its message. */
NODISCARD Status comm_end_status(const CommEnd *end);
