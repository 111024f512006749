/* Plans of a model's first layers, and the size of the whole model estimated from them: compiling a deep model takes time. */
#pragma once

#include "fit/fit.h"

/* Which programs of a run are planned. Many settings change only the micro-steps or only the update, so each of the two parts has its own
 * bounds. */
typedef enum PlanPart {
    PLAN_ALL,    /* all programs, with exact bytes and times */
    PLAN_MEMORY, /* all programs with exact bytes; leaves out a first micro-step if a later one takes the same memory */
    PLAN_MICRO,  /* all programs except the optimizer's and gather, with bounds and times only */
    PLAN_UPDATE, /* the optimizer's program, with bounds and times only */
} PlanPart;

typedef struct PlanSize {
    int64_t bytes; /* bytes of device memory; -1: the settings are invalid together */
    int64_t host_bytes;
    int64_t numel;   /* elements of all parameters */
    double  seconds; /* seconds of an optimizer step, simulated; if no rates are known, a cost that grows with arithmetic and traffic */
    /* Bounds. With each layer `lasting`, live_bytes and least_seconds grow by the same amount, or by more than with the layer before.
     * Workspace grows up to a limit. */
    int64_t lasting[REGION_COUNT]; /* memory that lasts from run to run, by region; 0 for activations */
    int64_t live_bytes;            /* peak of activations alive while launches run */
    double  least_seconds;         /* `seconds` with perfect overlap */
    int64_t update_bytes;          /* live_bytes of the optimizer, which works on pieces: grows until a piece has its full size */
    int64_t least_bytes;           /* `bytes` with a perfect placement: `lasting` plus the larger of live_bytes and update_bytes */
} PlanSize;

typedef struct Depths {
    const HfModel *model;
    Device        *device;
    Arena         *arena; /* memory of a plan; reset after each plan */
    bool           whole; /* all layers are planned: the model isn't deep, or isn't like its first layers */
    int64_t        numel; /* elements of all parameters */
} Depths;

PlanSize plan_size(const Plan *plan, int64_t micro_steps);
/* Joins PLAN_MICRO and PLAN_UPDATE: seconds add up, memory is the larger. `bytes` and `host_bytes` come from micro; bytes -1: invalid. */
PlanSize plan_join(const PlanSize *micro, const PlanSize *update);
/* Computes least_bytes from the other bounds. */
void plan_bound(PlanSize *size);
/* Plans the first max_layers layers; 0: all. */
PlanSize depths_plan(const Depths *d, const Config *config, int64_t max_layers, PlanPart part);

/* Compares the size of the whole model, `whole`, with the size estimated from its first layers, for the same settings. Sets d->whole if
 * they differ: in bytes or, if timed, in bounds. Also sets d->numel. */
void depths_compare(Depths *d, const Config *config, const PlanSize *whole, bool timed);
/* The size of all layers, estimated from the first ones. Bounds stay bounds; `bytes` and `seconds` are estimates. */
PlanSize depths_size(const Depths *d, const Config *config, PlanPart part);

/* How many keys memory: auto tries besides the micro-batch. In the functions below, `index` is 0 to this number - 1. */
int memory_num_keys(void);
/* Gives a key the value that takes the least memory. False: the key has that value already, the run file sets the key, or it has no effect
 * in this run. is_host: the device's memory is the host's. */
bool memory_take_least(Config *config, int index, bool is_host);
/* Gives a key its value in `from`. False: the key has that value already. */
bool memory_take_back(Config *config, const Config *from, int index);
/* Appends the keys whose values differ from those in `from`, as " key=value". */
void memory_say_changes(const Config *config, const Config *from, StrBuf *out);
