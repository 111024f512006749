/* Pulse: whether a rank makes progress. It keeps the time of the rank's last sign (see CommLimits), the rank's phase, and the longest time
 * between two signs in that phase. CommLife: how all ranks end together when one fails; its lock guards the pulses too. */
#pragma once

#include "comm/comm.h"

#include <pthread.h>

enum { PULSE_PHASES = 16, PULSE_NAME = 32 };

typedef struct PulsePhase {
    char   name[PULSE_NAME];
    double longest; /* seconds between two signs in this phase */
} PulsePhase;

typedef struct Pulse {
    PulsePhase phases[PULSE_PHASES]; /* phases[0] is the time before the first beat */
    int        num_phases, phase;
    double     since;  /* time of the last sign, in seconds of pulse_now */
    double     waited; /* total seconds waited for other ranks */
    bool       waits;  /* in a collective, waiting for other ranks */
    bool       named;  /* a warning has named the rank since its last sign */
} Pulse;

/* The first failure, which ended the group. */
typedef struct CommEnd {
    bool   ended;
    int    rank;
    Status cause;
    char   why[1024];
} CommEnd;

double pulse_now(void); /* seconds of a monotonic clock */
void   pulse_init(Pulse *pulse);
void   pulse_beat(Pulse *pulse, const char *phase);
void   pulse_enter(Pulse *pulse); /* begins a collective, which waits for other ranks */
void   pulse_leave(Pulse *pulse);
/* Seconds since the last sign; 0 while the rank waits for others. */
double pulse_silence(const Pulse *pulse, double now);
/* Seconds of silence that are allowed. */
double pulse_limit(const Pulse *pulse, const CommLimits *limits);
/* Checks a rank's silence. Over the limit, warns once on stderr; true: limits->grace seconds more have passed, and `why` is filled in. */
bool pulse_judge(Pulse *pulse, int rank, const CommLimits *limits, double now, char *why, size_t size);

/* Sets the pulse of a rank in another process from its message. `longest` belongs to its current phase. */
void pulse_told(Pulse *pulse, const char *phase, double longest, double silence, bool waits);

CommLimits comm_limits(const CommLimits *given);
/* Records the first failure; false: one is recorded already. */
bool comm_end_keep(CommEnd *end, int rank, Status cause, const char *why);
/* OK, or ERR_RANK with the message of the failure. */
NODISCARD Status comm_end_status(const CommEnd *end);

/* State of the group's end. Ranks that are threads share one; a rank that is a process has its own. */
typedef struct CommLife {
    pthread_mutex_t lock;
    pthread_cond_t
               changed; /* signalled when the group has ended, a rank has left, or an on_end has returned; uses the clock of pulse_now */
    CommLimits limits;
    CommEnd    end;
} CommLife;

void comm_life_init(CommLife *life, const CommLimits *limits);
void comm_life_deinit(CommLife *life);

/* State of a rank common to all backends. */
typedef struct CommSide {
    CommLife *life;
    Pulse     pulse;
    void (*on_end)(void *context); /* still to be called; NULL: none */
    void *context;
    bool  is_telling; /* on_end is running */
} CommSide;

/* Ends the group because of a rank's failure, unless it has ended already. The lock must be held. */
void comm_locked_end(Comm *comm, int rank, Status cause, const char *why);
/* Calls on_end, with the lock released meanwhile; false: there is none to call. The lock must be held. */
bool comm_locked_tell(Comm *comm);
void comm_locked_await_telling(Comm *comm);
