/* Intervals: memory that is needed for a while. Each gets an offset, so that no two intervals that are alive at one time share a byte. */
#pragma once

#include "base/arena.h"

typedef struct Interval {
    int     id;         /* breaks ties */
    int     start, end; /* times, from 0, inclusive */
    int64_t bytes;      /* 0: the interval isn't placed */
    int64_t offset;     /* set by intervals_place */
} Interval;

/* The largest sum of bytes alive at one time. */
int64_t intervals_live(Arena *arena, const Interval *intervals, int num);
/* Sets all offsets and returns the bytes that all take together. *out_live: intervals_live, which no placing can beat. */
int64_t intervals_place(Arena *arena, Interval *intervals, int num, int64_t *out_live);
