/* Program: what compiling produces. A flat list of launches over planned memory, in a few regions shared by the programs of
 * a session. Compiling needs no weights and, on the null device, no machine. */
#pragma once

#include "device/device.h"
#include "ir/entry.h"
#include "ops/attrs.h"

typedef enum Region {
    REGION_WEIGHTS,   /* the buckets of trained parameters first, then frozen ones */
    REGION_GRADS,     /* of the buckets, laid out as the parameters */
    REGION_OPTIMIZER, /* moments and master weights, flat; loss and norm scalars */
    REGION_CONSTS,
    REGION_INPUTS,
    REGION_CACHE,       /* KV cache */
    REGION_ACTIVATIONS, /* reused: the largest need of any program; with large workspaces */
    REGION_WORKSPACE,   /* one scratch a stream, as large as its hungriest launch needs; larger ones lie in activations */
    REGION_COUNT
} Region;
const char *region_name(Region region);

typedef struct Placement {
    Region  region; /* what the memory is for */
    Space   space;  /* where it is */
    int64_t offset, bytes;
} Placement;

/* A program that a session has: what it computes, and the shape of a run of it. */
typedef struct ProgramSpec {
    const Entry *entry;
    bool         adds;       /* of a micro-step: gradients and loss are added to what is there; else they are written */
    bool         ends;       /* of a micro-step, with several ranks: behind it gradients are summed over the ranks */
    int64_t      batch, seq; /* rows, and tokens of a row; 0 where nothing is made from the model */
    DType        hidden;     /* of entry head: what its rows come in */
} ProgramSpec;

/* They are the same but for their shapes. */
bool program_alike(const ProgramSpec *a, const ProgramSpec *b);
/* Its entry's name; that of a micro-step is micro_first, micro_next, micro_last or micro_only. */
const char *program_spec_name(const ProgramSpec *spec);
/* All that can be asked for, without shapes: each entry once, and one that makes steps for each place in a step. */
enum { MOST_SPECS = 16 };
int program_specs(ProgramSpec out[MOST_SPECS]);
/* The spec of this name among them, its shape left alone. ERR_INVALID with all names. */
NODISCARD Status program_find(const char *name, ProgramSpec *out);
/* Micro-step `micro` of the `count` of a step that `world` ranks make. With one rank none ends. */
ProgramSpec program_micro(int64_t micro, int64_t count, int world);

/* A lasting value of the session, by name. */
typedef struct PlanEntry {
    const char *name;
    TensorType  type;
    Placement   place;
    int         trained; /* of a trained parameter: 1 + index in trained_params */
    int64_t     first;   /* of a value that ranks divide, this rank has elements from here on; `type` is of these */
} PlanEntry;

typedef struct Program {
    ProgramSpec spec;
    const char *name; /* its spec's; where the session has several of that name, with the shape: "decode[4x1]" */
    Graph      *graph;
    Placement  *placement; /* by value id: where it is placed */
    int64_t    *scratch;   /* by node id: where its workspace begins among the activations; -1: it is its stream's */
    int         num_launches, num_once;
    Launch     *once; /* launches of NODE_ONCE nodes, run after allocation */
    Launch     *launches;
    int64_t     live_bytes; /* largest sum of activations alive at one time: the bound a perfect placement would meet */
    int64_t     activation_bytes;
    OpCost      cost;                        /* sums over launches */
    double      limit_seconds[STREAM_COUNT]; /* of each stream, every launch at its limit */
    double      roofline_seconds;            /* the longest of these: the program takes no less */
    double      simulated_seconds;           /* see run/timeline.h */
    void       *replay;
} Program;

/* How many values a state has for a parameter. */
typedef enum StateExtent {
    STATE_ELEMENTS, /* one for each element */
    STATE_ROWS,     /* one for each row, all dims but the last */
    STATE_BLOCKS,   /* one for each MOMENT_BLOCK elements: the scales of codes */
} StateExtent;

/* The dynamic map (ops/lowbit/dynamic_map.h) of a state that may be kept in codes of 8 bits. */
typedef enum StateCode { CODE_NONE, CODE_SIGNED, CODE_UNSIGNED } StateCode;

