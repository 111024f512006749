/* Products of few rows, y (m,n) = x (m,k) w^T (n,k) in bf16: what decoding is made of. They are bound by reading w once. Each sum is one
 * chain along k in steps of 16, as cuBLASLt computes it without split-K and tiles of any size do: a row has the same bits for any m, here
 * and there.
 *
 * A warp has 8 rows of w, the second operand of m16n8k16; rows of x are the first. Chunks along k of both wait in shared memory, many of
 * them in flight, and operands are taken from there a step ahead of the chain: it waits for nothing but itself. */
#include "ops/products/few_rows.h"

#include "ops/mma.cuh"

enum {
    CHUNK = 128,
    STRIDE = CHUNK + 8,
    PIECES = CHUNK / 8,
    STEP = 32,
    STEPS = CHUNK / STEP,
    COLS = 8,
    MOST_ROWS = 64,
    MOST_COLS = 1024,
    ZEROS = 64
};

struct RowsJob {
    const bf16 *x, *w;
    int64_t     x_stride, w_stride, c_stride;
    int         m, n, k;
    GemmOperand c, bias;
    bool        accumulate, has_bias;
    float       alpha;
};

/* Begins to copy chunk `chunk` of the rows of w that a block has and of all rows of x; what is behind n or k is zeros. */
template <int WARPS> static __device__ __forceinline__ void load_chunk(const RowsJob &job, bf16 *stage, int chunk)
{
    enum { W_ROWS = WARPS * COLS };
    int first = blockIdx.x * W_ROWS;
#pragma unroll
    for (int i = threadIdx.x; i < W_ROWS * PIECES; i += WARPS * 32) {
        int  row = i / PIECES, at = chunk * CHUNK + i % PIECES * 8;
        bool there = first + row < job.n && at < job.k;
        copy_async(stage + row * STRIDE + i % PIECES * 8, job.w + (there ? (first + row) * job.w_stride + at : 0), there);
    }
    for (int i = threadIdx.x; i < job.m * PIECES; i += WARPS * 32) {
        int  row = i / PIECES, at = chunk * CHUNK + i % PIECES * 8;
        bool there = at < job.k;
        copy_async(stage + (W_ROWS + row) * STRIDE + i % PIECES * 8, job.x + (there ? row * job.x_stride + at : 0), there);
    }
}

/* The operands of STEP numbers along k. */
template <int TILES> struct Operands {
    uint32_t x[STEP / 16][TILES][4], w[4];

    /* rows: where a lane's row of each tile begins in a stage; negative: it isn't there, and reads zeros. */
    __device__ __forceinline__ void take(const bf16 *stage, const bf16 *zeros, const int (&rows)[TILES], int w_row, int step)
    {
        ldmatrix(w, stage + w_row + step * STEP);
#pragma unroll
        for (int half = 0; half < STEP / 16; half++)
#pragma unroll
            for (int t = 0; t < TILES; t++) ldmatrix(x[half][t], rows[t] < 0 ? zeros : stage + rows[t] + step * STEP + half * 16);
    }

    __device__ __forceinline__ void add(float (&c)[TILES][4]) const
    {
#pragma unroll
        for (int half = 0; half < STEP / 16; half++)
#pragma unroll
            for (int t = 0; t < TILES; t++) mma(c[t], x[half][t], w[2 * half], w[2 * half + 1]);
    }
};

static __device__ __forceinline__ void put(const RowsJob &job, int row, int col, float value)
{
    if (row >= job.m || col >= job.n) return;
    int64_t at = job.c.offset + row * job.c_stride + col;
    value *= job.alpha;
    if (job.accumulate) value += elem_get(job.c.data, job.c.dtype, at);
    if (job.has_bias) value += elem_get(job.bias.data, job.bias.dtype, job.bias.offset + col);
    elem_set(job.c.data, job.c.dtype, at, value);
}

