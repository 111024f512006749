/* Products of few rows, y (m,n) = x (m,k) w^T (n,k), of x in bf16 and w in codes, of which a byte a weight is read. They become bf16 in
 * registers, and each sum is the chain along k in steps of 16 that few_rows.cu makes of w in bf16:
 *
 *   int8   whole numbers; a sum is multiplied by the scale of its row of w in fp32
 *   e4m3   times the scale of the tile, rounded to bf16, as fp8_tiles_dequantise has it
 *
 * A warp has 8 rows of w, the second operand of m16n8k16; rows of x are the first. Chunks along k of both wait in shared memory, many of
 * them in flight, and operands are taken from there a step ahead of the chain. */
#include "ops/products/few_rows_codes.h"

#include "device/cuda/fp8.cuh"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/mma.cuh"

/* Strides of shared memory, in bytes: rows that are read together lie in different banks. */
enum {
    CHUNK = FP8_TILE,
    X_STRIDE = 2 * CHUNK + 16,
    W_STRIDE = CHUNK + 16,
    STEP = 32,
    STEPS = CHUNK / STEP,
    COLS = 8,
    MOST_ROWS = 64,
    ZEROS = 64
};

struct CodesJob {
    const bf16    *x;
    const uint8_t *w;
    const float   *scale;
    int64_t        x_stride, w_stride, c_stride, scale_stride;
    int            m, n, k;
    GemmOperand    c, bias;
    bool           has_bias;
};

/* Begins to copy chunk `chunk` of the rows of w that a block has and of all rows of x; what is behind n or k is zeros. */
template <int WARPS> static __device__ __forceinline__ void load_chunk(const CodesJob &job, char *stage, int chunk)
{
    enum { W_ROWS = WARPS * COLS, W_PIECES = CHUNK / 16, X_PIECES = CHUNK / 8 };
    int first = blockIdx.x * W_ROWS;
#pragma unroll
    for (int i = threadIdx.x; i < W_ROWS * W_PIECES; i += WARPS * 32) {
        int  row = i / W_PIECES, at = chunk * CHUNK + i % W_PIECES * 16;
        bool there = first + row < job.n && at < job.k;
        copy_async(stage + row * W_STRIDE + i % W_PIECES * 16, job.w + (there ? (first + row) * job.w_stride + at : 0), there);
    }
    for (int i = threadIdx.x; i < job.m * X_PIECES; i += WARPS * 32) {
        int  row = i / X_PIECES, at = chunk * CHUNK + i % X_PIECES * 8;
        bool there = at < job.k;
        copy_async(stage + W_ROWS * W_STRIDE + row * X_STRIDE + i % X_PIECES * 16, job.x + (there ? row * job.x_stride + at : 0), there);
    }
}

/* A format of codes: two beside each other as bf16; the scale of a chunk of a row; a sum that is complete. */
struct Int8Codes {
    /* 128 + the low 7 bits, of which 128 is taken, or 256 of a negative code: all are exact. */
    static __device__ __forceinline__ uint32_t two(const char *at, float)
    {
        uint32_t       spread = __byte_perm(*(const uint16_t *)at, 0, 0x4140), low = (spread & 0x007F007Fu) | 0x43004300u;
        uint32_t       less = (spread & 0x00800080u) | 0x43004300u;
        __nv_bfloat162 pair = __hsub2(*reinterpret_cast<__nv_bfloat162 *>(&low), *reinterpret_cast<__nv_bfloat162 *>(&less));
        return *reinterpret_cast<uint32_t *>(&pair);
    }
    static __device__ __forceinline__ float scale(const CodesJob &, int, int)
    {
        return 1;
    }
    static __device__ __forceinline__ float finish(const CodesJob &job, int col, float sum)
    {
        return __fmul_rn(sum, job.scale[col]);
    }
};

struct Fp8Tiles {
    static __device__ __forceinline__ uint32_t two(const char *at, float scale)
    {
        __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(*(const uint16_t *)at, __NV_E4M3);
        float2      values = __half22float2(__half2(pair));
        return pack_bf16(values.x * scale, values.y * scale);
    }
    static __device__ __forceinline__ float scale(const CodesJob &job, int row, int chunk)
    {
        return row < job.n && chunk * CHUNK < job.k ? job.scale[row / FP8_TILE * job.scale_stride + chunk] : 0;
    }
    static __device__ __forceinline__ float finish(const CodesJob &, int, float sum)
    {
        return sum;
    }
};

