/* Compiling: an IR module, a model's config and options go in; a Plan with every buffer placed comes out. */
#pragma once

#include "config/config.h"
#include "ir/module.h"
#include "passes/normuon.h"
#include "passes/quantise.h"
#include "run/program.h"

typedef enum Fusion {
#define FUSION(id, name, help) FUSE_##id,
#include "passes/fusions.def"
#undef FUSION
    FUSION_COUNT
} Fusion;
const char *fusion_name(Fusion fusion);

typedef enum OptimizerKind {
#define OPTIMIZER(id, name, help) OPTIMIZER_##id,
#include "passes/optimizers.def"
#undef OPTIMIZER
    OPTIMIZER_COUNT
} OptimizerKind;
const char *optimizer_name(OptimizerKind optimizer);
bool        optimizer_parse(const char *name, OptimizerKind *out);

/* A linear layer whose adapter has its own rank and alpha. */
typedef struct LoraModule {
    const char *path;
    int64_t     r;
    double      alpha;
} LoraModule;

/* Rows of an embedding or head that are trained beside the adapters. */
typedef struct LoraTokens {
    const char    *module; /* end of the path of the matrix's module; NULL: the embedding, and the head if both are one matrix */
    int            num;
    const int64_t *ids;
} LoraTokens;

/* How adapters start. UNIFORM (Kaiming's) and GAUSSIAN (deviation 1 / r): A is random, B is zero. PISSA and OLORA: A and B are made from a
 * part of the base's weights, and this part is subtracted from the weights (model/lora_pairs.h). */
typedef enum LoraInit { LORA_UNIFORM, LORA_GAUSSIAN, LORA_PISSA, LORA_OLORA } LoraInit;
static inline bool lora_init_takes(LoraInit init) /* whether adapters start from a part of the base */
{
    return init == LORA_PISSA || init == LORA_OLORA;
}

typedef struct LoraOptions {
    bool               enabled;
    LoraInit           init;
    int64_t            r;
    double             alpha, dropout;
    bool               use_rslora;
    bool               use_dora; /* rows of the sum of base and adapter get trained lengths (model/dora.h) */
    int                num_targets;
    const char *const *targets; /* module names or path suffixes; "all-linear" alone: all but the head */
    int                num_whole;
    const char *const *whole;     /* modules that are trained whole beside the adapters: ends of their paths (adapt_whole.h) */
    bool               tie_whole; /* a tied embedding stays tied; else embedding and head are each trained or frozen by themselves */
    int                num_tokens;
    const LoraTokens  *tokens; /* lists of trained rows, each for a different matrix */
    int                num_modules;
    const LoraModule  *modules;   /* layers of an existing adapter, or chosen one by one, sorted by path: they replace `targets`, `r` and
                                     `alpha` */
    const JsonValue   *selection; /* keys of adapter_config.json that chose `modules`; NULL: only `targets` did */
    int                num_left_out;
    const char *const *left_out; /* module paths that "all-linear" leaves out, as it does the head: other ops read their weights */
} LoraOptions;

const LoraModule *lora_find_module(const LoraOptions *lora, const char *path);  /* finds the module in `modules`; NULL: none */
double            lora_scale(const LoraOptions *lora, int64_t r, double alpha); /* alpha / r, with rsLoRA alpha / sqrt(r) */
/* Whether the weight's linear layer gets an adapter. matched[i] is set to 1 if targets[i] names the layer; NULL: not wanted. */
bool lora_has_target(const LoraOptions *lora, const Param *param, char *matched);
/* The first reader of the weight W other than linear layers: merging replaces W by W + B A, which would change that reader's result. NULL:
 * none. A tied head counts as a weight of its own, since merging unties it. */
const Node *lora_other_reader(const Graph *graph, const Param *param);