template <int TILES, int WARPS, int STAGES> static __global__ void __launch_bounds__(WARPS * 32) few_rows(RowsJob job)
{
    extern __shared__ uint4 memory[];
    enum { W_ROWS = WARPS * COLS };
    bf16           *zeros = (bf16 *)memory, *shared = zeros + ZEROS / 2;
    int             chunks = (job.k + CHUNK - 1) / CHUNK, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rows[TILES];
    int             elements = (W_ROWS + job.m) * STRIDE, w_row = (warp * COLS + (lane & 7)) * STRIDE + (lane >> 3) * 8;
    float           c[TILES][4] = {};
    Operands<TILES> operands[2];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        int row = t * 16 + (lane & 15);
        rows[t] = row < job.m ? (W_ROWS + row) * STRIDE + (lane >> 4) * 8 : -1;
    }
    if (threadIdx.x < ZEROS / 16) memory[threadIdx.x] = make_uint4(0, 0, 0, 0);
    for (int s = 0; s < STAGES; s++) {
        if (s < chunks) load_chunk<WARPS>(job, shared + s * elements, s);
        copy_commit();
    }
    copy_wait<STAGES - 1>();
    __syncthreads();
    operands[0].take(shared, zeros, rows, w_row, 0);
    for (int chunk = 0; chunk < chunks; chunk++) {
        bf16 *stage = shared + chunk % STAGES * elements;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step + 1 < STEPS) {
                operands[(step + 1) & 1].take(stage, zeros, rows, w_row, step + 1);
            } else if (chunk + 1 < chunks) {
                copy_wait<STAGES - 2>();
                __syncthreads(); /* the next chunk is there, and all warps have taken this one */
                if (chunk + STAGES < chunks) load_chunk<WARPS>(job, stage, chunk + STAGES);
                copy_commit();
                operands[(step + 1) & 1].take(shared + (chunk + 1) % STAGES * elements, zeros, rows, w_row, 0);
            }
            operands[step & 1].add(c);
        }
    }
    copy_wait<0>();
    int col = (blockIdx.x * WARPS + warp) * COLS + (lane & 3) * 2;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) put(job, t * 16 + (lane >> 2) + (e >> 1) * 8, col + (e & 1), c[t][e]);
}

template <int TILES, int WARPS, int STAGES> static Status launch(const RowsJob &job, cudaStream_t stream)
{
    size_t bytes = ZEROS + (size_t)STAGES * (WARPS * COLS + job.m) * STRIDE * sizeof(bf16);
    CUDA_TRY(cudaFuncSetAttribute(few_rows<TILES, WARPS, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    few_rows<TILES, WARPS, STAGES><<<(unsigned)cuda_div_up(job.n, WARPS * COLS), WARPS * 32, bytes, stream>>>(job);
    return CUDA_LAUNCHED();
}

/* Blocks of few warps where w has few rows, so that all multiprocessors read; of more where each block reads many rows of x. */
static Status launch_few(const RowsJob &job, cudaStream_t stream)
{
    if (job.n <= 2048) return launch<1, 1, 16>(job, stream);
    if (job.n <= 4096) return launch<1, 2, 8>(job, stream);
    return launch<1, 4, 6>(job, stream);
}

static Status launch_some(const RowsJob &job, cudaStream_t stream)
{
    return job.n <= 2048 ? launch<2, 2, 8>(job, stream) : launch<2, 4, 5>(job, stream);
}

static Status launch_many(const RowsJob &job, cudaStream_t stream)
{
    return job.n <= 4096 ? launch<4, 4, 4>(job, stream) : launch<4, 8, 3>(job, stream);
}

static bool fits(const GemmOperand *x)
{
    return x->dtype == DT_BF16 && !x->scale && x->stride % 8 == 0 && x->offset % 8 == 0 && (uintptr_t)x->data % 16 == 0;
}

bool few_rows_operands_fit(const Gemm *g)
{
    bool shapes = g->m > 0 && g->n > 0 && g->k % 8 == 0 && !g->a.trans && g->b.trans;
    return g->rows_alone && shapes && fits(&g->a) && fits(&g->b) && (DT_SET(g->c.dtype) & DT_SET_FLOAT);
}

/* Of many rows too where cuBLASLt, whose sums are the same chain else, has rows of c that don't begin at multiples of 16 bytes. */
bool few_rows_fit(const Gemm *g)
{
    bool few = g->m <= MOST_ROWS || (g->n % 8 && g->n <= MOST_COLS);
    return few && few_rows_operands_fit(g);
}

static Status run_rows(const Gemm *g, void *stream)
{
    RowsJob job = {};
    job.x = (const bf16 *)g->a.data + g->a.offset, job.w = (const bf16 *)g->b.data + g->b.offset;
    job.x_stride = g->a.stride, job.w_stride = g->b.stride, job.c_stride = g->c.stride;
    job.m = (int)g->m, job.n = (int)g->n, job.k = (int)g->k;
    job.c = g->c, job.bias = g->bias;
    job.accumulate = g->accumulate, job.has_bias = g->epilogue == GEMM_BIAS;
    job.alpha = g->alpha;
    if (g->m <= 16) return launch_few(job, (cudaStream_t)stream);
    return g->m <= 32 ? launch_some(job, (cudaStream_t)stream) : launch_many(job, (cudaStream_t)stream);
}

Status few_rows_run(const Gemm *g, void *stream)
{
    for (int64_t row = 0; row < g->m; row += MOST_ROWS) {
        Gemm some = *g;
        some.m = g->m - row < MOST_ROWS ? g->m - row : (int64_t)MOST_ROWS;
        some.a.offset += row * g->a.stride;
        some.c.offset += row * g->c.stride;
        TRY(run_rows(&some, stream));
    }
    return OK;
}
