/* The pairs that adapters begin with where these hold a part of the base's weights, which then lose it: PiSSA (Meng et al. 2024), the
 * largest singular values, and OLoRA (Buyukakyuz 2024), the first columns of QR. W = (W - scale B0 A0) + scale B A at the beginning; what
 * is saved is for the base as it was: W + scale (B A - B0 A0), an adapter of twice the rank. */
#pragma once

#include "comm/comm.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "run/session.h"

typedef struct LoraPair {
    const char *module;        /* path of the linear layer */
    int64_t     rows, cols, r; /* b (rows, r), a (r, cols), in fp32 */
    double      scale;         /* of their product */
    float      *a, *b;
} LoraPair;

typedef struct LoraPairs LoraPairs;

/* Whether a parameter is this half (PEFT_A, PEFT_B) of an adapter's pair. */
bool lora_is_half(const Param *param, const char *half);
/* The weight of the linear layer that is the module; NULL: there is none. */
const Param *lora_base_of(const Plan *plan, const char *module);

/* Rounds values to what `dtype` holds. */
void lora_round(DType dtype, float *values, int64_t count);

/* Computed of the model's weights, which are open: each rank some of them, and all get all. dtype: how adapters are stored, to which the
 * pairs are rounded. ERR_INVALID: a rank that a layer is too small for; ERR_UNSUPPORTED: a layer whose weight is no tensor of its own. pool
 * may be NULL. */
NODISCARD Status lora_pairs_make(HfModel *model, const Plan *plan, const LoraOptions *lora, DType dtype, Comm *comm, ThreadPool *pool,
                                 LoraPairs **out);
/* Read from a checkpoint of this plan, which has them beside the trained tensors. */
NODISCARD Status   lora_pairs_read(const char *folder, const Plan *plan, const LoraOptions *lora, LoraPairs **out);
void               lora_pairs_destroy(LoraPairs *pairs); /* NULL is fine */
static inline void lora_pairs_destroy_at(LoraPairs **pairs)
{
    lora_pairs_destroy(*pairs);
}

const LoraPair *lora_pairs_find(const LoraPairs *pairs, const char *module); /* NULL: none; so for pairs NULL */

/* The session's adapters become these. */
NODISCARD Status lora_pairs_load(Session *session, const LoraPairs *pairs);

/* Elements [first, first + count) of a layer's weight (whole rows) lose scale B0 A0. */
void lora_pair_subtract(const LoraPair *pair, int64_t first, int64_t count, float *values);

/* The settings of the adapter that is saved: twice the rank, the same scale. They live in the arena. */
LoraOptions lora_pairs_saved(Arena *arena, const LoraOptions *lora);
