/* Program: what compiling produces. A flat list of launches over planned memory, in a few regions shared by the programs of a session.
 * Compiling needs no weights and, on the null device, no GPU. */
#pragma once

#include "device/device.h"
#include "ir/entry.h"
#include "ops/attrs.h"

typedef enum Region {
    REGION_WEIGHTS,   /* the buckets of trained parameters first, then frozen parameters */
    REGION_GRADS,     /* gradients of the buckets, laid out like their parameters */
    REGION_OPTIMIZER, /* moments and master weights, flat; loss and norm scalars */
    REGION_CONSTS,
    REGION_INPUTS,
    REGION_CACHE,       /* KV cache */
    REGION_ACTIVATIONS, /* memory is reused; as large as the largest need of any program; also holds large workspaces */
    REGION_WORKSPACE,   /* one scratch for each stream, which its launches share; large workspaces are in activations */
    REGION_COUNT
} Region;
const char *region_name(Region region);

typedef struct Placement {
    Region  region; /* what the memory is for */
    Space   space;  /* where the memory is */
    int64_t offset, bytes;
} Placement;

/* A program of a session: what it computes, and the shape of a run. */
typedef struct ProgramSpec {
    const Entry *entry;
    bool         adds;       /* micro-step: gradients and loss are added to the existing ones; else they overwrite them */
    bool         ends;       /* micro-step of several ranks: afterwards gradients are summed over the ranks */
    int64_t      batch, seq; /* rows, and tokens of a row; 0 in programs that aren't made from the model */
    DType        hidden;     /* of entry head: dtype of the hidden states */
} ProgramSpec;

/* Whether two specs are the same except for shapes. */
bool program_alike(const ProgramSpec *a, const ProgramSpec *b);
/* The entry's name; for a micro-step: micro_first, micro_next, micro_last or micro_only. */
const char *program_spec_name(const ProgramSpec *spec);
/* Writes all specs that can be requested, without shapes: each entry once, but micro-steps in four kinds: first, next, last, only. Returns
 * how many. */
enum { MOST_SPECS = 16 };
int program_specs(ProgramSpec out[MOST_SPECS]);
/* Finds the spec of this name; the shape in *out stays. ERR_INVALID lists all names. */
NODISCARD Status program_find(const char *name, ProgramSpec *out);
/* The spec of micro-step `micro` in a step of `count`, with `world` ranks. With one rank `ends` is false. */
ProgramSpec program_micro(int64_t micro, int64_t count, int world);

/* A lasting value of the session, by name. */
typedef struct PlanEntry {
    const char *name;
    TensorType  type;
    Placement   place;
    int         trained; /* 1 + index in trained_params; 0: no trained parameter */
    int64_t     first;   /* of a divided value: index of this rank's first element; `type` describes this rank's elements only */
} PlanEntry;

