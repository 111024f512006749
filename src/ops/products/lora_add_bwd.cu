/* lora_add_bwd on CUDA.
 *
 * mma: reads dy once for both results. A block has one slab of 256 columns and a chunk of tokens. It goes through them in tiles of 64
 * tokens x 128 columns, which cp.async loads up to three ahead. For each tile
 *   dh (64 tokens x r) += dy b    four warps have 16 tokens each and half of the columns, four the other half;
 *   db (128 columns x r) += dy^T h    each warp has 16 columns.
 * db stays in registers for the whole chunk. Partial sums (dh of a slab, db of a chunk) are fp32 in workspace; a second kernel adds them up
 * in order. Cuts depend on shapes alone, so that results are deterministic and the same on every GPU. */
#include "ops/mma.cuh"
#include "ops/products/lora.cuh"
#include "ops/products/lora_chunks.h"

enum { IN_DY, IN_H, IN_B, IN_ACC, OUT_DH = 0, OUT_DB = 1 };

/* ---- mma ---- */

enum {
    SLAB = LORA_SLAB,
    COLS = 128, /* columns of a tile */
    TOKENS = LORA_TILE_TOKENS,
    TILES = SLAB / COLS,
    DY_STRIDE = COLS + 8,
    WARPS = 8,
    THREADS = WARPS * 32,
    H_TILES = 3, /* tiles of h in memory: the current one and those being loaded */
};

template <int R> struct Shared {
    enum { COLS_R = R < 16 ? 16 : R /* columns at R and after are zeros */, STRIDE = COLS_R + 8, STAGES = R < 32 ? 4 : 3 };
    bf16  dy[STAGES][TOKENS * DY_STRIDE];
    bf16  b[SLAB * STRIDE];
    bf16  h[H_TILES][TOKENS * STRIDE];
    float sum[TOKENS * COLS_R];
};

static LoraChunks chunks_of(const LoraLayout *l)
{
    return lora_chunks(l->tokens, l->num_slabs, l->r);
}

/* Begins to copy `rows` rows of `packs` 16-byte packs; rows at `end` and after, and packs at `last` and after, are zeros. */
template <int ROWS, int PACKS>
static __device__ __forceinline__ void copy_rows(bf16 *to, int to_stride, const bf16 *from, int64_t from_stride, int64_t end, int last)
{
    for (int i = threadIdx.x; i < ROWS * PACKS; i += THREADS) {
        int  row = i / PACKS, pack = i % PACKS;
        bool there = row < end && pack < last;
        copy_async(to + row * to_stride + pack * 8, from + (there ? row * from_stride + pack * 8 : 0), there);
    }
}

/* c (16 x N) += a (16 x 16) times `right`, 16 rows of N bf16 in memory, read transposed; two tiles of columns at a time. */
template <int N, int STRIDE>
static __device__ __forceinline__ void multiply(float (&c)[N / 8][4], const uint32_t (&a)[4], const bf16 *right)
{
    int lane = threadIdx.x & 31;
    right += ((lane & 7) + ((lane >> 3) & 1) * 8) * STRIDE + ((lane >> 4) & 1) * 8;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t b[4];
        ldmatrix_trans(b, right + n * 16);
        mma(c[2 * n], a, b[0], b[1]);
        mma(c[2 * n + 1], a, b[2], b[3]);
    }
}

/* Adds to dh of 16 tokens the sum over 64 columns of a tile; b begins at the tile's first column. */
template <int R>
static __device__ __forceinline__ void add_dh(float (&dh)[Shared<R>::COLS_R / 8][4], const bf16 *dy, const bf16 *b, int token, int col)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < 4; k++, col += 16) {
        uint32_t a[4];
        ldmatrix(a, dy + (token + (lane & 15)) * DY_STRIDE + col + (lane >> 4) * 8);
        multiply<Shared<R>::COLS_R, Shared<R>::STRIDE>(dh, a, b + col * Shared<R>::STRIDE);
    }
}

/* Adds to db of 16 columns the sum over the tile's 64 tokens. */
template <int R>
static __device__ __forceinline__ void add_db(float (&db)[Shared<R>::COLS_R / 8][4], const bf16 *dy, const bf16 *h, int col)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int token = 0; token < TOKENS; token += 16) {
        uint32_t a[4];
        ldmatrix_trans(a, dy + (token + (lane & 7) + ((lane >> 4) & 1) * 8) * DY_STRIDE + col + ((lane >> 3) & 1) * 8);
        multiply<Shared<R>::COLS_R, Shared<R>::STRIDE>(db, a, h + token * Shared<R>::STRIDE);
    }
}

/* Stores a lane's pairs of a result (16 rows x r) in rows of R floats; only rows below `end`. */
template <int R> static __device__ __forceinline__ void store_sums(float *to, const float (&c)[Shared<R>::COLS_R / 8][4], int64_t end)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = (lane >> 2) + half * 8;
        if (row >= end) continue;
