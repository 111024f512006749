/* As attention_pages_prefill and attention_pages_decode, of f16 without caps. */
#pragma once

#include "ops/attention/attention.cuh"

Status attention_pages_prefill_f16(const AttentionDims *a, cudaStream_t stream);
Status attention_pages_decode_f16(const AttentionDims *a, const Heads *k, const Heads *v, bool early, void *workspace, cudaStream_t stream);
