/* The pairs that adapters begin with if they take over a part of the base's weights. PiSSA (Meng et al. 2024) takes the largest singular
 * values, OLoRA (Buyukakyuz 2024) the first columns of QR. At the beginning W = (W - scale B0 A0) + scale B A. The saved adapter fits the
 * unchanged base: W + scale (B A - B0 A0), which takes twice the rank. */
#pragma once

#include "comm/comm.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "run/session.h"

typedef struct LoraPair {
    const char *module;        /* path of the linear layer */
    int64_t     rows, cols, r; /* b (rows, r), a (r, cols), in fp32 */
    double      scale;         /* multiplies the product b a */
    float      *a, *b;
} LoraPair;

typedef struct LoraPairs LoraPairs;

/* Whether the parameter is the given half (PEFT_A or PEFT_B) of an adapter's pair. */
bool lora_is_half(const Param *param, const char *half);
/* The weight of the linear layer `module`; NULL: there is none. */
const Param *lora_base_of(const Plan *plan, const char *module);

/* Rounds values to what `dtype` holds. */
void lora_round(DType dtype, float *values, int64_t count);

/* Computes the pairs from the model's weights, which it opens. Each rank computes some pairs; every rank receives all of them. dtype: the
 * dtype of adapters, to which the pairs are rounded. ERR_INVALID: a layer is too small for its rank; ERR_UNSUPPORTED: a layer's weight is
 * the embedding, or shares a tensor with others. pool may be NULL. */
NODISCARD Status lora_pairs_make(HfModel *model, const Plan *plan, const LoraOptions *lora, DType dtype, Comm *comm, ThreadPool *pool,
                                 LoraPairs **out);
/* Reads the pairs from a checkpoint of this plan: its tensors hold the trained values, then the pairs. */
NODISCARD Status   lora_pairs_read(const char *folder, const Plan *plan, const LoraOptions *lora, LoraPairs **out);
void               lora_pairs_destroy(LoraPairs *pairs); /* NULL is fine */
static inline void lora_pairs_destroy_at(LoraPairs **pairs)
{
    lora_pairs_destroy(*pairs);
}

const LoraPair *lora_pairs_find(const LoraPairs *pairs, const char *module); /* NULL: none, or `pairs` is NULL */

/* Sets the session's adapters to the pairs. */
NODISCARD Status lora_pairs_load(Session *session, const LoraPairs *pairs);

/* Subtracts scale B0 A0 from elements [first, first + count) of a layer's weight. The elements must be whole rows. */
void lora_pair_subtract(const LoraPair *pair, int64_t first, int64_t count, float *values);

/* The settings of the saved adapter: twice the rank, the same scale. They are in the arena. */
LoraOptions lora_pairs_saved(Arena *arena, const LoraOptions *lora);
