/* Timeline: a program's run on a device that may not be here, simulated. Each launch takes what its op's rates say (device/rates.def
 * where the GPU was measured, else the data sheet), and what it moves from or to the host, or between ranks, the links'; it starts when the
 * one before it on its stream and those it waits for have ended. */
#pragma once

#include "run/program.h"

typedef struct Timeline {
    double  seconds;            /* from the first start to the last end */
    double  busy[STREAM_COUNT]; /* seconds in which each stream runs something */
    double *start, *end;        /* by launch */
    int    *critical;           /* launches of the critical path, in order: each starts when the one before it ends */
    int     num_critical;
} Timeline;

/* Seconds that a launch is expected to take. */
double launch_seconds(const DeviceFacts *facts, const Launch *launch);

/* Arrays are in `arena`. */
void timeline_simulate(Arena *arena, const DeviceFacts *facts, const Launch *launches, int count, Timeline *out);

/* A line a stream that runs anything, if there are several: its busy time, and its part of the critical path. */
void timeline_print_streams(const Timeline *timeline, const Launch *launches, StrBuf *out);