/* What the optimizer keeps of the parameters of a bucket, one after the other in a flat value of the plan. */
typedef struct BucketState {
    const char    *name;  /* "m": that of parameter P is tensor P.m of a checkpoint */
    const char    *value; /* the plan's */
    DType          dtype;
    StateExtent    extent;
    StateCode      code;
    int            scale;   /* of one in codes (DT_U8): index of the state that holds their scales */
    bool           is_copy; /* of the weights, in more bits */
    int64_t        numel;
    const int64_t *at; /* where that of this rank begins for each parameter of the bucket */
} BucketState;

/* Consecutive elements of a bucket of which each rank owns an equal share, one after the other; they cross between ranks at once. */
typedef struct Chunk {
    int64_t first, numel;
    int64_t read; /* the less, the earlier something of it is read first: comparable among all buckets */
} Chunk;

/* What of a bucket is whole on each rank, at least (a bucket's ZeRO level). */
typedef enum Division {
    DIVIDE_STATES = 1, /* weights and gradients */
    DIVIDE_GRADS,      /* weights */
    DIVIDE_WEIGHTS,    /* nothing */
} Division;

/* Trained parameters that one rule of the optimizer updates, of one dtype, whose gradients are of one dtype, in a flat run. The flat
 * buffers are values of the plan under these names.
 *
 * With several ranks each owns its shares of all chunks, one after the other: flat values of share_numel elements. The optimizer works on
 * these, and its states are of these alone. With one rank they are the flat run itself. */
enum { BUCKET_MAX_STATES = 6 };
typedef struct Bucket {
    DType                       weight, grad;
    const struct OptimizerRule *rule;         /* passes/optimizers.h */
    int                         first, count; /* trained_params[first, first + count) */
    const int                  *listed;       /* their indices in the order of the graph, which doesn't depend on ranks */
    int64_t                     numel;        /* with the padding between parameters */
    Space                       space;        /* of the weights */
    Space                       grad_space;
    int64_t                     weight_offset, grad_offset; /* bytes into their regions */
    const char                 *weights, *grads;            /* NULL: no rank has them whole */
    Division                    division;
    bool                        by_value; /* each value's states are one rank's: equal shares would cut blocks of moments */
    Chunk                      *chunks;
    int                         num_chunks;
    Chunk *groups; /* of a rule that updates whole values, or by_value: as many of one type as there are ranks, a rank has the
                      states of one. Where they aren't the chunks too, shares of a group become the value that a
                      rank updates, and shares again (passes/updates.c). Else NULL: states are divided as chunks */
    int         num_groups;
    int64_t     share_numel;
    const char *weight_share, *grad_share;
    BucketState states[BUCKET_MAX_STATES];
    int         num_states;
} Bucket;

/* Elements [first, first + numel of `staged`) of a parameter arrive in the value `staged` of the load program. The launches that
 * read it, up to those that read the next one, make of them what is kept; all are of the compute stream, in whose order pieces are
 * written. */
typedef struct Arrival {
    const Param *param;
    int64_t      first;
    const Value *staged;
} Arrival;

/* A tensor that is kept in codes with one scale. The plan's values of all N of them: */
#define PRECISION_SCALES "fp8.scales"   /* f32 (N,4): a row as ops/lowbit/fp8.h says */
#define PRECISION_NOW "fp8.now"         /* f32 (N): the largest magnitude since the last optimizer step */
#define PRECISION_HISTORY "fp8.history" /* f32 (H,N): largest magnitudes of earlier steps, a ring: step s in row s mod H */
typedef struct ScaledTensor {
    const char *name; /* the weight's, for an operand beside it with .x (input) or .dy (gradient of the output) behind it */
    DType       dtype;
    const char *codes, *transposed; /* of a weight: the plan's values for its codes and for its transpose's; NULL: not wanted */
    /* The parameters that a frozen weight consists of: its codes are made when it is loaded. */
    const char *const *params;
    int                num_params;
} ScaledTensor;

/* The formats beside that one whose codes products read. A plan has one of them. */
typedef enum CodedFormat {
    CODED_NONE,
    CODED_TILES, /* frozen weights that are kept in FP8 with scales of tiles */
    CODED_FP4,   /* NVFP4 */
} CodedFormat;

/* The values that are made of a weight, or of its codes in tiles. Codes of an FP4 weight and of its transpose have one number. */
typedef enum MadePart {
    MADE_CODES,
    MADE_SCALE,
    MADE_GLOBAL,
    MADE_TURNED, /* codes of the transpose */
    MADE_TURNED_SCALE,
    MADE_PADDED, /* scales of tiles as products read them */
    MADE_COUNT
} MadePart;

