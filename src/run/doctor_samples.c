/* Shapes of real models, beside the small ones of the descriptors: rows of whole 16-byte pieces, head dims of 64 and 128, large
 * vocabularies, long documents. */
#include "run/doctor_samples.h"

#define F(...) { DT_F32, __VA_ARGS__ }
#define I(...) { DT_I32, __VA_ARGS__ }
/* w, g, m, v, norm2, loss, hyper, step, segments */
#define ADAMW_IN(w_dtype) { w_dtype, 1, { 40000 } }, F(1, { 40000 }), F(1, { 40000 }), F(1, { 40000 }), F(1, { 1 }), F(1, { 1 }), \
                          F(1, { HYPER_COUNT }), { DT_I64, 1, { STEP_COUNT } }, { DT_I64, 2, { 2, 4 } }

static const AttentionAttrs gqa_64 = { .num_heads = 4, .num_kv_heads = 2, .head_dim = 64 };
static const AttentionAttrs gqa_128 = { .num_heads = 4, .num_kv_heads = 1, .head_dim = 128 };
static const AttentionAttrs mha_96 = { .num_heads = 2, .num_kv_heads = 2, .head_dim = 96 };
static const AttentionAttrs dense_128 = { .num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .dense = true };
static const AttentionAttrs dense_64 = { .num_heads = 4, .num_kv_heads = 4, .head_dim = 64, .dense = true };
static const QkvAttrs       qkv_128 = { .num_heads = 8, .num_kv_heads = 4, .head_dim = 128, .eps = 1e-6 };
static const LinearAttrs    part = { .alpha = 2, .col = 256, .rows = 512 }, rank_16 = { .alpha = 1, .rows = 16 };
static const LoraAttrs      lora_qkv = { .alpha = 2, .rows = { 2048, 1024, 1024 }, .col = { 0, 2048, 3072 } };
static const LoraAttrs      lora_qv = { .alpha = 2, .rows = { 520, 128 }, .col = { 0, 640 } };
static const LoraAttrs      lora_gate_up = { .alpha = 0.5, .rows = { 1536, 1536 }, .col = { 0, 1536 } };
static const LoraAttrs      lora_one = { .alpha = 2, .rows = { 1024 } };
static const EmbeddingDwAttrs vocab_1000 = { .vocab = 1000 };
static const LinearAttrs    rank_16_f32 = { .alpha = 1, .rows = 16, .dw_dtype = DTYPE_TO_ATTR(DT_F32) };
static const LoraAttrs      lora_qkv_f32 = { .alpha = 2, .rows = { 2048, 1024, 1024 }, .col = { 0, 2048, 3072 }, .dw_dtype = DTYPE_TO_ATTR(DT_F32) };
static const RmsNormAttrs   norm_f32 = { .eps = 1e-6, .dw_dtype = DTYPE_TO_ATTR(DT_F32) };
static const LmHeadBwdAttrs head_f32 = { .dw_dtype = DTYPE_TO_ATTR(DT_F32) };
static const DropoutAttrs   tenth = { .p = 0.1, .site = 7 };

