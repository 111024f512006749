/* Timeline: the simulated run of a program, on a device that needn't be here. A launch takes the time that its op's rates give:
 * device/rates_GPU.def if the GPU was measured, else the data sheet. It takes at least the time that links need for the bytes that it moves
 * to or from the host, or between ranks. It starts when the launch before it on its stream, and the launches it waits for, have ended. A
 * GPU that is busy for seconds lowers its clock to stay within its power: a program takes at least its energy divided by that power. */
#pragma once

#include "run/program.h"

typedef struct Timeline {
    double  seconds;            /* from the first start to the last end, at least power_seconds */
    double  power_seconds;      /* least time within the device's power; 0: unknown */
    double  busy[STREAM_COUNT]; /* by stream: seconds in which it runs something */
    double *start, *end;        /* start and end of each launch */
    int    *critical;           /* launches of the critical path, in order: each starts when the one before it ends */
    int     num_critical;
} Timeline;

/* Seconds that a launch is expected to take. */
double launch_seconds(const DeviceFacts *facts, const Launch *launch);

/* Seconds that the device's full power would take for a launch's energy. The seconds add up over a program's launches, whatever their
 * streams. 0: unknown. */
double launch_power_seconds(const DeviceFacts *facts, const Launch *launch);

/* Simulates a run of the launches. The arrays of the timeline are in `arena`. */
void timeline_simulate(Arena *arena, const DeviceFacts *facts, const Launch *launches, int count, Timeline *out);

/* Appends a line for power, if power decides the program's time. Then, if several streams run anything, appends a line for each stream: its
 * busy time, and its part of the critical path. */
void timeline_print_streams(const Timeline *timeline, const Launch *launches, StrBuf *out);
