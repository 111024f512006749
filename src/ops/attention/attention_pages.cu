/* Attention over a key/value cache in pages on the matrix units, for bf16. (f16: attention_pages_f16.cu.) */
#include "ops/attention/attention_pages.cuh"

Status attention_pages_prefill(const AttentionDims *a, cudaStream_t stream)
{
    if (a->dtype == DT_F16) return attention_pages_prefill_f16(a, stream);
    return attention_pages_wgmma_serves(a) ? attention_pages_wgmma_prefill(a, stream) : prefill_of<bf16>(a, stream);
}

bool attention_pages_turns(const AttentionDims *a)
{
    return is_bulk(a);
}

Status attention_pages_decode(const AttentionDims *a, const Heads *k, const Heads *v, const HeadTurns *turns, bool early, void *workspace,
                              cudaStream_t stream)
{
    if (a->dtype == DT_F16) return attention_pages_decode_f16(a, k, v, turns, early, workspace, stream);
    return decode_of<bf16>(a, k, v, turns, early, workspace, stream);
}
