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

/* A linear layer with an adapter of its own rank and alpha. */
typedef struct LoraModule {
    const char *path;
    int64_t     r;
    double      alpha;
} LoraModule;

/* Rows of an embedding or head that are trained beside the adapters. */
typedef struct LoraTokens {
    const char    *module; /* the end of its path; NULL: the embedding, with the head where that is the same matrix */
    int            num;
    const int64_t *ids;
} LoraTokens;

/* How adapters begin: A of Kaiming's uniform numbers, or normal ones of deviation 1 / r, and B of zeros; or with a part of the base's
 * weights, which lose it (model/lora_pairs.h). */
typedef enum LoraInit { LORA_UNIFORM, LORA_GAUSSIAN, LORA_PISSA, LORA_OLORA } LoraInit;
static inline bool lora_init_takes(LoraInit init) /* a part of the base */
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
    const char *const *whole;     /* modules that are trained whole beside the adapters: the ends of their paths (adapt_whole.h) */
    bool               tie_whole; /* an embedding that is the head too stays so; else each is trained or frozen by itself */
    int                num_tokens;
    const LoraTokens  *tokens; /* lists of rows, each of another matrix */
    int                num_modules;
    const LoraModule  *modules;   /* of an adapter that is there, or chosen one by one, sorted by path: these in place of `targets`, `r` and
                                     `alpha` */
    const JsonValue   *selection; /* keys of adapter_config.json by which they were chosen; NULL: by `targets` alone */
    int                num_left_out;
    const char *const *left_out; /* paths that "all-linear" leaves out beside the head: other ops read their weights */
} LoraOptions;

const LoraModule *lora_find_module(const LoraOptions *lora, const char *path);  /* among `modules`; NULL: none */
double            lora_scale(const LoraOptions *lora, int64_t r, double alpha); /* alpha / r, with rsLoRA alpha / sqrt(r) */
/* Whether the weight's linear layer gets an adapter. matched: by target, set where it means the layer; NULL: not asked for. */
bool lora_has_target(const LoraOptions *lora, const Param *param, char *matched);
/* What reads the weight W of a linear layer otherwise: with W + B A in its place, as merging leaves it, that makes something else. NULL:
 * nothing does. A head that is the embedding too counts as its own: merging parts them. */
const Node *lora_other_reader(const Graph *graph, const Param *param);

/* How the products of the blocks' linear layers are computed (passes/precision.c). */
typedef struct PrecisionOptions {
    DType   forward;      /* of the operands of forward products: E4M3; E2M1, as of all others then; BF16, F32; COUNT: the model's */
    DType   backward;     /* of gradients in backward products: E5M2; BF16; F32, as of all that is backward then; COUNT: the model's */
    int64_t amax_history; /* optimizer steps that a scale is made from */
    int64_t margin;       /* scales are divided by 2^margin */
    bool    own_scales;   /* there is no history: an input's scale is that of its own numbers */
    bool    most_recent;  /* scales follow the newest step, not the largest of the history */
    int64_t skip_first, skip_last; /* blocks whose products stay in the model's dtype */
    bool    fp4_nearest;           /* gradients are rounded to nearest, not stochastically */
    bool    fp4_hadamard;          /* operands of weight gradients are transformed */
    bool    fp4_four_six;          /* a block's largest element becomes 4 or 6 */
} PrecisionOptions;

/* What waits in pinned memory of the host, in place of the device's. */
typedef enum Offload {
#define OFFLOAD(id, name, help) OFFLOAD_##id,
#include "passes/offload.def"
#undef OFFLOAD
    OFFLOAD_COUNT
} Offload;
const char *offload_name(Offload offload);

/* How programs that choose tokens do: what a request may ask for. */
typedef struct SamplingOptions {
    int64_t vocab;     /* ids below it are chosen: embeddings are often longer than the vocabulary; 0: all */
    int     best;      /* log-probabilities of that many of the likeliest tokens are told */
    bool    penalties; /* tokens that were seen may score less */
    int     biases;    /* most scores that a row changes */
    bool    guides;    /* a row may name the ids that its token is one of */
} SamplingOptions;

/* A bare matrix that ids are chosen by: what programs of entry `head` are. */
typedef struct HeadOptions {
    int64_t vocab, dim; /* its rows, its columns */
    int64_t rows;       /* most of a run */
    DType   dtype;      /* that it is kept in: F32, BF16, F16 or I8, which has a scale for each row */
    bool    has_bias;
} HeadOptions;

/* Ranks divide the matrix in pieces, one after the other: of each piece every rank has as many rows, in the order of ranks. The last of all
 * may be behind the vocabulary. Piece p is the parameter "weight", from the second on "weight.p"; scale and bias likewise. */
int     head_pieces(int world);
int64_t head_share(int64_t vocab, int world); /* rows of a piece on a rank */

/* Positions that a page of the KV cache holds. */
enum { CACHE_PAGE_LEN = 32 };

enum { MAX_PROGRAMS = 32 };

/* bf16 sums of more gradients than this lose what is small against the sum: 0.4 % of it at 512, 3 % at 1,024. */
enum { MOST_NARROW_SUMS = 64 };

