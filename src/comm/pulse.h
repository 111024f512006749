/* Whether a rank moves: when it last did something that others can see, in which phase, and how long that phase's longest wait for a
 * sign was. How all ranks end together when one doesn't. The lock of a CommLife guards both. */
#pragma once

#include "comm/comm.h"

#include <pthread.h>

enum { PULSE_PHASES = 16, PULSE_NAME = 32 };

typedef struct PulsePhase {
    char   name[PULSE_NAME];
    double longest; /* seconds between two signs within it */
} PulsePhase;

typedef struct Pulse {
    PulsePhase phases[PULSE_PHASES]; /* [0] is before the first beat */
    int        num_phases, phase;
    double     since;  /* the last sign, in seconds of pulse_now */
    double     waited; /* seconds for others, in all */
    bool       waits;  /* in a collective: others must move */
    bool       named;  /* as one that doesn't move, since the last sign */
} Pulse;

/* The first failure, which ended all. */
typedef struct CommEnd {
    bool   ended;
    int    rank;
    Status cause;
    char   why[1024];
} CommEnd;

double pulse_now(void); /* seconds of a clock that only runs forward */
void   pulse_init(Pulse *pulse);
void   pulse_beat(Pulse *pulse, const char *phase);
void   pulse_enter(Pulse *pulse); /* a collective; others are waited for */
void   pulse_leave(Pulse *pulse);
/* Seconds without a sign, of a rank that should give one; 0 while it waits for others. */
double pulse_silence(const Pulse *pulse, double now);
/* Seconds of silence that are too many. */
double pulse_limit(const Pulse *pulse, const CommLimits *limits);
/* Names on stderr a rank that is silent too long, once; true: its grace has passed, and `why` says so. */
bool pulse_judge(Pulse *pulse, int rank, const CommLimits *limits, double now, char *why, size_t size);

/* The pulse of another process as it told: `longest` of the phase it is in. */
void pulse_told(Pulse *pulse, const char *phase, double longest, double silence, bool waits);

CommLimits comm_limits(const CommLimits *given);
/* Keeps the first failure; false: there was one before. */
bool comm_end_keep(CommEnd *end, int rank, Status cause, const char *why);
/* OK, or ERR_RANK with its message. */
NODISCARD Status comm_end_status(const CommEnd *end);

/* Shared by the ranks of a group that are threads; of each rank that is a process. */
typedef struct CommLife {
    pthread_mutex_t lock;
    pthread_cond_t  changed; /* all has ended, a rank has left, or an on_end is over; its clock is that of pulse_now */
    CommLimits      limits;
    CommEnd         end;
} CommLife;

void comm_life_init(CommLife *life, const CommLimits *limits);
void comm_life_deinit(CommLife *life);

/* What all backends keep of a rank. */
typedef struct CommSide {
    CommLife *life;
    Pulse     pulse;
    void (*on_end)(void *context); /* it is to be called; NULL: none */
    void *context;
    bool  is_telling; /* an on_end runs */
} CommSide;

/* With the lock held. A rank's failure ends all, if none has yet. */
void comm_locked_end(Comm *comm, int rank, Status cause, const char *why);
/* Calls on_end without the lock; false: there is none to be called. */
bool comm_locked_tell(Comm *comm);
void comm_locked_await_telling(Comm *comm);
