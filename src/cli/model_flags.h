/* The flags of the commands that load a model to ask it something. */
#pragma once

#include "cli/cli.h"
#include "infer/infer_model.h"

typedef struct ModelArgs {
    const char *adapter, *dtype, *qlora, *recipe, *device;
    int64_t     threads;
} ModelArgs;
#define MODEL_DEFAULTS \
    { \
        .device = "auto" \
    }
#define MODEL_FLAGS(m) {"--adapter", FLAG_TEXT, &(m)->adapter, "DIR", "a LoRA adapter over the model"}, MODEL_FLAGS_BUT_ADAPTER(m)
#define MODEL_FLAGS_BUT_ADAPTER(m) \
    {"--dtype", FLAG_TEXT, &(m)->dtype, "NAME", "weights and arithmetic in fp32 or bf16 (as the folder has them)"}, \
        {"--qlora", FLAG_TEXT, &(m)->qlora, "FORMAT", \
         "quantise the model's matrices: nf4, nf4_once, fp8, nvfp4 or none (as the adapter was trained)"}, \
        {"--recipe", FLAG_TEXT, &(m)->recipe, "NAME", \
         "products in blocks as in training: bf16, fp8-hybrid or nvfp4 (bf16: in the model's dtype)"}, \
        {"--device", FLAG_TEXT, &(m)->device, "NAME", "auto, cpu or cuda (auto)"}, \
    { \
        "--threads", FLAG_INT, &(m)->threads, "N", "CPU threads; 0: all (0)" \
    }

/* infer_open with these flags. infer_close frees in every case. */
NODISCARD Status cli_open_model(InferModel *infer, const char *dir, const ModelArgs *m);
