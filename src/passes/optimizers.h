/* Optimizers as a table. An optimizer (optimizers.def) chooses a rule for each trained parameter; a rule says which states it keeps,
 * and emits nodes for a bucket of parameters at a time. Plan, checkpoints and tests know states by the bucket's list alone. A new
 * optimizer is a line in optimizers.def, and its choice and rules in optimizers.c. */
#pragma once

#include "ops/attrs.h"
#include "passes/compile.h"

/* What the update of a bucket, or of some of its parameters, is made from. */
typedef struct Update {
    const CompileOptions *options;
    const Plan           *plan;
    const Bucket         *bucket;
    const int64_t (*segments)[SEGMENT_COLUMNS]; /* what of which parameters, from the beginning of `weights` */
    int           num_segments;
    Param *const *params; /* of the segments */
    Graph        *graph;
    Value        *weights, *grads, *state[BUCKET_MAX_STATES]; /* 1-D; of the parameter's dims if rule.whole */
    Value        *norm2, *loss, *hyper, *step;                /* of all buckets */
    Value        *scalars[MOST_SCALARS];                      /* the plan's */
} Update;

typedef struct StateRule {
    const char *name;
    StateExtent extent;
    DType (*dtype)(const CompileOptions *options);
    StateCode code;
    int       scale; /* as in BucketState */
} StateRule;

typedef struct OptimizerRule {
    const char *name;
    StateRule   states[BUCKET_MAX_STATES - 1]; /* one without name ends it; a wider copy of the weights comes after them */
    Status (*emit)(const Update *update);
    bool whole; /* it updates one whole parameter at a time: each belongs to one rank */
} OptimizerRule;

enum { OPTIMIZER_MAX_RULES = 4 }; /* of one optimizer */
/* The plan's count of applied steps, i64: the optimizer's t. */
#define OPTIMIZER_APPLIED "applied"
/* The name of the state that is a wider copy of the weights; what the name of a state of scales ends with, after that of the codes. */
#define OPTIMIZER_COPY "master"
#define OPTIMIZER_SCALE ".scale"

/* The rule for a parameter that is placed by itself: one, or the packed memory of several. */
const OptimizerRule *optimizer_rule(const CompileOptions *options, const Value *whole);
/* The nodes of all updates (passes/updates.c): `update` says what they share. */
NODISCARD Status optimizer_updates(const Update *update, Value *const *grads);
/* Fills in names, dtypes and extents of the states of the bucket's rule. */
void optimizer_states(const CompileOptions *options, Bucket *bucket);
