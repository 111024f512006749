/* Attention over a key/value cache in pages for f16: attention_pages.cu without caps. */
#include "ops/as_f16.cuh"

#define PAGES_CAPS false
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_pages_f16.cuh"

#define attention_pages_wgmma_serves(a) false /* of bf16 alone */
#define attention_pages_prefill attention_pages_prefill_f16
#define attention_pages_decode attention_pages_decode_f16
#include "ops/attention/attention_pages.cu"
