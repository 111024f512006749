/* How fast a model decodes: random weights and prompts, as many texts at once as there are rows. Of the model folder only config.json is
 * read. */
#pragma once

#include "base/dtype.h"
#include "run/session.h"

typedef struct TextBenchOptions {
    const char *model, *device;       /* a folder; as device_open takes it */
    int         threads;              /* 0: all */
    int         adapters;             /* of rank 16 on all linear layers, which rows have in turn; 0: none */
    DType       dtype;                /* of the weights; DT_COUNT: the model's */
    const char *format;               /* that the matrices of blocks are kept in (passes/quantise.h); NULL: dtype */
    const char *kv;                   /* as compile_parse_cache takes it; NULL: auto */
    bool        split_k;              /* as CompileOptions has it */
    int64_t     rows, prompt, tokens; /* of each text: tokens of the prompt, tokens that are timed behind it */
    int64_t     context;              /* tokens that a text has room for; 0: as many as it has */
    bool        samples;              /* drawn with temperature, top-k and top-p; else the likeliest token */
    bool        prefill;              /* prompts alone are read, `tokens` is 0; beside them the model's forward pass of as many tokens */
} TextBenchOptions;

typedef struct TextTimes {
    double  step;         /* seconds, mean: a token of every row */
    double  prefill;      /* seconds of all prompts */
    double  forward;      /* seconds of as many forward passes, up to the last block; 0: not measured */
    double  weight_bytes; /* that a step reads */
    double  cache_bytes;  /* of valid keys and values that a step reads, mean over the steps */
    double  limit;        /* seconds: both at the device's bandwidth (data sheet, or measured rates) */
    int64_t bytes;        /* that the plan takes of the device */
    int     launches;     /* of a step */
    char    device[128];
} TextTimes;

typedef struct TextBench TextBench;

NODISCARD Status text_bench_create(const TextBenchOptions *options, TextBench **out_bench);
void             text_bench_destroy(TextBench *bench);
NODISCARD Status text_bench_run(TextBench *bench, TextTimes *out_times);

/* Takes the seconds of each of a program's launches, and what measuring took a launch. */
typedef void (*TextProfile)(void *context, const Program *program, const double *seconds, double overhead);

/* The step at the positions where the last run ended; with `prefill` each run of the first prompt. */
NODISCARD Status text_bench_profile(TextBench *bench, TextProfile take, void *context);