/* A weight that products read in this format. Of a frozen one the parts are made when it is loaded. */
typedef struct CodedWeight {
    const char        *name;   /* the plan's value: codes of a frozen weight, else the weight itself */
    const char        *scale;  /* of codes in tiles: the plan's value */
    const char *const *params; /* the parameters that a frozen weight consists of; NULL: it is trained */
    int                num_params;
    const char        *made[MADE_COUNT]; /* the plan's values, as far as a program reads them; NULL: the format has none */
    bool               is_tiled[2];      /* FP4 scales of codes, and of the transpose's, lie in tiles (ops/lowbit/nvfp4.h) */
} CodedWeight;

/* Elements [first, first + numel) of a tensor lie in value `value` of the plan from element `at` on. numel 0: this rank has none of it. */
typedef struct PlanPiece {
    const char *value;
    int64_t     first, numel, at;
} PlanPiece;

/* A number that a step tells by name. Micro-steps and ranks add up in `state`, f32 (1), as the loss does. */
typedef struct Scalar {
    const char *name, *state;
    double (*finish)(double sum, double loss); /* what is told; NULL: the sum */
} Scalar;

/* Attention by latents, whose keys and values are made of one vector of each token (passes/latent.c): how the KV cache holds them. */
typedef struct PlanLatent {
    int         layers, whole_layers;   /* as those vectors; as keys and values */
    int64_t     numbers, whole_numbers; /* of a token in a layer, either way */
    const char *why;                    /* some are whole; lasts as long as the program */
} PlanLatent;

typedef struct Plan {
    Arena      *arena;
    Program    *programs; /* they share all regions, so that a weight is one memory in all of them */
    int         num_programs;
    int64_t     region_bytes[SPACE_COUNT][REGION_COUNT];
    int64_t     workspace_offset[STREAM_COUNT]; /* in REGION_WORKSPACE */
    int64_t     workspace_bytes[STREAM_COUNT];
    PlanEntry  *entries;
    int         num_entries, cap_entries;
    int        *entry_table; /* hash of names: index + 1, 0 empty */
    int         entry_table_size;
    Param     **params;
    int         num_params;
    int64_t     trained_numel; /* without padding */
    int64_t     total_numel;
    DeviceFacts facts;
    int         rank, world;    /* of world ranks this one */
    Param     **trained_params; /* bucket by bucket */
    int         num_trained;
    PlanPiece  *shares;                   /* of trained_params[i]: what of its weight and its gradient is this rank's */
    int64_t (*segments)[SEGMENT_COLUMNS]; /* of it: what this rank updates, laid out in its states as in the shares */
    Bucket       *buckets;
    int           num_buckets;
    const char   *optimizer;                /* its name, which checkpoints keep */
    const char   *own_feeds[FEED_MOST_OWN]; /* names of the inputs of the model's own; NULL: no more */
    int64_t       cache_len;                /* of the programs that generate: most tokens of prompt and text together of a sequence */
    int64_t       choices;                  /* ids below it are chosen; 0: all that the head has */
    int64_t       cache_pages;              /* of the KV cache, the one that is nobody's included */
    PlanLatent    latent;
    int           row_adapters;  /* that rows of programs with a cache choose among */
    bool          adapters_take; /* they began with a part of the base (model/lora_pairs.h): files hold that too */
    ScaledTensor *scaled;
    int           num_scaled;
    CodedFormat   coded_format;
    CodedWeight  *coded;
    int           num_coded;
    int           num_floats; /* products, of all programs, whose operands are floats of another width than the model's */
    Scalar        scalars[MOST_SCALARS];
    int           num_scalars;
    Arrival      *arrivals; /* parameter by parameter, in order of `params`; of each what this rank keeps, in order */
    int           num_arrivals;
} Plan;

/* The first program of an entry; NULL: the session has none. */
const Program *plan_program(const Plan *plan, const Entry *entry);
/* The first of this spec, whatever its shape. */
const Program *plan_program_like(const Plan *plan, const ProgramSpec *spec);
/* The one of an entry and a shape. */
const Program *plan_program_of(const Plan *plan, const Entry *entry, int64_t batch, int64_t seq);
/* The one that runs as micro-step `micro` of the `count` of a step. */
const Program *plan_micro(const Plan *plan, int64_t micro, int64_t count);
/* How often a program runs in an optimizer step of `micros` micro-steps. */
int64_t program_times(const Plan *plan, const Program *program, int64_t micros);

