/* Order: what happens before what in a program of several streams. Launches of one stream run in order; only waits order launches of
 * different streams. Launch B waits for an earlier launch A if B reads memory that A writes, if B overwrites memory that A reads or writes,
 * or if B's node says so (`after`). Each launch carries a clock: the last launch of every stream that has finished when it starts (Lamport
 * 1978, Mattern 1989). No wait is emitted that clocks already imply. */
#pragma once

#include "device/device.h"

typedef struct Order Order;

/* Whether the node becomes a launch: views and nodes that run once don't. Launches are in the graph's order. */
bool node_is_launch(const Node *node);

/* The order of a scheduled graph, before anything is placed. */
Order *order_make(Arena *arena, const Graph *graph);
/* The order of launches, from the waits they carry. */
Order *order_of_launches(Arena *arena, const Launch *launches, int count);

bool order_is_single(const Order *order); /* whether all launches are on one stream */
/* The launches that launch `index` waits for, as Launch.wait. */
const int32_t *order_wait(const Order *order, int index);
/* Whether launch `a` has finished whenever launch `b` starts. */
bool order_before(const Order *order, int a, int b);
/* The last launch that makes an activation and may start before all touches of root value `value` have finished; -1: none. Activations that
 * are made later may take its memory. A graph output is touched at the end. */
int order_last_beside(const Order *order, const Value *value);

/* Whether no other launch can touch root value `value` once launch `index` starts. */
bool order_is_last_touch(const Order *order, const Value *value, int index);

/* A stretch of memory that a launch touches. */
typedef struct Access {
    int     memory; /* index of an allocation */
    bool    write;
    int64_t begin, end; /* bytes */
} Access;

typedef struct AccessList {
    const Access *items;
    int           count;
} AccessList;

/* Two launches that touch the same bytes, at least one of which writes them, without an order between the two. */
typedef struct Race {
    int    first, second; /* indices of the two launches */
    Access at;            /* where the second launch touches the memory */
} Race;

/* The memory that bound launches touch: inputs, outputs and scratch. Access.memory is 0, begin and end are addresses. One list for each
 * launch. */
AccessList *order_accesses(Arena *arena, const Launch *launches, int count);

/* Checks every pair of launches, using only the waits they carry and the bytes they touch; shares no code with order_make. False: *out_race
 * is a pair that races. */
bool order_check(Arena *arena, const Launch *launches, const AccessList *accesses, int count, Race *out_race);
