/* Tiles of 64 rows in shared memory and matrix products on them by mma.sync, of bf16 and of f16 (compute capability 8.0 and later): a
 * warp has 16 rows of the result. Rows of shared memory are padded by 16 bytes, so that the eight rows of an ldmatrix
 * lie in different banks. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/attention/attention.cuh"

#include <cuda_fp16.h>

typedef __nv_bfloat16 bf16;

enum { TILE_ROWS = 64, MMA_WARPS = 4, MMA_THREADS = MMA_WARPS * 32 };

template <int D> struct TileOf {
    enum { STRIDE = D + 8, ELEMENTS = TILE_ROWS * STRIDE };
};

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* address: in shared memory */
static __device__ __forceinline__ void ldmatrix_at(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

static __device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const void *p)
{
    ldmatrix_at(r, shared_address(p));
}

static __device__ __forceinline__ void ldmatrix_trans_at(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

static __device__ __forceinline__ void ldmatrix_trans(uint32_t (&r)[4], const void *p)
{
    ldmatrix_trans_at(r, shared_address(p));
}

static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same for operands of type T, bf16 or f16. */
template <typename T> static __device__ __forceinline__ void mma_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> __device__ __forceinline__ void                  mma_of<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma(c, a, b0, b1);
}
template <> __device__ __forceinline__ void mma_of<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void copy_async(void *to, const void *from, bool there)
{
    int bytes = there ? 16 : 0; /* the rest of the 16 bytes is zero-filled */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}

static __device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;");
}
template <int N> static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* Begins to copy rows [t, t + 64) of one head, by a thread block of THREADS; rows at `end` and after are zeros. */
template <int D, int THREADS = MMA_THREADS, typename T>
static __device__ __forceinline__ void load_tile(T *tile, const Heads &h, int b, int t, int end, int head)
{
    enum { CHUNKS = D / 8 };
    const T *base = (const T *)h.data + b * h.batch_stride + (int64_t)head * D;
#pragma unroll
    for (int i = threadIdx.x; i < TILE_ROWS * CHUNKS; i += THREADS) {
        int  row = i / CHUNKS, chunk = i % CHUNKS;
        bool there = t + row < end;
        copy_async(tile + row * TileOf<D>::STRIDE + chunk * 8, base + (there ? t + row : 0) * h.token_stride + chunk * 8, there);
    }
}

/* Loads 16 rows x 16 columns of a tile as a left operand. */
template <int D, typename T> static __device__ __forceinline__ void load_left(uint32_t (&a)[4], const T *tile, int row, int col)
{
    int lane = threadIdx.x & 31;
    ldmatrix(a, tile + (row + (lane & 15)) * TileOf<D>::STRIDE + col + (lane >> 4) * 8);
}

/* c (16 x 64) += a (16 x 16, columns [16k, 16k + 16)) times the transpose of a tile (64 x D). */
template <int D, typename T>
static __device__ __forceinline__ void mma_transposed(float (&c)[8][4], const uint32_t (&a)[4], const T *tile, int k)
{
    int lane = threadIdx.x & 31, row = (lane & 7) + ((lane >> 4) & 1) * 8, col = k * 16 + ((lane >> 3) & 1) * 8;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t b[4];
        ldmatrix(b, tile + (n * 16 + row) * TileOf<D>::STRIDE + col);
        mma_of<T>(c[2 * n], a, b[0], b[1]);
        mma_of<T>(c[2 * n + 1], a, b[2], b[3]);
    }
}

/* c (16 x C) += a (16 x 64, in four pieces) times C columns of a tile (64 x D). */
template <int D, int C = D, typename T>
static __device__ __forceinline__ void mma_straight(float (&c)[C / 8][4], const uint32_t (&a)[4][4], const T *tile)
{
    int lane = threadIdx.x & 31, row = (lane & 7) + ((lane >> 3) & 1) * 8, col = ((lane >> 4) & 1) * 8;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < C / 16; n++) {
            uint32_t b[4];
            ldmatrix_trans(b, tile + (k * 16 + row) * TileOf<D>::STRIDE + n * 16 + col);
            mma_of<T>(c[2 * n], a[k], b[0], b[1]);
            mma_of<T>(c[2 * n + 1], a[k], b[2], b[3]);
        }
}

/* Converts a result (16 x 16K) to left operands of a product that sums over its columns. */
template <typename T = bf16, int K> static __device__ __forceinline__ void as_left(uint32_t (&a)[K][4], const float (&c)[2 * K][4])
{
#pragma unroll
    for (int k = 0; k < K; k++) {
        a[k][0] = pair_of<T>(c[2 * k][0], c[2 * k][1]);
        a[k][1] = pair_of<T>(c[2 * k][2], c[2 * k][3]);
        a[k][2] = pair_of<T>(c[2 * k + 1][0], c[2 * k + 1][1]);
        a[k][3] = pair_of<T>(c[2 * k + 1][2], c[2 * k + 1][3]);
    }
}

/* Stores this lane's results, scaled: rows lane / 4 and lane / 4 + 8 from t on, if below `end`. */
template <int D, typename T = bf16>
static __device__ __forceinline__ void store_rows(const Heads &h, int b, int t, int end, int head, const float (&c)[D / 8][4], float scale0,
                                                  float scale1)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = t + (lane >> 2) + half * 8;
        if (row >= end) continue;
        T    *to = (T *)h.data + b * h.batch_stride + row * h.token_stride + (int64_t)head * D + (lane & 3) * 2;
        float scale = half ? scale1 : scale0;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<uint32_t *>(to + n * 8) = pair_of<T>(c[n][2 * half] * scale, c[n][2 * half + 1] * scale);
    }
}

/* Least and largest first key of the 64 queries from t on; every thread gets both. scratch: 4 ints. */
static __device__ __forceinline__ void document_range(const AttentionDims &a, int b, int t, int *scratch, int *out_least, int *out_most)
{
    int lane = threadIdx.x & 31, query = min(t + (int)threadIdx.x % TILE_ROWS, a.len - 1);
    int first = attention_first_key(a, b, query, query);
    int least = __reduce_min_sync(0xFFFFFFFFu, first), most = __reduce_max_sync(0xFFFFFFFFu, first);
    if (lane == 0 && threadIdx.x < TILE_ROWS) {
        scratch[threadIdx.x >> 5] = least;
        scratch[2 + (threadIdx.x >> 5)] = most;
    }
    __syncthreads();
    *out_least = min(scratch[0], scratch[1]);
    *out_most = max(scratch[2], scratch[3]);
    __syncthreads();
}