/* Of programs that choose tokens, by slot: the token chosen last, i32 (S); what penalties look at, i32 (S,V); what the host is told of the
 * last DECODE_RING runs, by row, i32 (DECODE_RING,S,3+2n) (op tell_rows). */
#define DECODE_NEXT "decode.next"
#define DECODE_SEEN "decode.seen"
#define DECODE_TOLD "decode.told"
enum { DECODE_RING = 8 };

/* Of programs of entry `head`: the matrix, its rows' scales, its bias; the rows that come in, by dtype; the run's number, i64 (1); what the
 * host is told of the last HEAD_RING runs, i32 (HEAD_RING,N) (op tell_ids). */
#define HEAD_WEIGHT "weight"
#define HEAD_WEIGHT_SCALE "weight.scale"
#define HEAD_WEIGHT_BIAS "bias"
#define HEAD_HIDDEN "hidden."
#define HEAD_RUN "head.run"
#define HEAD_TOLD "head.told"
enum { HEAD_RING = 8 };

/* Where a lasting value (parameter, gradient, state, input) of any program lies; NULL: none of that name. Beside each
 * program's own names there are those of the buckets and these. */
#define STATE_LOSS "loss.sum" /* f32 (1): of this step so far */
const PlanEntry *plan_find(const Plan *plan, const char *name);
/* Does the program read an input of this name? */
bool program_reads(const Program *program, const char *name);
/* Elements of a state of a parameter of its bucket, as a tensor of its own. */
TensorType state_type(const BucketState *state, const Param *param);

/* What this rank owns of a trained parameter: of its weight and its gradient (the same elements, in the bucket's grad_share), and of a
 * state of it, by index in the bucket. All ranks' pieces together are the tensor. With one rank a piece is all of it. What is owned of the
 * states is what the rank updates: other elements than of the weight where a whole matrix is one rank's to update. */
PlanPiece plan_owned(const Plan *plan, const Bucket *bucket, int index);
PlanPiece plan_owned_state(const Plan *plan, const Bucket *bucket, int index, const BucketState *state);
/* What this rank has of a parameter's value, or of a part of its stored form, once weights were gathered: all of it, where it isn't
 * divided. */
PlanPiece plan_held(const Plan *plan, const char *name);
/* The bucket of a trained parameter, and its index there; NULL: it isn't trained. */
const Bucket *plan_bucket(const Plan *plan, const Param *param, int *out_index);
/* The wider copy of a parameter's bucket, and the element of it where what this rank owns of the parameter begins; NULL: none, the
 * parameter is its only copy. */
const PlanEntry *plan_master(const Plan *plan, const Param *param, int64_t *out_at);
/* Adds an entry; the name must be new. */
PlanEntry *plan_add(Plan *plan, const char *name, const TensorType *type, Region region, Space space, int64_t offset);

/* Of all collectives that the programs run, in their order: what must be equal on all ranks before any of them is run. */
uint64_t plan_collectives(const Plan *plan);

int64_t plan_total_bytes(const Plan *plan); /* of the device */
int64_t plan_host_bytes(const Plan *plan);  /* pinned memory of the host */
/* Of them: codes of weights, and what scales are made from with the scales themselves. */
int64_t plan_code_bytes(const Plan *plan);
int64_t plan_scale_bytes(const Plan *plan);
int64_t plan_coded_bytes(const Plan *plan); /* parts of coded weights */

OpCost launch_cost(const Launch *launch);
/* The dtype of the largest input but for what results are added to: what a matrix unit works on. */
DType launch_operand_dtype(const Launch *launch);
/* Seconds that links are busy with what a launch reads and writes of the host's memory, and sends to other ranks. */
double launch_link_seconds(const DeviceFacts *facts, const Launch *launch);
/* Bytes, divided among `world` ranks, of a collective that reaches this part of the speed of the ranks' links: the rest of its time is what
 * any takes. 0: the links aren't known. */
int64_t link_bytes_at(const DeviceFacts *facts, int world, double part);
/* Seconds a launch takes at least on such a device: by arithmetic, traffic or the link, and what any launch costs. document_share: how much
 * of the arithmetic of rows of one document (OP_BY_DOCUMENT) the rows ask for, at most 1. */
double launch_limit_seconds(const DeviceFacts *facts, const Launch *launch, double document_share);

/* {"regions": {...}, "total_bytes", "programs": {...}, ...}: what `surogate plan --json` prints. */
void plan_write_json(const Plan *plan, StrBuf *out);