#pragma unroll
        for (int n = 0; n < R / 8; n++)
            *reinterpret_cast<float2 *>(to + row * R + n * 8 + (lane & 3) * 2) = make_float2(c[n][2 * half], c[n][2 * half + 1]);
    }
}

/* Adds the dh of the warps with the second half of the columns to the dh of the warps with the first half. */
template <int R> static __device__ __forceinline__ void join_halves(float (&dh)[Shared<R>::COLS_R / 8][4], float *sum, bool second)
{
    enum { COLS_R = Shared<R>::COLS_R };
    int lane = threadIdx.x & 31;
    sum += (threadIdx.x >> 5 & 3) * 32 * (COLS_R / 2) + lane;
#pragma unroll
    for (int i = 0; i < COLS_R / 2; i++)
        if (second) sum[i * 32] = dh[i / 4][i % 4];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COLS_R / 2; i++)
        if (!second) dh[i / 4][i % 4] += sum[i * 32];
}

/* dh_sums (slabs, tokens, R), db_sums (chunks, rows of b, R). */
template <int R>
static __global__ void __launch_bounds__(THREADS) lora_bwd_mma(const bf16 *dy, const bf16 *h, const bf16 *b, float *dh_sums, float *db_sums,
                                                               const __grid_constant__ LoraLayout l, LoraChunks chunks)
{
    typedef Shared<R>       S;
    extern __shared__ uint4 shared_bytes_[];
    S                      &shared = *reinterpret_cast<S *>(shared_bytes_);
    int                     slab = (int)(blockIdx.x % l.num_slabs), warp = threadIdx.x >> 5, m = lora_member_of_slab(l, slab);
    int64_t                 chunk = blockIdx.x / l.num_slabs, first = chunk * chunks.per, tiles = min(chunks.per, chunks.tiles - first);
    int                     col = (slab - l.slab[m]) * SLAB, cols = min((int)SLAB, l.rows[m] - col);
    dy += first * TOKENS * l.y_stride + l.col[m] + col;
    h += first * TOKENS * l.h_stride + m * R;
    b += (int64_t)(l.first[m] + col) * R;
    int64_t tokens = l.tokens - first * TOKENS; /* from the chunk's first token on */

    auto load = [&](int64_t i) {
        int64_t token = i / TILES * TOKENS;
        int     tile = (int)(i % TILES);
        if (i < tiles * TILES) {
            copy_rows<TOKENS, COLS / 8>(shared.dy[i % S::STAGES], DY_STRIDE, dy + token * l.y_stride + tile * COLS, l.y_stride,
                                        tokens - token, (cols - tile * COLS) / 8);
            if (tile == 0)
                copy_rows<TOKENS, S::COLS_R / 8>(shared.h[i / TILES % H_TILES], S::STRIDE, h + token * l.h_stride, l.h_stride,
                                                 tokens - token, R / 8);
        }
        copy_commit();
    };
    copy_rows<SLAB, S::COLS_R / 8>(shared.b, S::STRIDE, b, R, cols, R / 8);
    for (int i = 0; i < S::STAGES - 1; i++) load(i);

    float db[TILES][S::COLS_R / 8][4] = {};
    for (int64_t t = 0; t < tiles; t++) {
        float dh[S::COLS_R / 8][4] = {};
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            int64_t i = t * TILES + tile;
            copy_wait<S::STAGES - 2>();
            __syncthreads();
            load(i + S::STAGES - 1);
            const bf16 *there = shared.dy[i % S::STAGES];
            add_dh<R>(dh, there, shared.b + tile * COLS * S::STRIDE, (warp & 3) * 16, (warp >> 2) * 64);
            add_db<R>(db[tile], there, shared.h[t % H_TILES], warp * 16);
        }
        join_halves<R>(dh, shared.sum, warp >> 2);
        int64_t token = t * TOKENS + (warp & 3) * 16;
        if (warp < 4) store_sums<R>(dh_sums + ((int64_t)slab * l.tokens + first * TOKENS + token) * R, dh, tokens - token);
    }
    copy_wait<0>();
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        int at = tile * COLS + warp * 16;
        store_sums<R>(db_sums + (chunk * l.b_rows + l.first[m] + col + at) * R, db[tile], cols - at);
    }
}

static __device__ __forceinline__ void add_quad(float (&sum)[4], const float *from)
{
    float4 q = *reinterpret_cast<const float4 *>(from);
    sum[0] += q.x, sum[1] += q.y, sum[2] += q.z, sum[3] += q.w;
}

/* Stores alpha * sum in four elements, or adds it to them. */
template <typename T> static __device__ __forceinline__ void store_quad(T *to, float alpha, const float (&sum)[4], bool accumulate)
{
    float value[4];
#pragma unroll
    for (int i = 0; i < 4; i++) value[i] = alpha * sum[i] + (accumulate ? to_float(to[i]) : 0.0f);
    if constexpr (sizeof(T) == 2)
        *reinterpret_cast<uint2 *>(to) = make_uint2(pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3]));
    else
        *reinterpret_cast<float4 *>(to) = make_float4(value[0], value[1], value[2], value[3]);
}

