/* embedding on CUDA: a block copies a token's row, 16 bytes a thread if rows are whole packs. A token outside the table gives NaN. */
#include "device/cuda/vec_f16.cuh"
#include "ops/rows.cuh"

static __global__ void embedding_words(const int32_t *tokens, const uint4 *w, uint4 *x, int64_t words, int64_t vocab)
{
    int32_t token = tokens[blockIdx.x];
    bool    inside = token >= 0 && token < vocab;
    uint4   nan = make_uint4(~0u, ~0u, ~0u, ~0u);
    for (int64_t i = threadIdx.x; i < words; i += blockDim.x) x[blockIdx.x * words + i] = inside ? w[token * words + i] : nan;
}

static __global__ void embedding_elements(const int32_t *tokens, TensorView w, TensorView x, int64_t cols, int64_t vocab)
{
    int32_t token = tokens[blockIdx.x];
    bool    inside = token >= 0 && token < vocab;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
        any_set(x.data, x.type.dtype, blockIdx.x * cols + c, inside ? any_get(w.data, w.type.dtype, token * cols + c) : NAN);
}

static Status embedding_run(const KernelArgs *args)
{
    const TensorView *w = &args->in[1], *x = &args->out[0];
    const int32_t    *tokens = (const int32_t *)args->in[0].data;
    int64_t           cols = type_cols(&w->type), vocab = w->type.dim[0], count = type_numel(&args->in[0].type);
    int64_t           bytes = dtype_bytes(w->type.dtype, cols);
    if (w->type.dtype == x->type.dtype && bytes % 16 == 0 && is_aligned16(w->data))
        embedding_words<<<(unsigned)count, row_threads(bytes / 16), 0, cuda_stream(args)>>>(tokens, (const uint4 *)w->data,
                                                                                            (uint4 *)x->data, bytes / 16, vocab);
    else
        embedding_elements<<<(unsigned)count, 128, 0, cuda_stream(args)>>>(tokens, *w, *x, cols, vocab);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(embedding, {.dtypes = DT_SET_DECODE, .run = embedding_run, .name = "rows"})