typedef struct Program {
    ProgramSpec spec;
    const char *name; /* the spec's name; if several programs of the session have it, with the shape: "decode[4x1]" */
    Graph      *graph;
    Placement  *placement; /* by value id */
    int64_t    *scratch;   /* by node id: where its workspace begins in the activations; -1: it uses the scratch of its stream */
    int         num_launches, num_once;
    Launch     *once; /* launches of NODE_ONCE nodes, run after allocation */
    Launch     *launches;
    int64_t     live_bytes; /* largest sum of activations alive at one time: a lower bound for any placement */
    int64_t     activation_bytes;
    OpCost      cost;                        /* sum of the launches' costs */
    double      limit_seconds[STREAM_COUNT]; /* seconds by stream, if every launch took its least time (launch_limit_seconds) */
    double      roofline_seconds;            /* the largest of limit_seconds: a lower bound for the program */
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

/* A state of the optimizer for a bucket's parameters. Their states stand one after the other in a flat value of the plan. */
typedef struct BucketState {
    const char    *name;  /* "m": in a checkpoint it is tensor P.m for parameter P */
    const char    *value; /* name of the plan's value */
    DType          dtype;
    StateExtent    extent;
    StateCode      code;
    int            scale;   /* if the state is codes (DT_U8): index of the state with their scales */
    bool           is_copy; /* a copy of the weights in more bits */
    int64_t        numel;
    const int64_t *at; /* by parameter of the bucket: where this rank's elements of the state begin */
} BucketState;

/* Consecutive elements of a bucket that cross between ranks at once. Each rank owns an equal share, in the order of ranks. */
typedef struct Chunk {
    int64_t first, numel;
    int64_t read; /* when the chunk is first read, comparable among all buckets: a smaller number is earlier */
} Chunk;

/* The ZeRO level of a bucket. Each line says which values every rank holds whole. */
typedef enum Division {
    DIVIDE_STATES = 1, /* weights and gradients are whole on every rank */
    DIVIDE_GRADS,      /* weights are whole on every rank */
    DIVIDE_WEIGHTS,    /* nothing need be whole */
} Division;

/* Trained parameters in a flat run: one rule of the optimizer updates them, their weights have one dtype, their gradients one dtype. The
 * flat buffers are values of the plan; `weights`, `grads`, `weight_share` and `grad_share` are their names.
 *
 * With several ranks each owns its shares of all chunks, one after the other, in flat values of share_numel elements. The optimizer and its
 * states work on these shares alone. With one rank the share is the flat run itself. */
enum { BUCKET_MAX_STATES = 6 };
typedef struct Bucket {
    DType                       weight, grad;
    const struct OptimizerRule *rule;         /* see passes/optimizers.h */
    int                         first, count; /* the bucket's parameters: trained_params[first, first + count) */
    const int                  *listed;       /* indices of the parameters in the bucket, in graph order, which doesn't depend on ranks */
    int64_t                     numel;        /* elements, with the padding between parameters */
    Space                       space;        /* space of the weights */
    Space                       grad_space;
    int64_t                     weight_offset, grad_offset; /* bytes into their regions */
    const char                 *weights, *grads;            /* names of the flat values; NULL: no rank has them whole */
    Division                    division;
    bool                        by_value; /* all states of a value belong to one rank: equal shares would cut blocks of moments */
    Chunk                      *chunks;
    int                         num_chunks;
    Chunk *groups; /* if by_value, or if the rule updates whole values: a group has one value for each rank, all of one type, and each rank
                      has the states of its value. Unless groups are chunks too, the rank receives its value whole for the update, and
                      then returns shares (passes/updates.c). NULL: states are divided like chunks */
    int         num_groups;
    int64_t     share_numel;
    const char *weight_share, *grad_share;
    BucketState states[BUCKET_MAX_STATES];
    int         num_states;
} Bucket;

/* Elements [first, first + numel of `staged`) of a parameter arrive in the value `staged` of the load program. The launches from the first
 * reader of `staged` up to the first reader of the next arrival's `staged` convert them into the values that are kept. All are of the
 * compute stream, so that pieces are written in order. */
typedef struct Arrival {
    const Param *param;
    int64_t      first;
    const Value *staged;
} Arrival;

/* A tensor that is kept in codes with one scale. The plan has these values for all N such tensors: */
#define PRECISION_SCALES "fp8.scales"   /* f32 (N,4): each row a scale as in ops/lowbit/fp8.h */
#define PRECISION_NOW "fp8.now"         /* f32 (N): the largest magnitude since the last optimizer step */
#define PRECISION_HISTORY "fp8.history" /* f32 (H,N): largest magnitudes of earlier steps, a ring: step s in row s mod H */
typedef struct ScaledTensor {
    const char *name; /* the weight's name; for an operand beside it, followed by .x (input) or .dy (gradient of the output) */
    DType       dtype;
    const char *codes, *transposed; /* the plan's values with a weight's codes, and with its transpose's codes; NULL: not wanted */
    /* The parameters in a frozen weight, whose codes are made when it is loaded. num_params 0: no frozen weight. */
    const char *const *params;
    int                num_params;
} ScaledTensor;

/* Formats of codes that products read, besides FP8 with one scale. A plan uses at most one of them. */
typedef enum CodedFormat {
    CODED_NONE,
    CODED_TILES, /* frozen weights that are kept in FP8 with scales of tiles */
    CODED_FP4,   /* NVFP4 */
} CodedFormat;

/* The values made from a weight, or from its codes in tiles. Codes of an FP4 weight and of its transpose share one MADE_GLOBAL. */
typedef enum MadePart {
    MADE_CODES,
    MADE_SCALE,
    MADE_GLOBAL,
    MADE_TURNED, /* codes of the transpose */
    MADE_TURNED_SCALE,
    MADE_PADDED, /* scales of tiles, padded for products */
    MADE_COUNT
} MadePart;

/* A weight that products read in plan->coded_format. Parts of a frozen weight are made when it is loaded. */
typedef struct CodedWeight {
    const char        *name;   /* the plan's value: the codes of a frozen weight, else the weight itself */
    const char        *scale;  /* the plan's value with the scales of codes in tiles */
    const char *const *params; /* the parameters in a frozen weight; NULL: it is trained */
    int                num_params;
    const char        *made[MADE_COUNT]; /* the plan's values; kept only if a program reads them. NULL: the format has no such part */
    bool               is_tiled[2];      /* whether FP4 scales lie in tiles (ops/lowbit/nvfp4.h): of the codes [0], of the transpose's codes
                                            [1] */
} CodedWeight;

/* Elements [first, first + numel) of a tensor are stored in value `value` of the plan, from its element `at` on. numel 0: this rank has
 * none. */
typedef struct PlanPiece {
    const char *value;
    int64_t     first, numel, at;
} PlanPiece;

/* A number that a step reports by name. It is summed over micro-steps and ranks in `state`, f32 (1), as the loss is. */
typedef struct Scalar {
    const char *name, *state;
    double (*finish)(double sum, double loss); /* the number to report; NULL: the sum */
} Scalar;

/* Attention whose keys and values are made from one vector per token, the latent (passes/latent.c): how the KV cache holds them. */
typedef struct PlanLatent {
    int         layers, whole_layers;   /* layers whose cache holds latents; layers whose cache holds keys and values */
    int64_t     numbers, whole_numbers; /* values per token in one layer: of a latent; of keys and values */
    const char *why;                    /* why whole_layers hold keys and values; lasts as long as the program */
} PlanLatent;

typedef struct Plan {
    Arena      *arena;
    Program    *programs; /* they share all regions: a weight has one place in all of them */
    int         num_programs;
    int64_t     region_bytes[SPACE_COUNT][REGION_COUNT];
    int64_t     workspace_offset[STREAM_COUNT]; /* offset of each stream's scratch in REGION_WORKSPACE */
    int64_t     workspace_bytes[STREAM_COUNT];
    PlanEntry  *entries;
    int         num_entries, cap_entries;
    int        *entry_table; /* hash of names: index + 1, 0 empty */
    int         entry_table_size;
    Param     **params;
    int         num_params;
    int64_t     trained_numel; /* elements of all trained parameters, without padding */
    int64_t     total_numel;
    DeviceFacts facts;
    int         rank, world;    /* this plan's rank, of `world` ranks */
    Param     **trained_params; /* in the order of buckets */
    int         num_trained;
    PlanPiece  *shares;                   /* by index in trained_params: this rank's piece of the weight and of the gradient */
    int64_t (*segments)[SEGMENT_COLUMNS]; /* by index in trained_params: the elements that this rank updates, as laid out in its states */
    Bucket       *buckets;
    int           num_buckets;
    const char   *optimizer;                /* name of the optimizer, which checkpoints keep */
    const char   *own_feeds[FEED_MOST_OWN]; /* names of the model's own inputs; the first NULL ends them */
    int64_t       cache_len;                /* most tokens of a generated sequence, prompt and text together */
    int64_t       choices;                  /* only ids below this one are chosen; 0: all ids of the head */
    int64_t       cache_pages;              /* pages of the KV cache, including the spare page that belongs to no row */
    PlanLatent    latent;
    int           row_adapters;  /* number of adapters among which each row of a program with a cache chooses */
    bool          adapters_take; /* adapters began with a part of the base (model/lora_pairs.h), which their files hold too */
    ScaledTensor *scaled;
    int           num_scaled;
    CodedFormat   coded_format;
    CodedWeight  *coded;
    int           num_coded;
    int           num_floats; /* number of products, in all programs, whose operands are floats of another width than the model's */
    Scalar        scalars[MOST_SCALARS];
    int           num_scalars;
    Arrival      *arrivals; /* in the order of `params`; of each parameter the pieces that this rank keeps, in order */
    int           num_arrivals;
} Plan;

/* The first program of an entry; NULL: the session has none. */
const Program *plan_program(const Plan *plan, const Entry *entry);
/* The first program of this spec, in any shape; NULL: none. */
const Program *plan_program_like(const Plan *plan, const ProgramSpec *spec);
/* The program of an entry and a shape; NULL: none. */
const Program *plan_program_of(const Plan *plan, const Entry *entry, int64_t batch, int64_t seq);
/* The program that runs as micro-step `micro` in a step of `count`; NULL: none. */
const Program *plan_micro(const Plan *plan, int64_t micro, int64_t count);
/* How often a program runs in an optimizer step of `micros` micro-steps. */
int64_t program_times(const Plan *plan, const Program *program, int64_t micros);

/* Values of programs that choose tokens, with S slots. DECODE_NEXT: the token chosen last, i32 (S). DECODE_SEEN: the tokens seen, for
 * penalties, i32 (S,V). DECODE_TOLD: what the host reads of the last DECODE_RING runs, by row, i32 (DECODE_RING,S,3+2n) (op tell_rows). */
#define DECODE_NEXT "decode.next"
#define DECODE_SEEN "decode.seen"
#define DECODE_TOLD "decode.told"
enum { DECODE_RING = 8 };

/* Values of programs of entry `head`, in this order: the matrix, its rows' scales, its bias; the rows of hidden states (this name is
 * followed by their dtype); the run's number, i64 (1); the ids of the last HEAD_RING runs for the host to read, i32 (HEAD_RING,N) (op
 * tell_ids). */
#define HEAD_WEIGHT "weight"
#define HEAD_WEIGHT_SCALE "weight.scale"
#define HEAD_WEIGHT_BIAS "bias"
#define HEAD_HIDDEN "hidden."
#define HEAD_RUN "head.run"
#define HEAD_TOLD "head.told"
enum { HEAD_RING = 8 };

/* The entry of a lasting value (parameter, gradient, state, input) of any program; NULL: no value has this name. The names are the names of
 * the programs' values, the names of the buckets' flat values, and this name: */
#define STATE_LOSS "loss.sum" /* f32 (1): sum of the step's losses so far */
const PlanEntry *plan_find(const Plan *plan, const char *name);
/* Does the program read an input of this name? */
bool program_reads(const Program *program, const char *name);
/* The type of a parameter's state in its bucket, as a tensor of its own. */
TensorType state_type(const BucketState *state, const Param *param);

/* The piece that this rank owns of the parameter with this index in the bucket. plan_owned: the piece of its weight and of its gradient
 * (the same elements, in the bucket's grad_share). plan_owned_state: the piece of a state, for the elements that the rank updates. If one
 * rank updates the whole matrix, these aren't the elements that it owns of the weight. All ranks' pieces together are the tensor; with one
 * rank a piece is the whole tensor. */
PlanPiece plan_owned(const Plan *plan, const Bucket *bucket, int index);
PlanPiece plan_owned_state(const Plan *plan, const Bucket *bucket, int index, const BucketState *state);
/* The piece of the plan's value of this name that this rank has: all of it, if it isn't divided. The value is a parameter, or a part of a
 * parameter's stored form; weights were gathered before. Result.value NULL: the plan has no value of this name. */
PlanPiece plan_held(const Plan *plan, const char *name);
/* The bucket of a trained parameter, and its index there; NULL: it isn't trained. */
const Bucket *plan_bucket(const Plan *plan, const Param *param, int *out_index);
/* The value with the wider copies of a parameter's bucket; *out_at: its element at which this rank's piece of the parameter begins. NULL:
 * there is no wider copy. */
const PlanEntry *plan_master(const Plan *plan, const Param *param, int64_t *out_at);
/* Adds an entry; the name must be new. */
PlanEntry *plan_add(Plan *plan, const char *name, const TensorType *type, Region region, Space space, int64_t offset);

/* A hash of all collectives that the programs run, in order: it must be equal on all ranks before any of them runs. */
uint64_t plan_collectives(const Plan *plan);

int64_t plan_total_bytes(const Plan *plan); /* bytes of device memory */
int64_t plan_host_bytes(const Plan *plan);  /* bytes of the host's pinned memory */
/* plan_code_bytes: bytes of codes of FP8 weights. plan_scale_bytes: bytes of their scales, and of the measurements that scales are made
 * from. plan_total_bytes and plan_host_bytes include both. */
int64_t plan_code_bytes(const Plan *plan);
int64_t plan_scale_bytes(const Plan *plan);
int64_t plan_coded_bytes(const Plan *plan); /* bytes of all parts of coded weights (plan->coded) */

OpCost launch_cost(const Launch *launch);
/* The dtype that a matrix unit works in: the dtype of the largest input, apart from inputs that results are added to. */
DType launch_operand_dtype(const Launch *launch);
/* Seconds that links are busy with a launch: with its reads and writes of host memory, or with what it sends to other ranks. */
double launch_link_seconds(const DeviceFacts *facts, const Launch *launch);
/* Bytes of a collective, divided among `world` ranks, that reaches `part` of the speed of the ranks' links; the rest of its time is fixed
 * latency. 0: one rank, or the links' speed is unknown. */
int64_t link_bytes_at(const DeviceFacts *facts, int world, double part);
/* The least seconds that a launch takes on such a device: the longest of arithmetic, memory traffic and links, plus the fixed cost of a
 * launch. document_share: in ops with OP_BY_DOCUMENT, the rows' arithmetic as a fraction of the arithmetic for rows of one document each;
 * at most 1. */
double launch_limit_seconds(const DeviceFacts *facts, const Launch *launch, double document_share);

/* {"regions": {...}, "total_bytes", "programs": {...}, ...}: what `surogate plan --json` prints. */
void plan_write_json(const Plan *plan, StrBuf *out);