/* A thread makes four elements of dh (num_dh in all; 0: not wanted) or of db. Partial sums are added in order. */
template <typename D>
static __global__ void lora_bwd_combine(bf16 *dh, D *db, const float *dh_sums, const float *db_sums, int64_t num_dh, int64_t num_db,
                                        bool accumulate, const __grid_constant__ LoraLayout l, int64_t num_chunks)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    float   sum[4] = {};
    if (at < num_dh) {
        int64_t token = at / l.h_stride;
        int     m = (int)(at % l.h_stride) / l.r, j = (int)(at % l.h_stride) % l.r;
        int     end = m + 1 < l.members ? l.slab[m + 1] : l.num_slabs;
#pragma unroll 4
        for (int slab = l.slab[m]; slab < end; slab++) add_quad(sum, dh_sums + ((int64_t)slab * l.tokens + token) * l.r + j);
        store_quad(dh + at, l.alpha, sum, false);
    } else {
        at -= num_dh;
        if (at >= num_db) return;
#pragma unroll 8
        for (int64_t chunk = 0; chunk < num_chunks; chunk++) add_quad(sum, db_sums + chunk * l.b_rows * l.r + at);
        store_quad(db + at, l.alpha, sum, accumulate);
    }
}

static LoraLayout layout_of(const LoraAttrs *attrs, const TensorType *dy, const TensorType *h, const TensorType *b)
{
    return lora_layout(attrs, dy, h, b, SLAB);
}

static size_t mma_shared(int64_t r)
{
    return r == 8 ? sizeof(Shared<8>) : r == 16 ? sizeof(Shared<16>) : r == 32 ? sizeof(Shared<32>) : sizeof(Shared<64>);
}

static bool mma_match(const Node *node, CudaDevice *device)
{
    const TensorType *b = &node->in[IN_B]->type;
    return lora_mma_fits((const LoraAttrs *)node->attrs, &node->in[IN_DY]->type, b) &&
           mma_shared(type_cols(b)) <= cuda_shared_bytes(device);
}

static size_t mma_workspace(const Node *node, CudaDevice *)
{
    return lora_sums_bytes((const LoraAttrs *)node->attrs, &node->in[IN_DY]->type, &node->in[IN_B]->type);
}

template <int R> static Status launch(const KernelArgs *args, const LoraLayout &l, const LoraChunks &chunks, float *dh_sums, float *db_sums)
{
    CUDA_TRY(cudaFuncSetAttribute(lora_bwd_mma<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared<R>)));
    lora_bwd_mma<R><<<(unsigned)(chunks.count * l.num_slabs), THREADS, sizeof(Shared<R>), cuda_stream(args)>>>(
        (const bf16 *)args->in[IN_DY].data, (const bf16 *)args->in[IN_H].data, (const bf16 *)args->in[IN_B].data, dh_sums, db_sums, l,
        chunks);
    return CUDA_LAUNCHED();
}

static Status mma_run(const KernelArgs *args)
{
    LoraLayout l = layout_of((const LoraAttrs *)args->attrs, &args->in[IN_DY].type, &args->in[IN_H].type, &args->in[IN_B].type);
    LoraChunks chunks = chunks_of(&l);
    float     *dh_sums = (float *)args->workspace, *db_sums = dh_sums + l.num_slabs * l.tokens * l.r;
    bf16      *dh = (bf16 *)args->out[OUT_DH].data;
    void      *db = args->out[OUT_DB].data;
    int64_t    num_dh = dh ? l.tokens * l.h_stride : 0, num_db = db ? l.b_rows * l.r : 0;
    LORA_RANK(l.r, TRY(launch<R>(args, l, chunks, dh_sums, db_sums)));
    if (num_dh + num_db)
        CUDA_FLOAT(args->out[OUT_DB].type.dtype, D,
                   lora_bwd_combine<D><<<(unsigned)cuda_div_up((num_dh + num_db) / 4, 128), 128, 0, cuda_stream(args)>>>(
                       dh, (D *)db, dh_sums, db_sums, num_dh, num_db, args->accumulate >> OUT_DB & 1, l, chunks.count));
    return CUDA_LAUNCHED();
}

PRODUCT_KERNELS(lora_add_bwd)
CUDA_KERNELS(lora_add_bwd,
             {.dtypes = DT_SET_BF16,
              .min_sm = 80,
              .run = mma_run,
              .name = "mma",
              .workspace = mma_workspace,
              .match = mma_match,
              .except = {{.in = 1u << IN_ACC, .out = 1u << OUT_DB, .dtypes = DT_SET_FLOAT}}},
             PRODUCT_ROWS(lora_add_bwd))
