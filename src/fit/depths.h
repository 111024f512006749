/* Plans of a model's first layers, and what they tell of all of it: compiling a deep model takes time. */
#pragma once

#include "fit/fit.h"

/* Which programs of a run are planned. Many settings change either the micro-steps or the update: their bounds are found apart. */
typedef enum PlanPart {
    PLAN_ALL,    /* with exact bytes and times */
    PLAN_MEMORY, /* with exact bytes */
    PLAN_MICRO,  /* all but the optimizer's. Bounds and times alone */
    PLAN_UPDATE, /* the optimizer's. Likewise */
} PlanPart;

typedef struct PlanSize {
    int64_t bytes; /* of the device; -1: the settings don't go together */
    int64_t host_bytes;
    int64_t numel;   /* of all parameters */
    double  seconds; /* of an optimizer step, simulated; where no rates are known, a number that grows with arithmetic and traffic */
    /* Bounds. Those of the first three grow by the same with each layer, or by more; workspace, up to a bound. */
    int64_t lasting[REGION_COUNT]; /* all but activations */
    int64_t live_bytes;            /* the most that is alive while launches run */
    double  least_seconds;         /* `seconds` with perfect overlap */
    int64_t update_bytes;          /* as live_bytes, of the optimizer, which works on pieces: it grows until those have their full size */
    int64_t least_bytes;           /* `bytes` with a perfect placement: what lasts, and the larger of what is alive */
} PlanSize;

typedef struct Depths {
    const HfModel *model;
    Device        *device;
    Arena         *arena; /* for plans, one after the other */
    bool           whole; /* the model isn't deep, or isn't like its first layers: all of it is planned */
    int64_t        numel; /* of all parameters */
} Depths;

PlanSize plan_size(const Plan *plan, int64_t micro_steps);
/* The sum of both parts; `bytes` and `host_bytes` stay 0. */
PlanSize plan_join(const PlanSize *micro, const PlanSize *update);
/* least_bytes from the other bounds. */
void plan_bound(PlanSize *size);
/* max_layers 0: all. */
PlanSize depths_plan(const Depths *d, const Config *config, int64_t max_layers, PlanPart part);

/* Tries whether the first layers tell of the whole model, its bytes or, timed, the bounds: for these settings its size is known. */
void depths_compare(Depths *d, const Config *config, const PlanSize *whole, bool timed);
/* What all layers take, from the first ones; bounds are bounds, `bytes` and `seconds` are estimates. */
PlanSize depths_size(const Depths *d, const Config *config, PlanPart part);

/* The keys that memory: auto tries beside the micro-batch, by index. */
int memory_num_keys(void);
/* Gives a key the value that takes the least memory. False: it has that already, the run file sets it, or it has no effect in this run;
 * is_host: the device's memory is the host's. */
bool memory_take_least(Config *config, int index, bool is_host);
/* Gives a key the value it has in `from`. False: it has that already. */
bool memory_take_back(Config *config, const Config *from, int index);
/* Says those that differ from `from` as " key=value". */
void memory_say_changes(const Config *config, const Config *from, StrBuf *out);