const DoctorSample doctor_samples[] = {
    { OP_ADD, { .in = { F(3, { 2, 300, 1024 }), F(3, { 2, 300, 1024 }) } } },
    { OP_EMBEDDING, { .in = { I(2, { 2, 700 }), F(2, { 1000, 1024 }) }, .int_range = { 1000 } } },
    { OP_EMBEDDING_DW, { .in = { I(2, { 2, 700 }), F(3, { 2, 700, 1024 }) }, .attrs = &vocab_1000, .int_range = { 300 } } },
    { OP_LINEAR, { .in = { F(3, { 2, 256, 512 }), F(2, { 768, 512 }), F(1, { 768 }) } } },
    { OP_LINEAR, { .in = { F(3, { 2, 512, 1024 }), F(2, { 3072, 1024 }) } } },
    { OP_LINEAR, { .in = { F(3, { 2, 512, 1024 }), F(2, { 16, 1024 }) } } },
    { OP_LINEAR_ADD, { .in = { F(3, { 2, 256, 1024 }), F(3, { 2, 256, 16 }), F(2, { 512, 16 }) }, .attrs = &part } },
    { OP_LINEAR_DX, { .in = { F(3, { 2, 256, 1024 }), F(2, { 512, 256 }), F(3, { 2, 256, 256 }) }, .attrs = &part } },
    { OP_LINEAR_DW, { .in = { F(3, { 2, 512, 1024 }), F(3, { 2, 512, 256 }), F(2, { 512, 256 }) }, .attrs = &part } },
    { OP_LINEAR_DW, { .in = { F(3, { 2, 1024, 16 }), F(3, { 2, 1024, 1024 }), F(2, { 16, 1024 }) }, .attrs = &rank_16 } },
    { OP_LINEAR_DW, { .in = { F(3, { 2, 1024, 16 }), F(3, { 2, 1024, 1024 }) }, .attrs = &rank_16_f32 } },
    { OP_LORA_ADD, { .in = { F(3, { 2, 300, 4096 }), F(3, { 2, 300, 48 }), F(2, { 4096, 16 }) }, .attrs = &lora_qkv } },
    { OP_LORA_ADD, { .in = { F(2, { 333, 768 }), F(2, { 333, 16 }), F(2, { 648, 8 }) }, .attrs = &lora_qv } },
    { OP_LORA_ADD, { .in = { F(2, { 200, 3072 }), F(2, { 200, 64 }), F(2, { 3072, 32 }) }, .attrs = &lora_gate_up } },
    { OP_LORA_ADD, { .in = { F(2, { 129, 1024 }), F(2, { 129, 64 }), F(2, { 1024, 64 }) }, .attrs = &lora_one } },
    { OP_LORA_ADD_BWD, { .in = { F(3, { 2, 300, 4096 }), F(3, { 2, 300, 48 }), F(2, { 4096, 16 }) }, .attrs = &lora_qkv } },
    { OP_LORA_ADD_BWD, { .in = { F(2, { 333, 768 }), F(2, { 333, 16 }), F(2, { 648, 8 }) }, .attrs = &lora_qv } },
    { OP_LORA_ADD_BWD, { .in = { F(2, { 200, 3072 }), F(2, { 200, 64 }), F(2, { 3072, 32 }) }, .attrs = &lora_gate_up } },
    { OP_LORA_ADD_BWD, { .in = { F(2, { 129, 1024 }), F(2, { 129, 64 }), F(2, { 1024, 64 }) }, .attrs = &lora_one } },
    { OP_LORA_ADD_BWD, { .in = { F(2, { 8192, 1024 }), F(2, { 8192, 16 }), F(2, { 1024, 16 }) }, .attrs = &lora_one } },
    { OP_LORA_ADD_BWD, { .in = { F(3, { 2, 300, 4096 }), F(3, { 2, 300, 48 }), F(2, { 4096, 16 }) }, .attrs = &lora_qkv_f32 } },
    { OP_COL_SUM, { .in = { F(2, { 4096, 1024 }) } } },
    { OP_RMS_NORM, { .in = { F(2, { 600, 1024 }), F(1, { 1024 }) } } },
    { OP_RMS_NORM, { .in = { F(2, { 100, 4096 }), F(1, { 4096 }) } } },
    { OP_RMS_NORM_BWD, { .in = { F(2, { 600, 1024 }), F(2, { 600, 1024 }), F(1, { 1024 }), F(1, { 600 }) } } },
    { OP_RMS_NORM_BWD, { .in = { F(2, { 600, 1024 }), F(2, { 600, 1024 }), F(1, { 1024 }), F(1, { 600 }) }, .attrs = &norm_f32 } },
    { OP_ADD_RMS_NORM, { .in = { F(2, { 600, 1024 }), F(2, { 600, 1024 }), F(1, { 1024 }) } } },
    { OP_ROPE, { .in = { F(4, { 2, 200, 8, 128 }), F(2, { 256, 128 }), I(2, { 2, 200 }) }, .int_range = { 0, 0, 256 } } },
    { OP_QKV_NORM_ROPE,
      { .in = { F(3, { 2, 200, 2048 }), F(1, { 128 }), F(1, { 128 }), F(2, { 256, 128 }), I(2, { 2, 200 }) },
        .attrs = &qkv_128, .int_range = { 0, 0, 0, 0, 256 } } },
    { OP_QKV_NORM_ROPE_BWD,
      { .in = { F(3, { 2, 200, 2048 }), F(3, { 2, 200, 2048 }), F(1, { 128 }), F(1, { 128 }), F(2, { 256, 128 }), I(2, { 2, 200 }), F(3, { 2, 200, 12 }) },
        .attrs = &qkv_128, .int_range = { 0, 0, 0, 0, 0, 256 } } },
    { OP_ATTENTION, { .in = { F(3, { 2, 333, 512 }), { 0 }, { 0 }, I(2, { 2, 333 }) }, .attrs = &gqa_64 } },
    { OP_ATTENTION, { .in = { F(3, { 2, 600, 768 }), { 0 }, { 0 }, I(2, { 2, 600 }) }, .attrs = &gqa_128 } },
    { OP_ATTENTION, { .in = { F(4, { 1, 130, 2, 96 }), F(4, { 1, 130, 2, 96 }), F(4, { 1, 130, 2, 96 }), I(2, { 1, 130 }) }, .attrs = &mha_96 } },
    { OP_ATTENTION, { .in = { F(3, { 2, 512, 1024 }), { 0 }, { 0 }, I(2, { 2, 512 }) }, .attrs = &dense_128 } },
    { OP_ATTENTION, { .in = { F(3, { 2, 300, 768 }), { 0 }, { 0 }, I(2, { 2, 300 }) }, .attrs = &dense_64 } },
    { OP_ATTENTION_BWD,
      { .in = { F(4, { 2, 333, 4, 64 }), F(3, { 2, 333, 512 }), { 0 }, { 0 }, F(4, { 2, 333, 4, 64 }), F(3, { 2, 4, 333 }), I(2, { 2, 333 }) }, .attrs = &gqa_64 } },
    { OP_ATTENTION_BWD,
      { .in = { F(4, { 2, 600, 4, 128 }), F(3, { 2, 600, 768 }), { 0 }, { 0 }, F(4, { 2, 600, 4, 128 }), F(3, { 2, 4, 600 }), I(2, { 2, 600 }) }, .attrs = &gqa_128 } },
    { OP_ATTENTION_BWD,
      { .in = { F(4, { 1, 130, 2, 96 }), F(4, { 1, 130, 2, 96 }), F(4, { 1, 130, 2, 96 }), F(4, { 1, 130, 2, 96 }), F(4, { 1, 130, 2, 96 }), F(3, { 1, 2, 130 }), I(2, { 1, 130 }) },
        .attrs = &mha_96 } },
    { OP_ATTENTION_BWD,
      { .in = { F(4, { 2, 512, 4, 128 }), F(3, { 2, 512, 1024 }), { 0 }, { 0 }, F(4, { 2, 512, 4, 128 }), F(3, { 2, 4, 512 }), I(2, { 2, 512 }) }, .attrs = &dense_128 } },
    { OP_ATTENTION_BWD,
      { .in = { F(4, { 2, 300, 4, 64 }), F(3, { 2, 300, 768 }), { 0 }, { 0 }, F(4, { 2, 300, 4, 64 }), F(3, { 2, 4, 300 }), I(2, { 2, 300 }) }, .attrs = &dense_64 } },
    { OP_ATTENTION_CACHED,
      { .in = { F(3, { 2, 1, 768 }), { 0 }, { 0 }, F(4, { 2, 700, 1, 128 }), F(4, { 2, 700, 1, 128 }), { DT_I64, 1, { STEP_COUNT } } },
        .attrs = &gqa_128, .int_range = { 0, 0, 0, 0, 0, 700 } } },
    { OP_ATTENTION_CACHED,
      { .in = { F(3, { 1, 200, 512 }), { 0 }, { 0 }, F(4, { 1, 700, 2, 64 }), F(4, { 1, 700, 2, 64 }), { DT_I64, 1, { STEP_COUNT } } },
        .attrs = &gqa_64, .int_range = { 0, 0, 0, 0, 0, 500 } } },
    { OP_SWIGLU, { .in = { F(2, { 600, 6144 }) } } },
    { OP_SWIGLU_BWD, { .in = { F(2, { 600, 3072 }), F(2, { 600, 6144 }) } } },
    { OP_DROPOUT, { .in = { F(3, { 2, 300, 1024 }), I(2, { 2, 300 }), I(2, { 2, 300 }), { DT_I64, 1, { STEP_COUNT } } }, .attrs = &tenth, .int_range = { 0, 9, 99, 99 } } },
    { OP_CROSS_ENTROPY, { .in = { F(2, { 70, 32000 }), I(1, { 70 }) }, .int_range = { 0, 32000 } } },
    { OP_CROSS_ENTROPY_BWD, { .in = { F(1, { 70 }), F(2, { 70, 32000 }), I(1, { 70 }), F(1, { 70 }) }, .int_range = { 0, 0, 32000 } } },
    /* few channels: bf16 logits as large as sqrt(channels) times these inputs are further from those in fp32 than models' are */
    { OP_LM_HEAD_LOSS, { .in = { F(3, { 2, 200, 32 }), F(2, { 5003, 32 }), I(2, { 2, 200 }) }, .int_range = { 0, 0, 5003 } } },
    { OP_LM_HEAD_LOSS_BWD,
      { .in = { F(2, { 2, 200 }), F(3, { 2, 200, 32 }), F(2, { 4000, 32 }), I(2, { 2, 200 }), F(2, { 4000, 32 }) }, .int_range = { 0, 0, 0, 4000 } } },
    { OP_LM_HEAD_LOSS_BWD,
      { .in = { F(2, { 2, 200 }), F(3, { 2, 200, 32 }), F(2, { 4000, 32 }), I(2, { 2, 200 }) }, .attrs = &head_f32, .int_range = { 0, 0, 0, 4000 } } },
    { OP_GATHER_ROW, { .in = { F(3, { 4, 100, 1024 }), I(1, { 4 }) }, .int_range = { 0, 100 } } },
    /* fp32 gradients and moments beside bf16 weights, without a master copy and with one */
    { OP_ADAMW, { .in = { ADAMW_IN(DT_BF16), { 0 } }, .tolerance = 1e-2, .int_range = { [7] = 99 } } },
    { OP_ADAMW, { .in = { ADAMW_IN(DT_BF16), F(1, { 40000 }) }, .tolerance = 1e-2, .int_range = { [7] = 99 } } },
    { OP_SUM_SQUARES, { .in = { F(1, { 3000000 }) } } },
};
const int num_doctor_samples = (int)(sizeof doctor_samples / sizeof doctor_samples[0]);