typedef struct CompileOptions {
    ProgramSpec programs[MAX_PROGRAMS]; /* which to make beside the one that loads weights; several of an entry differ in shape */
    int         num_programs;
    int64_t     cache_len;   /* most tokens of a row of the KV cache */
    int64_t     cache_pages; /* of the KV cache, beside the one that is nobody's; 0: as many as the most rows of cache_len tokens need */
    bool        fp8_cache;   /* it is kept in e4m3; else in model_dtype */
    bool        split_k;     /* long sums of decode programs are made in parts; else each is one chain, as where prompts are read */
    SamplingOptions    sampling;     /* of programs that choose tokens */
    int64_t            top;          /* of programs that tell the likeliest tokens: how many */
    HeadOptions        head;         /* of compile_head */
    DType              model_dtype;  /* parameters and activations */
    bool               fp32_grads;   /* weight gradients are stored and summed in fp32; else in their parameter's dtype */
    DType              master_dtype; /* of what the optimizer updates */
    DType              moment_dtype;
    bool               master_weights; /* it isn't the model's: wider, a copy; narrower, all that is kept (passes/precision_floats.c) */
    uint32_t           recompute;      /* bit per Part */
    uint32_t           no_fuse;        /* bit per Fusion: switched off */
    int64_t            micro_steps;    /* of an optimizer step: how often a gradient is added to; 0: not known, as of one */
    uint32_t           offload;        /* bit per Offload */
    int64_t            piece_numel;    /* elements that are updated at a time of what waits there, unless a parameter has more */
    LoraOptions        lora;
    const LoraOptions *row_adapters; /* in place of lora: of these adapters rows of programs with a cache choose one, or none, by a feed */
    int                num_row_adapters;
    int                rank, world; /* of so many ranks that train one model this one is compiled for */
    int                zero_level;  /* 1 to 3: what is divided among them at most (Division); with one rank nothing is */
    int64_t            whole_bytes; /* weights of fewer bytes stay whole on each rank */
    int64_t            chunk_bytes; /* of weights or gradients that cross between ranks at once, where there is a choice; 0: by the links */
    const WeightFormat *weight_format;                           /* of the frozen matrices of blocks; NULL: model_dtype */
    bool (*keeps_format)(const void *model, const Param *param); /* which of them; NULL: all */
    const void      *keeps_format_model;
    OptimizerKind    optimizer;
    NormuonOptions   normuon; /* without what others say: dtype and max_grad_norm */
    PrecisionOptions precision;
    StrList          scalars;                         /* numbers that a step tells beside loss and norm, by name (passes/scalars.h) */
    bool             accuracy;                        /* the scalar `accuracy` too, where the model has it */
    bool             dense;                           /* every training row is one document (padding behind it at most) */
    bool             train_base;                      /* false with LoRA */
#define COMPILES(kind, name) CONFIG_TYPE_##kind name; /* the run file's key */
#include "config/options.def"
    bool unplaced; /* activations get no offsets: their bytes are what a perfect placement would take; nothing loads weights. Never run */
    int64_t max_layers; /* a plan of the model's first layers alone; 0: of all */
    bool    verify;     /* graph_verify after every pass, not only before placing */
    /* called after each pass of each program; NULL: nobody */
    void (*after_pass)(void *context, const char *pass, const Graph *graph);
    void *after_pass_context;
} CompileOptions;

/* Without programs. */
CompileOptions compile_defaults(void);
/* Asks for one program more (but not that of `load`, which is always there); for micro-step `micro` of the `count` of a step; for those of
 * any training step: all micro-steps and the optimizer's, with several ranks also the one that gathers. options->world is set before. */
void compile_add_spec(CompileOptions *options, ProgramSpec spec);
void compile_add(CompileOptions *options, const Entry *entry, int64_t batch, int64_t seq);
void compile_add_micro(CompileOptions *options, int64_t micro, int64_t count, int64_t batch, int64_t seq);
void compile_add_training(CompileOptions *options, int64_t batch, int64_t seq);
/* Takes back all programs of an entry. */
void compile_drop(CompileOptions *options, const Entry *entry);
/* Whether a program of this spec was asked for, in any shape. */
bool compile_has(const CompileOptions *options, const ProgramSpec *spec);
/* What was asked for first of an entry; NULL: nothing. */
const ProgramSpec *compile_spec(const CompileOptions *options, const Entry *entry);

/* Of the programs that read a KV cache: pages that a row has at most, its longest run of new tokens behind cache_len included; the most
 * rows of one; the pages of the cache, the one that is nobody's included. */
int64_t compile_row_pages(const CompileOptions *options);
int64_t compile_cache_rows(const CompileOptions *options);
int64_t compile_cache_pages(const CompileOptions *options);

/* What weights and activations of decoding are kept in, of a word: fp32, bf16 or fp16. */
NODISCARD Status compile_parse_dtype(const char *word, DType *out);

/* What the KV cache is kept in, of a word: fp8, or auto for model_dtype. */
NODISCARD Status compile_parse_cache(const char *word, bool *out_fp8);

/* An input of the model's own that is an index is less than this everywhere; INT64_MAX: nothing looks it up. */
int64_t compile_index_bound(const Plan *plan, const char *input);

/* `config`: the model folder's config.json. Everything is allocated in `arena`. Errors name file, key, node or parameter. */
NODISCARD Status compile_plan(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name,
                              const CompileOptions *options, Device *device, Plan **out_plan);

/* Programs of entry `head` alone: options->programs says for which numbers of rows and which dtypes of hidden states. */
NODISCARD Status compile_head(Arena *arena, const CompileOptions *options, Device *device, Plan **out_plan);