/* The operands of STEP numbers along k. */
template <typename Codes, int TILES> struct Operands {
    uint32_t x[STEP / 16][TILES][4], w[STEP / 16][2];

    /* rows: where a lane's row of each tile begins in a stage; negative: it isn't there, and reads zeros. */
    __device__ __forceinline__ void take(const char *stage, const char *zeros, const int (&rows)[TILES], int w_row, int step, float scale)
    {
#pragma unroll
        for (int half = 0; half < STEP / 16; half++) {
            int at = step * STEP + half * 16;
#pragma unroll
            for (int i = 0; i < 2; i++) w[half][i] = Codes::two(stage + w_row + at + 8 * i, scale);
#pragma unroll
            for (int t = 0; t < TILES; t++) ldmatrix(x[half][t], (const bf16 *)(rows[t] < 0 ? zeros : stage + rows[t] + 2 * at));
        }
    }

    __device__ __forceinline__ void add(float (&c)[TILES][4]) const
    {
#pragma unroll
        for (int half = 0; half < STEP / 16; half++)
#pragma unroll
            for (int t = 0; t < TILES; t++) mma(c[t], x[half][t], w[half][0], w[half][1]);
    }
};

/* As a product whose sums are stored in fp32 first: rounded after the scale, then with the bias. */
template <typename Codes> static __device__ __forceinline__ void put(const CodesJob &job, int row, int col, float sum)
{
    if (row >= job.m || col >= job.n) return;
    float value = Codes::finish(job, col, sum);
    if (job.has_bias) value = __fadd_rn(value, elem_get(job.bias.data, job.bias.dtype, job.bias.offset + col));
    elem_set(job.c.data, job.c.dtype, job.c.offset + row * job.c_stride + col, value);
}

template <typename Codes, int TILES, int WARPS, int STAGES>
static __global__ void __launch_bounds__(WARPS * 32) few_rows_codes(CodesJob job)
{
    extern __shared__ uint4 memory[];
    enum { W_BYTES = WARPS * COLS * W_STRIDE };
    char                  *zeros = (char *)memory, *shared = zeros + ZEROS;
    int                    chunks = (job.k + CHUNK - 1) / CHUNK, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rows[TILES];
    int                    bytes = W_BYTES + job.m * X_STRIDE, w_row = (warp * COLS + (lane >> 2)) * W_STRIDE + (lane & 3) * 2;
    float                  c[TILES][4] = {};
    Operands<Codes, TILES> operands[2];
    int                    own = (blockIdx.x * WARPS + warp) * COLS + (lane >> 2); /* the lane's row of w */
    float                  scale = Codes::scale(job, own, 0), next_scale = Codes::scale(job, own, 1);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        int row = t * 16 + (lane & 15);
        rows[t] = row < job.m ? W_BYTES + row * X_STRIDE + (lane >> 4) * 16 : -1;
    }
    if (threadIdx.x < ZEROS / 16) memory[threadIdx.x] = make_uint4(0, 0, 0, 0);
    for (int s = 0; s < STAGES; s++) {
        if (s < chunks) load_chunk<WARPS>(job, shared + s * bytes, s);
        copy_commit();
    }
    copy_wait<STAGES - 1>();
    __syncthreads();
    operands[0].take(shared, zeros, rows, w_row, 0, scale);
    for (int chunk = 0; chunk < chunks; chunk++) {
        char *stage = shared + chunk % STAGES * bytes;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step + 1 < STEPS) {
                operands[(step + 1) & 1].take(stage, zeros, rows, w_row, step + 1, scale);
            } else if (chunk + 1 < chunks) {
                copy_wait<STAGES - 2>();
                __syncthreads(); /* the next chunk is there, and all warps have taken this one */
                if (chunk + STAGES < chunks) load_chunk<WARPS>(job, stage, chunk + STAGES);
                copy_commit();
                scale = next_scale;
                next_scale = Codes::scale(job, own, chunk + 2);
                operands[(step + 1) & 1].take(shared + (chunk + 1) % STAGES * bytes, zeros, rows, w_row, 0, scale);
            }
            operands[step & 1].add(c);
        }
    }
    copy_wait<0>();
    int col = (blockIdx.x * WARPS + warp) * COLS + (lane & 3) * 2;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) put<Codes>(job, t * 16 + (lane >> 2) + (e >> 1) * 8, col + (e & 1), c[t][e]);
}

