/* The flags of the commands that load a model for evaluation or generation. */
#pragma once

#include "cli/cli.h"
#include "infer/infer_model.h"

typedef struct ModelArgs {
    const char *adapter, *dtype, *quantization, *qlora, *recipe, *device;
    int64_t     threads;
} ModelArgs;
#define MODEL_DEFAULTS \
    { \
        .device = "auto" \
    }
#define QUANTIZATION_FLAG(to) \
    { \
        "--quantization", FLAG_TEXT, to, "FORMAT", \
            "keep the matrices of blocks in few bits, quantised as they load: int8, fp8, nf4, nf4_once, nvfp4 or none (as the folder has them)" \
    }
#define KV_FLAG(to) \
    { \
        "--kv", FLAG_TEXT, to, "FORMAT", "keep keys and values in fp8, or in the model's dtype: auto (auto)" \
    }
#define SPLIT_K_FLAG(to) \
    { \
        "--split-k", FLAG_SWITCH, to, NULL, \
            "compute long sums of decoding in parts: faster, with other bits than in reading prompts; on GPUs of compute capability 9.0, in bf16 or fp16" \
    }
#define MODEL_FLAGS(m) {"--adapter", FLAG_TEXT, &(m)->adapter, "DIR", "a LoRA adapter over the model"}, MODEL_FLAGS_BUT_ADAPTER(m)
#define MODEL_FLAGS_BUT_ADAPTER(m) \
    {"--dtype", FLAG_TEXT, &(m)->dtype, "NAME", \
     "weights and arithmetic in fp32, bf16 or fp16 (as the folder has them; where that is fp16, bf16)"}, \
        QUANTIZATION_FLAG(&(m)->quantization), \
        {"--qlora", FLAG_TEXT, &(m)->qlora, "FORMAT", \
         "as --quantization: the format that an adapter was trained over (as its folder says)"}, \
        {"--recipe", FLAG_TEXT, &(m)->recipe, "NAME", \
         "products in blocks as in training: bf16, fp8-hybrid or nvfp4 (bf16: in the model's dtype)"}, \
        {"--device", FLAG_TEXT, &(m)->device, "NAME", "auto, cpu or cuda (auto)"}, \
    { \
        "--threads", FLAG_INT, &(m)->threads, "N", "CPU threads; 0: all (0)" \
    }

/* The format given with --quantization or --qlora; NULL: neither is given. */
const char *cli_model_format(const ModelArgs *m);

/* infer_open with these flags. infer_close frees in every case. */
NODISCARD Status cli_open_model(InferModel *infer, const char *dir, const ModelArgs *m);
