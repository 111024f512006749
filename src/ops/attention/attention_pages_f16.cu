/* Attention over a key/value cache in pages for f16: that for bf16, compiled for the other numbers of 16 bits (mma.cuh). */
#define MMA_HALF
#define attention_pages_prefill attention_pages_prefill_f16
#define attention_pages_decode attention_pages_decode_f16
#include "ops/attention/attention_pages.cu"
