/* Measures how fast a model decodes several texts at once, one in each row, with random weights and prompts. Only config.json is read from
 * the model folder. */
#pragma once

#include "base/dtype.h"
#include "run/session.h"

typedef struct TextBenchOptions {
    const char *model, *device;       /* folder of the model; name for device_open */
    int         threads;              /* CPU threads; 0: all */
    int         adapters;             /* number of adapters of rank 16 on all linear layers, used by rows in turn; 0: none */
    DType       dtype;                /* dtype of the weights; DT_COUNT: the model's own */
    const char *format;               /* storage format of the blocks' matrices (passes/quantise.h); NULL: plain */
    const char *kv;                   /* word for the KV cache (compile_parse_cache); NULL: auto */
    bool        split_k;              /* CompileOptions.split_k */
    int64_t     rows, prompt, tokens; /* rows; tokens of each prompt; tokens timed after each prompt */
    int64_t     context;              /* capacity of a text in tokens; 0: just what it needs */
    bool        samples;              /* sample with temperature, top-k and top-p; else take the likeliest token */
    bool        prefill; /* time only the reading of prompts (with `tokens` 0), and forward passes over the same number of tokens */
} TextBenchOptions;

typedef struct TextTimes {
    double  step;         /* mean seconds of a step, which makes one token for every row */
    double  prefill;      /* seconds for reading all prompts */
    double  forward;      /* seconds of forward passes over the prompts' tokens, without head and loss; 0: not measured */
    double  weight_bytes; /* bytes of weights that a step reads */
    double  cache_bytes;  /* bytes of valid keys and values that a step reads, mean over the steps */
    double  limit;        /* seconds to read these weights, keys and values at the device's bandwidth (data sheet, or measured rates) */
    int64_t bytes;        /* device memory of the plan */
    int     launches;     /* launches of a step */
    char    device[128];
} TextTimes;

typedef struct TextBench TextBench;

NODISCARD Status text_bench_create(const TextBenchOptions *options, TextBench **out_bench);
void             text_bench_destroy(TextBench *bench);
NODISCARD Status text_bench_run(TextBench *bench, TextTimes *out_times);

/* Receives the seconds of each launch of a program. overhead: seconds that measuring a launch costs, already subtracted. */
typedef void (*TextProfile)(void *context, const Program *program, const double *seconds, double overhead);

/* Profiles a decode step at the positions where the last run ended; with `prefill` each program that reads the first prompt. */
NODISCARD Status text_bench_profile(TextBench *bench, TextProfile take, void *context);
