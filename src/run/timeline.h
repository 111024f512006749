/* Timeline: a program's run on a device that may not be here, simulated. Each launch takes what its op's rates say (device/rates.def
 * where the GPU was measured, else the data sheet), and what it moves from or to the host, or between ranks, the links'; it starts when the
 * one before it on its stream and those it waits for have ended. A GPU that is busy for seconds lowers its clock to stay within its power:
 * a program takes no less than the energy of what it does, over that power. */
#pragma once

#include "run/program.h"

typedef struct Timeline {
    double  seconds;            /* from the first start to the last end; no less than what power lets it take */
    double  power_seconds;      /* that; 0: unknown */
    double  busy[STREAM_COUNT]; /* seconds in which each stream runs something */
    double *start, *end;        /* by launch */
    int    *critical;           /* launches of the critical path, in order: each starts when the one before it ends */
    int     num_critical;
} Timeline;

/* Seconds that a launch is expected to take. */
double launch_seconds(const DeviceFacts *facts, const Launch *launch);

/* Seconds of the device's power that a launch takes: while a program runs these add up, on whatever stream. 0: unknown. */
double launch_power_seconds(const DeviceFacts *facts, const Launch *launch);

/* Arrays are in `arena`. */
void timeline_simulate(Arena *arena, const DeviceFacts *facts, const Launch *launches, int count, Timeline *out);

/* A line a stream that runs anything, if there are several: its busy time, and its part of the critical path; and one for power, if that is
 * what the program takes. */
void timeline_print_streams(const Timeline *timeline, const Launch *launches, StrBuf *out);