/* How the products of the blocks' linear layers are computed (passes/precision.c). */
typedef struct PrecisionOptions {
    DType   forward;  /* dtype of forward operands: E4M3; E2M1 (then backward products use it too); BF16; F32; COUNT: the model's dtype */
    DType   backward; /* dtype of backward gradients: E5M2; BF16; F32 (then all backward operands have it); COUNT: the model's dtype */
    int64_t amax_history;          /* number of optimizer steps whose largest magnitudes make a scale */
    int64_t margin;                /* scales are divided by 2^margin */
    bool    own_scales;            /* without history: an input's scale is made from its own values */
    bool    most_recent;           /* scales follow the newest step, not the largest of the history */
    int64_t skip_first, skip_last; /* blocks whose products stay in the model's dtype */
    bool    fp4_nearest;           /* gradients are rounded to nearest, not stochastically */
    bool    fp4_hadamard;          /* operands of weight gradients are transformed */
    bool    fp4_four_six;          /* a block's largest element is scaled to 4 or 6 */
} PrecisionOptions;

/* What is kept in pinned memory of the host instead of the device's. */
typedef enum Offload {
#define OFFLOAD(id, name, help) OFFLOAD_##id,
#include "passes/offload.def"
#undef OFFLOAD
    OFFLOAD_COUNT
} Offload;
const char *offload_name(Offload offload);

/* What a request may ask of programs that choose tokens. */
typedef struct SamplingOptions {
    int64_t vocab;     /* only ids below it are chosen: embeddings are often longer than the vocabulary; 0: all ids */
    int     best;      /* how many of the likeliest tokens have their log-probabilities reported */
    bool    penalties; /* tokens seen before may score less */
    int     biases;    /* most scores of a row that biases change */
    bool    guides;    /* a row may restrict its token to a list of ids */
} SamplingOptions;

/* A bare matrix whose scores choose ids: the model of programs of entry `head`. */
typedef struct HeadOptions {
    int64_t vocab, dim; /* rows and columns of the matrix */
    int64_t rows;       /* most rows of hidden states in a run */
    DType   dtype;      /* dtype of the stored matrix: F32, BF16, F16, or I8 with a scale for each row */
    bool    has_bias;
} HeadOptions;

/* The matrix is stored in pieces of consecutive rows. Each rank has an equal share of the rows of each piece, in the order of ranks; the
 * last rows of all may be past the vocabulary. Piece 0 is the parameter "weight", piece p "weight.p"; scales and biases have names of
 * the same form. */
int     head_pieces(int world);
int64_t head_share(int64_t vocab, int world); /* rows of a piece on a rank */

/* Positions that a page of the KV cache holds. */
enum { CACHE_PAGE_LEN = 32 };

enum { MAX_PROGRAMS = 32 };

/* The most gradients that are summed in bf16. Longer sums lose small addends: 0.4 % of the sum of 512 gradients, 3 % of 1,024. */
enum { MOST_NARROW_SUMS = 64 };

