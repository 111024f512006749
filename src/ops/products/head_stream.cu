/* head_rows of w in fp32 or 8 bits for 2 to 8 rows of x, on GPUs whose copy engine loads rows into shared memory (compute capability 9.0):
 * the sums of head_rows.cu's fma, to the bit.
 *
 * A warp has 4 rows of w at a time, in pieces along the rows, and loads them into a ring of slots of its own. If nothing in the program
 * writes w, the first loads begin before the preceding launch has ended. All rows of x stay in shared memory. */
#include "ops/products/head_stream.h"

#include "ops/bulk.cuh"

enum { GROUP = 4, ALONG = 4 * 32, WARPS = 8, PIECE = 2048, MOST_SLOTS = 3, LEAST_SLOTS = 2, PHASES_BYTES = WARPS * MOST_SLOTS * 8 };

/* Bytes of one slot of all warps: PIECE bytes of each of GROUP rows. */
enum { RING_BYTES = WARPS * GROUP * PIECE };

/* Loads a lane's 4 of ALONG elements. */
static __device__ __forceinline__ void four_at(uint32_t address, float (&out)[4])
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(out[0]), "=f"(out[1]), "=f"(out[2]), "=f"(out[3]) : "r"(address));
}

template <typename T> static __device__ __forceinline__ void numbers_at(uint32_t address, float (&out)[4]);
template <> __device__ __forceinline__ void                  numbers_at<float>(uint32_t address, float (&out)[4])
{
    four_at(address, out);
}
/* A byte in the low bits of the float 2^23 adds its value to it. Subtracting 2^23 + 128 makes the byte signed again. */
template <> __device__ __forceinline__ void numbers_at<int8_t>(uint32_t address, float (&out)[4])
{
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
    word ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7540u + i)) - 8388736.0f;
}

/* Sums each v[i] over all lanes, in pairs as warp_sum does. Afterwards a lane's v[0] is the sum of all v[lane / (32 / N)]. */
template <int N> static __device__ __forceinline__ void sum_lanes(float (&v)[N])
{
    int lane = threadIdx.x & 31, n = N;
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) {
        bool upper = lane & offset;
        if (n > 1)
            n /= 2;
        else {
            v[0] += __shfl_xor_sync(0xFFFFFFFFu, v[0], offset);
            continue;
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            if (i < n) {
                float sent = upper ? v[i] : v[i + n], kept = upper ? v[i + n] : v[i];
                v[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, sent, offset);
            }
    }
}

struct StreamJob {
    Head h;
    int  pieces, slots; /* pieces of a row; slots of a warp's ring */
    bool w_constant;
};

/* A position among a warp's pieces, group by group of its rows of w, and among its slots. */
template <typename T> struct Pieces {
    int64_t v; /* the group's first row */
    int     piece, slot, parity;

    __device__ __forceinline__ void next(const StreamJob &job, int64_t stride)
    {
        if (++slot == job.slots) slot = 0, parity ^= 1;
        if (++piece == job.pieces) piece = 0, v += stride;
    }
    /* Begins to copy this piece. Called by one lane. */
    __device__ __forceinline__ void bring(const StreamJob &job, uint32_t ring, uint64_t *full) const
    {
        int64_t row_bytes = job.h.dim * (int64_t)sizeof(T), at = (int64_t)piece * PIECE;
        int     bytes = (int)min((int64_t)PIECE, row_bytes - at);
        expect_bytes(&full[slot], GROUP * bytes);
#pragma unroll
        for (int r = 0; r < GROUP; r++)
            copy_bytes(ring + (slot * GROUP + r) * PIECE, (const char *)job.h.w + min(v + r, job.h.vocab - 1) * row_bytes + at, bytes,
                       &full[slot]);
    }
};

