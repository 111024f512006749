/* Compiling: an IR module, a model's config and options go in; a Plan with every buffer placed comes out. */
#pragma once

#include "ir/module.h"
#include "passes/normuon.h"
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

typedef struct LoraOptions {
    bool               enabled;
    int64_t            r;
    double             alpha, dropout;
    bool               use_rslora;
    int                num_targets;
    const char *const *targets; /* module names or path suffixes; "all-linear" alone: all but the head */
} LoraOptions;

typedef struct CompileOptions {
    /* which programs to make: bit per ProgramKind */
    uint32_t       programs;
    int64_t        batch, seq; /* of a training micro-step */
    int64_t        eval_batch, eval_seq;
    int64_t        cache_batch, cache_len, prefill_chunk;
    DType          model_dtype;  /* parameters and activations */
    bool           fp32_grads;   /* weight gradients are stored and summed in fp32; else in their parameter's dtype */
    DType          master_dtype; /* where wider than the parameter's: a master copy; else stochastic rounding for bf16 */
    DType          moment_dtype;
    bool           master_weights;
    uint32_t       recompute; /* bit per Part */
    uint32_t       no_fuse;   /* bit per Fusion: switched off */
    LoraOptions    lora;
    OptimizerKind  optimizer;
    double         beta1, beta2, adam_eps, weight_decay, max_grad_norm;
    NormuonOptions normuon;    /* without what others say: dtype and max_grad_norm */
    bool           dense;      /* every training row is one document (padding behind it at most) */
    bool           train_base; /* false with LoRA */
    int            num_workers;
    int64_t        max_layers; /* a plan of the model's first layers alone; 0: of all */
    bool           verify;     /* graph_verify after every pass */
    /* called after each pass of each program; NULL: nobody */
    void (*after_pass)(void *context, const char *pass, const Graph *graph);
    void *after_pass_context;
} CompileOptions;

CompileOptions compile_defaults(void);

/* `config`: the model folder's config.json. Everything is allocated in `arena`. Errors name file, key, node or parameter. */
NODISCARD Status compile_plan(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name,
                              const CompileOptions *options, Device *device, Plan **out_plan);