typedef struct CompileOptions {
    ProgramSpec programs[MAX_PROGRAMS]; /* programs to make beside the load program; those of one entry differ in shape */
    int         num_programs;
    int64_t     cache_len;        /* most tokens of a row in the KV cache */
    int64_t     cache_pages;      /* pages of the KV cache, without the spare page that belongs to no row; 0: enough for the most rows of
                                     cache_len tokens */
    bool            fp8_cache;    /* the KV cache is in e4m3; else in model_dtype */
    bool            split_k;      /* decode programs sum long products in parts; else in one chain, as prompt programs do */
    SamplingOptions sampling;     /* for programs that choose tokens */
    int64_t         top;          /* how many of the likeliest tokens a program reports, if it reports them */
    HeadOptions     head;         /* only for compile_head */
    DType           model_dtype;  /* dtype of parameters and activations */
    bool            fp32_grads;   /* weight gradients are stored and summed in fp32; else in their parameter's dtype */
    DType           master_dtype; /* dtype of the weights that the optimizer updates */
    DType           moment_dtype;
    bool master_weights;  /* master_dtype isn't model_dtype: if wider, a copy is kept; if narrower, weights are kept only in master_dtype
                             (passes/precision_floats.c) */
    uint32_t recompute;   /* bit per Part */
    uint32_t no_fuse;     /* bit per Fusion: switched off */
    int64_t  micro_steps; /* micro-steps of an optimizer step: how often a gradient is added to; 0: unknown, counts as one */
    uint32_t offload;     /* bit per Offload */
    int64_t piece_numel; /* most elements of offloaded memory that are updated at a time; a rule of whole parameters updates a larger one at
                            once */
    LoraOptions        lora;
    const LoraOptions *row_adapters; /* replaces `lora`: each row of a program with a cache chooses one of these adapters, or none, by a
                                        feed */
    int     num_row_adapters;
    int     rank, world; /* the rank that the plan is for, of the `world` ranks that train one model */
    int     zero_level;  /* 1 to 3: the Division of values that can be divided among ranks; with one rank nothing is divided */
    int64_t whole_bytes; /* weights of fewer bytes stay whole on each rank */
    int64_t chunk_bytes; /* least bytes of a chunk that crosses between ranks, where a chunk may have several values; 0: from the links'
                            speed */
    const WeightFormat *weight_format;                           /* storage format of the blocks' frozen matrices; NULL: model_dtype */
    bool (*keeps_format)(const void *model, const Param *param); /* which of the blocks' frozen matrices have weight_format; NULL: all */
    const void      *keeps_format_model;
    OptimizerKind    optimizer;
    NormuonOptions   normuon; /* without dtype and max_grad_norm, which other options set */
    PrecisionOptions precision;
    StrList          scalars;                         /* names of the scalars that a step reports beside loss and norm (passes/scalars.h) */
    bool             accuracy;                        /* adds the scalar `accuracy`, if the model has it */
    bool             dense;                           /* every training row is one document, perhaps followed by padding */
    bool             train_base;                      /* false with LoRA: the base is frozen */
#define COMPILES(kind, name) CONFIG_TYPE_##kind name; /* fields named after the run file's keys */
#include "config/options.def"
    bool unplaced; /* activations get no offsets: their size is computed as if placed without gaps. There is no load program. Such a plan is
                      never run */
    int64_t max_layers; /* plans only the model's first layers; 0: all */
    bool    verify;     /* graph_verify after every pass, not only before placing */
    /* called after each pass of each program; NULL: not called */
    void (*after_pass)(void *context, const char *pass, const Graph *graph);
    void *after_pass_context;
} CompileOptions;

/* The defaults, without programs. */
CompileOptions compile_defaults(void);
/* compile_add_spec requests one program (not `load`, which always exists); compile_add an entry in one shape; compile_add_micro micro-step
 * `micro` of a step of `count`; compile_add_training all programs of a training step: micro-steps, the optimizer's and, with several ranks,
 * the gather program. Set options->world before. */
void compile_add_spec(CompileOptions *options, ProgramSpec spec);
void compile_add(CompileOptions *options, const Entry *entry, int64_t batch, int64_t seq);
void compile_add_micro(CompileOptions *options, int64_t micro, int64_t count, int64_t batch, int64_t seq);
void compile_add_training(CompileOptions *options, int64_t batch, int64_t seq);
/* Removes all requested programs of an entry. */
void compile_drop(CompileOptions *options, const Entry *entry);
/* Whether a program of this spec is requested, in any shape. */
bool compile_has(const CompileOptions *options, const ProgramSpec *spec);
/* The first requested spec of an entry; NULL: none. */
const ProgramSpec *compile_spec(const CompileOptions *options, const Entry *entry);

/* For programs that read a KV cache. compile_row_pages: the most pages of a row: for cache_len tokens, and after them the longest run of
 * new tokens. compile_cache_rows: the most rows of a program. compile_cache_pages: all pages, including the spare page that belongs to no
 * row. */
int64_t compile_row_pages(const CompileOptions *options);
int64_t compile_cache_rows(const CompileOptions *options);
int64_t compile_cache_pages(const CompileOptions *options);

/* Parses the dtype of weights and activations in decoding: fp32, bf16 or fp16. */
NODISCARD Status compile_parse_dtype(const char *word, DType *out);

/* Parses the dtype of the KV cache: fp8, or auto for model_dtype. */
NODISCARD Status compile_parse_cache(const char *word, bool *out_fp8);

/* If programs use a model's own input as an index, its values must be below the result. INT64_MAX: no program uses it as an index. */
int64_t compile_index_bound(const Plan *plan, const char *input);

/* `config`: the model folder's config.json. Everything is allocated in `arena`. Errors name file, key, node or parameter. */
NODISCARD Status compile_plan(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name,
                              const CompileOptions *options, Device *device, Plan **out_plan);

/* Compiles programs of entry `head`. options->programs says for each its number of rows and the dtype of its hidden states. */
NODISCARD Status compile_head(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan);
