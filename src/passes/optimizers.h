/* Optimizers as a table. An optimizer (optimizers.def) chooses a rule for each trained parameter; a rule says which states it keeps, and
 * emits nodes for a bucket of parameters at a time. Plan, checkpoints and tests know states only from the bucket's list. A new optimizer is
 * a line in optimizers.def, and its choice and rules in optimizers.c. */
#pragma once

#include "ops/attrs.h"
#include "passes/compile.h"

/* The inputs of the update of a bucket, or of some of its parameters. */
typedef struct Update {
    const CompileOptions *options;
    const Plan           *plan;
    const Bucket         *bucket;
    const int64_t (*segments)[SEGMENT_COLUMNS]; /* each parameter's elements, counted from the beginning of `weights` */
    int           num_segments;
    Param *const *params; /* the parameters of the segments */
    Graph        *graph;
    Value        *weights, *grads, *state[BUCKET_MAX_STATES]; /* 1-D, or of the parameter's shape if rule.whole */
    Value        *norm2, *loss, *hyper, *step;                /* shared by all buckets */
    Value        *scalars[MOST_SCALARS];                      /* values of plan->scalars */
} Update;

typedef struct StateRule {
    const char *name;
    StateExtent extent;
    DType (*dtype)(const CompileOptions *options);
    StateCode code;
    int       scale; /* as BucketState.scale */
} StateRule;

typedef struct OptimizerRule {
    const char *name;
    StateRule   states[BUCKET_MAX_STATES - 1]; /* a state without a name ends the list; the master copy of a bucket comes after these */
    Status (*emit)(const Update *update);
    bool whole; /* the rule updates whole parameters, one at a time: each belongs to one rank */
} OptimizerRule;

enum { OPTIMIZER_MAX_RULES = 4 }; /* most rules that one optimizer chooses from */
/* Name of the plan's count of applied steps, i64: the optimizer's t. */
#define OPTIMIZER_APPLIED "applied"
/* OPTIMIZER_COPY: name of the state that is a wider copy of the weights. OPTIMIZER_SCALE: a state of scales has the name of its codes'
 * state and this ending. */
#define OPTIMIZER_COPY "master"
#define OPTIMIZER_SCALE ".scale"

/* The rule for a parameter with memory of its own, or for the packed memory of several parameters. */
const OptimizerRule *optimizer_rule(const CompileOptions *options, const Value *whole);
/* Adds the nodes of all updates (passes/updates.c). update: the fields that all updates share; grads: the flat gradients, by bucket. */
NODISCARD Status optimizer_updates(const Update *update, Value *const *grads);
/* Fills in the states of the bucket's rule: names, dtypes and extents. */
void optimizer_states(const CompileOptions *options, Bucket *bucket);
