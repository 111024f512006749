/* Plans of a model's first layers, and what they tell of all of it: compiling a deep model takes time. */
#pragma once

#include "setup/setup.h"

typedef struct PlanSize {
    int64_t bytes; /* of the device; -1: the settings don't go together */
    int64_t host_bytes;
    int64_t numel;       /* of all parameters */
    double  seconds;     /* of an optimizer step, simulated; where no rates are known, a number that grows with arithmetic and traffic */
    int64_t least_bytes; /* with a perfect placement; `seconds` with perfect overlap. Both grow by the same with each layer, or by more */
    int64_t live_bytes;  /* of them: what is alive while launches run */
    double  least_seconds;
} PlanSize;

typedef struct Depths {
    const HfModel *model;
    Device        *device;
    bool           whole; /* the model isn't deep, or isn't like its first layers: all of it is planned */
    double         turns; /* from the second depth to all layers, in steps of as many as from the first to the second */
} Depths;

/* The size of a plan. timed: with `seconds`, which take the programs of all micro-steps. */
PlanSize plan_size(const Plan *plan, int64_t micro_steps);
PlanSize depths_plan(const Depths *d, const Config *config, int64_t max_layers, bool timed);

/* Tries whether the first layers tell of the whole model, its bytes or, timed, the bounds: for these settings its size is known. */
void depths_compare(Depths *d, const Config *config, const PlanSize *whole, bool timed);
/* What all layers take, from the first ones; bounds are bounds, `bytes` and `seconds` are estimates. */
PlanSize depths_size(const Depths *d, const Config *config, bool timed);
