/* Products of few rows, y (m,n) = x (m,k) w^T (n,k) in bf16: what decoding is made of. They are bound by reading w once. Each sum is one
 * chain along k in steps of 16, as cuBLASLt computes it without split-K and tiles of any size do: a row has the same bits for any m, here
 * and there.
 *
 * A warp has 8 rows of w, the second operand of m16n8k16; rows of x are the first. Chunks of 64 along k of both wait in shared memory, many
 * of them in flight, so that reading runs ahead of the chain. */
#include "ops/products/few_rows.h"

#include "ops/mma.cuh"

enum { CHUNK = 64, STRIDE = CHUNK + 8, COLS = 8, PIECES = CHUNK / 8, MOST_ROWS = 64 };

/* TILES: of 16 rows of x. WARPS: of a block. */
template <int TILES, int WARPS> struct Shape {
    enum { ROWS = TILES * 16, W_ROWS = WARPS * COLS, ELEMENTS = (ROWS + W_ROWS) * STRIDE, STAGE_BYTES = ELEMENTS * 2 };
};

struct RowsJob {
    const bf16 *x, *w;
    int64_t     x_stride, w_stride, c_stride;
    int         m, n, k, stages;
    GemmOperand c, bias;
    bool        accumulate, has_bias;
    float       alpha;
};

/* Begins to copy chunk `chunk` of w's and x's rows; what is behind k is zeros. Rows of x that aren't there were zeroed once. */
template <int TILES, int WARPS> static __device__ __forceinline__ void load_chunk(const RowsJob &job, bf16 *stage, int chunk)
{
    using S = Shape<TILES, WARPS>;
    int   col0 = blockIdx.x * S::W_ROWS;
    bf16 *w_rows = stage + S::ROWS * STRIDE;
    for (int i = threadIdx.x; i < S::W_ROWS * PIECES; i += WARPS * 32) {
        int  row = i / PIECES, at = chunk * CHUNK + i % PIECES * 8;
        bool there = col0 + row < job.n && at < job.k;
        copy_async(w_rows + row * STRIDE + i % PIECES * 8, job.w + (there ? (col0 + row) * job.w_stride + at : 0), there);
    }
    for (int i = threadIdx.x; i < job.m * PIECES; i += WARPS * 32) {
        int  row = i / PIECES, at = chunk * CHUNK + i % PIECES * 8;
        bool there = at < job.k;
        copy_async(stage + row * STRIDE + i % PIECES * 8, job.x + (there ? row * job.x_stride + at : 0), there);
    }
}

template <int TILES, int WARPS> static __device__ __forceinline__ void zero_rows(const RowsJob &job, bf16 *shared)
{
    using S = Shape<TILES, WARPS>;
    int words = (S::ROWS - job.m) * STRIDE / 2;
    for (int s = 0; s < job.stages; s++) {
        uint32_t *to = reinterpret_cast<uint32_t *>(shared + s * S::ELEMENTS + job.m * STRIDE);
        for (int i = threadIdx.x; i < words; i += WARPS * 32) to[i] = 0;
    }
}

/* c[t] (16 x 8) += rows of x times rows of w of a chunk, k in order. */
template <int TILES, int WARPS> static __device__ __forceinline__ void multiply_chunk(const bf16 *stage, float (&c)[TILES][4])
{
    using S = Shape<TILES, WARPS>;
    int         lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bf16 *w_rows = stage + (S::ROWS + warp * COLS) * STRIDE;
#pragma unroll
    for (int k = 0; k < CHUNK / 32; k++) {
        uint32_t b[4]; /* 8 rows of w, 32 of k */
        ldmatrix(b, w_rows + (lane & 7) * STRIDE + k * 32 + (lane >> 3) * 8);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                uint32_t a[4];
                ldmatrix(a, stage + (t * 16 + (lane & 15)) * STRIDE + k * 32 + half * 16 + (lane >> 4) * 8);
                mma(c[t], a, b[2 * half], b[2 * half + 1]);
            }
    }
}

static __device__ __forceinline__ void put(const RowsJob &job, int row, int col, float value)
{
    if (row >= job.m || col >= job.n) return;
    int64_t at = job.c.offset + row * job.c_stride + col;
    value *= job.alpha;
    if (job.accumulate) value += elem_get(job.c.data, job.c.dtype, at);
    if (job.has_bias) value += elem_get(job.bias.data, job.bias.dtype, job.bias.offset + col);
    elem_set(job.c.data, job.c.dtype, at, value);
}

