/* Attention over a key/value cache in pages on the matrix units, for f16. (bf16: attention_pages.cu.) */
#include "ops/attention/attention_pages.cuh"

Status attention_pages_prefill_f16(const AttentionDims *a, cudaStream_t stream)
{
    return prefill_of<__half>(a, stream);
}

Status attention_pages_decode_f16(const AttentionDims *a, const Heads *k, const Heads *v, const HeadTurns *turns, bool early,
                                  void *workspace, cudaStream_t stream)
{
    return decode_of<__half>(a, k, v, turns, early, workspace, stream);
}