/* Adds a piece's elements times x's. w, x: addresses of this lane's first elements. */
template <typename T, int ROWS>
static __device__ __forceinline__ void add(float (&sum)[GROUP * ROWS], uint32_t w, uint32_t x, uint32_t x_stride)
{
    float numbers[GROUP][4];
#pragma unroll
    for (int r = 0; r < GROUP; r++) numbers_at<T>(w + r * PIECE, numbers[r]);
#pragma unroll
    for (int b = 0; b < ROWS; b++) {
        float of_x[4];
        four_at(x + b * x_stride, of_x);
#pragma unroll
        for (int r = 0; r < GROUP; r++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[r * ROWS + b] = fmaf(of_x[e], numbers[r][e], sum[r * ROWS + b]);
    }
}

template <typename T, int ROWS> static __global__ void __launch_bounds__(WARPS * 32) head_stream(const __grid_constant__ StreamJob job)
{
    extern __shared__ __align__(128) char stream_memory[];
    enum { NUMBERS = PIECE / (int)sizeof(T), SUMS = GROUP * ROWS, LANES_EACH = 32 / SUMS };
    const Head &h = job.h;
    int         lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint64_t   *full = (uint64_t *)stream_memory + warp * MOST_SLOTS;
    uint32_t    memory = shared_address(stream_memory), ring = memory + PHASES_BYTES + warp * job.slots * GROUP * PIECE,
             x = memory + PHASES_BYTES + job.slots * RING_BYTES, x_stride = h.dim * 4;
    int64_t   stride = (int64_t)gridDim.x * WARPS * GROUP;
    Pieces<T> now = {((int64_t)warp * gridDim.x + blockIdx.x) * GROUP, 0, 0, 0}, ahead = now;
    release_launches();
    if (lane == 0) {
        for (int i = 0; i < job.slots; i++) phases_init(&full[i], 1);
        publish_phases();
    }
    __syncwarp();
    if (!job.w_constant) await_launches();
    for (int i = 0; i < job.slots && ahead.v < h.cols; i++, ahead.next(job, stride))
        if (lane == 0) ahead.bring(job, ring, full);
    if (job.w_constant) await_launches();
    for (int i = threadIdx.x; i < ROWS * h.dim / 4; i += WARPS * 32) {
        float4 four = i < h.rows * h.dim / 4 ? __ldcg((const float4 *)h.x + i) : make_float4(0, 0, 0, 0);
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(x + i * 16), "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
                     : "memory");
    }
    __syncthreads();
    while (now.v < h.cols) {
        float   sum[SUMS] = {};
        int64_t v = now.v;
        for (int k = 0; k < h.dim; k += NUMBERS) {
            uint32_t w = ring + now.slot * GROUP * PIECE + lane * 4 * (int)sizeof(T), of_x = x + (k + 4 * lane) * 4;
            phase_wait(&full[now.slot], now.parity);
            if (k + NUMBERS <= h.dim) {
#pragma unroll
                for (int i = 0; i < NUMBERS; i += ALONG) add<T, ROWS>(sum, w + i * (int)sizeof(T), of_x + i * 4, x_stride);
            } else {
                for (int i = 0; k + i + 4 * lane < h.dim; i += ALONG) add<T, ROWS>(sum, w + i * (int)sizeof(T), of_x + i * 4, x_stride);
            }
            __syncwarp(); /* all lanes have read this piece */
            now.next(job, stride);
            if (ahead.v < h.cols) {
                if (lane == 0) ahead.bring(job, ring, full);
                ahead.next(job, stride);
            }
        }
        sum_lanes(sum);
        if (lane % LANES_EACH == 0) head_store(h, lane / LANES_EACH % ROWS, v + lane / LANES_EACH / ROWS, sum[0]);
    }
}

template <typename T, int ROWS> static Status launch(const Head *h, const HeadLaunch *how, cudaStream_t stream)
{
    StreamJob job = {*h};
    int       room = how->shared - PHASES_BYTES - ROWS * h->dim * 4;
    int64_t   groups = cuda_div_up(h->cols, GROUP);
    job.pieces = (int)cuda_div_up(h->dim * (int64_t)sizeof(T), PIECE);
    job.slots = room / RING_BYTES < MOST_SLOTS ? room / RING_BYTES : MOST_SLOTS;
    job.w_constant = how->w_constant;
    size_t bytes = PHASES_BYTES + (size_t)job.slots * RING_BYTES + (size_t)ROWS * h->dim * 4;
    CUDA_TRY(cudaFuncSetAttribute(head_stream<T, ROWS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return cuda_launch_early(how->early, head_stream<T, ROWS>, dim3((unsigned)(groups < how->processors ? groups : how->processors)),
                             WARPS * 32, bytes, stream, job);
}

template <typename T> static Status launch_rows(const Head *h, const HeadLaunch *how, cudaStream_t stream)
{
    if (h->rows == 2) return launch<T, 2>(h, how, stream);
    return h->rows <= 4 ? launch<T, 4>(h, how, stream) : launch<T, 8>(h, how, stream);
}

bool head_stream_fits(int rows, int dim, DType w, int shared)
{
    int64_t x_bytes = (int64_t)(rows == 2 ? 2 : rows <= 4 ? 4 : 8) * dim * 4;
    return rows > 1 && rows <= HEAD_STREAM_ROWS && dtype_bytes(w, dim) % 16 == 0 &&
           PHASES_BYTES + x_bytes + LEAST_SLOTS * RING_BYTES <= shared;
}

Status head_stream_run(const Head *h, DType w, const HeadLaunch *how, cudaStream_t stream)
{
    return w == DT_I8 ? launch_rows<int8_t>(h, how, stream) : launch_rows<float>(h, how, stream);
}