template <int TILES, int WARPS> static __global__ void __launch_bounds__(WARPS * 32) few_rows(RowsJob job)
{
    using S = Shape<TILES, WARPS>;
    extern __shared__ uint4 memory[];
    bf16                   *shared = (bf16 *)memory;
    int                     chunks = (job.k + CHUNK - 1) / CHUNK, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float                   c[TILES][4] = {};
    zero_rows<TILES, WARPS>(job, shared);
    for (int s = 0; s < job.stages - 1; s++) {
        if (s < chunks) load_chunk<TILES, WARPS>(job, shared + s * S::ELEMENTS, s);
        copy_commit();
    }
    for (int chunk = 0; chunk < chunks; chunk++) {
        /* all but the stages - 2 groups begun last are there; every warp has read the stage that is loaded next */
        if (job.stages == 24)
            copy_wait<22>();
        else if (job.stages == 8)
            copy_wait<6>();
        else
            copy_wait<2>();
        __syncthreads();
        int next = chunk + job.stages - 1;
        if (next < chunks) load_chunk<TILES, WARPS>(job, shared + next % job.stages * S::ELEMENTS, next);
        copy_commit();
        multiply_chunk<TILES, WARPS>(shared + chunk % job.stages * S::ELEMENTS, c);
    }
    copy_wait<0>();
    int col = (blockIdx.x * WARPS + warp) * COLS + (lane & 3) * 2;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) put(job, t * 16 + (lane >> 2) + (e >> 1) * 8, col + (e & 1), c[t][e]);
}

template <int TILES, int WARPS> static Status launch(RowsJob job, cudaStream_t stream)
{
    using S = Shape<TILES, WARPS>;
    job.stages = WARPS == 1 && TILES == 1 ? 24 : TILES <= 2 ? 8 : 4;
    size_t bytes = (size_t)job.stages * S::STAGE_BYTES;
    CUDA_TRY(cudaFuncSetAttribute(few_rows<TILES, WARPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    few_rows<TILES, WARPS><<<(unsigned)cuda_div_up(job.n, S::W_ROWS), WARPS * 32, bytes, stream>>>(job);
    return CUDA_LAUNCHED();
}

/* Blocks of few warps where w has few rows, so that all multiprocessors read. */
template <int TILES> static Status launch_tiles(const RowsJob &job, cudaStream_t stream)
{
    if (job.n <= 2048) return launch<TILES, 1>(job, stream);
    if (job.n <= 4096) return launch<TILES, 2>(job, stream);
    return launch<TILES, 4>(job, stream);
}

static bool fits(const GemmOperand *x)
{
    return x->dtype == DT_BF16 && !x->scale && x->stride % 8 == 0 && x->offset % 8 == 0 && (uintptr_t)x->data % 16 == 0;
}

bool few_rows_fit(const Gemm *g)
{
    bool shapes = g->m > 0 && g->m <= MOST_ROWS && g->n > 0 && g->k % 8 == 0 && !g->a.trans && g->b.trans;
    return g->rows_alone && shapes && fits(&g->a) && fits(&g->b) && (DT_SET(g->c.dtype) & DT_SET_FLOAT);
}

Status few_rows_run(const Gemm *g, void *stream)
{
    RowsJob job = {};
    job.x = (const bf16 *)g->a.data + g->a.offset, job.w = (const bf16 *)g->b.data + g->b.offset;
    job.x_stride = g->a.stride, job.w_stride = g->b.stride, job.c_stride = g->c.stride;
    job.m = (int)g->m, job.n = (int)g->n, job.k = (int)g->k;
    job.c = g->c, job.bias = g->bias;
    job.accumulate = g->accumulate, job.has_bias = g->epilogue == GEMM_BIAS;
    job.alpha = g->alpha;
    if (g->m <= 16) return launch_tiles<1>(job, (cudaStream_t)stream);
    if (g->m <= 32) return launch_tiles<2>(job, (cudaStream_t)stream);
    return launch_tiles<4>(job, (cudaStream_t)stream);
}