template <typename Codes, int TILES, int WARPS, int STAGES> static Status launch(const CodesJob &job, cudaStream_t stream)
{
    size_t bytes = ZEROS + (size_t)STAGES * (WARPS * COLS * W_STRIDE + job.m * X_STRIDE);
    CUDA_TRY(cudaFuncSetAttribute(few_rows_codes<Codes, TILES, WARPS, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    few_rows_codes<Codes, TILES, WARPS, STAGES><<<(unsigned)cuda_div_up(job.n, WARPS * COLS), WARPS * 32, bytes, stream>>>(job);
    return CUDA_LAUNCHED();
}

/* As in few_rows.cu, with more chunks in flight, which have half the bytes of w. */
template <typename Codes> static Status launch_few(const CodesJob &job, cudaStream_t stream)
{
    if (job.n <= 2048) return launch<Codes, 1, 1, 16>(job, stream);
    if (job.n <= 4096) return launch<Codes, 1, 2, 12>(job, stream);
    return launch<Codes, 1, 4, 8>(job, stream);
}

template <typename Codes> static Status launch_some(const CodesJob &job, cudaStream_t stream)
{
    return job.n <= 2048 ? launch<Codes, 2, 2, 8>(job, stream) : launch<Codes, 2, 4, 6>(job, stream);
}

template <typename Codes> static Status launch_many(const CodesJob &job, cudaStream_t stream)
{
    return job.n <= 4096 ? launch<Codes, 4, 4, 4>(job, stream) : launch<Codes, 4, 8, 4>(job, stream);
}

template <typename Codes> static Status launch_rows(const CodesJob &job, cudaStream_t stream)
{
    if (job.m <= 16) return launch_few<Codes>(job, stream);
    return job.m <= 32 ? launch_some<Codes>(job, stream) : launch_many<Codes>(job, stream);
}

static bool lies(const GemmOperand *x, DType dtype)
{
    int whole = dtype == DT_BF16 ? 8 : 16; /* numbers of 16 bytes */
    return x->dtype == dtype && x->stride % whole == 0 && x->offset % whole == 0 && (uintptr_t)x->data % 16 == 0;
}

bool few_rows_codes_fit(const Gemm *g)
{
    bool shapes = g->m > 0 && g->m <= MOST_ROWS && g->n > 0 && g->k > 0 && g->k % 16 == 0 && !g->a.trans && g->b.trans;
    bool plain = !g->accumulate && g->alpha == 1 && !g->a.scale && (DT_SET(g->c.dtype) & DT_SET_FLOAT);
    bool whole = g->b.scaling == GEMM_SCALE_COLS && lies(&g->b, DT_I8);
    bool tiles = g->b.scaling == GEMM_SCALE_TILES && g->b.to_bf16 && lies(&g->b, DT_E4M3);
    return shapes && plain && lies(&g->a, DT_BF16) && (whole || tiles);
}

Status few_rows_codes_run(const Gemm *g, void *stream)
{
    CodesJob job = {};
    job.x = (const bf16 *)g->a.data + g->a.offset, job.w = (const uint8_t *)g->b.data + g->b.offset, job.scale = g->b.scale;
    job.x_stride = g->a.stride, job.w_stride = g->b.stride, job.c_stride = g->c.stride, job.scale_stride = g->b.scale_stride;
    job.m = (int)g->m, job.n = (int)g->n, job.k = (int)g->k;
    job.c = g->c, job.bias = g->bias, job.has_bias = g->epilogue == GEMM_BIAS;
    return g->b.dtype == DT_I8 ? launch_rows<Int8Codes>(job, (cudaStream_t)stream) : launch_rows<Fp8Tiles>(job, (cudaStream_t)stream);
}
