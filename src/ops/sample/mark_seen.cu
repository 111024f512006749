/* mark_seen on CUDA, in two launches: the first clears rows that begin, the second marks tokens with a thread for each. */
#include "device/cuda/vec.cuh"

#include "ops/sample/mark_seen.h"

enum { THREADS = 256 };

struct Marks {
    const int32_t *tokens, *starts, *last, *slots, *text_starts; /* text_starts NULL: no row has text */
    uint32_t      *seen;
    int64_t        len, cols, slots_count;

    __device__ __forceinline__ uint32_t *row(int64_t b) const /* NULL: idle row */
    {
        return slots[b] < 0 || slots[b] >= slots_count ? NULL : seen + slots[b] * cols;
    }
};

static __global__ void clear_rows(Marks m)
{
    uint32_t *row = m.row(blockIdx.y);
    if (!row || m.starts[blockIdx.y]) return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < m.cols; i += (int64_t)gridDim.x * THREADS) row[i] = 0;
}

static __global__ void mark_tokens(Marks m)
{
    uint32_t *row = m.row(blockIdx.y);
    int64_t   count = min(m.len, m.last[blockIdx.y] + (int64_t)1);
    int64_t   prompt = m.text_starts ? m.text_starts[blockIdx.y] - (int64_t)m.starts[blockIdx.y] : count;
    for (int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x; row && t < count; t += (int64_t)gridDim.x * THREADS) {
        int32_t token = m.tokens[blockIdx.y * m.len + t];
        if (token < 0 || token >= m.cols) continue;
        if (t < prompt)
            atomicOr(&row[token], SAMPLE_IN_PROMPT);
        else
            atomicAdd(&row[token], 1);
    }
}

static Status mark_seen_run(const KernelArgs *args)
{
    const TensorView *in = args->in;
    Marks             m = {(const int32_t *)in[MARK_SEEN_TOKENS].data,      (const int32_t *)in[MARK_SEEN_STARTS].data,
                           (const int32_t *)in[MARK_SEEN_LAST].data,        (const int32_t *)in[MARK_SEEN_SLOTS].data,
                           (const int32_t *)in[MARK_SEEN_TEXT_STARTS].data, (uint32_t *)args->out[0].data};
    unsigned          rows = (unsigned)in[MARK_SEEN_TOKENS].type.dim[0];
    m.len = type_cols(&in[MARK_SEEN_TOKENS].type);
    m.cols = type_cols(&args->out[0].type);
    m.slots_count = args->out[0].type.dim[0];
    clear_rows<<<dim3(cuda_grid(m.cols, 4 * THREADS), rows), THREADS, 0, cuda_stream(args)>>>(m);
    mark_tokens<<<dim3(cuda_grid(m.len, THREADS), rows), THREADS, 0, cuda_stream(args)>>>(m);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(mark_seen, {.dtypes = DT_SET_FLOAT, .run = mark_seen_run, .name = "tokens"})
