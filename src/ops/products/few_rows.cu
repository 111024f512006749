/* Products of few rows, y (m,n) = x (m,k) w^T (n,k) in bf16 or f16: the products of decoding. They are bound by reading w once. Each sum is
 * one chain along k in steps of 16; cuBLASLt computes the same chain if it doesn't split k, whatever its tiles. So a row has the same bits
 * for any m, here and in cuBLASLt.
 *
 * A warp computes 8 rows of w, the second operand of m16n8k16; rows of x are the first. Chunks of both along k are in shared memory, many
 * of them in flight. Operands are loaded from there to registers one step ahead, so that the chain waits only for itself. */
#include "ops/products/few_rows.h"

#include "device/cuda/vec_f16.cuh"
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
    const uint16_t *x, *w;
    int64_t         x_stride, w_stride, c_stride;
    int             m, n, k;
    GemmOperand     c, bias;
    bool            accumulate, has_bias;
    float           alpha;
};

/* Begins to copy chunk `chunk` of the block's rows of w and of all rows of x; zeros beyond n or k. */
template <int WARPS> static __device__ __forceinline__ void load_chunk(const RowsJob &job, uint16_t *stage, int chunk)
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

/* The operands of STEP elements along k, in registers. */
template <typename T, int TILES> struct Operands {
    uint32_t x[STEP / 16][TILES][4], w[4];

    /* rows: where a lane's row of each tile begins in a stage; negative: the row doesn't exist, and zeros are loaded. */
    __device__ __forceinline__ void take(const uint16_t *stage, const uint16_t *zeros, const int (&rows)[TILES], int w_row, int step)
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
            for (int t = 0; t < TILES; t++) mma_of<T>(c[t], x[half][t], w[2 * half], w[2 * half + 1]);
    }
};

template <typename T> static __device__ __forceinline__ void put(const RowsJob &job, int row, int col, float value)
{
    if (row >= job.m || col >= job.n) return;
    int64_t at = job.c.offset + row * job.c_stride + col;
    value *= job.alpha;
    if (job.accumulate) value += get_of<T>(job.c.data, job.c.dtype, at);
    if (job.has_bias) value += get_of<T>(job.bias.data, job.bias.dtype, job.bias.offset + col);
    set_of<T>(job.c.data, job.c.dtype, at, value);
}

template <typename T, int TILES, int WARPS, int STAGES> static __global__ void __launch_bounds__(WARPS * 32) few_rows(RowsJob job)
{
    extern __shared__ uint4 memory[];
    enum { W_ROWS = WARPS * COLS };
    uint16_t          *zeros = (uint16_t *)memory, *shared = zeros + ZEROS / 2;
    int                chunks = (job.k + CHUNK - 1) / CHUNK, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rows[TILES];
    int                elements = (W_ROWS + job.m) * STRIDE, w_row = (warp * COLS + (lane & 7)) * STRIDE + (lane >> 3) * 8;
    float              c[TILES][4] = {};
    Operands<T, TILES> operands[2];
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
        uint16_t *stage = shared + chunk % STAGES * elements;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step + 1 < STEPS) {
                operands[(step + 1) & 1].take(stage, zeros, rows, w_row, step + 1);
            } else if (chunk + 1 < chunks) {
                copy_wait<STAGES - 2>();
                __syncthreads(); /* the next chunk has arrived, and all warps have read this one */
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
        for (int e = 0; e < 4; e++) put<T>(job, t * 16 + (lane >> 2) + (e >> 1) * 8, col + (e & 1), c[t][e]);
}

template <typename T, int TILES, int WARPS, int STAGES> static Status launch(const RowsJob &job, cudaStream_t stream)
{
    size_t bytes = ZEROS + (size_t)STAGES * (WARPS * COLS + job.m) * STRIDE * sizeof(T);
    CUDA_TRY(cudaFuncSetAttribute(few_rows<T, TILES, WARPS, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    few_rows<T, TILES, WARPS, STAGES><<<(unsigned)cuda_div_up(job.n, WARPS * COLS), WARPS * 32, bytes, stream>>>(job);
    return CUDA_LAUNCHED();
}

/* Blocks have few warps if w has few rows, so that all multiprocessors read; they have more if each block reads many rows of x. */
template <typename T> static Status launch_few(const RowsJob &job, cudaStream_t stream)
{
    if (job.n <= 2048) return launch<T, 1, 1, 16>(job, stream);
    if (job.n <= 4096) return launch<T, 1, 2, 8>(job, stream);
    return launch<T, 1, 4, 6>(job, stream);
}

template <typename T> static Status launch_some(const RowsJob &job, cudaStream_t stream)
{
    return job.n <= 2048 ? launch<T, 2, 2, 8>(job, stream) : launch<T, 2, 4, 5>(job, stream);
}

template <typename T> static Status launch_many(const RowsJob &job, cudaStream_t stream)
{
    return job.n <= 4096 ? launch<T, 4, 4, 4>(job, stream) : launch<T, 4, 8, 3>(job, stream);
}

template <typename T> static Status launch_rows(const RowsJob &job, cudaStream_t stream)
{
    if (job.m <= 16) return launch_few<T>(job, stream);
    return job.m <= 32 ? launch_some<T>(job, stream) : launch_many<T>(job, stream);
}

static bool fits(const GemmOperand *x)
{
    return (x->dtype == DT_BF16 || x->dtype == DT_F16) && !x->scale && x->stride % 8 == 0 && x->offset % 8 == 0 &&
           (uintptr_t)x->data % 16 == 0;
}

/* Whether x, which is c or the bias, has the operands' dtype, or f32. */
static bool fits_beside(const Gemm *g, const GemmOperand *x)
{
    return x->dtype == g->a.dtype || x->dtype == DT_F32;
}

bool few_rows_operands_fit(const Gemm *g)
{
    bool shapes = g->m > 0 && g->n > 0 && g->k % 8 == 0 && !g->a.trans && g->b.trans;
    bool beside = fits_beside(g, &g->c) && (g->epilogue != GEMM_BIAS || fits_beside(g, &g->bias));
    return g->rows_alone && shapes && fits(&g->a) && fits(&g->b) && g->a.dtype == g->b.dtype && beside;
}

/* Also accepts many rows if rows of c don't all begin at multiples of 16 bytes: cuBLASLt's sums aren't the same chain then. */
bool few_rows_fit(const Gemm *g)
{
    bool few = g->m <= MOST_ROWS || (g->n % 8 && g->n <= MOST_COLS);
    return few && few_rows_operands_fit(g);
}

static Status run_rows(const Gemm *g, void *stream)
{
    RowsJob job = {};
    job.x = (const uint16_t *)g->a.data + g->a.offset, job.w = (const uint16_t *)g->b.data + g->b.offset;
    job.x_stride = g->a.stride, job.w_stride = g->b.stride, job.c_stride = g->c.stride;
    job.m = (int)g->m, job.n = (int)g->n, job.k = (int)g->k;
    job.c = g->c, job.bias = g->bias;
    job.accumulate = g->accumulate, job.has_bias = g->epilogue == GEMM_BIAS;
    job.alpha = g->alpha;
    return g->a.dtype == DT_F16 ? launch_rows<__half>(job, (cudaStream_t)stream) : launch_rows<bf16>(job, (cudaStream_t)stream);
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
