/* Order: what happens before what in a program of several streams. Launches of one stream run in order; between streams order
 * comes from waits alone. A launch waits for another where it reads what that one writes, overwrites what that one reads or
 * writes, or where its node says so (`after`). Each launch carries a clock, the last launch of every stream that has finished when
 * it starts (Lamport 1978, Mattern 1989), from which no wait is emitted that others imply. */
#pragma once

#include "device/device.h"

typedef struct Order Order;

/* The nodes that become launches, in the graph's order: neither views nor those that run once. */
bool node_is_launch(const Node *node);

/* Of a scheduled graph, before anything is placed. */
Order *order_make(Arena *arena, const Graph *graph);
/* Of launches by the waits they carry. */
Order *order_of_launches(Arena *arena, const Launch *launches, int count);

bool order_is_single(const Order *order); /* all launches are of one stream */
/* What launch `index` waits for, as Launch.wait. */
const int32_t *order_wait(const Order *order, int index);
/* Launch `a` has finished whenever launch `b` starts. */
bool order_before(const Order *order, int a, int b);
/* The last launch that makes an activation and may start before every touch of root value `value` has finished; -1: none. What later
 * ones make may take its memory. A graph output is touched at the end. */
int order_last_beside(const Order *order, const Value *value);

/* Whether no other launch can touch root value `value` once launch `index` starts. */
bool order_is_last_touch(const Order *order, const Value *value, int index);

/* A stretch of memory that a launch touches. */
typedef struct Access {
    int     memory; /* which allocation */
    bool    write;
    int64_t begin, end; /* bytes */
} Access;

typedef struct AccessList {
    const Access *items;
    int           count;
} AccessList;

/* Two launches that touch the same bytes, one of them writing, and neither happens before the other. */
typedef struct Race {
    int    first, second; /* launches */
    Access at;            /* the second's */
} Race;

/* What bound launches touch: inputs, outputs, scratch, as addresses of `memory` 0. One list a launch. */
AccessList *order_accesses(Arena *arena, const Launch *launches, int count);

/* Looks at every pair of launches, from the waits they carry and the bytes they touch alone: shares nothing with order_make. False
 * and *out_race where two race. */
bool order_check(Arena *arena, const Launch *launches, const AccessList *accesses, int count, Race *out_race);
